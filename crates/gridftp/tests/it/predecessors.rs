//! Drafts of sources that have changed since. The next transfer removes them, and no others.

use crate::support;
use phoebus_files::block::Block;
use phoebus_files::key::Key;
use phoebus_files::store::{Attributes, Begun, Draft, Spec, Store, Time};
use phoebus_gridftp::client::{Options, Remote};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::units::Span;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{PATIENCE, Serve, bytes};

const SIZE: u64 = 17 << 20;

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The draft of a source with this modification time.
async fn begin(remote: &Remote, key: &Key, modified: i64) -> Arc<dyn Draft> {
    begin_of_size(remote, key, modified, SIZE).await
}

async fn begin_of_size(remote: &Remote, key: &Key, modified: i64, size: u64) -> Arc<dyn Draft> {
    let spec = Spec {
        size: Some(size),
        source: Some(("file:///source".to_owned(), Some(Time { seconds: modified, nanos: 0 }))),
        sum: None,
        attributes: Attributes::default(),
        at_most: None,
        replace: true,
        sparse: false,
        held: false,
    };
    match remote.create(key, spec).await.unwrap() {
        Begun::Draft(draft) => draft,
        Begun::Done => panic!("nothing was published"),
    }
}

async fn cut(draft: &dyn Draft) {
    for i in 0..12 {
        draft.write(Block::new(i << 20, bytes(1 << 20))).await.unwrap();
    }
    // Bytes that the server has reported as synced are worth keeping.
    let begin = Instant::now();
    while draft.checkpoint().await.unwrap().is_empty() {
        assert!(begin.elapsed() < PATIENCE, "the server says of nothing that it is safe");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    draft.abandon(true).await;
}

/// The names in the server's root, once no draft is being written and one exists that is not among `others`.
fn left(serve: &Serve, others: &BTreeSet<String>) -> BTreeSet<String> {
    let begin = Instant::now();
    loop {
        let all = names(&serve.path(""));
        let new: BTreeSet<String> = all.difference(others).cloned().collect();
        let free = |name: &String| fs::File::open(serve.path(name)).is_ok_and(|file| file.try_lock().is_ok());
        if new.iter().any(|name| name.ends_with(".phoebus-draft")) && new.iter().all(free) {
            return new;
        }
        assert!(begin.elapsed() < PATIENCE, "no draft was left: {all:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn new_upload_removes_the_earlier_draft() {
    let serve = Serve::with(|config| config.data.markers = Span(Duration::from_millis(20)));
    let state = tempfile::tempdir().unwrap();
    let others = [".x.0123456789abcdef.phoebus-part", "..x.0123456789abcdef.phoebus-part.phoebus-draft"];
    others.iter().for_each(|name| fs::write(serve.path(name), "another's").unwrap());
    let others: BTreeSet<String> = others.map(str::to_owned).into();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = Endpoint::parse(&format!("127.0.0.1:{}", serve.port()), None).unwrap();
    let options = Options { state: Some(state.path().to_owned()), ..Options::new("ftp://test", server) };
    let remote = runtime.block_on(Remote::connect(options)).unwrap();
    let key = remote.home().join(b"x".as_slice()).unwrap();
    runtime.block_on(async { cut(&*begin(&remote, &key, 1).await).await });
    let first = left(&serve, &others);
    // Servers without hidden drafts show it under the name that the client chose.
    let draft = first.iter().find(|name| name.ends_with(".phoebus-draft")).unwrap();
    let part = draft[1..].strip_suffix(".phoebus-draft").unwrap();
    fs::write(serve.path(part), "").unwrap();

    // The same source resumes it, and another source does not.
    let same = runtime.block_on(begin(&remote, &key, 1));
    assert!(first.is_subset(&names(&serve.path(""))));
    runtime.block_on(same.abandon(true));
    let changed = runtime.block_on(begin(&remote, &key, 2));
    assert_eq!(names(&serve.path("")), others);
    runtime.block_on(cut(&*changed));
    let second = left(&serve, &others);
    assert!(second.is_disjoint(&first), "{second:?}");

    // A draft that is being written stays until its writer has ended.
    let draft = second.iter().find(|name| name.ends_with(".phoebus-draft")).unwrap();
    let used = fs::File::open(serve.path(draft)).unwrap();
    used.try_lock().unwrap();
    runtime.block_on(async { begin(&remote, &key, 3).await.abandon(true).await });
    assert!(second.is_subset(&names(&serve.path(""))));
    drop(used);
    runtime.block_on(async { begin(&remote, &key, 4).await.abandon(true).await });
    assert_eq!(names(&serve.path("")), others);

    // Also if the source is now too short for a draft to be kept.
    runtime.block_on(async { cut(&*begin(&remote, &key, 5).await).await });
    left(&serve, &others);
    runtime.block_on(async { begin_of_size(&remote, &key, 6, 1000).await.abandon(true).await });
    assert_eq!(names(&serve.path("")), others);
}
