//! `phoebus cp` on one machine: destinations, messages, and what remains after an interruption.

mod drafts;

use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};
use tempfile::{TempDir, tempdir};

/// Time limit against hanging, far longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn phoebus(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    command.args(arguments).current_dir(dir).stdin(Stdio::null());
    command
}

/// Runs it, and gives its exit code, standard output and standard error.
#[track_caller]
fn says(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[track_caller]
fn cp(dir: &Path, arguments: &[&str]) -> (i32, String, String) {
    says(phoebus(dir, &[&["cp"], arguments].concat()))
}

/// Runs it with success, and gives the last line of standard error.
#[track_caller]
fn copies(dir: &Path, arguments: &[&str]) -> String {
    let (code, _, said) = cp(dir, arguments);
    assert_eq!(code, 0, "{arguments:?}: {said}");
    said.lines().last().unwrap_or_default().to_owned()
}

/// Paths with what is in them; directories end with a slash.
fn seen(root: &Path) -> Vec<String> {
    let (mut all, mut dirs) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if path.is_dir() {
                all.push(format!("{name}/"));
                dirs.push(path);
            } else {
                all.push(format!("{name}={}", fs::read_to_string(&path).unwrap()));
            }
        }
    }
    all.sort();
    all
}

/// `src` with some files that are older than any copy.
fn place() -> TempDir {
    let dir = tempdir().unwrap();
    for name in ["a.h5", "b.tmp", "run/c.h5", "run/raw/d.tmp"] {
        let path = dir.path().join("src").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, name.rsplit('/').next().unwrap()).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500_000_000_250);
        fs::File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
    }
    dir
}

#[test]
fn destination_names_do_not_depend_on_existing_files() {
    let dir = place();
    let dir = dir.path();
    for _ in 0..2 {
        copies(dir, &["-r", "src", "whole"]);
        copies(dir, &["-r", "src/", "inside"]);
        copies(dir, &["src/a.h5", "one"]);
        copies(dir, &["src/a.h5", "src/run/c.h5", "several"]);
        copies(dir, &["--parents", "src/a.h5", "deep/er/"]);
        copies(dir, &["src/*.h5", "match"]);
    }
    let all = ["a.h5=a.h5", "b.tmp=b.tmp", "run/", "run/c.h5=c.h5", "run/raw/", "run/raw/d.tmp=d.tmp"];
    assert_eq!(seen(&dir.join("inside")), all);
    let below: Vec<_> = all.iter().map(|name| format!("src/{name}")).collect();
    assert_eq!(seen(&dir.join("whole")), [vec!["src/".to_owned()], below].concat());
    assert_eq!(fs::read_to_string(dir.join("one")).unwrap(), "a.h5");
    assert_eq!(seen(&dir.join("several")), ["a.h5=a.h5", "c.h5=c.h5"]);
    assert_eq!(seen(&dir.join("deep")), ["er/", "er/a.h5=a.h5"]);
    assert_eq!(seen(&dir.join("match")), ["a.h5=a.h5"]);
    let (from, to) = (fs::metadata(dir.join("src/a.h5")).unwrap(), fs::metadata(dir.join("one")).unwrap());
    assert_eq!((from.modified().unwrap(), from.mode()), (to.modified().unwrap(), to.mode()));
}

