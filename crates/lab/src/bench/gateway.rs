//! Gateways on loopback: `phoebus gateway`, the program that users run. Those on a WAN are started by its testbed.

use super::process::Background;
use anyhow::Context;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a gateway of an experiment is told.
#[derive(Debug, Clone)]
pub(crate) struct Gateway<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// The gateway that it keeps connections to, with its name.
    pub(crate) peer: Option<(&'a str, SocketAddr)>,
    /// Congestion control of all that it sends.
    pub(crate) congestion_control: &'a str,
    /// Further lines of its file.
    pub(crate) more: &'a str,
}

/// A line for each session, as in operation: what that costs belongs to what is measured.
const LOG: &str = "info";

impl Gateway<'_> {
    /// Starts it by `command`, which is to run [`program`], with its configuration in `directory`.
    pub(crate) fn start(&self, mut command: Command, directory: &Path) -> anyhow::Result<Background> {
        let file = directory.join(format!("{}.toml", self.name));
        fs::write(&file, self.configuration()).with_context(|| format!("cannot write {}", file.display()))?;
        command.args(["gateway", "--config"]).arg(&file);
        Background::start(&format!("the gateway {}", self.name), command)?.listening(self.listen.port())
    }

    /// Open to whoever reaches it: it runs in a namespace that ends with the experiment.
    fn configuration(&self) -> String {
        let Self { name, listen, peer, congestion_control, more } = self;
        let mut text = format!(
            "name = \"{name}\"\n\
             [profile.default]\ncongestion_control = \"{congestion_control}\"\n\
             [log]\nlevel = \"{LOG}\"\n\
             [[listen]]\naddress = \"{listen}\"\n\
             [[allow]]\nfrom = [\"0.0.0.0/0\"]\nto = [\"0.0.0.0/0\", \"127.0.0.0/8\"]\n{more}"
        );
        if let Some((peer, address)) = peer {
            text += &format!("[[peer]]\nname = \"{peer}\"\naddress = \"{address}\"\nsecurity = \"none\"\n");
        }
        text
    }
}

/// This very program.
pub(crate) fn program() -> PathBuf {
    // The file may have been replaced since; the link still leads to what runs.
    PathBuf::from("/proc/self/exe")
}
