//! Prepares the program's socket for the way to the gateway, and restores it if it does not go there.

use crate::addr::RawAddr;
use crate::changes::Changes;
use crate::process::Locked;
use crate::record::{Attempt, REGISTRATIONS, Record};
use crate::socket_options::{self, OfFamily};
use crate::sys::{self, Errno};
use crate::table::Guard;
use crate::{config, registrations};
use libc::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Sockets whose congestion control the program chose itself.
static CHOSEN: Cookies<256> = Cookies::new();

/// IPv6 sockets that were connected to an IPv4 address. Linux does not connect them to IPv6 addresses any more: what it
/// sends goes to the IPv4 address.
static MAPPED: Cookies<1024> = Cookies::new();

/// The last sockets with a property, by cookie.
struct Cookies<const KEPT: usize> {
    known: [AtomicU64; KEPT],
    next: AtomicUsize,
}

impl<const KEPT: usize> Cookies<KEPT> {
    const fn new() -> Self {
        Self { known: [const { AtomicU64::new(0) }; KEPT], next: AtomicUsize::new(0) }
    }

    fn is_empty(&self) -> bool {
        self.next.load(Ordering::Relaxed) == 0
    }

    fn contains(&self, cookie: u64) -> bool {
        !self.is_empty() && self.known.iter().any(|known| known.load(Ordering::Relaxed) == cookie)
    }

    fn note(&self, fd: c_int) {
        if let Some(cookie) = sys::cookie(fd).filter(|cookie| !self.contains(*cookie)) {
            self.known[self.next.fetch_add(1, Ordering::Relaxed) % KEPT].store(cookie, Ordering::Relaxed);
        }
    }
}

/// Number of remembered sockets that have replaced others. A thread that waits for an attempt asks every few
/// milliseconds.
const SUCCESSORS_KEPT: usize = 256;

/// Their attempts and cookies, and the next index.
static SUCCESSORS: Locked<(usize, [(u64, u64); SUCCESSORS_KEPT])> = Locked::new((0, [(0, 0); SUCCESSORS_KEPT]));

/// The kind of the socket behind `fd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketKind {
    /// A stream of TCP or MPTCP, over which sessions can run.
    Tcp,
    Datagram,
    /// Another protocol.
    Other,
    /// The kernel does not tell, as with some filters of system calls.
    Unknown,
}

impl SocketKind {
    pub(crate) fn of(fd: c_int) -> Self {
        let option = |name| sys::get::<c_int>(fd, libc::SOL_SOCKET, name);
        match (option(libc::SO_TYPE), option(libc::SO_PROTOCOL)) {
            (Some(libc::SOCK_STREAM), Some(libc::IPPROTO_TCP | libc::IPPROTO_MPTCP)) => Self::Tcp,
            (Some(libc::SOCK_DGRAM), _) => Self::Datagram,
            (None, _) | (Some(libc::SOCK_STREAM), None) => Self::Unknown,
            _ => Self::Other,
        }
    }
}

/// Whether calls on the descriptor do not block.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    sys::status_flags(fd).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0)
}

/// The time limit of calls on a socket, by SO_SNDTIMEO or SO_RCVTIMEO; `None` for none.
pub(crate) fn time_limit(fd: c_int, name: c_int) -> Option<Duration> {
    let [seconds, micros] = sys::get::<[i64; 2]>(fd, libc::SOL_SOCKET, name)?;
    let limit = Duration::from_secs(seconds.try_into().ok()?) + Duration::from_micros(micros.try_into().ok()?);
    (!limit.is_zero()).then_some(limit)
}

/// Records that the program has chosen a congestion control for the socket behind `fd`.
pub(crate) fn chosen(fd: c_int) {
    CHOSEN.note(fd);
}

fn is_chosen(cookie: u64) -> bool {
    CHOSEN.contains(cookie)
}

