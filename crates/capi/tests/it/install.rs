//! What `make install` and `make install-xio` install: library names, exported symbols, man pages, and examples that
//! build against the installed files alone.

use crate::support;
use object::{Object, ObjectSymbol};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use support::{OneGateway, include, plain, program, run, target};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The functions that the headers declare.
fn declared() -> BTreeSet<String> {
    let read = |name| fs::read_to_string(include().join(name)).unwrap();
    let header = ["phoebus.h", "phoebus_handshake.h"].map(read).concat();
    let mut text = String::new();
    for (i, part) in header.split("/*").enumerate() {
        text.push_str(if i == 0 { part } else { part.split_once("*/").unwrap().1 });
    }
    let lines = text.lines().filter(|line| !line.starts_with([' ', '#']) && !line.starts_with("typedef"));
    let name = |line: &str| {
        let (before, _) = line.split_once('(')?;
        before.rsplit([' ', '*']).next().filter(|name| name.starts_with("phoebus_")).map(str::to_owned)
    };
    lines.filter_map(name).collect()
}

fn compile_examples(installed: &Path, room: &Path) {
    for file in ["Makefile", "client.c", "echo-server.c"] {
        fs::copy(workspace().join("examples/c").join(file), room.join(file)).unwrap();
    }
    let mut make = plain(program("make"));
    run(make.current_dir(room).env("PKG_CONFIG_PATH", installed.join("lib/pkgconfig"))).ok();
}

#[test]
fn installed_files_suffice_to_build_and_run_the_examples() {
    let place = tempfile::tempdir().unwrap();
    let prefix = place.path().join("prefix");
    let mut make = plain(program("make"));
    // The test build has already built everything: `CARGO=true` builds nothing.
    let profile = if target().ends_with("debug") { "PROFILE=dev" } else { "PROFILE=release" };
    make.current_dir(workspace())
        .args(["install-xio", "CARGO=true", profile])
        .arg(format!("PREFIX={}", prefix.display()));
    run(make.env("CARGO_TARGET_DIR", target().parent().unwrap()).env_remove("MAKEFLAGS")).ok();
    for file in [
        "bin/phoebus",
        "lib/libphoebus.so",
        "lib/libglobus_xio_phoebus_driver.so",
        "lib/phoebus/libphoebus_preload.so",
        "include/phoebus.h",
        "include/phoebus_handshake.h",
        "include/globus_xio_phoebus_driver.h",
        "lib/pkgconfig/phoebus.pc",
        "lib/systemd/system/phoebus-gateway.service",
        "share/man/man1/phoebus-gateway.1",
        "share/man/man3/phoebus_read.3",
        "share/man/man7/globus-xio-phoebus.7",
        "share/bash-completion/completions/phoebus",
        "share/zsh/site-functions/_phoebus",
        "share/fish/vendor_completions.d/phoebus.fish",
    ] {
        assert!(prefix.join(file).exists(), "{file}");
    }
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/phoebus-gateway.service")).unwrap();
    assert!(unit.contains(&format!("ExecStart={}/bin/phoebus gateway", prefix.display())), "{unit}");

    let library = fs::read(prefix.join("lib/libphoebus.so.0.1.0")).unwrap();
    let object = object::File::parse(&*library).unwrap();
    let exported: BTreeSet<_> = object
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .map(|symbol| symbol.name().unwrap().to_owned())
        .collect();
    assert_eq!(exported, declared(), "what is exported is what is declared, and nothing else");
    for name in declared() {
        assert!(prefix.join(format!("share/man/man3/{name}.3")).exists(), "{name} has no man page");
    }

    // Globus finds the driver on the linker's path, and the driver finds the library.
    let mut globus = plain(program("globus-xioperf"));
    globus.env("LD_LIBRARY_PATH", prefix.join("lib")).args([
        "-c",
        "127.0.0.1:1",
        "-S",
        "-n",
        "1K",
        "-D",
        "phoebus:gww=a/1",
    ]);
    let ended = run(&mut globus);
    let said = format!("{}{}", ended.out, ended.err);
    assert!(!ended.status.success() && said.contains("\"gww\" is no option"), "{said}");

    compile_examples(&prefix, place.path());
    let dynamic = run(plain("readelf").args(["-d"]).arg(place.path().join("client"))).ok();
    assert!(dynamic.contains("[libphoebus.so.0.1]"), "{dynamic}");

    // The server example is the destination of the client example, behind a gateway.
    let mut server = plain(place.path().join("echo-server"));
    let mut server = Server(server.args(["0", "name=dst"]).stdout(Stdio::piped()).spawn().unwrap());
    let mut out = BufReader::new(server.0.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let at = format!("127.0.0.1:{}", line.trim().strip_prefix("listening on port ").unwrap());
    let gateway = OneGateway::start(|_, _| {
        format!(
            "[[peer]]\nname = \"dst\"\naddress = \"{at}\"\nsecurity = \"none\"\n[[route]]\nto = \"dst.example\"\nvia = \"dst\"\n\
             [[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"dst.example\"]\n"
        )
    });
    let mut client = plain(place.path().join("client"));
    client.env("PHOEBUS_GW", gateway.address.to_string()).args(["dst.example", "7"]);
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let echoed = talk(&mut client, &sent);
    assert!(echoed == sent, "{} bytes came back", echoed.len());
}

/// A process that is killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the command with `bytes` as its input; returns its output.
fn talk(command: &mut Command, bytes: &[u8]) -> Vec<u8> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&bytes));
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    writer.join().unwrap().unwrap();
    ended.stdout
}
