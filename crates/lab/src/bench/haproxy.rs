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

/// Starts HAProxy with `command`, with its configuration in `directory`, relaying from each first address to the
/// second.
pub(crate) fn start(
    mut command: Command,
    name: &str,
    directory: &Path,
    relays: &[(SocketAddr, SocketAddr)],
    sessions: usize,
) -> anyhow::Result<Background> {
    let file = directory.join(format!("{name}.cfg"));
    fs::write(&file, configuration(relays, sessions)).with_context(|| format!("cannot write {}", file.display()))?;
    // In the foreground, without a master process.
    command.arg("-db").arg("-f").arg(&file);
    let mut haproxy = Background::start(name, command)?;
    for (listen, _) in relays {
        haproxy = haproxy.listening(listen.port())?;
    }
    Ok(haproxy)
}

fn configuration(relays: &[(SocketAddr, SocketAddr)], sessions: usize) -> String {
    let mut text = format!(
        "global\n  maxconn {sessions}\n  maxpipes {PIPES}\n  tune.pipesize {PIPE_BYTES}\n\
         defaults\n  mode tcp\n  option splice-request\n  option splice-response\n  timeout connect 60s\n  timeout client 1h\n  timeout server 1h\n  \
         maxconn {sessions}\n  backlog 16384\n"
    );
    for (number, (listen, to)) in relays.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(text, "listen relay{number}\n  bind {listen}\n  server next {to}\n");
    }
    text
}
