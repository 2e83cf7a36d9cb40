//! Moves between stores that fail to keep what they were given, or do not show it.

mod server;

use super::*;
use phoebus_files::Links;
use phoebus_files::local::Local;
use server::{Names, Server};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tempfile::tempdir;
use tokio::sync::Barrier;

/// What became of a move.
#[derive(Debug, Default)]
struct Counted {
    done: u64,
    failed: Vec<ErrorKind>,
}

impl Outcomes for Counted {
    fn done(&mut self, count: u64) {
        self.done += count;
    }

    fn failed(&mut self, error: Error) {
        self.failed.push(error.kind());
    }

    fn modes_unknown(&mut self, _count: u64) {}

    fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }
}

/// The result of a whole move.
#[derive(Debug, PartialEq, Eq)]
enum Came {
    Done,
    /// Some files were moved. The others failed, but not because of wrong bytes or lack of space.
    Partly,
    Failed,
}

impl Counted {
    fn came(&self) -> Came {
        let is_worse = |kind| matches!(kind, &ErrorKind::Verification | &ErrorKind::NoSpace);
        match self.failed.is_empty() {
            true => Came::Done,
            false if self.done > 0 && !self.failed.iter().any(is_worse) => Came::Partly,
            false => Came::Failed,
        }
    }
}

/// Moves all of `from`, and says what came of it.
async fn moves(source: Arc<dyn Store>, from: &str, dest: Server, to: &str) -> Came {
    let (mut counted, dest) = (Counted::default(), Arc::new(dest) as Arc<dyn Store>);
    let key = |path: &str| Key::parse(path.as_bytes()).unwrap();
    move_by_copy(&source, &key(from), &dest, &key(to), true, &Arc::default(), &mut counted).await;
    counted.came()
}

/// The directory `dir` as a file system of this machine, or as a server has it.
fn store(dir: &Path, is_local: bool) -> Arc<dyn Store> {
    if is_local { Arc::new(Local::new(dir, Links::Beneath).unwrap()) } else { Arc::new(Server::of(dir)) }
}

#[tokio::test]
async fn source_stays_if_its_copy_is_not_durable() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    fs::create_dir(here.path().join("d")).unwrap();
    fs::write(here.path().join("d/f"), "f").unwrap();
    let source = Arc::new(Local::new(here.path(), Links::Beneath).unwrap());
    let came = moves(source.clone(), "d", Server { loses: true, ..Server::of(there.path()) }, "d").await;
    assert!(came != Came::Done && fs::read(here.path().join("d/f")).unwrap() == b"f", "{came:?}");
    assert_eq!(moves(source, "d", Server::of(there.path()), "d").await, Came::Done);
    assert!(!here.path().join("d").exists() && there.path().join("d/f").exists());
}

#[tokio::test]
async fn source_that_cannot_be_removed_keeps_its_name() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(here.path().join("f"), "f").unwrap();
    let source = Arc::new(Server { keeps: true, ..Server::of(here.path()) });
    assert_ne!(moves(source, "f", Server::of(there.path()), "f").await, Came::Done);
    assert_eq!(fs::read(here.path().join("f")).unwrap(), b"f");
    assert_eq!(fs::read_dir(here.path()).unwrap().count(), 1);
    assert_eq!(fs::read(there.path().join("f")).unwrap(), b"f");
}

#[tokio::test]
async fn file_hidden_from_listings_is_not_moved_onto_itself() {
    let dir = tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    for name in [".index", ".other"] {
        fs::write(dir.path().join("d").join(name), name).unwrap();
    }
    let source = Arc::new(Local::new(dir.path(), Links::Beneath).unwrap());
    let came = moves(source.clone(), "d", Server { hides: true, ..Server::of(dir.path()) }, "d").await;
    assert_ne!(came, Came::Done);
    for name in [".index", ".other"] {
        assert_eq!(fs::read(dir.path().join("d").join(name)).unwrap(), name.as_bytes());
    }
    // Elsewhere all of it goes.
    let there = tempdir().unwrap();
    assert_eq!(moves(source, "d", Server { hides: true, ..Server::of(there.path()) }, "d").await, Came::Done);
    assert!(!dir.path().join("d").exists() && there.path().join("d/.other").exists());
}