#[test]
fn repeated_copy_transfers_only_differences() {
    let dir = place();
    let dir = dir.path();
    assert!(copies(dir, &["-r", "src/", "to"]).starts_with("4 files copied, 18 B"), "the whole tree");
    assert_eq!(copies(dir, &["-r", "src/", "to"]), "nothing to do: 4 files are there");
    assert_eq!(cp(dir, &["-r", "--error-on-no-transfer", "src/", "to"]).0, 9);
    // An older version that was restored has another time, but is not newer.
    let old = fs::File::create(dir.join("src/a.h5")).unwrap();
    (&old).write_all(b"A.H5").unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
    assert_eq!(copies(dir, &["-r", "--sync", "src/", "to"]), "nothing to do: 4 files are there");
    let (_, planned, _) = cp(dir, &["-r", "-n", "src/", "to"]);
    let here = dir.canonicalize().unwrap();
    assert_eq!(planned, format!("{0}/src/a.h5 -> {0}/to/a.h5 (another time, 4 B)\n", here.display()));
    assert_eq!(fs::read(dir.join("to/a.h5")).unwrap(), b"a.h5", "a dry run wrote something");
    assert!(copies(dir, &["-r", "src/", "to"]).starts_with("1 file copied, 4 B"), "what differs");
    assert_eq!(fs::read(dir.join("to/a.h5")).unwrap(), b"A.H5");
    // Checksums detect a difference that neither size nor time shows.
    let same_time = fs::metadata(dir.join("to/b.tmp")).unwrap().modified().unwrap();
    let changed = fs::File::create(dir.join("to/b.tmp")).unwrap();
    (&changed).write_all(b"B.TMP").unwrap();
    changed.set_modified(same_time).unwrap();
    assert!(copies(dir, &["-r", "src/", "to"]).starts_with("nothing"), "by size and time");
    assert!(copies(dir, &["-r", "--sync=checksum", "src/", "to"]).starts_with("1 file copied"), "by checksum");
    assert_eq!(cp(dir, &["--existing", "refuse", "src/a.h5", "to/a.h5"]).0, 10);
    assert!(copies(dir, &["--existing", "keep", "src/b.tmp", "to/a.h5"]).starts_with("nothing"), "it stays");
    assert!(copies(dir, &["--existing", "replace", "src/b.tmp", "to/a.h5"]).starts_with("1 file"), "it goes");
}

#[test]
fn options_are_read_as_for_cp_rsync_and_curl() {
    let dir = place();
    let dir = dir.path();
    copies(dir, &["-rf", "src/", "to"]);
    fs::write(dir.join("src/b.tmp"), "B.TMP").unwrap();
    fs::File::options()
        .append(true)
        .open(dir.join("src/b.tmp"))
        .unwrap()
        .set_modified(fs::metadata(dir.join("to/b.tmp")).unwrap().modified().unwrap())
        .unwrap();
    let limit = ["--limit-rate", "500M", "--timeout", "30s"];
    let said = copies(dir, &[&limit[..], &["-r", "--sync", "checksum", "src/", "to"]].concat());
    assert!(said.starts_with("1 file copied, 5 B"), "{said}");
    // The older names of options.
    copies(
        dir,
        &["-r", "--stall", "30s", "--via", "none", "--far-phoebus", "x", "--limit-rate", "1MB/s", "src/", "to"],
    );
    let (code, _, said) = cp(dir, &["src/a.h5", "none/such/x"]);
    let hint = "none/such/x does not exist (--parents makes it)";
    assert!(code == 5 && said.contains("the directory above ") && said.contains(hint), "{code}: {said}");
    let (code, _, said) = cp(dir, &["src/a.h5", "ftp:/host/x"]);
    assert!(code == 2 && said.contains("ftp://HOST/PATH"), "{code}: {said}");
}

