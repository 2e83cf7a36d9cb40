//! `phoebus run` and `phoebus connect`: errors for bad input (one sentence with the expected input, the documented exit
//! code, no backtrace), and the environment that `run` gives to the program.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use crate::support;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A home directory with nothing in it, and a shared library that preloads anywhere.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        home.cc(&["-shared", "-o", "lib.so", "-x", "c", "/dev/null"]);
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn cc(&self, arguments: &[&str]) {
        run_tool(Command::new("cc").args(arguments).current_dir(self.0.path()));
    }

    /// `phoebus` in an environment without settings.
    fn phoebus(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
        command.args(arguments).env_clear().current_dir(self.0.path()).stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", self.0.path()).env("RUST_BACKTRACE", "1");
        command.env("PHOEBUS_PRELOAD_LIB", self.path("lib.so"));
        command
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let file = self.path(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// A program. Another process writes it: a file that a child of another test still has open for writing cannot be
    /// executed.
    fn script(&self, name: &str, text: &str) -> String {
        let file = self.path(name).to_str().unwrap().to_owned();
        run_tool(Command::new("sh").args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\"", &file, text]));
        file
    }
}

fn run_tool(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Fails with this code and one line on standard error that contains `expected`.
fn complains(command: &mut Command, code: i32, expected: &str) {
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    assert!(said.contains(expected), "{command:?}: {said}");
    assert!(said.starts_with("phoebus: ") && said.lines().count() == 1, "{command:?}: {said}");
    assert_eq!(text(&output.stdout), "", "{command:?}");
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

#[test]
fn invalid_settings_are_named_with_their_source() {
    let home = Home::new();
    let cases: [(&[&str], &str); 12] = [
        (&["--gateway", "pg1/x"], "--gateway: \"pg1/x\" is not an endpoint with a port from 1 to 65535"),
        (&["--gateway", "a,b"], "--gateway: \"a,b\" is not one gateway"),
        (&["--path", "pg1,,pg2"], "--path: \"\" is not a host name or address"),
        (&["--path", ""], "--path: the path is empty; expected gateways such as pg1.example/5006,pg2.example/5006"),
        (&["-g", "pg1", "--only", "10.0.0.0/40"], "--only: \"10.0.0.0/40\" is not an address range: the prefix length"),
        (&["-g", "pg1", "--except", "*:x"], "--except: \"*:x\" is not a destination whose ports are a number"),
        (&["-g", "pg1", "--bypass-rtt", "5 parsecs"], "--bypass-rtt: \"5 parsecs\" is not a duration such as 250us"),
        (&["-g", "pg1", "--cc", "b b r"], "--cc: \"b b r\" is not a congestion control"),
        (&["-g", "pg1", "--bandwidth", "much"], "--bandwidth: \"much\" is not a rate such as 64kbit"),
        (&["-g", "pg1", "--bandwidth", "1gbit", "--fallback"], "PHOEBUS_FALLBACK (--fallback) would do without them"),
        (&["-g", "pg1", "--user", "ada"], "--user: \"ada\" is not an e-mail address"),
        (&[], "no gateway is set; give --gateway HOST/PORT or set PHOEBUS_GW"),
    ];
    for (options, expected) in cases {
        let arguments: Vec<_> = ["run"].iter().chain(options).chain(&["--", "true"]).copied().collect();
        complains(&mut home.phoebus(&arguments), 2, expected);
    }
    let mut run = home.phoebus(&["run", "true"]);
    complains(run.env("PHOEBUS_PATH", "pg1/0"), 2, "environment: PHOEBUS_PATH: \"pg1/0\" is not an endpoint");
    complains(&mut home.phoebus(&["connect", "--bandwidth", "1gbit", "dst:1"]), 2, "a bandwidth is asked of gateways");
    complains(&mut home.phoebus(&["connect", "dst"]), 2, "\"dst\" is not an endpoint with a port from 1 to 65535");

    for command in [
        &["run", "-g", "pg1", "--report", "/no/such/file", "true"][..],
        &["connect", "--report", "/no/such/file", "a:1"],
    ] {
        complains(&mut home.phoebus(command), 2, "cannot write /no/such/file: no such file or directory");
    }

    let binary: [(&[u8], &str); 3] = [
        (b"\x7fELF\x02\x01\x01", "client.conf, line 1: "),
        (b"PHOEBUS_GW=pg1\n\xff\xfe", "client.conf, line 2: is no text in UTF-8; expected a few lines of NAME=value"),
        (&[b'#'; 2 << 20], "client.conf: is longer than 1048576 bytes; expected a few lines of NAME=value"),
    ];
    for (contents, expected) in binary {
        home.write(".config/phoebus/client.conf", contents);
        complains(&mut home.phoebus(&["run", "true"]), 2, expected);
        complains(&mut home.phoebus(&["connect", "dst:7"]), 2, expected);
    }
    fs::remove_file(home.path(".config/phoebus/client.conf")).unwrap();
    run_tool(Command::new("mkfifo").arg(home.path(".config/phoebus/client.conf")));
    complains(&mut home.phoebus(&["run", "true"]), 2, "client.conf: cannot be read: it is a pipe; expected");
    fs::remove_file(home.path(".config/phoebus/client.conf")).unwrap();
    let file = home.write(".config/phoebus/client.conf", "PHOEBUS_GW=pg1\n# a comment\nPHOEBUS_ONY=*\n");
    let expected = format!("{file}, line 3: \"PHOEBUS_ONY\" is no setting; expected one of PHOEBUS_GW, PHOEBUS_PATH");
    complains(&mut home.phoebus(&["run", "true"]), 2, &expected);
    complains(&mut home.phoebus(&["connect", "dst:7"]), 2, &expected);
    home.write(".config/phoebus/client.conf", "PHOEBUS_BYPASS_RTT=soon\n");
    let expected = format!("{file}, line 1: PHOEBUS_BYPASS_RTT: \"soon\" is not a duration");
    complains(&mut home.phoebus(&["run", "true"]), 2, &expected);
}

#[test]
fn unusable_preload_library_is_refused() {
    let home = Home::new();
    let with = |library: &str| {
        let mut command = home.phoebus(&["run", "-g", "pg1", "true"]);
        command.env("PHOEBUS_PRELOAD_LIB", library);
        command
    };
    complains(&mut with("missing.so"), 125, "missing.so: no such file or directory");
    complains(&mut with(&home.write("text.so", "text")), 125, "text.so is not a shared library (ELF)");
    // The machine of an ELF file is the number at byte 18; 183 is AArch64, 2 SPARC.
    let mut image = fs::read(home.path("lib.so")).unwrap();
    image[18] = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    let other = home.write("other.so", &image);
    complains(&mut with(&other), 125, "cannot preload into \"true\": it is for ");
    let blank = home.write("a b/lib.so", fs::read(home.path("lib.so")).unwrap());
    complains(&mut with(&blank), 125, "no file names with blanks or colons in LD_PRELOAD; move the library");
    // Without the variable, it is searched for beside the program.
    fs::create_dir(home.path("bin")).unwrap();
    // Copied by another process: a file that a child of another test still has open for writing cannot be executed.
    run_tool(Command::new("cp").args([env!("CARGO_BIN_EXE_phoebus"), home.path("bin/phoebus").to_str().unwrap()]));
    let mut moved = Command::new(home.path("bin/phoebus"));
    moved.args(["run", "-g", "pg1", "true"]).env("HOME", home.0.path()).env_remove("PHOEBUS_PRELOAD_LIB");
    complains(&mut moved, 125, "libphoebus_preload.so is neither in ");
    home.write("lib/libphoebus_preload.so", fs::read(home.path("lib.so")).unwrap());
    succeeds(&mut moved);
}

#[test]
fn command_that_cannot_run_is_reported_as_by_env() {
    let home = Home::new();
    complains(
        &mut home.phoebus(&["run", "-g", "pg1", "no-such-command"]),
        127,
        "\"no-such-command\": command not found",
    );
    complains(&mut home.phoebus(&["run", "-g", "pg1", "./missing"]), 127, "\"./missing\": command not found");
    complains(&mut home.phoebus(&["run", "-g", "pg1", "/etc"]), 126, "cannot run /etc: permission denied");
    let script = home.script("script", "#!/no/such/interpreter\n");
    complains(&mut home.phoebus(&["run", "-g", "pg1", &script]), 127, "no such file or directory");
}

#[test]
fn programs_beyond_preloading_are_named() {
    let home = Home::new();
    home.write("main.c", "int main(void) { return 7; }\n");
    home.cc(&["-static", "-o", "static", "main.c"]);
    home.cc(&["-o", "go", "main.c"]);
    run_tool(Command::new("objcopy").args(["--add-section", ".go.buildinfo=main.c", "go"]).current_dir(home.0.path()));
    home.script("script", &format!("#!{}\n", home.path("static").display()));
    home.script("plain", "#!/usr/bin/env sh\nexit 7\n");
    home.cc(&["-o", "setuid", "main.c"]);
    run_tool(Command::new("chown").arg("65534").arg(home.path("setuid")));
    run_tool(Command::new("chmod").arg("4755").arg(home.path("setuid")));
    let cases = [
        ("auto", "./static", "\"./static\" is statically linked, so preloading does not reach it: seccomp catches its"),
        ("auto", "./script", "\"./script\" is statically linked, so preloading does not reach it: seccomp catches its"),
        ("auto", "./go", "\"./go\" is a Go program, which makes system calls past the C library: seccomp catches its"),
        (
            "auto",
            "./setuid",
            "\"./setuid\" is setuid, so the dynamic loader ignores LD_PRELOAD: its connections go direct",
        ),
        ("auto", "./plain", ""),
        (
            "preload",
            "./static",
            "\"./static\" is statically linked, so preloading does not reach it: its own connections go",
        ),
        (
            "preload",
            "./go",
            "\"./go\" is a Go program, which makes system calls past the C library: its connections go direct",
        ),
        ("seccomp", "./static", ""),
        ("seccomp", "./plain", ""),
        ("seccomp", "./setuid", "\"./setuid\" is setuid: caught by seccomp, it runs without that privilege"),
    ];
    for (catch, program, expected) in cases {
        let expected = if expected.is_empty() { String::new() } else { format!("phoebus: {expected}") };
        let output = home.phoebus(&["run", "-g", "pg1", "--catch", catch, program]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{program}: {said}");
        assert!(said.starts_with(&expected) && said.lines().count() <= 1, "{program}: {said}");
        assert_eq!(said.is_empty(), expected.is_empty(), "{program}: {said}");
    }
}

#[test]
fn program_gets_library_and_settings() {
    let home = Home::new();
    let variables =
        |command: &mut Command| text(&succeeds(command).stdout).lines().map(str::to_owned).collect::<Vec<_>>();
    let has = |lines: &[String], line: &str| lines.iter().any(|l| l == line);
    let library = home.path("lib.so");

    let options = ["run", "-g", "pg1/7", "--only", "*:80", "--cc", "cubic", "--fallback", "--report", "r", "env"];
    let mut run = home.phoebus(&options);
    run.env("PHOEBUS_PATH", "a,b").env("PHOEBUS_EXCEPT", "*:22").env("LD_PRELOAD", &library);
    let lines = variables(&mut run);
    assert!(has(&lines, &format!("LD_PRELOAD={0}:{0}", library.display())), "{lines:#?}");
    let report = format!("PHOEBUS_REPORT={}", home.0.path().canonicalize().unwrap().join("r").display());
    for line in [
        "PHOEBUS_GW=pg1/7",
        "PHOEBUS_ONLY=*:80",
        "PHOEBUS_EXCEPT=*:22",
        "PHOEBUS_CC=cubic",
        "PHOEBUS_FALLBACK=1",
        &report,
    ] {
        assert!(has(&lines, line), "{line} is missing in {lines:#?}");
    }
    // The option's gateway takes precedence over the environment's path.
    assert!(!lines.iter().any(|line| line.starts_with("PHOEBUS_PATH=")), "{lines:#?}");

    let lines = variables(home.phoebus(&["run", "-g", "pg1", "env"]).env("PHOEBUS_DISABLE", "1"));
    assert!(!lines.iter().any(|line| line.starts_with("LD_PRELOAD=")), "{lines:#?}");
    let output = home.phoebus(&["run", "-g", "pg1", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn connect_does_not_bypass_a_required_gateway() {
    let home = Home::new();
    let closed = SocketAddr::from(([127, 0, 0, 1], support::port::free()));
    let connect = |only: &str, to: &str| {
        let mut command = home.phoebus(&["connect", to]);
        command.env("PHOEBUS_ONLY", only);
        command
    };
    for (only, to) in [("127.0.0.0/8", closed.to_string()), ("dst.example", format!("dst.example:{}", closed.port()))] {
        complains(&mut connect(only, &to), 2, "and no gateway is set; give --gateway HOST/PORT");
    }
    // Destinations that it does not name go direct, and so does everything with PHOEBUS_DISABLE.
    complains(&mut connect("10.0.0.0/8", &closed.to_string()), 3, "connection refused");
    let mut disabled = connect("127.0.0.0/8", &closed.to_string());
    complains(disabled.env("PHOEBUS_DISABLE", "1"), 3, "connection refused");
}

#[test]
fn connect_names_the_hop_that_did_not_answer() {
    let home = Home::new();
    let closed = SocketAddr::from(([127, 0, 0, 1], support::port::free()));
    let gateway = format!("127.0.0.1/{}", closed.port());
    let expected = format!("gateway {closed}: cannot connect to {closed}: connection refused");
    complains(&mut home.phoebus(&["connect", "-g", &gateway, "dst:7"]), 3, &expected);
    let expected = format!("cannot connect to {closed}: connection refused");
    complains(&mut home.phoebus(&["connect", &closed.to_string()]), 3, &expected);
    complains(&mut home.phoebus(&["connect", "no-such-host.invalid:7"]), 3, "cannot resolve no-such-host.invalid: ");
}

#[test]
fn help_tells_the_exit_codes() {
    let home = Home::new();
    for (arguments, expected) in [
        (&["--help"][..], "127 (it was not found)"),
        (&["run", "--help"], "125 the program could not be prepared"),
        (&["connect", "--help"], "3 it could not be opened"),
    ] {
        let help = text(&succeeds(&mut home.phoebus(arguments)).stdout);
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(expected), "{help}");
    }
}

#[test]
fn misspelt_variable_causes_a_warning() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    command.args(["run", "--", "true"]).env("PHOEBUS_ONY", "10.0.0.0/8").env("PHOEBUS_GW", "pg1.example");
    let output = command.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("PHOEBUS_ONY, which nothing reads; is PHOEBUS_ONLY meant?").count(), 1, "{said}");
}
