//! Tests of the state machine of [`super`] through its C functions.

#![allow(clippy::undocumented_unsafe_blocks, reason = "the tests' own handles, each used by one thread")]

use super::*;
use phoebus_proto::session::acceptor::{Acceptor, Request, State};
use phoebus_proto::session::message::{HopReport, Opened};
use phoebus_proto::session::{Code, List};
use std::ffi::CStr;

fn handshake(options: &[(&str, &str)]) -> *mut Handshake {
    let chosen = unsafe { crate::options::phoebus_options_new() };
    for (name, value) in options {
        let (name, value) = (string(*name), string(*value));
        unsafe { crate::options::phoebus_options_set(chosen, name.as_ptr(), value.as_ptr()) };
    }
    let handshake = unsafe { phoebus_handshake_new(chosen, c"dst.example".as_ptr(), 7) };
    unsafe { crate::options::phoebus_options_free(chosen) };
    handshake
}

/// One step at time 1 with `room` bytes of output: the result, the produced bytes, and how many bytes it wants.
fn step(handshake: *mut Handshake, input: &[u8], room: usize) -> (c_int, Vec<u8>, usize) {
    let (mut consumed, mut produced, mut want, mut out) = (0, 0, 0, vec![0; room]);
    let (input_at, out_at) = (input.as_ptr().cast(), out.as_mut_ptr().cast());
    let (len, sizes) = (input.len(), (&raw mut consumed, &raw mut produced, &raw mut want));
    let answer =
        unsafe { phoebus_handshake_step(handshake, 1, input_at, len, sizes.0, out_at, room, sizes.1, sizes.2) };
    assert_eq!(consumed, len, "all of what was wanted is taken");
    out.truncate(produced);
    (answer, out, want)
}

fn first_hop(handshake: *mut Handshake, now: u64) -> Result<String, c_int> {
    let (mut host, mut port) = (null(), 0);
    match unsafe { phoebus_handshake_first_hop(handshake, now, &raw mut host, &raw mut port) } {
        code::OK => Ok(format!("{} {port}", unsafe { CStr::from_ptr(host) }.to_str().unwrap())),
        code => Err(code),
    }
}

fn message(handshake: *mut Handshake) -> (c_int, String) {
    let error = unsafe { get(phoebus_handshake_error(handshake)) }.unwrap();
    (error.code, unsafe { CStr::from_ptr(crate::failure::phoebus_error_message(error)) }.to_str().unwrap().to_owned())
}

/// With any sizes of reads and writes, it asks for no byte after OPENED.
#[test]
fn handshake_stops_at_the_last_byte_of_the_answer() {
    for (room, most) in [(1, 1), (3, 2), (4096, 7), (4096, 65536)] {
        let handshake = handshake(&[("path", "pg1/5006,pg2/5006"), ("user", "ada@example.org"), ("streams", "3")]);
        assert_eq!(first_hop(handshake, 5).unwrap(), "pg1 5006");
        assert_eq!(unsafe { phoebus_handshake_deadline(handshake) }, 10_000_000_005);
        let mut acceptor = Acceptor::new("pg1");
        let (mut from_gateway, mut input) = (Vec::new(), Vec::new());
        let mut steps = 0;
        loop {
            let (answer, out, want) = step(handshake, &input, room);
            input.clear();
            let mut rest = &out[..];
            while !rest.is_empty() {
                let space = acceptor.space().unwrap();
                let n = space.len().min(rest.len());
                space[..n].copy_from_slice(&rest[..n]);
                acceptor.received(n).unwrap();
                rest = &rest[n..];
                if matches!(acceptor.request(), Some(Request::Auth(_))) {
                    acceptor.accept_auth(None).unwrap();
                }
            }
            if acceptor.state() == State::Asked {
                let Some(Request::Open(open)) = acceptor.request() else { panic!("{acceptor:?}") };
                assert_eq!(open.path.iter().map(|hop| hop.to_string()).collect::<Vec<_>>(), ["pg2:5006"]);
                assert_eq!(open.requirements.streams, Some(3));
                let hop = |from, to| HopReport { from, to, transport: "tcp", rtt_us: 7, ..HopReport::default() };
                let (session, mode) = (open.session, open.mode);
                let hops = [hop("pg1", "pg2"), hop("pg2", "10.0.0.4:7")];
                acceptor.opened(&Opened::new(session, mode, List::new(&hops))).unwrap();
            }
            from_gateway.extend_from_slice(acceptor.outgoing());
            acceptor.sent(acceptor.outgoing().len());
            match answer {
                WRITE => assert!(!out.is_empty() && want == 0),
                READ => {
                    assert!(want > 0 && want <= from_gateway.len(), "{want} of {}", from_gateway.len());
                    input = from_gateway.drain(..want.min(most)).collect();
                }
                other => {
                    assert_eq!(other, DONE);
                    break;
                }
            }
            steps += 1;
            assert!(steps < 10_000);
        }
        assert_eq!(from_gateway, b"", "all of OPENED was taken");
        let report = unsafe { get(phoebus_handshake_report(handshake)) }.unwrap();
        assert_eq!(unsafe { crate::report::phoebus_report_hops(report) }, 3);
        assert_eq!(unsafe { crate::report::phoebus_report_rtt_us(report) }, 14);
        let described = unsafe { phoebus_handshake_describe(handshake, c"bbr".as_ptr(), 6, 1, 2, null()) };
        let report = unsafe { get(phoebus_handshake_report(handshake)) }.unwrap();
        assert_eq!((described, unsafe { crate::report::phoebus_report_rtt_us(report) }), (code::OK, 20));
        unsafe { phoebus_handshake_free(handshake) };
    }
}

