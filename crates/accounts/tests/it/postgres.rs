//! PostgreSQL: its users log in with verifiers of ours, and verifiers of its users count here.

use phoebus_accounts::password::{PasswordHash, new_verifier};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A server of its own, reached by a socket in its directory.
struct Postgres {
    dir: TempDir,
    child: Child,
}

/// The directory with the programs of the newest version that is installed.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("scripts/setup test installs postgresql");
    let newest = versions
        .map(|entry| entry.unwrap().path())
        .max_by_key(|path| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()).unwrap_or_default());
    newest.unwrap().join("bin")
}

/// A command as the user postgres: the server does not run as root.
fn command(program: &Path) -> Command {
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

fn runs(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

impl Postgres {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let passwd = fs::read_to_string("/etc/passwd").unwrap();
        let ids = passwd.lines().find_map(|line| {
            let fields: Vec<&str> = line.strip_prefix("postgres:")?.split(':').collect();
            Some((fields[1].parse().ok()?, fields[2].parse().ok()?))
        });
        if let Some((uid, gid)) = ids {
            // Of no effect to others than root, who run the server as themselves.
            let _ = chown(dir.path(), Some(uid), Some(gid));
        }
        let data = dir.path().join("data");
        // Nothing of it has to survive.
        let init =
            ["--auth-local=scram-sha-256", "--auth-host=reject", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8"];
        let mut initdb = command(&programs().join("initdb"));
        let password = dir.path().join("password");
        fs::write(&password, "of the administrator\n").unwrap();
        fs::set_permissions(&password, fs::Permissions::from_mode(0o644)).unwrap();
        runs(initdb.args(init).arg("--username=admin").arg("--pwfile").arg(&password).arg("-D").arg(&data));
        let mut server = command(&programs().join("postgres"));
        server.arg("-D").arg(&data).args(["-c", "listen_addresses=", "-c", "fsync=off", "-k"]).arg(dir.path());
        let child = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Self { dir, child };
        let until = Instant::now() + Duration::from_secs(60);
        while !server.says("admin", "of the administrator", "SELECT 1").status.success() {
            assert!(Instant::now() < until, "PostgreSQL does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    fn says(&self, user: &str, password: &str, query: &str) -> Output {
        let mut psql = Command::new("psql");
        psql.arg("-h").arg(self.dir.path()).args(["-U", user, "-d", "postgres", "-w", "-A", "-t", "-c", query]);
        psql.env("PGPASSWORD", password).output().unwrap()
    }

    fn admin(&self, query: &str) -> String {
        let output = self.says("admin", "of the administrator", query);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGINT: a fast shutdown, of its children too.
        let _ = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

#[test]
fn verifiers_count_on_both_sides() {
    let server = Postgres::start();
    for password in ["simple", "päß \u{a0}wörd", "\u{2168}"] {
        let verifier = new_verifier(password.as_bytes()).unwrap();
        server.admin(&format!("DROP ROLE IF EXISTS ada; CREATE ROLE ada LOGIN PASSWORD '{verifier}'"));
        assert_eq!(server.admin("SELECT rolpassword FROM pg_authid WHERE rolname = 'ada'"), verifier.to_string());
        assert!(server.says("ada", password, "SELECT 1").status.success(), "{password}");
        assert!(!server.says("ada", "another", "SELECT 1").status.success(), "{password}");

        server.admin(&format!("DROP ROLE IF EXISTS bob; CREATE ROLE bob LOGIN PASSWORD '{password}'"));
        let theirs = server.admin("SELECT rolpassword FROM pg_authid WHERE rolname = 'bob'");
        let hash = PasswordHash::parse(&theirs).unwrap_or_else(|| panic!("{theirs}"));
        assert!(hash.is_of(password.as_bytes()) && !hash.is_of(b"another"), "{password}");
    }
}
