//! Reports of sessions (S20; invariant 4): lines of JSON in the file `PHOEBUS_REPORT`, sentences on standard error with
//! `PHOEBUS_VERBOSE`. Without these, one kind of failure is reported once: a failure that no direct connection has.
//! Standard error belongs to the program.
//!
//! The lines have the fields of `phoebus connect`'s reports, and also `event` (`opened`, `failed`, `direct`), `pid`,
//! and the `errno` of a failure.

mod text;

pub(crate) use text::Reason;

use crate::config::Config;
use crate::record::Attempt;
use crate::sys::{self, Errno};
use libc::c_int;
use phoebus_config::settings::is_loopback_or_link;
use phoebus_proto::endpoint::EndpointRef;
use phoebus_proto::session::auth::AuthError;
use phoebus_proto::session::message::HopReport;
use phoebus_proto::session::plan::{Asked, RedirectEnd, trail};
use phoebus_proto::session::{Code, ProtocolError, SessionId};
use phoebus_proto::units::Span;
use std::ffi::CStr;
use std::fmt::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use text::{Escaped, Text};

/// Longest line: room for the hops of any path in use.
const LINE_MAX: usize = 64 * 1024;

/// Why there is no session.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Failure {
    /// The gateway could not be connected.
    Connect(Errno),
    /// The connection to it broke, or (0) ended, before the session was open.
    Lost(Errno),
    /// A process that shared the connection was killed while it changed it, so that nobody knows which bytes were sent
    /// and received.
    Unknown,
    /// It broke the protocol, or speaks another.
    Protocol(ProtocolError),
    /// It, or a later hop, refused.
    Refused(Code),
    /// It requires authentication.
    Challenged,
    /// The user's password was not proved, or the gateway has not proved itself.
    Login(AuthError),
    /// It did not tell in time whether the destination has connected.
    Silent,
}

impl Failure {
    /// The error for the program.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::Connect(errno) => *errno,
            Self::Lost(0) => Code::Internal.errno(),
            Self::Lost(errno) => *errno,
            Self::Unknown => libc::ECONNRESET,
            Self::Protocol(_) => Code::Protocol.errno(),
            Self::Refused(code) => code.errno(),
            Self::Challenged => Code::AuthRequired.errno(),
            Self::Login(_) => Code::AuthFailed.errno(),
            Self::Silent => Code::HandshakeTimeout.errno(),
        }
    }

    /// Whether a direct connection cannot fail like this: the gateway has decided, or the first gateway is no gateway.
    fn is_gateways_own(&self) -> bool {
        /// Codes from here on describe the connection to the destination.
        const OF_DESTINATION: u16 = Code::Refused.number();
        match self {
            Self::Refused(Code::HandshakeTimeout) => false,
            Self::Refused(code) => code.number() < OF_DESTINATION,
            Self::Lost(errno) => *errno == 0,
            Self::Protocol(_) | Self::Challenged | Self::Login(_) => true,
            Self::Connect(_) | Self::Unknown | Self::Silent => false,
        }
    }

    /// Whether the gateway is not reachable, so that another address may be.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connect(_))
    }
}

