//! The driver `object` of data channels: files as objects over UDP, with a data connection as the control stream.

use crate::support;
use phoebus_files::ErrorKind;
use phoebus_files::Links;
use phoebus_files::key::Key;
use phoebus_files::local::Local;
use phoebus_files::store::Store;
use phoebus_files::{TransferOptions, transfer};
use phoebus_gridftp::client::{AutoObjects, Carrier, NetStack, Options, Remote, Segment};
use phoebus_gridftp::data::stack::parse;
use phoebus_gridftp::server::Quota;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::units::ByteSize;
use std::fs;
use support::{Serve, bytes};
use tokio::runtime::Runtime;

/// An odd number, and some chunks long.
const LONG: usize = 7_345_679;

fn serve() -> Serve {
    Serve::writable()
}

async fn remote(serve: &Serve, stack: &str) -> Result<Remote, phoebus_files::Error> {
    let server = Endpoint::parse(&serve.addr().to_string(), None).unwrap();
    let options = Options::new(format!("ftp://{server}"), server);
    let stack = NetStack::new(stack, &parse(stack).unwrap()).unwrap();
    Remote::connect(Options { stack: Some(stack), ..options }).await
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

async fn copy(from: &dyn Store, to: &dyn Store, names: (&str, &str)) -> Result<(), phoebus_files::Error> {
    transfer(from, &key(names.0), to, &key(names.1), &TransferOptions::default()).await.map(drop)
}

#[test]
fn files_arrive_in_both_directions_and_between_servers() {
    let (serves, here, runtime) = ([serve(), serve()], tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let local = Local::new(here.path(), Links::Beneath).unwrap();
    for stack in ["object", "fobs:packet=1200;chunk=256KiB;ack=16", "object,rate:rate=2gbit", "object:seal=none"] {
        runtime.block_on(async {
            let [near, far] = [remote(&serves[0], stack).await.unwrap(), remote(&serves[1], stack).await.unwrap()];
            for len in [0, 1, 1200, 1201, LONG] {
                let content = bytes(len);
                fs::write(here.path().join("x"), &content).unwrap();
                copy(&local, &near, ("x", "a")).await.unwrap_or_else(|error| panic!("{stack} {len}: {error}"));
                assert!(fs::read(serves[0].path("a")).unwrap() == content, "{stack} {len}: put");
                copy(&near, &local, ("a", "y")).await.unwrap_or_else(|error| panic!("{stack} {len}: {error}"));
                assert!(fs::read(here.path().join("y")).unwrap() == content, "{stack} {len}: get");
                copy(&near, &far, ("a", "b")).await.unwrap_or_else(|error| panic!("{stack} {len}: {error}"));
                assert!(fs::read(serves[1].path("b")).unwrap() == content, "{stack} {len}: third party");
            }
        });
    }
    for serve in &serves {
        assert_eq!(serve.hidden(), Vec::<String>::new());
    }
}

/// A client that chooses objects for files of 1 MiB on.
async fn choosing(serve: &Serve) -> Remote {
    let server = Endpoint::parse(&serve.addr().to_string(), None).unwrap();
    let choose = |segment: &Segment| match segment.size {
        size if size < 1 << 20 => Carrier { is_object: false, why: "it is short".into() },
        _ => Carrier { is_object: true, why: "it is long".into() },
    };
    let stack = NetStack::new("object", &parse("object").unwrap()).unwrap();
    let auto = Some(AutoObjects { stack, choose, obstacle: None });
    Remote::connect(Options { auto, ..Options::new(format!("ftp://{server}"), server) }).await.unwrap()
}

/// How many files went as objects, how many otherwise, and why these did.
fn counts(remote: &Remote) -> (u64, u64, String) {
    let all = remote.carriers();
    let files = |is_object: bool| {
        let those = all.iter().filter(|one| one.carrier.is_object == is_object);
        those.map(|one| one.files).sum::<u64>()
    };
    let why = all.iter().filter(|one| !one.carrier.is_object).map(|one| one.carrier.why.to_string());
    (files(true), files(false), why.collect::<Vec<_>>().join("; "))
}

#[test]
fn chosen_files_go_as_objects_and_others_over_the_same_control_connections() {
    let (serve, here, runtime) = (serve(), tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let local = Local::new(here.path(), Links::Beneath).unwrap();
    runtime.block_on(async {
        let remote = choosing(&serve).await;
        for round in 0..3 {
            for len in [LONG, 1000, 0] {
                let content = bytes(len);
                fs::write(here.path().join("x"), &content).unwrap();
                copy(&local, &remote, ("x", "a")).await.unwrap_or_else(|error| panic!("{round} {len}: {error}"));
                assert!(fs::read(serve.path("a")).unwrap() == content, "{round} {len}: put");
                copy(&remote, &local, ("a", "y")).await.unwrap_or_else(|error| panic!("{round} {len}: {error}"));
                assert!(fs::read(here.path().join("y")).unwrap() == content, "{round} {len}: get");
            }
        }
        let (objects, others, why) = counts(&remote);
        assert!(objects == 6 && others > 0 && why == "it is short", "{:?}", remote.carriers());
        assert_eq!(remote.objects().transfers, 6);
    });
    assert_eq!(serve.hidden(), Vec::<String>::new());
}

#[test]
fn server_without_objects_gets_chosen_files_over_connections() {
    let serve = Serve::with(|config| config.data.drivers.truncate(1));
    let (here, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let local = Local::new(here.path(), Links::Beneath).unwrap();
    runtime.block_on(async {
        let remote = choosing(&serve).await;
        for len in [LONG, LONG + 1] {
            fs::write(here.path().join("x"), bytes(len)).unwrap();
            copy(&local, &remote, ("x", "a")).await.unwrap();
            copy(&remote, &local, ("a", "y")).await.unwrap();
            assert!(fs::read(here.path().join("y")).unwrap() == bytes(len));
        }
        let (objects, others, why) = counts(&remote);
        assert!(
            (objects, others) == (0, 4) && why.contains("object driver not whitelisted"),
            "{:?}",
            remote.carriers()
        );
    });
}

#[test]
fn controls_that_yield_to_nobody_need_a_circuit() {
    let circuit = || Serve::with(|config| config.data.circuit = Some("2gbit".parse().unwrap()));
    let (plain, circuit, runtime) = (serve(), circuit(), Runtime::new().unwrap());
    let here = tempfile::tempdir().unwrap();
    let local = Local::new(here.path(), Links::Beneath).unwrap();
    fs::write(here.path().join("x"), bytes(LONG)).unwrap();
    runtime.block_on(async {
        for (serve, options, says) in [
            (&plain, "control=fixed;rate=1gbit", "this server has none (data.circuit)"),
            (&circuit, "control=fixed;rate=3gbit", "at most 2gbit"),
            (&plain, "control=loss", "control is \"loss\", which is for reserved circuits"),
            (&circuit, "control=loss;rate=3gbit", "at most 2gbit"),
        ] {
            let error = remote(serve, &format!("object:{options}")).await.unwrap_err().to_string();
            assert!(error.contains(says), "{options}: {error}");
        }
        // Where the rate is the highest, and not a fixed one, nobody has to allow it.
        for (serve, stack) in [
            (&circuit, "object:control=fixed;rate=1gbit"),
            (&circuit, "object:control=loss;loss=0.02"),
            (&plain, "object:rate=1gbit"),
        ] {
            let remote = remote(serve, stack).await.unwrap();
            copy(&local, &remote, ("x", "a")).await.unwrap();
            assert!(fs::read(serve.path("a")).unwrap() == bytes(LONG), "{stack}");
        }
    });
}

#[test]
fn many_transfers_share_little_memory_both_ways() {
    let is_soak = std::env::var_os("PHOEBUS_SOAK").is_some();
    let (at_once, len) = if is_soak { (500, 1_345_679) } else { (12, LONG) };
    let serve = Serve::with(|config| {
        config.data.object_memory = "1MiB".parse().unwrap();
        (config.limits.per_address, config.limits.per_user) = (2000, 2000);
    });
    let (here, content) = (tempfile::tempdir().unwrap(), bytes(len));
    fs::write(here.path().join("x"), &content).unwrap();
    let runtime = Runtime::new().unwrap();
    std::thread::scope(|scope| {
        for nth in 0..at_once {
            let (serve, here, runtime) = (&serve, here.path(), &runtime);
            scope.spawn(move || {
                runtime.block_on(async {
                    let local = Local::new(here, Links::Beneath).unwrap();
                    let remote = remote(serve, "object").await.unwrap();
                    let [there, back] = ["there", "back"].map(|name| format!("{name}-{nth}"));
                    copy(&local, &remote, ("x", &there)).await.unwrap();
                    copy(&remote, &local, (&there, &back)).await.unwrap();
                });
            });
        }
    });
    for nth in 0..at_once {
        assert!(fs::read(here.path().join(format!("back-{nth}"))).unwrap() == content, "{nth}");
    }
}

#[test]
fn bad_options_and_servers_without_objects_are_named() {
    let (serve, plain, runtime) =
        (serve(), Serve::with(|config| config.data.drivers.truncate(1)), Runtime::new().unwrap());
    let here = tempfile::tempdir().unwrap();
    let local = Local::new(here.path(), Links::Beneath).unwrap();
    fs::write(here.path().join("x"), bytes(5000)).unwrap();
    runtime.block_on(async {
        let error = remote(&plain, "object").await.unwrap_err().to_string();
        assert!(error.contains("object driver not whitelisted"), "{error}");
        // Loopback carries 65536 bytes in one packet, and IP, UDP, header and seal take 62 of them.
        let remote = remote(&serve, "object:packet=65473").await.unwrap();
        copy(&local, &remote, ("x", "a")).await.unwrap();
        assert!(fs::read(serve.path("a")).unwrap() == bytes(5000));
    });
}

/// What goes wrong with a file ends its transfer with that reason, and leaves nothing under its name.
#[test]
fn faults_of_files_and_disks_are_told_and_leave_nothing() {
    let quota = Quota { bytes: Some(ByteSize(1_000_000)), files: Some(5) };
    let full = Serve::with(|config| config.anonymous.as_mut().unwrap().quota = quota);
    let (reading, writable) = (Serve::reading(), serve());
    let (here, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let local = Local::new(here.path(), Links::Beneath).unwrap();
    fs::write(here.path().join("x"), bytes(LONG)).unwrap();
    runtime.block_on(async {
        for (serve, kind) in [(&full, ErrorKind::NoSpace), (&reading, ErrorKind::Denied)] {
            let remote = remote(serve, "object").await.unwrap();
            let error = copy(&local, &remote, ("x", "a")).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(!serve.path("a").exists());
        }
        // The source becomes shorter than it was said to be, before its last chunks are read.
        let remote = remote(&writable, "object:rate=100mbit;buffers=2").await.unwrap();
        let source = here.path().join("x");
        let cut = async {
            while fs::read_dir(writable.path("")).unwrap().next().is_none() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            fs::File::options().write(true).open(&source).unwrap().set_len(1000).unwrap();
        };
        let (copied, ()) = tokio::join!(copy(&local, &remote, ("x", "a")), cut);
        let error = copied.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Changed | ErrorKind::Passing | ErrorKind::Other), "{error}");
        assert!(error.to_string().contains("ended at byte") || error.to_string().contains("changed"), "{error}");
        assert!(!writable.path("a").exists());
        // A get of what is not there, and of a directory.
        for name in ["nowhere", ""] {
            let error = copy(&remote, &local, (name, "y")).await.unwrap_err();
            assert!([ErrorKind::NotFound, ErrorKind::Request].contains(&error.kind()), "{error}");
        }
        assert!(!here.path().join("y").exists());
    });
}

/// Two transfers to one name: one of the two contents is there, whole.
#[test]
fn transfers_to_one_name_do_not_mix() {
    let (serve, here, runtime) = (serve(), tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let local = Local::new(here.path(), Links::Beneath).unwrap();
    let contents = [bytes(LONG), bytes(LONG).into_iter().rev().collect::<Vec<_>>()];
    for (name, content) in ["x", "y"].into_iter().zip(&contents) {
        fs::write(here.path().join(name), content).unwrap();
    }
    runtime.block_on(async {
        let [one, other] = [remote(&serve, "object").await.unwrap(), remote(&serve, "object").await.unwrap()];
        let (first, second) = tokio::join!(copy(&local, &one, ("x", "a")), copy(&local, &other, ("y", "a")));
        assert!(first.is_ok() || second.is_ok(), "{first:?}, {second:?}");
        let there = fs::read(serve.path("a")).unwrap();
        assert!(contents.contains(&there), "two files were mixed");
    });
}

/// A file of ten terabytes with some bytes at its end: only these bytes, and what is asked for, go over the path.
#[test]
fn part_of_a_sparse_file_of_terabytes_comes() {
    use std::os::unix::fs::FileExt;
    let (serve, runtime) = (serve(), Runtime::new().unwrap());
    let len = 10u64 << 40;
    let file = fs::File::create(serve.path("huge")).unwrap();
    file.set_len(len).unwrap();
    let content = bytes(3_000_000);
    file.write_all_at(&content, len - 3_000_000).unwrap();
    runtime.block_on(async {
        let remote = remote(&serve, "object").await.unwrap();
        let object = remote.open(&key("huge")).await.unwrap();
        assert_eq!(object.meta().size, Some(len));
        let wanted = [phoebus_files::range::Extent::new(len - 3_000_000, 3_000_000).unwrap()];
        let parts = object.read(&wanted).await.unwrap();
        assert!(parts[0] == content);
    });
}
