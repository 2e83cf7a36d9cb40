//! `phoebus serve --inetd --data`: relays bytes between standard input and output, which SSH carries, and the server
//! that another login of the user has started (`docs/protocol/gridftp.md`, "Data inside SSH"). It reads only the
//! server's name; the server checks the client's ticket.

use super::inetd::carry;
use crate::standard;
use anyhow::{Context, Result};
use phoebus_gridftp::server::socket_of;
use phoebus_proto::gridftp::inside::{Frame, GREETING, Ticket};
use rustix::net::sockopt::socket_peercred;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

/// How long the line is that names the server, its end included.
const NAME: usize = 33;

/// How a command ends that asks for this.
const ASKED: &str = " serve --inetd --data";

/// Whether the command that SSH was to run, where its user has been given another (`command=` in `authorized_keys`),
/// asks for data.
pub(super) fn is_asked_for(command: Option<&str>) -> bool {
    command.is_some_and(|command| command.trim_end().ends_with(ASKED))
}

pub(super) fn run() -> Result<ExitCode> {
    standard::check_input()?;
    standard::check_output()?;
    let mut output = io::stdout();
    output.write_all(GREETING).and_then(|()| output.flush()).context("cannot write to standard output")?;
    let mut name = [0; NAME];
    // Reads not a byte more: the rest is for the server.
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    input.read_exact(&mut name).context("cannot read the server's name on standard input")?;
    let Some(server) = connected(&name) else {
        output.write_all(&Frame::Refused.encode()).and_then(|()| output.flush())?;
        anyhow::bail!(
            "no server of this user has the name that standard input says; data is for a server on the same host"
        );
    };
    let said = carry(server).context("cannot use standard input and output")?;
    // Its end is the server's.
    let _ = said.join();
    Ok(ExitCode::SUCCESS)
}

/// A connection to the server of that name, if it is one of this user's.
fn connected(line: &[u8; NAME]) -> Option<UnixStream> {
    let name = Ticket::parse_name(str::from_utf8(line).ok()?.strip_suffix('\n')?)?;
    let server = UnixStream::connect_addr(&socket_of(&name).ok()?).ok()?;
    let owner = socket_peercred(&server).ok()?;
    (owner.uid == rustix::process::getuid()).then_some(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forced_command_recognizes_requests_for_data() {
        assert!(is_asked_for(Some("phoebus serve --inetd --data")));
        assert!(is_asked_for(Some("/opt/bin/phoebus serve --inetd --data\n")));
        for other in [None, Some(""), Some("phoebus serve --inetd"), Some("phoebus serve --inetd --data --root /")] {
            assert!(!is_asked_for(other), "{other:?}");
        }
        assert!(connected(&[b'a'; NAME]).is_none());
    }
}