/// Reports an open session.
pub(crate) fn opened(config: &Config, attempt: &Attempt, fd: c_int, destination: SocketAddr) {
    if !wanted(config) {
        return;
    }
    let Some(opened) = attempt.handshake.as_ref().and_then(|handshake| handshake.opened()) else { return };
    let tcp = FirstHopMetrics::of(fd);
    let next = opened.hops.iter().next().map(|hop| hop.from).filter(|name| !name.is_empty());
    let mut to = [0; 300];
    let to = match next {
        Some(name) => name,
        None => Text::fill(&mut to, format_args!("{}", asked(attempt, config))),
    };
    let wished = config.settings.congestion_control.as_deref().unwrap_or("");
    let mut note = [0; 80];
    let note = match attempt.untuned {
        false if attempt.agent_in_use().is_some() => "",
        false if config.settings.first_hop.is_some_and(|hop| !hop.is_strict()) => {
            "asked for auto as the first hop, in force is tcp: no agent runs"
        }
        false => "",
        true => Text::fill(&mut note, format_args!("asked for {wished}, in force is {}", tcp.congestion_control())),
    };
    let first = HopReport {
        from: "client",
        to,
        transport: "tcp",
        congestion_control: tcp.congestion_control(),
        security: "none",
        rtt_us: tcp.rtt_us,
        send_buffer: tcp.send_buffer,
        receive_buffer: tcp.receive_buffer,
        warm: false,
        note,
        streams: 1,
        rate: 0,
    };
    let hops = || std::iter::once(first).chain(opened.hops.iter());
    let rtt_us = opened.rtt_us().saturating_add(tcp.rtt_us);
    let took = sys::now().saturating_sub(attempt.begun).as_micros();
    let redirected = |text: &mut dyn Write| match attempt.plan.redirected() {
        Some((first, last)) => write!(text, "redirected from {first} to {last}"),
        None => Ok(()),
    };
    write_report(
        config,
        |line| {
            let pid = sys::getpid();
            write!(line, "{{\"event\":\"opened\",\"session\":\"{}\",", SessionId(attempt.session))?;
            write!(line, "\"destination\":\"{destination}\",")?;
            line.write_str("\"hops\":[")?;
            for (i, hop) in hops().enumerate() {
                write_hop(line, if i == 0 { "" } else { "," }, &hop)?;
            }
            write!(line, "],\"rtt_us\":{rtt_us},\"opened_in_us\":{took},\"note\":\"")?;
            redirected(line)?;
            write!(line, "\",\"pid\":{pid}}}")
        },
        |line| {
            for hop in hops() {
                let warm = if hop.warm { " warm" } else { "" };
                let rtt = hop.rtt_us as f64 / 1000.0;
                write!(line, "{} –{rtt:.1}ms {}", hop.from, hop.transport)?;
                if hop.streams > 1 {
                    write!(line, "*{}", hop.streams)?;
                }
                write!(line, "/{}{warm}→ ", hop.congestion_control)?;
            }
            write!(line, "{destination}")?;
            hops().filter(|hop| !hop.note.is_empty()).try_for_each(|hop| write!(line, "; {}", hop.note))?;
            if attempt.plan.redirected().is_some() {
                line.write_str("; ")?;
            }
            redirected(line)
        },
    );
}

