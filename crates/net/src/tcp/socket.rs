//! Puts a profile on a socket that has not connected or listened yet, and says what the kernel did not grant.

use super::info::congestion_control;
use crate::profile::{CongestionControl, Profile};
use crate::sys;
use crate::wire;
use phoebus_proto::units::BitRate;
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// What was asked for and not had, as a sentence; `None` if nothing.
pub(super) type Note = Option<Arc<str>>;

/// Pending fast-open handshakes that a listener holds before it goes back to ordinary ones.
const FAST_OPEN_QUEUE: libc::c_int = 1024;

/// What a socket is about to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Listen,
    Connect,
    /// The SYN waits for the first write and carries it.
    ConnectWithData,
}

/// A socket for `addr` under `profile`, with the linger discipline in force.
pub(super) fn open(addr: SocketAddr, profile: &Profile, purpose: Purpose) -> io::Result<(Socket, Note)> {
    let mut notes = Vec::new();
    let socket = create(Domain::for_address(addr), profile.multipath, &mut notes)?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(profile.no_delay)?;
    set_buffers(&socket, profile, &mut notes)?;
    set_congestion_control(&socket, profile.congestion_control, &mut notes)?;
    if profile.rate.is_some() {
        set_rate(&SockRef::from(&socket), profile.rate, addr.is_ipv6())?;
    }
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(at_least_a_second(profile.keepalive_idle.0))
            .with_interval(at_least_a_second(profile.keepalive_interval.0))
            .with_retries(profile.keepalive_probes.clamp(1, 127)),
    )?;
    if profile.fast_open {
        let option = match purpose {
            Purpose::Listen => Some((libc::TCP_FASTOPEN, FAST_OPEN_QUEUE)),
            Purpose::ConnectWithData => Some((libc::TCP_FASTOPEN_CONNECT, 1)),
            Purpose::Connect => None,
        };
        if let Some((option, value)) = option
            && let Err(error) = sys::set_tcp_option(socket.as_fd(), option, value)
        {
            notes.push(format!("fast open is not to be had ({})", crate::error::reason(&error)));
        }
    }
    let note = if notes.is_empty() { None } else { Some(notes.join("; ").into()) };
    Ok((socket, note))
}

fn create(domain: Domain, multipath: bool, notes: &mut Vec<String>) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking();
    if multipath {
        match Socket::new(domain, kind, Some(Protocol::MPTCP)) {
            Ok(socket) => return Ok(socket),
            Err(error) => notes.push(format!(
                "asked for MPTCP, which this kernel does not offer ({}); using TCP",
                crate::error::reason(&error)
            )),
        }
    }
    Socket::new(domain, kind, Some(Protocol::TCP))
}

fn set_buffers(socket: &Socket, profile: &Profile, notes: &mut Vec<String>) -> io::Result<()> {
    if let Some(size) = profile.send_buffer.bytes() {
        socket.set_send_buffer_size(size as usize)?;
        clamped("send", "wmem", size, socket.send_buffer_size()?, notes);
    }
    if let Some(size) = profile.receive_buffer.bytes() {
        socket.set_recv_buffer_size(size as usize)?;
        clamped("receive", "rmem", size, socket.recv_buffer_size()?, notes);
    }
    Ok(())
}

/// The kernel reports twice what it granted, the half being its own overhead, and cuts in silence what is above its limit.
fn clamped(which: &str, limit: &str, asked: u64, in_force: usize, notes: &mut Vec<String>) {
    let granted = in_force as u64 / 2;
    if granted < asked {
        notes.push(format!(
            "asked for a {which} buffer of {asked} bytes, got {granted}: net.core.{limit}_max is below it"
        ));
    }
}

fn set_congestion_control(socket: &Socket, asked: CongestionControl, notes: &mut Vec<String>) -> io::Result<()> {
    if asked.is_udts() {
        let why = format!("congestion control \"{asked}\" is UDT's, and TCP has none of that name");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let Some(name) = asked.kernel_name() else { return Ok(()) };
    let Err(error) = socket.set_tcp_congestion(name.as_bytes()) else { return Ok(()) };
    let why = match Errno::from_io_error(&error) {
        Some(Errno::PERM) => "net.ipv4.tcp_allowed_congestion_control does not list it",
        Some(Errno::NOENT) => "the kernel does not have it",
        _ => return Err(error),
    };
    if asked != CongestionControl::Auto {
        notes.push(format!("asked for {name}, using {}: {why}", congestion_control(socket)));
    }
    Ok(())
}

/// Whether the kernel has a congestion control of this name; tried, since it may have to load it. One that it has and does
/// not permit to this process counts as there.
///
/// # Errors
/// There is no socket to be had.
pub fn has_congestion_control(name: &str) -> io::Result<bool> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    let tried = socket.set_tcp_congestion(name.as_bytes());
    Ok(!tried.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::NOENT)))
}

/// Whether this process may send by `control`: tried on a socket that goes nowhere.
pub(super) fn may_use(control: CongestionControl) -> bool {
    let Some(name) = control.kernel_name() else { return !control.is_udts() };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
    socket.and_then(|socket| socket.set_tcp_congestion(name.as_bytes())).is_ok()
}

/// Paces what is sent to at most `rate` on the link. The kernel counts what a segment carries, a link its headers as well.
pub(super) fn set_rate(socket: &SockRef<'_>, rate: Option<BitRate>, is_ipv6: bool) -> io::Result<()> {
    let Some(rate) = rate else { return sys::set_pacing(socket.as_fd(), u64::MAX) };
    // Before there is a connection the kernel says 536, its guess until it knows better.
    let segment = socket.tcp_mss().ok().filter(|mss| *mss > 536).map_or(USUAL_SEGMENT, u64::from);
    let headers = wire::ip_header(is_ipv6) + 20 + TIMESTAMPS;
    sys::set_pacing(socket.as_fd(), (wire::share(rate, segment, headers).0 / 8).max(1))
}

/// What a segment of Ethernet's usual length carries.
const USUAL_SEGMENT: u64 = 1448;
/// The option that every segment has, unless the host has turned it off.
const TIMESTAMPS: u64 = 12;

/// A buffer's size as the kernel takes it.
///
/// # Errors
/// `InvalidInput` above 2 GiB.
pub(super) fn size(bytes: u64) -> io::Result<usize> {
    i32::try_from(bytes).map(|bytes| bytes as usize).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Keepalive times are whole seconds in the kernel, and 0 is refused.
fn at_least_a_second(time: Duration) -> Duration {
    time.clamp(Duration::from_secs(1), Duration::from_secs(32767))
}