#[tokio::test]
async fn drafts_go_with_a_directory_that_has_nothing_else() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    fs::create_dir(here.path().join("d")).unwrap();
    fs::write(here.path().join("d/f"), "f").unwrap();
    fs::write(here.path().join("d/.g.phoebus-draft"), "cut").unwrap();
    let source = Arc::new(Local::new(here.path(), Links::Beneath).unwrap());
    assert_eq!(moves(source, "d", Server::of(there.path()), "d").await, Came::Done);
    assert!(!here.path().join("d").exists());
    assert_eq!(fs::read_dir(there.path().join("d")).unwrap().count(), 1);
}

#[tokio::test]
async fn bytes_tell_a_changed_source_where_times_do_not() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(here.path().join("f"), "new").unwrap();
    fs::write(there.path().join("f"), "old").unwrap();
    let source = Server { dates: false, ..Server::of(here.path()) };
    // What was carried is what the destination has, and the source was rewritten since.
    let (f, meta) = (Key::parse(b"f").unwrap(), source.stat(&Key::parse(b"f").unwrap()).await.unwrap());
    let carried = Carried { from: f.clone(), meta, replaced: false };
    let (source, dest) = (Arc::new(source), Arc::new(Local::new(there.path(), Links::Beneath).unwrap()));
    let leaving = Leaving::new(source.clone(), dest, false, Time::from(SystemTime::now()));
    let error = leaving.leave(&carried, &f).await.unwrap_err().error;
    assert!(matches!(error, Error::Mismatch { .. }) && here.path().join("f").exists(), "{error}");
    fs::write(here.path().join("f"), "old").unwrap();
    let meta = source.stat(&f).await.unwrap();
    leaving.leave(&Carried { from: f.clone(), meta, replaced: false }, &f).await.unwrap();
    assert!(!here.path().join("f").exists());
}

#[tokio::test]
async fn link_stays_if_its_copy_is_gone() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(here.path().join("file"), "f").unwrap();
    std::os::unix::fs::symlink("file", here.path().join("l")).unwrap();
    let source = Arc::new(Local::new(here.path(), Links::Beneath).unwrap());
    let dest = Arc::new(Local::new(there.path(), Links::Beneath).unwrap());
    let l = Key::parse(b"l").unwrap();
    let meta = source.stat(&l).await.unwrap();
    let leaving = Leaving::new(source, dest, true, Time::from(SystemTime::now()));
    let carried = Carried { from: l.clone(), meta, replaced: false };
    // What it leads to is there, and then it has left as well.
    for left in [false, true] {
        if left {
            fs::remove_file(here.path().join("file")).unwrap();
        }
        let error = leaving.leave(&carried, &l).await.unwrap_err().error;
        assert!(error.kind() == ErrorKind::NotFound && here.path().join("l").is_symlink(), "{left}: {error}");
    }
    fs::write(there.path().join("l"), "f").unwrap();
    leaving.leave(&carried, &l).await.unwrap();
    assert!(!here.path().join("l").is_symlink());
}

#[tokio::test]
async fn sources_stay_whose_copies_were_not_looked_for() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    let source = Arc::new(Local::new(here.path(), Links::Beneath).unwrap());
    let write = |path: &str, bytes: &str| {
        fs::create_dir_all(here.path().join(path).parent().unwrap()).unwrap();
        fs::write(here.path().join(path), bytes).unwrap();
    };
    for path in ["q/a", "q/b", "q/sub/c"] {
        write(path, path);
    }
    let server = Server { names: Names::Unlisted("q"), ..Server::of(there.path()) };
    assert_ne!(moves(source.clone(), "q", server, "q").await, Came::Done);
    let stays = |path: &str| here.path().join(path).exists();
    assert!(stays("q/a") && stays("q/b") && !stays("q/sub") && there.path().join("q/a").exists());
    // Two of the same size that became one, and a third for which there is no room.
    for path in ["p/a-long-name-1", "p/a-long-name-2"] {
        write(path, path);
    }
    write("p/z/full", "full");
    let server = Server { names: Names::Short, full_at: Some("full"), ..Server::of(there.path()) };
    assert_ne!(moves(source, "p", server, "p").await, Came::Done);
    assert!(stays("p/a-long-name-1") && stays("p/a-long-name-2") && stays("p/z/full"));
}

