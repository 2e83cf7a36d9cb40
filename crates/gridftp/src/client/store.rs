//! Uploads: a file under its draft's name (RFC 959, section 5.3; GFD.20, sections 3.2 and 3.4).
//!
//! An upload is a task that takes blocks from a flow. It is complete only when all blocks were sent and the server has
//! confirmed them (226).

use super::carrier::{Carrier, Untouched};
use super::error::{bare, kind, late, passing, refused, silent, words};
use super::gated::{Gate, Gated, Nothing};
use super::known::EarlyRefusal;
use super::preliminary::{Limit, UploadProgress};
use super::remote::Remote;
use super::retrieve::without;
use super::session::Session;
use super::upload_journal::UploadJournal;
use crate::data::{self, Mode};
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::Flow;
use phoebus_files::{Error, ErrorKind};
use phoebus_proto::gridftp::marker::{Restart, find_ranges};
use phoebus_proto::gridftp::reply::Reply;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// From this size on, the size is announced, so that a full server refuses at once.
const ALLO_FROM: u64 = 1 << 20;

/// Longest wait for the server's reply after data failed.
const WORDS: Duration = Duration::from_secs(5);

/// Slowest rate, in bytes per second, at which a server is expected to sync.
const SLOW: u64 = 20_000_000;

/// Longest wait for acknowledgements of sent data if the server has it already.
const SETTLE: Duration = Duration::from_secs(5);

/// What to send.
#[derive(Debug, Clone)]
pub(super) struct Sending {
    /// Name in errors.
    pub(super) name: String,
    /// Path on the server.
    pub(super) path: Vec<u8>,
    /// Size, if known.
    pub(super) size: Option<u64>,
    /// Connections of extended blocks; `None` for a stream.
    pub(super) streams: Option<u32>,
    /// Whether it goes as an object by this end's choice.
    pub(super) as_object: bool,
    /// Ranges that the server has.
    pub(super) kept: Ranges,
    /// Ranges that the server says are synced.
    pub(super) safe: Arc<Mutex<Ranges>>,
    /// The record of them.
    pub(super) marks: Option<UploadJournal>,
    /// Set if it was stopped.
    pub(super) is_stopped: Arc<AtomicBool>,
    /// Set if no data connection could be made.
    pub(super) no_data: Arc<AtomicBool>,
    /// Set if the server refused before it wrote anything, which leaves the session in step.
    pub(super) refused: Arc<AtomicBool>,
    /// Command to send once the file exists, before its first byte.
    pub(super) private_line: Option<Vec<u8>>,
    /// The server's refusal of it.
    pub(super) open: EarlyRefusal,
}

/// An upload in progress. Dropping it cuts it.
#[derive(Debug)]
pub(super) struct Upload {
    work: JoinHandle<Result<(), Error>>,
    stop: Arc<Notify>,
}

impl Upload {
    /// Starts to send all of `flow`. Adds sent bytes to `moved`.
    pub(super) fn begin(remote: Remote, sending: Sending, flow: Arc<dyn Flow>, moved: Arc<AtomicU64>) -> Self {
        let stop = Arc::<Notify>::default();
        let stopped = stop.clone();
        let work = tokio::spawn(async move { run(&remote, &sending, flow, moved, &stopped).await });
        Self { work, stop }
    }

    /// Stops the upload, and lets the server report what it has synced, within `limit`.
    pub(super) async fn stop(mut self, limit: Duration) {
        self.stop.notify_one();
        // Anything unreported is sent again.
        let _ = timeout(limit, &mut self.work).await;
    }

