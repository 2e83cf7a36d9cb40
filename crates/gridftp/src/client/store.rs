//! What goes to a server: a file under its draft's name (RFC 959, section 5.3; GFD.20, sections 3.2 and 3.4).
//!
//! An upload is a task of its own, which takes from a flow. It is done only when all that was given has gone and the
//! server has said that all of it came (226).

use super::error::{bare, data, passing, refused, silent, sort, words};
use super::in_place::Gated;
use super::marks::Marks;
use super::remote::Remote;
use super::retrieve::without;
use crate::data::Mode;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::Flow;
use phoebus_files::{Error, Sort};
use phoebus_proto::gridftp::marker::{Restart, find_ranges};
use phoebus_proto::gridftp::reply::Reply;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// From how many bytes on a server is told how many will come, so that what has no room fails at its beginning.
const ALLO_FROM: u64 = 1 << 20;

/// How long a server's words are waited for, once data has failed.
const WORDS: Duration = Duration::from_secs(5);

/// How fast a server makes safe what it was given, at least, in bytes a second.
const SLOW: u64 = 20_000_000;

/// How long it takes at most until what the kernel has taken is known to have gone, when the server has it already.
const SETTLE: Duration = Duration::from_secs(5);

/// What is to be sent.
#[derive(Debug, Clone)]
pub(super) struct Sending {
    /// As errors name it.
    pub(super) name: String,
    /// Under which name the server writes it.
    pub(super) path: Vec<u8>,
    /// How many bytes it will have, if that is known.
    pub(super) size: Option<u64>,
    /// Over how many connections it goes as extended blocks, if it does.
    pub(super) streams: Option<u32>,
    /// What of them the server has.
    pub(super) kept: Ranges,
    /// What the server says is safe, as it says so.
    pub(super) safe: Arc<Mutex<Ranges>>,
    /// Where that is noted.
    pub(super) marks: Option<Marks>,
    /// What is asked of the server beside, once the file is there and before its first byte.
    pub(super) first: Option<Vec<u8>>,
}

/// An upload that is under way. Dropped, it is cut.
#[derive(Debug)]
pub(super) struct Upload {
    work: JoinHandle<Result<(), Error>>,
    stop: Arc<Notify>,
}

impl Upload {
    /// Begins to send all of `flow`, adding to `moved` what has gone.
    pub(super) fn begin(remote: Remote, sending: Sending, flow: Arc<dyn Flow>, moved: Arc<AtomicU64>) -> Self {
        let stop = Arc::<Notify>::default();
        let stopped = stop.clone();
        let work = tokio::spawn(async move { run(&remote, &sending, flow, moved, &stopped).await });
        Self { work, stop }
    }

    /// Has the server stop, and say what of it is safe, within `limit`.
    pub(super) async fn stop(mut self, limit: Duration) {
        self.stop.notify_one();
        // What it did not say is sent again.
        let _ = timeout(limit, &mut self.work).await;
    }