#[tokio::test]
async fn sources_stay_of_all_files_that_may_have_become_one() {
    for names in [Names::Short, Names::Cut] {
        // The second name is the first one once it is shortened; sizes say whose bytes are there, or do not.
        for (second, stays) in [("of one size", true), ("longer, so the first one is whole", false)] {
            let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
            let source = Arc::new(Local::new(here.path(), Links::Beneath).unwrap());
            fs::create_dir(here.path().join("d")).unwrap();
            let exists = |name: &str| here.path().join("d").join(name).exists();
            let write = |name: &str, bytes: &str| fs::write(here.path().join("d").join(name), bytes).unwrap();
            write("a-long-nam-2", second);
            let server = |names| Server { names, ..Server::of(there.path()) };
            assert_ne!(
                moves(source.clone(), "d", server(Names::Cut), "d").await,
                Came::Done,
                "alone, its name is another one"
            );
            fs::remove_file(there.path().join("d/a-long-nam")).unwrap();
            write("a-long-nam", "of one size");
            write("ordinary", "of one size");
            assert_ne!(moves(source, "d", server(names), "d").await, Came::Done);
            assert!(!exists("ordinary") && exists("a-long-nam-2"), "{second}");
            let is_first = fs::read(there.path().join("d/a-long-nam")).unwrap() == b"of one size";
            // Where the longer one came last, the first one is lost there.
            assert_eq!(exists("a-long-nam"), stays || !is_first, "{second}");
        }
    }
}

#[tokio::test]
async fn empty_directories_stay_that_the_destination_does_not_have() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    let source = Arc::new(Local::new(here.path(), Links::Beneath).unwrap());
    fs::create_dir_all(here.path().join("d/full/inner")).unwrap();
    fs::create_dir_all(here.path().join("d/other/inner")).unwrap();
    let dest = Server { full_at: Some("full"), ..Server::of(there.path()) };
    assert_ne!(moves(source, "d", dest, "d").await, Came::Done);
    assert!(here.path().join("d/full/inner").exists() && !here.path().join("d/other").exists());
    assert!(there.path().join("d/other/inner").exists());
}

#[tokio::test]
async fn empty_directory_stays_that_cannot_be_made_at_the_destination() {
    for there_is_a_file in [false, true] {
        let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
        let source = Arc::new(Local::new(here.path(), Links::Beneath).unwrap());
        fs::create_dir(here.path().join("d")).unwrap();
        if there_is_a_file {
            fs::write(there.path().join("d"), "a file").unwrap();
        }
        for is_local in [true, false] {
            let dest = Server { full_at: Some("d"), is_local, ..Server::of(there.path()) };
            assert_ne!(moves(source.clone(), "d", dest, "d").await, Came::Done);
            assert!(here.path().join("d").exists(), "{there_is_a_file} {is_local}");
        }
    }
}

