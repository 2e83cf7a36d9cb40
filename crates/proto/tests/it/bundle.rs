//! Bundles in virtual time: two ends and their lanes, byte by byte, in any order of events (invariant 1, P22).
//!
//! What a lane has under way is bounded, as a transport bounds it. An end that has more to send waits, and so does a lane
//! whose next bytes are not yet wanted.

use phoebus_proto::session::bundle::{Gather, Next, Scatter};
use phoebus_proto::session::frame::{Exchange, Frame, HEADER_LEN, Role};
use proptest::prelude::*;
use std::collections::VecDeque;

/// What is on its way in one direction of a lane.
#[derive(Debug, Default)]
struct Wire {
    bytes: VecDeque<u8>,
    cut: bool,
}

/// One end's part of a lane.
#[derive(Debug)]
struct Lane {
    exchange: Exchange,
    /// The frame under way, which the wire had no room for yet.
    under_way: VecDeque<u8>,
    header: Vec<u8>,
    acked: bool,
}

/// One end of the hop.
#[derive(Debug)]
struct End {
    role: Role,
    lanes: Vec<Lane>,
    scatter: Scatter,
    gather: Gather,
    source: Vec<u8>,
    sink: Vec<u8>,
    /// The peer's stream has ended and was passed on.
    ended: bool,
}

/// Why an end has failed.
type Failed = String;

impl End {
    fn new(role: Role, source: Vec<u8>) -> Self {
        Self {
            role,
            lanes: Vec::new(),
            scatter: Scatter::default(),
            gather: Gather::default(),
            source,
            sink: Vec::new(),
            ended: false,
        }
    }

    fn join(&mut self) {
        self.gather.join();
        self.lanes.push(Lane {
            exchange: Exchange::striped(self.role),
            under_way: VecDeque::new(),
            header: Vec::new(),
            acked: false,
        });
    }

    /// Gives a lane what it is to send next, if there is anything.
    fn feed(&mut self, len: usize) -> bool {
        let left = &self.source[self.scatter.position() as usize..];
        if left.is_empty() {
            // Every lane ends, those that have joined late too.
            let lane = self.lanes.iter_mut().find(|lane| lane.under_way.is_empty() && !lane.exchange.shutdown_sent());
            let Some(lane) = lane else { return self.acknowledge() };
            lane.under_way.extend(self.scatter.shutdown(&mut lane.exchange).unwrap());
            return true;
        }
        let lanes = &self.lanes;
        let Some(lane) = self.scatter.choose(lanes.len(), |n| lanes[n].under_way.is_empty().then_some(0)) else {
            return false;
        };
        let bytes = left[..len.min(left.len())].to_vec();
        let lane = &mut self.lanes[lane];
        lane.under_way.extend(self.scatter.data(&mut lane.exchange, bytes.len() as u32).unwrap());
        lane.under_way.extend(bytes);
        true
    }

    fn acknowledge(&mut self) -> bool {
        let due = |lane: &&mut Lane| lane.exchange.shutdown_received() && !lane.acked && lane.under_way.is_empty();
        let Some(lane) = self.lanes.iter_mut().filter(|_| self.ended).find(due) else { return false };
        lane.acked = true;
        lane.under_way.extend(lane.exchange.ack());
        true
    }

    /// Sends up to `n` bytes on a lane, as there is room.
    fn send(&mut self, lane: usize, wire: &mut Wire, room: usize, n: usize) -> Result<bool, Failed> {
        let under_way = &mut self.lanes[lane].under_way;
        if wire.cut && !under_way.is_empty() {
            return Err("a lane is gone".to_owned());
        }
        let n = n.min(under_way.len()).min(room.saturating_sub(wire.bytes.len()));
        wire.bytes.extend(under_way.drain(..n));
        Ok(n > 0)
    }

    /// Receives up to `n` bytes from a lane, as far as they are wanted.
    fn receive(&mut self, lane: usize, wire: &mut Wire, n: usize, complete: bool) -> Result<bool, Failed> {
        match self.gather.next(complete).map_err(|e| e.to_string())? {
            Next::Payload { lane: next, len } if next == lane && !wire.bytes.is_empty() => {
                let n = n.min(len as usize).min(wire.bytes.len());
                self.sink.extend(wire.bytes.drain(..n));
                self.gather.took(lane, n as u32);
                return Ok(true);
            }
            Next::End if !self.ended => {
                self.ended = true;
                return Ok(true);
            }
            Next::End | Next::Payload { .. } | Next::Wait => {}
        }
        let state = &mut self.lanes[lane];
        if state.exchange.reusable() {
            return Ok(false);
        }
        if wire.bytes.is_empty() {
            return if wire.cut { Err("a lane is gone".to_owned()) } else { Ok(false) };
        }
        if !self.gather.wants(lane) && !self.gather.has_ended(lane) {
            return Ok(false);
        }
        let n = n.min(HEADER_LEN - state.header.len()).min(wire.bytes.len());
        state.header.extend(wire.bytes.drain(..n));
        if state.header.len() == HEADER_LEN {
            let header = state.header.as_slice().try_into().unwrap();
            state.header.clear();
            match state.exchange.receive(&header).map_err(|e| e.to_string())? {
                Frame::Data { len } => {
                    let end = state.exchange.bytes().1;
                    self.gather.data(lane, end - u64::from(len), len).map_err(|e| e.to_string())?;
                }
                Frame::Shutdown => {
                    self.gather.shutdown(lane, state.exchange.bytes().1).map_err(|e| e.to_string())?;
                }
                _ => {}
            }
        }
        Ok(true)
    }

