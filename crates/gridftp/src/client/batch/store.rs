//! Stores many short files on a GridFTP server: each as a draft, over one data connection in extended block mode. Then
//! permissions, times and checksums of all drafts, and then the names of those whose checksums are right.
//!
//! Files are sent before the server has taken the commands for those before them. A server that refuses one would take
//! its bytes for the next file's. So a refusal ends the batch, and nothing is published without the right checksum.
//! Private files are first created empty and made private, and then sent over a connection of their own: there, bytes
//! can only be taken for those of another private draft.

use super::super::error::{data as of_data, passing, words};
use super::super::modes::{Mode, keeps_own};
use super::super::remote::Remote;
use super::super::resume::way;
use super::super::session::Session;
use super::pipelined::{ask_in_order, ends};
use super::queue::Queue;
use super::{BLOCK, SETTLE};
use crate::data;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::store::{ShortObject, Spec, Store};
use phoebus_files::sum::Algorithm;
use phoebus_proto::gridftp::block::{Ending, Header};
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::gridftp::time::Stamp;
use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Longest time for removing drafts after a failure.
const FAREWELL: Duration = Duration::from_secs(10);

/// A file of a batch.
struct ShortDraft<'a> {
    object: &'a ShortObject,
    /// Its name until it is verified.
    part: Key,
    /// The permissions to set.
    mode: Option<Mode>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It may be there as a draft.
    Draft,
    /// The draft is as it should be.
    Verified,
    /// It has its name.
    Published,
}

/// Stores objects. Returns for each whether it is complete under its name.
pub(super) async fn put(remote: &Remote, objects: &[ShortObject], algorithm: Algorithm) -> Result<Vec<bool>, Error> {
    let begun = Instant::now();
    let mut drafts = Vec::new();
    let mut keys = HashSet::new();
    for object in objects {
        let is_once = keys.insert(&object.key);
        let usable = !remote.0.pipelining.is_hopeless() && is_once;
        drafts.push(if usable { ShortDraft::of(remote, object).await } else { None });
    }
    let mut used: Vec<&mut ShortDraft> = drafts.iter_mut().flatten().collect();
    if used.is_empty() {
        return Ok(vec![false; objects.len()]);
    }
    let stored = store_all(remote, &mut used, algorithm).await;
    // A refusal of one file ends a batch; those that end before any file is stored are worth nothing.
    let is_useful = stored.is_ok() || used.iter().any(|draft| draft.state == State::Published);
    remote.0.pipelining.note(begun, is_useful);
    if let Err(error) = stored {
        tracing::debug!(server = %remote.0.name, %error, "a batch of short files was not stored");
        let left = used.iter().filter(|draft| draft.state != State::Published).map(|draft| draft.part.clone());
        remove(remote, left.collect()).await;
    }
    Ok(drafts.iter().map(|draft| draft.as_ref().is_some_and(|draft| draft.state == State::Published)).collect())
}

/// Removes the drafts of `objects`.
pub(super) async fn abandon(remote: &Remote, objects: &[ShortObject]) {
    let mut parts = Vec::new();
    for object in objects {
        parts.extend(part_of(remote, object).await);
    }
    remove(remote, parts).await;
}

impl<'a> ShortDraft<'a> {
    /// The draft for `object`. `None` if it has to be carried alone.
    async fn of(remote: &Remote, object: &'a ShortObject) -> Option<Self> {
        let spec = spec(object);
        let is_known = match object.before {
            None => false,
            Some(None) => true,
            // Links have this mode, and some servers list one as a file.
            Some(Some(meta)) => meta.mode.is_some_and(|mode| mode & 0o777 != 0o777),
        };
        if (keeps_own(&spec) && !is_known) || remote.keeps_name(&object.key).await.is_err() {
            return None;
        }
        remote.path(&object.key).ok()?;
        let part = part_of(remote, object).await?;
        let mode = Mode::of(&spec, object.before, false);
        let draft = Self { object, part, mode, state: State::Draft };
        // What such a server does with private files is reported when they are carried alone.
        let is_possible = !draft.is_private() || remote.sets_modes();
        is_possible.then_some(draft)
    }

    fn is_private(&self) -> bool {
        self.mode.is_some_and(Mode::is_private)
    }

    /// Adds its data to `bytes`: blocks up to the end, or only the end.
    fn data(&self, content: Content, bytes: &mut Vec<u8>) {
        if content == Content::All && !self.object.bytes.is_empty() {
            bytes.extend(Header::data(0, self.object.bytes.len() as u64).encode());
            bytes.extend(&self.object.bytes);
        }
        let end = Ending::of_one_sender(1, Some(1)).next(true);
        end.into_iter().for_each(|end| bytes.extend(end.encode()));
    }
}

/// What is sent of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    All,
    Nothing,
}

