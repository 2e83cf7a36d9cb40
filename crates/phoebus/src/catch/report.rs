//! Reports of caught connections: the lines and sentences of the preload library, and by what they were caught.

use super::address;
use super::shared::Shared;
use phoebus_client::{Error, Report};
use phoebus_config::first_hop::FirstHop;
use phoebus_config::settings::is_loopback_or_link;
use phoebus_proto::session::Code;
use phoebus_proto::units::Span;
use phoebus_seccomp::{Call, Caller};
use rustix::io::Errno;
use rustix::net::AddressFamily;
use serde::Serialize;
use std::fmt::Display;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A line of the report file.
#[derive(Serialize)]
struct Line<'a> {
    event: &'static str,
    #[serde(flatten)]
    report: &'a Report,
    /// The error that the program gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
    pid: i32,
    /// What has caught the connection.
    caught_by: &'static str,
}

/// Reports an open session.
pub(super) fn opened(shared: &Shared, pid: i32, report: &Report) {
    write(shared, &Line { event: "opened", report, errno: None, pid, caught_by: "seccomp" });
    if shared.settings.verbose {
        say(format_args!("{report}"));
    }
}

/// Reports that a connection is direct although it was selected.
pub(super) fn direct(shared: &Shared, pid: i32, report: Option<&mut Report>) {
    let Some(report) = report else { return };
    report.hops.clear();
    write(shared, &Line { event: "direct", report, errno: Some(0), pid, caught_by: "seccomp" });
    if shared.settings.verbose {
        say(format_args!("{}: {}", report.destination, report.note));
    }
}

/// Reports that there is no session. Without a request, it says so once, if a direct connection cannot fail like this.
pub(super) fn failed(shared: &Shared, pid: i32, destination: SocketAddr, error: &Error) {
    let note = error.to_string();
    plain(shared, pid, destination, error.errno(), note.clone());
    if shared.settings.verbose {
        say(format_args!("{destination}: {note}"));
    } else if is_of_gateways(error) {
        once(shared, format_args!("{destination}: {note}"));
    }
}

/// Reports that the kernel does not tell the state of a socket, so that it is unknown whether a session may use it.
pub(super) fn state_unknown(shared: &Shared, pid: i32, destination: SocketAddr) {
    let note = "the kernel does not tell the state of the socket (TCP_INFO)";
    plain(shared, pid, destination, Errno::OPNOTSUPP.raw_os_error(), note.to_owned());
    once(shared, format_args!("{destination}: {note}"));
}

/// Reports that a caller was not kept waiting any longer.
pub(super) fn too_slow(shared: &Shared, caller: &Caller, address: &[u8], domain: AddressFamily, limit: Duration) {
    let Some(destination) = address::parse(address, domain) else { return };
    let note = format!(
        "the path did not say within {}, the longest wait of this socket, whether the destination has connected",
        Span(limit)
    );
    plain(shared, caller.process(), destination, Errno::TIMEDOUT.raw_os_error(), note.clone());
    once(shared, format_args!("{destination}: {note}"));
}

/// Reports that names decide about a connection, and could not be looked up.
pub(super) fn undecided(shared: &Shared, pid: i32, destination: SocketAddr, names: &[String]) {
    let names = names.join(", ");
    let note = format!("PHOEBUS_ONLY (--only) names {names}, whose addresses cannot be looked up; the connect fails");
    plain(shared, pid, destination, Errno::HOSTUNREACH.raw_os_error(), note.clone());
    once(shared, format_args!("{destination}: {note}"));
}

/// Reports that exceptions cannot be looked up.
pub(super) fn exceptions_unknown(shared: &Shared, names: &[String]) {
    let names = names.join(", ");
    once(shared, format_args!("PHOEBUS_EXCEPT (--except) names {names}, whose addresses cannot be looked up"));
}

/// Reports that this process has no room for another connect.
pub(super) fn exhausted(shared: &Shared, errno: Errno) {
    let reason = phoebus_client::reason(&errno.into());
    once(shared, format_args!("the process that catches connections has no room for more ({reason}); connects fail"));
}

/// Reports that a socket belongs to another network namespace, where another program may have the agent's address.
/// Nothing is shown to it. `demanded`: the first hop that only an agent provides.
pub(super) fn beyond_agents(shared: &Shared, pid: i32, destination: SocketAddr, demanded: Option<FirstHop>) {
    let note = "the socket belongs to another network namespace than the agent";
    match demanded {
        Some(first_hop) => {
            let note = format!("{note}, which alone carries the first hop by {first_hop}");
            plain(shared, pid, destination, Errno::NETUNREACH.raw_os_error(), note.clone());
            once(shared, format_args!("{destination}: {note}"));
        }
        None => once(shared, format_args!("{destination}: {note}; no agent carries the first hop")),
    }
}

/// Reports that the settings leave a connection direct.
pub(super) fn not_selected(shared: &Shared, destination: SocketAddr) {
    let settings = &shared.settings;
    if !settings.verbose {
        return;
    }
    let ip = destination.ip().to_canonical();
    let own = is_loopback_or_link(ip) && !settings.only.as_ref().is_some_and(|only| only.matches_address(destination));
    let why = match (&settings.only, &settings.except) {
        (None, _) if own => "it is this host itself",
        (Some(_), _) if own => "it is this host itself, and PHOEBUS_ONLY (--only) has no range with it",
        (Some(_), None) => "PHOEBUS_ONLY (--only) does not name it",
        (None, _) => "PHOEBUS_EXCEPT (--except) names it",
        (Some(_), Some(_)) => "PHOEBUS_ONLY (--only) does not name it, or PHOEBUS_EXCEPT (--except) does",
    };
    say(format_args!("{destination}: direct: {why}"));
}

/// Reports a process whose sockets this one may not have.
pub(super) fn out_of_reach(shared: &Shared, call: &Call) {
    let which = call.thread.map_or_else(|| "of another namespace".to_owned(), |thread| thread.to_string());
    once(shared, format_args!("process {which} does not let others have its sockets; its connects fail with EACCES"));
}

/// Whether a direct connection cannot fail like this.
fn is_of_gateways(error: &Error) -> bool {
    let code = match error {
        Error::Redirected { last, .. } => return is_of_gateways(last),
        Error::Timeout { .. } => return false,
        Error::Refused { code, .. } => *code,
        _ => return true,
    };
    // Codes from here on are about the connection to the destination.
    code.number() < Code::Refused.number() && code != Code::HandshakeTimeout
}

fn plain(shared: &Shared, pid: i32, destination: SocketAddr, errno: i32, note: String) {
    let report = Report { destination: destination.to_string(), note, ..Report::default() };
    write(shared, &Line { event: "failed", report: &report, errno: Some(errno), pid, caught_by: "seccomp" });
}

fn once(shared: &Shared, sentence: impl Display) {
    if shared.settings.verbose || !shared.told.swap(true, Ordering::Relaxed) {
        say(sentence);
    }
}

fn say(sentence: impl Display) {
    // One write, so that lines of several processes do not mix. It may go nowhere.
    let _ = std::io::stderr().write_all(format!("phoebus: {sentence}\n").as_bytes());
}

/// Appends a line, if one is wanted. Nobody could do anything about one that cannot be written.
fn write(shared: &Shared, line: &Line) {
    let Some(file) = &shared.settings.report else { return };
    if let (Ok(text), Ok(mut file)) = (serde_json::to_string(line), phoebus_files::append_to(file)) {
        let _ = file.write_all(format!("{text}\n").as_bytes());
    }
}
