//! Transfers between two servers (RFC 959, section 2.3; GFD.20, section 3.4): the receiver listens, and the sender is
//! told where.
//!
//! Most FTP servers forbid this, because it can attack other hosts (RFC 2577). It is tried; if it is refused or fails,
//! the file goes through this end.

use super::draft::RemoteDraft;
use super::error::{bare, passing, words};
use super::object::RemoteObject;
use super::options::{Grid, Security};
use super::remote::Remote;
use super::retrieve::without;
use super::session::Session;
use crate::data::Mode;
use phoebus_files::Error;
use phoebus_files::range::{Extent, Ranges};
use phoebus_files::store::Store;
use phoebus_proto::gridftp::marker::{Perf, Restart};
use phoebus_proto::gridftp::reply::Reply;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// Interval of queries for progress, if the server does not report it.
const LOOK: Duration = Duration::from_secs(2);

/// Longest wait for the other server's reply after one has failed.
const WORDS: Duration = Duration::from_secs(5);

/// Slowest rate, in bytes per second, at which a server is expected to write if progress cannot be seen.
const SLOW: u64 = 1_000_000;

/// Has the bytes `missing` of `object` sent to `draft`'s server. False if that is impossible, and then the reason is
/// recorded.
pub(super) async fn fetch(
    draft: &RemoteDraft,
    object: &RemoteObject,
    missing: &Ranges,
    moved: &(dyn Fn(u64) + Send + Sync),
) -> Result<bool, Error> {
    let (from, to) = (&object.remote, draft.remote());
    if to.is_not_from(from) {
        return Ok(false);
    }
    if let Some(why) = obstacle(from, to) {
        to.not_from(from, why);
        return Ok(false);
    }
    let size = object.meta.size.unwrap_or_default();
    let there = missing.missing(Extent::first(size));
    let mode = if to.streams().is_some() { Mode::Extended } else { Mode::Stream };
    let rest = match mode {
        // A stream can only omit its start.
        Mode::Stream if there.count() > 1 || !there.covers(Extent::first(there.total())) => {
            to.by_way("what is missing of a file is not its end alone");
            return Ok(false);
        }
        Mode::Stream => Some(Restart::At(there.total())).filter(|_| !there.is_empty()),
        Mode::Extended => without(there),
    };
    // A command at the preliminary reply may come after the first bytes.
    let was_made = draft.is_made.swap(draft.part() != draft.key() || draft.is_new(), Ordering::Relaxed);
    let is_made = draft.be_private_for_another().await?;
    let fetched = carry(draft, object, (mode, rest), size, moved).await;
    if matches!(fetched, Ok(false)) {
        // Some servers refuse to overwrite it.
        let stays = is_made && to.remove(draft.part()).await.is_err();
        draft.is_made.store(was_made || stays, Ordering::Relaxed);
    }
    fetched
}