/// Asks for the congestion control of the settings, unless the program chose one. The report tells the result.
pub(crate) fn tune(fd: c_int, attempt: &mut Attempt) {
    let wanted = config::get().and_then(|config| config.settings.congestion_control.as_deref());
    let Some(wanted) = wanted.filter(|_| !sys::cookie(fd).is_some_and(is_chosen)) else { return };
    let mut had = [0; 16];
    let known = sys::get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut had);
    if known.is_ok() && had.starts_with(wanted.as_bytes()) && had.get(wanted.len()) == Some(&0) {
        return;
    }
    attempt.untuned = set_congestion_control(fd, wanted.as_bytes()).is_err();
    if known.is_ok() && !attempt.untuned && attempt.changes.congestion_control[0] == 0 {
        attempt.changes.congestion_control = had;
    }
}

fn set_congestion_control(fd: c_int, name: &[u8]) -> Result<(), Errno> {
    sys::set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name)
}

/// Prepares the socket to reach `gateway`, and returns the address to connect to. An IPv6 socket reaches IPv4 by a
/// mapped address. If neither family fits, another socket replaces it.
pub(crate) fn fit(guard: &mut Guard, fd: c_int, gateway: SocketAddr) -> Result<RawAddr, Errno> {
    let family = sys::family(fd).ok_or(libc::ENOTSOCK)?;
    match (family, gateway) {
        (libc::AF_INET6, SocketAddr::V6(_)) if was_mapped(guard, fd) => {
            replace_for_attempt(guard, fd, libc::AF_INET6)?;
        }
        (libc::AF_INET, SocketAddr::V4(_)) | (libc::AF_INET6, SocketAddr::V6(_)) => {}
        (libc::AF_INET6, SocketAddr::V4(_)) if widen(guard, fd) => {
            MAPPED.note(fd);
            attempt(guard).into_iter().for_each(|attempt| attempt.mapped = true);
        }
        (libc::AF_INET6, SocketAddr::V4(_)) => {
            replace_for_attempt(guard, fd, libc::AF_INET)?;
            return Ok(RawAddr::new(gateway, libc::AF_INET));
        }
        (_, SocketAddr::V6(_)) => {
            replace_for_attempt(guard, fd, libc::AF_INET6)?;
        }
        (_, SocketAddr::V4(_)) => return Err(libc::EAFNOSUPPORT),
    }
    Ok(RawAddr::new(gateway, if gateway.is_ipv6() { libc::AF_INET6 } else { family }))
}

fn attempt(guard: &mut Guard) -> Option<&mut Attempt> {
    guard.record()?.attempt.as_mut()
}

/// Whether the socket of this attempt was connected to an IPv4 address, by this attempt or earlier.
fn was_mapped(guard: &mut Guard, fd: c_int) -> bool {
    attempt(guard).is_some_and(|attempt| attempt.mapped) || is_mapped(fd)
}

/// Whether an IPv6 socket was connected to an IPv4 address, as far as that is remembered.
pub(crate) fn is_mapped(fd: c_int) -> bool {
    !MAPPED.is_empty() && sys::cookie(fd).is_some_and(|cookie| MAPPED.contains(cookie))
}

/// Records that a socket of TCP over IPv6 is about to be connected to an IPv4 address.
pub(crate) fn will_be_mapped(fd: c_int) {
    if sys::family(fd) == Some(libc::AF_INET6) && SocketKind::of(fd) == SocketKind::Tcp {
        MAPPED.note(fd);
    }
}

/// Lets an IPv6 socket connect to IPv4 addresses, if it is not bound to an address of its own.
fn widen(guard: &mut Guard, fd: c_int) -> bool {
    let any = sys::getsockname(fd).and_then(|own| own.socket_addr()).is_some_and(|own| own.ip().is_unspecified());
    match sys::get::<c_int>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) {
        Some(0) => any,
        Some(_) if any => {
            let widened = set_v6_only(fd, 0).is_ok();
            attempt(guard).into_iter().for_each(|attempt| attempt.changes.widened = widened);
            widened
        }
        _ => false,
    }
}

/// Whether an IPv6 socket reaches no IPv4 addresses.
pub(crate) fn is_v6_only(fd: c_int) -> bool {
    sys::get::<c_int>(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1)
}

fn set_v6_only(fd: c_int, only: c_int) -> Result<(), Errno> {
    sys::set_bytes(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &only.to_ne_bytes())
}

