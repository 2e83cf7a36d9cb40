//! Clients of other projects (U1, U7): gfal2, over FTP and with certificates, rclone, Perl's Net::FTP, commons-net, Go's jlaffaye/ftp
//! and aria2c.

use crate::support;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use support::lab::Lab;
use support::works::works;
use support::{Serve, bytes, ok, run};

const SIGABRT: i32 = 6;

/// What one of gfal2's tools printed if it did its work. On a busy machine, a tool sometimes crashes after its work, so
/// the tests check the result in any case.
fn did(output: &Output) -> String {
    let fell = String::from_utf8_lossy(&output.stderr).contains("free(): invalid pointer");
    match output.status.signal() {
        Some(SIGABRT) if fell => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => ok(output),
    }
}

/// Everything that gfal2 does with a server, under one of its addresses. `gfal` makes the command of a tool.
fn gfal2(serve: &Serve, base: &str, login: &str, gfal: impl Fn(&str) -> Command) {
    let content = bytes(3_000_001);
    let (there, here) = (|path: &str| format!("{base}/{path}"), |path: &str| serve.local().join(path));
    let local = |path: &str| format!("file://{}", here(path).display());
    let tool = |name: &str, arguments: &[&str]| -> Output { run(gfal(name).args(arguments)) };
    fs::create_dir(serve.path("d")).unwrap();
    fs::write(serve.path("d/source"), &content).unwrap();

    let listed = did(&tool("gfal-ls", &["-l", &there("d")]));
    assert!(listed.contains(" 3000001 ") && listed.contains("source"), "{listed}");
    let stat = did(&tool("gfal-stat", &[&there("d/source")]));
    assert!(stat.contains("Size: 3000001"), "{stat}");
    for streams in [&[][..], &["-n", "4"]] {
        did(&tool("gfal-copy", &[&["-f"], streams, &[&there("d/source"), &local("got")]].concat()));
        assert!(fs::read(here("got")).unwrap() == content, "get {streams:?}");
        // Compared by a checksum of either end.
        let to = there("new/dir/target");
        did(&tool("gfal-copy", &[&["-f", "-p", "-K", "ADLER32"], streams, &[&local("got"), &to]].concat()));
        assert!(fs::read(serve.path("new/dir/target")).unwrap() == content, "put {streams:?}");
    }
    // Between servers; here, both are this one.
    did(&tool("gfal-copy", &["-f", &there("d/source"), &there("third")]));
    assert!(fs::read(serve.path("third")).unwrap() == content);
    let sum = did(&tool("gfal-sum", &[&there("third"), "MD5"]));
    let expected = ok(&run(Command::new("md5sum").arg(serve.path("third"))));
    assert!(sum.trim().ends_with(expected.split(' ').next().unwrap()), "{sum} {expected}");

    did(&tool("gfal-rename", &[&there("third"), &there("new/third")]));
    assert!(serve.path("new/third").exists() && !serve.path("third").exists());
    did(&tool("gfal-chmod", &["700", &there("new/dir")]));
    assert_eq!(fs::metadata(serve.path("new/dir")).unwrap().permissions().mode() & 0o777, 0o700);
    fs::write(serve.path("text"), "hello\n").unwrap();
    assert_eq!(did(&tool("gfal-cat", &[&there("text")])), "hello\n");
    did(&tool("gfal-mkdir", &["-p", &there("a/b/c")]));
    assert!(serve.path("a/b/c").is_dir());
    for directory in ["new", "a"] {
        did(&tool("gfal-rm", &["-r", &there(directory)]));
        assert!(!serve.path(directory).exists(), "{directory}");
    }
    let refused = tool("gfal-copy", &[&there("nothing"), &local("nothing")]);
    assert!(!refused.status.success() && !here("nothing").exists(), "{refused:?}");
    assert_eq!(serve.hidden(), Vec::<String>::new());
    works("gfal2", "phoebus serve", login, "get put list manage sum parallel third:phoebus_serve");
}

/// Debian's modules are those of Debian's Python.
fn python(mut command: Command) -> Command {
    command.env("GFAL_PYTHONBIN", "/usr/bin/python3");
    command
}

#[test]
fn gfal2_by_ftp() {
    let serve = Serve::with(|config| config.anonymous.as_mut().unwrap().third_party = true);
    gfal2(&serve, serve.url("").trim_end_matches('/'), "anonymous", |tool| python(Command::new(tool)));
}

#[test]
fn gfal2_with_certificates() {
    let lab = Lab::new();
    let serve = Serve::to_grid(&lab);
    gfal2(&serve, &format!("gsiftp://localhost:{}", serve.port()), "certificate", |tool| {
        let mut command = python(Command::new(tool));
        lab.with_proxy(&mut command, "proxy");
        command
    });
}