/// The same in one mode, beyond what is there. False if nothing was sent.
async fn carry(
    draft: &RemoteDraft,
    object: &RemoteObject,
    (mode, rest): (Mode, Option<Restart>),
    size: u64,
    moved: &(dyn Fn(u64) + Send + Sync),
) -> Result<bool, Error> {
    let (from, to) = (&object.remote, draft.remote());
    let mut source = from.session().await?;
    let mut dest = to.session_to_write_from(source.key_exchange.as_ref()).await?;
    if let Some(why) = begin(draft, object, &mut source, &mut dest, mode, rest, size).await? {
        to.not_from(from, &why);
        return Ok(false);
    }
    let mut watch = Watch { remote: to, draft, seen: 0, at: Instant::now(), perf: false, size };
    let ended = run(&mut source, &mut dest, &mut watch, moved).await;
    match ended {
        Ok(()) => {
            from.keep(source);
            to.keep(dest);
            Ok(true)
        }
        // Nothing was sent, so the file can go through this end.
        Err(error) if watch.seen == 0 => {
            to.not_from(from, &bare(&error, &draft.label()));
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Why an attempt is pointless, if it is.
fn obstacle(from: &Remote, to: &Remote) -> Option<&'static str> {
    let beyond = |remote: &Remote| remote.options().way.as_ref().is_some_and(|way| way.carries_data());
    if beyond(from) || beyond(to) {
        return Some("servers do not know the gateways that this end was told");
    }
    if from.why_inside().or(to.why_inside()).is_some() {
        return Some("the data of one of them goes inside SSH");
    }
    let who = |grid: &Grid| if grid.data_auth { grid.subject() } else { String::new() };
    let alike = match (&from.options().security, &to.options().security) {
        (Security::None, Security::None) => true,
        (Security::None, Security::Grid(grid)) | (Security::Grid(grid), Security::None) => !grid.data_auth,
        (Security::Grid(one), Security::Grid(other)) => {
            (one.data_auth, one.protection, who(one)) == (other.data_auth, other.protection, who(other))
        }
        (Security::Tls { .. }, _) | (_, Security::Tls { .. }) => {
            return Some("under TLS each server would have to be the other's client, which few can be told");
        }
    };
    if !alike {
        return Some("their data connections do not prove the same, or are not protected alike");
    }
    if (from.streams(), from.options().striped) != (to.streams(), to.options().striped) {
        return Some("data goes to one of them in another way than to the other");
    }
    None
}

/// Prepares both servers. Returns the refusal, if one refuses.
async fn begin(
    draft: &RemoteDraft,
    object: &RemoteObject,
    source: &mut Session,
    dest: &mut Session,
    mode: Mode,
    rest: Option<Restart>,
    size: u64,
) -> Result<Option<String>, Error> {
    let (from, to) = (&object.remote, draft.remote());
    if dest.peer.ip().is_loopback() != source.peer.ip().is_loopback() {
        return Ok(Some("what is this host to one of them is another to the other".to_owned()));
    }
    from.plan().enter_between(source, mode).await?;
    to.plan().enter_between(dest, mode).await?;
    // If one refuses protection, the other must not send in clear.
    let stack = |remote: &Remote, session: &Session| {
        let stack = remote.options().stack.as_ref().filter(|_| !session.refuses_stack);
        stack.map(|stack| stack.text().to_owned())
    };
    match (stack(from, source), stack(to, dest)) {
        (Some(one), Some(other)) if one == other => from.plan().introduce(source, dest).await?,
        (None, None) => {}
        (one, other) => {
            let words = |stack: Option<String>| stack.unwrap_or_else(|| "nothing but TCP".to_owned());
            let (one, other) = (words(one), words(other));
            return Ok(Some(format!("the data of one of them goes by {one}, and that of the other by {other}")));
        }
    }
    if let Some(streams) = from.streams() {
        from.plan().parallel(source, streams).await?;
        to.plan().parallel(dest, streams).await?;
        to.used(streams);
    }
    // Some servers lack the command.
    dest.ask(format!("ALLO {size}")).await?;
    let all = to.plan().ask_all(dest).await?;
    if let Err(error) = from.plan().aim(source, &all).await {
        // A broken connection is no refusal.
        return if source.in_step { Ok(Some(error.to_string())) } else { Err(error) };
    }
    if let Some(rest) = rest {
        for session in [&mut *source, &mut *dest] {
            let reply = session.ask(format!("REST {rest}")).await?;
            if reply.code != 350 {
                let (name, words) = (&session.name, words(&reply));
                return Ok(Some(format!("{name} answers REST with {words}")));
            }
        }
    }
    (source.is_transferring, dest.is_transferring) = (true, true);
    dest.send(&[b"STOR ", &draft.path()?[..]].concat()).await?;
    source.send(&[b"RETR ", &from.path(&object.key)?[..]].concat()).await?;
    Ok(None)
}

/// Progress of the file, as far as known.
struct Watch<'a> {
    remote: &'a Remote,
    draft: &'a RemoteDraft,
    seen: u64,
    at: Instant,
    /// Whether the server reports it.
    perf: bool,
    size: u64,
}

impl Watch<'_> {
    fn saw(&mut self, bytes: u64, moved: &(dyn Fn(u64) + Send + Sync)) {
        if bytes > self.seen {
            (self.seen, self.at) = (bytes, Instant::now());
            moved(bytes);
        }
    }

    /// Asks for progress, and returns whether nothing has moved for too long.
    async fn look(&mut self, moved: &(dyn Fn(u64) + Send + Sync)) -> bool {
        let mut limit = self.remote.options().stall_timeout;
        if !self.perf {
            match timeout(WORDS, self.remote.size(self.draft.part())).await {
                Ok(Ok(Some(there))) => self.saw(there.min(self.size), moved),
                // Nothing is visible before the file is complete.
                _ => limit += Duration::from_secs(self.size / SLOW),
            }
        }
        self.at.elapsed() >= limit
    }
}

async fn run(
    source: &mut Session,
    dest: &mut Session,
    watch: &mut Watch<'_>,
    moved: &(dyn Fn(u64) + Send + Sync),
) -> Result<(), Error> {
    let (name, sending) = (watch.draft.label(), watch.draft.sending()?);
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut sent, mut came) = (false, false);
    while !(sent && came) {
        tokio::select! {
            reply = source.next(), if !sent => sent = done(&name, "source", reply?, dest, came).await?,
            reply = dest.next(), if !came => {
                let reply = reply?;
                sending.mark(&reply);
                if reply.code == 112 {
                    let lines: Vec<String> = reply.lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
                    if let Ok(perf) = Perf::parse(lines.iter().map(String::as_str)) {
                        watch.perf = true;
                        watch.saw(perf.bytes.min(watch.size), moved);
                    }
                }
                came = done(&name, "destination", reply, source, sent).await?;
            }
            _ = ticks.tick() => if watch.look(moved).await {
                return Err(Error::Stalled { name, after: watch.remote.options().stall_timeout });
            },
        }
    }
    (source.in_step, dest.in_step) = (true, true);
    moved(watch.size);
    Ok(())
}

/// Whether this was a server's final reply. After a failure, the other's reply is reported too.
async fn done(name: &str, which: &str, reply: Reply, other: &mut Session, other_done: bool) -> Result<bool, Error> {
    if reply.is_preliminary() || reply.is_success() {
        return Ok(reply.is_success());
    }
    let mut reason = format!("the {which}'s server says {}", words(&reply));
    if !other_done && let Ok(Ok(reply)) = timeout(WORDS, other.last(WORDS)).await {
        reason += &format!(", and the other one {}", words(&reply));
    }
    Err(passing(name, reason))
}
