//! Permissions of files at servers, with times preserved or not.

use super::support::ftp::{Copy, Ftp, Tls};
use super::support::serve::{Serve, bytes, run};
use super::support::wait_until;
use super::{Here, says};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Servers that can set permissions: their URLs, and the directories on disk.
fn servers() -> (Ftp, Serve) {
    (Ftp::pyftpdlib(), Serve::writable())
}

fn places(servers: &(Ftp, Serve), name: &str) -> [(String, PathBuf); 2] {
    let (ftp, serve) = servers;
    [(ftp.url("ftp", name), ftp.path(name)), (serve.url(name), serve.path(name))]
}

#[test]
fn file_is_not_copied_onto_itself() {
    let (here, serve) = (Here::new(), Serve::writable());
    fs::write(serve.path("x"), b"the only copy").unwrap();
    let (url, link) = (serve.url("x"), serve.url("l"));
    symlink("x", serve.path("l")).unwrap();
    let elsewhere = url.replace("127.0.0.1", "localhost");
    for (from, to) in [(&url, &url), (&link, &url), (&url, &elsewhere)] {
        here.fails(1, "the same file", &["cp", "--in-place", "--existing", "replace", from, to]);
        assert_eq!(fs::read(serve.path("x")).unwrap(), b"the only copy", "{from} {to}");
    }
}

#[test]
fn replaced_file_keeps_its_mode() {
    let (here, servers) = (Here::new(), servers());
    // Short files need few checks, and long ones go to our own server in blocks.
    for (len, more) in [(10, &[][..]), (2 << 20, &[]), (2 << 20, &["--streams", "3"])] {
        fs::write(here.path("public"), bytes(len)).unwrap();
        chmod(&here.path("public"), 0o644);
        for (url, path) in places(&servers, "there").into_iter().skip(usize::from(!more.is_empty())) {
            for preserve in ["times", "none"] {
                for old in [0o600, 0o640, 0o755] {
                    fs::write(&path, "old").unwrap();
                    chmod(&path, old);
                    let arguments = ["cp", "-q", "--existing", "replace", "--preserve", preserve];
                    here.does(&[&arguments[..], more, &["public", &url]].concat());
                    assert_eq!(format!("{:o}", mode(&path)), format!("{old:o}"), "{url} {preserve} {more:?}");
                    assert_eq!(fs::metadata(&path).unwrap().len(), len as u64);
                }
            }
        }
    }
}

#[test]
fn private_file_is_private_from_its_first_byte() {
    let (here, servers) = (Here::new(), servers());
    fs::write(here.path("private"), bytes(6 << 20)).unwrap();
    chmod(&here.path("private"), 0o600);
    for (how, preserve) in [
        ("--in-place", "times"),
        ("--in-place", "none"),
        ("--in-place", "times,modes"),
        ("--verify=auto", "none"),
        ("--verify=auto", "times,modes"),
    ] {
        for (url, path) in places(&servers, &format!("in{how}-{preserve}/f")) {
            let dir = path.parent().unwrap();
            fs::create_dir(dir).unwrap();
            let arguments = ["cp", "-q", how, "--preserve", preserve, "private", &url];
            let slow = [&arguments[..], &["--limit-rate", "1M"]].concat();
            let copy = Copy::start(here.command(&slow));
            // Whatever the draft's name is.
            let begun = || fs::read_dir(dir).unwrap().flatten().filter_map(|entry| entry.metadata().ok());
            wait_until(|| begun().any(|meta| meta.blocks() > 0), || format!("{url}: nothing has come"));
            for meta in begun() {
                assert_eq!(meta.mode() & 0o077, 0, "{url} {how} {preserve}: {:o}", meta.mode());
            }
            copy.cut();
            // The copy is resumed: the bytes that have arrived belong to no earlier file.
            here.does(&arguments);
            assert_eq!(mode(&path), 0o600, "{url} {preserve}");
            assert_eq!(fs::read(&path).unwrap(), bytes(6 << 20));
        }
    }
}

