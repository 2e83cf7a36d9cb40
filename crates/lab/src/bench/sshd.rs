//! OpenSSH's server with keys of its own, for peers that log in by SSH.

use super::process::{self, Background};
use anyhow::Context;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(super) const PORT: u16 = 22;
/// Limit of making a key.
const KEY: Duration = Duration::from_secs(10);

/// Keys and a configuration, in a directory that both hosts see.
pub(super) struct Sshd {
    dir: PathBuf,
}

impl Sshd {
    /// Writes them to `dir`, for a server at `address`.
    pub(super) fn new(dir: &Path, address: IpAddr) -> anyhow::Result<Self> {
        let sshd = Self { dir: dir.to_owned() };
        for key in ["ssh-host", "ssh-user"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "phoebus-bench", "-f"]).arg(sshd.path(key));
            process::run("ssh-keygen", keygen, KEY)?;
        }
        let known = format!("{address} {}", fs::read_to_string(sshd.path("ssh-host.pub"))?);
        fs::write(sshd.path("known"), known)?;
        // Without PAM, sshd treats an account with a locked password as a locked account.
        let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
        let pam = if shadow.lines().any(|line| line.starts_with("root:!")) { "yes" } else { "no" };
        let own = dir.display();
        // For commands of sshd, bash runs its user's ~/.bashrc, which may take long, unless it counts as a nested shell.
        let text = format!(
            "Port {PORT}\nHostKey {own}/ssh-host\nAuthorizedKeysFile {own}/ssh-user.pub\nStrictModes no\nUsePAM {pam}\nPidFile none\n\
             PermitRootLogin yes\nPasswordAuthentication no\nMaxStartups 100\nMaxSessions 100\nSubsystem sftp /usr/lib/openssh/sftp-server\n\
             SetEnv SHLVL=2\n"
        );
        fs::write(sshd.path("sshd_config"), text).context("cannot write sshd's configuration")?;
        Ok(sshd)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Options of `ssh` with which a client logs in.
    pub(super) fn options(&self) -> [String; 8] {
        let known = format!("UserKnownHostsFile={}", self.path("known").display());
        let key = self.path("ssh-user").display().to_string();
        ["-F", "/dev/null", "-o", "IdentitiesOnly=yes", "-o", &known, "-i", &key].map(str::to_owned)
    }

    /// Starts the server; `unshare` is the command with this name on its host.
    pub(super) fn start(&self, mut unshare: Command) -> anyhow::Result<Background> {
        let run = format!(
            "mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec \"$(command -v sshd)\" -De -f '{}'",
            self.path("sshd_config").display()
        );
        unshare.args(["-m", "sh", "-c", &run]);
        Background::start("sshd", unshare)?.listening(PORT)
    }

    /// The key with which a client logs in.
    pub(super) fn key(&self) -> PathBuf {
        self.path("ssh-user")
    }
}