#[tokio::test]
async fn empty_directories_stay_that_are_their_own_destination() {
    for is_local in [true, false] {
        let dir = tempdir().unwrap();
        fs::create_dir_all(dir.path().join("d/inner")).unwrap();
        let source = Arc::new(Local::new(dir.path(), Links::Beneath).unwrap());
        let dest = Server { is_local, ..Server::of(dir.path()) };
        assert_ne!(moves(source, "d", dest, "d").await, Came::Done);
        assert!(dir.path().join("d/inner").exists(), "{is_local}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[tokio::test]
async fn sources_stay_that_a_file_system_has_put_into_one_file() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    let source = Arc::new(Local::new(here.path(), Links::Beneath).unwrap());
    fs::create_dir(here.path().join("d")).unwrap();
    let past = SystemTime::now() - Duration::from_secs(3600);
    for name in ["a-long-nam", "a-long-nam-2", "ordinary"] {
        let path = here.path().join("d").join(name);
        fs::write(&path, name).unwrap();
        fs::File::options().append(true).open(&path).unwrap().set_modified(past).unwrap();
    }
    let dest = Server { names: Names::Short, is_local: true, ..Server::of(there.path()) };
    assert_ne!(moves(source, "d", dest, "d").await, Came::Done);
    let left = |name: &str| here.path().join("d").join(name).exists();
    assert!(left("a-long-nam") && left("a-long-nam-2") && !left("ordinary"));
}

#[tokio::test]
async fn directory_of_a_server_with_cached_names_is_not_moved_onto_itself() {
    let dir = tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    for name in [".index", ".other"] {
        fs::write(dir.path().join("d").join(name), name).unwrap();
    }
    let source = Arc::new(Local::new(dir.path(), Links::Beneath).unwrap());
    let server = || Server { hides: true, remembers: true, ..Server::of(dir.path()) };
    assert_ne!(moves(source.clone(), "d", server(), "d").await, Came::Done);
    for name in [".index", ".other"] {
        assert_eq!(fs::read(dir.path().join("d").join(name)).unwrap(), name.as_bytes());
    }
    // By another name it becomes another file.
    assert_eq!(moves(source, "d/.index", server(), "d/.new").await, Came::Done);
    assert!(!dir.path().join("d/.index").exists() && dir.path().join("d/.new").exists());
}

#[tokio::test]
async fn names_put_aside_by_a_cut_move_are_restored() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    fs::create_dir(here.path().join("d")).unwrap();
    fs::write(here.path().join("d/.f.0123456789abcdef.phoebus-moved"), "f").unwrap();
    fs::write(here.path().join("d/g"), "g").unwrap();
    let source = Arc::new(Local::new(here.path(), Links::Beneath).unwrap());
    assert_ne!(moves(source.clone(), "d", Server::of(there.path()), "d").await, Came::Done);
    let names = |dir: &Path| -> Vec<_> { fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
    assert_eq!((names(&here.path().join("d")), names(&there.path().join("d"))), (vec!["f".into()], vec!["g".into()]));
    assert_eq!(moves(source.clone(), "d", Server::of(there.path()), "d").await, Came::Done);
    assert!(!here.path().join("d").exists());
    // A file by itself.
    fs::write(here.path().join(".x.0123456789abcdef.phoebus-moved"), "x").unwrap();
    assert_eq!(moves(source, "x", Server::of(there.path()), "x").await, Came::Done);
    assert!(names(here.path()).is_empty() && there.path().join("x").exists());
}

#[tokio::test]
async fn empty_directory_stays_that_the_destination_has_by_a_link() {
    let dir = tempdir().unwrap();
    let path = |path: &str| dir.path().join(path);
    // One file system, and two addresses of a server.
    for is_local in [true, false] {
        let dest = || Server { is_local, ..Server::of(dir.path()) };
        for (at, target) in [("e", "../lx/e"), ("deep/e", "../../lx/deep/e"), ("d", "../lx/e")] {
            for made in ["lx/e", "lx/deep/e", "lx/d", "ly/deep"] {
                fs::create_dir_all(path(made)).unwrap();
            }
            fs::write(path("lx/z"), "z").unwrap();
            std::os::unix::fs::symlink(target, path("ly").join(at)).unwrap();
            // A killed move has left it.
            let marker = path("lx/e/.e.0123456789abcdef.phoebus-moved");
            fs::create_dir(&marker).unwrap();
            assert_eq!(moves(store(dir.path(), is_local), "lx", dest(), "ly").await, Came::Partly, "{at}");
            assert!(path("lx").join(at).is_dir() && path("ly/z").is_file() && !path("lx/z").exists(), "{at}");
            assert!(!marker.exists(), "{at}");
            for made in ["e", "deep/e", "d"] {
                assert!(path("ly").join(made).is_dir() || path("lx").join(made).is_dir(), "{at} {made}");
            }
            fs::remove_dir_all(path("lx")).unwrap();
            fs::remove_dir_all(path("ly")).unwrap();
        }
    }
}

#[tokio::test]
async fn marker_of_a_killed_move_is_removed() {
    let here = tempdir().unwrap();
    for is_local in [true, false] {
        let (source, there) = (store(here.path(), is_local), tempdir().unwrap());
        fs::create_dir_all(here.path().join("d/.d.0123456789abcdef.phoebus-moved")).unwrap();
        fs::create_dir_all(here.path().join("d/e/.e.0123456789abcdef.phoebus-moved")).unwrap();
        fs::write(here.path().join("d/f"), "f").unwrap();
        assert_eq!(moves(source.clone(), "d", Server::of(there.path()), "d").await, Came::Done);
        assert!(!here.path().join("d").exists());
        assert_eq!(fs::read_dir(there.path().join("d/e")).unwrap().count(), 0);
        // Those of others stay.
        fs::create_dir_all(here.path().join("d/.other.0123456789abcdef.phoebus-moved")).unwrap();
        fs::create_dir_all(here.path().join("d/.d.0123456789abcdef.phoebus-moved/f")).unwrap();
        assert_ne!(moves(source, "d", Server::of(there.path()), "d").await, Came::Done);
        assert_eq!(fs::read_dir(here.path().join("d")).unwrap().count(), 2);
        fs::remove_dir_all(here.path().join("d")).unwrap();
    }
}

#[tokio::test]
async fn drafts_stay_in_a_directory_that_stays() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    fs::create_dir_all(here.path().join("d/sub")).unwrap();
    fs::write(here.path().join("d/sub/f"), "f").unwrap();
    fs::write(here.path().join("d/.g.phoebus-draft"), "cut").unwrap();
    // Nothing takes its place.
    fs::create_dir_all(there.path().join("d/sub/f")).unwrap();
    let source = Arc::new(Local::new(here.path(), Links::Beneath).unwrap());
    assert_ne!(moves(source, "d", Server::of(there.path()), "d").await, Came::Done);
    assert!(here.path().join("d/sub/f").exists() && here.path().join("d/.g.phoebus-draft").exists());
    // A directory that cannot be listed stays, too.
    let (source, there) = (Server { names: Names::Unlisted("sub"), ..Server::of(here.path()) }, tempdir().unwrap());
    assert_ne!(moves(Arc::new(source), "d", Server::of(there.path()), "d").await, Came::Done);
    assert!(here.path().join("d/sub/f").exists() && here.path().join("d/.g.phoebus-draft").exists());
}

#[tokio::test]
async fn sources_go_whose_numbers_do_not_last() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    let sources = [
        Server { renumbers: true, ..Server::of(here.path()) },
        Server { renumbers: true, dates: false, ..Server::of(here.path()) },
    ];
    for source in sources {
        fs::create_dir(here.path().join("d")).unwrap();
        for name in ["one", "two"] {
            fs::write(here.path().join("d").join(name), name).unwrap();
        }
        assert_eq!(moves(Arc::new(source), "d", Server::of(there.path()), "d").await, Came::Done);
        assert!(!here.path().join("d").exists());
        for name in ["one", "two"] {
            assert_eq!(fs::read(there.path().join("d").join(name)).unwrap(), name.as_bytes());
        }
        fs::remove_dir_all(there.path().join("d")).unwrap();
    }
}

