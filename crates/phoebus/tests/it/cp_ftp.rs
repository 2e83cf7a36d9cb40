//! `phoebus cp` and the small commands with real FTP servers: vsftpd, ProFTPD, and our own (RFC 959, 3659, 4217).

mod cuts;
mod modes;
mod peers;

use crate::support;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use support::ftp::{Copy, Ftp, Tls, hidden};
use support::serve::{Serve, bytes, run};
use support::works::works;
use tempfile::{TempDir, tempdir};

/// The client's files, separate from those of the user of this machine.
struct Here(TempDir);

impl Here {
    fn new() -> Self {
        let here = Self(tempdir().unwrap());
        for (name, len) in [("a", 0), ("b b", 1), ("c;+[d].h5", 100_000), ("deep/e", 5_000_001), ("deep/er/é", 7)] {
            let path = here.path("src").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes(len)).unwrap();
            let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
            fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        here
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
        command.args(arguments).current_dir(self.0.path()).env("HOME", self.0.path()).stdin(Stdio::null());
        for name in ["NETRC", "PHOEBUS_FTP_USER", "PHOEBUS_FTP_PASSWORD", "SSL_CERT_FILE"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs it with success; what it wrote to standard output, and the last line of standard error.
    #[track_caller]
    fn does(&self, arguments: &[&str]) -> (String, String) {
        let (code, out, said) = says(&run(&mut self.command(arguments)));
        assert_eq!(code, 0, "{arguments:?}: {said}");
        (out, said.lines().last().unwrap_or_default().to_owned())
    }

    /// Runs it. It must fail with `code` and these words.
    #[track_caller]
    fn fails(&self, code: i32, words: &str, arguments: &[&str]) {
        let (found, _, said) = says(&run(&mut self.command(arguments)));
        assert!(found == code && said.contains(words), "{arguments:?}: {found}: {said}");
    }
}

fn says(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn same(one: &Path, other: &Path) {
    let diff = run(Command::new("diff").arg("-r").args([one, other]));
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
}

/// The features that [`everything`] tests.
const EVERYTHING: &str = "get put list manage tree part sync delete";

/// Tests all features with a server whose files at `url` are in `root`.
fn everything(here: &Here, url: impl Fn(&str) -> String, root: &Path, with: &[&str], keeps_times: bool) {
    let cp = |more: &[&str]| here.does(&[&["cp"], with, more].concat());
    let other = |verb: &str, more: &[&str]| here.does(&[&[verb], with, more].concat()).0;
    // A tree is uploaded and downloaded. Existing files are not copied again.
    cp(&["-r", "src", &url("")]);
    same(&here.path("src"), &root.join("src"));
    let (_, said) = cp(&["-r", "src", &url("")]);
    assert!(said.contains("nothing to do: 5 files are there"), "{said}");
    cp(&["-r", &url("src/"), "back"]);
    same(&here.path("src"), &here.path("back"));
    let (_, said) = cp(&["-r", &url("src/"), "back"]);
    assert!(said.contains("nothing to do: 5 files are there"), "{said}");
    if keeps_times {
        let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        assert_eq!(time(&root.join("src/deep/e")), time(&here.path("src/deep/e")));
        assert_eq!(time(&here.path("back/deep/e")), time(&here.path("src/deep/e")));
    }
    // Changed files replace the old ones.
    fs::write(here.path("src/b b"), "new").unwrap();
    let (_, said) = cp(&["-r", "src", &url("")]);
    assert!(said.contains("1 file copied, 3 B"), "{said}");
    assert_eq!(fs::read(root.join("src/b b")).unwrap(), b"new");
    // Names that the source lacks are deleted, and no others.
    other("mkdir", &["-p", &url("src/gone/er")]);
    cp(&["src/b b", &url("src/gone/er/x")]);
    cp(&["src/b b", &url("src/deep/y")]);
    here.fails(
        4,
        "more than 3 files",
        &[&["cp"], with, &["-r", "--delete", "--max-delete", "3", "src", &url("")]].concat(),
    );
    assert!(root.join("src/gone/er/x").exists() && root.join("src/deep/y").exists());
    let (_, said) = cp(&["-r", "--delete", "src", &url("")]);
    assert!(said.contains("4 deleted"), "{said}");
    same(&here.path("src"), &root.join("src"));
    fs::create_dir(here.path("back/gone")).unwrap();
    fs::write(here.path("back/gone/x"), "x").unwrap();
    let (_, said) = cp(&["-r", "--delete", &url("src/"), "back"]);
    assert!(said.contains("2 deleted"), "{said}");
    same(&here.path("src"), &here.path("back"));
    other("check", &["--by", "size", "src", &url("src")]);
    // Patterns, streams, and parts.
    cp(&[&url("src/*.h5"), "match/"]);
    assert_eq!(fs::read(here.path("match/c;+[d].h5")).unwrap(), bytes(100_000));
    let (out, _) = cp(&[&url("src/b%20b"), "-"]);
    assert_eq!(out, "new");
    assert_eq!(other("cat", &["--offset", "1", "--length", "1", &url("src/b b")]), "e");
    let mut pipe = here.command(&[&["cp"], with, &["-", &url("piped")]].concat());
    let mut pipe = pipe.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut pipe.stdin.take().unwrap(), &bytes(3_000_000)).unwrap();
    let (code, _, said) = says(&pipe.wait_with_output().unwrap());
    assert!(code == 0 && fs::read(root.join("piped")).unwrap() == bytes(3_000_000), "{said}");
    // Names.
    assert_eq!(other("ls", &[&url("src")]).lines().collect::<Vec<_>>(), ["a", "b b", "c;+[d].h5", "deep/"]);
    let listed = other("ls", &["--json", &url("src")]);
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&listed[2]["bytes"], &listed[3]["kind"]), (&Value::from(100_000), &Value::from("directory")));
    let stat: Value = serde_json::from_str(&other("stat", &["--json", &url("src/deep/e")])).unwrap();
    assert_eq!((&stat["bytes"], &stat["kind"]), (&Value::from(5_000_001), &Value::from("file")));
    other("mkdir", &["-p", &url("new/er")]);
    other("mv", &[&url("piped"), &url("new/er/name")]);
    assert!(root.join("new/er/name").exists() && !root.join("piped").exists());
    other("rm", &["-r", &url("new")]);
    assert!(!root.join("new").exists());
    // Missing names, and forbidden ones.
    let gone = url("gone");
    for arguments in [&["cp", &gone, "x"][..], &["ls", &gone], &["stat", &gone], &["cat", &gone], &["rm", &gone]] {
        here.fails(5, "does not exist", &[&arguments[..1], with, &arguments[1..]].concat());
    }
    here.fails(10, "exists", &[&["cp", "--existing", "refuse"], with, &["src/a", &url("src/a")]].concat());
    here.fails(10, "exists", &[&["mkdir"], with, &[&url("src")]].concat());
    assert_eq!(hidden(root), Vec::<String>::new());
}

