//! The framed mode: two ends exchange any traffic, and agree on when the connection is free.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use phoebus_proto::session::frame::{DATA_MAX, Exchange, Frame, FrameError, HEADER_LEN, Role};
use proptest::prelude::*;
use std::collections::VecDeque;

fn pair() -> (Exchange, Exchange) {
    (Exchange::new(Role::Initiator), Exchange::new(Role::Acceptor))
}

/// What one side does next, if it may.
#[derive(Debug, Clone, Copy)]
enum Step {
    Data(u32),
    Shutdown,
    Ack,
    Ping,
    Reset,
    /// Takes the oldest frame on its way.
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

/// Lets the sides do what they do, in that order. Returns them with what is still on its way from each.
fn play(steps: Vec<(bool, Step)>) -> [(Exchange, VecDeque<[u8; HEADER_LEN]>); 2] {
    let (a, b) = pair();
    let mut ends = [(a, VecDeque::new()), (b, VecDeque::<[u8; HEADER_LEN]>::new())];
    let mut given_up = [false; 2];
    for (side, step) in steps {
        let me = usize::from(side);
        let header = match step {
            Step::Data(len) => ends[me].0.data(len).ok(),
            Step::Shutdown => ends[me].0.shutdown().ok(),
            Step::Ack if !given_up[me] => Some(ends[me].0.ack()),
            Step::Ping if !given_up[me] => Some(ends[me].0.ping(5)),
            Step::Ack | Step::Ping => None,
            Step::Reset => {
                given_up[me] = true;
                ends[me].0.reset(7).ok()
            }
            Step::Receive => {
                if let Some(header) = ends[1 - me].1.pop_front() {
                    ends[me].0.receive(&header).unwrap();
                }
                None
            }
        };
        ends[me].1.extend(header);
    }
    ends
}

/// Takes all that is on its way.
fn arrive(ends: &mut [(Exchange, VecDeque<[u8; HEADER_LEN]>); 2]) {
    for me in [0, 1] {
        while let Some(header) = ends[me].1.pop_front() {
            ends[1 - me].0.receive(&header).unwrap();
        }
    }
}

proptest! {
    #[test]
    fn both_ends_agree_on_bytes_and_on_the_end(steps in prop::collection::vec((any::<bool>(), step()), 0..200)) {
        let mut ends = play(steps);
        arrive(&mut ends);
        let [(mut a, _), (mut b, _)] = ends;
        prop_assert_eq!((a.bytes().0, b.bytes().0), (b.bytes().1, a.bytes().1));
        // Whatever came before, shutting down and confirming frees the connection on both sides.
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
    fn a_session_that_fails_frees_the_connection_when_both_have_said_so(
        steps in prop::collection::vec((any::<bool>(), failing_step()), 0..200),
        first: bool,
    ) {
        let mut ends = play(steps);
        let me = usize::from(first);
        // Whichever side gives up first, and wherever the other stands, which may have done the same.
        for me in [me, 1 - me] {
            let header = ends[me].0.reset(0).ok();
            ends[me].1.extend(header);
            let over = ends[me].0.reset_received();
            prop_assert_eq!(ends[me].0.reusable(), over);
            prop_assert_eq!(ends[me].0.data(1), Err(FrameError::AfterReset));
            prop_assert_eq!(ends[me].0.shutdown(), Err(FrameError::AfterReset));
        }
        arrive(&mut ends);
        let [(mut a, _), (b, _)] = ends;
        prop_assert!(a.reusable() && b.reusable());
        prop_assert_eq!((a.bytes().0, b.bytes().0), (b.bytes().1, a.bytes().1));
        let late = Exchange::new(Role::Acceptor).ping(1);
        prop_assert_eq!(a.receive(&late), Err(FrameError::AfterReset));
    }

    #[test]
    fn any_header_is_taken_or_refused(header: [u8; HEADER_LEN]) {
        let (mut a, _) = pair();
        let _ = a.receive(&header);
    }

    #[test]
    fn a_changed_header_never_passes_for_data_or_end(len in 1..=DATA_MAX, at in 0usize..HEADER_LEN, flip in 1u8..) {
        let (mut a, mut b) = pair();
        let first = a.data(3).unwrap();
        b.receive(&first).unwrap();
        let mut header = a.data(len).unwrap();
        header[at] ^= flip;
        match b.receive(&header) {
            Ok(Frame::Data { len: got }) => prop_assert!((4..8).contains(&at) && got != len),
            Ok(Frame::Shutdown) => prop_assert!(false, "a length is no shutdown"),
            _ => {}
        }
    }
}

#[test]
fn a_connection_is_free_only_after_both_sides_confirmed() {
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
fn what_breaks_the_order_is_refused() {
    let (mut a, b) = pair();
    let end = a.shutdown().unwrap();
    assert_eq!(a.data(1), Err(FrameError::AfterShutdown));
    assert_eq!(a.shutdown(), Err(FrameError::AfterShutdown));
    assert_eq!(b.clone().data(0), Err(FrameError::Length { kind: 1, len: 0 }));
    assert_eq!(b.clone().data(DATA_MAX + 1), Err(FrameError::Length { kind: 1, len: DATA_MAX + 1 }));

    // A frame of its own direction, one out of place, one after the end, an acknowledgement of nothing.
    assert_eq!(a.clone().receive(&end), Err(FrameError::Header));
    let mut early = Exchange::new(Role::Initiator);
    early.data(5).unwrap();
    let late = early.data(5).unwrap();
    assert_eq!(b.clone().receive(&late), Err(FrameError::Offset { got: 5, expected: 0 }));
    let mut ended = b.clone();
    ended.receive(&end).unwrap();
    assert_eq!(ended.receive(&end), Err(FrameError::AfterShutdown));
    let mut liar = Exchange::new(Role::Acceptor);
    liar.receive(&Exchange::new(Role::Initiator).data(9).unwrap()).unwrap();
    assert_eq!(b.clone().receive(&Exchange::new(Role::Initiator).ping(3)), Ok(Frame::Ping { token: 3 }));
    let claim = liar.ack();
    assert_eq!(Exchange::new(Role::Initiator).receive(&claim), Err(FrameError::Ack { got: 9, min: 0, max: 0 }));
}