/// Reports that there is no session, and whether the connection is direct instead.
pub(crate) fn failed(config: &Config, attempt: &Attempt, failure: &Failure, destination: SocketAddr, direct: bool) {
    let telling = attempt.telling().filter(|_| failure.is_unreachable()).map(|(index, _)| index);
    let index = telling.unwrap_or(attempt.gateway);
    let gateway = attempt.gateways.get(index);
    let refused = attempt.handshake.as_ref().and_then(|handshake| handshake.refused());
    let asked = asked(attempt, config);
    let whom = if attempt.agent_at(index).is_some() { "the agent for gateway" } else { "gateway" };
    let why = |text: &mut dyn Write| {
        match (failure, refused) {
            (Failure::Refused(code), Some(refused)) => {
                match refused.hop {
                    "" => write!(text, "{whom} {asked}")?,
                    hop => text.write_str(hop)?,
                }
                match refused.reason {
                    "" => write!(text, ": {code}")?,
                    reason => write!(text, ": {reason}")?,
                }
                if let Some(better) = refused.redirect {
                    write!(text, " (it names a better gateway: {better})")?;
                }
                return Ok(());
            }
            _ => write!(text, "{whom} {asked}")?,
        }
        if let Some(address) = gateway {
            write!(text, " ({address})")?;
        }
        match failure {
            Failure::Connect(errno) => {
                write!(text, ": cannot connect: {}", Reason(*errno))?;
                let failures = attempt.gateways.iter().zip(attempt.failures).enumerate();
                let others = failures.filter(|(other, (_, errno))| *other != index && *errno != 0);
                others
                    .map(|(_, other)| other)
                    .try_for_each(|(other, errno)| write!(text, "; {other}: {}", Reason(errno)))
            }
            Failure::Lost(0) => text.write_str(": it hung up before the session was open"),
            Failure::Lost(errno) => {
                write!(text, ": the connection broke before the session was open: {}", Reason(*errno))
            }
            Failure::Unknown => {
                text.write_str(": a process that shared the connection was killed in the middle of the handshake")
            }
            Failure::Protocol(error) => write!(text, ": {error}"),
            Failure::Refused(code) => write!(text, ": {code}"),
            Failure::Challenged if config.settings.user.is_none() => text.write_str(
                " asks for authentication; PHOEBUS_USER may hold an e-mail address for it, and phoebus login keeps a password",
            ),
            Failure::Challenged => {
                text.write_str(" asks for authentication by something else than an address; phoebus login keeps a password")
            }
            Failure::Login(error) => write!(text, ": {error}"),
            Failure::Silent => text.write_str(" did not say in time whether the destination has connected"),
        }
    };
    let why = |text: &mut dyn Write| {
        why(text)?;
        let Some(end) = attempt.end else { return Ok(()) };
        let named = refused.and_then(|refused| refused.redirect).filter(|_| end != RedirectEnd::Failed);
        write!(text, "; {}", trail(attempt.plan.asked().all(), named, end))
    };
    if !direct && failure.is_unreachable() {
        once(config, false, why);
    } else if failure.is_gateways_own() {
        write_once(config, |line| {
            write!(line, "{destination}: ")?;
            why(line)?;
            write!(line, "; the program gets {}", text::name_of(failure.errno()))
        });
    }
    plain(config, &destination, (!direct).then(|| failure.errno()), why);
}

/// The last gateway that was asked.
fn asked<'a>(attempt: &'a Attempt, config: &'a Config) -> EndpointRef<'a> {
    attempt.plan.gateway().unwrap_or(config.gateway.as_ref())
}

/// Reports that the agent required for the first hop does not run.
pub(crate) fn no_agent(config: &Config, destination: SocketAddr) {
    let Some(first_hop) = config.settings.first_hop else { return };
    let why = |text: &mut dyn Write| {
        write!(text, "no agent carries the first hop to gateway {} by {first_hop} any more; ", config.gateway)?;
        write!(text, "phoebus run --first-hop {first_hop} starts one")
    };
    once(config, false, why);
    plain(config, &destination, Some(libc::ECONNREFUSED), why);
}

/// Reports that the settings leave a connection direct.
pub(crate) fn not_selected(config: &Config, destination: SocketAddr) {
    if !config.settings.verbose {
        return;
    }
    let ip = destination.ip().to_canonical();
    let own =
        is_loopback_or_link(ip) && !config.settings.only.as_ref().is_some_and(|only| only.matches_address(destination));
    let why = match (&config.settings.only, &config.settings.except) {
        (None, _) if own => "it is this host itself",
        (Some(_), _) if own => "it is this host itself, and PHOEBUS_ONLY (--only) has no range with it",
        (Some(_), None) => "PHOEBUS_ONLY (--only) does not name it",
        (None, _) => "PHOEBUS_EXCEPT (--except) names it",
        (Some(_), Some(_)) => "PHOEBUS_ONLY (--only) does not name it, or PHOEBUS_EXCEPT (--except) does",
    };
    sentence(format_args!("{destination}: direct: {why}"));
}

/// Reports that the kernel does not tell the state of a socket, so that it is unknown whether a session may use it.
pub(crate) fn state_unknown(config: &Config, destination: SocketAddr) {
    let why = |text: &mut dyn Write| text.write_str("the kernel does not tell the state of the socket (TCP_INFO)");
    once(config, false, why);
    plain(config, &destination, Some(libc::EOPNOTSUPP), why);
}

