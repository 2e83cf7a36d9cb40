//! What became of each session, for those who asked: a line of JSON in `PHOEBUS_REPORT`, a sentence on standard error with
//! `PHOEBUS_VERBOSE`, and the memory of short paths (S26). Lines are built on the stack.

use crate::config::{self, Config};
use crate::pending::Guard;
use crate::{real, sys};
use libc::c_int;
use phoebus_proto::bypass::{self, LINE_MAX, Measured};
use phoebus_proto::endpoint::EndpointRef;
use std::ffi::CStr;
use std::fmt::{self, Display, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Longest line: a report of the longest path with names of usual length. What does not fit is cut.
const ROOM: usize = 8 * 1024;

/// A line under construction.
struct Line {
    bytes: [u8; ROOM],
    len: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; ROOM], len: 0 }
    }

    fn append_to(&mut self, fd: c_int) {
        let _ = self.write_char('\n');
        // SAFETY: the pointer and the length describe the bytes written so far.
        unsafe { real::write(fd, self.bytes.as_ptr().cast(), self.len) };
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let n = text.len().min(ROOM - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&text.as_bytes()[..n]);
        self.len += n;
        if n == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// A text as a JSON string; texts from peers have no control characters.
struct Json<T>(T);

impl<T: Display> Display for Json<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Escaped<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl Write for Escaped<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.chars().try_for_each(|c| match c {
                    '"' | '\\' => write!(self.0, "\\{c}"),
                    c if c < ' ' => write!(self.0, "\\u{:04x}", c as u32),
                    c => self.0.write_char(c),
                })
            }
        }
        f.write_char('"')?;
        write!(Escaped(f), "{}", self.0)?;
        f.write_char('"')
    }
}

/// A session is open.
pub(crate) fn opened(fd: c_int, pending: &Guard) {
    let Some(config) = config::active() else { return };
    let settings = &config.settings;
    let Some(opened) = pending.handshake.as_ref().and_then(|handshake| handshake.opened()) else { return };
    let info: Option<libc::tcp_info> = sys::get(fd, libc::IPPROTO_TCP, libc::TCP_INFO);
    let first_us = info.map_or(0, |info| u64::from(info.tcpi_rtt));
    let total_us = first_us + opened.rtt_us();
    remember(config, pending.destination, total_us);
    if !settings.verbose && config.report.is_none() {
        return;
    }
    let name = congestion_control(fd);
    let name = name.iter().position(|byte| *byte == 0).map_or(&name[..], |end| &name[..end]);
    let name = std::str::from_utf8(name).unwrap_or("");
    let (to, gateway) = (pending.destination, pending.gateway);
    let opening_ms = (sys::now() - pending.since) / 1_000_000;
    if settings.verbose {
        let mut line = Line::new();
        let _ = write!(line, "phoebus: session to {to} through {gateway} ({name}, {:.1} ms)", first_us as f64 / 1000.0);
        for hop in opened.hops.iter() {
            let (to, cc, ms) = (hop.to, hop.congestion_control, hop.rtt_us as f64 / 1000.0);
            let _ = write!(line, ", {to} ({} {cc}, {ms:.1} ms)", hop.transport);
            if !hop.note.is_empty() {
                let _ = write!(line, " [{}]", hop.note);
            }
        }
        let _ = write!(line, "; open after {opening_ms} ms");
        line.append_to(libc::STDERR_FILENO);
    }
    if let Some(file) = &config.report {
        let mut line = Line::new();
        let _ = write!(
            line,
            "{{\"event\":\"opened\",\"pid\":{},\"destination\":{},\"gateway\":{},\"congestion_control\":{},\
             \"first_hop_rtt_us\":{first_us},\"rtt_us\":{total_us},\"opening_ms\":{opening_ms},\"hops\":[",
            // SAFETY: no conditions.
            unsafe { libc::getpid() },
            Json(to),
            Json(gateway),
            Json(name)
        );
        for (i, hop) in opened.hops.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let _ = write!(
                line,
                "{comma}{{\"from\":{},\"to\":{},\"transport\":{},\"congestion_control\":{},\"security\":{},\
                 \"rtt_us\":{},\"send_buffer\":{},\"receive_buffer\":{},\"warm\":{},\"note\":{}}}",
                Json(hop.from),
                Json(hop.to),
                Json(hop.transport),
                Json(hop.congestion_control),
                Json(hop.security),
                hop.rtt_us,
                hop.send_buffer,
                hop.receive_buffer,
                hop.warm,
                Json(hop.note)
            );
        }
        let _ = line.write_str("]}");
        append(file, &mut line);
    }
}

/// A session has failed.
pub(crate) fn failed(pending: &Guard, errno: c_int) {
    let Some(config) = config::active() else { return };
    let refused = pending.handshake.as_ref().and_then(|handshake| handshake.refused());
    let (to, gateway) = (pending.destination, pending.gateway);
    match refused {
        Some(refused) => say(config, to, "refused", &format_args!("{} ({})", refused.reason, refused.hop), Some(errno)),
        None => say(config, to, "failed", &format_args!("gateway {gateway}: {}", Errno(errno)), Some(errno)),
    }
}

