//! `phoebus cp` and the small commands with servers that lack MLSD, FEAT, SIZE or REST, or that alter names.

use super::support::ftp::{Copy, Ftp, hidden};
use super::support::serve::{Serve, bytes, run};
use super::support::works::works;
use super::{EVERYTHING, Here, Tls, everything, goes_on, same, says};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Copies a tree with odd names. Names that the server alters are refused, and each other file gets its own bytes.
fn odd_names(here: &Here, ftp: &Ftp, names: &[&[u8]], altered: usize) {
    let source = here.path("odd");
    fs::create_dir(&source).unwrap();
    for name in names {
        fs::write(source.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let (code, _, said) = says(&run(&mut here.command(&["cp", "-r", "odd/", &ftp.url("ftp", "odd")])));
    let refused = said.matches("the server alters such names").count() + said.matches("the byte 255 in it").count();
    assert_eq!((code, refused >= altered), (4, true), "{said}");
    let there: Vec<_> = fs::read_dir(ftp.path("odd")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(there.len(), names.len() - altered, "{there:?} {said}");
    for path in there {
        assert_eq!(fs::read(&path).unwrap(), path.file_name().unwrap().as_bytes(), "{path:?}");
    }
    assert_eq!(hidden(&ftp.path("")), Vec::<String>::new());
}

#[test]
fn pure_ftpd() {
    let (here, ftp) = (Here::new(), Ftp::pure_ftpd());
    tree(&here, &ftp, true);
    goes_on(&here, |path| ftp.url("ftp", path), &ftp.path(""), &[], true);
    // The server takes the Telnet escape 255 for two bytes, so the name would be another file's.
    for (file, twice) in [("rm", "t1"), ("cat", "t2"), ("cp", "t3")] {
        fs::create_dir(ftp.path(twice)).unwrap();
        let [once, two] = [&b"\xff"[..], b"\xff\xff"].map(|name| ftp.path(twice).join(OsStr::from_bytes(name)));
        fs::write(&once, "one").unwrap();
        fs::write(&two, "two").unwrap();
        let url = ftp.url("ftp", &format!("{twice}/%FF"));
        let arguments = [&[file, &url[..]][..], if file == "cp" { &["got"] } else { &[] }].concat();
        here.fails(1, "the byte 255 in it", &arguments);
        assert!(once.exists() && two.exists());
    }
    for dir in ["t1", "t2", "t3"] {
        fs::remove_dir_all(ftp.path(dir)).unwrap();
    }
    odd_names(&here, &ftp, &[b"a\tb", b"a_b", b"tail ", b"tail_", "\u{e9}".as_bytes(), b"n\xff"], 3);
    // A name that the server would take for another is neither read nor removed.
    for command in ["rm", "cat", "stat"] {
        here.fails(1, "the server alters such names", &[command, &ftp.url("ftp", "odd/a%09b")]);
    }
    assert!(ftp.path("odd/a_b").exists());
    works("phoebus cp", "pure-ftpd", "password", "get put list manage tree sync resume");
}

#[test]
fn trees_are_removed_although_the_server_was_in_them() {
    let (here, ftp) = (Here::new(), Ftp::pure_ftpd());
    let (root, url) = (ftp.path(""), ftp.url("ftp", "tree"));
    fs::create_dir(here.path("empty")).unwrap();
    for command in [&["rm", "-r", &url][..], &["cp", "-r", "--delete", "empty/", &url], &["mv", "-T", &url, "moved"]] {
        for dir in ["tree", "tree/a", "tree/a/b", "tree/a/b/c", "tree/a/b/c/d", "tree/x", "tree/x/y"] {
            let dir = root.join(dir);
            fs::create_dir_all(&dir).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
            fs::write(dir.join("file"), "x").unwrap();
        }
        here.does(command);
        let left = fs::read_dir(root.join("tree")).is_ok_and(|mut entries| entries.next().is_some());
        assert!(!left, "{command:?}");
    }
    assert!(here.path("moved/a/b/c/d/file").exists() && here.path("moved/x/y/file").exists());
}

#[test]
fn pyftpdlib() {
    let (here, ftp) = (Here::new(), Ftp::pyftpdlib());
    everything(&here, |path| ftp.url("ftp", path), &ftp.path(""), &[], true);
    goes_on(&here, |path| ftp.url("ftp", path), &ftp.path(""), &[], true);
    // The server would give all of these one name, like existing files with such names.
    odd_names(&here, &ftp, &[b"n\xff", b"n\xfe", "n\u{fffd}".as_bytes(), b"tail "], 2);
    for name in [&b"m\xff"[..], b"m\xfe"] {
        fs::write(ftp.path("odd").join(OsStr::from_bytes(name)), name).unwrap();
    }
    let (code, _, said) = says(&run(&mut here.command(&["cp", "-r", &ftp.url("ftp", "odd/"), "odd-back"])));
    assert_eq!(code, 4, "{said}");
    assert!(!Path::new(&here.path("odd-back/m\u{fffd}")).exists(), "{said}");
    works("phoebus cp", "pyftpdlib", "password", &format!("{EVERYTHING} resume"));
}

#[test]
fn server_that_ignores_case() {
    let (here, ftp) = (Here::new(), Ftp::folding());
    for name in ["odd/Makefile", "odd/makefile", "odd/other", "odd/Dir/x", "odd/dir/y", "one/A", "two/a"] {
        let path = here.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
    let apart = |from: &[&str], to: &str, lost: usize| {
        // Also the second time, when one of each pair exists.
        for _ in 0..2 {
            let target = ftp.url("ftp", to);
            let (code, _, said) = says(&run(&mut here.command(&[&["cp", "-r"], from, &[target.as_str()]].concat())));
            assert_eq!((code, said.matches("takes several names for one").count()), (4, lost), "{said}");
        }
    };
    // The second of two such directories is refused, and so are the files in it.
    apart(&["odd/"], "odd", 3);
    for name in fs::read_dir(ftp.path("odd")).unwrap().map(|entry| entry.unwrap().path()) {
        if name.is_file() {
            let name = name.file_name().unwrap().to_str().unwrap();
            assert_eq!(fs::read_to_string(ftp.path("odd").join(name)).unwrap(), format!("odd/{name}"));
        }
    }
    apart(&["one/", "two/"], "both/", 1);
    assert_eq!(fs::read_dir(ftp.path("both")).unwrap().count(), 1);
    assert_eq!(hidden(&ftp.path("")), Vec::<String>::new());
    // A move keeps the second of two such directories, even if it is empty.
    for name in ["em/Name", "em/nAME"] {
        fs::create_dir_all(here.path(name)).unwrap();
    }
    here.fails(4, "takes several names for one", &["mv", "-T", "em", &ftp.url("ftp", "em")]);
    assert_eq!(fs::read_dir(here.path("em")).unwrap().count(), 1);
    // On other servers, all of them exist.
    let all = Ftp::pyftpdlib();
    for _ in 0..2 {
        here.does(&["cp", "-r", "odd/", &all.url("ftp", "odd")]);
        same(&here.path("odd"), &all.path("odd"));
    }
}

/// A tree is uploaded and downloaded, twice, with no more commands than such servers have.
fn tree(here: &Here, ftp: &Ftp, replaces: bool) {
    let url = |path: &str| ftp.url("ftp", path);
    for i in 0..2 {
        let (_, said) = match i == 1 && replaces {
            true => here.does(&["cp", "-r", "--existing", "replace", "src", &url("")]),
            false => here.does(&["cp", "-r", "src", &url("")]),
        };
        let expected = if i == 1 && !replaces { "nothing to do: 5 files are there" } else { "5 files copied" };
        assert!(said.starts_with(expected), "{said}");
        same(&here.path("src"), &ftp.path("src"));
        here.does(&["cp", "-r", &url("src/"), "back"]);
        same(&here.path("src"), &here.path("back"));
        fs::remove_dir_all(here.path("back")).unwrap();
    }
    let listed = here.does(&["ls", &url("src")]).0;
    assert_eq!(listed.lines().collect::<Vec<_>>(), ["a", "b b", "c;+[d].h5", "deep/"]);
    assert!(here.does(&["stat", &url("src/deep")]).0.contains("directory"));
    here.does(&["mkdir", "-p", &url("new/er")]);
    here.does(&["mv", &url("src/a"), &url("new/er/name")]);
    assert!(ftp.path("new/er/name").exists() && !ftp.path("src/a").exists());
    here.does(&["rm", "-r", "--trust-listings", &url("new")]);
    assert!(!ftp.path("new").exists());
    here.fails(5, "does not exist", &["cp", &url("gone"), "x"]);
    assert_eq!(hidden(&ftp.path("")), Vec::<String>::new());
}

#[test]
fn aioftp() {
    let (here, ftp) = (Here::new(), Ftp::aioftp());
    // It does not rename a file over an existing one.
    tree(&here, &ftp, false);
    works("phoebus cp", "aioftp", "password", "get put list manage tree sync");
}

#[test]
fn twisted() {
    let (here, ftp) = (Here::new(), Ftp::twisted());
    // It stores a name that is not valid UTF-8 under another name.
    fs::rename(here.path("src/deep/er/\u{e9}"), here.path("src/deep/er/e")).unwrap();
    tree(&here, &ftp, true);
    // It has no REST, so an interrupted transfer starts again.
    let content = bytes(40 << 20);
    fs::write(ftp.path("long"), &content).unwrap();
    let slow = here.command(&["cp", "-q", "--limit-rate", "30mbit", &ftp.url("ftp", "long"), "long"]);
    Copy::start(slow).cut_when_noted(here.0.path(), "long");
    here.does(&["cp", &ftp.url("ftp", "long"), "long"]);
    assert!(fs::read(here.path("long")).unwrap() == content);
    works("phoebus cp", "Twisted", "password", "get put list manage tree");
}

#[test]
fn links_to_files_are_followed_in_every_listing() {
    let here = Here::new();
    // The size that it reports is the length of the link's text.
    for ftp in [Ftp::proftpd(Tls::None, ""), Ftp::pyftpdlib()] {
        fs::create_dir(ftp.path("d")).unwrap();
        fs::set_permissions(ftp.path("d"), fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(ftp.path("d/long"), bytes(100_000)).unwrap();
        symlink("long", ftp.path("d/link")).unwrap();
        here.does(&["cp", &ftp.url("ftp", "d/link"), "one"]);
        here.does(&["cp", "-r", &ftp.url("ftp", "d/"), "tree"]);
        for name in ["one", "tree/long", "tree/link"] {
            assert!(fs::read(here.path(name)).unwrap() == bytes(100_000), "{name}");
        }
        fs::remove_dir_all(here.path("tree")).unwrap();
        fs::remove_file(here.path("one")).unwrap();
    }
}

#[test]
fn targets_of_links_at_servers_stay() {
    let here = Here::new();
    let (pyftpdlib, serve, vsftpd) = (Ftp::pyftpdlib(), Serve::writable(), Ftp::vsftpd(Tls::None));
    fs::create_dir_all(here.path("source/l")).unwrap();
    fs::create_dir(here.path("empty")).unwrap();
    fs::write(here.path("source/a"), "a").unwrap();
    fs::write(here.path("source/l/mine"), "mine").unwrap();
    for (url, root) in [
        (pyftpdlib.url("ftp", "tree"), pyftpdlib.path("")),
        (serve.url("tree"), serve.path("")),
        (vsftpd.url("ftp", "tree"), vsftpd.path("")),
    ] {
        let make = || {
            fs::create_dir_all(root.join("tree/deep")).unwrap();
            fs::create_dir_all(root.join("keep/sub")).unwrap();
            for name in ["keep/precious", "keep/old.log", "tree/old", "tree/deep/b"] {
                fs::write(root.join(name), "x").unwrap();
            }
            symlink("../keep", root.join("tree/l")).unwrap();
            symlink("../../keep", root.join("tree/deep/l")).unwrap();
            symlink("..", root.join("tree/up")).unwrap();
            // LIST loses the blanks at the ends.
            if root != vsftpd.path("") {
                fs::create_dir_all(root.join("tree/blank /x")).unwrap();
                fs::create_dir(root.join("tree/ ")).unwrap();
                fs::write(root.join("tree/blank /x/f"), "x").unwrap();
            }
            for dir in ["tree", "tree/deep", "keep", "keep/sub"] {
                fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o777)).unwrap();
            }
        };
        let is_kept = || ["precious", "old.log", "sub"].iter().all(|name| root.join("keep").join(name).exists());
        let left = |dir: &str| {
            let entries = fs::read_dir(root.join(dir)).unwrap().map(|entry| entry.unwrap().file_name());
            entries.map(|name| name.into_string().unwrap()).collect::<BTreeSet<_>>()
        };
        make();
        here.does(&["rm", "-r", &url]);
        assert!(is_kept() && !root.join("tree").exists(), "{url}");
        // The link itself, named.
        make();
        here.does(&["rm", "-r", &format!("{url}/l")]);
        here.fails(1, "stays where it is", &["mv", &format!("{url}/deep/l"), "moved"]);
        assert!(is_kept() && !root.join("tree/l").is_symlink() && root.join("tree/deep/l").is_symlink(), "{url}");
        // A file that filters exclude is behind the link, too.
        symlink("../keep", root.join("tree/l")).unwrap();
        if root == serve.path("") {
            symlink("../keep/precious", root.join("tree/file")).unwrap();
            here.fails(1, "stays where it is", &["mv", &format!("{url}/file"), "moved"]);
            assert!(root.join("tree/file").is_symlink());
        }
        here.does(&["cp", "-r", "--delete", "--exclude", "*.log", "empty/", &url]);
        assert!(is_kept() && left("tree").is_empty(), "{url}: {:?}", left("tree"));
        // The source's files are copied through the link, and nothing is deleted there.
        fs::remove_dir(root.join("tree")).unwrap();
        make();
        here.does(&["cp", "-r", "--delete", "source/", &url]);
        assert!(is_kept() && root.join("keep/mine").exists(), "{url}");
        assert_eq!(left("tree"), ["a", "l"].map(str::to_owned).into(), "{url}");
        fs::remove_file(root.join("tree/l")).unwrap();
    }
}

#[test]
fn possible_links_stay_where_servers_do_not_tell_links() {
    let here = Here::new();
    let ftp = Ftp::aioftp();
    fs::create_dir_all(here.path("source/l")).unwrap();
    let (root, url) = (ftp.path(""), ftp.url("ftp", "tree"));
    let make = || {
        fs::create_dir_all(root.join("tree/deep/own")).unwrap();
        fs::create_dir_all(root.join("keep/sub")).unwrap();
        fs::write(root.join("keep/precious"), "x").unwrap();
        fs::write(root.join("keep/.f.0123456789abcdef.phoebus-part"), "").unwrap();
        fs::write(root.join("tree/a"), "x").unwrap();
        fs::write(root.join("tree/deep/own/b"), "x").unwrap();
        symlink("../keep", root.join("tree/l")).unwrap();
        symlink("keep", root.join("named")).unwrap();
    };
    let is_kept = || {
        let kept = ["precious", "sub", ".f.0123456789abcdef.phoebus-part"];
        kept.iter().all(|name| root.join("keep").join(name).exists())
    };
    make();
    // A link count that a file system invents, or that another client changes, proves nothing.
    here.fails(1, "--trust-listings", &["cp", "-r", "--delete", "source/", &url]);
    assert!(is_kept() && !root.join("tree/a").exists() && root.join("tree/deep/own/b").exists(), "{url}");
    let (code, _, said) = says(&run(&mut here.command(&["rm", "-r", &url])));
    assert!(code != 0 && said.contains("may be a symbolic link"), "{url}: {code}: {said}");
    for command in [&["rm", "-r"][..], &["mv"], &["clean", "--min-age", "0s"]] {
        let named = ftp.url("ftp", if command[0] == "clean" { "tree" } else { "named" });
        let moved = (command[0] == "mv").then_some("moved");
        let all: Vec<&str> = command.iter().copied().chain([&*named]).chain(moved).collect();
        let (code, _, said) = says(&run(&mut here.command(&all)));
        assert!(code != 0 && said.contains("symbolic link"), "{all:?}: {code}: {said}");
    }
    assert!(is_kept() && root.join("named").is_symlink() && root.join("tree/deep/own/b").exists(), "{url}");
    // With --trust-listings, the user says that there are no links.
    fs::remove_file(root.join("tree/l")).unwrap();
    here.does(&["clean", "--trust-listings", "--min-age", "0s", &url]);
    here.does(&["mv", "--trust-listings", &ftp.url("ftp", "tree/deep"), "moved"]);
    assert!(here.path("moved/own/b").exists() && !root.join("tree/deep").exists(), "{url}");
    fs::create_dir_all(root.join("tree/one/two")).unwrap();
    fs::write(root.join("tree/one/two/three"), "x").unwrap();
    here.does(&["rm", "-r", "--trust-listings", &url]);
    assert!(!root.join("tree").exists() && is_kept(), "{url}");
    fs::remove_dir_all(here.path("moved")).unwrap();
}

#[test]
fn hidden_links_are_found_before_their_targets_are_removed() {
    let here = Here::new();
    fs::create_dir_all(here.path("source/l")).unwrap();
    fs::create_dir(here.path("empty")).unwrap();
    let ftp = Ftp::proftpd(Tls::None, "ShowSymlinks off");
    let (root, url) = (ftp.path(""), ftp.url("ftp", "tree"));
    let draft = ".f.0123456789abcdef.phoebus-part";
    let make = || {
        fs::create_dir_all(root.join("tree/deep/own")).unwrap();
        fs::create_dir_all(root.join("keep/sub/lower")).unwrap();
        for name in ["keep/precious", "keep/old.log", "tree/a", "tree/deep/own/b"] {
            fs::write(root.join(name), "x").unwrap();
        }
        for dir in ["keep", "keep/sub", "tree/deep/own"] {
            fs::write(root.join(dir).join(draft), "").unwrap();
        }
        symlink("../keep", root.join("tree/l")).unwrap();
        symlink("../../keep/sub", root.join("tree/deep/l")).unwrap();
        for dir in ["tree", "tree/deep", "tree/deep/own", "keep", "keep/sub"] {
            fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o777)).unwrap();
        }
    };
    let is_kept = || {
        let kept = ["precious", "old.log", "sub/lower"];
        kept.iter().all(|name| root.join("keep").join(name).exists())
    };
    make();
    here.does(&["clean", "--min-age", "0s", &url]);
    assert!(root.join("keep").join(draft).exists() && root.join("keep/sub").join(draft).exists());
    assert!(is_kept() && !root.join("tree/deep/own").join(draft).exists());
    here.does(&["rm", "-r", &ftp.url("ftp", "tree/deep/l")]);
    assert!(is_kept() && !root.join("tree/deep/l").is_symlink());
    here.does(&["rm", "-r", &url]);
    assert!(is_kept() && !root.join("tree").exists());
    make();
    // Excluded files, and more names than --max-delete allows, are behind a link. The link alone is deleted.
    let beside = |name: &str| fs::remove_file(root.join(name).join(draft)).unwrap();
    beside("tree/deep/own");
    here.does(&["cp", "-r", "--delete", "--max-delete", "6", "--exclude", "*.log", "empty/", &url]);
    assert!(is_kept() && fs::read_dir(root.join("tree")).unwrap().next().is_none());
    fs::create_dir(root.join("nothing")).unwrap();
    symlink("../nothing", root.join("tree/l")).unwrap();
    symlink("../keep", root.join("tree/m")).unwrap();
    here.fails(1, "more than 1 files", &["cp", "-r", "--delete", "--max-delete", "1", "empty/", &url]);
    assert!(root.join("tree/l").is_symlink() && root.join("tree/m").is_symlink());
    here.does(&["cp", "-r", "--delete", "empty/", &url]);
    assert!(root.join("nothing").exists() && fs::read_dir(root.join("tree")).unwrap().next().is_none());
    fs::remove_dir(root.join("tree")).unwrap();
    make();
    for dir in ["keep", "keep/sub", "tree/deep/own"] {
        fs::remove_file(root.join(dir).join(draft)).unwrap();
    }
    // The copy goes through the link. Nothing is deleted there, nor counted.
    here.does(&["cp", "-r", "--delete", "--max-delete", "5", "source/", &url]);
    assert!(is_kept() && root.join("tree/l").is_symlink() && !root.join("tree/deep").exists());
    fs::remove_file(root.join("tree/l")).unwrap();
    fs::remove_dir(root.join("tree")).unwrap();
    make();
    here.does(&["clean", "--min-age", "0s", &url]);
    here.fails(4, "is a symbolic link", &["mv", &ftp.url("ftp", "tree/l"), "link"]);
    here.fails(4, "deep/l", &["mv", &url, "moved"]);
    assert!(is_kept() && root.join("tree/deep/l").is_symlink() && !root.join("tree/deep/own").exists());
}

#[test]
fn clean_ends_in_circles_of_hidden_links() {
    let (here, ftp) = (Here::new(), Ftp::proftpd(Tls::None, "ShowSymlinks off"));
    let (root, url) = (ftp.path(""), ftp.url("ftp", "tree"));
    let (draft, trial) = (".f.0123456789abcdef.phoebus-part", ".names.0123456789abcdef.phoebus-part");
    for dir in ["tree/a/own", "tree/b", "tree/a/.names.0123456789abcdee.phoebus-part/x", "spool/empty"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    // 2^40 paths, at the end of which are too many links for the system.
    for (target, link) in [("../b", "a/l"), ("../b", "a/m"), ("../a", "b/l"), ("../a", "b/m"), ("../spool", trial)] {
        symlink(target, root.join("tree").join(link)).unwrap();
    }
    fs::write(root.join("tree/a/own").join(draft), "x").unwrap();
    let own = ["tree", "tree/a", "tree/a/own", "tree/a/.names.0123456789abcdee.phoebus-part", "tree/b", "spool"];
    for dir in own {
        fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o777)).unwrap();
    }
    here.does(&["clean", "--min-age", "0s", &url]);
    assert!(!root.join("tree/a/own").join(draft).exists() && !root.join(own[3]).exists());
    assert!(root.join("spool/empty").exists());
}