/// Copies that are killed are resumed.
fn goes_on(here: &Here, url: impl Fn(&str) -> String, root: &Path, with: &[&str], puts: bool) {
    let content = bytes(40 << 20);
    fs::write(here.path("long"), &content).unwrap();
    let slow = |arguments: &[&str]| {
        let slow = ["cp", "-q", "--limit-rate", "30mbit"];
        Copy::start(here.command(&[&slow[..], with, arguments].concat()))
    };
    slow(&["long", &url("long")]).cut_amid(root, 4 << 20);
    assert!(!root.join("long").exists());
    let (_, said) = here.does(&[&["cp"], with, &["long", &url("long")]].concat());
    assert_eq!(said.contains("by an earlier run"), puts, "{said}");
    assert!(fs::read(root.join("long")).unwrap() == content);
    fs::remove_file(here.path("long")).unwrap();
    let drafts = with.iter().position(|one| *one == "--partial-dir").map_or("", |at| with[at + 1]);
    slow(&[&url("long"), "long"]).cut_when_noted(&here.path(drafts), "long");
    let (_, said) = here.does(&[&["cp"], with, &[&url("long"), "long"]].concat());
    assert!(said.contains("by an earlier run"), "{said}");
    assert!(fs::read(here.path("long")).unwrap() == content);
    assert_eq!(hidden(root), Vec::<String>::new());
}

