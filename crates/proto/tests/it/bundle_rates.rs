//! How much of its lanes a bundle uses, in virtual time: lanes that share nothing, whose windows grow and fall apart as losses on
//! them happen, over a long path (S1).
//!
//! A lane sends its window in each round trip. What it was handed waits for that, and what has arrived waits until the stream has
//! come to it; a receiver whose buffer is full holds the lane up. A loss holds up for a round trip what arrives behind it.

use phoebus_proto::session::bundle::{Gather, Load, Next, Scatter};
use phoebus_proto::session::frame::{Exchange, Role};
use std::collections::VecDeque;

/// Milliseconds.
const ROUND_TRIP: usize = 100;
const TIME: usize = 60_000;

/// What happens on a lane, whatever it is given.
struct Path {
    /// Bytes that it may have on their way, by the millisecond.
    window: Vec<u64>,
    /// The most of that.
    largest: u64,
    /// When something is lost.
    losses: Vec<usize>,
}

impl Path {
    /// Whose window grows by `growth` bytes in a millisecond and falls to 0.7 of itself at a loss, of which there is one in `every`
    /// milliseconds.
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

    /// Bytes that it can send from `from` on.
    fn capacity(&self, from: usize) -> u64 {
        self.window[from..].iter().map(|window| window / ROUND_TRIP as u64).sum()
    }
}

struct Lane<'a> {
    path: &'a Path,
    exchange: Exchange,
    /// Bytes of the frame under way that the transport has no room for.
    held: u64,
    /// Bytes in the transport that were never sent.
    unsent: u64,
    /// On their way: when they are there, and how many.
    flight: VecDeque<(usize, u64)>,
    in_flight: u64,
    /// Arrived and not taken.
    unread: u64,
    /// What is in the receiver's order before this moment is there.
    repaired: usize,
    /// Frames whose headers the receiver has not read.
    frames: VecDeque<(u64, u32)>,
}

impl Lane<'_> {
    fn load(&self, now: usize) -> Load {
        let ahead = self.held + self.unsent + self.in_flight;
        Load { window: self.path.window[now], round_trip: 1000 * ROUND_TRIP as u64, ahead }
    }
}

/// Bytes that arrive from millisecond `from` on. `bound` says how many may wait on a lane, `buffer` how many its receiver holds.
fn run(paths: &[Path], from: usize, bound: impl Fn(&Path, Load) -> u64, buffer: impl Fn(&Path) -> u64) -> u64 {
    let (mut scatter, mut gather) = (Scatter::default(), Gather::default());
    let mut lanes: Vec<_> = paths
        .iter()
        .map(|path| Lane {
            path,
            exchange: Exchange::striped(Role::Initiator),
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
            // What the receiver has room for and the window lets through.
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
        // The transports take what they have room for; each lane that has its frame away is given another.
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
            scatter.data(&mut lane.exchange, len).unwrap();
            lane.held = len.into();
        }
        // The receiver takes all that continues the stream.
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

/// The share of what its lanes can carry that a bundle does, after the first ten seconds.
fn used(paths: &[Path], bound: impl Fn(&Path, Load) -> u64) -> f64 {
    const FROM: usize = 10_000;
    // As large as kernels make it for a reader that takes what comes in lumps.
    let arrived = run(paths, FROM, bound, |path| 3 * path.largest);
    let capacity: u64 = paths.iter().map(|path| path.capacity(FROM)).sum();
    arrived as f64 / capacity as f64
}

#[test]
fn lanes_that_grow_and_fall_apart_from_each_other_are_used() {
    let mut seed = 7;
    // Windows after a start that overshot: some have lost much of it, some little.
    let paths: Vec<_> = [6_600, 860, 4_300, 2_600, 470, 2_300, 6_000, 1_100]
        .map(|window: u64| Path::new(window * 1000, 90, 3_000, &mut seed))
        .into();
    let bounded = used(&paths, |_, load| load.unsent_max());
    assert!(bounded > 0.95, "{bounded:.3} of what the lanes can carry");
    // A send buffer that has grown with the window, and stays when that falls.
    let unbounded = used(&paths, |path, _| 2 * path.largest);
    assert!(
        unbounded < bounded - 0.05,
        "{unbounded:.3} where lanes take what they have room for: nothing is tested here"
    );
}

#[test]
fn a_lane_that_hardly_moves_costs_the_others_little() {
    let mut seed = 3;
    let mut paths: Vec<_> = (0..7).map(|_| Path::new(2_000_000, 90, 3_000, &mut seed)).collect();
    paths.push(Path::new(14_480, 0, 400, &mut seed));
    let share = used(&paths, |_, load| load.unsent_max());
    assert!(share > 0.9, "{share:.3} of what the lanes can carry");
}

#[test]
fn equal_lanes_are_filled() {
    let mut seed = 1;
    let paths: Vec<_> = (0..8).map(|_| Path::new(1_500_000, 0, u64::MAX, &mut seed)).collect();
    let share = used(&paths, |_, load| load.unsent_max());
    assert!(share > 0.99, "{share:.3} of what the lanes can carry");
}
