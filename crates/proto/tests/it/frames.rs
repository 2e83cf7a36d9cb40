//! Tests of the framed mode: two ends exchange arbitrary frames and agree on when the connection is free.

use phoebus_proto::session::frame::{DATA_MAX, Frame, FrameError, FrameState, HEADER_LEN, Role};
use proptest::prelude::*;
use std::collections::VecDeque;

fn pair() -> (FrameState, FrameState) {
    (FrameState::new(Role::Initiator), FrameState::new(Role::Acceptor))
}

/// Both sides, each with the frames in flight from it.
type Ends = [(FrameState, VecDeque<[u8; HEADER_LEN]>); 2];

/// An action of one side. It is skipped if the protocol forbids it.
#[derive(Debug, Clone, Copy)]
enum Step {
    Data(u32),
    Shutdown,
    Ack,
    Ping,
    Reset,
    /// Receives the oldest frame in flight.
    Receive,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..=DATA_MAX).prop_map(Step::Data),
        Just(Step::Shutdown),
        Just(Step::Ack),
        Just(Step::Ping),
        Just(Step::Receive),
        Just(Step::Receive),
    ]
}

fn failing_step() -> impl Strategy<Value = Step> {
    prop_oneof![10 => step(), 1 => Just(Step::Reset)]
}

/// Performs the steps in order.
fn play(steps: Vec<(bool, Step)>) -> Ends {
    let (a, b) = pair();
    let mut ends = [(a, VecDeque::new()), (b, VecDeque::<[u8; HEADER_LEN]>::new())];
    let mut has_reset = [false; 2];
    for (side, step) in steps {
        let me = usize::from(side);
        let header = match step {
            Step::Data(len) => ends[me].0.data(len).ok(),
            Step::Shutdown => ends[me].0.shutdown().ok(),
            Step::Ack | Step::Ping if has_reset[me] || ends[me].0.settled() => None,
            Step::Ack => Some(ends[me].0.ack()),
            Step::Ping => Some(ends[me].0.ping(5)),
            Step::Reset => {
                let reset = ends[me].0.reset(7).ok();
                has_reset[me] |= reset.is_some();
                reset
            }
            Step::Receive => {
                receive(&mut ends, me);
                None
            }
        };
        ends[me].1.extend(header);
    }
    ends
}

/// Delivers the oldest frame in flight to `me`. Returns false if there is none. A side that regards the connection as
/// free would take the frame for one of the next session.
fn receive(ends: &mut Ends, me: usize) -> bool {
    let Some(header) = ends[1 - me].1.pop_front() else { return false };
    assert!(!ends[me].0.reusable(), "a frame comes after the session is over");
    ends[me].0.receive(&header).unwrap();
    true
}

/// Delivers all frames in flight.
fn deliver_all(ends: &mut Ends) {
    for me in [0, 1] {
        while receive(ends, me) {}
    }
}