#[tokio::test]
async fn replaced_source_stays() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    let (path, f) = (here.path().join("f"), Key::parse(b"f").unwrap());
    let dest = Arc::new(Local::new(there.path(), Links::Beneath).unwrap());
    // Servers tell whole seconds, and not which file it is.
    let stores: [Arc<dyn Store>; 2] =
        [Arc::new(Local::new(here.path(), Links::Beneath).unwrap()), Arc::new(Server::of(here.path()))];
    for source in stores {
        for at_once in [true, false] {
            fs::write(&path, "old").unwrap();
            fs::write(there.path().join("f"), "old").unwrap();
            let meta = source.stat(&f).await.unwrap();
            let carried = Carried { from: f.clone(), meta, replaced: false };
            let leaving = Leaving::new(source.clone(), dest.clone(), true, Time::from(SystemTime::now()));
            // Another one of its size and time, which was made beside it or written over it.
            let time = fs::metadata(&path).unwrap().modified().unwrap();
            let new = if at_once { here.path().join("new") } else { path.clone() };
            fs::write(&new, "new").unwrap();
            fs::File::options().write(true).open(&new).unwrap().set_modified(time).unwrap();
            fs::rename(&new, &path).unwrap();
            let error = leaving.leave(&carried, &f).await.unwrap_err().error;
            assert!(error.to_string().contains("changed while it was moved"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(fs::read_dir(here.path()).unwrap().count(), 1);
        }
    }
}

#[tokio::test]
async fn nothing_behind_a_link_is_moved() {
    for (link, told) in [("l", true), ("l?", false)] {
        let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
        for (path, bytes) in [("x/a", "a"), ("x/own/b", "b"), ("x/l/c", "c"), ("x/l/deep/.d.phoebus-draft", "d")] {
            fs::create_dir_all(here.path().join(path).parent().unwrap()).unwrap();
            fs::write(here.path().join(path), bytes).unwrap();
        }
        let links: &'static [&'static str] = if told { &["l"] } else { &["l?"] };
        let source = Arc::new(Server { links: Some(links), ..Server::of(here.path()) });
        let came = moves(source, "x", Server::of(there.path()), "y").await;
        assert_eq!(came, Came::Partly, "{link}");
        let exists = |path: &str| here.path().join(path).exists();
        assert!(exists("x/l/c") && exists("x/l/deep/.d.phoebus-draft"), "{link}");
        assert!(!exists("x/a") && !exists("x/own"), "{link}");
        assert!(["y/a", "y/own/b", "y/l/c"].iter().all(|path| there.path().join(path).exists()), "{link}");
    }
    // One that is named itself.
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    fs::create_dir(here.path().join("l")).unwrap();
    fs::write(here.path().join("l/c"), "c").unwrap();
    let source = Arc::new(Server { links: Some(&["l"]), ..Server::of(here.path()) });
    assert_ne!(moves(source, "l", Server::of(there.path()), "y").await, Came::Done);
    assert!(here.path().join("l/c").exists() && !there.path().join("y").exists());
}