/// Begins to connect without blocking, with as much of `data` in the SYN as a cached fast open cookie permits (RFC
/// 7413). Returns how much that was.
pub(crate) fn start(fd: c_int, to: &RawAddr, data: &[u8]) -> Result<usize, Errno> {
    match sys::send(fd, data, libc::MSG_FASTOPEN, Some(to)) {
        Err(libc::EINPROGRESS) => Ok(0),
        // Switched off on this host, or unknown for this kind of socket.
        Err(libc::EOPNOTSUPP | libc::ENOPROTOOPT | libc::ENOTCONN | libc::EPIPE) => start_plain(fd, to).map(|()| 0),
        result => result,
    }
}

/// Begins to connect without blocking.
pub(crate) fn start_plain(fd: c_int, to: &RawAddr) -> Result<(), Errno> {
    let flags = sys::status_flags(fd)?;
    let waits = flags & libc::O_NONBLOCK == 0;
    if waits {
        sys::set_status_flags(fd, flags | libc::O_NONBLOCK)?;
    }
    let result = sys::connect(fd, to);
    if waits {
        sys::set_status_flags(fd, flags)?;
    }
    match result {
        Err(libc::EINPROGRESS) => Ok(()),
        result => result,
    }
}

/// Gives up the connection to the gateway; the socket is unconnected afterwards, without a pending error.
pub(crate) fn hang_up(fd: c_int) {
    disconnect(fd);
    let _ = sys::get::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
}

fn disconnect(fd: c_int) {
    let _ = sys::connect(fd, &RawAddr::unspecified());
}

/// Gives up the connection, and restores the program's socket.
pub(crate) fn reset(guard: &mut Guard, fd: c_int) {
    hang_up(fd);
    let changes =
        attempt(guard).map_or(Changes::NONE, |attempt| std::mem::replace(&mut attempt.changes, Changes::NONE));
    undo(guard, fd, &changes);
}

/// Restores the program's socket, which may still be connected to a gateway.
pub(crate) fn undo(guard: &mut Guard, fd: c_int, changes: &Changes) {
    // The program may have chosen another one since.
    if changes.congestion_control[0] != 0 && !sys::cookie(fd).is_some_and(is_chosen) {
        let name = &changes.congestion_control;
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let _ = set_congestion_control(fd, &name[..len]);
    }
    let wanted = guard.socket_state().family;
    if sys::family(fd).is_some_and(|family| family != wanted) {
        // Copies by dup must not stay connected.
        disconnect(fd);
        // Without descriptors or memory for that, the program keeps this socket. Only its next connect can fail because
        // of it, and reports so (EINVAL or EAFNOSUPPORT).
        let _ = replace(guard, fd, wanted, changes.original);
    }
    if changes.widened {
        disconnect(fd);
        let _ = set_v6_only(fd, 1);
    }
}

/// Prepares the socket to connect directly to `destination`, after it was connected to gateways. The caller shows its
/// registrations afterwards, also after an error.
///
/// # Errors
/// There is no descriptor or memory for it, or the socket's own address cannot be kept.
pub(crate) fn fit_directly(guard: &mut Guard, fd: c_int, destination: SocketAddr) -> Result<(), Errno> {
    if destination.ip().to_canonical().is_ipv6() && was_mapped(guard, fd) {
        replace_for_attempt(guard, fd, libc::AF_INET6)?;
    }
    Ok(())
}

/// Like [`replace`]; the attempt keeps what the program's own socket had, and the registrations are hidden.
fn replace_for_attempt(guard: &mut Guard, fd: c_int, family: c_int) -> Result<(), Errno> {
    let original = attempt(guard).and_then(|attempt| attempt.changes.original);
    let replaced = replace(guard, fd, family, original);
    registrations::hide(guard);
    let original = replaced?;
    if let Some(attempt) = attempt(guard) {
        attempt.changes.original = original;
        attempt.mapped = false;
    }
    Ok(())
}

