//! A path for each transport between the gateways, and the environment of GCT's programs on it: the driver, Grid
//! security, congestion control at the ends.

use super::rows::{EndsControl, Row, RowRoute};
use crate::bench::bed::{self, Bed};
use crate::bench::process::{self, NO_HOME};
use anyhow::{Context, bail};
use phoebus_wan::testbed::Sc09;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of a setting or a certificate.
const SETTING: Duration = Duration::from_secs(60);
/// The driver's file.
const DRIVER: &str = "libglobus_xio_phoebus_driver.so";
/// The directories in which Debian installs servers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Paths with the same circumstances, each created when a row first needs it.
pub(crate) struct PathCache {
    settings: Sc09,
    beds: BTreeMap<String, Bed>,
    grid: Grid,
}

/// The files of GCT's programs: libraries and certificates, in a temporary directory.
pub(in crate::bench) struct Grid {
    directory: tempfile::TempDir,
}

impl PathCache {
    /// No path yet, with these circumstances.
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

    /// Any existing path.
    pub(super) fn any(&self) -> Option<&Bed> {
        self.beds.values().next()
    }
}

/// Gives all routes of a host this congestion control: a network namespace cannot choose a default that the machine
/// does not allow to all users, and a testbed changes no machine.
fn set_control(bed: &Bed, host: &str, ends: EndsControl) -> anyhow::Result<()> {
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

    /// Only certificates, for experiments without our driver.
    pub(in crate::bench) fn bare() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir().context("no place for certificates")?;
        let grid = Self { directory };
        fs::create_dir_all(grid.file("lib")).context("no place for libraries")?;
        grid.issue()?;
        Ok(grid)
    }

    /// The path of the file with this name.
    pub(in crate::bench) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates an authority for this experiment, its certificates, and the user's proxy.
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

    /// Sets the environment of `command` to that of the user.
    pub(in crate::bench) fn as_user(&self, command: &mut Command) {
        self.plain(command);
        command.env("X509_USER_CERT", self.file("user.pem")).env("X509_USER_KEY", self.file("user.key"));
        command.env("X509_USER_PROXY", self.file("proxy"));
    }

    /// Sets the environment of `command` to that of a server.
    pub(in crate::bench) fn as_server(&self, command: &mut Command) {
        self.plain(command);
        command.env("X509_USER_CERT", self.file("server.pem")).env("X509_USER_KEY", self.file("server.key"));
        command.env("GRIDMAP", self.file("grid-mapfile"));
    }

    fn plain(&self, command: &mut Command) {
        command.env_clear().env("PATH", PATH).env("HOME", NO_HOME).env("X509_CERT_DIR", self.file("certs"));
        command.env("LD_LIBRARY_PATH", self.file("lib")).current_dir(self.directory.path());
    }
}

/// Sets the driver's environment for `command`, a client at `src`, to the way of `row`; the program itself runs
/// without the shim. Returns the processes on the way, with their roles.
pub(super) fn route(bed: &mut Bed, command: &mut Command, row: &Row) -> anyhow::Result<Vec<(&'static str, u32)>> {
    let agent = match row.way {
        RowRoute::Direct => return Ok(Vec::new()),
        RowRoute::Through(_) => bed.route(command, bed::BedRoute::Phoebus, None).map(|()| None)?,
        RowRoute::ByAgent(_, first_hop) => bed.route_by_agent(command, first_hop).map(Some)?,
    };
    command.env_remove("LD_PRELOAD");
    let gateways = bed.gateway_pids().into_iter().map(|pid| ("gateways", pid));
    Ok(gateways.chain(agent.map(|pid| ("agent", pid))).collect())
}

/// Makes a link `name` in `directory` to a file that was built or installed with this program.
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
