//! Many short files in one exchange with `phoebus serve` ([`phoebus_proto::gridftp::batch`]): a few round trips and one
//! data connection for some hundred files, instead of five round trips and a connection for each.

use super::super::error::{data, late, passing, refused};
use super::super::preliminary::Limit;
use super::super::remote::Remote;
use super::super::session::Session;
use super::super::take::Sink;
use super::super::task::Task;
use super::queue::Queue;
use super::{BLOCK, MOST_BYTES, SETTLE};
use crate::data::{Intake, Mode};
use phoebus_files::Error;
use phoebus_files::block::{Block, Body, Pool};
use phoebus_files::key::Key;
use phoebus_files::store::{Attributes, ShortObject, Time};
use phoebus_files::sum::{Combining, Sum};
use phoebus_proto::gridftp::batch::{Decoder, Encoder, File, MAX_FILES, MAX_WANTED, Record};
use phoebus_proto::gridftp::reply::Reply;
use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// Longest line of SITE WANT, in bytes.
const LINE: usize = 8 << 10;

/// Slowest rate, in bytes per second, at which a server is expected to store files.
const SLOW: u64 = 1_000_000;

/// Longest time that a server is expected to take for a file.
const SLOW_FILE: Duration = Duration::from_millis(50);

pub(super) async fn put(remote: &Remote, objects: &[ShortObject]) -> Result<Vec<bool>, Error> {
    let name = remote.0.name.to_string();
    let mut is_sent = Vec::with_capacity(objects.len());
    let (mut batch, mut queue) = (Encoder::default(), Queue::default());
    let mut paths = 0;
    for object in objects {
        let Attributes { mode, modified } = object.attributes;
        let file = remote.path(&object.key).map(|path| File {
            path,
            mode,
            at_most: object.at_most,
            modified: modified.map(|time| (time.seconds, time.nanos)),
            sum: object.crc32c(),
            ..File::default()
        });
        // What cannot be sent is refused when it is sent alone.
        let file = file.ok().filter(|file| paths + file.path.len() <= MAX_WANTED);
        is_sent.push(file.is_some_and(|file| {
            paths += file.path.len();
            batch.file(&file, &object.bytes).is_ok()
        }));
        if batch.waiting() >= BLOCK {
            queue.push(batch.take());
        }
    }
    batch.end();
    queue.push(batch.take());
    let files = is_sent.iter().filter(|sent| **sent).count();
    if files == 0 {
        return Ok(is_sent);
    }
    let mut session = remote.session_to_write().await?;
    let reply = send(remote, &mut session, &name, queue, files).await?;
    remote.keep_after(session).await;
    let not_stored =
        not_stored(&reply, files).ok_or_else(|| passing(&name, "its answer to SITE MPUT is not understood"))?;
    for (number, sent) in is_sent.iter_mut().filter(|sent| **sent).enumerate() {
        *sent = !not_stored.contains(&number);
    }
    Ok(is_sent)
}

/// Sends a batch of so many files. Returns the last reply.
async fn send(remote: &Remote, session: &mut Session, name: &str, queue: Queue, files: usize) -> Result<Reply, Error> {
    let plan = remote.plan();
    plan.enter_to_send(session, Mode::Stream, None, &remote.0.ahead, name).await?;
    let channel = plan.passive(session).await?;
    session.is_transferring = true;
    session.send(b"SITE MPUT").await?;
    remote.prepare_next(session).await?;
    let moved = Arc::default();
    let expected = Duration::from_secs(queue.len() / SLOW) + SLOW_FILE * files as u32;
    let mut sending = pin!(channel.send(Mode::Stream, 1, Arc::new(queue), &moved));
    let (begun, mut sent) = (Instant::now(), false);
    let mut limit = Limit::new(remote.options().reply_timeout + expected, Duration::ZERO);
    loop {
        tokio::select! {
            // A refusal must not look like a broken connection.
            biased;
            reply = session.next() => {
                let reply = reply?;
                limit.heard();
                if reply.is_preliminary() {
                    if sent && limit.is_over() {
                        return Err(late(name, &limit));
                    }
                    continue;
                }
                session.in_step = true;
                if !reply.is_success() {
                    return Err(refused(name, "store a batch at", "SITE MPUT", &reply));
                }
                if !sent && !timeout(SETTLE, &mut sending).await.is_ok_and(|sent| sent.is_ok()) {
                    return Err(passing(name, "the server says that all has come before all was sent"));
                }
                session.is_transferring = false;
                return Ok(reply);
            }
            done = &mut sending, if !sent => {
                done.map_err(|error| data(name, error))?;
                sent = true;
                limit = Limit::new(remote.options().reply_timeout + expected, begun.elapsed());
            }
            () = sleep_until(limit.end()), if sent => return Err(late(name, &limit)),
        }
    }
}

