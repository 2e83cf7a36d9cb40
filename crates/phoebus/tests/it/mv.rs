//! `phoebus mv` of directories that have to be copied: where they go, and how a move that was cut goes on.

use crate::support;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
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

    /// The exit code, and what is said.
    fn moves(&self, arguments: &[&str]) -> (Option<i32>, String) {
        says(&run(&mut self.command(arguments)))
    }
}

fn says(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A file that has its path for bytes.
fn write(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, path.display().to_string()).unwrap();
}

#[test]
fn a_directory_that_was_moved_in_part_is_not_split() {
    let (here, serve) = (Here::new(), Serve::writable());
    let new = serve.url("new");
    // What an earlier move has left: a directory, or the draft of a file.
    for left in ["new/a/other", "new/.g.0123456789abcdef.phoebus-part"] {
        let _ = fs::remove_dir_all(serve.path("new"));
        write(&serve.path(left));
        let (code, said) = here.moves(&["tree", &new]);
        let both = said.contains("\"phoebus mv -T /") && said.contains("/new/\" as the destination");
        assert!(code == Some(10) && both, "{left}: {code:?} {said}");
        assert!(here.path("tree/a/f").exists() && !serve.path("new/tree").exists(), "{left}");
    }
    // The two forms that it names.
    assert_eq!(here.moves(&["-T", "tree", &new]), (Some(0), String::new()));
    assert!(!here.path("tree").exists() && serve.path("new/a/f").exists() && serve.path("new/g").exists());
    here.write("tree/a/f");
    assert_eq!(here.moves(&["tree", &serve.url("new/")]), (Some(0), String::new()));
    assert!(!here.path("tree").exists() && serve.path("new/tree/a/f").exists());
    // With nothing in common there is nothing to ask.
    here.write("else/b");
    assert_eq!(here.moves(&["else", &new]), (Some(0), String::new()));
    assert!(serve.path("new/else/b").exists());
}

#[test]
fn a_destination_that_is_the_name_itself_is_one() {
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
fn who_interrupts_it_is_told_how_it_goes_on() {
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
    assert!(code == Some(130) && said.contains("the same command with -T goes on"), "{code:?} {said}");
    fs::File::create(here.path("tree/long")).unwrap().set_len(1 << 20).unwrap();
    assert_eq!(here.moves(&["-T", "tree", &new]), (Some(0), String::new()));
    assert!(!here.path("tree").exists() && serve.path("new/long").exists() && serve.path("new/a/f").exists());
}

#[test]
fn of_two_links_to_one_file_the_first_goes() {
    let here = Here::new();
    fs::hard_link(here.path("tree/g"), here.path("other")).unwrap();
    // One name by two paths is no such pair.
    std::os::unix::fs::symlink("tree", here.path("way")).unwrap();
    assert_eq!(here.moves(&["way/g", "tree/g"]), (Some(0), String::new()));
    assert!(here.path("tree/g").exists() && here.path("other").exists());
    assert_eq!(here.moves(&["tree/g", "other"]), (Some(0), String::new()));
    assert!(!here.path("tree/g").exists() && here.path("other").exists());
    assert_eq!(fs::read_dir(here.path("tree")).unwrap().count(), 1);
    // Of the same name in two directories, as copies by links have them.
    fs::create_dir(here.path("copy")).unwrap();
    fs::hard_link(here.path("other"), here.path("copy/other")).unwrap();
    assert_eq!(here.moves(&["copy/other", "other"]), (Some(0), String::new()));
    assert!(here.path("other").exists() && fs::read_dir(here.path("copy")).unwrap().next().is_none());
}

#[test]
fn of_two_links_of_one_name_the_first_goes_everywhere() {
    let (here, serve) = (Here::new(), Serve::writable());
    // By a path of this machine, and by a server.
    for far in [false, true] {
        let root = if far { serve.path("") } else { here.path("") };
        let place = |name: &str| if far { serve.url(name) } else { root.join(name).display().to_string() };
        let pairs =
            [("d1/x", "d2/x", "d2/x"), ("d1/y", "d2/", "d2/y"), ("d1/z", "d1/Z", "d1/Z"), ("d1/v", "d2/w", "d2/w")];
        for (from, to, left) in pairs {
            write(&root.join(from));
            write(&root.join("d2/other"));
            fs::hard_link(root.join(from), root.join(left)).unwrap();
            assert_eq!(here.moves(&[&place(from), &place(to)]), (Some(0), String::new()), "{from} {to}");
            assert!(!root.join(from).exists() && root.join(left).exists(), "{} {from} {to}", root.display());
        }
        // The same name is none of two.
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
fn a_directory_is_not_merged_into_one_that_is_there() {
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
        let says = said.contains("/B/A: it is there and not empty: \"phoebus mv -T /") && said.contains("/A ftp://");
        assert!(code == Some(10) && says, "{code:?} {said}");
        assert!(here.path("A/f").exists() && fs::read(serve.path("B/A/f")).unwrap() == b"old");
    }
    // A draft is something, too: of a move that was cut.
    fs::remove_file(serve.path("B/A/f")).unwrap();
    fs::write(serve.path("B/A/.f.0123456789abcdef.phoebus-part"), "o").unwrap();
    assert_eq!(here.moves(&["A", &serve.url("B/")]).0, Some(10));
    // As it says.
    assert_eq!(here.moves(&["-T", "A", &serve.url("B/A")]), (Some(0), String::new()));
    assert!(!here.path("A").exists() && fs::read(serve.path("B/A/f")).unwrap() == b"new");
    // An empty one is taken, as by the system, and several go on past one that is refused.
    fs::create_dir(serve.path("B/E")).unwrap();
    new("A");
    new("E");
    let (code, said) = here.moves(&["A", "E", &serve.url("B")]);
    assert!(code == Some(4) && serve.path("B/E/f").exists() && here.path("A/f").exists(), "{code:?} {said}");
    // Back the same.
    new("dd/E");
    let (code, said) = here.moves(&[&serve.url("B/E"), "dd"]);
    assert!(
        code == Some(10) && said.contains("\"phoebus mv -T ftp://") && serve.path("B/E/f").exists(),
        "{code:?} {said}"
    );
    // Within a server it says what is in the way.
    fs::create_dir_all(serve.path("E")).unwrap();
    let (code, said) = here.moves(&[&serve.url("E"), &serve.url("B")]);
    assert!(code == Some(1) && said.contains("not empty") && !said.contains("not a file"), "{code:?} {said}");
}

#[test]
fn who_interrupts_a_move_into_a_directory_is_told_how_it_goes_on() {
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
    let goes_on = format!("interrupted; \"phoebus mv -T {} {to}\" goes on", from.display());
    assert!(code == Some(130) && said.contains(&goes_on), "{code:?} {said}");
    fs::File::create(here.path("tree/long")).unwrap().set_len(1 << 20).unwrap();
    assert_eq!(here.moves(&["-T", "tree", &to]), (Some(0), String::new()));
    assert!(!from.exists() && serve.path("into/tree/long").exists() && serve.path("into/tree/a/f").exists());
}

#[test]
fn where_there_is_no_space_the_code_says_so() {
    let quota = "[anonymous]\nroot = \"ROOT\"\nread_only = false\nquota = { bytes = \"LIMIT\" }\n";
    // Nothing is left, or something.
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
fn a_link_goes_with_what_it_leads_to() {
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
        // Names on either side of it: the link leaves after it, before it, or meanwhile.
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
fn a_name_that_was_changed_in_part_is_changed_once_more() {
    let (here, serve) = (Here::new(), Serve::writable());
    // As a move to another link of the file leaves it, when it is killed between its two steps.
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
