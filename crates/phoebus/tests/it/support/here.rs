//! Runs `phoebus cp` and the small commands as a user with a directory and credentials of their own.

use super::grid::gct::Gct;
use super::grid::lab::Lab;
use super::serve::{Serve, run};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tempfile::{TempDir, tempdir};

/// A client's directory and credentials.
pub struct Here<'a> {
    pub dir: TempDir,
    lab: Option<(&'a Lab, &'a str)>,
}

impl<'a> Here<'a> {
    pub fn new(lab: Option<(&'a Lab, &'a str)>) -> Self {
        Self { dir: tempdir().unwrap(), lab }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
        command.args(arguments).current_dir(self.dir.path()).env("HOME", self.dir.path()).stdin(Stdio::null());
        command.env_remove("X509_USER_PROXY").env_remove("X509_CERT_DIR");
        if let Some((lab, proxy)) = self.lab {
            lab.with_proxy(&mut command, proxy).env("HOME", self.dir.path());
        }
        command
    }

    #[track_caller]
    pub fn does(&self, arguments: &[&str]) -> String {
        let (code, said) = says(&run(&mut self.command(arguments)));
        assert_eq!(code, 0, "{arguments:?}: {said}");
        said
    }

    #[track_caller]
    pub fn fails(&self, code: i32, words: &str, arguments: &[&str]) {
        let (found, said) = says(&run(&mut self.command(arguments)));
        assert!(found == code && said.contains(words), "{arguments:?}: {found}: {said}");
    }
}

/// The exit code of a program, and its output.
pub fn says(output: &Output) -> (i32, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
}

/// Our own server, which trusts the lab's authority.
pub fn serve(lab: &Lab) -> Serve {
    serve_with(lab, "")
}

/// The same with a longer configuration.
pub fn serve_with(lab: &Lab, more: &str) -> Serve {
    let shown = |name: &str| lab.path(name).display().to_string();
    Serve::configured(&format!(
        "[gsi]\ncertificate = \"{}\"\nkey = \"{}\"\nauthorities = \"{}\"\ngridmap = \"{}\"\n[[user]]\nname = \"jane\"\nroot = \"ROOT\"\n{more}",
        shown("host.pem"),
        shown("host.key"),
        shown("certs"),
        shown("grid-mapfile"),
    ))
}

/// The toolkit's server, which trusts the authority, too.
pub fn secure_gct(lab: &Lab) -> Gct {
    Gct::secure(&lab.path("certs"), &lab.path("host.pem"), &lab.path("host.key"), &lab.path("grid-mapfile.unix"))
}
