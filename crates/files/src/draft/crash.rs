//! Simulates drafts on a disk that fails at every possible step, with and without power.

use super::*;
use crate::disk::sim::{Lie, Sim};
use crate::store::{Attributes, Time};
use crate::sum::{Algorithm, Combining};
use phoebus_wan::model::Rng;

const BLOCK: u64 = 700;
const SIZE: u64 = 24 * BLOCK - 13;

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

fn content(seed: u64) -> Vec<u8> {
    let mut dice = Rng::new(seed);
    // Test data with zeros, which may become holes.
    (0..SIZE).map(|i| if i / 5000 % 2 == seed / 1000 % 2 { 0 } else { dice.next_u64() as u8 }).collect()
}

fn spec(version: i64) -> Spec {
    Spec {
        size: Some(SIZE),
        source: Some(("test:source".into(), Some(Time { seconds: version, nanos: 1 }))),
        sum: Some(Combining::Crc32c),
        attributes: Attributes { mode: Some(0o640), modified: Some(Time { seconds: version, nanos: 1 }) },
        replace: true,
        at_most: None,
        sparse: version % 2 == 1,
        held: false,
    }
}

/// The checksum of a draft's content.
fn reread(work: &Work<Sim>) -> Sum {
    let mut hasher = Hasher::new(Algorithm::Crc32c);
    hash(&mut hasher, work.file(), Extent::first(work.file().stat().unwrap().size), u64::MAX).unwrap();
    hasher.finish()
}

/// What an attempt knew before it failed.
#[derive(Default)]
struct Seen {
    safe: u64,
    published: bool,
}

/// One attempt to write `bytes`: blocks in random order, occasional checkpoints, verified, published, settled.
fn attempt(disk: &Sim, spec: &Spec, bytes: &[u8], journal_from: u64, dice: &mut Rng) -> (Seen, Result<(), Error>) {
    let mut seen = Seen::default();
    let result = (|| {
        let disk = Arc::new(disk.clone());
        let start =
            Work::begin(&disk, (&key("d/out"), &key("d/out")), ("out".into(), 0o644), spec.clone(), journal_from)?;
        if let Start::Work(work) = start {
            let mut blocks: Vec<_> = Extent::first(SIZE).blocks(BLOCK).filter(|b| !work.safe().covers(*b)).collect();
            for i in (1..blocks.len()).rev() {
                blocks.swap(i, dice.below(i as u64 + 1) as usize);
            }
            seen.safe = work.safe().total();
            for block in blocks {
                let part = bytes[block.start() as usize..block.end() as usize].to_vec();
                work.write(&Block::new(block.start(), part))?;
                if dice.below(5) == 0 {
                    seen.safe = work.checkpoint()?.total();
                }
            }
            let whole = Combining::Crc32c.of(bytes);
            assert_eq!(
                work.written_sum(SIZE),
                Some(Sum::combined(Combining::Crc32c, whole)),
                "what is remembered of all bytes"
            );
            assert_eq!(reread(&work), Sum::combined(Combining::Crc32c, whole), "what is there");
            work.publish(SIZE)?;
        }
        seen.published = true;
        disk.sync_dir(&key("d")).map_err(|e| Error::io("d", "sync", e))
    })();
    (seen, result)
}

/// Attempts that fail after `steps` changes each, and a last one without failure. Returns whether the first one failed.
fn story(seed: u64, steps: &[u64], power: bool, journal_from: u64, source_changes: bool, lie: Option<Lie>) -> bool {
    let (old, mut new, mut version) = (b"old".to_vec(), content(seed), 0);
    let mut allowed = vec![old.clone(), new.clone()];
    let (disk, mut dice) = (Sim::new(seed), Rng::new(!seed));
    disk.put(&key("d/out"), &old);
    if seed % 2 == 1 && journal_from == 0 {
        // Drafts too small to resume are found by nobody.
        disk.share();
    }
    disk.lie(lie);
    let (mut cut, mut settled, mut safe) = (false, false, 0);
    for round in 0..=steps.len() {
        if let Some(&steps) = steps.get(round) {
            disk.fail_after(steps);
        }
        let before = disk.written();
        let (seen, result) = attempt(&disk, &spec(version), &new, journal_from, &mut dice);
        let sent = disk.written() - before;
        assert!(sent <= SIZE - safe, "{sent} bytes were written when {safe} of {SIZE} were safe");
        cut |= round == 0 && result.is_err();
        settled |= result.is_ok();
        if round == steps.len() {
            result.unwrap();
            break;
        }
        if power {
            disk.lose_power()
        } else {
            disk.kill()
        }
        let found = disk.contents(&key("d/out"));
        assert!(found.as_ref().is_some_and(|found| allowed.contains(found)), "half a file has its name");
        let there = found.as_ref() == Some(&new);
        assert!(there || !settled, "it was settled and lost");
        // A published object is written again on request; drafts do not prevent that.
        safe = if journal_from == 0 && !seen.published && !there { seen.safe.max(safe) } else { 0 };
        if source_changes {
            (version, settled, safe) = (version + 1, false, 0);
            new = content(seed + 1000 * version as u64);
            allowed.push(new.clone());
        }
    }
    assert_eq!(disk.contents(&key("d/out")), Some(new));
    assert_eq!(disk.names(), [key("d/out")], "something was left behind");
    cut
}

