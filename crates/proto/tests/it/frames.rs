//! The framed mode: two ends exchange any traffic, and agree on when the connection is free.

use phoebus_proto::session::frame::{DATA_MAX, Exchange, Frame, FrameError, HEADER_LEN, Role};
use proptest::prelude::*;
use std::collections::VecDeque;

fn pair() -> (Exchange, Exchange) {
    (Exchange::new(Role::Initiator), Exchange::new(Role::Acceptor))
}

/// Both sides, with what is still on its way from each.
type Ends = [(Exchange, VecDeque<[u8; HEADER_LEN]>); 2];

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
fn play(steps: Vec<(bool, Step)>) -> Ends {
    let (a, b) = pair();
    let mut ends = [(a, VecDeque::new()), (b, VecDeque::<[u8; HEADER_LEN]>::new())];
    let mut given_up = [false; 2];
    for (side, step) in steps {
        let me = usize::from(side);
        let header = match step {
            Step::Data(len) => ends[me].0.data(len).ok(),
            Step::Shutdown => ends[me].0.shutdown().ok(),
            Step::Ack | Step::Ping if given_up[me] || ends[me].0.settled() => None,
            Step::Ack => Some(ends[me].0.ack()),
            Step::Ping => Some(ends[me].0.ping(5)),
            Step::Reset => {
                let reset = ends[me].0.reset(7).ok();
                given_up[me] |= reset.is_some();
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

/// Takes the oldest frame on its way to `me`; false if there is none. Whoever is free by its own reckoning would take the frame
/// for one of the next session.
fn receive(ends: &mut Ends, me: usize) -> bool {
    let Some(header) = ends[1 - me].1.pop_front() else { return false };
    assert!(!ends[me].0.reusable(), "a frame comes after the session is over");
    ends[me].0.receive(&header).unwrap();
    true
}

/// Takes all that is on its way.
fn arrive(ends: &mut Ends) {
    for me in [0, 1] {
        while receive(ends, me) {}
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
        // Whichever side gives up first, and wherever the other stands, which may have done the same, or have said all.
        for me in [me, 1 - me] {
            let header = ends[me].0.reset(0);
            let mute = header == Err(FrameError::Settled);
            ends[me].1.extend(header);
            let over = ends[me].0.reusable();
            prop_assert_eq!(over, ends[me].0.reset_received() || (mute && ends[me].0.delivered()));
            let refused = if mute { FrameError::AfterShutdown } else { FrameError::AfterReset };
            prop_assert_eq!(ends[me].0.data(1), Err(refused));
            prop_assert_eq!(ends[me].0.shutdown(), Err(refused));
        }
        arrive(&mut ends);
        // Who has said all answers all the same.
        for me in [0, 1] {
            let answer = if ends[me].0.reset_received() { ends[me].0.reset(0).ok() } else { None };
            ends[me].1.extend(answer);
        }
        arrive(&mut ends);
        let [(mut a, _), (b, _)] = ends;
        prop_assert!(a.reusable() && b.reusable());
        prop_assert_eq!((a.bytes().0, b.bytes().0), (b.bytes().1, a.bytes().1));
        if a.reset_received() {
            let late = Exchange::new(Role::Acceptor).ping(1);
            prop_assert_eq!(a.receive(&late), Err(FrameError::AfterReset));
        }
    }

    #[test]
    fn a_side_that_has_said_all_gives_up_only_in_answer(answers: bool) {
        let (mut a, mut b) = pair();
        for _ in 0..2 {
            let end = a.shutdown().unwrap();
            b.receive(&end).unwrap();
            (a, b) = (b, a);
        }
        let confirmed = a.ack();
        prop_assert_eq!(a.reset(0), Err(FrameError::Settled));
        if answers {
            // The two cross.
            let reset = b.reset(0).unwrap();
            b.receive(&confirmed).unwrap();
            a.receive(&reset).unwrap();
            let answer = a.reset(0).unwrap();
            b.receive(&answer).unwrap();
        } else {
            b.receive(&confirmed).unwrap();
            let confirmed = b.ack();
            prop_assert_eq!(b.reset(0), Err(FrameError::Settled));
            a.receive(&confirmed).unwrap();
        }
        prop_assert!(a.reusable() && b.reusable());
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
