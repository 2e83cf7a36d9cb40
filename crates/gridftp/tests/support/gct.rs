//! `globus-gridftp-server`, as Debian ships it.

use super::{PATIENCE, ok, run};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The toolkit's server. Dropped, it is killed.
pub struct Gct {
    child: Child,
    pub port: u16,
}

impl Gct {
    /// One that lets everybody do everything.
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

    /// One that believes an authority.
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
        // The port is free until the server takes it: nobody else asks for one by number.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap()));
        command.args(["-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1", "-c", "/dev/null"]);
        command.args(["-allow-root", "-p", &port.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("globus-gridftp-server: {error}; scripts/setup installs it"));
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < PATIENCE, "globus-gridftp-server does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, port }
    }

    /// Kills the processes that serve clients; how many there were.
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