/// Reports that the gateway's name does not resolve.
pub(crate) fn unresolved(config: &Config, destination: SocketAddr, reason: &str) {
    let why = |text: &mut dyn Write| write!(text, "gateway {}: the name does not resolve: {reason}", config.gateway);
    once(config, config.settings.fallback, why);
    plain(config, &destination, (!config.settings.fallback).then(|| Code::NameNotFound.errno()), why);
}

/// Reports once, even without a request, why no session is possible: the program's error looks as if its own
/// destination were at fault. The socket may be locked, so this never waits for a reader.
fn once(config: &Config, direct: bool, why: impl Fn(&mut dyn Write) -> fmt::Result) {
    let outcome = if direct { "connections go direct" } else { "connections fail" };
    write_once(config, |text| {
        why(text)?;
        write!(text, "; {outcome}")
    });
}

/// Writes `what` to standard error, unless this process has already written such a report, or reports everything
/// anyway.
fn write_once(config: &Config, what: impl Fn(&mut dyn Write) -> fmt::Result) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !config.settings.verbose && !SAID.swap(true, Ordering::Relaxed) {
        sentence(fmt::from_fn(|text| what(text)));
    }
}

/// Writes a sentence to standard error, even without a request: for faults that make every connection of a program
/// fail, or go past the gateways. Nothing is written if that would block, or end the program by SIGPIPE.
pub(crate) fn sentence(sentence: impl fmt::Display) {
    if !sys::is_writable(libc::STDERR_FILENO) {
        return;
    }
    let mut room = [0; 1024];
    let mut line = Text::on(&mut room);
    let _ = writeln!(line, "phoebus: {sentence}");
    let _ = sys::write(libc::STDERR_FILENO, line.bytes());
}

/// Reports a direct connection over a path that is known to be short (S26).
pub(crate) fn bypassed(config: &Config, destination: SocketAddr, rtt: Duration) {
    let limit = Span(config.settings.bypass_rtt);
    write_report(
        config,
        |line| {
            let pid = sys::getpid();
            write!(line, "{{\"event\":\"direct\",\"session\":\"\",\"destination\":\"{destination}\",\"hops\":[],")?;
            write!(line, "\"rtt_us\":0,\"opened_in_us\":0,\"note\":\"direct: the path measured {}, ", Span(rtt))?;
            write!(line, "below {limit}\",\"pid\":{pid}}}")
        },
        |line| write!(line, "{destination}: direct: the path measured {}, below {limit}", Span(rtt)),
    );
}

/// The kernel's metrics of the first hop.
pub(crate) struct FirstHopMetrics {
    pub(crate) rtt_us: u64,
    send_buffer: u64,
    receive_buffer: u64,
    congestion_control: [u8; 16],
}

impl FirstHopMetrics {
    pub(crate) fn of(fd: c_int) -> Self {
        /// The position of `tcpi_rtt` in `struct tcp_info`.
        const RTT: usize = 68;
        let mut info = [0; RTT + 4];
        let known = sys::get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).is_ok_and(|len| len == info.len());
        let rtt = info.last_chunk().filter(|_| known).map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let size =
            |name| sys::get::<c_int>(fd, libc::SOL_SOCKET, name).and_then(|size| size.try_into().ok()).unwrap_or(0);
        let mut congestion_control = [0; 16];
        let _ = sys::get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &mut congestion_control);
        Self {
            rtt_us: rtt.into(),
            send_buffer: size(libc::SO_SNDBUF),
            receive_buffer: size(libc::SO_RCVBUF),
            congestion_control,
        }
    }

    fn congestion_control(&self) -> &str {
        let name = CStr::from_bytes_until_nul(&self.congestion_control).ok();
        name.and_then(|name| name.to_str().ok()).unwrap_or("")
    }
}

fn wanted(config: &Config) -> bool {
    config.settings.verbose || config.report.is_some()
}