#[test]
fn handshake_reports_wrong_options_before_the_first_hop() {
    type Case = (&'static [(&'static str, &'static str)], c_int, &'static str);
    let cases: [Case; 6] = [
        (&[], code::NO_GATEWAY, "no gateway is set; expected the option gateway or path"),
        (&[("gatway", "pg1")], code::ARGUMENT, "option gatway: there is no such option; expected one of gateway, "),
        (&[("streams", "0"), ("gateway", "pg1/x")], code::ARGUMENT, "option streams: \"0\" is not a number from 1"),
        (&[("gateway", "pg1"), ("security", "encrypt")], code::ARGUMENT, "option security: what a program reads"),
        (&[("gateway", "pg1"), ("security", "auth")], code::ARGUMENT, "security=auth has to know whom to trust"),
        (&[("gateway", "pg1"), ("fallback", "1"), ("rate", "1gbit")], code::ARGUMENT, "rate asks gateways for"),
    ];
    for (options, code, beginning) in cases {
        let handshake = handshake(options);
        assert_eq!(first_hop(handshake, 0), Err(code));
        let (got, message) = message(handshake);
        assert!(got == code && message.starts_with(beginning), "{got} {message}");
        assert_eq!(step(handshake, &[], 10).0, FAILED);
        assert_eq!(unsafe { phoebus_handshake_again(handshake) }, 0);
        unsafe { phoebus_handshake_free(handshake) };
    }
}

#[test]
fn handshake_connects_directly_only_if_the_options_allow_it() {
    let handshake = handshake(&[("gateway", "pg1")]);
    first_hop(handshake, 0).unwrap();
    unsafe { phoebus_handshake_lost(handshake, libc::ECONNREFUSED) };
    assert_eq!(message(handshake), (32, "gateway pg1:5006: cannot connect: connection refused".to_owned()));
    assert_eq!(unsafe { phoebus_handshake_again(handshake) }, 0);
    unsafe { phoebus_handshake_free(handshake) };

    let handshake = self::handshake(&[("gateway", "pg1"), ("fallback", "direct")]);
    first_hop(handshake, 0).unwrap();
    unsafe { phoebus_handshake_lost(handshake, libc::ETIMEDOUT) };
    assert_eq!(message(handshake).1, "gateway pg1:5006: cannot connect to pg1:5006: no answer within 10s");
    assert_eq!(unsafe { phoebus_handshake_is_direct(handshake) }, 0);
    assert_eq!(unsafe { phoebus_handshake_again(handshake) }, 1);
    assert!(unsafe { phoebus_handshake_error(handshake) }.is_null());
    assert_eq!(unsafe { phoebus_handshake_is_direct(handshake) }, 1);
    assert_eq!(first_hop(handshake, 0).unwrap(), "dst.example 7");
    assert_eq!(step(handshake, &[], 10).0, DONE);
    let report = unsafe { get(phoebus_handshake_report(handshake)) }.unwrap();
    let note = unsafe { CStr::from_ptr(crate::report::phoebus_report_note(report)) };
    assert!(note.to_str().unwrap().starts_with("direct: gateway pg1:5006"), "{note:?}");
    unsafe { phoebus_handshake_free(handshake) };

    let handshake = self::handshake(&[("gateway", "pg1"), ("except", "*:7")]);
    assert_eq!((first_hop(handshake, 0).unwrap().as_str(), step(handshake, &[], 1).0), ("dst.example 7", DONE));
    unsafe { phoebus_handshake_free(handshake) };
}

#[test]
fn handshake_reports_an_expired_deadline() {
    let handshake = handshake(&[("gateway", "pg1"), ("open_timeout", "2s")]);
    first_hop(handshake, 0).unwrap();
    while step(handshake, &[], 4096).0 == WRITE {}
    assert_eq!(unsafe { phoebus_handshake_deadline(handshake) }, 2_000_000_001);
    let (mut taken, mut produced, mut want, mut out) = (0, 0, 0, [0; 9]);
    let places = (&raw mut taken, &raw mut produced, &raw mut want);
    let out = out.as_mut_ptr().cast();
    let late =
        unsafe { phoebus_handshake_step(handshake, 2_000_000_001, null(), 0, places.0, out, 9, places.1, places.2) };
    assert_eq!(late, FAILED);
    let expected = "gateway pg1:5006 did not say within 2s whether dst.example:7 has connected";
    assert_eq!(message(handshake), (Code::TimedOut.number().into(), expected.to_owned()));
    unsafe { phoebus_handshake_free(handshake) };
}
