//! vsftpd and ProFTPD, as Debian ships them.

use super::PATIENCE;
use super::serve::{run, with_input};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A running server. Dropped, it is killed, with all that it has started.
pub struct Ftp {
    child: Child,
    pub port: u16,
    /// The part of URLs before the host.
    login: &'static str,
    /// The path of URLs that leads to [`Self::path`].
    below: &'static str,
    root: PathBuf,
    dir: TempDir,
}

/// How commands and data are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls {
    /// Not at all.
    None,
    /// By TLS of any version.
    Any,
    /// By TLS 1.2 alone.
    V12,
}

impl Ftp {
    /// vsftpd, to which everybody may write.
    pub fn vsftpd(tls: Tls) -> Self {
        Self::vsftpd_with(tls, "")
    }

    /// The same with more in its configuration.
    pub fn vsftpd_with(tls: Tls, more: &str) -> Self {
        let dir = place();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("pub")).unwrap();
        open_to_all(&root, 0o755);
        open_to_all(&root.join("pub"), 0o777);
        fs::create_dir(dir.path().join("empty")).unwrap();
        let port = super::port::free();
        let shown = |name: &str| dir.path().join(name).display().to_string();
        let mut config = format!(
            "listen=YES\nlisten_address=127.0.0.1\nlisten_port={port}\nbackground=NO\nlocal_enable=NO\nanonymous_enable=YES\n\
             no_anon_password=YES\nftp_username=daemon\nwrite_enable=YES\nanon_upload_enable=YES\nanon_mkdir_write_enable=YES\n\
             anon_other_write_enable=YES\nanon_world_readable_only=NO\nanon_umask=022\nanon_root={}\nsecure_chroot_dir={}\n\
             seccomp_sandbox=NO\nisolate=NO\nisolate_network=NO\nconnect_from_port_20=NO\nxferlog_enable=YES\nvsftpd_log_file={}\n{more}\n",
            root.display(),
            shown("empty"),
            shown("log"),
        );
        if tls != Tls::None {
            let pair = certificate(dir.path());
            config += &format!(
                "ssl_enable=YES\nallow_anon_ssl=YES\nforce_anon_logins_ssl=YES\nforce_anon_data_ssl=YES\nrsa_cert_file={}\n\
                 rsa_private_key_file={}\n",
                pair.0.display(),
                pair.1.display()
            );
            assert!(tls == Tls::Any, "vsftpd of Debian 12 cannot be told which version");
        }
        fs::write(dir.path().join("conf"), config).unwrap();
        let mut command = program("vsftpd");
        command.arg(dir.path().join("conf"));
        Self::start(command, port, "", "pub/", root.join("pub"), dir)
    }

    /// ProFTPD, with a user `jane` whose password is `s3cret`, and whose root is the served directory.
    pub fn proftpd(tls: Tls, more: &str) -> Self {
        let dir = place();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        let hash = with_input(Command::new("openssl").args(["passwd", "-6", "-stdin"]), b"s3cret\n");
        let user = format!("jane:{}:65534:65534::{}:/bin/sh\n", hash.trim(), root.display());
        fs::write(dir.path().join("users"), user).unwrap();
        fs::set_permissions(dir.path().join("users"), fs::Permissions::from_mode(0o600)).unwrap();
        open_to_all(&root, 0o777);
        let port = super::port::free();
        let shown = |name: &str| dir.path().join(name).display().to_string();
        let mut config = format!(
            "ServerType standalone\nServerName test\nDefaultAddress 127.0.0.1\nPort {port}\nUseIPv6 off\nUser nobody\nGroup nogroup\n\
             Umask 022\nRequireValidShell off\nAuthOrder mod_auth_file.c\nAuthUserFile {}\nDefaultRoot ~\nAllowOverwrite on\n\
             WtmpLog off\nTransferLog none\nSystemLog {}\nPidFile {}\nScoreboardFile {}\nDelayTable none\nMaxInstances 30\n{more}\n",
            shown("users"),
            shown("log"),
            shown("pid"),
            shown("scores"),
        );
        if tls != Tls::None {
            let pair = certificate(dir.path());
            let version = if tls == Tls::V12 { "TLSProtocol TLSv1.2\n" } else { "" };
            config = format!(
                "LoadModule mod_tls.c\n{config}TLSEngine on\nTLSRequired on\nTLSLog {}\n{version}TLSRSACertificateFile {}\n\
                 TLSRSACertificateKeyFile {}\n",
                shown("tls.log"),
                pair.0.display(),
                pair.1.display()
            );
        }
        fs::write(dir.path().join("conf"), config).unwrap();
        let mut command = program("proftpd");
        command.args(["-n", "-q", "-c"]).arg(dir.path().join("conf"));
        Self::start(command, port, "jane:s3cret@", "", root, dir)
    }

    pub(super) fn start(
        mut command: Command,
        port: u16,
        login: &'static str,
        below: &'static str,
        root: PathBuf,
        dir: TempDir,
    ) -> Self {
        use std::os::unix::process::CommandExt;
        let said = fs::File::create(dir.path().join("said")).unwrap();
        command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said).process_group(0);
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/setup installs it"));
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let said = || fs::read_to_string(dir.path().join("said")).unwrap();
            assert!(child.try_wait().unwrap().is_none(), "{command:?} ends: {}", said());
            assert!(start.elapsed() < PATIENCE, "{command:?} does not listen: {}", said());
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, port, login, below, root, dir }
    }

    /// The URL of a path in it.
    pub fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://{}localhost:{}/{}{path}", self.login, self.port, self.below)
    }

    /// The path on disk.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The server's certificate.
    pub fn authority(&self) -> PathBuf {
        self.dir.path().join("cert.pem")
    }

    /// The server's log.
    pub fn log(&self) -> String {
        let read = |name| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        ["said", "log", "tls.log"].map(read).concat()
    }

    /// Puts a file that everybody may replace at `path`.
    pub fn write(&self, path: &str, content: &[u8]) {
        fs::write(self.path(path), content).unwrap();
        open_to_all(&self.path(path), 0o666);
    }
}

