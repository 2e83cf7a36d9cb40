//! Tests of bundles: two ends and their lanes, byte by byte, in any order of events (invariant 1, P22).
//!
//! The bytes in flight on a lane are bounded, like in a transport. An end waits if a lane is full, and a lane waits
//! until its next bytes continue the stream.

use phoebus_proto::session::bundle::{Gather, Next, Scatter};
use phoebus_proto::session::frame::{Frame, FrameState, HEADER_LEN, Role};
use proptest::prelude::*;
use std::collections::VecDeque;

/// The bytes in flight in one direction of a lane.
#[derive(Debug, Default)]
struct Wire {
    bytes: VecDeque<u8>,
    cut: bool,
}

/// One end's part of a lane.
#[derive(Debug)]
struct Lane {
    state: FrameState,
    /// The rest of the current frame, for which the wire has no room yet.
    unsent: VecDeque<u8>,
    /// The bytes of an incomplete header.
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
    /// The end of the peer's stream was received.
    ended: bool,
}

/// Why an end has failed.
type Failure = String;

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
            state: FrameState::striped(self.role),
            unsent: VecDeque::new(),
            header: Vec::new(),
            acked: false,
        });
    }

    /// Assigns the next frame to a lane. Returns whether there was one.
    fn feed(&mut self, len: usize) -> bool {
        let left = &self.source[self.scatter.position() as usize..];
        if left.is_empty() {
            // Every lane sends SHUTDOWN, including lanes that have joined late.
            let lane = self.lanes.iter_mut().find(|lane| lane.unsent.is_empty() && !lane.state.shutdown_sent());
            let Some(lane) = lane else { return self.acknowledge() };
            lane.unsent.extend(self.scatter.shutdown(&mut lane.state).unwrap());
            return true;
        }
        let lanes = &self.lanes;
        let Some(lane) = self.scatter.choose(lanes.len(), |n| lanes[n].unsent.is_empty().then_some(0)) else {
            return false;
        };
        let bytes = left[..len.min(left.len())].to_vec();
        let lane = &mut self.lanes[lane];
        lane.unsent.extend(self.scatter.data(&mut lane.state, bytes.len() as u32).unwrap());
        lane.unsent.extend(bytes);
        true
    }

    fn acknowledge(&mut self) -> bool {
        let due = |lane: &&mut Lane| lane.state.shutdown_received() && !lane.acked && lane.unsent.is_empty();
        let Some(lane) = self.lanes.iter_mut().filter(|_| self.ended).find(due) else { return false };
        lane.acked = true;
        lane.unsent.extend(lane.state.ack());
        true
    }

    /// Sends up to `n` bytes on a lane, as far as the wire has room.
    fn send(&mut self, lane: usize, wire: &mut Wire, room: usize, n: usize) -> Result<bool, Failure> {
        let unsent = &mut self.lanes[lane].unsent;
        if wire.cut && !unsent.is_empty() {
            return Err("a lane has failed".to_owned());
        }
        let n = n.min(unsent.len()).min(room.saturating_sub(wire.bytes.len()));
        wire.bytes.extend(unsent.drain(..n));
        Ok(n > 0)
    }

    /// Receives up to `n` bytes from a lane, as far as they are a header or continue the stream.
    fn receive(&mut self, lane: usize, wire: &mut Wire, n: usize, complete: bool) -> Result<bool, Failure> {
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
        let peer = &mut self.lanes[lane];
        if peer.state.reusable() {
            return Ok(false);
        }
        if wire.bytes.is_empty() {
            return if wire.cut { Err("a lane has failed".to_owned()) } else { Ok(false) };
        }
        if !self.gather.wants(lane) && !self.gather.has_ended(lane) {
            return Ok(false);
        }
        let n = n.min(HEADER_LEN - peer.header.len()).min(wire.bytes.len());
        peer.header.extend(wire.bytes.drain(..n));
        if peer.header.len() == HEADER_LEN {
            let header = peer.header.as_slice().try_into().unwrap();
            peer.header.clear();
            match peer.state.receive(&header).map_err(|e| e.to_string())? {
                Frame::Data { len } => {
                    let end = peer.state.bytes().1;
                    self.gather.data(lane, end - u64::from(len), len).map_err(|e| e.to_string())?;
                }
                Frame::Shutdown => {
                    self.gather.shutdown(lane, peer.state.bytes().1).map_err(|e| e.to_string())?;
                }
                _ => {}
            }
        }
        Ok(true)
    }

    fn is_over(&self) -> bool {
        self.lanes.iter().all(|lane| lane.state.reusable() && lane.unsent.is_empty())
    }
}

/// An event of the simulation.
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
    /// The acceptor accepts another lane.
    Attach,
    /// The initiator receives the answer to ATTACH.
    Attached,
    /// A lane fails and loses all but this share of the bytes in flight.
    Cut {
        lane: usize,
        keeps: f64,
    },
}

struct World {
    ends: [End; 2],
    /// For each lane, the wires to either end.
    wires: Vec<[Wire; 2]>,
    /// Number of lanes granted.
    streams: usize,
    room: usize,
    failed: [Option<Failure>; 2],
}

