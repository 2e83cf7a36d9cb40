//! Drafts of interrupted copies: how they are resumed, listed and removed.

use super::*;

/// Waits for a record in the journal of a slow copy. A busy machine may start the copy again before that.
fn until_it_grows(child: &mut Child, journal: &Path) {
    let (mut first, begin) = (None, Instant::now());
    while child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < PATIENCE, "no checkpoint was made");
        let now = fs::metadata(journal).ok().map(|meta| (meta.ino(), meta.len()));
        match (first, now) {
            (Some((ino, len)), Some(now)) if now.0 == ino && now.1 > len => return,
            (Some((ino, _)), Some(now)) if now.0 == ino => {}
            _ => first = now,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn killed_copy_resumes() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let content: Vec<u8> = (0..24 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(dir.join("from"), &content).unwrap();
    for signal in [Signal::KILL, Signal::INT] {
        let mut slow = phoebus(dir, &["cp", "--json", "--limit-rate", "8mbit", "from", "to"]);
        let mut child = slow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until_it_grows(&mut child, &dir.join(".to.phoebus-journal"));
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(
            !output.status.success() && !dir.join("to").exists(),
            "it had come to its end, or half of it was shown"
        );
        if signal == Signal::INT {
            let told = String::from_utf8(output.stdout).unwrap();
            let report: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
            assert_eq!((&report["event"], &report["interrupted"]), (&"report".into(), &true.into()), "{told}");
            assert_eq!((&report["exit_code"], &report["complete"]), (&130.into(), &false.into()), "{told}");
            assert_eq!(output.status.code(), Some(130));
            assert!(String::from_utf8(output.stderr).unwrap().contains("the same command resumes it"));
        }
    }
    let (code, out, _) = cp(dir, &["--json", "from", "to"]);
    let report: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!((code, &report["bytes"]), (0, &content.len().into()));
    let moved = report["bytes_moved"].as_u64().unwrap();
    assert!(moved < content.len() as u64, "nothing was kept");
    assert!(fs::read(dir.join("to")).unwrap() == content, "the copy differs");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 2, "something was left behind");
}

#[test]
fn partial_dir_keeps_cut_files() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let content: Vec<u8> = (0..24 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::create_dir_all(dir.join("from/.parts*")).unwrap();
    fs::write(dir.join("from/long"), &content).unwrap();
    fs::write(dir.join("from/.parts*/other"), "not copied").unwrap();
    let arguments = ["-r", "--delete", "--partial-dir", ".parts*/", "from/", "to"];
    let mut slow = phoebus(dir, &[&["cp", "--limit-rate", "8mbit"], &arguments[..]].concat());
    let mut child = slow.stderr(Stdio::piped()).spawn().unwrap();
    until_it_grows(&mut child, &dir.join("to/.parts*/.long.phoebus-journal"));
    child.kill().unwrap();
    child.wait().unwrap();
    let names = || fs::read_dir(dir.join("to")).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names(), [".parts*"]);
    assert_eq!(fs::metadata(dir.join("to/.parts*")).unwrap().mode() & 0o777, 0o700);
    let said = copies(dir, &arguments);
    assert!(said.contains("by an earlier run"), "{said}");
    assert!(fs::read(dir.join("to/long")).unwrap() == content, "the copy differs");
    assert_eq!(names(), ["long"]);
    // The directory of a run that was killed, with all of its files complete.
    fs::create_dir(dir.join("to/.parts*")).unwrap();
    copies(dir, &arguments);
    assert_eq!(names(), ["long"]);
    // Other files in a directory of that name stay.
    fs::create_dir(dir.join("to/.parts*")).unwrap();
    fs::write(dir.join("to/.parts*/own"), "").unwrap();
    fs::write(dir.join("to/.partsx"), "").unwrap();
    fs::remove_file(dir.join("to/long")).unwrap();
    copies(dir, &arguments);
    assert_eq!(seen(&dir.join("to/.parts*")), ["own="]);
    assert!(!dir.join("to/.partsx").exists());
    for (wrong, why) in [("a/b", "expected one without \"/\""), ("..", "is not a name"), ("", "is not a name")] {
        let (code, _, said) = cp(dir, &["--partial-dir", wrong, "from/long", "x"]);
        assert!(code == 2 && said.contains(why), "{code} {said}");
    }
}

#[test]
fn partial_dir_changes_nothing_else() {
    let dir = place();
    let dir = dir.path();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_400_000_000);
    fs::set_permissions(dir.join("src/run"), fs::Permissions::from_mode(0o555)).unwrap();
    for name in ["src/run", "src"] {
        fs::File::open(dir.join(name)).unwrap().set_modified(time).unwrap();
    }
    fs::create_dir(dir.join("to")).unwrap();
    fs::write(dir.join("to/notes.txt"), "").unwrap();
    copies(dir, &["-r", "--delete", "--include", "*.h5", "--partial-dir", ".partial", "src/", "to"]);
    assert_eq!(seen(&dir.join("to")), ["a.h5=a.h5", "notes.txt=", "run/", "run/c.h5=c.h5", "run/raw/"]);
    let run = fs::metadata(dir.join("to/run")).unwrap();
    assert_eq!((run.mode() & 0o777, run.modified().unwrap()), (0o555, time));
}