impl Drop for Ftp {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            // It may have ended by itself.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// A copy that is under way.
pub struct Copy(Child);

impl Copy {
    pub fn start(mut command: Command) -> Self {
        Self(command.stderr(Stdio::null()).spawn().unwrap())
    }

    /// Kills it when its journal in `dir` records that part of the file `name` is synced.
    pub fn cut_when_noted(mut self, dir: &Path, name: &str) {
        self.until_noted(dir, name);
        self.cut();
    }

    /// Waits until that is so.
    pub fn until_noted(&mut self, dir: &Path, name: &str) {
        let journal = dir.join(format!(".{name}.phoebus-journal"));
        let (start, mut before) = (Instant::now(), None);
        loop {
            let now = fs::metadata(&journal).ok().map(|meta| (meta.ino(), meta.len()));
            // The copy may start again before it has a record.
            if before.zip(now).is_some_and(|(old, new): ((u64, u64), (u64, u64))| old.0 == new.0 && old.1 < new.1) {
                break;
            }
            before = now.or(before);
            assert!(self.0.try_wait().unwrap().is_none(), "the copy ended before it could be cut");
            assert!(start.elapsed() < PATIENCE, "nothing is noted");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until it has recorded bytes that a server has reported as synced.
    pub fn until_marked(&mut self, home: &Path) {
        let dir = home.join(".local/state/phoebus/uploads");
        let start = Instant::now();
        let marked =
            || fs::read_dir(&dir).is_ok_and(|entries| entries.flatten().any(|e| e.path().extension().is_none()));
        while !marked() {
            assert!(self.0.try_wait().unwrap().is_none(), "the copy ended before anything was noted");
            assert!(start.elapsed() < PATIENCE, "nothing is noted");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills it.
    pub fn cut(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits for its end. Returns whether it succeeded.
    pub fn ends(mut self) -> bool {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            assert!(start.elapsed() < 2 * PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills it when a draft below `dir` has so many bytes.
    pub fn cut_amid(mut self, dir: &Path, bytes: u64) {
        let start = Instant::now();
        while !drafted(dir, bytes) {
            assert!(self.0.try_wait().unwrap().is_none(), "the copy ended before it could be cut");
            assert!(start.elapsed() < PATIENCE, "nothing is copied");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Whether a draft in `dir`, or in a directory there, has so many bytes.
fn drafted(dir: &Path, bytes: u64) -> bool {
    // It may disappear meanwhile.
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let within = entries(dir).flat_map(|entry| entries(&entry.path()).collect::<Vec<_>>());
    // The draft of the client, or of our own server.
    let ends = [".phoebus-part", ".phoebus-draft"];
    let mut drafts = entries(dir)
        .chain(within)
        .filter(|entry| ends.iter().any(|end| entry.file_name().to_string_lossy().ends_with(end)));
    drafts.any(|entry| entry.metadata().is_ok_and(|meta| meta.blocks() * 512 >= bytes))
}

/// Names beneath `root` that begin with a dot: leftover drafts.
pub fn hidden(root: &Path) -> Vec<String> {
    let (mut found, mut dirs) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        // It may disappear meanwhile.
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                found.push(entry.path().strip_prefix(root).unwrap().display().to_string());
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                dirs.push(entry.path());
            }
        }
    }
    found
}

/// A directory that servers can access as other users.
pub(super) fn place() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    open_to_all(dir.path(), 0o755);
    dir
}

pub(super) fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A self-signed certificate for localhost, and its key.
pub fn certificate(dir: &Path) -> (PathBuf, PathBuf) {
    let make = "req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost -keyout key.pem -out cert.pem \
                -addext subjectAltName=DNS:localhost";
    let made = run(Command::new("openssl").args(make.split_whitespace()).current_dir(dir));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::set_permissions(dir.join("key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    (dir.join("cert.pem"), dir.join("key.pem"))
}

pub(super) fn program(name: &str) -> Command {
    let path = format!("{}:/usr/local/sbin:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.exists());
    Command::new(found.unwrap_or_else(|| panic!("{name} is not installed: run `scripts/setup test`")))
}