    /// Waits for its end; cancel safe.
    pub(super) async fn end(&mut self) -> Result<(), Error> {
        match (&mut self.work).await {
            Ok(ended) => ended,
            Err(error) => {
                let reason = format!("the transfer was given up: {error}");
                Err(Error::Store { name: "upload".to_owned(), reason, sort: Sort::Other })
            }
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.work.abort();
    }
}

async fn run(
    remote: &Remote,
    sending: &Sending,
    flow: Arc<dyn Flow>,
    moved: Arc<AtomicU64>,
    stop: &Notify,
) -> Result<(), Error> {
    let name = &sending.name;
    let mut session = remote.session_to_write().await?;
    let (mode, streams) = sending.streams.map_or((Mode::Stream, 1), |streams| (Mode::Extended, streams));
    let plan = remote.plan().over(streams);
    // By its size alone servers know that all of it has come where connections do not say when they are at their end.
    let always = remote.options().stack.as_ref().is_some_and(|stack| !stack.tells_ends());
    let size = sending.size.filter(|size| *size >= ALLO_FROM || always);
    let streams = plan.enter_to_send(&mut session, mode, size, &remote.0.ahead, name).await?;
    remote.has_at_most(streams, sending.streams);
    let plan = plan.over(streams);
    let channel = plan.passive(&mut session).await?;
    remote.used(streams.saturating_mul(channel.ends() as u32));
    let rest = match mode {
        Mode::Stream => sending.kept.iter().next_back().map(|last| Restart::At(last.end())),
        Mode::Extended | Mode::ExtendedBoth => without(sending.kept.clone()),
    };
    if let Some(rest) = rest {
        let reply = session.ask(format!("REST {rest}")).await?;
        if reply.code != 350 {
            return Err(afresh(remote, sending, "REST", &reply));
        }
    }
    if sending.kept.is_empty()
        && let Some(marks) = &sending.marks
    {
        // They are of what is about to be written anew.
        marks.remove();
    }
    // Ours waits for a sign that the sender of bytes that come bare was not cut off, unless it was told how many will come. Nobody waits
    // for its answer to that.
    let is_bare = mode == Mode::Stream && plan.is_plain() && !remote.is_under_tls();
    let announced =
        sending.size.filter(|_| size.is_none() && is_bare && remote.has("XDRAFTS") && sending.kept.is_empty());
    let mut answers = 0;
    if let Some(size) = announced {
        session.send(format!("ALLO {size}").as_bytes()).await?;
        answers = 1;
    }
    let command = [b"STOR ", &sending.path[..]].concat();
    session.moving = true;
    session.send(&command).await?;
    remote.prepare_next(&mut session).await?;
    let mut first = sending.first.clone();
    let (open, opened) = watch::channel(first.is_none());
    let flow: Arc<dyn Flow> = if first.is_none() { flow } else { Arc::new(Gated::new(flow, opened)) };
    let send = channel.send(mode, streams, flow, &moved);
    tokio::pin!(send);
    // Some answer only when all is on their disks.
    let patience = remote.options().patience + Duration::from_secs(sending.size.unwrap_or(0) / SLOW);
    let (mut sent, mut said, mut until, begun) = (false, false, Instant::now() + patience, Instant::now());
    while !(sent && said) {
        tokio::select! {
            // A refusal is not to be taken for a broken connection.
            biased;
            reply = session.next(), if !said => {
                let reply = reply?;
                until = Instant::now() + patience;
                if answers > 0 {
                    answers -= 1;
                    if matches!(reply.code, 452 | 552) {
                        return Err(refused(name, "make room for", "ALLO", &reply));
                    }
                } else if reply.is_preliminary() {
                    sending.mark(&reply);
                    if let Some(line) = first.take() {
                        // A refusal is told when all has come.
                        let _ = remote.ask(line).await;
                        open.send_replace(true);
                    }
                } else if !reply.is_success() {
                    session.in_step = true;
                    return Err(not_stored(remote, sending, &reply));
                } else if sent || timeout(SETTLE, &mut send).await.is_ok_and(|sent| sent.is_ok()) {
                    (sent, said) = (true, true);
                } else {
                    return Err(passing(name, "the server says that all has come before all was sent"));
                }
            }
            done = &mut send, if !sent => match done {
                Ok(_) => (sent, until) = (true, Instant::now() + patience),
                Err(error) => {
                    let error = data(name, error);
                    while answers > 0 {
                        answers -= 1;
                        let Ok(reply) = session.last(WORDS).await else { return Err(error) };
                        if matches!(reply.code, 452 | 552) {
                            return Err(refused(name, "make room for", "ALLO", &reply));
                        }
                    }
                    return Err(match session.last(WORDS).await {
                        Ok(reply) if reply.is_success() || matches!(reply.code, 425 | 426) => {
                            passing(name, format!("{}; the server says {}", bare(&error, name), words(&reply)))
                        }
                        Ok(reply) => not_stored(remote, sending, &reply),
                        Err(_) => error,
                    });
                }
            },
            // Not all say that they begin.
            () = sleep_until(begun + WORDS), if first.is_some() => {
                first = None;
                open.send_replace(true);
            }
            () = sleep_until(until), if sent => return Err(silent(name, patience)),
            () = stop.notified() => {
                session.moving = false;
                session.send(b"ABOR").await?;
                // The answers to STOR and to ABOR, and that to ALLO.
                for _ in 0..2 + answers {
                    loop {
                        let reply = session.within(WORDS).await?;
                        if !reply.is_preliminary() {
                            break;
                        }
                        sending.mark(&reply);
                    }
                }
                return Err(passing(name, "the transfer was given up"));
            }
        }
    }
    session.in_step = true;
    remote.keep_after(session).await;
    Ok(())
}

/// The server refuses to store.
fn not_stored(remote: &Remote, sending: &Sending, reply: &Reply) -> Error {
    if reply.code == 425 {
        remote.forget_idle();
    }
    if !sending.kept.is_empty() && sort(reply) != Sort::NoSpace {
        return afresh(remote, sending, "STOR", reply);
    }
    refused(&sending.name, "write", "STOR", reply)
}

/// The server does not go on with what it has: the next attempt begins again.
fn afresh(remote: &Remote, sending: &Sending, command: &str, reply: &Reply) -> Error {
    match &sending.marks {
        Some(marks) => marks.remove(),
        None => remote.begin_afresh(),
    }
    passing(
        &sending.name,
        format!("the server does not let it be gone on with: it answers {command} with {}", words(reply)),
    )
}

impl Sending {
    /// Notes what a marker calls safe.
    pub(super) fn mark(&self, reply: &Reply) {
        if reply.code == 111
            && let Ok(ranges) = find_ranges(&reply.text())
        {
            let size = self.size.unwrap_or(u64::MAX);
            let mut safe = self.safe.lock().unwrap_or_else(PoisonError::into_inner);
            safe.extend(ranges.iter().filter_map(|extent| extent.common(Extent::first(size))));
            if let Some(marks) = &self.marks {
                let mut all = safe.clone();
                all.extend(self.kept.iter());
                // Without them a file that is cut begins again, and no more.
                let _ = marks.write(&all);
            }
        }
    }
}