#[test]
fn partial_dir_is_refused_where_others_write() {
    let dir = place();
    let dir = dir.path();
    for name in ["open", "theirs", "linked"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    fs::create_dir(dir.join("open/.partial")).unwrap();
    fs::set_permissions(dir.join("open/.partial"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(dir.join("theirs/.partial")).unwrap();
    std::os::unix::fs::chown(dir.join("theirs/.partial"), Some(65_534), Some(65_534)).unwrap();
    symlink("..", dir.join("linked/.partial")).unwrap();
    let (kind, others) = ("a directory of the file system", "nobody else may write to it");
    for (name, why) in [("open", others), ("theirs", others), ("linked", kind)] {
        let (code, _, said) = cp(dir, &["--partial-dir", ".partial", "src/a.h5", name]);
        assert_eq!(code, 6, "{name}: {said}");
        assert!(said.contains(why) && dir.join(name).join(".partial").exists(), "{name}: {said}");
        assert!(!dir.join(name).join("a.h5").exists());
    }
}

#[test]
fn drafts_are_listed_on_request_and_removed_with_their_directory() {
    let dir = place();
    let dir = dir.path();
    let run = |arguments: &[&str]| says(phoebus(dir, arguments));
    for name in [".c.h5.phoebus-draft", ".c.h5.phoebus-journal", ".c.h5.0123456789abcdef.phoebus-part"] {
        fs::write(dir.join("src/run").join(name), "old").unwrap();
    }
    assert!(!run(&["ls", "src/run"]).1.contains("phoebus"));
    let all = run(&["ls", "-a", "src/run"]).1;
    assert_eq!(all.lines().filter(|name| name.contains(".phoebus-")).count(), 3, "{all}");
    // A draft that is being written stays, and so does its journal.
    let used = fs::File::open(dir.join("src/run/.c.h5.phoebus-draft")).unwrap();
    used.lock().unwrap();
    let (code, _, said) = run(&["rm", "-r", "src"]);
    assert!(code != 0 && said.contains("another transfer is writing"), "{code}: {said}");
    assert_eq!(fs::read_dir(dir.join("src/run")).unwrap().count(), 2);
    drop(used);
    assert_eq!((run(&["rm", "-r", "src"]).0, dir.join("src").exists()), (0, false));
}

#[test]
fn clean_removes_only_abandoned_drafts() {
    let dir = place();
    let dir = dir.path();
    let clean = |more: &[&str]| says(phoebus(dir, &[&["clean"], more].concat()));
    let run = dir.join("src/run");
    let old = [".c.h5.phoebus-draft", ".c.h5.phoebus-journal", ".d.0123456789abcdef.phoebus-part"];
    let others = [".d.phoebus-part", ".phoebus-draft", "e.phoebus-draft", ".hidden"];
    let used = [".u.phoebus-draft", ".u.phoebus-journal"];
    for name in old.iter().chain(&others).chain(&used) {
        fs::write(run.join(name), "old").unwrap();
    }
    fs::create_dir(run.join(".f.phoebus-draft")).unwrap();
    symlink("run", dir.join("src/link")).unwrap();
    let count = || fs::read_dir(&run).unwrap().count();
    let all = count();
    let lock = fs::File::open(run.join(used[0])).unwrap();
    lock.lock().unwrap();
    // By default, it keeps drafts that are younger than a day.
    let (code, out, said) = clean(&["src"]);
    assert!(
        (code, &*out, count()) == (0, "", all)
            && said.contains("5 younger than --min-age (1d if it is not given; 0s takes any)"),
        "{code}: {out}{said}"
    );
    let (code, out, _) = clean(&["-n", "--min-age", "0s", "src"]);
    assert_eq!((code, out.lines().count(), count()), (0, 5, all), "{out}");
    let (code, out, said) = clean(&["--json", "--min-age", "0s", "src"]);
    assert_eq!((code, count()), (0, all - old.len()), "{out}{said}");
    assert!(old.iter().all(|name| !run.join(name).exists()));
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    assert_eq!((events("removed"), events("used"), events("report")), (3, 2, 1), "{out}");
    let report = lines.last().unwrap();
    assert_eq!((&report["removed"], &report["bytes"], &report["exit_code"]), (&3.into(), &9.into(), &0.into()));
    drop(lock);
    assert_eq!(clean(&["--min-age", "0s", "src"]).1.lines().count(), 2);
    assert_eq!((clean(&["absent"]).0, count()), (5, all - 5));
}
