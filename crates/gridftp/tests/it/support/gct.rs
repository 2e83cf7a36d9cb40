//! `globus-gridftp-server`, as Debian ships it.

use super::{ok, run};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// The toolkit's server. Dropped, it is killed.
pub struct Gct {
    child: Child,
    pub port: u16,
    /// Its output, which a thread has to read.
    _said: BufReader<ChildStdout>,
}

impl Gct {
    /// A server that lets everybody do everything.
    pub fn anonymous() -> Self {
        Self::anonymous_with(&[])
    }

    /// The same with further options.
    #[allow(dead_code, reason = "each test file uses its own part")]
    pub fn anonymous_with(options: &[&str]) -> Self {
        let user = ok(&run(Command::new("id").arg("-un")));
        Self::start(Command::new("globus-gridftp-server").args(["-aa", "-anonymous-user", user.trim()]).args(options))
    }

    /// The first with further options, started by `command`, which is given its arguments.
    #[allow(dead_code, reason = "each test file uses its own part")]
    pub fn started(command: &mut Command, options: &[&str]) -> Self {
        let user = ok(&run(Command::new("id").arg("-un")));
        Self::start(command.args(["-aa", "-anonymous-user", user.trim()]).args(options))
    }

    /// A server that trusts this authority.
    pub fn secure(authorities: &Path, certificate: &Path, key: &Path, gridmap: &Path) -> Self {
        Self::secure_with(authorities, certificate, key, gridmap, &[])
    }

    /// The same with further options.
    #[allow(dead_code, reason = "each test file uses its own part")]
    pub fn secure_with(authorities: &Path, certificate: &Path, key: &Path, gridmap: &Path, options: &[&str]) -> Self {
        let mut command = Command::new("globus-gridftp-server");
        command.env("X509_CERT_DIR", authorities).env("X509_USER_CERT", certificate).env("X509_USER_KEY", key);
        Self::start(command.env("GRIDMAP", gridmap).env("GLOBUS_HOSTNAME", "localhost").args(options))
    }

    fn start(command: &mut Command) -> Self {
        command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap()));
        command.args(["-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1", "-c", "/dev/null"]);
        // It listens on any free port, and prints it.
        command.args(["-allow-root", "-p", "0"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child =
            child.unwrap_or_else(|error| panic!("globus-gridftp-server: {error}; scripts/setup installs it"));
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("globus-gridftp-server does not say where it listens: {line:?}"));
        Self { child, port, _said: said }
    }

    /// Kills the processes that serve clients. Returns their number.
    pub fn kill_children(&self) -> usize {
        let file = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(file).unwrap();
        let killed = |pid: &&str| Command::new("kill").args(["-9", pid]).status().unwrap().success();
        children.split_whitespace().filter(killed).count()
    }

    /// The URL of a file.
    pub fn url(&self, path: &Path) -> String {
        format!("ftp://127.0.0.1:{}{}", self.port, path.display())
    }
}

impl Drop for Gct {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
