//! Objects carried between stores: whole, cut, damaged, stalled, and in parts.

use crate::common;
use common::{Far, content, key, local};
use phoebus_files::block::{Block, Pool};
use phoebus_files::container::{Container, Part, Scatter};
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::{Begun, BytesFlow, Draft, Object, Shape, Spec, Store};
use phoebus_files::sum::{Algorithm, Combining};
use phoebus_files::{Check, Error, Side, Throttle, TransferOptions, Verify, drain, fill, pour, transfer};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::tempdir;

/// Short blocks, so that short files have many.
fn how() -> TransferOptions {
    TransferOptions { pool: Pool::new(4096, 8), checkpoint_bytes: 64 << 10, ..TransferOptions::default() }
}

fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_arrive_with_their_times_and_modes() {
    let (a, b) = (tempdir().unwrap(), tempdir().unwrap());
    for far in [false, true] {
        for (i, len) in [0, 1, 4095, 4096, 4097, 300_000].into_iter().enumerate() {
            let (from, to) = (a.path().join(format!("s{i}")), b.path().join(format!("d{i}")));
            fs::write(&from, content(len, 1)).unwrap();
            fs::set_permissions(&from, fs::Permissions::from_mode(0o640)).unwrap();
            let time = std::time::SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000 + len as u64, 123_456_789);
            fs::File::options().append(true).open(&from).unwrap().set_modified(time).unwrap();
            let (source, dest): (Arc<dyn Store>, _) =
                (if far { Arc::new(Far::new(a.path())) } else { Arc::new(local(a.path())) }, local(b.path()));
            let done = transfer(&*source, &key(&format!("s{i}")), &dest, &key(&format!("d{i}")), &how()).await.unwrap();
            assert_eq!((done.size, done.moved), (len as u64, len as u64));
            let algorithm = if far { Algorithm::Adler32 } else { Algorithm::Crc32c };
            assert_eq!(done.verified.unwrap().algorithm(), algorithm);
            assert_eq!(fs::read(&to).unwrap(), content(len, 1));
            let meta = fs::metadata(&to).unwrap();
            assert_eq!((meta.mode() & 0o7777, meta.modified().unwrap()), (0o640, time));
        }
    }
    assert_eq!(names(b.path()).len(), 6, "drafts were left behind");
}