#[test]
fn archives_mirrors_and_filters_work_as_in_rsync_and_rclone() {
    let dir = place();
    let dir = dir.path();
    symlink("a.h5", dir.join("src/link")).unwrap();
    symlink("no/where", dir.join("src/lost")).unwrap();
    copies(dir, &["-a", "--log-file", "log", "src/", "to"]);
    assert_eq!(fs::read_link(dir.join("to/lost")).unwrap(), Path::new("no/where"));
    assert_eq!(fs::read_link(dir.join("to/link")).unwrap(), Path::new("a.h5"));
    let log = fs::read_to_string(dir.join("log")).unwrap();
    assert!(log.lines().count() == 7 && log.lines().all(|line| line.starts_with("20") && line.contains("Z ")), "{log}");
    assert!(log.contains("/to/run/c.h5 (4 B, verified)") && log.contains("6 files copied"), "{log}");
    // A mirror.
    fs::create_dir_all(dir.join("to/old/er")).unwrap();
    fs::write(dir.join("to/old/er/x"), "x").unwrap();
    let (code, out, _) = cp(dir, &["-a", "-n", "--delete", "src/", "to"]);
    assert!(code == 0 && out.lines().count() == 3 && out.contains("would be deleted"), "{code}: {out}");
    let (code, _, said) = cp(dir, &["-a", "--delete", "--max-delete", "2", "src/", "to"]);
    assert!(code == 4 && said.contains("more than 2 files") && dir.join("to/old/er/x").exists(), "{code}: {said}");
    assert!(copies(dir, &["-a", "--delete", "src/", "to"]).contains("3 deleted"), "a mirror");
    assert!(copies(dir, &["-a", "--delete", "src/", "to"]).starts_with("nothing to do"), "the same again");
    fs::create_dir(dir.join("x")).unwrap();
    fs::write(dir.join("x/y"), "y").unwrap();
    symlink(".", dir.join("here")).unwrap();
    for (words, arguments) in [
        ("copied with -r", &["--delete", "src", "to"][..]),
        ("several sources", &["-r", "--delete", "src/", "x/", "to"]),
        ("several sources", &["-r", "--delete", "src/", "x/y", "to"]),
        ("several sources", &["-r", "--delete", "src/", "x/", "fresh"]),
        ("lie in one another", &["-r", "--delete", "src/", "."]),
        ("lie in one another", &["-r", "--delete", "src/", "here"]),
    ] {
        let (code, _, said) = cp(dir, arguments);
        assert!(code == 2 && said.contains(words), "{arguments:?}: {code}: {said}");
        assert!(dir.join("src/a.h5").exists() && dir.join("to/a.h5").exists() && dir.join("x/y").exists());
        assert!(!dir.join("fresh").exists(), "what was refused has made a directory");
    }
    // Only the mode has changed.
    fs::set_permissions(dir.join("src/a.h5"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(copies(dir, &["-a", "src/", "to"]).contains("of 1 file only the mode was set"), "a mode");
    assert_eq!(fs::metadata(dir.join("to/a.h5")).unwrap().mode() & 0o777, 0o600);
    // By size and age: all but the last are from 2017.
    fs::write(dir.join("src/new"), "longer than the others").unwrap();
    fs::remove_file(dir.join("src/link")).unwrap();
    fs::remove_file(dir.join("src/lost")).unwrap();
    copies(dir, &["-r", "--max-age", "1d", "src/", "young"]);
    assert_eq!(seen(&dir.join("young")), ["new=longer than the others", "run/", "run/raw/"]);
    copies(dir, &["--min-age", "1d", "--max-size", "5", "src/a.h5", "src/new", "src/b.tmp", "chosen/"]);
    assert_eq!(seen(&dir.join("chosen")), ["a.h5=a.h5", "b.tmp=b.tmp"]);
}

#[test]
fn trees_are_compared() {
    let dir = place();
    let dir = dir.path();
    let check = |more: &[&str]| says(phoebus(dir, &[&["check"], more].concat()));
    copies(dir, &["-r", "src/", "to"]);
    let (code, out, said) = check(&["src", "to/"]);
    assert_eq!((code, &*out), (0, ""), "{said}");
    assert_eq!(said, "4 the same by checksum; 0 differ\n".replace("4 the same", "phoebus: 4 the same"));
    fs::write(dir.join("to/a.h5"), "A.H5").unwrap();
    fs::write(dir.join("to/extra"), "x").unwrap();
    let (code, out, _) = check(&["src", "to"]);
    assert!(code == 8 && out.contains("/src/a.h5: another content") && out.contains("/to/extra: only at"), "{out}");
    assert_eq!(check(&["--by", "size", "--one-way", "src", "to"]).0, 0);
    assert_eq!(check(&["--exclude", "extra", "--exclude", "a.h5", "src", "to"]).0, 0);
    let (code, out, _) = check(&["--json", "src", "to"]);
    let report: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!((code, &report["same"], &report["differ"]), (8, &3.into(), &2.into()), "{out}");
    assert_eq!((check(&["src", "gone"]).0, check(&["src"]).0), (5, 2));
}

#[test]
fn rules_and_lists_select_files() {
    let dir = place();
    let dir = dir.path();
    copies(dir, &["-r", "--include", "d.tmp", "--exclude", "*.tmp", "src/", "first"]);
    assert_eq!(seen(&dir.join("first")), ["a.h5=a.h5", "run/", "run/c.h5=c.h5", "run/raw/", "run/raw/d.tmp=d.tmp"]);
    copies(dir, &["-r", "--exclude", "*.tmp", "--include", "d.tmp", "--exclude=raw/", "src/", "second"]);
    assert_eq!(seen(&dir.join("second")), ["a.h5=a.h5", "run/", "run/c.h5=c.h5"]);
    fs::write(
        dir.join("pairs"),
        "# what goes where\nsrc/a.h5 x\nfile://localhost$/src/b.tmp  \"y z\"\n"
            .replace('$', &dir.display().to_string()),
    )
    .unwrap();
    copies(dir, &["--list", "pairs"]);
    assert_eq!(fs::read_to_string(dir.join("x")).unwrap() + &fs::read_to_string(dir.join("y z")).unwrap(), "a.h5b.tmp");
    let mut listed = phoebus(dir, &["cp", "--null", "--list", "-", "third/"]);
    let mut child = listed.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"src/a.h5\0src/run/c.h5\0").unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    assert_eq!(seen(&dir.join("third")), ["a.h5=a.h5", "c.h5=c.h5"]);
    // A name that looks like a pattern is taken as a name.
    fs::write(dir.join("odd[1].h5"), "odd").unwrap();
    copies(dir, &["odd[1].h5", "plain"]);
    assert_eq!(fs::read_to_string(dir.join("plain")).unwrap(), "odd");
}

#[test]
fn only_complete_streams_get_a_name() {
    let dir = place();
    let dir = dir.path();
    let mut poured = phoebus(dir, &["cp", "-", "poured"]);
    let mut child = poured.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("1 file copied, 11 B"), "{:?}", output.status);
    let (code, out, _) = cp(dir, &["poured", "src/a.h5", "-"]);
    assert_eq!((code, out.as_str()), (0, "from a pipea.h5"));
    for (arguments, expected) in [
        (&["-", "-"][..], "\"-\" is both source and destination"),
        (&["-", "src/a.h5", "x"], "\"-\" is one of several sources"),
        (&["-r", "-", "x"], "--recursive is not possible for \"-\""),
        (&["-", "src"], "needs the name of a file"),
    ] {
        let (code, _, said) = cp(dir, arguments);
        assert!(code != 0 && said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn failures_have_names_and_codes() {
    let dir = place();
    let dir = dir.path();
    symlink("nowhere", dir.join("src/dangling")).unwrap();
    symlink("run", dir.join("src/leading")).unwrap();
    fs::write(dir.join("there"), "there").unwrap();
    let here = dir.canonicalize().unwrap();
    let here = here.display();
    for (arguments, code, expected) in [
        (&["absent", "x"][..], 5, format!("{here}/absent does not exist")),
        (&["none*", "x"], 5, format!("{here}/none*: nothing matches")),
        (&["src/a.h5", "absent", "x"], 4, format!("{here}/absent does not exist")),
        (&["src/a.h5", "no/such/x"], 5, "no/such".to_owned()),
        (&["src/a.h5", "no/such/"], 5, "the directory above".to_owned()),
        (&["-r", "src/", "no/such/x"], 5, "the directory above".to_owned()),
        (&["-r", "src/", "no/such/x"], 5, "(--parents makes it)".to_owned()),
        (&["src", "x"], 1, "src is a directory, not a file (directories are copied with -r)".to_owned()),
        (&["/", "x"], 1, "/ is a directory, not a file (directories are copied with -r)".to_owned()),
        (&["-r", "src", "src/run"], 1, "it cannot be copied into itself".to_owned()),
        (&["-r", "src/", "left"], 4, "dangling is a symbolic link that leads to no file, and was left out".to_owned()),
        (
            &["-r", "src/", "left"],
            4,
            "leading is a symbolic link to a directory (--links copies links), and was left out".to_owned(),
        ),
        (&["--existing", "refuse", "src/a.h5", "there"], 10, format!("phoebus: {here}/there exists already")),
        (&["--max-size", "0", "src/a.h5", "new"], 0, "nothing to do: no file matches the options".to_owned()),
        (&["--max-age", "7", "src/a.h5", "new"], 2, "30s, 2m, 1h, 7d or 2w".to_owned()),
        (&["src/a.h5"], 2, "a source and a destination were expected".to_owned()),
        (&["http://h/a", "x"], 2, "\"phoebus run -- curl\" with this URL".to_owned()),
        (&["gopher://h/a", "x"], 2, "\"gopher://h/a\": gsiftp://, ftp://".to_owned()),
        (&["--exclude", "[", "src", "x"], 2, "\"[\" is no pattern".to_owned()),
        (&["--list", "absent", "x"], 2, "cannot open the list absent: no such file or directory".to_owned()),
        (&["--verify", "crc32", "src/a.h5", "x"], 2, "\"crc32\" is not a checksum".to_owned()),
    ] {
        let (found, _, said) = cp(dir, arguments);
        assert!(found == code && said.contains(&expected), "{arguments:?}: {found} instead of {code}: {said}");
    }
    fs::write(dir.join("big"), vec![1; 4 << 20]).unwrap();
    let script = "trap '' XFSZ; ulimit -f 2048; exec \"$0\" cp big bigger";
    let mut limited = Command::new("sh");
    limited.args(["-c", script, env!("CARGO_BIN_EXE_phoebus")]).current_dir(dir);
    let (code, _, said) = says(limited);
    assert!(code == 7 && said.contains("no space for"), "{code}: {said}");
    assert!(!fs::read_dir(dir).unwrap().any(|entry| entry.unwrap().file_name().to_string_lossy().contains("bigger")));
}

#[test]
fn options_of_other_programs_are_accepted_or_explained() {
    let dir = place();
    let dir = dir.path();
    copies(dir, &["-Rp", "--timeout", "5", "--limit-rate", "500m", "src/", "to"]);
    assert_eq!(seen(&dir.join("to")), seen(&dir.join("src")));
    let run = |arguments: &[&str]| says(phoebus(dir, arguments));
    for (arguments, expected) in [
        (&["cp", "-avP", "src/", "new"][..], "-P is the port of SSH"),
        (&["cp", "-rz", "src/", "new"], "nothing is compressed"),
        (&["cp", "-ru", "src/", "new"], "'--sync=time'"),
        (&["cp", "-rc", "src/", "new"], "'--sync=checksum'"),
        (&["cp", "--partial", "-r", "src/", "new"], "run the same command again to resume"),
        (&["cp", "--progress", "-r", "src/", "new"], "--json"),
        (&["cp", "-k", "src/a.h5", "new"], "--ca FILE"),
        (&["cp", "--insecure", "src/a.h5", "new"], "--ca FILE"),
        (&["sync", "src/", "new"], "'phoebus cp -r'"),
        (&["mirror", "src/", "new"], "'phoebus cp -r --delete'"),
        (&["copy", "src/", "new"], "'phoebus cp'"),
        (&["du", "src"], "'phoebus ls -lRa'"),
    ] {
        let (code, _, said) = run(arguments);
        assert!(code == 2 && said.contains(expected), "{arguments:?}: {code}: {said}");
        assert_eq!(said.matches("tip:").count(), 1, "{said}");
    }
    assert!(!dir.join("new").exists());
}

#[test]
fn nothing_is_created_for_an_impossible_copy() {
    let dir = place();
    let dir = dir.path();
    for (arguments, code) in [
        (&["src", "new"][..], 1),
        (&["src", "new/"], 1),
        (&["--parents", "src", "new/deep/"], 1),
        (&["src", "absent", "new"], 1),
        (&["absent", "new/"], 5),
        (&["-r", "absent", "new/"], 5),
        (&["-r", "absent", "none*", "new"], 5),
        (&["/", "new/"], 1),
        (&["--delete", "-r", "src/", "src/", "new/"], 2),
    ] {
        let (found, _, said) = cp(dir, arguments);
        assert!(found == code, "{arguments:?}: {found} instead of {code}: {said}");
        assert!(!dir.join("new").exists(), "{arguments:?}");
    }
    let (_, _, said) = cp(dir, &["/", "new/"]);
    assert!(said.contains("/ is a directory, not a file (directories are copied with -r)"), "{said}");
    symlink("nowhere", dir.join("dangling")).unwrap();
    copies(dir, &["-a", "dangling", "new/"]);
    assert!(fs::symlink_metadata(dir.join("new/dangling")).unwrap().is_symlink());
}

#[test]
fn json_has_a_line_for_each_event() {
    let dir = place();
    let dir = dir.path();
    copies(dir, &["src/a.h5", "to/"]);
    let (code, out, said) = cp(dir, &["--json", "-r", "src/", "absent", "to/"]);
    assert_eq!((code, said.as_str()), (4, ""), "nothing is said to people");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events = |name: &str| lines.iter().filter(|line| line["event"] == name).collect::<Vec<_>>();
    assert_eq!((events("carried").len(), events("skipped").len(), events("failed").len()), (3, 1, 1));
    assert!(events("carried").iter().all(|line| line["verified"].as_str().unwrap().starts_with("CRC32C:")));
    let report = lines.last().unwrap();
    assert_eq!((&report["event"], &report["exit_code"]), (&"report".into(), &4.into()));
    assert_eq!((&report["files"], &report["skipped"], &report["failed"]), (&3.into(), &1.into(), &1.into()));
    assert_eq!(report["failures"][0]["sort"], "notfound");
}

#[test]
fn file_commands_work() {
    let dir = place();
    let dir = dir.path();
    let run = |arguments: &[&str]| says(phoebus(dir, arguments));
    let (code, _, said) = run(&["mkdir", "a/b"]);
    let expected = format!(
        "phoebus: the directory above {}/a/b does not exist (-p makes it)\n",
        dir.canonicalize().unwrap().display()
    );
    assert_eq!((code, said), (5, expected));
    assert_eq!((run(&["mkdir", "-p", "a/b"]).0, run(&["mkdir", "-p", "a/b"]).0, run(&["mkdir", "a"]).0), (0, 0, 10));
    assert_eq!(run(&["ls", "src"]).1, "a.h5\nb.tmp\nrun/\n");
    let long = run(&["ls", "-l", "src/a.h5"]).1;
    assert!(long.contains("              4 2017-07-14 02:40:00 ") && long.ends_with("/src/a.h5\n"), "{long}");
    assert_eq!(run(&["ls", "-R", "--json", "src"]).1.lines().count(), 6);
    for human in ["-lh", "-lH"] {
        assert!(run(&["ls", human, "src/a.h5"]).1.contains("           4 B 2017"), "{human}");
    }
    assert!(run(&["ls", "--help"]).1.contains("--human"));
    for (arguments, code) in
        [(&["ls", "src"][..], 141), (&["stat", "src"], 141), (&["cp", "--json", "src/a.h5", "x"], 141)]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut unread = phoebus(dir, arguments);
        unread.stdout(writer);
        assert_eq!(says(unread), (code, String::new(), String::new()), "{arguments:?}");
    }
    fs::set_permissions(dir.join("src/a.h5"), fs::Permissions::from_mode(0o640)).unwrap();
    let (_, out, _) = run(&["stat", "--json", "--checksum", "sha-256", "src/a.h5"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&found["mode"], &found["modified"]), (&"0640".into(), &"2017-07-14T02:40:00.25Z".into()));
    let expected = Command::new("sha256sum").arg(dir.join("src/a.h5")).output().unwrap().stdout;
    let expected = String::from_utf8(expected).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!(found["checksum"], format!("SHA256:{expected}"));
    assert_eq!(run(&["cat", "src/a.h5", "src/b.tmp"]).1, "a.h5b.tmp");
    assert_eq!(run(&["cat", "--offset", "1", "--length", "2", "src/a.h5"]).1, ".h");
    assert_eq!(run(&["cat", "--offset", "1", "--length", "9", "src/a.h5"]).0, 1);
    assert_eq!((run(&["mv", "src/a.h5", "a"]).0, seen(&dir.join("a"))), (0, vec!["a.h5=a.h5".into(), "b/".into()]));
    assert_eq!(run(&["mv", "-n", "src/b.tmp", "a/a.h5"]).0, 10);
    let failed = run(&["mv", "src/b.tmp", "no/dir"]);
    assert!(failed.0 == 5 && failed.2.contains("the directory above ") && failed.2.contains("/no/dir"), "{failed:?}");
    let failed = run(&["mv", "a", "src/b.tmp"]);
    assert!(failed.0 != 0 && failed.2.contains("src/b.tmp is a file"), "{failed:?}");
    symlink("run", dir.join("src/link")).unwrap();
    let (code, _, said) = run(&["rm", "src"]);
    assert!(
        code == 1 && said.ends_with("/src is a directory, not a file (-r removes directories)\n"),
        "{code}: {said}"
    );
    assert_eq!((run(&["rm", "-r", "src/link"]).0, run(&["rm", "absent"]).0, run(&["rm", "-f", "absent"]).0), (0, 5, 0));
    assert!(dir.join("src/run/c.h5").exists(), "a link was followed");
    assert_eq!((run(&["rm", "-r", "src"]).0, dir.join("src").exists()), (0, false));
}

#[test]
fn two_files_with_one_destination_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("a/x", "one"), ("b/x", "two")] {
        fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
        fs::write(dir.path().join(name), text).unwrap();
    }
    fs::create_dir(dir.path().join("c")).unwrap();
    let (code, out, err) = cp(dir.path(), &["a/x", "b/x", "c"]);
    assert!(code == 2 && err.contains("c/x: two sources go there"), "{code}: {out}{err}");
    assert!(seen(&dir.path().join("c")).is_empty());

    // For whole directories, this is also found before anything is copied.
    fs::create_dir(dir.path().join("b/sub")).unwrap();
    fs::write(dir.path().join("b/sub/y"), "y").unwrap();
    fs::create_dir_all(dir.path().join("a/sub/y")).unwrap();
    fs::write(dir.path().join("pairs"), "a/ c\nb/sub/ c/sub\n").unwrap();
    for (arguments, words) in [
        (&["-r", "a/", "b/", "c"][..], "b/x"),
        (&["-r", "a/", "b/", "d"], "b/x"),
        (&["-r", "a/", "b/x", "c/"], "b/x"),
        (&["-r", "--exclude", "x", "a/", "b/", "c"], "sub/y"),
        (&["-r", "--list", "pairs"], "sub/y"),
    ] {
        let (code, out, err) = cp(dir.path(), arguments);
        assert!(
            code == 2 && err.contains("nothing was copied") && err.contains(words),
            "{arguments:?}: {code}: {out}{err}"
        );
        assert!(seen(&dir.path().join("c")).is_empty() && !dir.path().join("d").exists(), "{arguments:?}");
    }
    copies(dir.path(), &["-r", "a", "b", "c"]);
    copies(dir.path(), &["-r", "--exclude", "x", "--exclude", "y", "a/", "b/", "d"]);
    assert_eq!(seen(&dir.path().join("d")), ["sub/"]);
}
