//! What permissions files have at servers, with times or nothing preserved.

use super::support::ftp::{Copy, Ftp};
use super::support::serve::{Serve, bytes, run};
use super::support::wait_until;
use super::{Here, says};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Servers that set modes: where they are, and where that is on disk.
fn servers() -> (Ftp, Serve) {
    (Ftp::pyftpdlib(), Serve::writable())
}

fn places(servers: &(Ftp, Serve), name: &str) -> [(String, PathBuf); 2] {
    let (ftp, serve) = servers;
    [(ftp.url("ftp", name), ftp.path(name)), (serve.url(name), serve.path(name))]
}

#[test]
fn what_was_there_keeps_its_mode() {
    let (here, servers) = (Here::new(), servers());
    // Short ones are sent without looking at much, long ones to our own server in blocks.
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
fn what_is_written_in_place_is_private_from_its_first_byte() {
    let (here, servers) = (Here::new(), servers());
    fs::write(here.path("private"), bytes(6 << 20)).unwrap();
    chmod(&here.path("private"), 0o600);
    for preserve in ["times", "none", "times,modes"] {
        for (url, path) in places(&servers, &format!("in-{preserve}/f")) {
            let dir = path.parent().unwrap();
            fs::create_dir(dir).unwrap();
            let arguments = ["cp", "-q", "--in-place", "--preserve", preserve, "private", &url];
            let slow = [&arguments[..], &["--limit-rate", "1M"]].concat();
            let copy = Copy::start(here.command(&slow));
            // Whatever it is called meanwhile.
            let begun = || fs::read_dir(dir).unwrap().flatten().filter_map(|entry| entry.metadata().ok());
            wait_until(|| begun().any(|meta| meta.blocks() > 0), || format!("{url}: nothing has come"));
            for meta in begun() {
                assert_eq!(meta.mode() & 0o077, 0, "{url} {preserve}: {:o}", meta.mode());
            }
            copy.cut();
            // What has come by then is no file that was there.
            here.does(&arguments);
            assert_eq!(mode(&path), 0o600, "{url} {preserve}");
            assert_eq!(fs::read(&path).unwrap(), bytes(6 << 20));
        }
    }
}

/// Needs root, and somebody who is not.
#[test]
fn what_its_owner_may_not_read_comes_to_a_server_that_is_not_root() {
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
        // What may have been changed is compared once more, which cannot be read there any more.
        let old = SystemTime::now() - Duration::from_secs(3 * 24 * 3600);
        fs::File::open(here.path("closed")).unwrap().set_modified(old).unwrap();
        here.does(&["mv", "closed", &serve.url(&format!("g{set:o}"))]);
        assert_eq!(mode(&serve.path(&format!("g{set:o}"))), set);
    }
}

#[test]
fn what_is_written_in_place_is_as_private_as_its_source() {
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
            // What was there keeps its own.
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
