//! `phoebus status`: the state of a gateway on this machine, from its administration socket.

use anyhow::{Context, Result, anyhow, bail};
use phoebus_gateway::{AccountStatus, AuditStatus, PoolStatus, SessionStatus, Status};
use phoebus_proto::session::Code;
use phoebus_proto::units::Span;
use serde::Deserialize;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Names the administration socket of the gateway that is asked; a testbed sets it in its hosts.
const ADMIN_SOCKET: &str = "PHOEBUS_ADMIN_SOCKET";
/// How long the gateway may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer that is read: of a hundred thousand sessions and more.
const ANSWER_MAX: u64 = 256 << 20;

/// Accounts with limits that are shown to people: those with most sessions.
const ACCOUNTS_SHOWN: usize = 10;

/// Show what a gateway on this machine is doing: sessions with their hops and rates, totals, connections to peers
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 shown, and with --explain answered, whatever the decision is; 1 the gateway cannot be asked, or not that;
2 wrong options.

Example:
  phoebus status --gateway /run/phoebus/gateway.sock --json | jq .totals
")]
pub(crate) struct Args {
    /// The gateway's administration socket (admin.socket in its configuration)
    #[arg(long, value_name = "SOCKET", env = ADMIN_SOCKET, default_value = "/run/phoebus/gateway.sock")]
    gateway: PathBuf,
    /// Say instead what would become of a session there: 'user=ada from=192.0.2.7 to=host:22'. Further keys: group, method,
    /// certificate, peer, origin, listener, transport, security
    #[arg(long, value_name = "SESSION")]
    explain: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let asking = || format!("cannot ask the gateway at {}", args.gateway.display());
    if let Some(session) = &args.explain {
        let question = serde_json::json!({ "command": "explain", "session": session });
        let explanation = ask(&args.gateway, &question).with_context(asking)?;
        crate::gateway::explain::show(&explanation, None, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let status: Status = ask(&args.gateway, &serde_json::json!({ "command": "status" })).with_context(asking)?;
    let text = if args.json { serde_json::to_string_pretty(&status)? + "\n" } else { describe(&status) };
    crate::standard::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn ask<T: serde::de::DeserializeOwned>(socket: &Path, question: &serde_json::Value) -> Result<T> {
    let mut stream = UnixStream::connect(socket).map_err(|error| anyhow!(unreachable(&error)))?;
    let unanswered = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => anyhow!("it did not answer within {}", Span(PATIENCE)),
        _ => anyhow!("{}", phoebus_client::reason(&error)),
    };
    stream.set_read_timeout(Some(PATIENCE)).map_err(unanswered)?;
    stream.write_all(format!("{question}\n").as_bytes()).map_err(unanswered)?;
    let mut line = Vec::new();
    BufReader::new(stream).take(ANSWER_MAX).read_until(b'\n', &mut line).map_err(unanswered)?;
    if line.is_empty() {
        bail!("it closed the connection");
    }
    serde_json::from_slice(&line).map_err(|error| match serde_json::from_slice(&line) {
        Ok(Complaint { error }) => anyhow!("it says: {error}"),
        Err(_) => anyhow!("it does not answer as a gateway does: {error}"),
    })
}

/// A gateway's reply to an unknown request.
#[derive(Deserialize)]
struct Complaint {
    error: String,
}

fn unreachable(error: &io::Error) -> String {
    const EXPECTED: &str = "expected a gateway that runs and has this as `socket` in the `[admin]` of its configuration; --gateway SOCKET names another";
    match error.kind() {
        io::ErrorKind::NotFound => format!("there is no such file; {EXPECTED}"),
        io::ErrorKind::ConnectionRefused => format!("nobody listens there; {EXPECTED}"),
        io::ErrorKind::InvalidInput => "the name is too long for a socket; expected at most 107 bytes".to_owned(),
        _ => phoebus_client::reason(error),
    }
}

fn describe(status: &Status) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "gateway {} (version {}, process {}), up {}{}\nsessions: {} of {} open, {} handshakes\n",
        status.name,
        status.version,
        status.pid,
        duration(status.uptime_s),
        if status.draining { ", draining" } else { "" },
        status.sessions.len(),
        status.sessions_max,
        status.handshakes,
    );
    status.sessions.iter().for_each(|session| describe_session(session, &mut text));
    let totals = &status.totals;
    let _ = write!(
        text,
        "since the start: {} connections; {} sessions opened, {} ended, {} failed; {} up, {} down\n\
         handshakes that failed: {}, turned away: {}\n",
        totals.connections,
        totals.sessions_opened,
        totals.sessions_clean,
        totals.sessions_failed,
        bytes(totals.bytes_up),
        bytes(totals.bytes_down),
        totals.handshakes_failed,
        totals.handshakes_shed,
    );
    for (code, count) in &totals.refusals {
        let _ = writeln!(text, "refused {count} times: {} (code {code})", Code::from_number(*code));
    }
    if let Some(certificate) = &status.certificate {
        let _ = writeln!(text, "certificate for {}, until {}", certificate.names.join(", "), certificate.expires);
        if let Some(warning) = &certificate.warning {
            let _ = writeln!(text, "  {warning}");
        }
    }
    for AccountStatus { account, sessions, memory } in status.accounts.iter().take(ACCOUNTS_SHOWN) {
        let memory = if *memory > 0 { format!(", {} of memory", bytes(*memory)) } else { String::new() };
        let _ = writeln!(text, "{account}: {sessions} sessions{memory}");
    }
    if let Some(more @ 1..) = status.accounts.len().checked_sub(ACCOUNTS_SHOWN) {
        let _ = writeln!(text, "{more} more accounts with limits have sessions");
    }
    if let Some(AuditStatus { file, written, lost, failing }) = &status.audit {
        let why = failing.as_ref().map(|why| format!("; it loses lines now: {why}")).unwrap_or_default();
        let _ = writeln!(text, "audit {}: {written} lines written, {lost} lost{why}", file.display());
    }
    status.pools.iter().for_each(|pool| describe_pool(pool, &mut text));
    text
}

