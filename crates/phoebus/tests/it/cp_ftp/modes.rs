//! What permissions files have at servers, with times or nothing preserved.

use super::Here;
use super::support::ftp::Ftp;
use super::support::serve::{Serve, bytes};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

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
