//! HAProxy as a TCP relay: the peer that every gateway is compared with.
//!
//! It runs with its best settings: forced to splice both ways, because with `option splice-auto` it does not splice
//! these loads and then takes four times the processor time; with pipes as large as a gateway's; with a thread per
//! processor. It uses the congestion control of its host: version 2.6 has no setting for it.

use super::process::Background;
use anyhow::Context;
use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// The program.
pub(crate) const PROGRAM: &str = "haproxy";

/// Number of pipes: more than any experiment has bulk transfers at the same time.
pub(crate) const PIPES: usize = 256;
/// As large as a gateway's pipe.
const PIPE_BYTES: usize = 256 << 10;

/// One relay of a HAProxy process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Relay {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// Where it connects to.
    pub(crate) to: SocketAddr,
    /// Which of its two connections are under TLS.
    pub(crate) tls: Tls,
}

/// The connections of a relay that are under TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tls {
    /// None.
    Off,
    /// Those that it accepts, with the certificate and key in [`CERTIFICATE`].
    Accepted,
    /// Those that it makes, to the host of this name, whose authority is in [`AUTHORITY`].
    Made(&'static str),
}

/// In the configuration's directory: a certificate followed by its key.
pub(crate) const CERTIFICATE: &str = "haproxy.pem";
/// In the configuration's directory: the certificate of the authority.
pub(crate) const AUTHORITY: &str = "haproxy-authority.pem";

/// Starts HAProxy with `command`, with its configuration in `directory`.
pub(crate) fn start(
    mut command: Command,
    name: &str,
    directory: &Path,
    relays: &[Relay],
    sessions: usize,
) -> anyhow::Result<Background> {
    let file = directory.join(format!("{name}.cfg"));
    fs::write(&file, configuration(directory, relays, sessions))
        .with_context(|| format!("cannot write {}", file.display()))?;
    // In the foreground, without a master process.
    command.arg("-db").arg("-f").arg(&file);
    let mut haproxy = Background::start(name, command)?;
    for relay in relays {
        haproxy = haproxy.listening(relay.listen.port())?;
    }
    Ok(haproxy)
}

fn configuration(directory: &Path, relays: &[Relay], sessions: usize) -> String {
    let file = |name| directory.join(name).display().to_string();
    let mut text = format!(
        "global\n  maxconn {sessions}\n  maxpipes {PIPES}\n  tune.pipesize {PIPE_BYTES}\n\
         defaults\n  mode tcp\n  option splice-request\n  option splice-response\n  timeout connect 60s\n  timeout client 1h\n  timeout server 1h\n  \
         maxconn {sessions}\n  backlog 16384\n"
    );
    for (number, Relay { listen, to, tls }) in relays.iter().enumerate() {
        let (bind, server) = match tls {
            Tls::Off => (String::new(), String::new()),
            Tls::Accepted => (format!(" ssl crt {}", file(CERTIFICATE)), String::new()),
            Tls::Made(host) => {
                (String::new(), format!(" ssl verify required ca-file {} verifyhost {host}", file(AUTHORITY)))
            }
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "listen relay{number}\n  bind {listen}{bind}\n  server next {to}{server}\n");
    }
    text
}
