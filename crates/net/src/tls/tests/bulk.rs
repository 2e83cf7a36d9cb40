//! `encrypt`: streams of any length in both directions, half-close, memory bounds, and hostile input.

use super::*;
use proptest::prelude::*;

/// A byte pattern in which each position is recognizable.
fn stream(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

/// Moves `bytes` from `a` to `b` in pieces of these sizes, and closes.
fn carry(a: &mut Engine, b: &mut Engine, bytes: &[u8], pieces: &[(usize, usize)]) -> Vec<u8> {
    let mut wire = Wire::default();
    let (mut written, mut out) = (0, Vec::new());
    for &(write, read) in pieces.iter().cycle() {
        if written < bytes.len() {
            written += a.write(&bytes[written..bytes.len().min(written + write)]).unwrap();
        } else {
            a.close().unwrap();
        }
        assert!(a.outgoing().len() <= super::super::buffer::CAPACITY);
        // Takes only part of the output, as an almost full socket would.
        let taken = a.outgoing().len().min(read.max(100));
        wire.send(&a.outgoing()[..taken]);
        a.sent(taken);
        let n = wire.receive(b.space());
        b.received(n).unwrap();
        let mut buffer = vec![0; read];
        match b.read(&mut buffer).unwrap() {
            Some(0) => break,
            Some(n) => out.extend_from_slice(&buffer[..n]),
            None => {}
        }
    }
    assert!(wire.is_drained());
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn streams_arrive_complete_and_end(
        len in 0usize..600_000,
        pieces in prop::collection::vec((1usize..200_000, 1usize..200_000), 1..20),
    ) {
        let (mut a, mut b) = connected(Intake::Bulk, Mode::Encrypt);
        let bytes = stream(len);
        prop_assert!(carry(&mut a, &mut b, &bytes, &pieces) == bytes);
        // Half-close: the other direction still works.
        prop_assert!(carry(&mut b, &mut a, &bytes, &pieces) == bytes);
        prop_assert!(a.input_ended().is_ok() && b.input_ended().is_ok());
    }
}

#[test]
fn end_without_close_notify_is_a_fault() {
    let (mut a, mut b) = connected(Intake::Bulk, Mode::Encrypt);
    a.write(b"all of it").unwrap();
    let wire = a.outgoing().to_vec();
    b.space()[..wire.len()].copy_from_slice(&wire);
    b.received(wire.len()).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(b.read(&mut buffer), Ok(Some(9)));
    assert_eq!(b.read(&mut buffer), Ok(None));
    assert_eq!(b.input_ended(), Err(Fault::Cut { handshaking: false }));
}

#[test]
fn repeated_missing_and_reordered_records_are_faults() {
    let records = |a: &mut Engine| -> Vec<Vec<u8>> {
        let record = |a: &mut Engine, text: &[u8]| {
            a.write(text).unwrap();
            let record = a.outgoing().to_vec();
            a.sent(record.len());
            record
        };
        vec![record(a, b"one"), record(a, b"two"), record(a, b"three")]
    };
    for order in [&[0, 0][..], &[1], &[1, 0], &[0, 2]] {
        let (mut a, mut b) = connected(Intake::Bulk, Mode::Encrypt);
        let records = records(&mut a);
        let wire: Vec<u8> = order.iter().flat_map(|index| records[*index].clone()).collect();
        b.space()[..wire.len()].copy_from_slice(&wire);
        b.received(wire.len()).unwrap();
        let mut buffer = [0; 64];
        let mut outcome = b.read(&mut buffer);
        if order[0] == 0 {
            assert_eq!(outcome, Ok(Some(3)), "what came in order is delivered first");
            outcome = b.read(&mut buffer);
        }
        assert_eq!(outcome.unwrap_err().to_string(), "what it sent was altered on the way");
        assert!(!b.outgoing().is_empty(), "the other end is told by an alert");
        assert!(b.is_readable());
    }
}

#[test]
fn non_tls_input_is_refused_at_once() {
    for text in [&b"GET / HTTP/1.1\r\n"[..], b"PHX\x01 HELLO", &[0x16, 3, 1, 0xff, 0xff, 0], &[0x80, 0x2e, 1, 0, 2]] {
        let mut end = server(Intake::Exact, Mode::Encrypt);
        let mut wire = Wire::default();
        wire.send(text);
        let fault = exchange(&mut end, &mut wire, &mut Wire::default()).unwrap_err();
        assert_eq!(fault, Fault::NotTls, "{text:?}");
        assert!(fault.is_distrust());
    }
}

#[test]
fn fragmented_message_does_not_fill_memory() {
    let mut end = server(Intake::Bulk, Mode::Encrypt);
    let mut wire = Wire::default();
    // A ClientHello of 65000 bytes, one byte per record.
    for byte in [1, 0, 0xfd, 0xe8].into_iter().chain(std::iter::repeat_n(0, 64_996)) {
        wire.send(&[22, 3, 1, 0, 1, byte]);
    }
    assert!(exchange(&mut end, &mut wire, &mut Wire::default()).is_err());
    assert!(!wire.is_drained());
}

#[test]
fn ends_with_different_modes_refuse_each_other() {
    let (mut a, mut b) = (client(Intake::Exact, Mode::Auth), server(Intake::Exact, Mode::Encrypt));
    let (mut up, mut down) = (Wire::default(), Wire::default());
    exchange(&mut a, &mut down, &mut up).unwrap();
    let fault = exchange(&mut b, &mut up, &mut down).unwrap_err();
    assert_eq!(fault.to_string(), "it asks for a kind of security that is not offered here");
    down.send(b.outgoing());
    let fault = exchange(&mut a, &mut down, &mut up).unwrap_err();
    assert_eq!(fault.to_string(), "it does not offer the kind of security that this hop is configured for");
    assert!(fault.is_distrust());
}

#[test]
fn idle_engines_hold_no_buffers() {
    let (mut a, mut b) = connected(Intake::Bulk, Mode::Encrypt);
    for end in [&mut a, &mut b] {
        end.relax();
        assert!(end.is_quiet() && end.outgoing().is_empty());
        assert_eq!(end.memory(), 0);
    }
}
