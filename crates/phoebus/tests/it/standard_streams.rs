//! Standard streams that are closed, full, unread or open in the wrong direction: a command that needs one of them
//! never ends with 0.

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::{TempDir, tempdir};

/// What a shell writes to start with standard output closed, open for reading only, or on a device without room.
const CLOSED: &str = ">&-";
const READ_ONLY: &str = "1</dev/null";
const FULL: &str = ">/dev/full";

/// Commands whose result goes to standard output.
const PRINTING: &[&[&str]] = &[
    &["cp", "f", "-"],
    &["cp", "--json", "f", "copy"],
    &["cp", "-n", "f", "copy"],
    &["cp", "-v", "f", "copy"],
    &["cat", "f"],
    &["cat", "f", "--offset", "1", "--length", "2"],
    &["ls", "."],
    &["ls", "--json", "f"],
    &["stat", "f"],
    &["check", "one", "other"],
    &["check", "--json", "one", "one"],
    &["clean", "--json", "one"],
    &["completions", "bash"],
    &["gateway", "init", "--dir", "gateways", "pg1", "--peer", "pg2", "--from", "10.1.0.0/16", "--to", "10.3.0.0/16"],
    &["gateway", "--check", "--config", "gateway.toml"],
    &["cert", "init", "--dir", "certificates", "pg1.example"],
    &["serve", "--check", "--anonymous", "--root", "."],
    &["testbed", "status"],
    &["--help"],
    &["cp", "--help"],
    &["--version"],
];

fn place() -> TempDir {
    let dir = tempdir().unwrap();
    for name in ["f", "one/x", "other/y"] {
        fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
        fs::write(dir.path().join(name), "some bytes").unwrap();
    }
    fs::write(dir.path().join("gateway.toml"), "name = \"pg1\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\n").unwrap();
    dir
}

/// Runs it with the shell's `redirection`, and gives exit code and standard error.
fn says(dir: &Path, redirection: &str, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec \"$@\" {redirection}"), "sh", env!("CARGO_BIN_EXE_phoebus")]).args(arguments);
    command.current_dir(dir).env("HOME", dir).env("PHOEBUS_TESTBED_DIR", dir.join("testbeds"));
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn unwritten_result_is_no_success() {
    for arguments in PRINTING {
        // The command itself is valid.
        let dir = place();
        let (code, said) = says(dir.path(), "", arguments);
        assert!(code == 0 || arguments[0] == "check", "{arguments:?}: {code}: {said}");
        for (redirection, words) in
            [(CLOSED, "standard output is closed"), (READ_ONLY, "open for reading only"), (FULL, "No space left")]
        {
            let dir = place();
            let (code, said) = says(dir.path(), redirection, arguments);
            assert!(code != 0 && code < 128 && said.contains(words), "{arguments:?} {redirection}: {code}: {said}");
            assert!(said.lines().count() <= 2, "{arguments:?} {redirection}: {said}");
        }
    }
}

#[test]
fn closed_output_stops_before_anything_begins() {
    for (arguments, made) in [
        (&["cp", "--json", "f", "copy"][..], "copy"),
        (&["cp", "-v", "f", "copy"], "copy"),
        (
            &[
                "gateway",
                "init",
                "--dir",
                "made",
                "pg1",
                "--peer",
                "pg2",
                "--from",
                "10.1.0.0/16",
                "--to",
                "10.3.0.0/16",
            ],
            "made",
        ),
        (&["cert", "init", "--dir", "made", "pg1.example"], "made"),
    ] {
        let dir = place();
        let (code, said) = says(dir.path(), CLOSED, arguments);
        assert_eq!(code, 1, "{arguments:?}: {said}");
        assert!(!dir.path().join(made).exists(), "{arguments:?}");
    }
}

#[test]
fn reader_that_stops_causes_the_code_of_sigpipe() {
    for arguments in PRINTING {
        let dir = place();
        // A pipe that nobody reads any more: the writer opens its end before the reader closes the other.
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
        command.args(*arguments).current_dir(dir.path()).env("HOME", dir.path()).stdin(Stdio::null()).stdout(write);
        command.env("PHOEBUS_TESTBED_DIR", dir.path().join("testbeds"));
        let output = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(141), "{arguments:?}: {said}");
        assert!(!said.contains("pipe"), "{arguments:?}: {said}");
        // The copy itself does not depend on standard output.
        let copy = arguments.starts_with(&["cp", "--json"]) || arguments.starts_with(&["cp", "-v"]);
        assert_eq!(dir.path().join("copy").exists(), copy, "{arguments:?}");
    }
}

#[test]
fn closed_standard_input_is_no_empty_file() {
    for arguments in [
        &["cp", "-", "dest"][..],
        &["cp", "--list", "-", "dest/"],
        &["connect", "127.0.0.1:9"],
        &["serve", "--inetd"],
        &["serve", "--hash-password"],
    ] {
        for (redirection, words) in [("<&-", "standard input is closed"), ("0>>f", "open for writing only")] {
            let dir = place();
            let (code, said) = says(dir.path(), redirection, arguments);
            assert!(code == 1 && said.contains(words), "{arguments:?} {redirection}: {code}: {said}");
            assert!(!dir.path().join("dest").exists(), "{arguments:?}");
        }
    }
}

#[test]
fn program_finds_its_standard_streams_unchanged() {
    let dir = place();
    let cc =
        Command::new("cc").args(["-shared", "-o", "lib.so", "-x", "c", "/dev/null"]).current_dir(dir.path()).status();
    assert!(cc.unwrap().success());
    let lib = format!("PHOEBUS_PRELOAD_LIB={}", dir.path().join("lib.so").display());
    let script = format!("{lib} exec \"$@\" >&-");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_phoebus"), "run", "--gateway", "127.0.0.1/9", "--"]);
    command.args(["sh", "-c", "echo lost || exit 7"]).current_dir(dir.path()).env("HOME", dir.path());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Reads until `end` has come.
fn until(stream: &mut impl Read, end: &str) {
    let mut said = Vec::new();
    while !said.ends_with(end.as_bytes()) {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
        said.extend(byte);
    }
}

#[test]
fn terminal_is_asked_for_a_password_without_echo() {
    for (again, code) in [("secret", 0), ("other", 2)] {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
        command.args(["serve", "--hash-password"]).stdin(theirs.try_clone().unwrap());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = child.stderr.take().unwrap();
        until(&mut said, "password: ");
        assert!(!tcgetattr(&theirs).unwrap().local_modes.contains(LocalModes::ECHO));
        rustix::io::write(&ours, b"secret\n").unwrap();
        until(&mut said, "again: ");
        rustix::io::write(&ours, format!("{again}\n").as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), usize::from(code == 0));
        assert!(tcgetattr(&theirs).unwrap().local_modes.contains(LocalModes::ECHO));
    }
}
