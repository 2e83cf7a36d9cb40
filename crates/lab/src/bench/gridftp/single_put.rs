//! One file to `phoebus serve` by `phoebus cp`, from the client's start to its end.

use super::super::process::{Background, spent};
use super::super::transfer::Client;
use super::hosts::{Hosts, PORT};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval of checks whether the client has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Which program loads a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loads {
    Client,
    Server,
}

/// A put.
#[derive(Debug)]
pub(super) struct SinglePut<'a> {
    pub(super) source: &'a Path,
    pub(super) target: &'a Path,
    /// The section `[data]` of the server's configuration.
    pub(super) data: String,
    /// Options of the client.
    pub(super) options: Vec<String>,
    /// A library for one of the two, by LD_PRELOAD.
    pub(super) library: Option<(Loads, PathBuf)>,
}

/// What it took, in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    pub(super) time: f64,
    /// Processor time.
    pub(super) client: f64,
    pub(super) server: f64,
}

impl SinglePut<'_> {
    /// Runs it within `limit`. The paths are those of the hosts' files, or of devices.
    pub(super) fn run(self, hosts: &Hosts, limit: Duration) -> anyhow::Result<Took> {
        let (config, listen) = (hosts.file("serve.toml")?, format!("{}:{PORT}", hosts.address()));
        let text =
            format!("listen = [\"{listen}\"]\n[anonymous]\nroot = \"/\"\nread_only = false\n[data]\n{}", self.data);
        fs::write(&config, text).context("no configuration for phoebus serve")?;
        let program = std::env::current_exe().context("where this program is")?;
        let mut server = hosts.at_server(&program)?;
        server.args(["serve", "--config"]).arg(config);
        let mut client = hosts.command(&program)?;
        client.args(["cp", "--quiet", "--attempts", "1", "--verify", "none"]).args(&self.options);
        client.arg(format!("file://{}", self.source.display()));
        client.arg(format!("ftp://{listen}{}", self.target.display()));
        if let Some((loads, library)) = &self.library {
            let program = if *loads == Loads::Client { &mut client } else { &mut server };
            program.env("LD_PRELOAD", library);
        }
        let server = Background::start("phoebus serve", server)?.listening(PORT)?;
        let before = spent(server.pid())?.0;
        let began = Instant::now();
        let mut client = Client::start(client, &hosts.file("client.log")?)?;
        let used = loop {
            match spent(client.pid())? {
                (used, true) => break used,
                _ if began.elapsed() > limit => bail!("the client did not end within {} s", limit.as_secs()),
                _ => std::thread::sleep(LOOK),
            }
        };
        let time = began.elapsed().as_secs_f64();
        client.wait_for_success()?;
        Ok(Took { time, client: used, server: spent(server.pid())?.0 - before })
    }
}