/// Needs root, and a user who is not root.
#[test]
fn file_unreadable_for_its_owner_reaches_a_server_without_root() {
    let serve = Serve::configured("[anonymous]\nroot = \"ROOT\"\nread_only = false\naccount = \"daemon\"\n");
    let here = Here::new();
    let id = |what| says(&run(Command::new("id").args([what, "daemon"]))).1.trim().parse().unwrap();
    std::os::unix::fs::chown(serve.path(""), Some(id("-u")), Some(id("-g"))).unwrap();
    for set in [0o000, 0o111, 0o200] {
        fs::write(here.path("closed"), "shadow").unwrap();
        chmod(&here.path("closed"), set);
        here.does(&["cp", "-q", "--preserve", "times,modes", "closed", &serve.url(&format!("f{set:o}"))]);
        let path = serve.path(&format!("f{set:o}"));
        assert_eq!((mode(&path), fs::read(&path).unwrap()), (set, b"shadow".to_vec()));
        // A file that may have changed is compared once more, although it is unreadable at the server by then.
        let old = SystemTime::now() - Duration::from_secs(3 * 24 * 3600);
        fs::File::open(here.path("closed")).unwrap().set_modified(old).unwrap();
        here.does(&["mv", "closed", &serve.url(&format!("g{set:o}"))]);
        assert_eq!(mode(&serve.path(&format!("g{set:o}"))), set);
    }
}

#[test]
fn file_written_in_place_is_as_private_as_its_source() {
    let (here, servers) = (Here::new(), servers());
    let files = [("private", 0o600), ("group", 0o640), ("deep/public", 0o644)];
    fs::create_dir_all(here.path("tree/deep")).unwrap();
    for (name, mode) in files {
        fs::write(here.path("tree").join(name), name).unwrap();
        chmod(&here.path("tree").join(name), mode);
    }
    for preserve in ["times", "none", "times,modes"] {
        for (url, path) in places(&servers, &format!("new-{preserve}")) {
            here.does(&["cp", "-q", "-r", "--in-place", "--preserve", preserve, "tree/", &url]);
            for (name, expected) in files {
                assert_eq!(format!("{:o}", mode(&path.join(name))), format!("{expected:o}"), "{url} {preserve} {name}");
            }
            // A replaced file keeps its permissions.
            let (url, path) = (format!("{url}/private"), path.join("private"));
            chmod(&path, 0o644);
            here.does(&[
                "cp",
                "-q",
                "--existing",
                "replace",
                "--in-place",
                "--preserve",
                preserve,
                "tree/private",
                &url,
            ]);
            let kept = if preserve == "times,modes" { 0o600 } else { 0o644 };
            assert_eq!(format!("{:o}", mode(&path)), format!("{kept:o}"), "{url} {preserve}");
        }
    }
}

/// The private names in [`private_tree`], with their modes. Directories end with a slash.
const PRIVATE: [(&str, u32); 6] =
    [("d/", 0o700), ("d/f", 0o600), ("d/group", 0o640), ("d/sub/", 0o750), ("d/sub/x", 0o400), ("d/public", 0o644)];

/// Makes that tree in `root`, for a user whose files every server may read.
fn private_tree(root: &Path) {
    let id = |what| says(&run(Command::new("id").args([what, "daemon"]))).1.trim().parse().unwrap();
    fs::create_dir_all(root.join("d/sub")).unwrap();
    for (name, _) in PRIVATE.iter().filter(|(name, _)| !name.ends_with('/')) {
        fs::write(root.join(name), bytes(300_000)).unwrap();
    }
    for (name, set) in PRIVATE {
        std::os::unix::fs::chown(root.join(name), Some(id("-u")), Some(id("-g"))).unwrap();
        chmod(&root.join(name), set);
    }
}

#[track_caller]
fn is_private(root: &Path, top: &str, what: &str) {
    for (name, expected) in PRIVATE {
        let path = root.join(name.replacen('d', top, 1));
        assert_eq!(format!("{:o}", mode(&path)), format!("{expected:o}"), "{what}: {name}");
    }
}

