//! A sparse file costs only its bytes. This test runs alone, since it counts what the process reads.

use crate::common;
use common::{content, key, local};
use phoebus_files::block::Block;
use phoebus_files::range::Extent;
use phoebus_files::store::{Begun, Spec, Store, Time};
use phoebus_files::sum::{Algorithm, Combining, Hasher};
use phoebus_files::{Throttle, TransferOptions, Verify, transfer};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use tempfile::tempdir;
use tokio::sync::Mutex;

/// Held while the reads of the process are counted.
static COUNTING: Mutex<()> = Mutex::const_new(());

const SIZE: u64 = 5 << 30;
const MIB: u64 = 1 << 20;

/// The extents with data, and their size.
const PARTS: [(u64, usize); 3] = [(0, 10), (3 * (SIZE / 4) + 12_345, 300_000), (SIZE - 1, 1)];

fn make(path: &Path) {
    let file = fs::File::create(path).unwrap();
    file.set_len(SIZE).unwrap();
    for (at, len) in PARTS {
        file.write_all_at(&content(len, 7), at).unwrap();
    }
}

fn check(path: &Path) {
    let (file, meta) = (fs::File::open(path).unwrap(), fs::metadata(path).unwrap());
    assert_eq!(meta.len(), SIZE);
    assert!(meta.blocks() * 512 < 8 * MIB, "{} blocks", meta.blocks());
    for (at, len) in PARTS {
        let mut found = vec![0; len];
        file.read_exact_at(&mut found, at).unwrap();
        assert!(found == content(len, 7), "at {at}");
    }
}

/// Bytes that this process has read and written so far.
fn counted() -> (u64, u64) {
    let text = fs::read_to_string("/proc/self/io").unwrap();
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse::<u64>().unwrap();
    (field("rchar:"), field("wchar:"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_neither_read_nor_written() {
    let _alone = COUNTING.lock().await;
    let dir = tempdir().unwrap();
    make(&dir.path().join("from"));
    let store = local(dir.path());
    for (verify, times) in [(Verify::Flight(None), 2), (Verify::Flight(Some(Algorithm::Adler32)), 2), (Verify::None, 1)]
    {
        let (read, written) = counted();
        // Holes cause no reads and no waits for the rate limit.
        let how = TransferOptions { verify, throttle: Some(Throttle::new(100 * MIB)), ..TransferOptions::default() };
        let done = transfer(&store, &key("from"), &store, &key("to"), &how).await.unwrap();
        let (read, written) = (counted().0 - read, counted().1 - written);
        assert_eq!((done.size, done.moved, done.verified.is_some()), (SIZE, SIZE, verify != Verify::None));
        // At most two blocks for each extent with data.
        let most = PARTS.len() as u64 * 2 * MIB;
        assert!(read <= times * most && written <= most, "{verify:?}: {read} read, {written} written");
        check(&dir.path().join("to"));
        fs::remove_file(dir.path().join("to")).unwrap();
    }
    // Other checksums process all zeros, but read none of them either.
    fs::File::create(dir.path().join("short")).unwrap().set_len(64 * MIB).unwrap();
    let (read, how) =
        (counted().0, TransferOptions { verify: Verify::Flight(Some(Algorithm::Sha1)), ..TransferOptions::default() });
    transfer(&store, &key("short"), &store, &key("to"), &how).await.unwrap();
    assert!(counted().0 - read < MIB);
    // The checksum covers all bytes of any extent.
    let object = store.open(&key("from")).await.unwrap();
    let mut hasher = Hasher::new(Algorithm::Crc32c);
    let extent = Extent::new(PARTS[1].0 - 100_000, 500_000).unwrap();
    let mut bytes = vec![0; 500_000];
    bytes[100_000..400_000].copy_from_slice(&content(300_000, 7));
    hasher.update(&bytes);
    assert_eq!(object.checksum(Algorithm::Crc32c, extent).await.unwrap(), hasher.finish());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_is_cleared_where_a_draft_that_was_cut_may_have_anything() {
    let _alone = COUNTING.lock().await;
    let dir = tempdir().unwrap();
    let store = local(dir.path()).with_journal_from(0);
    let (size, end) = (4 * MIB, 3 * MIB + 100);
    let source = Some(("x".to_owned(), Some(Time { seconds: 1, nanos: 0 })));
    let spec =
        Spec { size: Some(size), source, sparse: true, replace: true, sum: Some(Combining::Crc32c), ..Spec::default() };
    let Begun::Draft(cut) = store.create(&key("f"), spec.clone()).await.unwrap() else { panic!() };
    cut.write(Block::new(0, content(1000, 1))).await.unwrap();
    let place = dir.path().join(cut.capabilities().place.unwrap().to_string());
    cut.abandon(true).await;
    drop(cut);
    // Written, but not recorded as synced.
    fs::File::options().write(true).open(&place).unwrap().write_all_at(&[7; 10_000], 2 * MIB - 5000).unwrap();
    let Begun::Draft(draft) = store.create(&key("f"), spec).await.unwrap() else { panic!() };
    assert_eq!(draft.kept().to_string(), "0-1000");
    let holes = draft.capabilities().holes.unwrap();
    holes.write_hole(Extent::between(0, end).unwrap(), None).await.unwrap();
    draft.write(Block::new(end, content((size - end) as usize, 2))).await.unwrap();
    let expected = [content(1000, 1), vec![0; end as usize - 1000], content((size - end) as usize, 2)].concat();
    let mut hasher = Hasher::new(Algorithm::Crc32c);
    hasher.update(&expected);
    let sum = hasher.finish();
    assert_eq!((draft.written_sum(size), draft.checksum(Algorithm::Crc32c).await.unwrap()), (Some(sum.clone()), sum));
    draft.publish(size).await.unwrap();
    assert!(fs::read(dir.path().join("f")).unwrap() == expected);
}
