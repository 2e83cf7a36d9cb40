//! `phoebus mv` of directories that have to be copied: their destinations, and how an interrupted move is resumed.

use crate::support;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::ftp::{Ftp, Tls};
use support::serve::{Serve, run};
use tempfile::{TempDir, tempdir};

struct Here(TempDir);

impl Here {
    /// A directory `tree`, with files in it and below it.
    fn new() -> Self {
        let here = Self(tempdir().unwrap());
        here.write("tree/a/f");
        here.write("tree/g");
        here
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str) {
        write(&self.path(name));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
        command.arg("mv").args(arguments).current_dir(self.0.path()).env("HOME", self.0.path()).stdin(Stdio::null());
        command
    }

    /// The exit code and the messages.
    fn moves(&self, arguments: &[&str]) -> (Option<i32>, String) {
        says(&run(&mut self.command(arguments)))
    }
}

fn says(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A file whose content is its path.
fn write(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, path.display().to_string()).unwrap();
}

#[test]
fn partly_moved_directory_is_not_split() {
    let (here, serve) = (Here::new(), Serve::writable());
    let new = serve.url("new");
    // Remains of an earlier move: a directory, or the draft of a file.
    for left in ["new/a/other", "new/.g.0123456789abcdef.phoebus-part"] {
        let _ = fs::remove_dir_all(serve.path("new"));
        write(&serve.path(left));
        let (code, said) = here.moves(&["tree", &new]);
        let both = said.contains("\"phoebus mv -T /") && said.contains("/new/\" as the destination");
        assert!(code == Some(10) && both, "{left}: {code:?} {said}");
        assert!(here.path("tree/a/f").exists() && !serve.path("new/tree").exists(), "{left}");
    }
    // The two commands that the message names.
    assert_eq!(here.moves(&["-T", "tree", &new]), (Some(0), String::new()));
    assert!(!here.path("tree").exists() && serve.path("new/a/f").exists() && serve.path("new/g").exists());
    here.write("tree/a/f");
    assert_eq!(here.moves(&["tree", &serve.url("new/")]), (Some(0), String::new()));
    assert!(!here.path("tree").exists() && serve.path("new/tree/a/f").exists());
    // Without a common name, the move needs no decision of the user.
    here.write("else/b");
    assert_eq!(here.moves(&["else", &new]), (Some(0), String::new()));
    assert!(serve.path("new/else/b").exists());
}

#[test]
fn same_name_as_destination_is_accepted() {
    let here = Here::new();
    fs::create_dir(here.path("empty")).unwrap();
    assert_eq!(here.moves(&["-T", "tree", "empty"]), (Some(0), String::new()));
    assert!(here.path("empty/g").exists() && !here.path("tree").exists());
    here.write("full/x");
    let (code, said) = here.moves(&["-T", "empty", "full"]);
    assert!(code == Some(1) && said.contains("not empty") && here.path("empty/g").exists(), "{code:?} {said}");
    let (code, said) = here.moves(&["-T", "empty", "full", "other"]);
    assert!(code == Some(2) && said.contains("-T: one source was expected"), "{code:?} {said}");
}