/// How the last reply to SITE MPUT begins if files were not stored.
const NOT_STORED: &str = "Not stored: ";

/// The numbers of the files that the reply to SITE MPUT says were not stored. `None` if it contradicts itself, or says
/// something else.
fn not_stored(reply: &Reply, files: usize) -> Option<HashSet<usize>> {
    let [first, lines @ .., _] = &reply.lines[..] else {
        return (!reply.text().starts_with(NOT_STORED)).then(HashSet::new);
    };
    let announced = str::from_utf8(first).ok()?.strip_prefix(NOT_STORED)?.split(' ').next()?.parse().ok();
    let number = |line: &Vec<u8>| {
        let mut words = str::from_utf8(line).ok()?.split_whitespace();
        let (number, _code) = (words.next()?.parse().ok()?, words.next()?.parse::<u16>().ok()?);
        (words.next().is_none() && number < files).then_some(number)
    };
    let numbers = lines.iter().map(number).collect::<Option<HashSet<usize>>>()?;
    (announced == Some(numbers.len()) && numbers.len() == lines.len()).then_some(numbers)
}

pub(super) async fn get(remote: &Remote, keys: &[Key]) -> Result<Vec<Option<ShortObject>>, Error> {
    let name = remote.0.name.to_string();
    // What cannot be asked for is refused when it is asked for alone.
    let paths: Vec<Option<Vec<u8>>> =
        keys.iter().map(|key| remote.path(key).ok().filter(|path| path.len() > 1)).collect();
    let (lines, asked) = lines(paths.iter().flatten().map(Vec::as_slice));
    if asked == 0 {
        return Ok(keys.iter().map(|_| None).collect());
    }
    let mut session = remote.session().await?;
    let plan = remote.plan();
    plan.enter(&mut session, Mode::Stream).await?;
    for reply in session.ask_all(&lines, &remote.0.ahead).await? {
        if !reply.is_success() {
            // The server has noted some of the names.
            session.in_step = false;
            return Err(refused(&name, "ask for a batch of", "SITE WANT", &reply));
        }
    }
    let channel = plan.passive(&mut session).await?;
    let intake = Intake { pool: Pool::new(BLOCK, 4), from: 0, expected: None, into: None };
    let mut sink = Reading { decoder: Decoder::default(), records: Vec::new(), asked, bytes: 0, failed: None };
    let task = Task { remote, name: &name, act: "get a batch from", enough: None };
    let received = task.receive(&mut session, b"SITE MGET", &channel, Mode::Stream, intake, &mut sink).await;
    if let Some(reason) = sink.failed.take() {
        return Err(passing(&name, reason));
    }
    received?;
    sink.decoder.finish().map_err(|error| passing(&name, error.to_string()))?;
    if sink.records.len() != asked {
        // The records have no names, so any of them may be missing.
        return Err(passing(
            &name,
            format!("it sends {} files of the {asked} that were asked for", sink.records.len()),
        ));
    }
    remote.keep_after(session).await;
    let mut records = sink.records.into_iter();
    let objects = keys.iter().zip(paths).map(|(key, path)| {
        let file = path.and_then(|_| records.next()).flatten()?;
        let attributes = Attributes {
            mode: file.mode.map(|mode| mode & 0o7777),
            modified: file.modified.map(|(seconds, nanos)| Time { seconds, nanos }),
        };
        let sum = Sum::combined(Combining::Crc32c, file.sum);
        let (key, bytes) = (key.clone(), file.bytes.into());
        let object = ShortObject { key, bytes, sum, attributes, at_most: None, before: None };
        object.is_whole().then_some(object)
    });
    Ok(objects.collect())
}

