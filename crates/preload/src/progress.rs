//! Moves a handshake as far as it goes without waiting, and says what it waits for.

use crate::pending::{Guard, Phase};
use crate::{epoll, real, report, sessions, sys};
use libc::{c_int, c_short};
use phoebus_proto::session::Code;
use phoebus_proto::session::initiator::State;

/// Where a socket stands after a step.
pub(crate) enum Progress {
    /// The handshake goes on when the socket is ready for these poll events.
    Waits(Guard, c_short),
    /// The session is open; the socket is the program's.
    Open,
    /// It failed; the program has not been told.
    Failed(Guard, c_int),
}

/// Moves the handshake of the socket behind `fd`.
pub(crate) fn step(fd: c_int, mut pending: Guard) -> Progress {
    let before = sys::errno();
    let progress = loop {
        match advance(fd, &mut pending) {
            Ok(Some(events)) => break Progress::Waits(pending, events),
            Ok(None) if opened(&pending) => {
                complete(fd, pending);
                break Progress::Open;
            }
            Ok(None) => {}
            Err(errno) => {
                fail(fd, &mut pending, errno);
                break Progress::Failed(pending, errno);
            }
        }
    };
    sys::set_errno(before);
    progress
}

/// One move. `Some`: nothing goes on before these events. The error is the errno that the session fails with.
fn advance(fd: c_int, pending: &mut Guard) -> Result<Option<c_short>, c_int> {
    match pending.phase {
        Phase::Failed(errno) => return Err(errno),
        Phase::Connecting => {
            if sys::ready(fd, libc::POLLOUT) == 0 {
                return Ok(Some(libc::POLLOUT));
            }
            match sys::option(fd, libc::SOL_SOCKET, libc::SO_ERROR) {
                Some(0) | None => pending.phase = Phase::Talking,
                Some(errno) => return Err(errno),
            }
        }
        Phase::Talking => {}
    }
    let Some(handshake) = pending.handshake.as_mut() else { return Err(libc::EPROTO) };
    match handshake.state() {
        State::Opened => return Ok(None),
        State::Refused => return Err(handshake.refused().map_or(libc::EPROTO, |refused| refused.code.errno())),
        State::Challenged => return Err(Code::AuthRequired.errno()),
        State::Greeting | State::Ready | State::Opening => {}
    }
    let outgoing = handshake.outgoing();
    if !outgoing.is_empty() {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the pointer and the length describe `outgoing`.
        let n = unsafe { real::send(fd, outgoing.as_ptr().cast(), outgoing.len(), flags) };
        return match usize::try_from(n) {
            Ok(n) => {
                handshake.sent(n);
                Ok(None)
            }
            Err(_) => waits(libc::POLLOUT),
        };
    }
    let space = handshake.space().map_err(|_| libc::EPROTO)?;
    // SAFETY: the pointer and the length describe `space`: never more than the handshake's own bytes are read.
    let n = unsafe { real::recv(fd, space.as_mut_ptr().cast(), space.len(), libc::MSG_DONTWAIT) };
    match usize::try_from(n) {
        Ok(0) => Err(libc::ECONNRESET),
        Ok(n) => handshake.received(n).map(|()| None).map_err(|_| libc::EPROTO),
        Err(_) => waits(libc::POLLIN),
    }
}

fn waits(events: c_short) -> Result<Option<c_short>, c_int> {
    match sys::errno() {
        libc::EAGAIN => Ok(Some(events)),
        libc::EINTR => Ok(None),
        errno => Err(errno),
    }
}

fn opened(pending: &Guard) -> bool {
    pending.handshake.as_ref().is_some_and(|handshake| handshake.state() == State::Opened)
}

fn complete(fd: c_int, pending: Guard) {
    let cookie = pending.cookie();
    sessions::remember(cookie, pending.destination);
    report::opened(fd, &pending);
    pending.release();
    epoll::restore(cookie);
}

/// Makes the socket one that can connect again. The state stays until the program has asked why.
fn fail(fd: c_int, pending: &mut Guard, errno: c_int) {
    if !matches!(pending.phase, Phase::Failed(_)) {
        report::failed(pending, errno);
        pending.phase = Phase::Failed(errno);
        disconnect(fd);
    }
}

/// Takes the connection off the socket (connect(2), AF_UNSPEC); it is then as ready and as hung up as a direct connection
/// that failed.
pub(crate) fn disconnect(fd: c_int) {
    let before = sys::errno();
    let unspecified = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    // SAFETY: a whole sockaddr.
    unsafe { real::connect(fd, &raw const unspecified, size_of::<libc::sockaddr>() as libc::socklen_t) };
    sys::set_errno(before);
}