/// The same with our own server, which hides incomplete files, and reports what it has synced.
fn goes_on_by_marks(here: &Here, serve: &Serve, with: &[&str]) {
    let content = bytes(40 << 20);
    fs::write(here.path("long"), &content).unwrap();
    let mut copy = Copy::start(
        here.command(&[&["cp", "-q", "--limit-rate", "20mbit"], with, &["long", &serve.url("long")]].concat()),
    );
    copy.until_marked(here.0.path());
    copy.cut();
    assert!(!serve.path("long").exists());
    let (_, said) = here.does(&[&["cp"], with, &["long", &serve.url("long")]].concat());
    assert!(said.contains("by an earlier run"), "{said}");
    assert!(fs::read(serve.path("long")).unwrap() == content);
    assert_eq!(hidden(&serve.path("")), Vec::<String>::new());
}

#[test]
fn vsftpd() {
    let (here, ftp) = (Here::new(), Ftp::vsftpd(Tls::None));
    everything(&here, |path| ftp.url("ftp", path), &ftp.path(""), &[], false);
    goes_on(&here, |path| ftp.url("ftp", path), &ftp.path(""), &[], true);
    fs::remove_file(ftp.path("long")).unwrap();
    goes_on(&here, |path| ftp.url("ftp", path), &ftp.path(""), &["--partial-dir", ".partial"], true);
    works("phoebus cp", "vsftpd", "password", &format!("{EVERYTHING} resume"));
}

#[test]
fn proftpd() {
    let (here, ftp) = (Here::new(), Ftp::proftpd(Tls::None, ""));
    everything(&here, |path| ftp.url("ftp", path), &ftp.path(""), &[], true);
    // By default, it does not let clients resume their uploads.
    goes_on(&here, |path| ftp.url("ftp", path), &ftp.path(""), &[], false);
    drop(ftp);
    let ftp = Ftp::proftpd(Tls::None, "AllowStoreRestart on");
    goes_on(&here, |path| ftp.url("ftp", path), &ftp.path(""), &[], true);
    drafts(&here, |path| ftp.url("ftp", path), &ftp.path(""), false);
    works("phoebus cp", "ProFTPD", "password", &format!("{EVERYTHING} resume"));
}

#[test]
fn our_server() {
    let (here, serve) = (Here::new(), Serve::writable());
    everything(&here, |path| serve.url(path), &serve.path(""), &[], true);
    goes_on_by_marks(&here, &serve, &[]);
    fs::remove_file(serve.path("long")).unwrap();
    goes_on_by_marks(&here, &serve, &["--partial-dir", ".partial"]);
    drafts(&here, |path| serve.url(path), &serve.path(""), true);
    fs::remove_file(serve.path("long")).unwrap();
    // The report says which files were verified, and which were not.
    let report = here.does(&["cp", "--json", "src/deep/e", &serve.url("e")]).0;
    let report: Value = serde_json::from_str(report.lines().last().unwrap()).unwrap();
    assert_eq!(report["not_verified"], Value::Array(Vec::new()));
    for sum in ["CRC32C", "MD5", "reread:SHA256"] {
        here.does(&["cp", "--existing", "replace", "--verify", sum, "src/deep/e", &serve.url("e")]);
        here.does(&["cp", "--existing", "replace", "--verify", sum, &serve.url("e"), "e"]);
    }
    works("phoebus cp", "phoebus serve", "anonymous", &format!("{EVERYTHING} resume sum"));
}