/// The lines of SITE WANT for as many of these paths as a batch can have, and their number.
fn lines<'a>(paths: impl Iterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, usize) {
    let (mut lines, mut asked): (Vec<Vec<u8>>, _) = (Vec::new(), 0);
    let mut rest = MAX_WANTED;
    for path in paths.take(MAX_FILES) {
        let Some(left) = rest.checked_sub(path.len()) else { break };
        (rest, asked) = (left, asked + 1);
        match lines.last_mut().filter(|line| line.len() + path.len() < LINE) {
            Some(line) => line.extend([b"/", path].concat()),
            None => lines.push([b"SITE WANT ", &path[1..]].concat()),
        }
    }
    (lines, asked)
}

/// Reads a batch as it comes.
struct Reading {
    decoder: Decoder,
    /// The files, `None` for those that the server does not send.
    records: Vec<Option<File>>,
    /// How many were asked for.
    asked: usize,
    bytes: usize,
    /// Why it is not read any more.
    failed: Option<String>,
}

impl Reading {
    fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes += bytes.len();
        if self.bytes > MOST_BYTES {
            return Err(format!("it sends more than {MOST_BYTES} bytes of short files"));
        }
        self.decoder.push(bytes);
        while let Some(record) = self.decoder.take().map_err(|error| error.to_string())? {
            match record {
                Record::File(file) => self.records.push(Some(file)),
                Record::Refused(_) => self.records.push(None),
                Record::End => {}
            }
            if self.records.len() > self.asked {
                return Err(format!("it sends more files than the {} that were asked for", self.asked));
            }
        }
        Ok(())
    }
}

impl Sink for Reading {
    async fn take(&mut self, block: Block) -> bool {
        let Body::Bytes(bytes) = block.body else { return true };
        self.failed = self.read(&bytes).err();
        self.failed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_paths_fill_lines() {
        let paths = [b"/a".to_vec(), b"/b/c d".to_vec(), [b"/".to_vec(), vec![b'x'; LINE]].concat(), b"/e".to_vec()];
        let (lines, asked) = lines(paths.iter().map(Vec::as_slice));
        assert_eq!((lines.len(), asked), (3, 4));
        assert_eq!((&lines[0][..], &lines[2][..]), (&b"SITE WANT a//b/c d"[..], &b"SITE WANT e"[..]));
    }

    #[test]
    fn answer_names_what_was_not_stored() {
        let reply = |lines: &[&str]| Reply::of_lines(226, lines.iter().map(|line| line.as_bytes().to_vec()));
        assert_eq!(not_stored(&Reply::new(226, "done"), 3), Some(HashSet::new()));
        assert_eq!(not_stored(&Reply::new(226, "Not stored: 3 files"), 3), None);
        let two = ["Not stored: 2 files", " 0 550", " 2 452", "End"];
        assert_eq!(not_stored(&reply(&two), 3), Some(HashSet::from([0, 2])));
        for wrong in [" 3 550", " 0", " x 550", "", " 0 550 x"] {
            assert_eq!(not_stored(&reply(&["Not stored: 1 files", wrong, "End"]), 3), None, "{wrong:?}");
        }
        for wrong in
            [&["Not stored: 3 files", "End"][..], &["Not stored: 2 files", " 1 550", " 1 550", "End"], &["x", "y"]]
        {
            assert_eq!(not_stored(&reply(wrong), 3), None, "{wrong:?}");
        }
    }
}
