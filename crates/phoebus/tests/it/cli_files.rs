//! The small commands about files, and options as in other programs.

use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};
use tempfile::{TempDir, tempdir};

/// Another user, for the tests that need root.
const GAMES: u32 = 5;

/// Its exit code, standard output and standard error, run in `dir`.
#[track_caller]
fn says(dir: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    command.args(arguments).current_dir(dir).stdin(Stdio::null()).env_remove("PHOEBUS_REPORT");
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// `sub/a`, `sub/b` and `sub/c`, of which `b` is the newest and `c` the oldest.
fn place() -> TempDir {
    let dir = tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    for (name, seconds) in [("a", 2), ("b", 3), ("c", 1)] {
        let file = fs::File::create(dir.path().join("sub").join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000 + seconds)).unwrap();
    }
    dir
}

#[test]
fn ls_output_is_familiar() {
    let dir = place();
    for (arguments, lines) in [
        (&["sub"][..], "a\nb\nc\n"),
        (&["-1", "sub"], "a\nb\nc\n"),
        (&["-t", "sub"], "b\na\nc\n"),
        (&["-d", "sub"], &format!("{}/\n", dir.path().canonicalize().unwrap().join("sub").display())),
    ] {
        let (code, out, said) = says(dir.path(), &[&["ls"], arguments].concat());
        assert_eq!((code, &*out), (0, lines), "{arguments:?}: {said}");
    }
}

#[test]
fn unknown_option_is_a_name_only_if_it_exists() {
    let dir = place();
    for (arguments, tip) in [
        (&["ls", "-x"][..], "column(1)"),
        (&["ls", "-S"], "-l | sort"),
        (&["cp", "-s", "a", "b"], "ln(1)"),
        (&["cp", "-x", "a", "b"], "'--exclude' leaves it out"),
        (&["mv", "--partial-dir", "p", "a", "b"], "'phoebus cp' with it"),
        (&["du"], "'phoebus ls -lRa'"),
        (&["rm", "-x", "a"], ""),
    ] {
        let (code, _, said) = says(dir.path(), arguments);
        assert!(code == 2 && said.contains(tip) && !said.contains("as a value"), "{arguments:?}: {code}: {said}");
        assert_eq!(said.matches("tip:").count(), usize::from(!tip.is_empty()), "{arguments:?}: {said}");
    }
    fs::write(dir.path().join("-x"), "").unwrap();
    assert!(says(dir.path(), &["rm", "-x"]).2.contains("use '-- -x'"), "the tip for names is gone");
}

#[test]
fn logs_and_reports_follow_no_link_of_others() {
    let dir = place();
    let at = |name: &str| dir.path().join(name);
    for name in ["kept", "own"] {
        fs::write(at(name), "").unwrap();
    }
    fs::create_dir(at("logs")).unwrap();
    for (link, target, owner) in
        [("theirs", "kept", Some(GAMES)), ("there", "logs", Some(GAMES)), ("mine", "own", None)]
    {
        symlink(target, at(link)).unwrap();
        lchown(at(link), owner, None).unwrap();
    }
    for (log, link) in [("theirs", "theirs"), ("there/new", "there")] {
        let (code, _, said) = says(dir.path(), &["cp", "--log-file", log, "sub/a", "to"]);
        let why = format!("--log-file: cannot write {log}: \"{link}\" is a symbolic link of user 5");
        assert!(code == 2 && said.contains(&why), "{code}: {said}");
    }
    let (code, _, said) = says(dir.path(), &["connect", "--report", "theirs", "127.0.0.1:1"]);
    assert!(code == 2 && said.contains("\"theirs\" is a symbolic link of user 5"), "{code}: {said}");
    assert_eq!((fs::read(at("kept")).unwrap(), fs::read_dir(at("logs")).unwrap().count()), (Vec::new(), 0));
    for log in ["mine", "../new", "/dev/stderr"] {
        let (code, _, said) = says(&at("sub"), &["cp", "--log-file", &log.replace("mine", "../mine"), "a", "../to"]);
        assert!(code == 0 && (log != "/dev/stderr" || said.contains("Z ")), "{log}: {code}: {said}");
    }
    assert!(!fs::read(at("own")).unwrap().is_empty() && !fs::read(at("new")).unwrap().is_empty());
}

#[test]
fn mkdir_names_the_link_that_it_does_not_follow() {
    let dir = place();
    symlink("sub", dir.path().join("theirs")).unwrap();
    lchown(dir.path().join("theirs"), Some(GAMES), None).unwrap();
    let (code, _, said) = says(dir.path(), &["mkdir", "-p", "theirs/x/y"]);
    assert!(code == 6 && said.contains("\"theirs\" is a symbolic link of user 5"), "{code}: {said}");
    assert_eq!(says(dir.path(), &["mkdir", "-p", "sub/x/y"]).0, 0);
    assert!(says(dir.path(), &["mkdir", "-p", "sub/a/y"]).2.contains("a"));
}

#[test]
fn target_stays_if_its_link_cannot_be_removed() {
    let dir = place();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("shared/d")).unwrap();
    fs::create_dir_all(at("keep/sub")).unwrap();
    fs::write(at("keep/precious"), "x").unwrap();
    symlink("../keep", at("shared/l")).unwrap();
    // On a read-only file system.
    let script = "mount --bind shared shared && mount -o remount,bind,ro shared && exec \"$0\" rm -r shared/l shared/l/. shared/d";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-euc", script, env!("CARGO_BIN_EXE_phoebus")]).current_dir(dir.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("shared/l"), "{said}");
    assert!(at("keep/precious").exists() && at("keep/sub").exists() && at("shared/d").exists(), "{said}");
    assert!(at("shared/l").is_symlink());
}

#[test]
fn clean_reports_files_put_aside_by_mv() {
    let dir = place();
    let name = "sub/.a.0123456789abcdef.phoebus-moved";
    fs::rename(dir.path().join("sub/a"), dir.path().join(name)).unwrap();
    let (code, out, said) = says(dir.path(), &["clean", "sub"]);
    assert!(
        code == 0 && out.contains(&format!("{name}: an interrupted move had renamed a to this")),
        "{code}: {out}{said}"
    );
    assert!(said.contains("0 files of drafts removed, 0 B; 1 called otherwise"), "{said}");
    assert!(dir.path().join(name).exists(), "a file that is no draft is gone");
    assert!(says(dir.path(), &["clean", "--json", "-n", "sub"]).1.contains("\"event\":\"aside\""), "JSON");
}