    fn is_over(&self) -> bool {
        self.lanes.iter().all(|lane| lane.exchange.reusable() && lane.under_way.is_empty())
    }
}

/// Something that happens.
#[derive(Debug, Clone, Copy)]
enum Event {
    Feed {
        end: usize,
        len: usize,
    },
    Send {
        end: usize,
        lane: usize,
        n: usize,
    },
    Receive {
        end: usize,
        lane: usize,
        n: usize,
    },
    /// The acceptor takes another lane in.
    Attach,
    /// The initiator hears of it.
    Attached,
    /// A lane breaks, and loses all but this share of what is on its way.
    Cut {
        lane: usize,
        keeps: f64,
    },
}

struct World {
    ends: [End; 2],
    /// Lanes, and in each what is on its way to either end.
    wires: Vec<[Wire; 2]>,
    /// Lanes that there will be.
    streams: usize,
    room: usize,
    failed: [Option<Failed>; 2],
}

impl World {
    fn new(sources: [Vec<u8>; 2], streams: usize, room: usize) -> Self {
        let [up, down] = sources;
        let mut ends = [End::new(Role::Initiator, up), End::new(Role::Acceptor, down)];
        ends.iter_mut().for_each(End::join);
        Self { ends, wires: vec![Default::default()], streams, room, failed: [None, None] }
    }

    /// Whether anything has changed.
    fn happen(&mut self, event: Event) -> bool {
        let known = self.ends[0].lanes.len();
        // A lane that the acceptor has taken in and the initiator has not heard of is a lane that is still to come.
        let complete = [known == self.streams, self.ends[1].lanes.len() == self.streams];
        let (end, result) = match event {
            Event::Feed { end, len } if self.failed[end].is_none() => (end, Ok(self.ends[end].feed(len))),
            Event::Send { end, lane, n } if self.failed[end].is_none() => {
                if lane >= self.ends[end].lanes.len() {
                    return false;
                }
                (end, self.ends[end].send(lane, &mut self.wires[lane][1 - end], self.room, n))
            }
            Event::Receive { end, lane, n } if self.failed[end].is_none() => {
                if lane >= self.ends[end].lanes.len() {
                    return false;
                }
                (end, self.ends[end].receive(lane, &mut self.wires[lane][end], n, complete[end]))
            }
            Event::Attach if self.wires.len() < self.streams && self.failed[1].is_none() && !self.ends[1].is_over() => {
                self.wires.push(Default::default());
                self.ends[1].join();
                return true;
            }
            Event::Attached if known < self.wires.len() => {
                self.ends[0].join();
                return true;
            }
            Event::Cut { lane, keeps } => {
                let Some(wires) = self.wires.get_mut(lane) else { return false };
                for wire in wires {
                    let kept = (wire.bytes.len() as f64 * keeps) as usize;
                    wire.bytes.truncate(kept);
                    wire.cut = true;
                }
                return true;
            }
            _ => return false,
        };
        match result {
            Ok(changed) => changed,
            Err(why) => {
                self.failed[end] = Some(why);
                // It gives the session up, and resets its connections.
                for wire in self.wires.iter_mut().flatten() {
                    wire.cut = true;
                }
                true
            }
        }
    }

    /// Lets things happen until nothing can any more; what concerns lane `slow` only where nothing else can.
    fn settle(&mut self, slow: usize) {
        loop {
            let mut moved = false;
            for end in 0..2 {
                moved |= self.happen(Event::Feed { end, len: 70 });
                for lane in (0..self.wires.len()).filter(|lane| *lane != slow) {
                    moved |= self.happen(Event::Send { end, lane, n: 50 });
                    moved |= self.happen(Event::Receive { end, lane, n: 50 });
                }
            }
            moved |= self.happen(Event::Attach) | self.happen(Event::Attached);
            if moved {
                continue;
            }
            let once = [0, 1].map(|end| {
                self.happen(Event::Send { end, lane: slow, n: 1 })
                    | self.happen(Event::Receive { end, lane: slow, n: 1 })
            });
            if once == [false, false] {
                return;
            }
        }
    }

    /// What holds at any moment: nothing arrives that was not sent, or in another order; no end is seen before it is there.
    fn check(&self) {
        for (end, other) in [(0, 1), (1, 0)] {
            let (sink, source) = (&self.ends[end].sink, &self.ends[other].source);
            assert!(source.starts_with(sink), "the stream was changed");
            assert!(!self.ends[end].ended || sink == source, "a truncated stream has ended");
        }
    }
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(167).wrapping_add((n >> 8) as u8) ^ seed).collect()
}

