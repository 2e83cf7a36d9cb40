//! One complete transfer over a path, with set-up and transfer timed separately (R8).

use super::super::process::spent;
use super::super::results::{Metric, Reading};
use super::super::transfer::{Client, Receiver, SET_UP};
use super::carried;
use super::hosts::{LINK, PORT, RunningServer, Server};
use super::site::Site;
use anyhow::{Context, bail};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// From the arrival of the first data byte to the end of the client.
pub(super) const TOOK: Metric = Metric { name: "transfer", unit: "s" };
/// The same as a rate.
pub(super) const RATE: Metric = Metric { name: "rate", unit: "Mbit/s" };
/// Processor time of the client.
pub(super) const CLIENT: Metric = Metric { name: "client cpu", unit: "s/GB" };

/// Interval of checks whether data has arrived, or a program has ended.
const LOOK: Duration = Duration::from_millis(2);

/// A transfer in MODE E.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    /// Whether it goes to the server.
    pub(super) is_put: bool,
    /// From a file to a file, instead of /dev/zero to /dev/null.
    pub(super) disk: bool,
    pub(super) bytes: u64,
    pub(super) streams: u32,
    /// With a login by certificate, which also authenticates the data connections; otherwise anonymous.
    pub(super) by_certificate: bool,
    /// The socket buffer to request, if the kernel does not choose; only for GCT.
    pub(super) buffer: Option<u64>,
}

impl Transfer {
    /// Runs the transfer once, with a client and a server of the same kind.
    pub(super) fn run(&self, site: &Site, kind: Server, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let hosts = &site.hosts;
        let server = match self.by_certificate {
            true => RunningServer::new(carried::server(hosts, &site.grid, kind == Server::Gct, &[], 0)?, kind),
            false => hosts.server(kind)?,
        };
        let (source, target) = match self.disk {
            true => (hosts.file("source")?.display().to_string(), hosts.file("target")?.display().to_string()),
            false => ("/dev/zero".to_owned(), "/dev/null".to_owned()),
        };
        if self.disk {
            let _ = fs::remove_file(&target);
        }
        let near = |path| format!("file://{path}");
        let far = |path: &str| match self.by_certificate {
            true => format!("gsiftp://{}:{PORT}{path}", hosts.server_of(0).0),
            false => hosts.url(kind, path),
        };
        let ends = if self.is_put { [near(&source), far(&target)] } else { [far(&source), near(&target)] };
        let (length, streams) = (self.bytes.to_string(), self.streams.to_string());
        let mut client = match kind {
            Server::Ours => {
                let mut client = hosts.phoebus()?;
                client.args(["cp", "--quiet", "--verify", "none", "--attempts", "1", "--streams", &streams]);
                if !self.disk {
                    client.args(["--length", &length]);
                }
                client
            }
            _ => {
                let mut client = hosts.command("globus-url-copy")?;
                client.args(["-p", &streams]);
                if !self.disk {
                    client.args(["-len", &length]);
                }
                if let Some(buffer) = self.buffer {
                    client.args(["-tcp-bs", &buffer.to_string()]);
                }
                client
            }
        };
        client.args(ends);
        if self.by_certificate {
            site.grid.as_user(&mut client);
        }
        let arriving = |of| Receiver::Interface { of, device: LINK, name: None };
        let began = Instant::now();
        let mut client = Client::start(client, &hosts.file("client.log")?)?;
        let receiver = arriving(if self.is_put { server.process.pid() } else { client.pid() });
        let before = receiver.written();
        let mut first = None;
        let used = loop {
            if first.is_none() && receiver.has_data(before) {
                first = Some(Instant::now());
            }
            match spent(client.pid())? {
                (used, true) => break used,
                _ if began.elapsed() > limit => bail!("the client did not end within {} s", limit.as_secs()),
                _ => std::thread::sleep(LOOK),
            }
        };
        let end = Instant::now();
        client.wait_for_success()?;
        let first = first.context("no data was seen")?;
        let took = end.duration_since(first).as_secs_f64();
        server.receiver().end();
        Ok(vec![
            (RATE, self.bytes as f64 * 8e-6 / took),
            (TOOK, took),
            (SET_UP, first.duration_since(began).as_secs_f64()),
            (CLIENT, used / (self.bytes as f64 / 1e9)),
        ])
    }
}

/// Writes `bytes` bytes that cannot be compressed or left out.
pub(super) fn fill(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let mut block = Vec::new();
    fs::File::open("/dev/urandom")?.take(1_000_000).read_to_end(&mut block)?;
    let mut file = fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut left = bytes;
    while left > 0 {
        block[..8].copy_from_slice(&left.to_le_bytes());
        // No longer than the block.
        let len = left.min(block.len() as u64);
        file.write_all(&block[..len as usize])?;
        left -= len;
    }
    Ok(file.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_writes_the_requested_length() {
        let hosts = tempfile::tempdir().unwrap();
        fill(&hosts.path().join("x"), 2_500_001).unwrap();
        assert_eq!(fs::metadata(hosts.path().join("x")).unwrap().len(), 2_500_001);
    }
}
