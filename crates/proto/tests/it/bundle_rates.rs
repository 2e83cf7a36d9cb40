//! Throughput of a bundle in virtual time, relative to the capacity of its lanes: independent lanes over a long path,
//! whose windows grow and shrink with random losses (S1).
//!
//! A lane sends its window in each round trip. Assigned bytes wait to be sent, and bytes that have arrived wait until
//! the stream reaches them. A full receive buffer stops the lane. A loss delays the bytes behind it by a round trip.

use phoebus_proto::session::bundle::{Gather, Load, Next, Scatter};
use phoebus_proto::session::frame::{FrameState, Role};
use std::collections::VecDeque;

/// Round-trip time in milliseconds.
const ROUND_TRIP: usize = 100;
/// Simulated time in milliseconds.
const TIME: usize = 60_000;

/// The path of a lane. It does not depend on the data that the lane carries.
struct Path {
    /// Congestion window in bytes, for each millisecond.
    window: Vec<u64>,
    /// The largest window.
    largest: u64,
    /// Times of losses, in milliseconds.
    losses: Vec<usize>,
}

impl Path {
    /// A path whose window grows by `growth` bytes per millisecond and falls to 0.7 of itself at a loss. There is one
    /// loss in `every` milliseconds on average.
    fn new(first: u64, growth: u64, every: u64, seed: &mut u64) -> Self {
        let mut window = first;
        let mut path = Self { window: Vec::new(), largest: 0, losses: Vec::new() };
        for now in 0..TIME {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            window += growth;
            if (*seed >> 33).is_multiple_of(every) {
                window = (window * 7 / 10).max(14_480);
                path.losses.push(now);
            }
            path.window.push(window);
            path.largest = path.largest.max(window);
        }
        path
    }

    /// Number of bytes that the path can send from millisecond `from` on.
    fn capacity(&self, from: usize) -> u64 {
        self.window[from..].iter().map(|window| window / ROUND_TRIP as u64).sum()
    }
}

struct Lane<'a> {
    path: &'a Path,
    state: FrameState,
    /// Bytes of the current frame for which the transport has no room yet.
    held: u64,
    /// Bytes in the transport that were not sent yet.
    unsent: u64,
    /// Arrival time and number of bytes in flight.
    flight: VecDeque<(usize, u64)>,
    in_flight: u64,
    /// Bytes that have arrived and were not read.
    unread: u64,
    /// When the last loss is retransmitted. Until then, bytes behind it are not delivered.
    repaired: usize,
    /// Offset and length of frames whose headers the receiver has not read.
    frames: VecDeque<(u64, u32)>,
}

impl Lane<'_> {
    fn load(&self, now: usize) -> Load {
        let ahead = self.held + self.unsent + self.in_flight;
        Load { window: self.path.window[now], round_trip: 1000 * ROUND_TRIP as u64, ahead }
    }
}

