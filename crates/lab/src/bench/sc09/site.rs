//! A path for each way between the gateways, and what GCT's programs need on it: the driver, Grid security, congestion control at the
//! ends.

use super::rows::{Ends, Row, Way};
use crate::bench::bed::{self, Bed};
use crate::bench::process;
use anyhow::{Context, bail};
use phoebus_wan::testbed::Sc09;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// No setting and no certificate takes as long.
const SETTING: Duration = Duration::from_secs(60);
/// The driver's file.
const DRIVER: &str = "libglobus_xio_phoebus_driver.so";
/// Where Debian has servers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Paths under the same circumstances, each made when a row first needs it.
pub(crate) struct Sites {
    settings: Sc09,
    beds: BTreeMap<String, Bed>,
    grid: Grid,
}

/// What GCT's programs need beside the path: libraries and certificates, in a directory that ends with this.
pub(in crate::bench) struct Grid {
    directory: tempfile::TempDir,
}

impl Sites {
    /// No path yet, under these circumstances.
    pub(super) fn new(settings: Sc09) -> anyhow::Result<Self> {
        Ok(Self { settings, beds: BTreeMap::new(), grid: Grid::create()? })
    }

    /// The path of `row`, with the ends set up for it.
    pub(super) fn of(&mut self, row: &Row, security: crate::testbed::Security) -> anyhow::Result<(&mut Bed, &Grid)> {
        let wan = row.wan(security);
        let name = wan.as_ref().map_or("direct", |wan| &wan.name).to_owned();
        if !self.beds.contains_key(&name) {
            let bed = match wan {
                None => Bed::bare(&self.settings)?,
                Some(wan) => Bed::joined(&self.settings, wan)?,
            };
            self.beds.insert(name.clone(), bed);
        }
        let Some(bed) = self.beds.get_mut(&name) else { bail!("there is no path {name}") };
        for end in ["src", "dst"] {
            set_control(bed, end, row.ends)?;
        }
        Ok((bed, &self.grid))
    }

    /// Any path that stands.
    pub(super) fn any(&self) -> Option<&Bed> {
        self.beds.values().next()
    }
}

/// Gives all routes of a host this congestion control: the default of a network namespace can be only what the machine allows all
/// users, and a testbed changes no machine.
fn set_control(bed: &Bed, host: &str, ends: Ends) -> anyhow::Result<()> {
    let script = format!(
        "ip -4 route show | sed 's/ congctl.*//' | while read -r route; do ip route replace $route {} || exit 1; done",
        ends.congctl()
    );
    let mut command = bed.command(host, "sh")?;
    command.args(["-c", &script]).env("PATH", PATH);
    process::run("a route's congestion control", command, SETTING).map(drop)
}

impl Grid {
    fn create() -> anyhow::Result<Self> {
        let grid = Self::bare()?;
        let libraries = grid.file("lib");
        link(&libraries, DRIVER, DRIVER, &["../xio", "../lib", "."], "make xio")?;
        let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
        link(&libraries, "libphoebus.so", &format!("libphoebus.so.{version}"), &[".", "../lib"], "make build")?;
        Ok(grid)
    }

    /// Certificates alone, for what needs no driver of ours.
    pub(in crate::bench) fn bare() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("no place for certificates")?;
        let grid = Self { directory };
        fs::create_dir_all(grid.file("lib")).context("no place for libraries")?;
        grid.issue()?;
        Ok(grid)
    }

    /// A file of this name.
    pub(in crate::bench) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// An authority for this experiment, what it issues, and the user's proxy.
    fn issue(&self) -> anyhow::Result<()> {
        fs::create_dir_all(self.file("certs"))?;
        let mut script = Command::new("sh");
        script.args(["-eu", "-c", include_str!("gsi.sh")]).current_dir(self.directory.path());
        process::run("openssl", script, SETTING).context("no certificates")?;
        for key in ["server.key", "user.key"] {
            fs::set_permissions(self.file(key), fs::Permissions::from_mode(0o600))?;
        }
        let mut proxy = Command::new("grid-proxy-init");
        proxy.args(["-q", "-bits", "2048"]);
        self.as_user(&mut proxy);
        process::run("grid-proxy-init", proxy, SETTING).context("no proxy certificate").map(drop)
    }

    /// Makes `command` one of the user's.
    pub(in crate::bench) fn as_user(&self, command: &mut Command) {
        self.plain(command);
        command.env("X509_USER_CERT", self.file("user.pem")).env("X509_USER_KEY", self.file("user.key"));
        command.env("X509_USER_PROXY", self.file("proxy"));
    }

    /// Makes `command` a server.
    pub(in crate::bench) fn as_server(&self, command: &mut Command) {
        self.plain(command);
        command.env("X509_USER_CERT", self.file("server.pem")).env("X509_USER_KEY", self.file("server.key"));
        command.env("GRIDMAP", self.file("grid-mapfile"));
    }

    fn plain(&self, command: &mut Command) {
        command.env_clear().env("PATH", PATH).env("HOME", "/nonexistent").env("X509_CERT_DIR", self.file("certs"));
        command.env("LD_LIBRARY_PATH", self.file("lib")).current_dir(self.directory.path());
    }
}

/// Gives `command`, a client at `src`, what the driver needs to go the way of `row`; the program itself goes by nothing else. Returns
/// the processes on the way, by what they are.
pub(super) fn lead(bed: &mut Bed, command: &mut Command, row: &Row) -> anyhow::Result<Vec<(&'static str, u32)>> {
    let agent = match row.way {
        Way::Direct => return Ok(Vec::new()),
        Way::Through(_) => bed.lead(command, bed::Way::Phoebus, None).map(|()| None)?,
        Way::ByAgent(_, first_hop) => bed.lead_by_agent(command, first_hop).map(Some)?,
    };
    command.env_remove("LD_PRELOAD");
    let gateways = bed.gateway_pids().into_iter().map(|pid| ("gateways", pid));
    Ok(gateways.chain(agent.map(|pid| ("agent", pid))).collect())
}

/// Makes a link called `name` in `directory` to a file that was built or installed with this program.
fn link(directory: &Path, file: &str, name: &str, places: &[&str], hint: &str) -> anyhow::Result<()> {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.parent().unwrap_or(Path::new("/"));
    let found = places.iter().map(|place| beside.join(place).join(file)).find(|file| file.exists());
    let Some(found) = found else {
        bail!("{file} is not in {} or beside it; run `{hint}`", beside.display());
    };
    let found = found.canonicalize().with_context(|| format!("cannot read {}", found.display()))?;
    symlink(&found, directory.join(name)).with_context(|| format!("no link to {}", found.display()))
}