fn event() -> impl Strategy<Value = Event> {
    let (end, lane) = (0..2usize, 0..8usize);
    prop_oneof![
        3 => (end.clone(), 1..200usize).prop_map(|(end, len)| Event::Feed { end, len }),
        6 => (end.clone(), lane.clone(), 1..300usize).prop_map(|(end, lane, n)| Event::Send { end, lane, n }),
        6 => (end, lane, 1..300usize).prop_map(|(end, lane, n)| Event::Receive { end, lane, n }),
        1 => Just(Event::Attach),
        1 => Just(Event::Attached),
    ]
}

proptest! {
    #[test]
    fn any_order_of_events_ends_with_all_bytes_and_free_lanes(
        events in prop::collection::vec(event(), 0..600),
        (up, down) in (0..3000usize, 0..3000usize),
        (streams, room) in (1..=8usize, 1..400usize),
        slow in 0..8usize,
    ) {
        let mut world = World::new([bytes(up, 1), bytes(down, 2)], streams, room);
        for event in events {
            world.happen(event);
            world.check();
        }
        world.settle(slow % streams);
        world.check();
        prop_assert_eq!(&world.failed, &[None, None]);
        for end in &world.ends {
            prop_assert!(end.ended && end.is_over(), "{:?}", end);
        }
        prop_assert!(world.wires.iter().flatten().all(|wire| wire.bytes.is_empty()), "something is left behind");
    }

    #[test]
    fn a_lane_that_breaks_never_looks_like_an_end(
        before in prop::collection::vec(event(), 0..600),
        (up, down) in (0..3000usize, 0..3000usize),
        (streams, room) in (1..=8usize, 1..400usize),
        (lane, keeps) in (0..8usize, 0.0..1.0f64),
    ) {
        let mut world = World::new([bytes(up, 1), bytes(down, 2)], streams, room);
        for event in before {
            world.happen(event);
        }
        let over = [0, 1].map(|end| world.ends[end].is_over());
        let lane = lane % world.wires.len();
        world.happen(Event::Cut { lane, keeps });
        world.settle(lane);
        world.check();
        for (end, over) in over.into_iter().enumerate() {
            // Either it fails, or it had all there was to have.
            let had_all = world.ends[end].is_over() && world.ends[end].ended;
            prop_assert!(world.failed[end].is_some() || had_all, "end {} hangs: {:?}", end, world.ends[end]);
            prop_assert!(!over || world.failed[end].is_none());
        }
    }

    /// Whatever a peer announces, what is taken is a stream: each byte from where it was announced, and its end as well.
    #[test]
    fn any_frames_are_taken_as_a_stream_or_refused(
        frames in prop::collection::vec((0..4usize, 0..6u32, 0..40u64, 1..30u32, 0..40u32), 0..300),
        lanes in 1..4usize,
    ) {
        let mut gather = Gather::default();
        let mut lanes: Vec<_> = (0..lanes).map(|_| (Exchange::striped(Role::Acceptor), 0, 0)).collect();
        let mut end = None;
        (0..lanes.len()).for_each(|lane| assert_eq!(gather.join(), lane));
        for (lane, kind, ahead, len, take) in frames {
            let position = gather.position();
            if let Some((exchange, from, to)) = lanes.get_mut(lane)
                && gather.wants(lane)
            {
                // Mostly what continues the stream, so that it comes far.
                let offset = position + if kind < 3 { 0 } else { ahead };
                let (kind, len) = if kind == 5 { (2, 0) } else { (1, len) };
                let mut header = [0; HEADER_LEN];
                (header[0], header[7]) = (kind, len as u8);
                header[8..].copy_from_slice(&offset.to_be_bytes());
                let Ok(frame) = exchange.receive(&header) else { return Ok(()) };
                let heeded = match frame {
                    Frame::Data { len } => {
                        (*from, *to) = (offset, offset + u64::from(len));
                        gather.data(lane, offset, len)
                    }
                    Frame::Shutdown => {
                        end.get_or_insert(offset);
                        gather.shutdown(lane, offset)
                    }
                    _ => Ok(()),
                };
                if heeded.is_err() {
                    return Ok(());
                }
            }
            match gather.next(true) {
                Ok(Next::Payload { lane, len }) => {
                    let (_, from, to) = &lanes[lane];
                    prop_assert!(*from <= position && position + u64::from(len) == *to && len > 0);
                    gather.took(lane, take);
                    prop_assert_eq!(gather.position(), position + u64::from(take.min(len)));
                }
                Ok(Next::End) => prop_assert_eq!(end, Some(position)),
                Ok(Next::Wait) => prop_assert!((0..lanes.len()).any(|lane| gather.wants(lane)), "it waits for nothing"),
                Err(_) => return Ok(()),
            }
        }
    }
}