impl World {
    fn new(sources: [Vec<u8>; 2], streams: usize, room: usize) -> Self {
        let [up, down] = sources;
        let mut ends = [End::new(Role::Initiator, up), End::new(Role::Acceptor, down)];
        ends.iter_mut().for_each(End::join);
        Self { ends, wires: vec![Default::default()], streams, room, failed: [None, None] }
    }

    /// Processes an event. Returns whether anything has changed.
    fn process(&mut self, event: Event) -> bool {
        let known = self.ends[0].lanes.len();
        // For the initiator, a lane whose ATTACH was not answered yet is a lane that is still to come.
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
                // A failed end resets all its connections.
                for wire in self.wires.iter_mut().flatten() {
                    wire.cut = true;
                }
                true
            }
        }
    }

    /// Processes events until nothing changes any more. Lane `slow` makes progress only when nothing else does.
    fn settle(&mut self, slow: usize) {
        loop {
            let mut moved = false;
            for end in 0..2 {
                moved |= self.process(Event::Feed { end, len: 70 });
                for lane in (0..self.wires.len()).filter(|lane| *lane != slow) {
                    moved |= self.process(Event::Send { end, lane, n: 50 });
                    moved |= self.process(Event::Receive { end, lane, n: 50 });
                }
            }
            moved |= self.process(Event::Attach) | self.process(Event::Attached);
            if moved {
                continue;
            }
            let once = [0, 1].map(|end| {
                self.process(Event::Send { end, lane: slow, n: 1 })
                    | self.process(Event::Receive { end, lane: slow, n: 1 })
            });
            if once == [false, false] {
                return;
            }
        }
    }

    /// Checks the invariants: the received bytes are a prefix of the sent ones, and the stream ends only when it is
    /// complete.
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
    fn any_order_of_events_delivers_all_bytes_and_frees_all_lanes(
        events in prop::collection::vec(event(), 0..600),
        (up, down) in (0..3000usize, 0..3000usize),
        (streams, room) in (1..=8usize, 1..400usize),
        slow in 0..8usize,
    ) {
        let mut world = World::new([bytes(up, 1), bytes(down, 2)], streams, room);
        for event in events {
            world.process(event);
            world.check();
        }
        world.settle(slow % streams);
        world.check();
        prop_assert_eq!(&world.failed, &[None, None]);
        for end in &world.ends {
            prop_assert!(end.ended && end.is_over(), "{:?}", end);
        }
        prop_assert!(world.wires.iter().flatten().all(|wire| wire.bytes.is_empty()), "bytes are left on a wire");
    }

    #[test]
    fn failed_lane_is_never_taken_for_the_end_of_the_stream(
        before in prop::collection::vec(event(), 0..600),
        (up, down) in (0..3000usize, 0..3000usize),
        (streams, room) in (1..=8usize, 1..400usize),
        (lane, keeps) in (0..8usize, 0.0..1.0f64),
    ) {
        let mut world = World::new([bytes(up, 1), bytes(down, 2)], streams, room);
        for event in before {
            world.process(event);
        }
        let over = [0, 1].map(|end| world.ends[end].is_over());
        let lane = lane % world.wires.len();
        world.process(Event::Cut { lane, keeps });
        world.settle(lane);
        world.check();
        for (end, over) in over.into_iter().enumerate() {
            // Each end either fails or has received everything.
            let is_complete = world.ends[end].is_over() && world.ends[end].ended;
            prop_assert!(world.failed[end].is_some() || is_complete, "end {} hangs: {:?}", end, world.ends[end]);
            prop_assert!(!over || world.failed[end].is_none());
        }
    }

    /// Whatever a peer announces, the receiver reads a stream: each byte at its announced offset, up to the announced
    /// end.
    #[test]
    fn any_frames_are_read_as_a_stream_or_refused(
        frames in prop::collection::vec((0..4usize, 0..6u32, 0..40u64, 1..30u32, 0..40u32), 0..300),
        lanes in 1..4usize,
    ) {
        let mut gather = Gather::default();
        let mut lanes: Vec<_> = (0..lanes).map(|_| (FrameState::striped(Role::Acceptor), 0, 0)).collect();
        let mut end = None;
        (0..lanes.len()).for_each(|lane| assert_eq!(gather.join(), lane));
        for (lane, kind, ahead, len, take) in frames {
            let position = gather.position();
            if let Some((state, from, to)) = lanes.get_mut(lane)
                && gather.wants(lane)
            {
                // Most frames continue the stream, so that it makes progress.
                let offset = position + if kind < 3 { 0 } else { ahead };
                let (kind, len) = if kind == 5 { (2, 0) } else { (1, len) };
                let mut header = [0; HEADER_LEN];
                (header[0], header[7]) = (kind, len as u8);
                header[8..].copy_from_slice(&offset.to_be_bytes());
                let Ok(frame) = state.receive(&header) else { return Ok(()) };
                let accepted = match frame {
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
                if accepted.is_err() {
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
                Ok(Next::Wait) => prop_assert!((0..lanes.len()).any(|lane| gather.wants(lane)), "no lane expects a header"),
                Err(_) => return Ok(()),
            }
        }
    }
}