/// Replaces the socket behind `fd` by a fresh one of this family, with its options and flags, in the same epoll sets;
/// also behind the program's descriptors, if `fd` is one of this library's: the last one seen, the one that connects,
/// and those in epoll sets. Other descriptors of the old socket, made by dup or fork, stay unchanged.
///
/// `original` is what the program's socket had before one of another family replaced it. Returns the same for the new
/// socket. The caller shows or hides the registrations afterwards, also after an error.
fn replace(guard: &mut Guard, fd: c_int, family: c_int, original: Option<OfFamily>) -> Result<Option<OfFamily>, Errno> {
    let protocol = sys::get(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL).unwrap_or(libc::IPPROTO_TCP);
    let new = sys::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, protocol)?;
    let was_chosen = sys::cookie(fd).is_some_and(is_chosen);
    socket_options::copy(fd, new);
    let program = guard.descriptor();
    let mut others = [None; REGISTRATIONS + 1];
    others[0] = attempt(guard).map(|attempt| attempt.connecting);
    let registered = guard.record().into_iter().flat_map(Record::registered).map(|registration| registration.fd);
    others[1..].iter_mut().zip(registered).for_each(|(other, registered)| *other = Some(registered));
    let old = guard.cookie();
    // The table knows it before it is visible, so that other threads wait for the result.
    let result = pass_on(fd, new, original).and_then(|original| {
        let place = guard.successor(new)?;
        // Nothing can take the old socket out of the sets afterwards, if another process still has it.
        registrations::withdraw(guard);
        let put = socket_options::copy_flags(fd, new)
            .and_then(|()| if sys::cookie(program) == Some(guard.cookie()) { Ok(()) } else { Err(libc::EBADF) })
            .and_then(|()| sys::dup3(new, program, sys::is_cloexec(program)))
            .and_then(|()| if fd == program { Ok(()) } else { sys::dup3(new, fd, true) })
            .map(|()| {
                for other in others.into_iter().flatten().filter(|other| sys::cookie(*other) == Some(old)) {
                    // The number exists, so that this cannot fail for want of descriptors.
                    let _ = sys::dup3(new, other, sys::is_cloexec(other));
                }
            });
        match put {
            Ok(()) => Ok((place, original)),
            Err(errno) => {
                place.remove();
                registrations::renew(guard);
                Err(errno)
            }
        }
    });
    sys::close(new);
    let (place, original) = result?;
    if was_chosen {
        chosen(fd);
    }
    guard.follow(place, program);
    note_successor(guard);
    registrations::renew(guard);
    Ok(original)
}

/// Gives `new` the address of the socket behind `old`, and the options of its family. A socket of another family has
/// those of `original`, or keeps the port, if it can. Returns what the next one of the first family is to have.
fn pass_on(old: c_int, new: c_int, original: Option<OfFamily>) -> Result<Option<OfFamily>, Errno> {
    let family = sys::family(new).ok_or(libc::ENOTSOCK)?;
    let own = OfFamily::of(old).ok_or(libc::ENOTSOCK)?;
    if own.family() == family {
        own.apply(old, new)?;
        return Ok(original);
    }
    if let Some(original) = original.filter(|original| original.family() == family) {
        original.apply(old, new)?;
    } else if own.port() != 0 {
        let any: SocketAddr =
            if family == libc::AF_INET { ([0; 4], own.port()).into() } else { ([0_u16; 8], own.port()).into() };
        // The first hop can begin at another port.
        let _ = socket_options::bind_to_same(old, new, &RawAddr::new(any, family));
    }
    Ok(Some(own))
}

/// Records that the socket of `guard` has replaced another, for a thread that waits for the attempt on that one.
fn note_successor(guard: &Guard) {
    if guard.attempt() == 0 {
        return;
    }
    SUCCESSORS.with(|(next, known)| {
        known[*next % SUCCESSORS_KEPT] = (guard.attempt(), guard.cookie());
        *next = next.wrapping_add(1);
    });
}

/// Whether the socket with this cookie has replaced the one with which the attempt began.
pub(crate) fn took_its_place(attempt: u64, cookie: u64) -> bool {
    SUCCESSORS.with(|(_, known)| attempt != 0 && known.contains(&(attempt, cookie)))
}