/// Drafts of interrupted transfers on servers.
fn drafts(here: &Here, url: impl Fn(&str) -> String, root: &Path, ours: bool) {
    fs::create_dir_all(root.join("left/deep")).unwrap();
    let mut names = vec![".a.0123456789abcdef.phoebus-part"];
    if ours {
        names.extend([
            "..b.0123456789abcdef.phoebus-part.phoebus-draft",
            "..b.0123456789abcdef.phoebus-part.phoebus-journal",
        ]);
    }
    for name in &names {
        fs::write(root.join("left/deep").join(name), "old").unwrap();
    }
    // Whichever user the server runs as.
    run(Command::new("chmod").args(["-R", "a+rwX"]).arg(root.join("left")));
    assert_eq!(here.does(&["ls", &url("left/deep")]).0, "");
    let listed = here.does(&["ls", "-a", &url("left/deep")]).0;
    for name in &names {
        assert!(listed.lines().any(|line| line == *name), "{name}: {listed}");
    }
    assert_eq!(here.does(&["clean", &url("left")]).0, "");
    let found = here.does(&["clean", "-n", "--min-age", "0s", &url("left")]).0;
    assert_eq!(found.lines().count(), names.len(), "{found}");
    if ours {
        let used = fs::File::open(root.join("left/deep").join(names[1])).unwrap();
        used.lock().unwrap();
        let (cleaned, said) = here.does(&["clean", "--json", "--min-age", "0s", &url("left")]);
        assert_eq!(cleaned.matches("\"event\":\"used\"").count(), 2, "{cleaned}{said}");
        assert_eq!(hidden(&root.join("left")).len(), 2);
    }
    here.does(&["clean", "--min-age", "0s", &url("left")]);
    assert_eq!(hidden(&root.join("left")), Vec::<String>::new());
    for name in &names {
        fs::write(root.join("left/deep").join(name), "old").unwrap();
    }
    run(Command::new("chmod").args(["-R", "a+rwX"]).arg(root.join("left")));
    here.does(&["rm", "-r", &url("left")]);
    assert!(!root.join("left").exists());
}

/// Many short files at once, up and down, and once more.
fn many(here: &Here, url: &str, root: &Path, with: &[&str]) {
    let source = here.path("many");
    fs::create_dir_all(source.join("deep")).unwrap();
    for i in 0..150 {
        let dir = if i % 3 == 0 { source.join("deep") } else { source.clone() };
        fs::write(dir.join(format!("f {i}")), bytes(i * 37)).unwrap();
    }
    let copy = |more: &[&str]| here.does(&[&["cp", "-r", "--transfers", "40"], with, more].concat()).1;
    for _ in 0..2 {
        let said = copy(&["many/", &format!("{url}many")]);
        assert!(said.starts_with("150 files copied"), "{said}");
        same(&source, &root.join("many"));
        let said = copy(&["many/", &format!("{url}many")]);
        assert!(said.starts_with("nothing to do: 150 files"), "{said}");
        copy(&[&format!("{url}many/"), "down"]);
        same(&source, &here.path("down"));
        fs::remove_dir_all(here.path("down")).unwrap();
        // With and without existing files.
        here.does(&[&["rm", "-r"], with, &[&format!("{url}many/deep")]].concat());
        fs::remove_dir_all(root.join("many")).unwrap();
    }
    assert_eq!(hidden(root), Vec::<String>::new());
}

#[test]
fn short_files_are_copied_many_at_a_time() {
    let here = Here::new();
    let (vsftpd, proftpd, serve) = (Ftp::vsftpd(Tls::None), Ftp::proftpd(Tls::None, ""), Serve::writable());
    many(&here, &vsftpd.url("ftp", ""), &vsftpd.path(""), &[]);
    many(&here, &proftpd.url("ftp", ""), &proftpd.path(""), &[]);
    many(&here, &serve.url(""), &serve.path(""), &[]);
    // A copy within one server carries all files through this end.
    fs::create_dir(serve.path("one")).unwrap();
    for i in 0..60 {
        fs::write(serve.path("one").join(i.to_string()), bytes(5000)).unwrap();
    }
    here.does(&["cp", "-r", "--transfers", "40", "--limit-rate", "10gbit", &serve.url("one/"), &serve.url("other")]);
    same(&serve.path("one"), &serve.path("other"));
}

