//! `phoebus serve --inetd`: a server for one session over standard input and output, as the user who started it: SSH
//! has authenticated that user, who could use the files without the server.

use crate::exit::Exit;
use crate::standard;
use anyhow::{Context, Result};
use phoebus_gridftp::server::config::Trusted;
use phoebus_gridftp::server::{Config, Server, StartError};
use phoebus_net::pair::Pair;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

/// The two ends of the connection that SSH came by: the client's address and port, and this host's.
const SSH_CONNECTION: &str = "SSH_CONNECTION";

pub(super) fn run(root: PathBuf, read_only: bool) -> Result<ExitCode> {
    standard::check_input()?;
    standard::check_output()?;
    let root = std::fs::canonicalize(&root)
        .map_err(|error| Exit::usage(format!("--root {}: {}", root.display(), phoebus_client::reason(&error))))?;
    let uid = rustix::process::getuid().as_raw();
    let name = std::env::var("USER").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| uid.to_string());
    let home = std::env::current_dir().unwrap_or_else(|_| root.clone());
    let trusted = Some(Trusted { name, root, home, read_only });
    let runtime = crate::runtime::multi_thread();
    let runtime = runtime.context("cannot start the server's threads")?;
    let said = runtime.block_on(async {
        let started = Server::start_with(Config { trusted, ..Config::default() }, Some(Arc::new(super::Through)));
        let server = started.map_err(|error| match error {
            StartError::Config(error) => Exit::usage(error),
            StartError::Listen(error) => error.into(),
        })?;
        let (pair, other) = Pair::new().context("cannot make a pair of sockets")?;
        let said = carry(other.into()).context("cannot use standard input and output")?;
        let stream = pair.into_stream(ends(std::env::var(SSH_CONNECTION).ok().as_deref()), ());
        server.serve_one(stream).await?;
        anyhow::Ok(said)
    })?;
    runtime.shutdown_background();
    // All output is delivered, or nobody reads it.
    let _ = said.join();
    Ok(ExitCode::SUCCESS)
}

/// This host's address and the client's, as SSH tells them. Without them both are on this host.
fn ends(ssh: Option<&str>) -> (SocketAddr, SocketAddr) {
    let words: Vec<&str> = ssh.unwrap_or_default().split(' ').collect();
    let parsed = |address: &str, port: &str| Some(SocketAddr::new(address.parse::<IpAddr>().ok()?, port.parse().ok()?));
    let known = || match words[..] {
        [client, from, server, to] => Some((parsed(server, to)?, parsed(client, from)?)),
        _ => None,
    };
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    known().unwrap_or((here, here))
}

/// Carries bytes between standard input and output, which may be anything, and `other`; gives the thread that writes.
pub(super) fn carry(other: UnixStream) -> io::Result<thread::JoinHandle<()>> {
    let file = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from);
    let (mut input, mut output) = (file(io::stdin().as_fd())?, file(io::stdout().as_fd())?);
    let (mut heard, mut spoken) = (other.try_clone()?, other);
    thread::spawn(move || {
        // In any case this is the end of the client's input.
        let _ = copy(&mut input, &mut heard);
        let _ = heard.shutdown(Shutdown::Write);
    });
    Ok(thread::spawn(move || {
        let _ = copy(&mut spoken, &mut output);
    }))
}

/// Copies data as it comes. The library's copy may make the kernel wait for more (`splice`).
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut room = vec![0; 64 << 10];
    loop {
        match from.read(&mut room) {
            Ok(0) => return Ok(()),
            Ok(len) => to.write_all(&room[..len])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_from_ssh_connection() {
        let (local, peer) = ends(Some("192.0.2.1 50000 2001:db8::1 22"));
        assert_eq!((local.to_string().as_str(), peer.to_string().as_str()), ("[2001:db8::1]:22", "192.0.2.1:50000"));
        for text in [None, Some(""), Some("a b c d"), Some("192.0.2.1 1 192.0.2.2")] {
            assert_eq!(ends(text).0.to_string(), "127.0.0.1:0", "{text:?}");
        }
    }
}
