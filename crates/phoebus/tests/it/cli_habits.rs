//! Habits from cp, mv, rm, rsync, scp and rclone: Phoebus does what the user means, or refuses before it does anything.

use crate::support;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use support::here::{Here, says};
use support::serve::{Serve, run};

/// A directory with `a`, `b` and `c/d/e`, which commands are run in.
fn place() -> Here<'static> {
    let here = Here::new(None);
    fs::create_dir_all(here.path("c/d")).unwrap();
    for name in ["a", "b", "c/d/e"] {
        fs::write(here.path(name), name).unwrap();
    }
    here
}

fn is_whole(here: &Here<'_>) {
    for name in ["a", "b", "c/d/e"] {
        assert_eq!(fs::read_to_string(here.path(name)).unwrap(), name);
    }
}

#[test]
fn dot_directories_are_not_removed_or_moved() {
    let here = place();
    symlink("c", here.path("link")).unwrap();
    let inside = |arguments: &[&str]| {
        let mut command = here.command(arguments);
        command.current_dir(here.path("c/d"));
        says(&run(&mut command))
    };
    for dots in [".", "..", "./", "../", "../../c/d/.", "../..", "e/..", "../d/..//", "x*/..", ".//.", "link/.."] {
        for arguments in [
            &["rm", "-rf", dots][..],
            &["rm", "-rf", "e", dots],
            &["rm", dots, "e"],
            &["mv", dots, "../../new"],
            &["mv", "e", dots, "../../new"],
        ] {
            let (code, said) = inside(arguments);
            assert!(code == 2 && said.contains(&format!("\"{dots}\"")), "{arguments:?}: {code}: {said}");
            is_whole(&here);
        }
    }
    for root in ["/", "//", "file:///", "file:///x/.."] {
        for arguments in [&["rm", "-r", "e", root][..], &["mv", "e", root, "../../new"]] {
            let (code, _) = inside(arguments);
            assert_eq!(code, 2, "{arguments:?}");
            is_whole(&here);
        }
    }
    let (code, said) = inside(&["mv", "e", ".."]);
    assert!(code == 0 && here.path("c/e").exists(), "{said}");
}

#[test]
fn dot_directories_of_servers_are_not_removed_or_moved() {
    let (here, serve) = (place(), Serve::writable());
    here.does(&["cp", "-r", "c/", &serve.url("c")]);
    for path in ["", ".", "c/.", "c/..", "c/d/../", "~/", "~/."] {
        for command in [&["rm", "-r"][..], &["mv"]] {
            let (one, other, new) = (serve.url("c/d/e"), serve.url(path), serve.url("new"));
            let mut arguments = [command, &[&one, &other]].concat();
            if command == ["mv"] {
                arguments.push(&new);
            }
            let (code, said) = says(&run(&mut here.command(&arguments)));
            assert!(code == 2 && serve.path("c/d/e").exists(), "{arguments:?}: {code}: {said}");
        }
    }
}

#[test]
fn options_of_ssh_need_a_place_that_uses_ssh() {
    let here = place();
    for arguments in [
        &["rm", "-i", "a", "b"][..],
        &["rm", "-i", "a"],
        &["rm", "-ri", "a"],
        &["mv", "-i", "a", "b", "c"],
        &["mv", "-i", "a", "b"],
        &["cp", "-i", "a", "b", "c"],
        &["cp", "-i", "a", "b"],
        &["cp", "-ri", "a", "b"],
        &["cp", "-ai", "a", "b", "file:///x"],
    ] {
        let (code, said) = says(&run(&mut here.command(arguments)));
        assert!(code == 2 && said.contains("does not ask"), "{arguments:?}: {code}: {said}");
        is_whole(&here);
    }
    for arguments in [
        &["ls", "-i", "a", "b"][..],
        &["cat", "-i", "a", "b"],
        &["stat", "-J", "a", "b"],
        &["check", "-i", "a", "b", "b"],
        &["clean", "-P", "7", "c"],
        &["mkdir", "-P", "700", "new"],
        &["cp", "-P", "7", "a", "new"],
        &["cp", "-J", "a", "b", "new"],
        &["cp", "-J", "a", "-", "new"],
    ] {
        here.fails(2, "HOST:PATH", arguments);
        is_whole(&here);
        assert!(!here.path("new").exists());
    }
    here.fails(2, "--existing refuse", &["cp", "-i", "a", "b", "c"]);
    here.fails(2, "-n replaces nothing", &["mv", "-i", "a", "b", "c"]);
    here.fails(2, "phoebus ls -R", &["rm", "-i", "a", "b"]);
}

#[test]
fn h_beside_other_options_means_sizes() {
    let here = place();
    for (options, to) in [(&["-avh"][..], "x"), (&["-ah"], "y"), (&["-a", "-h", "--quiet"], "z")] {
        here.does(&[&["cp"], options, &["c", to]].concat());
        assert!(here.path(to).join("c/d/e").exists() || here.path(to).join("d/e").exists(), "{options:?}");
    }
    for arguments in [&["cp", "-h"][..], &["cp", "--help"], &["cp", "c", "new", "--help"]] {
        assert!(here.does(arguments).contains("Usage: phoebus cp"));
    }
    assert!(!here.path("new").exists());
}