proptest! {
    #[test]
    fn both_ends_agree_on_bytes_and_on_the_end(steps in prop::collection::vec((any::<bool>(), step()), 0..200)) {
        let mut ends = play(steps);
        deliver_all(&mut ends);
        let [(mut a, _), (mut b, _)] = ends;
        prop_assert_eq!((a.bytes().0, b.bytes().0), (b.bytes().1, a.bytes().1));
        // After any traffic, SHUTDOWN and ACK of both sides free the connection.
        for _ in 0..2 {
            if let Ok(end) = a.shutdown() { b.receive(&end).unwrap(); }
            (a, b) = (b, a);
        }
        prop_assert!(a.shutdown_sent() && a.shutdown_received() && b.shutdown_sent() && b.shutdown_received());
        let (to_b, to_a) = (a.ack(), b.ack());
        b.receive(&to_b).unwrap();
        prop_assert!(b.reusable());
        a.receive(&to_a).unwrap();
        prop_assert!(a.reusable());
    }

    #[test]
    fn connection_is_free_after_both_sides_have_sent_reset(
        steps in prop::collection::vec((any::<bool>(), failing_step()), 0..200),
        first: bool,
    ) {
        let mut ends = play(steps);
        let me = usize::from(first);
        // Either side may send RESET first. The other side may be in any state: it may have sent RESET or have settled.
        for me in [me, 1 - me] {
            let header = ends[me].0.reset(0);
            let settled = header == Err(FrameError::Settled);
            ends[me].1.extend(header);
            let over = ends[me].0.reusable();
            prop_assert_eq!(over, ends[me].0.reset_received() || (settled && ends[me].0.delivered()));
            let refused = if settled { FrameError::AfterShutdown } else { FrameError::AfterReset };
            prop_assert_eq!(ends[me].0.data(1), Err(refused));
            prop_assert_eq!(ends[me].0.shutdown(), Err(refused));
        }
        deliver_all(&mut ends);
        // A settled side answers RESET nevertheless.
        for me in [0, 1] {
            let answer = if ends[me].0.reset_received() { ends[me].0.reset(0).ok() } else { None };
            ends[me].1.extend(answer);
        }
        deliver_all(&mut ends);
        let [(mut a, _), (b, _)] = ends;
        prop_assert!(a.reusable() && b.reusable());
        prop_assert_eq!((a.bytes().0, b.bytes().0), (b.bytes().1, a.bytes().1));
        if a.reset_received() {
            let late = FrameState::new(Role::Acceptor).ping(1);
            prop_assert_eq!(a.receive(&late), Err(FrameError::AfterReset));
        }
    }

    #[test]
    fn settled_side_sends_reset_only_as_an_answer(answers: bool) {
        let (mut a, mut b) = pair();
        for _ in 0..2 {
            let end = a.shutdown().unwrap();
            b.receive(&end).unwrap();
            (a, b) = (b, a);
        }
        let ack = a.ack();
        prop_assert_eq!(a.reset(0), Err(FrameError::Settled));
        if answers {
            // RESET and ACK cross.
            let reset = b.reset(0).unwrap();
            b.receive(&ack).unwrap();
            a.receive(&reset).unwrap();
            let answer = a.reset(0).unwrap();
            b.receive(&answer).unwrap();
        } else {
            b.receive(&ack).unwrap();
            let ack = b.ack();
            prop_assert_eq!(b.reset(0), Err(FrameError::Settled));
            a.receive(&ack).unwrap();
        }
        prop_assert!(a.reusable() && b.reusable());
    }

    #[test]
    fn receiving_any_header_never_panics(header: [u8; HEADER_LEN]) {
        let (mut a, _) = pair();
        let _ = a.receive(&header);
    }

    #[test]
    fn corrupted_header_is_never_taken_for_the_same_data_or_shutdown(len in 1..=DATA_MAX, at in 0usize..HEADER_LEN, flip in 1u8..) {
        let (mut a, mut b) = pair();
        let first = a.data(3).unwrap();
        b.receive(&first).unwrap();
        let mut header = a.data(len).unwrap();
        header[at] ^= flip;
        match b.receive(&header) {
            Ok(Frame::Data { len: got }) => prop_assert!((4..8).contains(&at) && got != len),
            Ok(Frame::Shutdown) => prop_assert!(false, "a DATA header with one changed byte is never a SHUTDOWN"),
            _ => {}
        }
    }
}

#[test]
fn connection_is_free_only_after_both_sides_have_acknowledged() {
    let (mut a, mut b) = pair();
    let data = a.data(10).unwrap();
    assert_eq!(b.receive(&data), Ok(Frame::Data { len: 10 }));
    let end = a.shutdown().unwrap();
    assert_eq!(b.receive(&end), Ok(Frame::Shutdown));
    let ack = b.ack();
    assert_eq!(a.receive(&ack), Ok(Frame::Ack { offset: 11 }));
    assert!(a.delivered() && !a.reusable());
    let end = b.shutdown().unwrap();
    a.receive(&end).unwrap();
    assert!(!a.reusable() && !b.reusable());
    let ack = a.ack();
    assert!(a.reusable() && !b.reusable());
    b.receive(&ack).unwrap();
    assert!(b.reusable());
}

#[test]
fn frames_out_of_order_are_refused() {
    let (mut a, b) = pair();
    let end = a.shutdown().unwrap();
    assert_eq!(a.data(1), Err(FrameError::AfterShutdown));
    assert_eq!(a.shutdown(), Err(FrameError::AfterShutdown));
    assert_eq!(b.clone().data(0), Err(FrameError::Length { kind: 1, len: 0 }));
    assert_eq!(b.clone().data(DATA_MAX + 1), Err(FrameError::Length { kind: 1, len: DATA_MAX + 1 }));

    // A reflected frame, a wrong offset, a frame after SHUTDOWN, and an acknowledgement of bytes that were never sent.
    assert_eq!(a.clone().receive(&end), Err(FrameError::Header));
    let mut early = FrameState::new(Role::Initiator);
    early.data(5).unwrap();
    let late = early.data(5).unwrap();
    assert_eq!(b.clone().receive(&late), Err(FrameError::Offset { got: 5, expected: 0 }));
    let mut ended = b.clone();
    ended.receive(&end).unwrap();
    assert_eq!(ended.receive(&end), Err(FrameError::AfterShutdown));
    let mut liar = FrameState::new(Role::Acceptor);
    liar.receive(&FrameState::new(Role::Initiator).data(9).unwrap()).unwrap();
    assert_eq!(b.clone().receive(&FrameState::new(Role::Initiator).ping(3)), Ok(Frame::Ping { token: 3 }));
    let claim = liar.ack();
    assert_eq!(FrameState::new(Role::Initiator).receive(&claim), Err(FrameError::Ack { got: 9, min: 0, max: 0 }));
}