/// Each step of the first attempt is the last one once. Later attempts fail at random.
fn every_step(power: bool, journal_from: u64, source_changes: bool) {
    let mut dice = Rng::new(7);
    for seed in 0..4 {
        let mut steps = 0;
        while story(seed, &[steps, dice.below(60), dice.below(60)], power, journal_from, source_changes, None)
            && steps < 200
        {
            steps += 1;
        }
        assert!(steps > 30, "no attempt was cut after step {steps}");
    }
}

#[test]
fn kill_anywhere_leaves_the_whole_file_or_none() {
    every_step(false, 0, false);
}

#[test]
fn power_loss_anywhere_leaves_the_whole_file_or_none() {
    every_step(true, 0, false);
}

#[test]
fn simulation_detects_a_disk_that_lies_about_syncing() {
    for lie in [Lie::Drafts, Lie::Journals, Lie::Names] {
        let mut dice = Rng::new(3);
        let found = (0..4000).any(|seed| {
            let steps = [dice.below(60), dice.below(60)];
            std::panic::catch_unwind(|| story(seed, &steps, true, 0, false, Some(lie))).is_err()
        });
        assert!(found, "{lie:?} need not be synced, as far as these tests can tell");
    }
}

#[test]
fn short_objects_begin_again() {
    every_step(false, u64::MAX, false);
    every_step(true, u64::MAX, false);
}

/// Short files that are published together, cut after `steps` changes and tried again. Returns whether the first attempt was
/// cut.
fn story_of_a_batch(seed: u64, steps: u64, power: bool, lie: Option<Lie>) -> bool {
    let keys = ["d/a", "d/b", "d/c"].map(key);
    let (old, new) = (b"old".to_vec(), content(seed));
    let disk = Arc::new(Sim::new(seed));
    keys.iter().take(2).for_each(|key| disk.put(key, &old));
    disk.lie(lie);
    let attempt = || {
        let batch_sync = BatchSync::default();
        batch_sync.open(&*disk);
        if seed % 2 == 1 {
            // Then each file is synced alone.
            disk.fail_together();
        }
        let carry = async |key: &Key| {
            let Start::Work(work) = Work::begin(&disk, (key, key), ("out".into(), 0o644), spec(0), u64::MAX)? else {
                panic!("nothing was published")
            };
            let work: Arc<Work<Sim>> = Arc::from(work);
            work.write(&Block::new(0, new.clone()))?;
            work.prepare(SIZE)?;
            batch_sync.wait(&work).await?;
            work.give_name()
        };
        let mut under_way = keys.each_ref().map(|key| Box::pin(carry(key)));
        let mut poll = || {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            under_way.each_mut().map(|one| one.as_mut().poll(&mut cx))
        };
        let mut ended: Vec<_> = poll().into_iter().filter(std::task::Poll::is_ready).collect();
        // Those that have failed wait for nothing.
        if ended.is_empty() {
            assert!(batch_sync.sync(&*disk));
            ended = poll().into();
        }
        let results = ended.into_iter().map(|one| match one {
            std::task::Poll::Ready(result) => result,
            std::task::Poll::Pending => panic!("a draft waits after the sync"),
        });
        results.collect::<Result<Vec<()>, Error>>()?;
        disk.sync_dir(&key("d")).map_err(|e| Error::io("d", "sync", e))
    };
    disk.fail_after(steps);
    let cut = attempt().is_err();
    if power {
        disk.lose_power()
    } else {
        disk.kill()
    }
    for (i, key) in keys.iter().enumerate() {
        let found = disk.contents(key);
        let allowed = if i < 2 { Some(&old) } else { None };
        assert!(found.as_ref() == Some(&new) || cut && found.as_ref() == allowed, "half a file has its name");
    }
    attempt().unwrap();
    assert_eq!(keys.each_ref().map(|key| disk.contents(key)), [(); 3].map(|()| Some(new.clone())));
    assert_eq!(disk.names(), keys, "something was left behind");
    cut
}

#[test]
fn cut_anywhere_leaves_the_whole_files_of_a_batch_or_none() {
    for (seed, power) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let cut = (0..100).take_while(|steps| story_of_a_batch(seed, *steps, power, None)).count();
        assert!((15..100).contains(&cut), "cut after {cut} steps at the latest");
    }
}

