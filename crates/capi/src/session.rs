//! `phoebus_session`: an open session, which is a socket of the program, and its report.

#![allow(unsafe_code, reason = "functions that C calls")]

use crate::bell::Bell;
use crate::boundary::{address, bytes, get, get_mut, room, string, take};
use crate::failure::{Failure, code, unwrap_or_store};
use crate::report::Shown;
use phoebus_client::Report;
use phoebus_net::tcp::Plain;
use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::ptr::null;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// `phoebus_session`.
#[derive(Debug)]
pub(crate) struct Session {
    connection: Plain,
    report: Shown,
    peer: CString,
    finish_limit: Duration,
    /// For an accepted session: rings when the gateway in this process has passed everything on.
    over: Option<Arc<Bell>>,
    /// Whether this end's stream was ended.
    shut: AtomicBool,
    /// Whether the program has seen an error of the connection. The kernel reports such an error only once.
    broken: AtomicBool,
}

impl Session {
    /// A session that this end has opened.
    pub(crate) fn opened(session: phoebus_client::Session, finish_limit: Duration) -> Result<Self, Failure> {
        let (connection, report) = session.into_plain().map_err(Failure::system)?;
        Ok(Self::new(connection, &report, &report.destination, finish_limit))
    }

    /// A session that this end has accepted, from `peer`.
    pub(crate) fn arrived(
        connection: Plain,
        over: Arc<Bell>,
        report: &Report,
        peer: &str,
        finish_limit: Duration,
    ) -> Self {
        Self { over: Some(over), ..Self::new(connection, report, peer, finish_limit) }
    }

    fn new(connection: Plain, report: &Report, peer: &str, finish_limit: Duration) -> Self {
        let (shut, broken) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { connection, report: Shown::from(report), peer: string(peer), finish_limit, over: None, shut, broken }
    }

    /// Records a failure of a read or a write.
    fn record_failure(&self, result: io::Result<usize>) -> io::Result<usize> {
        use io::ErrorKind::{Interrupted, WouldBlock};
        let failed = result.as_ref().is_err_and(|error| !matches!(error.kind(), Interrupted | WouldBlock));
        self.broken.fetch_or(failed, Relaxed);
        result
    }

    fn finish(self) -> io::Result<()> {
        let ended = self.shut.load(Relaxed) && !self.broken.load(Relaxed);
        match self.connection.settle(self.finish_limit) {
            // Both streams had ended and were acknowledged before, without an error.
            Err(error) if ended && error.kind() == io::ErrorKind::NotConnected => self.connection.check()?,
            result => result?,
        }
        if let Some(over) = &self.over {
            if !over.wait(i32::try_from(self.finish_limit.as_millis()).unwrap_or(i32::MAX)) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.connection.check()?;
        }
        self.connection.close();
        Ok(())
    }

    fn stats(&self) -> io::Result<Stats> {
        let stats = self.connection.stats()?;
        let mut name = [0; 16];
        let known = stats.congestion_control.bytes().take(name.len() - 1);
        name.iter_mut().zip(known).for_each(|(to, from)| *to = from);
        Ok(Stats {
            bytes_sent: stats.bytes_sent,
            bytes_acked: stats.bytes_acked,
            bytes_received: stats.bytes_received,
            bytes_retransmitted: stats.bytes_retransmitted,
            rtt_us: stats.rtt_us,
            rtt_var_us: stats.rtt_var_us,
            min_rtt_us: stats.min_rtt_us,
            delivery_rate: stats.delivery_rate,
            pacing_rate: stats.pacing_rate,
            send_buffer: stats.send_buffer,
            receive_buffer: stats.receive_buffer,
            congestion_window: u64::from(stats.congestion_window) * u64::from(stats.segment_size),
            unsent: stats.unsent.into(),
            segments_lost: stats.lost.into(),
            congestion_control: name,
        })
    }
}

/// The C structure `phoebus_stats`, member by member.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Stats {
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_retransmitted: u64,
    pub(crate) rtt_us: u64,
    pub(crate) rtt_var_us: u64,
    pub(crate) min_rtt_us: u64,
    pub(crate) delivery_rate: u64,
    pub(crate) pacing_rate: u64,
    pub(crate) send_buffer: u64,
    pub(crate) receive_buffer: u64,
    pub(crate) congestion_window: u64,
    pub(crate) unsent: u64,
    pub(crate) segments_lost: u64,
    pub(crate) congestion_control: [u8; 16],
}

/// Returns what read(2) and write(2) return, and sets errno.
fn as_system(result: io::Result<usize>) -> isize {
    let errno = match result {
        Ok(n) => return isize::try_from(n).unwrap_or(isize::MAX),
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    crate::boundary::set_errno(errno);
    -1
}

export! {
    /// See the header.
    fn phoebus_session_descriptor(session: *const Session) -> c_int, or -1, {
        get(session).map_or(-1, |session| session.connection.as_fd().as_raw_fd())
    }

    /// See the header.
    fn phoebus_read(session: *const Session, buffer: *mut c_void, len: usize) -> isize, or -1, {
        as_system(match get(session) {
            Some(session) => session.record_failure(session.connection.read(room(buffer.cast(), len))),
            None => Err(io::Error::from_raw_os_error(libc::EBADF)),
        })
    }

    /// See the header.
    fn phoebus_write(session: *const Session, buffer: *const c_void, len: usize) -> isize, or -1, {
        as_system(match get(session) {
            Some(session) => session.record_failure(session.connection.write(bytes(buffer.cast(), len))),
            None => Err(io::Error::from_raw_os_error(libc::EBADF)),
        })
    }

    /// See the header.
    fn phoebus_shutdown(session: *const Session) -> c_int, or -1, {
        let result = match get(session) {
            Some(session) => session.connection.shutdown_write().inspect(|()| session.shut.store(true, Relaxed)),
            None => Err(io::Error::from_raw_os_error(libc::EBADF)),
        };
        as_system(result.map(|()| 0)) as c_int
    }

    /// See the header.
    fn phoebus_finish(session: *mut Session, error: *mut *mut Failure) -> c_int, or code::BUG, {
        let Some(session) = take(session) else { return code::ARGUMENT };
        match session.finish() {
            Ok(()) => code::OK,
            Err(source) => {
                let failure = Failure::ended(&source);
                let code = failure.code;
                unwrap_or_store(Err(failure), get_mut(error), code)
            }
        }
    }

    /// See the header.
    fn phoebus_session_release(session: *mut Session) -> c_int, or -1, {
        take(session).map_or(-1, |session| session.connection.into_fd().into_raw_fd())
    }

    /// See the header.
    fn phoebus_session_report(session: *const Session) -> *const Shown, or null(), {
        get(session).map_or(null(), |session| &raw const session.report)
    }

    /// See the header.
    fn phoebus_session_peer(session: *const Session) -> *const c_char, or address(None), {
        address(get(session).map(|session| &session.peer))
    }

    /// See the header.
    fn phoebus_session_stats(session: *const Session, stats: *mut Stats, size: usize) -> c_int, or code::BUG, {
        match get(session).map(Session::stats) {
            Some(Ok(found)) if !stats.is_null() => {
                crate::boundary::fill(&found, stats, size);
                code::OK
            }
            Some(Err(_)) => code::SYSTEM,
            _ => code::ARGUMENT,
        }
    }

    /// See the header.
    fn phoebus_session_free(session: *mut Session) -> (), or (), {
        drop(take(session));
    }
}
