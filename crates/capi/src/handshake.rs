//! `phoebus_handshake`: the opening of a session as a state machine for C programs, over [`Opening`], or over
//! [`Accepting`] for a session that the program accepts.

#![allow(unsafe_code, reason = "functions that C calls")]

use crate::boundary::{address, bytes, get, get_mut, give, room, string, take, text};
use crate::failure::{Failure, code};
use crate::options::{Destination, SessionOptions};
use crate::report::Shown;
use phoebus_client::{Accepting, FirstHop, Hop, Opening, Report, Step};
use phoebus_proto::endpoint::Endpoint;
use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::net::SocketAddr;
use std::ptr::null;
use std::time::Duration;

const WRITE: c_int = 1;
const READ: c_int = 2;
const DONE: c_int = 3;
const FAILED: c_int = 4;

/// `phoebus_handshake`.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// Taken out during each change, and lost if the change panics.
    machine: Option<Machine>,
    failure: Option<Failure>,
    report: Option<Shown>,
    host: CString,
    peer: CString,
}

/// Which end of the session this is.
#[derive(Debug)]
enum Machine {
    Opening(Box<Opening>),
    Accepting(Box<Accepting>),
}

impl Machine {
    fn opening(&mut self) -> Option<&mut Opening> {
        if let Self::Opening(opening) = self { Some(opening) } else { None }
    }

    fn step(&mut self, now: Duration, input: &[u8], out: &mut [u8]) -> (usize, Step) {
        match self {
            Self::Opening(opening) => opening.step(now, input, out),
            Self::Accepting(accepting) => accepting.step(now, input, out),
        }
    }

    fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Opening(opening) => opening.deadline(),
            Self::Accepting(accepting) => accepting.deadline(),
        }
    }

    fn lost(&mut self, errnum: c_int) {
        let source = match errnum {
            0 => io::ErrorKind::UnexpectedEof.into(),
            errnum => io::Error::from_raw_os_error(errnum),
        };
        match (self, errnum) {
            (Self::Opening(opening), libc::ETIMEDOUT) => opening.expire(),
            (Self::Opening(opening), _) => opening.lost(None, source),
            (Self::Accepting(accepting), libc::ETIMEDOUT) => accepting.expire(),
            (Self::Accepting(accepting), _) => accepting.lost(source),
        }
    }

    fn failure(&self) -> Option<Failure> {
        match self {
            Self::Opening(opening) => opening.error().map(Failure::from),
            Self::Accepting(accepting) => accepting.error().map(Failure::from),
        }
    }

    fn report(&mut self) -> Option<&mut Report> {
        match self {
            Self::Opening(opening) => opening.report(),
            Self::Accepting(accepting) => accepting.report(),
        }
    }
}

impl Handshake {
    fn new(machine: Result<Machine, Failure>, peer: impl Into<String>) -> Self {
        let (machine, failure) = match machine {
            Ok(machine) => (Some(machine), None),
            Err(failure) => (None, Some(failure)),
        };
        let mut own = Self { machine, failure, report: None, host: CString::default(), peer: string(peer) };
        own.update_result();
        own
    }

    /// A session to `host` and `port`.
    fn to(options: &SessionOptions, host: Option<&str>, port: u16) -> Self {
        let way = Destination::of(host, port);
        Self::new(options.opening(&way).map(|opening| Machine::Opening(Box::new(opening))), way.to_string())
    }

    /// A session on a connection from `from`, which was accepted at `now`.
    fn from(options: &SessionOptions, now: Duration, from: Option<&str>) -> Self {
        let address = from.map(|from| {
            let wrong = || format!("\"{from}\" is not an address and a port such as 192.0.2.1:40000");
            from.parse::<SocketAddr>().map_err(|_| Failure::argument(wrong()))
        });
        let terms = address.transpose().and_then(|address| options.terms(address));
        let accepting = terms.map(|terms| Machine::Accepting(Box::new(Accepting::new(terms, now))));
        Self::new(accepting, from.unwrap_or_default())
    }

    /// Changes the machine, and stores the resulting error or report.
    fn change<T>(&mut self, change: impl FnOnce(&mut Machine) -> T) -> Option<T> {
        let mut machine = self.machine.take()?;
        // Remains if `change` panics.
        let before = self.failure.replace(Failure::bug());
        let result = change(&mut machine);
        self.failure = before;
        self.machine = Some(machine);
        self.update_result();
        Some(result)
    }

    fn update_result(&mut self) {
        let Some(machine) = self.machine.as_mut() else { return };
        if self.failure.is_none() {
            self.failure = machine.failure();
        }
        if self.report.is_none() {
            self.report = machine.report().map(|report| Shown::from(&*report));
            if let (Some(_), Machine::Accepting(accepting)) = (&self.report, machine) {
                self.peer = string(accepting.origin().unwrap_or_default());
            }
        }
    }

    fn first_hop(&mut self, now: Duration) -> Result<(CString, u16), c_int> {
        if let Some(failure) = &self.failure {
            return Err(failure.code);
        }
        let first_hop = self.change(|machine| machine.opening()?.first_hop(now)).flatten();
        let endpoint = match first_hop.ok_or(code::STATE)? {
            FirstHop::Gateway(endpoint) | FirstHop::Destination(endpoint) => endpoint,
            FirstHop::Agent(addresses) => Endpoint::from(*addresses.first().ok_or(code::NO_AGENT)?),
        };
        Ok((string(endpoint.host.to_string()), endpoint.port))
    }
}

/// Writes a result if the caller has passed a place for it.
fn put<T>(place: Option<&mut T>, value: T) {
    if let Some(place) = place {
        *place = value;
    }
}