#[test]
fn simulation_detects_a_batch_that_is_not_synced() {
    for lie in [Lie::Drafts, Lie::Names] {
        let found = (0..400)
            .any(|seed| std::panic::catch_unwind(|| story_of_a_batch(seed, seed % 40, true, Some(lie))).is_err());
        assert!(found, "{lie:?} need not be synced, as far as this test can tell");
    }
}

#[test]
fn changed_source_is_never_mixed_with_its_old_bytes() {
    every_step(false, 0, true);
    every_step(true, 0, true);
}

#[test]
fn repeated_blocks_are_written_once() {
    let disk = Arc::new(Sim::new(1));
    let bytes = content(1);
    let begin = || Work::begin(&disk, (&key("out"), &key("out")), ("out".into(), 0o644), spec(0), 0);
    let Start::Work(work) = begin().unwrap() else { panic!("nothing was published") };
    assert!(matches!(begin(), Err(Error::Busy { .. })));
    work.write(&Block::new(100, bytes[100..2000].to_vec())).unwrap();
    work.write(&Block::new(0, bytes[..3000].to_vec())).unwrap();
    work.write(&Block::new(0, bytes[..3000].to_vec())).unwrap();
    assert_eq!((disk.written(), work.checkpoint().unwrap().to_string().as_str()), (3000, "0-3000"));
    assert!(matches!(work.publish(SIZE), Err(Error::Incomplete { missing, .. }) if missing == SIZE - 3000));
    let beyond = Block::new(SIZE - 1, vec![0; 2]);
    assert!(matches!(work.write(&beyond), Err(Error::Beyond { .. })));
    assert!(matches!(work.write(&Block::new(u64::MAX, vec![0; 2])), Err(Error::Beyond { .. })));
    work.write(&Block::new(3000, bytes[3000..].to_vec())).unwrap();
    assert_eq!(work.written_sum(SIZE).unwrap(), reread(&work));
    work.publish(SIZE).unwrap();
    assert_eq!(disk.contents(&key("out")), Some(bytes));
    assert!(work.write(&beyond).is_err() || work.write(&Block::new(0, vec![0])).is_err());
    assert!(matches!(begin(), Ok(Start::Work(_))), "what was published is no longer locked");
}

#[test]
fn abandoned_draft_is_kept_or_removed() {
    for keep in [true, false] {
        let disk = Arc::new(Sim::new(1));
        let begin = || Work::begin(&disk, (&key("out"), &key("out")), ("out".into(), 0o644), spec(0), 0);
        let Start::Work(work) = begin().unwrap() else { panic!("nothing was published") };
        work.write(&Block::new(0, content(1)[..3000].to_vec())).unwrap();
        work.abandon(keep).unwrap();
        assert!(work.write(&Block::new(0, vec![0])).is_err());
        drop(work);
        assert_eq!(disk.names().len(), if keep { 2 } else { 0 });
        disk.lose_power();
        let Start::Work(work) = begin().unwrap() else { panic!("nothing was published") };
        assert_eq!(work.safe().total(), if keep { 3000 } else { 0 });
    }
}

#[test]
fn draft_without_a_journal_is_removed() {
    for shared in [false, true] {
        let disk = Arc::new(Sim::new(1));
        if shared {
            disk.share();
        }
        let begin = || Work::begin(&disk, (&key("out"), &key("out")), ("out".into(), 0o644), spec(0), 0);
        let no_space = || matches!(begin(), Err(Error::NoSpace { .. }));
        disk.fill(true);
        assert!(no_space());
        assert!(disk.names().is_empty());
        // Once there is space again, the earlier draft is resumed.
        disk.fill(false);
        let Start::Work(work) = begin().unwrap() else { panic!("nothing was published") };
        work.write(&Block::new(0, content(1)[..3000].to_vec())).unwrap();
        work.abandon(true).unwrap();
        drop(work);
        disk.fill(true);
        assert!(no_space());
        assert_eq!(disk.names().len(), 2);
        disk.fill(false);
        let Start::Work(work) = begin().unwrap() else { panic!("nothing was published") };
        assert_eq!(work.safe().total(), 3000);
    }
}

#[test]
fn removed_draft_is_not_reported_as_a_missing_source() {
    let disk = Arc::new(Sim::new(1));
    let begin = Work::begin(&disk, (&key("out"), &key("out")), ("out".into(), 0o644), spec(0), 0);
    let Start::Work(work) = begin.unwrap() else { panic!("nothing was published") };
    work.write(&Block::new(0, content(1))).unwrap();
    disk.unlink(work.place()).unwrap();
    let error = work.publish(SIZE).unwrap_err();
    assert!(error.kind() == crate::ErrorKind::Other && error.to_string().contains("its draft is gone"), "{error}");
}