/// The gateway could not be reached, and nothing else was allowed.
pub(crate) fn unreachable(config: &Config, to: SocketAddr, errno: c_int) {
    say(config, to, "failed", &format_args!("the gateway cannot be reached: {}", Errno(errno)), Some(errno));
}

/// The gateway could not be reached, and the user had allowed to go direct then.
pub(crate) fn fell_back(config: &Config, to: SocketAddr, errno: c_int) {
    say(config, to, "direct", &format_args!("the gateway cannot be reached: {}", Errno(errno)), Some(errno));
}

/// The path is too short for a detour.
pub(crate) fn bypassed(config: &Config, to: SocketAddr, rtt: Duration) {
    say(config, to, "direct", &format_args!("the path measured {:.1} ms", rtt.as_secs_f64() * 1e3), None);
}

fn say(config: &Config, to: SocketAddr, event: &str, why: &dyn Display, errno: Option<c_int>) {
    let before = sys::errno();
    if config.settings.verbose {
        let mut line = Line::new();
        let _ = write!(line, "phoebus: session to {to}: {event}: {why}");
        line.append_to(libc::STDERR_FILENO);
    }
    if let Some(file) = &config.report {
        let mut line = Line::new();
        let _ = write!(line, "{{\"event\":{},\"destination\":{},\"reason\":{}", Json(event), Json(to), Json(why));
        if let Some(errno) = errno {
            let _ = write!(line, ",\"errno\":{errno}");
        }
        let _ = line.write_char('}');
        append(file, &mut line);
    }
    sys::set_errno(before);
}

/// The name of an errno, as strerrorname_np has it: no memory, no locale.
struct Errno(c_int);

impl Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            libc::ECONNREFUSED => f.write_str("connection refused"),
            libc::ETIMEDOUT => f.write_str("connection timed out"),
            libc::EHOSTUNREACH => f.write_str("no route to host, or its name does not resolve"),
            libc::ENETUNREACH => f.write_str("network unreachable"),
            libc::ECONNRESET => f.write_str("connection reset"),
            libc::EPROTO => f.write_str("it does not speak the session protocol"),
            other => write!(f, "error {other}"),
        }
    }
}

fn congestion_control(fd: c_int) -> [u8; 16] {
    sys::get::<[u8; 16]>(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION).unwrap_or_default()
}

fn append(file: &CStr, line: &mut Line) {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: a valid C string; the descriptor is closed here.
    unsafe {
        let fd = libc::open(file.as_ptr(), flags, 0o644);
        if fd >= 0 {
            line.append_to(fd);
            real::close(fd);
        }
    }
}

/// The remembered round trip to `to`, if it is short enough to go direct.
pub(crate) fn short(config: &Config, to: SocketAddr) -> Option<Duration> {
    let limit = config.settings.bypass_rtt;
    let file = config.cache.as_ref()?;
    if limit.is_zero() {
        return None;
    }
    let before = sys::errno();
    // SAFETY: the mapping is read-only and unmapped after its last use; a file that shrinks meanwhile is not supported by
    // anybody who writes it (lines are appended, a full one is replaced as a whole).
    let rtt = unsafe {
        let fd = libc::open(file.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let len = if fd < 0 { 0 } else { libc::lseek(fd, 0, libc::SEEK_END) };
        let mut rtt = None;
        if let Ok(len @ 1..) = usize::try_from(len) {
            let len = len.min(bypass::FILE_MAX);
            let map = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
            if map != libc::MAP_FAILED {
                let memory = std::slice::from_raw_parts(map.cast::<u8>(), len);
                rtt = bypass::recall(memory, EndpointRef::from(to).host, &config.settings.path, unix_time());
                libc::munmap(map, len);
            }
        }
        if fd >= 0 {
            real::close(fd);
        }
        rtt
    };
    sys::set_errno(before);
    rtt.filter(|rtt| *rtt < limit)
}

fn remember(config: &Config, to: SocketAddr, rtt_us: u64) {
    let Some(file) = &config.cache else { return };
    if config.settings.bypass_rtt.is_zero() {
        return;
    }
    let destination = EndpointRef::from(to).host;
    let measured = Measured { at: unix_time(), destination, rtt_us, path: &config.settings.path };
    let mut bytes = [0; LINE_MAX];
    let Some(len) = measured.write(&mut bytes) else { return };
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: a valid C string; the pointer and the length describe the line; the descriptor is closed here.
    unsafe {
        let fd = libc::open(file.as_ptr(), flags, 0o600);
        if fd >= 0 {
            if libc::lseek(fd, 0, libc::SEEK_END) > bypass::FILE_MAX as i64 {
                libc::ftruncate(fd, 0);
            }
            real::write(fd, bytes.as_ptr().cast(), len);
            real::close(fd);
        }
    }
}

fn unix_time() -> u64 {
    // SAFETY: a null pointer asks for the return value only.
    unsafe { libc::time(std::ptr::null_mut()) as u64 }
}
