//! `phoebus cp` with unusual input: odd names, growing files, unreadable files, full disks. From and to our own server
//! and the toolkit's.

use crate::support;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use support::ftp::hidden;
use support::grid::gct::Gct;
use support::grid::ok;
use support::here::{Here, says};
use support::serve::{Serve, bytes, run};
use tempfile::tempdir;

/// Names with a special meaning to the shell, URLs, FTP listings or patterns.
const ASCII: &[&str] = &[
    "a b",
    " lead",
    "tail ",
    "-dash",
    "*star",
    "q?[m]",
    "{x,y}",
    "semi;colon",
    "quote\"x",
    "it's",
    "back\\slash",
    "tab\there",
    "percent%20x",
    "hash#x",
    "a:b",
    "~",
    "~x",
    ".hidden",
    "...",
    "&|<>$(x)`x`",
];

const OTHERS: &[&[u8]] =
    &["ünï–çödé✓".as_bytes(), "ä b/ö".as_bytes(), b"no\xff\xfetext", b"c\x1b[2Jx", "n\u{308}".as_bytes()];

fn write(dir: &Path, name: &[u8], content: &[u8]) {
    let path = dir.join(OsStr::from_bytes(name));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn report(said: &str) -> Value {
    said.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap_or_else(|| panic!("no report: {said}"))
}

#[track_caller]
fn same(one: &Path, other: &Path) {
    ok(&run(Command::new("diff").arg("-r").args([one, other])));
}

#[test]
fn unusual_names_survive() {
    let (here, serve, gct, root) = (Here::new(None), Serve::writable(), Gct::anonymous(), tempdir().unwrap());
    for name in ASCII {
        write(&here.path("odd"), name.as_bytes(), name.as_bytes());
    }
    write(&here.path("odd"), b"empty", b"");
    write(&here.path("odd"), b"{x}/*/?", b"deep");
    fs::create_dir(here.path("odd/nothing")).unwrap();
    fs::create_dir(here.path("all")).unwrap();
    ok(&run(Command::new("cp").args(["-a"]).args([here.path("odd/."), here.path("all")])));
    for name in OTHERS {
        write(&here.path("all"), name, name);
    }
    let toolkits = |path: &str| gct.url(&root.path().join(path));
    here.does(&["cp", "-r", "odd/", &toolkits("odd")]);
    here.does(&["cp", "-r", &toolkits("odd/"), "from-gct"]);
    same(&here.path("odd"), &root.path().join("odd"));
    same(&here.path("odd"), &here.path("from-gct"));
    here.does(&["cp", "-r", "all/", &serve.url("all")]);
    here.does(&["cp", "-r", &serve.url("all/"), "from-ours"]);
    same(&here.path("all"), &serve.path("all"));
    same(&here.path("all"), &here.path("from-ours"));
    assert!(here.does(&["cp", "-r", "all/", &serve.url("all")]).contains("nothing to do"));
    // One of these names is also a pattern that others match.
    for url in [serve.url("all"), toolkits("odd")] {
        assert_eq!(here.does(&["cat", &format!("{url}/*star")]), "*star");
        assert_eq!(here.does(&["cat", &format!("{url}/q%3F[[]m]")]), "q?[m]");
        assert_eq!(here.does(&["cat", &format!("{url}/percent%2520x")]), "percent%20x");
    }
    here.does(&["rm", "-r", &serve.url("all"), &toolkits("odd")]);
    assert!(!serve.path("all").exists() && !root.path().join("odd").exists());
}

#[test]
fn similar_names_are_kept_apart() {
    let (here, serve, gct, root) = (Here::new(None), Serve::writable(), Gct::anonymous(), tempdir().unwrap());
    let toolkits = |path: &str| gct.url(&root.path().join(path));
    // The toolkit's server drops what is not printable ASCII, and would return "n" for "né".
    write(root.path(), b"n", b"another");
    write(root.path(), "né".as_bytes(), b"this");
    for arguments in [
        &["cp", &toolkits("né"), "back"][..],
        &["cat", &toolkits("né")],
        &["stat", &toolkits("né")],
        &["rm", &toolkits("né")],
        &["mkdir", &toolkits("é")],
        &["mv", &toolkits("n"), &toolkits("ñ")],
        &["ls", &toolkits("é")],
        &["cp", "-r", &toolkits("é"), "back"],
    ] {
        here.fails(1, "leaves out what of a name is no printable ASCII", arguments);
    }
    assert!(!here.path("back").exists() && root.path().join("n").exists());
    write(&here.path("src"), "né".as_bytes(), b"this");
    write(&here.path("src"), b"m", b"m");
    here.fails(4, "leaves out what of a name is no printable ASCII", &["cp", "-r", "src/", &toolkits("put")]);
    assert_eq!(fs::read_dir(root.path().join("put")).unwrap().count(), 1);
    // FTP cannot express a name with a line end. The other files are copied.
    for name in ["two\nlines", "cr\rhere"] {
        write(&here.path("ends"), name.as_bytes(), b"x");
    }
    write(&here.path("ends"), b"other", b"x");
    for (url, dir) in [(serve.url("ends"), serve.path("ends")), (toolkits("ends"), root.path().join("ends"))] {
        here.fails(4, "a name with a line end in it", &["cp", "-r", "ends/", &url]);
        assert_eq!((fs::read_dir(&dir).unwrap().count(), hidden(&dir).len()), (1, 0));
        // Existing files with such names do no harm.
        write(&dir, b"two\nlines", b"x");
        let back = dir.file_name().unwrap().to_str().unwrap().to_owned() + &url.len().to_string();
        let (code, said) = says(&run(&mut here.command(&["cp", "-r", &format!("{url}/"), &back])));
        assert!(code == 4 && here.path(&back).join("other").exists(), "{code}: {said}");
        assert_eq!(fs::read_dir(here.path(&back)).unwrap().count(), 1);
    }
}

#[test]
fn special_files_are_left_out_and_named() {
    let (here, serve) = (Here::new(None), Serve::writable());
    write(&here.path("src"), b"dir/file", b"x");
    for (to, name) in [("nowhere", "dangling"), ("loop", "loop"), ("dir", "to-dir"), ("dir/file", "to-file")] {
        symlink(to, here.path("src").join(name)).unwrap();
    }
    ok(&run(Command::new("mkfifo").arg(here.path("src/pipe"))));
    let sparse = fs::File::create(here.path("src/sparse")).unwrap();
    sparse.set_len(30 << 20).unwrap();
    let (code, said) = says(&run(&mut here.command(&["cp", "-r", "src/", &serve.url("x")])));
    assert_eq!(code, 4, "{said}");
    for name in ["dangling", "loop", "to-dir", "pipe"] {
        assert!(said.contains(name), "{name}: {said}");
    }
    assert!(
        fs::read(serve.path("x/to-file")).unwrap() == b"x"
            && serve.path("x/sparse").metadata().unwrap().len() == 30 << 20
    );
    assert_eq!(fs::read_dir(serve.path("x")).unwrap().count(), 3);
}

#[test]
fn growing_file_is_copied_in_its_final_state() {
    let (here, serve, gct, root) = (Here::new(None), Serve::writable(), Gct::anonymous(), tempdir().unwrap());
    for (url, path) in
        [(serve.url("log"), serve.path("log")), (gct.url(&root.path().join("log")), root.path().join("log"))]
    {
        fs::write(here.path("log"), bytes(3_000_000)).unwrap();
        let mut copy = here.command(&["cp", "--limit-rate", "5mbit", "log", &url]);
        let copy = copy.stderr(Stdio::piped()).spawn().unwrap();
        support::wait_until(|| !hidden(path.parent().unwrap()).is_empty(), || "nothing is copied".to_owned());
        fs::File::options().append(true).open(here.path("log")).unwrap().write_all(b"more").unwrap();
        let (code, said) = says(&copy.wait_with_output().unwrap());
        assert_eq!(code, 0, "{said}");
        assert!(fs::read(&path).unwrap() == fs::read(here.path("log")).unwrap(), "{said}");
        assert_eq!(hidden(path.parent().unwrap()), Vec::<String>::new(), "{said}");
    }
}

#[test]
fn unreadable_files_are_named_and_others_copied() {
    let (here, serve) = (Here::new(None), Serve::writable());
    for name in ["src/a", "src/shut/b", "src/c", "src/open/d"] {
        write(&here.path(""), name.as_bytes(), name.as_bytes());
    }
    let mode = |path: &Path, mode: &str| drop(ok(&run(Command::new("chmod").arg(mode).arg(path))));
    mode(&here.path("src/shut"), "000");
    mode(&here.path("src/c"), "000");
    // The tests may run as root, which otherwise ignores modes.
    let copy = |arguments: &[&str]| {
        let client = here.command(arguments);
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-dac_override,-dac_read_search", "--"]).arg(client.get_program());
        command.args(client.get_args()).current_dir(here.path("")).env("HOME", here.path(""));
        says(&run(&mut command))
    };
    let (code, said) = copy(&["cp", "--json", "--attempts", "1", "-r", "src/", &serve.url("x")]);
    assert!(code == 4 && report(&said)["failed"] == 2, "{code}: {said}");
    assert!(said.contains("src/c") && said.contains("src/shut"), "{said}");
    for name in ["a", "open/d"] {
        assert!(serve.path("x").join(name).exists(), "{name}: {said}");
    }
    mode(&here.path("src/shut"), "700");
    mode(&here.path("src/c"), "600");
    // In the other direction, the directory cannot be written to.
    fs::create_dir_all(here.path("down/open")).unwrap();
    mode(&here.path("down/open"), "500");
    let (code, said) = copy(&["cp", "--json", "-r", &serve.url("x/"), "down"]);
    assert!(code == 4 && said.contains("down/open/d") && here.path("down/a").exists(), "{code}: {said}");
}

#[test]
fn full_disk_is_reported_and_nothing_left() {
    let (here, serve, dir) = (Here::new(None), Serve::writable(), tempdir().unwrap());
    fs::write(serve.path("long"), bytes(3_000_000)).unwrap();
    fs::write(serve.path("short"), bytes(3000)).unwrap();
    // 1 MiB, in a mount namespace of its own.
    let script = "mount -t tmpfs -o size=1m none \"$0\" && cd \"$0\" && \"$@\"; code=$?; ls -A; exit $code";
    let small = |arguments: &[&str]| {
        let client = here.command(arguments);
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).arg(dir.path()).arg(client.get_program()).args(client.get_args());
        says(&run(command.env("HOME", here.path(""))))
    };
    let (code, said) = small(&["cp", "-q", &serve.url("short"), &serve.url("long"), "."]);
    assert!(code == 7 && said.contains("no space for"), "{code}: {said}");
    assert!(!said.lines().any(|line| line == "long"), "{said}");
    // The toolkit's server with such a disk.
    let root = dir.path().display().to_string();
    let mut command = Command::new("unshare");
    let server = "mount -t tmpfs -o size=1m none \"$0\" && exec globus-gridftp-server \"$@\"";
    command.args(["-m", "sh", "-c", server, &root]);
    let gct = Gct::started(&mut command, &[]);
    fs::write(here.path("long"), bytes(3_000_000)).unwrap();
    here.fails(7, "no space for", &["cp", "--attempts", "1", "long", &gct.url(&dir.path().join("long"))]);
    assert_eq!(here.does(&["ls", "-a", &gct.url(dir.path())]), "");
}

#[test]
fn limit_on_file_sizes_fails_one_file_and_ends_nobody() {
    let (here, serve) = (Here::new(None), Serve::writable());
    fs::write(here.path("long"), bytes(3_000_000)).unwrap();
    fs::write(here.path("short"), bytes(3000)).unwrap();
    let limit = |pid: u32| {
        let mut prlimit = Command::new("prlimit");
        prlimit.args([format!("--pid={pid}"), "--fsize=1000000".to_owned()]);
        assert!(prlimit.status().unwrap().success());
    };
    limit(serve.pid());
    here.fails(7, "452", &["cp", "--attempts", "1", "long", &serve.url("long")]);
    here.does(&["cp", "short", &serve.url("short")]);
    // The client itself: a single file, and the remaining files of a tree.
    let client = here.command(&["cp", "-r", "long", "short", "new/"]);
    fs::create_dir(here.path("new")).unwrap();
    let mut limited = Command::new("prlimit");
    limited.arg("--fsize=1000000").arg(client.get_program()).args(client.get_args());
    let (code, said) = says(&run(limited.env("HOME", here.path("")).current_dir(here.path(""))));
    assert!(code == 7 && said.contains("no space for"), "{code}: {said}");
    assert!(!here.path("new/long").exists());
}