#[test]
fn refusal_does_not_prove_a_directory() {
    let (here, ftp) = (Here::new(), Ftp::proftpd(Tls::None, "ShowSymlinks off"));
    let (root, url) = (ftp.path(""), ftp.url("ftp", "not a directory"));
    fs::create_dir_all(here.path("empty")).unwrap();
    fs::create_dir_all(root.join("keep/sub")).unwrap();
    fs::write(root.join("keep/precious"), "x").unwrap();
    for dir in ["keep", "keep/sub"] {
        fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o777)).unwrap();
    }
    let is_kept = || root.join("keep/precious").exists() && root.join("keep/sub").exists();
    // The error's words are in a name, and only root may remove the link.
    for mode in [0o777, 0o1777, 0o555] {
        for command in
            [&["rm", "-r", &url][..], &["cp", "-r", "--delete", "empty/", &url], &["mv", "-T", &url, "moved"]]
        {
            let dir = root.join("not a directory");
            fs::create_dir_all(&dir).unwrap();
            if !dir.join("l").is_symlink() {
                symlink("../keep", dir.join("l")).unwrap();
            }
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            let (code, _, said) = says(&run(&mut here.command(command)));
            assert!(is_kept(), "{mode:o} {command:?}: {code}: {said}");
            assert!(mode == 0o777 || code != 0, "{mode:o} {command:?}: {said}");
        }
    }
}