    /// Waits for the end. Cancel safe.
    pub(super) async fn end(&mut self) -> Result<(), Error> {
        match (&mut self.work).await {
            Ok(ended) => ended,
            Err(error) => {
                let reason = format!("the transfer was given up: {error}");
                Err(Error::Store { name: "upload".to_owned(), reason, kind: ErrorKind::Other })
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
    let carrier = || remote.carrier_to_write(sending.size);
    let over_connections = |flow, moved, carrier: Option<Carrier>| async move {
        // A draft that was begun for an object has one connection so far.
        let streams = sending.streams.map(|streams| match carrier {
            Some(_) => remote.streams_to_write(sending.size).unwrap_or(streams),
            None => streams,
        });
        attempt(remote, &Sending { streams, ..sending.clone() }, flow, moved, stop).await?;
        remote.note_carrier(carrier);
        Ok(())
    };
    // Objects are extended blocks.
    let begun = || Carrier { is_object: false, why: "they were begun as streams".into() };
    let chosen = carrier().map(|chosen| if chosen.is_object && sending.streams.is_none() { begun() } else { chosen });
    let Some(chosen) = chosen.clone().filter(|chosen| chosen.is_object) else {
        return over_connections(flow, moved, chosen).await;
    };
    let untouched = Arc::new(Untouched::new(flow.clone()));
    let by_object = Sending { as_object: true, ..sending.clone() };
    let Err(error) = attempt(remote, &by_object, untouched.clone(), moved.clone(), stop).await else {
        remote.note_carrier(Some(chosen));
        return Ok(());
    };
    match remote.instead_of_object(carrier(), &error, &sending.name) {
        Some(instead) if !untouched.was_read() && !sending.is_stopped.load(Ordering::Relaxed) => {
            over_connections(flow, moved, Some(instead)).await
        }
        _ => Err(error),
    }
}

/// Sends all of `flow` by one carrier.
async fn attempt(
    remote: &Remote,
    sending: &Sending,
    flow: Arc<dyn Flow>,
    moved: Arc<AtomicU64>,
    stop: &Notify,
) -> Result<(), Error> {
    let mut session = remote.session_to_write().await?;
    let Some(line) = &sending.private_line else {
        store(remote, &mut session, sending, flow, &moved, stop).await?;
        remote.keep_after(session).await;
        return Ok(());
    };
    let is_stored = if remote.takes_side_command() {
        store(remote, &mut session, sending, flow.clone(), &moved, stop).await?
    } else {
        store(remote, &mut session, &sending.of_nothing(), Arc::new(Nothing), &moved, stop).await?;
        false
    };
    if !is_stored {
        // The file exists, empty.
        let mut reply = session.ask(line).await?;
        if reply.is_transient_failure() {
            reply = session.ask(line).await?;
        }
        sending.open.note(reply);
        let again = Sending { private_line: None, refused: Arc::default(), ..sending.clone() };
        match store(remote, &mut session, &again, flow, &moved, stop).await {
            Err(error) if again.refused.load(Ordering::Relaxed) => {
                remote.writes_once();
                // A leftover is found by the next attempt.
                session.ask([b"DELE ", &sending.path[..]].concat()).await?;
                remote.keep(session);
                let reason = format!(
                    "the server does not allow writing to the empty file that was made first: {}",
                    bare(&error, &sending.name)
                );
                return Err(passing(&sending.name, reason));
            }
            stored => stored?,
        };
    }
    remote.keep_after(session).await;
    Ok(())
}

/// Sends all of `flow` over one control connection. False if nothing was sent and the file exists empty, because
/// nothing could be set before its first byte.
async fn store(
    remote: &Remote,
    session: &mut Session,
    sending: &Sending,
    flow: Arc<dyn Flow>,
    moved: &Arc<AtomicU64>,
    stop: &Notify,
) -> Result<bool, Error> {
    let name = &sending.name;
    let (mode, streams) = sending.streams.map_or((Mode::Stream, 1), |streams| (Mode::Extended, streams));
    let mut plan = remote.plan().over(streams);
    if sending.as_object {
        remote.agree_on_objects(session).await?;
        plan = plan.by_objects();
    }
    // Without an authenticated close, servers recognize a complete upload only by its size.
    let always = remote.options().stack.as_ref().is_some_and(|stack| !stack.tells_ends());
    let size = sending.size.filter(|size| *size >= ALLO_FROM || always);
    let streams = plan.enter_to_send(session, mode, size, &remote.0.ahead, name).await?;
    remote.note_stream_limit(streams, sending.streams);
    let plan = plan.over(streams);
    let channel = plan.passive(session).await?;
    remote.used(streams.saturating_mul(channel.ends() as u32));
    let rest = match mode {
        Mode::Stream => sending.kept.iter().next_back().map(|last| Restart::At(last.end())),
        Mode::Extended => without(sending.kept.clone()),
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
        // Recorded ranges belong to the earlier version of the file.
        marks.remove();
    }
    // Without ALLO, `phoebus serve` waits for proof that the sender of unprotected bytes was not killed. Nobody waits
    // for the reply.
    let is_bare = mode == Mode::Stream && plan.is_plain() && !remote.is_under_tls();
    let announced =
        sending.size.filter(|_| size.is_none() && is_bare && remote.has("XDRAFTS") && sending.kept.is_empty());
    let mut answers = 0;
    if let Some(size) = announced {
        session.send(format!("ALLO {size}").as_bytes()).await?;
        answers = 1;
    }
    let command = [b"STOR ", &sending.path[..]].concat();
    session.is_transferring = true;
    session.send(&command).await?;
    remote.prepare_next(session).await?;
    let mut private_line = sending.private_line.clone();
    let (gate, opened) = watch::channel(Gate::Closed);
    let flow: Arc<dyn Flow> = if private_line.is_none() { flow } else { Arc::new(Gated::new(flow, opened)) };
    let send = channel.send(mode, streams, flow, moved);
    tokio::pin!(send);
    // Some servers reply only after a sync.
    let reply_timeout = remote.options().reply_timeout + Duration::from_secs(sending.size.unwrap_or(0) / SLOW);
    let (mut sent, mut said, begun) = (false, false, Instant::now());
    let (mut limit, mut told) = (Limit::new(reply_timeout, Duration::ZERO), UploadProgress::of(0));
    let mut begins = false;
    let is_refusal = |reply: &Reply| matches!(kind(reply), ErrorKind::Denied | ErrorKind::Exists);
    while !(sent && said) {
        tokio::select! {
            // A refusal must not look like a broken connection.
            biased;
            reply = session.next(), if !said => {
                let reply = reply?;
                limit.heard();
                if answers > 0 {
                    answers -= 1;
                    if matches!(reply.code, 452 | 552) {
                        return Err(refused(name, "make room for", "ALLO", &reply));
                    }
                } else if reply.is_preliminary() {
                    begins = true;
                    sending.mark(&reply);
                    if told.take(&reply) {
                        limit.progressed();
                    }
                    if sent && limit.is_over() {
                        return Err(late(name, &limit));
                    }
                    if let Some(line) = private_line.take() {
                        let said = remote.send_beside(line).await;
                        gate.send_replace(if said.is_some() { Gate::Open } else { Gate::Nothing });
                        said.into_iter().for_each(|reply| sending.open.note(reply));
                    }
                } else if !reply.is_success() {
                    session.in_step = true;
                    sending.refused.fetch_or(!begins && is_refusal(&reply), Ordering::Relaxed);
                    sending.no_data.fetch_or(reply.code == 425, Ordering::Relaxed);
                    return Err(not_stored(remote, sending, &reply));
                } else if sent || timeout(SETTLE, &mut send).await.is_ok_and(|sent| sent.is_ok()) {
                    (sent, said) = (true, true);
                } else {
                    return Err(passing(name, "the server says that all has come before all was sent"));
                }
            }
            done = &mut send, if !sent => match done {
                Ok(_) => {
                    sent = true;
                    // Data in flight or not yet on the server's disk may take as long again.
                    limit = Limit::new(reply_timeout, begun.elapsed());
                    told = UploadProgress::of(sending.size.unwrap_or_else(|| moved.load(Ordering::Relaxed)));
                }
                Err(error) => {
                    sending.no_data.fetch_or(matches!(error, data::Error::Net(_)), Ordering::Relaxed);
                    let is_final = matches!(error, crate::data::Error::NotRelayed(_));
                    let error = super::error::data(name, error);
                    while answers > 0 {
                        answers -= 1;
                        let Ok(reply) = session.last(WORDS).await else { return Err(error) };
                        if matches!(reply.code, 452 | 552) {
                            return Err(refused(name, "make room for", "ALLO", &reply));
                        }
                    }
                    let last = async {
                        loop {
                            let reply = session.within(WORDS).await?;
                            if !reply.is_preliminary() {
                                session.in_step = true;
                                return Ok::<_, Error>(reply);
                            }
                            begins = true;
                        }
                    };
                    return Err(match timeout(WORDS, last).await.unwrap_or_else(|_| Err(silent(name, WORDS))) {
                        // The server has only seen that this end gave up.
                        Ok(_) if is_final => error,
                        Ok(reply) if reply.is_success() || matches!(reply.code, 425 | 426) => {
                            passing(name, format!("{}; the server says {}", bare(&error, name), words(&reply)))
                        }
                        Ok(reply) => {
                            sending.refused.fetch_or(!begins && is_refusal(&reply), Ordering::Relaxed);
                            not_stored(remote, sending, &reply)
                        }
                        Err(_) => error,
                    });
                }
            },
            // Not all servers send a preliminary reply.
            () = sleep_until(begun + remote.side_command_timeout()), if private_line.is_some() => {
                private_line = None;
                remote.note_no_side_command();
                gate.send_replace(Gate::Nothing);
            }
            () = sleep_until(limit.end()), if sent => return Err(late(name, &limit)),
            () = stop.notified() => {
                sending.is_stopped.store(true, Ordering::Relaxed);
                session.is_transferring = false;
                session.send(b"ABOR").await?;
                // The replies to STOR, ABOR and ALLO.
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
    (session.in_step, session.is_transferring) = (true, false);
    remote.0.privacy.has_data.store(true, Ordering::Relaxed);
    let is_nothing = *gate.borrow() == Gate::Nothing;
    Ok(!is_nothing)
}

/// The server refuses to store.
fn not_stored(remote: &Remote, sending: &Sending, reply: &Reply) -> Error {
    if reply.code == 425 {
        remote.forget_idle();
    }
    if !sending.kept.is_empty() && kind(reply) != ErrorKind::NoSpace {
        return afresh(remote, sending, "STOR", reply);
    }
    refused(&sending.name, "write", "STOR", reply)
}

/// The server cannot resume: the next attempt starts again.
fn afresh(remote: &Remote, sending: &Sending, command: &str, reply: &Reply) -> Error {
    match &sending.marks {
        Some(marks) => marks.remove(),
        None => remote.begin_afresh(),
    }
    passing(&sending.name, format!("the server does not resume it: it answers {command} with {}", words(reply)))
}

impl Sending {
    /// Records what a marker reports as synced.
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
                // Without the record, a cut upload starts again.
                let _ = marks.write(&all);
            }
        }
    }
}