fn spec(object: &ShortObject) -> Spec {
    Spec {
        size: Some(object.bytes.len() as u64),
        attributes: object.attributes,
        at_most: object.at_most,
        replace: true,
        ..Spec::default()
    }
}

/// The name of the draft of `object`, always the same in this run.
async fn part_of(remote: &Remote, object: &ShortObject) -> Option<Key> {
    let run = remote.0.pipelining.run(&remote.0.name, remote.options().state.as_deref(), &remote.0.run);
    // Without a source, each call would give another name. A draft that a killed run has left keeps its permissions.
    let permissions = format!("{:?} {:?}", object.attributes.mode, object.at_most);
    let spec = Spec { source: Some((permissions, object.attributes.modified)), ..spec(object) };
    let (_, part, _) = way(remote, &object.key, &spec, run).await.ok()?;
    remote.path(&part).is_ok().then_some(part)
}

async fn store_all(remote: &Remote, drafts: &mut [&mut ShortDraft<'_>], algorithm: Algorithm) -> Result<(), Error> {
    let mut session = remote.session_to_write().await?;
    let (mut private, public): (Vec<&ShortDraft>, Vec<&ShortDraft>) =
        drafts.iter().map(|draft| &**draft).partition(|draft| draft.is_private());
    let mut refused = HashSet::new();
    if !private.is_empty() {
        send(remote, &mut session, &private, Content::Nothing).await?;
        refused = make_private(remote, &mut session, &private).await?;
        private.retain(|draft| !refused.contains(&draft.part));
        send(remote, &mut session, &private, Content::All).await?;
    }
    send(remote, &mut session, &public, Content::All).await?;
    let mut sent: Vec<&mut ShortDraft> =
        drafts.iter_mut().map(|draft| &mut **draft).filter(|draft| !refused.contains(&draft.part)).collect();
    verify(remote, &mut session, &mut sent, algorithm).await?;
    publish(remote, &mut session, &mut sent).await?;
    let left: Vec<Vec<u8>> = drafts
        .iter()
        .filter(|draft| draft.state != State::Published)
        .filter_map(|draft| remote.line("DELE", &draft.part).ok())
        .collect();
    ask_in_order(&mut session, &left, |_, _| Ok(())).await?;
    remote.keep_after(session).await;
    Ok(())
}

/// Makes drafts private. Returns those for which the server refuses that.
async fn make_private(
    remote: &Remote,
    session: &mut Session,
    drafts: &[&ShortDraft<'_>],
) -> Result<HashSet<Key>, Error> {
    let lines = drafts.iter().map(|draft| remote.line("SITE CHMOD 600", &draft.part));
    let lines = lines.collect::<Result<Vec<Vec<u8>>, Error>>()?;
    let mut refused = HashSet::new();
    let asked = ask_in_order(session, &lines, |number, reply| {
        if !reply.is_success() {
            refused.insert(drafts[number].part.clone());
        }
        Ok(())
    });
    asked.await?;
    Ok(refused)
}

/// Sends drafts over a data connection of their own.
async fn send(
    remote: &Remote,
    session: &mut Session,
    drafts: &[&ShortDraft<'_>],
    content: Content,
) -> Result<(), Error> {
    if drafts.is_empty() {
        return Ok(());
    }
    let name = &remote.0.name;
    let (mut lines, mut queue, mut bytes) = (Vec::new(), Queue::default(), Vec::new());
    for draft in drafts {
        lines.push(remote.line("STOR", &draft.part)?);
        draft.data(content, &mut bytes);
        if bytes.len() >= BLOCK {
            queue.push(std::mem::take(&mut bytes));
        }
    }
    queue.push(bytes);
    let plan = remote.plan();
    plan.enter_to_send(session, data::Mode::Extended, None, &remote.0.ahead, name).await?;
    let channel = plan.passive(session).await?;
    session.is_transferring = true;
    let moved = Arc::default();
    let mut sending = pin!(channel.send(data::Mode::Stream, 1, Arc::new(queue), &moved));
    let answered = ask_in_order(session, &lines, |number, reply| match reply.is_success() {
        true => Ok(()),
        false => Err(ends(remote, &lines[number], &reply)),
    });
    let all = async {
        let mut answered = pin!(answered);
        tokio::select! {
            // A refusal says more than a broken connection.
            biased;
            all = &mut answered => {
                all?;
                let late = |_| passing(name, "the server says that all has come before all was sent");
                timeout(SETTLE, sending).await.map_err(late)?.map_err(|error| of_data(name, error)).map(drop)
            }
            sent = &mut sending => {
                sent.map_err(|error| of_data(name, error))?;
                answered.await
            }
        }
    };
    all.await?;
    session.is_transferring = false;
    Ok(())
}

/// What a command does to a draft before its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    SetMode(Mode),
    Sum,
    SetTime,
}

/// Sets permissions and times, and compares checksums. Drafts for which all succeeds are verified.
async fn verify(
    remote: &Remote,
    session: &mut Session,
    drafts: &mut [&mut ShortDraft<'_>],
    algorithm: Algorithm,
) -> Result<(), Error> {
    let (mut acts, mut lines) = (Vec::new(), Vec::new());
    for (at, draft) in drafts.iter().enumerate() {
        for (act, line) in draft.settings(remote, algorithm)? {
            acts.push((at, act));
            lines.push(line);
        }
    }
    let (mut failed, mut refused) = (HashSet::new(), Vec::new());
    let asked = ask_in_order(session, &lines, |number, reply| {
        let (at, act) = acts[number];
        let is_right = match act {
            Act::SetMode(mode) => {
                if !reply.is_success() {
                    refused.push((at, mode, Reply::new(reply.code, words(&reply))));
                }
                true
            }
            Act::Sum => {
                let object = drafts[at].object;
                remote.sum_in(&object.key, algorithm, reply).is_ok_and(|sum| sum == object.sum)
            }
            Act::SetTime => reply.is_success(),
        };
        if !is_right {
            failed.insert(at);
        }
        Ok(())
    });
    asked.await?;
    for (at, mode, reply) in refused {
        let ShortDraft { object, part, .. } = &*drafts[at];
        match remote.mode_answered(part, &object.key, mode, reply, true).await {
            Ok(None) => {}
            Ok(Some(_)) => remote.note_without_mode(&object.key, mode),
            Err(_) => drop(failed.insert(at)),
        }
    }
    for (_, draft) in drafts.iter_mut().enumerate().filter(|(at, _)| !failed.contains(at)) {
        draft.state = State::Verified;
    }
    Ok(())
}

impl ShortDraft<'_> {
    /// The commands that set its permissions and time, and ask for its checksum. The server can read it for that only
    /// with permission, so permissions that exclude the owner follow. They are set even if they may be what new files
    /// have: STOR over the draft of a killed run leaves those of that draft.
    fn settings(&self, remote: &Remote, algorithm: Algorithm) -> Result<Vec<(Act, Vec<u8>)>, Error> {
        let mode = |mode: Option<Mode>| {
            let line = remote.mode_line(&self.part, &self.object.key, mode)?;
            Ok::<_, Error>(mode.zip(line).map(|(mode, line)| (Act::SetMode(mode), line)))
        };
        let last = self.mode.filter(|mode| !mode.is_readable());
        let mut all: Vec<_> = mode(self.mode.map(Mode::readable))?.into_iter().collect();
        all.push((Act::Sum, remote.sum_line(&self.part, algorithm, 0, None)?));
        if let Some(time) = self.object.attributes.modified {
            let stamp = Stamp { seconds: time.seconds, nanos: 0 };
            all.push((Act::SetTime, remote.line(&format!("MFMT {stamp}"), &self.part)?));
        }
        all.extend(mode(last)?);
        Ok(all)
    }
}

/// Gives verified drafts their names.
async fn publish(remote: &Remote, session: &mut Session, drafts: &mut [&mut ShortDraft<'_>]) -> Result<(), Error> {
    let verified: Vec<&mut &mut ShortDraft> =
        drafts.iter_mut().filter(|draft| draft.state == State::Verified).collect();
    let mut lines = Vec::new();
    for draft in &verified {
        remote.forget(&draft.object.key);
        lines.push(remote.line("RNFR", &draft.part)?);
        lines.push(remote.line("RNTO", &draft.object.key)?);
    }
    let (mut verified, mut is_found) = (verified.into_iter(), false);
    ask_in_order(session, &lines, |number, reply| {
        if number % 2 == 0 {
            is_found = reply.code == 350;
            return Ok(());
        }
        // A server may rename an earlier file if it has refused RNFR.
        if let Some(draft) = verified.next().filter(|_| is_found && reply.code == 250) {
            draft.state = State::Published;
        }
        Ok(())
    })
    .await
}

/// Removes drafts, as far as that succeeds.
async fn remove(remote: &Remote, parts: Vec<Key>) {
    let lines: Vec<Vec<u8>> = parts.iter().filter_map(|part| remote.line("DELE", part).ok()).collect();
    let removed = async {
        let mut session = remote.session_to_write().await?;
        ask_in_order(&mut session, &lines, |_, _| Ok(())).await?;
        remote.keep(session);
        Ok::<_, Error>(())
    };
    // A leftover only shows in listings of hidden names.
    if !lines.is_empty() && !timeout(FAREWELL, removed).await.is_ok_and(|removed| removed.is_ok()) {
        tracing::debug!(server = %remote.0.name, "drafts of a batch may be left");
    }
}