#[test]
fn links_and_directories_behave_as_documented() {
    let (here, serve) =
        (Here::new(), Serve::configured("[anonymous]\nroot = \"ROOT\"\nread_only = false\naccount = \"daemon\"\n"));
    fs::create_dir_all(here.path("tree/d")).unwrap();
    std::os::unix::fs::symlink("d", here.path("tree/l")).unwrap();
    fs::set_permissions(serve.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    // Servers cannot make links.
    let (code, _, said) = says(&run(&mut here.command(&["cp", "-r", "tree", &serve.url("new")])));
    assert!(code == 4 && said.contains("l is a symbolic link to a directory, and was left out"), "{code} {said}");
    here.fails(5, "the directory above", &["cp", "-r", "tree/", &serve.url("a/b/c")]);
    here.fails(5, "(--parents makes it)", &["cp", "-r", "tree/", &serve.url("a/b/c")]);
    // The link is in a directory of root, and cannot be removed.
    fs::create_dir_all(serve.path("roots/d")).unwrap();
    std::os::unix::fs::symlink("d", serve.path("roots/l")).unwrap();
    here.fails(6, "ermission denied", &["rm", "-r", &serve.url("roots/l")]);
    assert!(serve.path("roots/l").exists());
}

#[test]
fn directory_is_not_replaced_by_a_file() {
    let (here, serve, ftp) = (Here::new(), Serve::writable(), Ftp::vsftpd(Tls::None));
    for (url, root) in [(serve.url("x"), serve.path("")), (ftp.url("ftp", "x"), ftp.path(""))] {
        here.does(&["mkdir", "-p", &format!("{url}/b b")]);
        fs::write(here.path("list"), format!("\"src/b b\" \"{url}/b b\"\n")).unwrap();
        // As a single file it is copied into that directory. In a tree, it would replace the directory.
        here.does(&["cp", "--list", "list"]);
        assert!(root.join("x/b b/b b").exists());
        let (code, _, said) = says(&run(&mut here.command(&["cp", "-r", "--attempts", "1", "src/", &url])));
        assert!(code == 4 && said.contains("b b is a directory"), "{code}: {said}");
        assert!(root.join("x/b b/b b").exists() && root.join("x/deep/e").exists());
        assert_eq!(hidden(&root), Vec::<String>::new());
    }
}

#[test]
fn missing_verification_is_reported() {
    let (here, ftp) = (Here::new(), Ftp::vsftpd(Tls::None));
    let (_, said) = here.does(&["cp", "src/deep/e", &ftp.url("ftp", "e")]);
    assert!(said.contains("only sizes were compared, since ftp://localhost"), "{said}");
    here.fails(8, "computes no", &["cp", "--verify", "CRC32C", "src/deep/e", &ftp.url("ftp", "f")]);
    assert!(!ftp.path("f").exists());
    here.does(&["cp", "--verify", "none", "src/deep/e", &ftp.url("ftp", "f")]);
}

#[test]
fn passwords_come_from_the_url_the_environment_or_netrc() {
    let (here, ftp) = (Here::new(), Ftp::proftpd(Tls::None, ""));
    ftp.write("x", b"x");
    let (bare, named) = (format!("ftp://localhost:{}/x", ftp.port), format!("ftp://jane@localhost:{}/x", ftp.port));
    here.does(&["stat", &ftp.url("ftp", "x")]);
    here.fails(6, "cannot log in to", &["stat", &bare]);
    here.fails(6, "asks for the password of jane", &["stat", &named]);
    let mut with = here.command(&["stat", &bare]);
    let (code, _, said) = says(&run(with.env("PHOEBUS_FTP_USER", "jane").env("PHOEBUS_FTP_PASSWORD", "s3cret")));
    assert_eq!(code, 0, "{said}");
    fs::write(here.path(".netrc"), "machine localhost\nlogin jane\npassword s3cret\n").unwrap();
    for url in [&bare, &named] {
        here.does(&["stat", url]);
    }
    let (code, _, said) =
        says(&run(&mut here.command(&["stat", &format!("ftp://jane:wr0ng@localhost:{}/x", ftp.port)])));
    assert!(code == 6 && said.contains("cannot log in to ftp://jane@localhost") && !said.contains("wr0ng"), "{said}");
}

#[test]
fn unreachable_servers_are_named() {
    let here = Here::new();
    let port = support::port::free();
    here.fails(11, "connection refused", &["ls", &format!("ftp://127.0.0.1:{port}/")]);
    here.fails(11, "cannot resolve no-such-host.invalid", &["ls", "ftp://no-such-host.invalid/"]);
}

#[test]
fn moved_file_is_removed_after_its_copy_is_there() {
    let (here, serve, ftp) = (Here::new(), Serve::writable(), Ftp::vsftpd(Tls::None));
    // To and from a server that computes no checksums.
    here.does(&["cp", "-r", "src/", "tree"]);
    here.does(&["mv", "tree", &serve.url("there")]);
    assert!(!here.path("tree").exists());
    here.does(&["mv", &serve.url("there"), &ftp.url("ftp", "on")]);
    assert!(!serve.path("there").exists());
    here.does(&["mv", &ftp.url("ftp", "on"), "back"]);
    assert!(!ftp.path("on").exists());
    same(&here.path("src"), &here.path("back"));
    // One file, under a new name.
    fs::write(here.path("one"), "one").unwrap();
    here.does(&["mv", "one", &ftp.url("ftp", "one")]);
    assert_eq!((fs::read(ftp.path("one")).unwrap(), here.path("one").exists()), (b"one".to_vec(), false));
    // Files that cannot be copied stay, and so do the directories above them. All others are moved.
    std::os::unix::fs::symlink("nowhere", here.path("back/deep/link")).unwrap();
    here.fails(
        4,
        "back/deep/link: a symbolic link cannot be copied, and stays where it is",
        &["mv", "back", &serve.url("there")],
    );
    assert!(here.path("back/deep/link").is_symlink() && !here.path("back/deep/e").exists());
    assert!(serve.path("there/deep/e").exists());
    // The target of a link is not moved either.
    std::os::unix::fs::symlink("src", here.path("link")).unwrap();
    here.fails(1, "a symbolic link cannot be moved there", &["mv", "link", &serve.url("link")]);
    assert!(here.path("src/deep/e").exists() && !serve.path("link").exists());
    // If the destination refuses a file, its source is not changed.
    let full = Serve::configured("[anonymous]\nroot = \"ROOT\"\nread_only = false\nquota = { bytes = \"1 MB\" }\n");
    here.fails(7, "", &["mv", "src/deep/e", &full.url("e")]);
    let reading = Serve::reading();
    here.fails(6, "", &["mv", "src/deep/e", &reading.url("e")]);
    assert_eq!(fs::metadata(here.path("src/deep/e")).unwrap().len(), 5_000_001);
    // The same if the name exists, and is to be kept.
    fs::write(serve.path("taken"), "taken").unwrap();
    here.fails(10, "", &["mv", "-n", "src/b b", &serve.url("taken")]);
    assert_eq!(fs::read(serve.path("taken")).unwrap(), b"taken");
    here.does(&["mv", "src/b b", &serve.url("taken")]);
    assert_eq!((fs::read(serve.path("taken")).unwrap(), here.path("src/b b").exists()), (bytes(1), false));
    // A file, and the same file by another name.
    let itself = serve.path("taken").display().to_string();
    here.fails(1, "is the same file by another name; it stays where it is", &["mv", &serve.url("taken"), &itself]);
    assert_eq!(fs::read(serve.path("taken")).unwrap(), bytes(1));
    assert_eq!(serve.hidden(), Vec::<String>::new());
    here.fails(5, "is no directory", &["mv", "src", &serve.url("no/such/")]);
}

#[test]
fn drafts_are_not_moved() {
    let (here, serve) = (Here::new(), Serve::writable());
    here.does(&["cp", "-r", "src/", "tree"]);
    let drafts = [".x.phoebus-draft", ".y.0123456789abcdef.phoebus-part"];
    fs::create_dir(serve.path("there")).unwrap();
    for name in drafts {
        fs::write(here.path("tree/deep").join(name), "near").unwrap();
        fs::write(serve.path("there").join(name), "far").unwrap();
    }
    // Its directory cannot be removed.
    here.fails(4, "deep", &["mv", "tree", &serve.url("there")]);
    assert!(serve.path("there/tree/deep/e").exists() && !here.path("tree/deep/e").exists());
    for name in drafts {
        assert_eq!(fs::read(here.path("tree/deep").join(name)).unwrap(), b"near");
        assert_eq!(fs::read(serve.path("there").join(name)).unwrap(), b"far");
        assert!(!serve.path("there/tree/deep").join(name).exists());
    }
    // A mirror does not delete them either.
    here.does(&["cp", "-r", "--delete", "src/", &serve.url("there/")]);
    assert!(!serve.path("there/tree").exists() && drafts.iter().all(|name| serve.path("there").join(name).exists()));
}

#[test]
fn server_without_rename_is_written_in_place() {
    let here = Here::new();
    let ftp = Ftp::proftpd(Tls::None, "<Limit RNFR RNTO>\n DenyAll\n</Limit>");
    here.fails(6, "RNFR", &["cp", "src/deep/e", &ftp.url("ftp", "e")]);
    assert!(!ftp.path("e").exists());
    here.does(&["cp", "--in-place", "src/deep/e", &ftp.url("ftp", "e")]);
    same(&here.path("src/deep/e"), &ftp.path("e"));
    assert_eq!(hidden(&ftp.path("")), Vec::<String>::new());
}

/// All features over TLS, and refusals.
fn protected(here: &Here, ftp: &Ftp, keeps_times: bool) {
    let authority = ftp.authority().display().to_string();
    let with = ["--ca", &authority];
    everything(here, |path| ftp.url("ftps", path), &ftp.path(""), &with, keeps_times);
    // Many files, each over a data connection that resumes the session.
    fs::create_dir(here.path("many")).unwrap();
    for i in 0..40 {
        fs::write(here.path("many").join(i.to_string()), i.to_string()).unwrap();
    }
    here.does(&["cp", "-r", "--ca", &authority, "many", &ftp.url("ftps", "")]);
    same(&here.path("many"), &ftp.path("many"));
    here.does(&["cp", "-r", "--transfers", "1", "--ca", &authority, &ftp.url("ftps", "many/"), "down"]);
    same(&here.path("many"), &here.path("down"));
    fs::remove_dir_all(ftp.path("many")).unwrap();
    here.fails(6, "its certificate signs for itself", &["ls", &ftp.url("ftps", "")]);
    here.fails(
        6,
        "another host's",
        &["ls", "--ca", &authority, &ftp.url("ftps", "").replace("localhost", "127.0.0.1")],
    );
    here.fails(2, "cannot read", &["ls", "--ca", "/gone", &ftp.url("ftps", "")]);
    // With the options and schemes that other clients use.
    here.does(&["cp", "--ca", &authority, "src/deep/e", &ftp.url("ftpes", "explicit")]);
    here.does(&["cp", "--ssl-reqd", "--ca", &authority, &ftp.url("ftp", "explicit"), "explicit"]);
    same(&here.path("src/deep/e"), &here.path("explicit"));
    fs::remove_file(ftp.path("explicit")).unwrap();
}

#[test]
fn vsftpd_under_tls() {
    let (here, ftp) = (Here::new(), Ftp::vsftpd(Tls::Any));
    protected(&here, &ftp, false);
    works("phoebus cp", "vsftpd", "password, TLS", &format!("{EVERYTHING} private"));
}

#[test]
fn proftpd_under_tls() {
    for version in [Tls::V12, Tls::Any] {
        let (here, ftp) = (Here::new(), Ftp::proftpd(version, ""));
        protected(&here, &ftp, true);
        // The server requires TLS, and refuses logins in the clear. A server without TLS refuses clients that require
        // it.
        here.fails(6, "550 SSL/TLS required", &["ls", &ftp.url("ftp", "")]);
    }
    let (here, plain) = (Here::new(), Ftp::proftpd(Tls::None, ""));
    here.fails(6, "TLS was asked for", &["ls", &plain.url("ftps", "")]);
    here.fails(6, "TLS was asked for", &["ls", &plain.url("ftpes", "")]);
    here.fails(6, "TLS was asked for", &["ls", "--explicit-tls", &plain.url("ftp", "")]);
    works("phoebus cp", "ProFTPD", "password, TLS", &format!("{EVERYTHING} private"));
}

#[test]
fn our_server_under_tls() {
    let here = Here::new();
    let certificate = support::ftp::certificate(here.0.path());
    let serve = Serve::configured(&format!(
        "[anonymous]\nroot = \"ROOT\"\nread_only = false\n[tls]\ncertificate = \"{}\"\nkey = \"{}\"\n",
        certificate.0.display(),
        certificate.1.display()
    ));
    let url = |path: &str| format!("ftps://localhost:{}/{path}", serve.port());
    let authority = certificate.0.display().to_string();
    everything(&here, url, &serve.path(""), &["--ca", &authority], true);
    everything_in_parallel(&here, &url, &["--ca", &authority]);
    works("phoebus cp", "phoebus serve", "anonymous, TLS", &format!("{EVERYTHING} parallel private"));
}

/// Streams in parallel under TLS, which only our own server has.
fn everything_in_parallel(here: &Here, url: &impl Fn(&str) -> String, with: &[&str]) {
    here.does(&[&["cp", "--streams", "3", "--existing", "replace"], with, &["src/deep/e", &url("e")]].concat());
    here.does(&[&["cp", "--streams", "3", "--existing", "replace"], with, &[&url("e"), "e"]].concat());
    same(&here.path("src/deep/e"), &here.path("e"));
}

#[test]
fn files_are_copied_between_servers() {
    let (here, vsftpd, proftpd) = (Here::new(), Ftp::vsftpd(Tls::None), Ftp::proftpd(Tls::None, ""));
    let closed = Ftp::proftpd(Tls::None, "<Limit PORT EPRT>\n DenyAll\n</Limit>");
    let tls = Ftp::proftpd(Tls::Any, "");
    let content = bytes(5_000_001);
    let authority = tls.authority().display().to_string();
    for (from, to, scheme, directly) in [
        (&vsftpd, &proftpd, "ftp", true),
        (&proftpd, &vsftpd, "ftp", true),
        (&closed, &vsftpd, "ftp", false),
        (&tls, &vsftpd, "ftps", false),
    ] {
        from.write("source", &content);
        let said =
            here.does(&["cp", "--json", "--ca", &authority, &from.url(scheme, "source"), &to.url("ftp", "target")]).0;
        let report: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        assert_eq!(report["bytes_between_servers"] == report["bytes"], directly, "{}: {report}", from.log());
        assert!(fs::read(to.path("target")).unwrap() == content);
        fs::remove_file(to.path("target")).unwrap();
        assert_eq!(hidden(&to.path("")), Vec::<String>::new());
    }
    works("phoebus cp", "vsftpd", "password", "third:ProFTPD");
    works("phoebus cp", "ProFTPD", "password", "third:vsftpd");
}