#[tokio::test]
async fn sources_leave_several_at_a_time() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    // Files of this moment, which are compared once more.
    for name in ["x/first", "x/second", "x/third", "y/first", "y/second", "y/third"] {
        fs::create_dir_all(here.path().join("d").join(name).parent().unwrap()).unwrap();
        fs::write(here.path().join("d").join(name), name).unwrap();
    }
    // The first of each directory, and then the others of both.
    let together = Some(Arc::new(Barrier::new(2)));
    let source = Arc::new(Server { together, ..Server::of(here.path()) });
    assert_eq!(moves(source, "d", Server::of(there.path()), "d").await, Came::Done);
    assert!(!here.path().join("d").exists() && there.path().join("d/y/third").exists());
}

#[tokio::test]
async fn changed_source_stays() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(here.path().join("f"), "f").unwrap();
    let source = Arc::new(Server { changes: Some("f"), ..Server::of(here.path()) });
    assert_eq!(moves(source, "f", Server::of(there.path()), "f").await, Came::Partly);
    let read = |dir: &Path| fs::read(dir.join("f")).unwrap();
    assert_eq!((read(here.path()), read(there.path())), (b"changed since it was looked at".to_vec(), b"f".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_move_leaves_no_source_under_a_hidden_name() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    let names: Vec<String> = (0..200).map(|n| format!("f{n}")).collect();
    for name in &names {
        for dir in [&here, &there] {
            fs::write(dir.path().join(name), "f").unwrap();
        }
    }
    // Both have to have read what was put aside before either is removed: the second begins when this test says so.
    let together = Arc::new(Barrier::new(2));
    let source = Arc::new(Server { together: Some(together.clone()), dates: false, ..Server::of(here.path()) });
    let dest = Arc::new(Local::new(there.path(), Links::Beneath).unwrap());
    let mut moved = Vec::new();
    for name in &names {
        let key = Key::parse(name.as_bytes()).unwrap();
        let meta = source.stat(&key).await.unwrap();
        moved.push((key.clone(), Carried { from: key, meta, replaced: false }));
    }
    let leaving = Leaving::new(source.clone(), dest, false, Time::from(SystemTime::now()));
    let gate = Arc::new(RwLock::new(()));
    let aside = || fs::read_dir(here.path()).unwrap().flatten().any(|e| e.file_name().as_encoded_bytes()[0] == b'.');
    tokio::select! {
        () = leaving.leave_all(moved, &gate, |_| {}) => panic!("nothing is removed before the barrier"),
        () = async { while !aside() { tokio::task::yield_now().await } } => {}
    }
    assert!(aside());
    let release = tokio::spawn(async move {
        loop {
            together.wait().await;
        }
    });
    drop(gate.write().await);
    release.abort();
    assert!(!aside());
    assert!(names.iter().any(|name| here.path().join(name).exists()), "those that had not begun stay");
}
