//! Gateways on loopback: `phoebus gateway`, the program that users run. A testbed starts the gateways of a WAN.

use super::process::Background;
use anyhow::Context;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The configuration of an experiment's gateway.
#[derive(Debug, Clone)]
pub(crate) struct Gateway<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// The address on which it listens.
    pub(crate) listen: SocketAddr,
    /// The name and address of the gateway that it keeps connections to.
    pub(crate) peer: Option<(&'a str, SocketAddr)>,
    /// Congestion control of everything that it sends.
    pub(crate) congestion_control: &'a str,
    /// Further lines of its configuration file.
    pub(crate) more: &'a str,
}

/// A line for each session, as in operation: the cost of logging is part of the measurement.
const LOG: &str = "info";

impl Gateway<'_> {
    /// Starts the gateway with `command`, which must run [`program`], with its configuration in `directory`.
    pub(crate) fn start(&self, mut command: Command, directory: &Path) -> anyhow::Result<Background> {
        let file = directory.join(format!("{}.toml", self.name));
        fs::write(&file, self.configuration()).with_context(|| format!("cannot write {}", file.display()))?;
        command.args(["gateway", "--config"]).arg(&file);
        Background::start(&format!("the gateway {}", self.name), command)?.listening(self.listen.port())
    }

    /// Open to everybody: it runs in a namespace that ends with the experiment.
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

/// The path of this program.
pub(crate) fn program() -> PathBuf {
    // The file may have been replaced since; the link still leads to the running program.
    PathBuf::from("/proc/self/exe")
}
