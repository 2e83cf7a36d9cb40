//! Applies a profile to a socket before it connects or listens, and reports what the kernel did not grant.

use super::info::congestion_control;
use crate::congestion_control::CongestionControl;
use crate::profile::Profile;
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

/// Which requested settings are not in force, as a sentence; `None` if all are.
pub(super) type Note = Option<Arc<str>>;

/// Number of pending fast-open handshakes that a listener holds before it falls back to ordinary handshakes.
const FAST_OPEN_QUEUE: libc::c_int = 1024;

/// What the socket will be used for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Listen,
    Connect,
    /// The SYN is delayed until the first write and carries its bytes.
    ConnectWithData,
}

/// Opens a socket for `addr` under `profile`, with the linger discipline in force.
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
            notes.push(format!("fast open is not available ({})", crate::error::reason(&error)));
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

/// Notes a buffer that the kernel has limited. The kernel reports twice the granted size, half of it for its
/// overhead, and limits larger requests without an error.
fn clamped(which: &str, limit: &str, asked: u64, in_force: usize, notes: &mut Vec<String>) {
    let granted = in_force as u64 / 2;
    if granted < asked {
        notes.push(format!(
            "asked for a {which} buffer of {asked} bytes, got {granted}: net.core.{limit}_max is below it"
        ));
    }
}

fn set_congestion_control(socket: &Socket, asked: CongestionControl, notes: &mut Vec<String>) -> io::Result<()> {
    if asked.is_udt_specific() {
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

/// Whether the kernel has a congestion control of this name. The check selects it on a socket, since the
/// kernel may have to load a module. One that this process may not use counts as present.
///
/// # Errors
/// When no socket can be opened.
pub fn has_congestion_control(name: &str) -> io::Result<bool> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    let tried = socket.set_tcp_congestion(name.as_bytes());
    Ok(!tried.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::NOENT)))
}

/// Whether this process may use the congestion control; the check selects it on a socket that never connects.
pub(super) fn may_use(control: CongestionControl) -> bool {
    let Some(name) = control.kernel_name() else { return !control.is_udt_specific() };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
    socket.and_then(|socket| socket.set_tcp_congestion(name.as_bytes())).is_ok()
}

/// Makes the kernel limit the sending rate to `rate` on the link. Its pacing counts only the payload of segments.
pub(super) fn set_rate(socket: &SockRef<'_>, rate: Option<BitRate>, is_ipv6: bool) -> io::Result<()> {
    let bytes = rate.map_or(u64::MAX, |rate| payload_rate(socket, rate, is_ipv6));
    sys::set_pacing(socket.as_fd(), bytes.max(1))
}

/// The rate of payload, in bytes per second, at which `rate` is what passes the link.
pub(super) fn payload_rate(socket: &SockRef<'_>, rate: BitRate, is_ipv6: bool) -> u64 {
    // Before the connection is established, the kernel reports its default of 536.
    let segment = socket.tcp_mss().ok().filter(|mss| *mss > 536).map_or(USUAL_SEGMENT, u64::from);
    let headers = wire::ip_header(is_ipv6) + 20 + TIMESTAMPS;
    wire::share(rate, segment, headers).0 / 8
}

/// Payload of a TCP segment at Ethernet's usual MTU, in bytes.
const USUAL_SEGMENT: u64 = 1448;
/// Length of the TCP timestamp option, in bytes, which every segment carries unless the host has turned it
/// off.
const TIMESTAMPS: u64 = 12;

/// A buffer size as an `int` of `setsockopt`.
///
/// # Errors
/// `InvalidInput` above 2 GiB.
pub(super) fn size(bytes: u64) -> io::Result<usize> {
    i32::try_from(bytes).map(|bytes| bytes as usize).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Limits a keep-alive time to what the kernel accepts: whole seconds from 1 to 32767.
fn at_least_a_second(time: Duration) -> Duration {
    time.clamp(Duration::from_secs(1), Duration::from_secs(32767))
}