/// Simulates a transfer and returns the number of bytes delivered from millisecond `from` on. `bound` limits the unsent
/// bytes of a lane, `buffer` is the size of its receive buffer.
fn run(paths: &[Path], from: usize, bound: impl Fn(&Path, Load) -> u64, buffer: impl Fn(&Path) -> u64) -> u64 {
    let (mut scatter, mut gather) = (Scatter::default(), Gather::default());
    let mut lanes: Vec<_> = paths
        .iter()
        .map(|path| Lane {
            path,
            state: FrameState::striped(Role::Initiator),
            held: 0,
            unsent: 0,
            flight: VecDeque::new(),
            in_flight: 0,
            unread: 0,
            repaired: 0,
            frames: VecDeque::new(),
        })
        .collect();
    (0..lanes.len()).for_each(|lane| assert_eq!(gather.join(), lane));
    let mut before = 0;
    for now in 0..TIME {
        if now == from {
            before = gather.position();
        }
        for lane in &mut lanes {
            // Send what the window and the receive buffer allow.
            let allowed = buffer(lane.path).saturating_sub(lane.in_flight + lane.unread);
            let n = (lane.path.window[now] / ROUND_TRIP as u64).min(lane.unsent).min(allowed);
            lane.unsent -= n;
            lane.in_flight += n;
            lane.flight.push_back((now + ROUND_TRIP / 2, n));
            if lane.path.losses.binary_search(&now).is_ok() {
                lane.repaired = now + ROUND_TRIP + ROUND_TRIP / 2;
            }
            while let Some((_, n)) = lane.flight.pop_front_if(|(at, _)| *at <= now && lane.repaired <= now) {
                lane.in_flight -= n;
                lane.unread += n;
            }
        }
        // Move bytes to the transports as far as they have room. A lane that has handed over its frame gets the next
        // one.
        loop {
            for lane in &mut lanes {
                let room = bound(lane.path, lane.load(now)).saturating_sub(lane.unsent);
                let n = room.min(lane.held);
                lane.held -= n;
                lane.unsent += n;
            }
            let due = |n: usize| {
                let load = lanes[n].load(now);
                (lanes[n].held == 0).then(|| load.due(load.frame()))
            };
            let Some(chosen) = scatter.choose(lanes.len(), due) else { break };
            let lane = &mut lanes[chosen];
            let len = lane.load(now).frame() as u32;
            lane.frames.push_back((scatter.position(), len));
            scatter.data(&mut lane.state, len).unwrap();
            lane.held = len.into();
        }
        // Read everything that continues the stream.
        loop {
            for (number, lane) in lanes.iter_mut().enumerate() {
                if gather.wants(number)
                    && lane.unread > 0
                    && let Some((offset, len)) = lane.frames.pop_front()
                {
                    gather.data(number, offset, len).unwrap();
                }
            }
            let Next::Payload { lane, len } = gather.next(true).unwrap() else { break };
            let n = lanes[lane].unread.min(len.into());
            if n == 0 {
                break;
            }
            lanes[lane].unread -= n;
            gather.took(lane, n as u32);
        }
    }
    gather.position() - before
}

/// Throughput of a bundle after the first ten seconds, as a fraction of the capacity of its lanes.
fn utilization(paths: &[Path], bound: impl Fn(&Path, Load) -> u64) -> f64 {
    const FROM: usize = 10_000;
    // Receive buffers as large as kernels make them for a reader that reads in bursts.
    let arrived = run(paths, FROM, bound, |path| 3 * path.largest);
    let capacity: u64 = paths.iter().map(|path| path.capacity(FROM)).sum();
    arrived as f64 / capacity as f64
}

#[test]
fn lanes_with_independent_windows_are_utilized() {
    let mut seed = 7;
    // Windows after an overshooting slow start: some lanes have lost much of theirs, some little.
    let paths: Vec<_> = [6_600, 860, 4_300, 2_600, 470, 2_300, 6_000, 1_100]
        .map(|window: u64| Path::new(window * 1000, 90, 3_000, &mut seed))
        .into();
    let bounded = utilization(&paths, |_, load| load.unsent_max());
    assert!(bounded > 0.95, "{bounded:.3} of what the lanes can carry");
    // For comparison: send buffers that have grown with the window and do not shrink with it.
    let unbounded = utilization(&paths, |path, _| 2 * path.largest);
    assert!(
        unbounded < bounded - 0.05,
        "{unbounded:.3} without the limit of unsent bytes: the limit makes no difference, so nothing is tested"
    );
}

#[test]
fn very_slow_lane_costs_the_others_little() {
    let mut seed = 3;
    let mut paths: Vec<_> = (0..7).map(|_| Path::new(2_000_000, 90, 3_000, &mut seed)).collect();
    paths.push(Path::new(14_480, 0, 400, &mut seed));
    let share = utilization(&paths, |_, load| load.unsent_max());
    assert!(share > 0.9, "{share:.3} of what the lanes can carry");
}

#[test]
fn equal_lanes_are_fully_utilized() {
    let mut seed = 1;
    let paths: Vec<_> = (0..8).map(|_| Path::new(1_500_000, 0, u64::MAX, &mut seed)).collect();
    let share = utilization(&paths, |_, load| load.unsent_max());
    assert!(share > 0.99, "{share:.3} of what the lanes can carry");
}