/// A report with only a sentence: why there is no session, and the program's error unless the connection is direct.
fn plain(
    config: &Config,
    destination: &dyn fmt::Display,
    errno: Option<Errno>,
    sentence: impl Fn(&mut dyn Write) -> fmt::Result,
) {
    let direct = if errno.is_none() { "direct: " } else { "" };
    write_report(
        config,
        |line| {
            let event = if errno.is_none() { "direct" } else { "failed" };
            write!(line, "{{\"event\":\"{event}\",\"session\":\"\",\"destination\":\"{destination}\",\"hops\":[],")?;
            write!(line, "\"rtt_us\":0,\"opened_in_us\":0,\"note\":\"{direct}")?;
            sentence(&mut Escaped(line))?;
            write!(line, "\",\"errno\":{},\"pid\":{}}}", errno.unwrap_or(0), sys::getpid())
        },
        |line| {
            write!(line, "{destination}: {direct}")?;
            sentence(line)
        },
    );
}

/// Writes the report in each requested form.
fn write_report(config: &Config, json: impl Fn(&mut Text) -> fmt::Result, words: impl Fn(&mut Text) -> fmt::Result) {
    if !wanted(config) {
        return;
    }
    let Ok(room) = sys::map(LINE_MAX, false) else { return };
    // SAFETY: a mapping of this length, all zero, until it is given back below.
    let mut line = Text::on(unsafe { std::slice::from_raw_parts_mut(room, LINE_MAX) });
    if let Some(file) = &config.report {
        let _ = json(&mut line);
        // Half a line would spoil the file. No path with sensible names is that long.
        if !line.full {
            let _ = line.write_str("\n");
            append(file, line.bytes());
        }
    }
    if config.settings.verbose {
        line.len = 0;
        let _ = line.write_str("phoebus: ");
        let _ = words(&mut line);
        let _ = line.write_str("\n");
        let _ = sys::write(libc::STDERR_FILENO, line.bytes());
    }
    // SAFETY: mapped above; `line` is not used any more.
    unsafe { sys::unmap(room, LINE_MAX) };
}

/// A single write, so that lines of several programs do not mix. A program could do nothing about a report that cannot
/// be written.
fn append(file: &CStr, line: &[u8]) {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT;
    let opened = match sys::open(file, flags | libc::O_NOFOLLOW) {
        Err(libc::ELOOP) if is_own_link(file) => sys::open(file, flags),
        opened => opened,
    };
    if let Ok(fd) = opened {
        let _ = sys::write(fd, line);
        sys::close(fd);
    }
}

/// Whether this user or root has made the link `file`. In a directory where everyone can create names, another user's
/// link could direct the lines into a file of this user.
fn is_own_link(file: &CStr) -> bool {
    sys::open(file, libc::O_PATH | libc::O_NOFOLLOW).is_ok_and(|link| {
        let about = sys::owner_and_mode(link);
        sys::close(link);
        about.is_ok_and(|(owner, _)| owner == 0 || owner == sys::geteuid())
    })
}

fn write_hop(line: &mut Text, comma: &str, hop: &HopReport) -> fmt::Result {
    let texts = [
        ("from", hop.from),
        ("to", hop.to),
        ("transport", hop.transport),
        ("congestion_control", hop.congestion_control),
        ("security", hop.security),
        ("note", hop.note),
    ];
    write!(line, "{comma}{{")?;
    for (key, value) in texts {
        write!(line, "\"{key}\":\"")?;
        Escaped(line).write_str(value)?;
        line.write_str("\",")?;
    }
    let HopReport { rtt_us, send_buffer, receive_buffer, warm, rate, .. } = hop;
    let streams = hop.streams.max(1);
    write!(line, "\"rtt_us\":{rtt_us},\"send_buffer\":{send_buffer},")?;
    write!(line, "\"receive_buffer\":{receive_buffer},\"warm\":{warm},\"streams\":{streams},\"rate\":{rate}}}")
}
