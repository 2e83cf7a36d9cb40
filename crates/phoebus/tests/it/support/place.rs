//! `phoebus testbed` as a user runs it, in a directory of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

pub const PHOEBUS: &str = env!("CARGO_BIN_EXE_phoebus");

/// A place for state directories that no other test shares.
pub struct Place(pub tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o777)).unwrap();
        place
    }

    pub fn testbeds(&self) -> PathBuf {
        self.0.path().join("testbeds")
    }

    pub fn phoebus(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PHOEBUS);
        command.arg("testbed").args(arguments).env("PHOEBUS_TESTBED_DIR", self.testbeds()).env("PHOEBUS", PHOEBUS);
        command.env_remove("PHOEBUS_TESTBED").stdin(Stdio::null());
        command
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.phoebus(arguments).output().unwrap()
    }

    /// Runs a command that must succeed, and returns its output.
    pub fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command that must fail with `code`, and returns its one line of explanation.
    pub fn fail(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        let said = text(&output.stderr);
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        said.trim_end().to_owned()
    }

    /// Runs a shell script as a user of this machine without any rights, to whom `/dev/net/tun` has the given mode.
    pub fn as_user(&self, tun: &str, script: &str) -> Output {
        let program = self.0.path().join("phoebus");
        // Copied by another process: a file that a child of another test still has open for writing cannot be executed.
        let prepare = "cd \"$0\" && cp \"$3\" phoebus && mkdir dev && mount -t tmpfs -o mode=755 none dev && mknod dev/tun c 10 200 && \
                       chmod \"$1\" dev/tun && mount --bind dev/tun /dev/net/tun && \
                       exec setpriv --reuid 54321 --regid 54321 --clear-groups --inh-caps=-all sh -c \"$2\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", prepare]).arg(self.0.path()).args([tun, script, PHOEBUS]);
        command.env("PHOEBUS", program).env("PHOEBUS_TESTBED_DIR", self.testbeds()).env_remove("PHOEBUS_TESTBED");
        command.output().unwrap()
    }

    /// The entries of the directory of state directories, with hidden ones.
    pub fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.testbeds()).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    pub fn report(&self) -> serde_json::Value {
        serde_json::from_str(&self.succeed(&["status", "--json"])).unwrap()
    }

    /// The process that owns the only testbed.
    pub fn owner(&self) -> u32 {
        self.report()["running"][0]["pid"].as_u64().unwrap().try_into().unwrap()
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