#[test]
fn nothing_behind_links_at_servers_is_moved_or_cleaned() {
    let here = Here::new();
    let (pyftpdlib, serve, vsftpd) = (Ftp::pyftpdlib(), Serve::writable(), Ftp::vsftpd(Tls::None));
    let servers = [
        (serve.url(""), serve.path("")),
        (pyftpdlib.url("ftp", ""), pyftpdlib.path("")),
        (vsftpd.url("ftp", ""), vsftpd.path("")),
    ];
    let draft = ".f.0123456789abcdef.phoebus-part";
    for (url, root) in servers {
        let make = |linked: bool| {
            fs::create_dir_all(root.join("tree/deep/own")).unwrap();
            fs::create_dir_all(root.join("keep/sub")).unwrap();
            for name in ["keep/precious", "tree/a", "tree/deep/b", "tree/deep/own/c"] {
                fs::write(root.join(name), name).unwrap();
            }
            fs::write(root.join("keep").join(draft), "").unwrap();
            if linked {
                fs::write(root.join("tree/deep/own").join(draft), "").unwrap();
                symlink("../../keep", root.join("tree/deep/l")).unwrap();
            }
            for dir in ["tree", "tree/deep", "tree/deep/own", "keep", "keep/sub"] {
                fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o777)).unwrap();
            }
        };
        let is_kept = || {
            let kept = ["precious", "sub", draft].iter().all(|name| root.join("keep").join(name).exists());
            kept && root.join("tree/deep/l").is_symlink()
        };
        let (tree, place) = (format!("{url}tree"), here.path("moved").display().to_string());
        make(true);
        let (code, said, _) = says(&run(&mut here.command(&["clean", "--min-age", "0s", &tree])));
        assert!(is_kept() && !root.join("tree/deep/own").join(draft).exists(), "{url}: {code} {said}");
        here.fails(4, "deep/l", &["mv", &tree, &place]);
        assert!(is_kept() && !root.join("tree/a").exists() && !root.join("tree/deep/b").exists(), "{url}");
        assert!(!root.join("tree/deep/own").exists(), "{url}");
        fs::remove_dir_all(here.path("moved")).unwrap();
        fs::remove_dir_all(root.join("tree")).unwrap();
        // Without links, everything is removed.
        make(false);
        here.does(&["mv", &tree, &place]);
        assert!(!root.join("tree").exists() && here.path("moved/deep/own/c").exists(), "{url}");
        fs::remove_dir_all(here.path("moved")).unwrap();
    }
}