fn describe_session(session: &SessionStatus, text: &mut String) {
    let known = &session.principal.text;
    let who = if known.is_empty() { String::new() } else { format!(" ({known})") };
    let via = match &*session.entry {
        "" | "session" => String::new(),
        entry => format!(" via {entry}"),
    };
    let _ = writeln!(
        text,
        "  {}{who}{via} → {}: {} old; up {} at {}, down {} at {}",
        session.origin,
        session.destination,
        duration(session.age_s),
        bytes(session.bytes_up),
        rate(session.bits_per_s_up),
        bytes(session.bytes_down),
        rate(session.bits_per_s_down),
    );
    if let Some([up, down]) = session.datagrams {
        let _ = writeln!(
            text,
            "    datagrams: {} up, {} dropped; {} down, {} dropped",
            up.relayed, up.dropped, down.relayed, down.dropped
        );
    }
    for hop in &session.hops {
        let _ = match &hop.stats {
            Some(stats) => writeln!(
                text,
                "    {}: {}{}{} {}, rtt {:.1} ms, {} retransmits, window {} segments, buffers {} out {} in",
                hop.to,
                hop.transport,
                if hop.streams > 1 { format!("*{}", hop.streams) } else { String::new() },
                security(&hop.security),
                stats.congestion_control,
                stats.rtt_us as f64 / 1e3,
                stats.retransmits,
                stats.congestion_window,
                bytes(stats.send_buffer),
                bytes(stats.receive_buffer),
            ),
            None => writeln!(text, "    {}: ending", hop.to),
        };
    }
}

/// The protection of a hop, if any.
fn security(name: &str) -> String {
    if name == "none" { String::new() } else { format!(" ({name})") }
}

fn describe_pool(pool: &PoolStatus, text: &mut String) {
    let _ = writeln!(
        text,
        "peer {} at {} by {}{}: {} connections ready, rtt {:.1} ms; {} dialled, {} reused, {} found dead, \
         {} attempts failed",
        pool.peer,
        pool.address,
        pool.transport,
        security(&pool.security),
        pool.idle,
        pool.rtt_us as f64 / 1e3,
        pool.dialled,
        pool.reused,
        pool.stale,
        pool.failed,
    );
    let segment = &pool.segment;
    if let Some(age) = segment.age_s {
        let loss = segment.loss.map(|loss| format!(", loss {:.3} %", loss * 100.0)).unwrap_or_default();
        let best = segment.bits_per_s.map(|bits| format!(", up to {}", rate(bits))).unwrap_or_default();
        let rtt = segment.rtt_us as f64 / 1e3;
        let _ = writeln!(text, "  segment: rtt {rtt:.1} ms{loss}{best}; last measured {} ago", duration(age));
    }
    let Some(choice) = &pool.choice else { return };
    let _ = writeln!(
        text,
        "  chosen {} ago by rule \"{}\", because {}; congestion control {}, {} streams",
        duration(choice.since_s),
        choice.rule,
        choice.because,
        choice.congestion_control,
        choice.streams,
    );
    for (transport, why) in &choice.failed {
        let _ = writeln!(text, "  {transport} was not available: {why}");
    }
}

fn duration(seconds: f64) -> String {
    match seconds as u64 {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min {} s", s / 60, s % 60),
        s => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

fn bytes(n: u64) -> String {
    scaled(n as f64, &["B", "kB", "MB", "GB", "TB"])
}

fn rate(bits_per_s: f64) -> String {
    scaled(bits_per_s, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s"])
}

fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} {}", units[unit]) } else { format!("{value:.1} {}", units[unit]) }
}