/// Servers that report permissions only on request (pyftpdlib), or only in listings.
fn reticent() -> [(&'static str, Ftp); 4] {
    let [pyftpdlib, vsftpd] = [Ftp::pyftpdlib(), Ftp::vsftpd(Tls::None)];
    [("pyftpdlib", pyftpdlib), ("vsftpd", vsftpd), ("aioftp", Ftp::aioftp()), ("twisted", Ftp::twisted())]
}

#[test]
fn private_file_of_a_server_with_modes_on_request_is_copied_privately() {
    let here = Here::new();
    for (name, ftp) in reticent() {
        private_tree(&ftp.path(""));
        let (file, dir) = (ftp.url("ftp", "d/f"), ftp.url("ftp", "d"));
        for preserve in ["times,modes", "times", "none"] {
            let one = format!("{name}-{preserve}");
            here.does(&["cp", "-q", "--preserve", preserve, &file, &one]);
            assert_eq!(mode(&here.path(&one)), 0o600, "{one}");
        }
        // Files that an earlier copy has made public are made private, too.
        chmod(&here.path(&format!("{name}-times,modes")), 0o644);
        here.does(&["cp", "-q", &file, &format!("{name}-times,modes")]);
        assert_eq!(mode(&here.path(&format!("{name}-times,modes"))), 0o600, "{name}");
        let (said, tree) = (here.does(&["cp", "-r", &dir, &format!("{name}-tree")]).1, format!("{name}-tree"));
        assert!(!said.contains("modes"), "{name}: {said}");
        is_private(here.0.path(), &format!("{tree}/d"), name);
    }
}

#[test]
fn private_file_of_a_server_with_modes_on_request_is_moved_privately() {
    let here = Here::new();
    for (name, ftp) in reticent().into_iter().take(2) {
        let root = ftp.path("");
        private_tree(&root);
        here.does(&["mv", &ftp.url("ftp", "d/f"), name]);
        assert_eq!((mode(&here.path(name)), root.join("d/f").exists()), (0o600, false), "{name}");
        private_tree(&root);
        let tree = format!("{name}-tree");
        here.does(&["mv", &ftp.url("ftp", "d"), &tree]);
        is_private(here.0.path(), &tree, name);
        assert!(!root.join("d").exists(), "{name}");
    }
}

#[test]
fn private_file_stays_private_between_servers() {
    let (here, serve) = (Here::new(), Serve::writable());
    for (name, ftp) in reticent() {
        private_tree(&ftp.path(""));
        let tree = format!("{name}-tree");
        here.does(&["cp", "-q", "-r", &ftp.url("ftp", "d"), &serve.url(&tree)]);
        is_private(&serve.path(""), &format!("{tree}/d"), name);
        for how in ["--in-place", "--verify=auto"] {
            let (dir, one) = (format!("{name}{how}"), serve.path(&format!("{name}{how}/one")));
            fs::create_dir(serve.path(&dir)).unwrap();
            let (from, to) = (ftp.url("ftp", "d/f"), serve.url(&format!("{dir}/one")));
            let copy = Copy::start(here.command(&["cp", "-q", how, "--limit-rate", "100k", &from, &to]));
            let begun = || fs::read_dir(serve.path(&dir)).unwrap().flatten().filter_map(|entry| entry.metadata().ok());
            wait_until(|| begun().any(|meta| meta.blocks() > 0), || format!("{name}: nothing has come"));
            for meta in begun() {
                assert_eq!(meta.mode() & 0o077, 0, "{name} {how}: {:o}", meta.mode());
            }
            copy.cut();
            here.does(&["cp", "-q", how, &from, &to]);
            assert_eq!((mode(&one), fs::read(&one).unwrap() == bytes(300_000)), (0o600, true), "{name} {how}");
        }
    }
}

#[test]
fn unknown_modes_are_counted() {
    let (here, ftp) = (Here::new(), Ftp::vsftpd(Tls::None));
    private_tree(&ftp.path(""));
    // The server does not report the permissions of a link's target.
    std::os::unix::fs::symlink("f", ftp.path("d/link")).unwrap();
    for (name, from, count) in [("one", "d/f", 0), ("link", "d/link", 1), ("tree", "d", 1)] {
        let (out, _) = here.does(&["cp", "-r", "--json", &ftp.url("ftp", from), name]);
        let report: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
        assert_eq!(report["modes_unknown"], count, "{name}: {report:#}");
        let (_, said) = here.does(&["cp", "-r", "--existing", "replace", &ftp.url("ftp", from), &format!("{name}-2")]);
        assert_eq!(
            said.contains("the mode of 1 is not known, since the server does not tell it"),
            count == 1,
            "{said}"
        );
    }
}