#[test]
fn interrupted_move_tells_how_to_resume() {
    let (here, serve) = (Here::new(), Serve::writable());
    fs::File::create(here.path("tree/long")).unwrap().set_len(2 << 30).unwrap();
    let new = serve.url("new");
    let mv = here.command(&["tree", &new]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !serve.path("new").exists() {
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&mv);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (code, said) = says(&mv.wait_with_output().unwrap());
    assert!(code == Some(130) && said.contains("the same command with -T resumes it"), "{code:?} {said}");
    fs::File::create(here.path("tree/long")).unwrap().set_len(1 << 20).unwrap();
    assert_eq!(here.moves(&["-T", "tree", &new]), (Some(0), String::new()));
    assert!(!here.path("tree").exists() && serve.path("new/long").exists() && serve.path("new/a/f").exists());
}

#[test]
fn first_of_two_links_to_one_file_is_moved() {
    let here = Here::new();
    fs::hard_link(here.path("tree/g"), here.path("other")).unwrap();
    // One name by two paths is not a pair of hard links.
    std::os::unix::fs::symlink("tree", here.path("way")).unwrap();
    assert_eq!(here.moves(&["way/g", "tree/g"]), (Some(0), String::new()));
    assert!(here.path("tree/g").exists() && here.path("other").exists());
    assert_eq!(here.moves(&["tree/g", "other"]), (Some(0), String::new()));
    assert!(!here.path("tree/g").exists() && here.path("other").exists());
    assert_eq!(fs::read_dir(here.path("tree")).unwrap().count(), 1);
    // Hard links with the same name in two directories, as backups with links have them.
    fs::create_dir(here.path("copy")).unwrap();
    fs::hard_link(here.path("other"), here.path("copy/other")).unwrap();
    assert_eq!(here.moves(&["copy/other", "other"]), (Some(0), String::new()));
    assert!(here.path("other").exists() && fs::read_dir(here.path("copy")).unwrap().next().is_none());
}

#[test]
fn first_of_two_links_of_one_name_is_moved_everywhere() {
    let (here, serve, other) = (Here::new(), Serve::writable(), Ftp::pyftpdlib());
    // By a path of this machine, and through servers.
    for (root, url) in [
        (here.path(""), here.path("").display().to_string()),
        (serve.path(""), serve.url("")),
        (other.path(""), other.url("ftp", "")),
    ] {
        let place = |name: &str| format!("{url}{name}");
        let pairs =
            [("d1/x", "d2/x", "d2/x"), ("d1/y", "d2/", "d2/y"), ("d1/z", "d1/Z", "d1/Z"), ("d1/v", "d2/w", "d2/w")];
        for (from, to, left) in pairs {
            write(&root.join(from));
            write(&root.join("d2/other"));
            fs::hard_link(root.join(from), root.join(left)).unwrap();
            assert_eq!(here.moves(&[&place(from), &place(to)]), (Some(0), String::new()), "{from} {to}");
            assert!(!root.join(from).exists() && root.join(left).exists(), "{} {from} {to}", root.display());
        }
        // The same name twice is not a pair of hard links.
        fs::hard_link(root.join("d2/x"), root.join("d2/same")).unwrap();
        here.moves(&[&place("d2/x"), &place("d2/x")]);
        assert!(root.join("d2/x").exists() && root.join("d2/same").exists());
        let hidden = |dir: &str| {
            fs::read_dir(root.join(dir)).unwrap().flatten().any(|e| e.file_name().as_encoded_bytes()[0] == b'.')
        };
        assert!(!hidden("d1") && !hidden("d2"));
    }
}

#[test]
fn links_that_a_server_does_not_tell_apart_stay() {
    let (here, ftp) = (Here::new(), Ftp::vsftpd(Tls::None));
    for name in ["x", "y"] {
        write(&ftp.path(name));
    }
    fs::hard_link(ftp.path("x"), ftp.path("same")).unwrap();
    let (code, said) = here.moves(&[&ftp.url("ftp", "x"), &ftp.url("ftp", "same")]);
    assert!(code == Some(1) && said.contains("neither was removed"), "{code:?} {said}");
    assert!(ftp.path("x").exists() && ftp.path("same").exists());
    assert_eq!(here.moves(&[&ftp.url("ftp", "y"), &ftp.url("ftp", "same")]), (Some(0), String::new()));
    assert!(!ftp.path("y").exists() && ftp.path("same").exists());
}

#[test]
fn private_file_stays_if_the_server_refuses_modes() {
    let (here, ftp) = (Here::new(), Ftp::vsftpd(Tls::None));
    let chmod = |name: &str, mode| fs::set_permissions(here.path(name), fs::Permissions::from_mode(mode)).unwrap();
    // All files in a private directory count as private.
    for name in ["tree/private", "tree/closed/f", "tree/closed/deep/f", "alone"] {
        here.write(name);
    }
    for (name, mode) in
        [("tree", 0o755), ("tree/g", 0o644), ("tree/private", 0o600), ("tree/closed", 0o700), ("alone", 0o640)]
    {
        chmod(name, mode);
    }
    let (code, said) = here.moves(&["tree", "alone", &ftp.url("ftp", "")]);
    let expected = "it is private, and the mode of ftp://";
    assert_eq!((code, said.matches(expected).count()), (Some(4), 4), "{said}");
    assert!(said.contains("were not set, since the server refuses SITE CHMOD"), "{said}");
    for (name, stays) in [
        ("tree/private", true),
        ("tree/closed/f", true),
        ("tree/closed/deep/f", true),
        ("alone", true),
        ("tree/g", false),
        ("tree/a", false),
    ] {
        assert_eq!((here.path(name).exists(), ftp.path(name).exists()), (stays, true), "{name}: {said}");
    }
    // A file that everybody may read is moved, and the message says that it has the server's mode.
    here.write("public");
    chmod("public", 0o644);
    let (code, said) = here.moves(&["public", &ftp.url("ftp", "public")]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the modes of 1 were not set, since the server refuses SITE CHMOD"), "{said}");
    assert!(!here.path("public").exists() && ftp.path("public").exists());
}

#[test]
fn name_in_another_case_is_the_same_name() {
    let (here, ftp) = (Here::new(), Ftp::folding());
    write(&ftp.path("d/name"));
    std::os::unix::fs::symlink("d", ftp.path("way")).unwrap();
    for (from, to) in [("d/name", "d/NAME"), ("d/NAME", "D/Name"), ("way/name", "d/name")] {
        assert_eq!(here.moves(&[&ftp.url("ftp", from), &ftp.url("ftp", to)]), (Some(0), String::new()), "{from}");
        let left = fs::read_dir(ftp.path("d")).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.map(|name| name.into_string().unwrap().to_lowercase()).collect();
        assert_eq!(left, ["name"], "{from} {to}");
    }
}

#[test]
fn directory_is_not_merged_into_an_existing_one() {
    let (here, serve) = (Here::new(), Serve::writable());
    let new = |name: &str| {
        fs::create_dir_all(here.path(name)).unwrap();
        fs::write(here.path(name).join("f"), "new").unwrap();
    };
    fs::create_dir_all(serve.path("B/A")).unwrap();
    fs::write(serve.path("B/A/f"), "old").unwrap();
    for dest in ["B", "B/"] {
        new("A");
        let (code, said) = here.moves(&["A", &serve.url(dest)]);
        let says = said.contains("/B/A: it exists and is not empty: \"phoebus mv -T /") && said.contains("/A ftp://");
        assert!(code == Some(10) && says, "{code:?} {said}");
        assert!(here.path("A/f").exists() && fs::read(serve.path("B/A/f")).unwrap() == b"old");
    }
    // The draft of an interrupted move counts as content, too.
    fs::remove_file(serve.path("B/A/f")).unwrap();
    fs::write(serve.path("B/A/.f.0123456789abcdef.phoebus-part"), "o").unwrap();
    assert_eq!(here.moves(&["A", &serve.url("B/")]).0, Some(10));
    // With the command that the message names.
    assert_eq!(here.moves(&["-T", "A", &serve.url("B/A")]), (Some(0), String::new()));
    assert!(!here.path("A").exists() && fs::read(serve.path("B/A/f")).unwrap() == b"new");
    // An empty directory is replaced, as by rename(2). The other sources are moved although one is refused.
    fs::create_dir(serve.path("B/E")).unwrap();
    new("A");
    new("E");
    let (code, said) = here.moves(&["A", "E", &serve.url("B")]);
    assert!(code == Some(4) && serve.path("B/E/f").exists() && here.path("A/f").exists(), "{code:?} {said}");
    // The same in the other direction.
    new("dd/E");
    let (code, said) = here.moves(&[&serve.url("B/E"), "dd"]);
    assert!(
        code == Some(10) && said.contains("\"phoebus mv -T ftp://") && serve.path("B/E/f").exists(),
        "{code:?} {said}"
    );
    // Within a server, the error names the obstacle.
    fs::create_dir_all(serve.path("E")).unwrap();
    let (code, said) = here.moves(&[&serve.url("E"), &serve.url("B")]);
    assert!(code == Some(1) && said.contains("not empty") && !said.contains("not a file"), "{code:?} {said}");
}

#[test]
fn interrupted_move_into_a_directory_tells_how_to_resume() {
    let (here, serve) = (Here::new(), Serve::writable());
    fs::File::create(here.path("tree/long")).unwrap().set_len(2 << 30).unwrap();
    fs::create_dir(serve.path("into")).unwrap();
    let mv = here.command(&["tree", &serve.url("into")]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !serve.path("into/tree").exists() {
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&mv);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (code, said) = says(&mv.wait_with_output().unwrap());
    let (from, to) = (here.path("tree"), serve.url("into/tree"));
    let goes_on = format!("interrupted; \"phoebus mv -T {} {to}\" resumes it", from.display());
    assert!(code == Some(130) && said.contains(&goes_on), "{code:?} {said}");
    fs::File::create(here.path("tree/long")).unwrap().set_len(1 << 20).unwrap();
    assert_eq!(here.moves(&["-T", "tree", &to]), (Some(0), String::new()));
    assert!(!from.exists() && serve.path("into/tree/long").exists() && serve.path("into/tree/a/f").exists());
}

#[test]
fn missing_space_has_its_code() {
    let quota = "[anonymous]\nroot = \"ROOT\"\nread_only = false\nquota = { bytes = \"LIMIT\" }\n";
    // With and without remains.
    for (limit, some) in [("1B", false), ("300kB", true)] {
        let (here, serve) = (Here::new(), Serve::configured(&quota.replace("LIMIT", limit)));
        for name in ["tree/large", "tree/larger"] {
            fs::write(here.path(name), vec![7; 200_000]).unwrap();
        }
        for arguments in [&["tree"][..], &["tree/large", "tree/larger", "tree/g"]] {
            if here.path("tree").exists() {
                fs::create_dir_all(serve.path("into")).unwrap();
                let (code, said) = here.moves(&[arguments, &[&serve.url("into/")]].concat());
                assert_eq!(code, Some(7), "{limit} {some} {said}");
            }
        }
        assert!(here.path("tree/large").exists() || here.path("tree/larger").exists());
    }
}

#[test]
fn link_is_moved_with_its_target() {
    let (here, serve) = (Here::new(), Serve::writable());
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    for (from, to) in [
        (here.path("links").display().to_string(), other.path().join("moved").display().to_string()),
        (here.path("links").display().to_string(), serve.url("moved")),
        (serve.url("moved"), here.path("back").display().to_string()),
    ] {
        if from.starts_with('/') {
            fs::create_dir(here.path("links")).unwrap();
        } else {
            fs::remove_dir_all(serve.path("moved")).unwrap();
            fs::create_dir(serve.path("moved")).unwrap();
        }
        let dir = if from.starts_with('/') { here.path("links") } else { serve.path("moved") };
        // The link sorts before or after the file, so it is moved after it, before it, or at the same time.
        for name in ["a", "z"] {
            std::os::unix::fs::symlink("file", dir.join(name)).unwrap();
        }
        write(&dir.join("file"));
        assert_eq!(here.moves(&[&from, &to]), (Some(0), String::new()), "{from} {to}");
        assert!(!dir.exists(), "{from}");
    }
    for name in ["a", "file", "z"] {
        assert!(here.path("back").join(name).metadata().unwrap().is_file(), "{name}");
    }
}

#[test]
fn partly_finished_rename_is_repeated() {
    let (here, serve) = (Here::new(), Serve::writable());
    // The state that a move to another link of the file leaves if it is killed between its two steps.
    let aside = ".f.0123456789abcdef.phoebus-moved";
    fs::rename(here.path("tree/a/f"), here.path("tree/a").join(aside)).unwrap();
    fs::hard_link(here.path("tree/a").join(aside), here.path("other")).unwrap();
    assert_eq!(here.moves(&["tree/a/f", "other"]), (Some(0), String::new()));
    assert!(here.path("other").exists() && fs::read_dir(here.path("tree/a")).unwrap().next().is_none());
    write(&serve.path("d").join(aside));
    assert_eq!(here.moves(&[&serve.url("d/f"), &serve.url("new")]), (Some(0), String::new()));
    assert!(serve.path("new").exists() && fs::read_dir(serve.path("d")).unwrap().next().is_none());
    let (code, said) = here.moves(&["tree/a/f", "new"]);
    assert!(code == Some(5) && said.contains("tree/a/f"), "{code:?} {said}");
}

#[test]
fn link_does_not_replace_its_target() {
    let here = Here::new();
    let make = |dir: &Path| {
        fs::create_dir_all(dir.join("sub")).unwrap();
        write(&dir.join("x"));
        write(&dir.join("other"));
        for (target, link) in [("x", "l"), ("../x", "sub/x"), ("l", "chain")] {
            let _ = fs::remove_file(dir.join(link));
            symlink(target, dir.join(link)).unwrap();
        }
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    };
    let is_kept = |dir: &Path| {
        let is_file = fs::symlink_metadata(dir.join("x")).unwrap().is_file();
        is_file && fs::read_to_string(dir.join("x")).unwrap() == dir.join("x").display().to_string()
    };
    let dir = here.path("d");
    for words in [&["d/l", "d/x"][..], &["-T", "d/l", "d/x"], &["d/sub/x", "d"], &["d/chain", "d/x"]] {
        make(&dir);
        let (code, said) = here.moves(words);
        assert!(code == Some(1) && said.contains("symbolic link") && is_kept(&dir), "{words:?}: {code:?} {said}");
    }
    // A link replaces another link to the same file.
    make(&dir);
    symlink("x", dir.join("new")).unwrap();
    assert_eq!(here.moves(&["-T", "d/new", "d/l"]).0, Some(0));
    assert!(dir.join("l").is_symlink() && !dir.join("new").is_symlink() && is_kept(&dir));
    // A link to another file is replaced as usual.
    assert_eq!(here.moves(&["d/l", "d/other"]).0, Some(0));
    assert!(dir.join("other").is_symlink() && is_kept(&dir));
    let (serve, pyftpdlib) = (Serve::writable(), Ftp::pyftpdlib());
    let (proftpd, hides) = (Ftp::proftpd(Tls::None, ""), Ftp::proftpd(Tls::None, "ShowSymlinks off"));
    let servers = [
        (serve.url(""), serve.path("")),
        (pyftpdlib.url("ftp", ""), pyftpdlib.path("")),
        (proftpd.url("ftp", ""), proftpd.path("")),
        (hides.url("ftp", ""), hides.path("")),
    ];
    for (url, root) in servers {
        let dir = root.join("d");
        for (from, to) in [("d/l", "d/x"), ("d/sub/x", "d/x"), ("d/chain", "d/x")] {
            make(&dir);
            let (code, said) = here.moves(&["-T", &format!("{url}{from}"), &format!("{url}{to}")]);
            assert!(code == Some(1) && said.contains("symbolic link") && is_kept(&dir), "{url}: {code:?} {said}");
        }
        // Another file with the same size and time is not the same file.
        make(&dir);
        let time = fs::metadata(dir.join("x")).unwrap().modified().unwrap();
        fs::write(dir.join("y"), fs::read(dir.join("x")).unwrap()).unwrap();
        fs::File::options().write(true).open(dir.join("y")).unwrap().set_modified(time).unwrap();
        let (code, said) = here.moves(&["-T", &format!("{url}d/y"), &format!("{url}d/x")]);
        assert!(code == Some(0) && !dir.join("y").exists() && is_kept(&dir), "{url}: {said}");
    }
}

#[test]
fn two_sources_of_one_name_are_refused_before_anything_moves() {
    let (here, serve) = (Here::new(), Serve::writable());
    for name in ["x/n", "y/n"] {
        here.write(name);
        write(&serve.path(name));
    }
    fs::create_dir(here.path("e")).unwrap();
    fs::create_dir(serve.path("e")).unwrap();
    let (far_x, far_y, far_e) = (serve.url("x/n"), serve.url("y/n"), serve.url("e"));
    let there = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
    let elsewhere = there.path().display().to_string();
    for arguments in [
        &["x/n", "y/n", "e"][..],
        &["x/n", "y/n", &elsewhere],
        &["x/n", "y/n", &far_e],
        &[&far_x, &far_y, "e"],
        &[&far_x, &far_y, &far_e],
        &["?/n", "e"],
        &["-n", "x/n", "y/n", "e"],
    ] {
        let (code, said) = here.moves(arguments);
        assert!(
            code == Some(2) && said.contains("one of the two would be lost; nothing was moved"),
            "{arguments:?}: {said}"
        );
        for path in [here.path("x/n"), here.path("y/n"), serve.path("x/n"), serve.path("y/n")] {
            assert!(path.exists(), "{arguments:?}: {}", path.display());
        }
    }
}

#[test]
fn sticky_directories_stay_sticky() {
    let (here, serve) = (Here::new(), Serve::writable());
    let there = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let set = |bits| fs::set_permissions(here.path("tree/a"), fs::Permissions::from_mode(bits)).unwrap();
    set(0o1777);
    fs::set_permissions(here.path("tree/g"), fs::Permissions::from_mode(0o4755)).unwrap();
    // To another place and back: through a server, and through another file system.
    let elsewhere = there.path().join("tree").display().to_string();
    for (to, path) in [(serve.url("tree"), serve.path("tree")), (elsewhere.clone(), elsewhere.into())] {
        assert_eq!(here.moves(&["tree", &to]), (Some(0), String::new()));
        assert_eq!((mode(&path.join("a")), mode(&path.join("g"))), (0o1777, 0o755));
        assert_eq!(here.moves(&[&to, "tree"]), (Some(0), String::new()));
        assert_eq!(mode(&here.path("tree/a")), 0o1777);
    }
}