export! {
    /// See the header.
    fn phoebus_handshake_new(options: *const SessionOptions, host: *const c_char, port: u16) -> *mut Handshake,
    or std::ptr::null_mut(), {
        let plain = SessionOptions::default();
        give(Handshake::to(get(options).unwrap_or(&plain), text(host), port))
    }

    /// See the header.
    fn phoebus_handshake_accept(options: *const SessionOptions, now_ns: u64, from: *const c_char) -> *mut Handshake,
    or std::ptr::null_mut(), {
        let plain = SessionOptions::default();
        // A string that is not UTF-8 is no address either.
        let from = if from.is_null() { None } else { Some(text(from).unwrap_or_default()) };
        give(Handshake::from(get(options).unwrap_or(&plain), Duration::from_nanos(now_ns), from))
    }

    /// See the header.
    fn phoebus_handshake_first_hop(handshake: *mut Handshake, now_ns: u64, host: *mut *const c_char, port: *mut u16) -> c_int,
    or code::BUG, {
        let Some(handshake) = get_mut(handshake) else { return code::ARGUMENT };
        match handshake.first_hop(Duration::from_nanos(now_ns)) {
            Ok((name, at)) => {
                handshake.host = name;
                put(get_mut(host), handshake.host.as_ptr());
                put(get_mut(port), at);
                code::OK
            }
            Err(code) => code,
        }
    }

    /// See the header.
    fn phoebus_handshake_step(
        handshake: *mut Handshake,
        now_ns: u64,
        input: *const c_void,
        in_len: usize,
        consumed: *mut usize,
        out: *mut c_void,
        capacity: usize,
        produced: *mut usize,
        want: *mut usize,
    ) -> c_int, or FAILED, {
        put(get_mut(consumed), 0);
        put(get_mut(produced), 0);
        put(get_mut(want), 0);
        let Some(handshake) = get_mut(handshake) else { return FAILED };
        if handshake.failure.is_some() {
            return FAILED;
        }
        let (input, out) = (bytes(input.cast(), in_len), room(out.cast(), capacity));
        let now = Duration::from_nanos(now_ns);
        let Some((taken, step)) = handshake.change(|machine| machine.step(now, input, out)) else { return FAILED };
        put(get_mut(consumed), taken);
        match step {
            Step::Write(n) => {
                put(get_mut(produced), n);
                WRITE
            }
            Step::Read(n) => {
                put(get_mut(want), n);
                READ
            }
            Step::Done => DONE,
            Step::Failed => FAILED,
        }
    }

    /// See the header.
    fn phoebus_handshake_deadline(handshake: *const Handshake) -> u64, or u64::MAX, {
        let deadline = get(handshake).and_then(|handshake| handshake.machine.as_ref()?.deadline());
        deadline.map_or(u64::MAX, |deadline| u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX))
    }

    /// See the header.
    fn phoebus_handshake_lost(handshake: *mut Handshake, errnum: c_int) -> (), or (), {
        if let Some(handshake) = get_mut(handshake) {
            handshake.change(|machine| machine.lost(errnum));
        }
    }

    /// See the header.
    fn phoebus_handshake_again(handshake: *mut Handshake) -> c_int, or 0, {
        let Some(handshake) = get_mut(handshake) else { return 0 };
        let Some(mut machine) = handshake.machine.take() else { return 0 };
        let again = machine.opening().is_some_and(Opening::again);
        handshake.machine = Some(machine);
        if again {
            handshake.failure = None;
        }
        again.into()
    }

    /// See the header.
    fn phoebus_handshake_is_direct(handshake: *const Handshake) -> c_int, or 0, {
        let machine = get(handshake).and_then(|handshake| handshake.machine.as_ref());
        matches!(machine, Some(Machine::Opening(opening)) if opening.is_direct()).into()
    }

    /// See the header.
    fn phoebus_handshake_describe(
        handshake: *mut Handshake,
        congestion_control: *const c_char,
        rtt_us: u64,
        send_buffer: u64,
        receive_buffer: u64,
        note: *const c_char,
    ) -> c_int, or code::BUG, {
        let (Some(handshake), control, note) = (get_mut(handshake), text(congestion_control), text(note)) else {
            return code::ARGUMENT;
        };
        let described = handshake.change(|machine| {
            let report = machine.report()?;
            let before = report.hops.first().cloned().unwrap_or_default();
            report.describe(Hop {
                congestion_control: control.map_or(before.congestion_control, str::to_owned),
                rtt_us,
                send_buffer,
                receive_buffer,
                note: note.map_or(before.note, str::to_owned),
                ..Hop::default()
            });
            Some(Shown::from(&*report))
        });
        match described.flatten() {
            Some(report) => {
                handshake.report = Some(report);
                code::OK
            }
            None => code::STATE,
        }
    }

    /// See the header.
    fn phoebus_handshake_error(handshake: *const Handshake) -> *const Failure, or null(), {
        get(handshake).and_then(|handshake| handshake.failure.as_ref()).map_or(null(), |failure| failure)
    }

    /// See the header.
    fn phoebus_handshake_report(handshake: *const Handshake) -> *const Shown, or null(), {
        get(handshake).and_then(|handshake| handshake.report.as_ref()).map_or(null(), |report| report)
    }

    /// See the header.
    fn phoebus_handshake_peer(handshake: *const Handshake) -> *const c_char, or address(None), {
        address(get(handshake).map(|handshake| &handshake.peer))
    }

    /// See the header.
    fn phoebus_handshake_free(handshake: *mut Handshake) -> (), or (), {
        drop(take(handshake));
    }
}

#[cfg(test)]
mod tests;