/// Four blocks at four a second, in virtual time: all but the first wait.
#[tokio::test(start_paused = true)]
async fn a_limit_holds_from_the_beginning() {
    let (a, b) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(a.path().join("second"), content(400_000, 1)).unwrap();
    for far in [false, true] {
        let source: Arc<dyn Store> = if far { Arc::new(Far::new(a.path())) } else { Arc::new(local(a.path())) };
        let throttle = Some(Throttle::new(400_000));
        let how = TransferOptions { pool: Pool::new(100_000, 8), throttle, ..TransferOptions::default() };
        let begin = tokio::time::Instant::now();
        transfer(&*source, &key("second"), &local(b.path()), &key(&format!("{far}")), &how).await.unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(750), "{far}: {:?}", begin.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cut_is_continued_and_not_seen_before_it_is_whole() {
    let (a, b) = (tempdir().unwrap(), tempdir().unwrap());
    let bytes = content(2_000_000, 5);
    fs::write(a.path().join("f"), &bytes).unwrap();
    fs::write(b.path().join("f"), "old").unwrap();
    let (far, dest) = (Far::new(a.path()), local(b.path()));
    let mut moved = Vec::new();
    for cut in [40, 60] {
        far.faults.fail.store(cut, Ordering::Relaxed);
        let before = how();
        let error = transfer(&far, &key("f"), &dest, &key("f"), &before).await.unwrap_err();
        assert!(error.to_string().contains("the connection was cut"), "{error}");
        moved.push(before.progress.bytes_moved());
        assert_eq!(fs::read(b.path().join("f")).unwrap(), b"old");
        assert_eq!(names(b.path()), [".f.phoebus-draft", ".f.phoebus-journal", "f"]);
    }
    let done = transfer(&far, &key("f"), &dest, &key("f"), &how()).await.unwrap();
    assert_eq!(done.size, 2_000_000);
    assert!(done.moved <= 2_000_000 - moved[0].max(moved[1]) * 4 / 5, "{} after {moved:?}", done.moved);
    assert!(done.verified.is_some());
    assert_eq!(fs::read(b.path().join("f")).unwrap(), bytes);
    assert_eq!(names(b.path()), ["f"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_stay_holes() {
    let dir = tempdir().unwrap();
    let from = fs::File::create(dir.path().join("from")).unwrap();
    from.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&from, &content(100_000, 1), 33 << 20).unwrap();
    drop(from);
    let store = local(dir.path());
    let done = transfer(&store, &key("from"), &store, &key("to"), &TransferOptions::default()).await.unwrap();
    assert_eq!((done.size, done.verified.is_some()), (64 << 20, true));
    let (from, to) = (fs::read(dir.path().join("from")).unwrap(), fs::read(dir.path().join("to")).unwrap());
    assert!(from == to);
    assert!(fs::metadata(dir.path().join("to")).unwrap().blocks() * 512 < 1 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_damaged_is_not_kept() {
    let (a, b) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(a.path().join("f"), content(300_000, 5)).unwrap();
    fs::write(b.path().join("f"), "old").unwrap();
    let (far, dest) = (Far::new(a.path()), local(b.path()));
    for algorithm in [Algorithm::Adler32, Algorithm::Md5] {
        far.faults.damage.store(5, Ordering::Relaxed);
        let how = TransferOptions { verify: Verify::Flight(Some(algorithm)), ..how() };
        let error = transfer(&far, &key("f"), &dest, &key("f"), &how).await.unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert_eq!((names(b.path()), fs::read(b.path().join("f")).unwrap()), (vec!["f".into()], b"old".to_vec()));
        transfer(&far, &key("f"), &dest, &key("f"), &how).await.unwrap();
        fs::write(b.path().join("f"), "old").unwrap();
    }
    far.faults.damage.store(5, Ordering::Relaxed);
    let none = TransferOptions { verify: Verify::None, ..how() };
    assert_eq!(transfer(&far, &key("f"), &dest, &key("f"), &none).await.unwrap().verified, None);
    assert_ne!(
        fs::read(b.path().join("f")).unwrap(),
        content(300_000, 5),
        "nothing was damaged, so nothing was tested"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_became_of_a_part_between_two_runs_is_seen() {
    let (a, b) = (tempdir().unwrap(), tempdir().unwrap());
    let bytes = content(2_000_000, 5);
    fs::write(a.path().join("f"), &bytes).unwrap();
    let (far, dest) = (Far::new(a.path()), local(b.path()));
    far.faults.fail.store(100, Ordering::Relaxed);
    transfer(&far, &key("f"), &dest, &key("f"), &how()).await.unwrap_err();
    let part = b.path().join(".f.phoebus-draft");
    let at = fs::read(&part).unwrap().iter().position(|byte| *byte != 0).unwrap();
    let file = fs::File::options().write(true).open(&part).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[!bytes[at]], at as u64).unwrap();
    drop(file);
    let error = transfer(&far, &key("f"), &dest, &key("f"), &how()).await.unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    let done = transfer(&far, &key("f"), &dest, &key("f"), &how()).await.unwrap();
    assert!(done.verified.is_some() && fs::read(b.path().join("f")).unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_say_what_failed() {
    let (a, b) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(a.path().join("f"), content(300_000, 5)).unwrap();
    fs::create_dir(b.path().join("dir")).unwrap();
    fs::write(b.path().join("there"), "").unwrap();
    let (mut far, dest) = (Far::new(a.path()), local(b.path()));
    let run = async |far: &Far, from: &str, to: &str, how: TransferOptions| {
        transfer(far, &key(from), &dest, &key(to), &how).await.unwrap_err().to_string()
    };
    far.faults.stall.store(3, Ordering::Relaxed);
    let how_short = TransferOptions { stall_timeout: Duration::from_millis(200), ..how() };
    let out = b.path().display();
    assert_eq!(run(&far, "f", "f", how_short).await, format!("{out}/f stalled: nothing moved for 0 seconds"));
    assert_eq!(run(&far, "g", "g", how()).await, format!("{}/g does not exist", a.path().display()));
    assert_eq!(run(&far, "f", "dir", how()).await, format!("{out}/dir is a directory, not a file"));
    let careful = TransferOptions { replace: false, ..how() };
    assert_eq!(run(&far, "f", "there", careful).await, format!("{out}/there exists already"));
    assert_eq!(run(&far, "f", "no/f", how()).await, format!("{out}/no/f does not exist"));
    far.algorithms.clear();
    let expected =
        format!("{}/f cannot be verified: far://test computes no checksum that is known here", a.path().display());
    assert_eq!(run(&far, "f", "f2", how()).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changes_is_noticed() {
    let (a, b) = (tempdir().unwrap(), tempdir().unwrap());
    let path = a.path().join("f");
    fs::write(&path, content(300_000, 5)).unwrap();
    let store = local(a.path());
    let object = store.open(&key("f")).await.unwrap();
    let Begun::Draft(draft) = local(b.path()).create(&key("f"), Spec::default()).await.unwrap() else { panic!() };
    fs::write(&path, content(300_000, 6)).unwrap();
    fs::File::options().append(true).open(&path).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let error = fill(&object, &draft, None, &how()).await.unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert_eq!(names(b.path()), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_became_shorter_is_noticed() {
    let (a, b) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(a.path().join("f"), content(300_000, 5)).unwrap();
    let object = local(a.path()).open(&key("f")).await.unwrap();
    let Begun::Draft(draft) = local(b.path()).create(&key("f"), Spec::default()).await.unwrap() else { panic!() };
    fs::write(a.path().join("f"), "short").unwrap();
    let error = fill(&object, &draft, None, &how()).await.unwrap_err();
    assert!(matches!(error, Error::Short { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_read_at_random_and_in_order() {
    let dir = tempdir().unwrap();
    let bytes = content(100_000, 9);
    fs::write(dir.path().join("f"), &bytes).unwrap();
    let object = local(dir.path()).open(&key("f")).await.unwrap();
    let wanted = [(99_990, 100), (0, 10), (200_000, 5), (50, 0)].map(|(at, len)| Extent::new(at, len).unwrap());
    let read = object.read(&wanted).await.unwrap();
    assert_eq!(read, [&bytes[99_990..], &bytes[..10], &[], &[]]);
    let too_much = [Extent::new(0, 100_000).unwrap(); 5000];
    assert!(matches!(object.read(&too_much).await, Err(Error::Limit { .. })));

    let ranges: Ranges =
        [Extent::between(5000, 20_000).unwrap(), Extent::between(90_001, 100_000).unwrap()].into_iter().collect();
    let shape = Shape {
        pool: Pool::new(4096, 2),
        readers: 4,
        ordered: true,
        sum: Some(Combining::Crc32c),
        lend: false,
        holes: false,
        into: None,
    };
    let flow = BytesFlow::over(object.flow(ranges, shape.clone()).await.unwrap());
    let (mut all, mut last) = (Vec::new(), 0);
    while let Some(block) = flow.next().await.unwrap() {
        assert!(block.offset >= last && block.sum == Some(Combining::Crc32c.of(&block.body)));
        last = block.offset;
        all.extend_from_slice(&block.body);
    }
    assert_eq!(all, [&bytes[5000..20_000], &bytes[90_001..]].concat());
    let beyond = object.flow(Extent::between(99_999, 100_001).unwrap().into(), shape).await;
    assert!(matches!(beyond, Err(Error::Beyond { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_changed_where_they_stand_if_asked_to() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("f"), "0123456789").unwrap();
    let store = local(dir.path());
    let draft = store.edit(&key("f")).await.unwrap();
    draft.write(Block::new(3, &b"abc"[..])).await.unwrap();
    draft.write(Block::new(12, &b"z"[..])).await.unwrap();
    assert_eq!(draft.checkpoint().await.unwrap().to_string(), "3-6,12-13");
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"012abc6789\0\0z");
    assert!(matches!(draft.publish(13).await, Err(Error::Incomplete { .. })), "most of it was there before");
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_are_bytes_without_a_size() {
    let store = phoebus_files::local::Local::new("/dev", phoebus_files::Links::Beneath).unwrap();
    let zero = store.open(&key("zero")).await.unwrap();
    let shape = Shape {
        pool: Pool::new(1 << 16, 4),
        readers: 2,
        ordered: false,
        sum: None,
        lend: false,
        holes: false,
        into: None,
    };
    let flow = BytesFlow::over(zero.flow(Extent::first(10 << 20).into(), shape).await.unwrap());
    let Begun::Draft(null) = store.create(&key("null"), Spec::default()).await.unwrap() else { panic!() };
    while let Some(block) = flow.next().await.unwrap() {
        null.write(block).await.unwrap();
    }
    null.publish(10 << 20).await.unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_several_files_are_one_object_and_one_object_is_several_files() {
    let (a, b, c) = (tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap());
    let (near, far) = (local(a.path()), Far::new(b.path()));
    let (first, second) = (content(200_000, 1), content(150_000, 2));
    fs::write(a.path().join("f"), &first).unwrap();
    fs::write(b.path().join("g"), &second).unwrap();
    let part = async |store: &dyn Store, name: &str, from, to| Part {
        object: store.open(&key(name)).await.unwrap(),
        extent: Extent::between(from, to).unwrap(),
    };
    let parts = vec![
        part(&near, "f", 1000, 200_000).await,
        part(&far, "g", 0, 77_777).await,
        part(&near, "f", 0, 1000).await,
        part(&far, "g", 77_777, 77_777).await,
        part(&far, "g", 100_000, 150_000).await,
    ];
    let whole = [&first[1000..], &second[..77_777], &first[..1000], &second[100_000..]].concat();
    let object: Arc<dyn Object> = Arc::new(Container::new("container", parts).unwrap());
    let size = whole.len() as u64;
    assert_eq!(object.meta().size, Some(size));
    let wanted = [Extent::between(198_990, 199_010).unwrap(), Extent::between(276_770, 277_800).unwrap()];
    let read = object.read(&wanted).await.unwrap();
    assert_eq!(read, [&whole[198_990..199_010], &whole[276_770..277_800]]);
    for algorithm in [Algorithm::Adler32, Algorithm::Md5] {
        let extent = Extent::between(5, size - 5).unwrap();
        let mut hasher = phoebus_files::sum::Hasher::new(algorithm);
        hasher.update(&whole[5..whole.len() - 5]);
        assert_eq!(object.checksum(algorithm, extent).await.unwrap(), hasher.finish());
    }

    let side = |far| Side { name: "container".into(), far, algorithms: vec![Algorithm::Adler32] };
    let check = Check::choose(Verify::default(), &side(true), &side(false)).unwrap();
    let dest = local(c.path());
    let mut drafts = Vec::new();
    for (i, len) in [100_000, 0, 3, size - 100_003].into_iter().enumerate() {
        let source = Some((format!("container part {i}"), None));
        let spec = Spec { size: Some(len), source, sum: check.and_then(|c| c.kept()), ..Spec::default() };
        let Begun::Draft(draft) = dest.create(&key(&format!("p{i}")), spec).await.unwrap() else { panic!() };
        drafts.push((draft, len));
    }
    let draft: Arc<dyn Draft> = Arc::new(Scatter::new("scattered", drafts).unwrap());
    let done = fill(&object, &draft, check, &how()).await.unwrap();
    assert_eq!((done.moved, done.verified.unwrap().algorithm()), (size, Algorithm::Adler32));
    let written: Vec<u8> = (0..4).flat_map(|i| fs::read(c.path().join(format!("p{i}"))).unwrap()).collect();
    assert!(written == whole);
    assert_eq!(names(c.path()), ["p0", "p1", "p2", "p3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_become_files_and_files_streams() {
    let dir = tempdir().unwrap();
    let (store, bytes) = (local(dir.path()), content(100_000, 4));
    let near = Side { name: "near".into(), far: false, algorithms: vec![] };
    let check = Check::choose(Verify::default(), &near, &near).unwrap();
    for len in [0, 1, 4096, 100_000] {
        let spec = Spec { replace: true, sum: check.and_then(|c| c.kept()), ..Spec::default() };
        let Begun::Draft(draft) = store.create(&key("f"), spec).await.unwrap() else { panic!() };
        let (mut ours, mut theirs) = tokio::io::duplex(1000);
        let sent = bytes[..len].to_vec();
        let sender = tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut ours, &sent).await });
        let done = pour(&mut theirs, "-", &draft, check, &how()).await.unwrap();
        sender.await.unwrap().unwrap();
        assert_eq!((done.size, done.verified.unwrap().algorithm()), (len as u64, Algorithm::Crc32c));
        assert!(fs::read(dir.path().join("f")).unwrap() == bytes[..len]);
    }
    let object = store.open(&key("f")).await.unwrap();
    let mut out = Vec::new();
    let wanted = Extent::between(7, 99_000).unwrap();
    drain(&object, wanted, &mut out, "-", check, &how()).await.unwrap();
    assert!(out == bytes[7..99_000]);
    let far = Far::new(dir.path()).open(&key("f")).await.unwrap();
    let error = drain(&far, wanted, &mut Vec::new(), "-", None, &how()).await.unwrap_err();
    assert!(
        matches!(error, Error::Beyond { .. }),
        "blocks out of order would have been written in that order: {error}"
    );
}

/// A checksum occupies one of the store's limited calls. It must yield to other calls, and stop when its result is no
/// longer wanted.
#[tokio::test(flavor = "multi_thread")]
async fn a_checksum_lets_others_have_their_turn_and_ends_when_nobody_wants_it() {
    let dir = tempdir().unwrap();
    fs::File::create(dir.path().join("long")).unwrap().set_len(32 << 30).unwrap();
    let store = local(dir.path()).with_calls(1);
    let object = store.open(&key("long")).await.unwrap();
    let whole = Extent::first(32 << 30);
    let summing = tokio::spawn(async move { object.checksum(Algorithm::Sha256, whole).await });
    // Far longer than a call waits, and far shorter than the whole file takes.
    let time_limit = Duration::from_secs(20);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        tokio::time::timeout(time_limit, store.stat(&key("long"))).await.expect("it waits for the checksum").unwrap();
    }
    assert!(!summing.is_finished());
    summing.abort();
    tokio::time::timeout(time_limit, store.stat(&key("long"))).await.expect("it waits for what nobody wants").unwrap();
}