#[test]
fn nothing_is_moved_into_itself() {
    let (here, serve) = (place(), Serve::writable());
    here.does(&["cp", "-r", "c/", &serve.url("c")]);
    let words = "it cannot be moved into itself";
    here.fails(1, words, &["mv", "c", "c/d/new"]);
    here.fails(1, words, &["mv", "c", "c/d"]);
    here.fails(1, words, &["mv", "c", "c/c"]);
    symlink("c", here.path("link")).unwrap();
    here.fails(1, words, &["mv", "c", "link/d/new"]);
    here.fails(1, words, &["mv", &serve.url("c"), &serve.url("c/d/new")]);
    here.fails(4, words, &["mv", "a", "c", "c/d"]);
    // Features of other clients that are refused permanently.
    symlink("c", serve.path("link")).unwrap();
    here.fails(6, words, &["mv", &serve.url("c"), &serve.url("link/new")]);
    assert!(here.path("c/d/e").exists() && serve.path("c/d/e").exists() && here.path("c/d/a").exists());
}

#[test]
fn options_of_other_programs_get_a_tip() {
    let here = place();
    for (option, expected) in [
        ("--size-only", "'--sync=size'"),
        ("--ignore-existing", "'--existing keep'"),
        ("--no-clobber", "'--existing keep'"),
        ("--files-from", "'--list FILE'"),
        ("--from0", "'-0'"),
        ("--mkpath", "'--parents'"),
        ("--copy-links", "without an option"),
        ("-L", "without an option"),
        ("-x", "mounted below"),
        ("--one-file-system", "mounted below"),
        ("--append-verify", "run the same command again to resume"),
        ("--ignore-times", "'--existing replace'"),
        ("-I", "'--existing replace'"),
        ("--chmod", "modes"),
        ("--temp-dir", "'--partial-dir NAME'"),
        ("-e", "PHOEBUS_SSH"),
        ("--rsh", "PHOEBUS_SSH"),
        ("--rsync-path", "'--remote-command COMMAND'"),
        ("--target-directory", "at the end"),
        ("-t", "at the end"),
        ("--remove-source-files", "'phoebus mv'"),
        ("--sparse", "without an option"),
        ("-S", "without an option"),
        ("--backup", "nothing keeps"),
        ("--interactive", "does not ask"),
        ("--stats", "the last line"),
        ("--link-dest", "not linked"),
        ("--exclude-from", "once for each"),
        ("--include-from", "once for each"),
        ("--port", "in the URL"),
        ("--checkers", "'--transfers N'"),
        ("--multi-thread-streams", "'--streams N'"),
        ("--bwlimit", "'--limit-rate"),
        ("--delete-after", "'--delete'"),
        ("--delete-excluded", "'--delete'"),
    ] {
        let (code, said) = says(&run(&mut here.command(&["cp", option, "c", "new"])));
        let one = said.matches("tip:").count() == 1;
        assert!(code == 2 && one && said.contains(expected), "{option}: {code}: {said}");
        assert!(!said.contains("to pass '") && !said.contains("similar argument"), "{option}: {said}");
    }
    for (arguments, expected) in [
        (&["check", "-r", "c", "c"][..], "with all that is in them"),
        (&["mv", "-v", "a", "b"], "says nothing of the rest"),
        (&["rm", "-v", "a"], "says nothing"),
        (&["rm", "--interactive", "a"], "does not ask"),
        (&["mkdir", "-v", "new"], "says nothing"),
        (&["mkdir", "-m", "700", "new"], "umask"),
    ] {
        let (code, said) = says(&run(&mut here.command(arguments)));
        let one = said.matches("tip:").count() == 1;
        assert!(code == 2 && one && said.contains(expected), "{arguments:?}: {code}: {said}");
    }
    is_whole(&here);
    // A small typing mistake still gets a suggestion.
    here.fails(2, "'--recursive'", &["cp", "--recursiv", "c", "new"]);
    // An option that resembles none gets no suggestion.
    let (_, said) = says(&run(&mut here.command(&["cp", "--fuzzy-wuzzy", "c", "new"])));
    assert!(!said.contains("tip:"), "{said}");
}

#[test]
fn other_attempts_of_newcomers_are_answered() {
    let here = place();
    assert_eq!(here.does(&["cat", "--offset", "3", "c/d/e"]), "/e");
    assert_eq!(here.does(&["cat", "--offset", "5", "c/d/e"]), "");
    here.fails(1, "bytes from 6 on were asked for, and it has 5 B", &["cat", "--offset", "6", "c/d/e"]);
    symlink("nowhere", here.path("dangling")).unwrap();
    assert!(here.does(&["stat", "dangling"]).contains("kind: a symbolic link"));
    here.fails(5, "does not exist", &["stat", "absent"]);
    here.fails(1, "/a is a file, not a directory", &["mkdir", "-p", "a/new"]);
    here.fails(2, "HOST:PATH with one colon", &["cp", "host::module/x", "new"]);
    for addr in ["24012", "localhost:24012"] {
        here.fails(2, "an address and port such as 127.0.0.1:2811", &["serve", "--listen", addr]);
    }
}

#[test]
fn cp_that_waits_for_its_list_ends_with_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    command.args(["cp", "--list", "-"]).arg(dir.path()).stdin(Stdio::piped()).stderr(Stdio::null());
    for (name, number) in [("INT", 2), ("TERM", 15)] {
        let mut child = command.spawn().unwrap();
        // Until it reads standard input: system call 0 with descriptor 0.
        let calls = format!("/proc/{}/syscall", child.id());
        while !std::fs::read_to_string(&calls).unwrap().starts_with("0 0x0 ") {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(number));
    }
}