#[test]
fn rclone() {
    let serve = Serve::writable();
    let content = bytes(2_000_001);
    fs::create_dir_all(serve.local().join("tree/d")).unwrap();
    for name in ["tree/a b", "tree/d/c"] {
        fs::write(serve.local().join(name), &content).unwrap();
    }
    let password = ok(&run(Command::new("rclone").args(["obscure", "me@"])));
    let remote = format!(":ftp,host=127.0.0.1,port={},user=anonymous,pass={}:", serve.port(), password.trim());
    let rclone = |arguments: &[&str]| {
        let mut command = Command::new("rclone");
        ok(&run(command.env("RCLONE_CONFIG", "/dev/null").args(["--retries", "1"]).args(arguments)))
    };
    let (local, there) = (serve.local().join("tree").display().to_string(), format!("{remote}/new/tree"));
    rclone(&["sync", &local, &there]);
    for name in ["a b", "d/c"] {
        assert!(fs::read(serve.path("new/tree").join(name)).unwrap() == content, "{name}");
    }
    rclone(&["check", "--download", &local, &there]);
    // Files that are gone at the source are removed at the destination, and no other file is sent again.
    fs::remove_file(serve.local().join("tree/a b")).unwrap();
    rclone(&["sync", &local, &there]);
    assert!(!serve.path("new/tree/a b").exists() && serve.path("new/tree/d/c").exists());
    let back = serve.local().join("back").display().to_string();
    rclone(&["copy", &there, &back]);
    assert!(fs::read(serve.local().join("back/d/c")).unwrap() == content);
    rclone(&["moveto", &format!("{there}/d/c"), &format!("{remote}/moved")]);
    assert_eq!(rclone(&["lsf", "--format", "sp", &format!("{remote}/")]), "2000001;moved\n-1;new/\n");
    // One byte, whatever character it is as text.
    assert_eq!(rclone(&["cat", "--offset", "2000000", &format!("{remote}/moved")]).chars().count(), 1);
    rclone(&["purge", &format!("{remote}/new")]);
    assert!(!serve.path("new").exists());
    assert_eq!(serve.hidden(), Vec::<String>::new());
    works("rclone", "phoebus serve", "anonymous", "get put list manage tree part sync");
}

/// Uploads and downloads by a client library.
fn put_and_got(serve: &Serve) -> String {
    let file = serve.local().join("content");
    fs::write(&file, bytes(2_000_001)).unwrap();
    file.display().to_string()
}

#[test]
fn perls_net_ftp() {
    const SCRIPT: &str = r#"
use strict; use Net::FTP;
my ($port, $file) = @ARGV;
my $f = Net::FTP->new("127.0.0.1", Port => $port, Passive => 1, Timeout => 60) or die $@;
my $must = sub { $_[0] or die $f->code . " " . $f->message };
$must->($f->login("anonymous", "me\@"));
$must->($f->binary);
$must->($f->mkdir("perl"));
$must->($f->put($file, "perl/a b"));
$must->($f->size("perl/a b") == 2000001);
$must->($f->mdtm("perl/a b") > 1e9);
$must->(join(",", $f->ls("perl")) =~ /a b$/);
$must->(join("\n", $f->dir("perl")) =~ / 2000001 .* a b$/);
$must->($f->get("perl/a b", "$file.got"));
$must->($f->rename("perl/a b", "perl/b"));
# An aborted transfer leaves the session intact.
my $data = $f->retr("perl/b"); $must->($data); $data->read(my $some, 100); $data->abort;
$must->($f->pwd eq "/");
$must->($f->delete("perl/b") && $f->rmdir("perl"));
$f->quit;
"#;
    let serve = Serve::writable();
    let file = put_and_got(&serve);
    ok(&run(Command::new("perl").args(["-e", SCRIPT, &serve.port().to_string(), &file])));
    assert!(fs::read(format!("{file}.got")).unwrap() == fs::read(&file).unwrap());
    assert_eq!(serve.hidden(), Vec::<String>::new());
    works("Net::FTP", "phoebus serve", "anonymous", "get put list manage");
}

#[test]
fn commons_net() {
    let serve = Serve::writable();
    let file = put_and_got(&serve);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/Net.java");
    let mut java = Command::new("java");
    java.args(["-cp", "/usr/share/java/commons-net.jar", source, &serve.port().to_string(), &file]);
    ok(&run(&mut java));
    assert_eq!(serve.hidden(), Vec::<String>::new());
    works("commons-net", "phoebus serve", "anonymous", "get put list manage part");
}

#[test]
fn gos_jlaffaye_ftp() {
    let serve = Serve::writable();
    let file = put_and_got(&serve);
    // `scripts/test` has downloaded the modules. The build is kept.
    let cache = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    let mut go = Command::new("go");
    go.args(["run", ".", &format!("127.0.0.1:{}", serve.port()), &file]);
    go.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/go"));
    go.env("GOCACHE", cache.join("build"))
        .env("GOPATH", cache.join("path"))
        .env("GOPROXY", "off")
        .env("GOFLAGS", "-mod=readonly -modcacherw");
    ok(&run(&mut go));
    assert!(!serve.path("go").exists());
    assert_eq!(serve.hidden(), Vec::<String>::new());
    works("jlaffaye/ftp", "phoebus serve", "anonymous", "get put list manage tree part");
}

#[test]
fn aria2c() {
    let serve = Serve::writable();
    let content = bytes(3_000_001);
    fs::create_dir_all(serve.path("d")).unwrap();
    fs::write(serve.path("d/a b"), &content).unwrap();
    let (url, to) = (serve.url("d/a%20b"), serve.local());
    let aria = |more: &[&str]| {
        let mut command = Command::new("aria2c");
        command
            .args(["--no-conf", "--allow-overwrite=true", "-q", "-d"])
            .arg(&to)
            .args(["-o", "aria"])
            .args(more)
            .arg(&url);
        ok(&run(&mut command));
        assert!(fs::read(serve.local().join("aria")).unwrap() == content, "{more:?}");
        fs::remove_file(serve.local().join("aria")).unwrap();
    };
    // aria2 1.36 overlooks a 226 that arrives together with the 150, as any fast server may send it. It then has the
    // file, and waits for its time-out of 60 s.
    let quick = ["--timeout", "5"];
    // Over one connection, and over several that each take a part.
    aria(&quick);
    aria(&[&quick[..], &["-x", "4", "-s", "4", "-k", "1M"]].concat());
    works("aria2c", "phoebus serve", "anonymous", "get part");
}
