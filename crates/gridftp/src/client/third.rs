//! From one server to another, without coming by here (RFC 959, section 2.3; GFD.20, section 3.4): the one that receives listens,
//! and the one that sends is told where.
//!
//! Most servers of FTP let nobody do so, since others could be attacked so (RFC 2577). It is tried, and where it is refused or
//! nothing comes of it, the file goes by way of this end.

use super::draft::RemoteDraft;
use super::error::{passing, words};
use super::object::RemoteObject;
use super::options::{Grid, Security};
use super::remote::Remote;
use super::retrieve::without;
use super::session::Session;
use crate::data::Mode;
use phoebus_files::Error;
use phoebus_files::range::{Extent, Ranges};
use phoebus_proto::gridftp::marker::{Perf, Restart};
use phoebus_proto::gridftp::reply::Reply;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// How often it is asked how far a file has come, where nobody says so by himself.
const LOOK: Duration = Duration::from_secs(2);

/// How long the other server's words are waited for when one has failed.
const WORDS: Duration = Duration::from_secs(5);

/// How fast a server writes at least, in bytes a second, where it cannot be seen that it does.
const SLOW: u64 = 1_000_000;

/// Has the bytes `missing` of `object` sent to `draft`'s server; false if that is not to be had.
pub(super) async fn fetch(
    draft: &RemoteDraft,
    object: &RemoteObject,
    missing: &Ranges,
    moved: &(dyn Fn(u64) + Send + Sync),
) -> Result<bool, Error> {
    let (from, to) = (&object.remote, draft.remote());
    if !may(from, to) {
        return Ok(false);
    }
    let size = object.meta.size.unwrap_or_default();
    let there = missing.missing(Extent::first(size));
    let mode = if to.streams().is_some() { Mode::Extended } else { Mode::Stream };
    let rest = match mode {
        // A stream leaves out nothing but its beginning.
        Mode::Stream if there.count() > 1 || !there.covers(Extent::first(there.total())) => return Ok(false),
        Mode::Stream => Some(Restart::At(there.total())).filter(|_| !there.is_empty()),
        Mode::Extended | Mode::ExtendedBoth => without(there),
    };
    let (mut source, mut dest) = (from.session().await?, to.session_to_write().await?);
    let begun = begin(draft, object, &mut source, &mut dest, mode, rest, size).await?;
    if !begun {
        return Ok(refused(from, to));
    }
    let mut watch = Watch { remote: to, draft, seen: 0, at: Instant::now(), perf: false, size };
    let ended = run(&mut source, &mut dest, &mut watch, moved).await;
    match ended {
        Ok(()) => {
            from.keep(source);
            to.keep(dest);
            Ok(true)
        }
        // Nothing has gone: it may by way of this end.
        Err(_) if watch.seen == 0 => Ok(refused(from, to)),
        Err(error) => Err(error),
    }
}

/// Notes that these two do not do it, so that not every file is tried.
fn refused(from: &Remote, to: &Remote) -> bool {
    to.not_from(from);
    false
}

/// Whether it is worth trying.
fn may(from: &Remote, to: &Remote) -> bool {
    // Each server would have to be the other's client under TLS, which few can be told.
    let alike = match (&from.options().security, &to.options().security) {
        (Security::None, Security::None) => true,
        (Security::Grid(one), Security::Grid(other)) => {
            let same = (one.data_auth, one.protection) == (other.data_auth, other.protection);
            let who = |grid: &Grid| if grid.data_auth { grid.subject() } else { String::new() };
            same && who(one) == who(other)
        }
        _ => false,
    };
    // Servers do not know the way that this end has been told.
    let here = from.options().way.is_some() || to.options().way.is_some();
    let stack = |remote: &Remote| remote.options().stack.as_ref().map(|stack| stack.text().to_owned());
    !here
        && stack(from) == stack(to)
        && alike
        && (from.streams(), from.options().striped) == (to.streams(), to.options().striped)
        && !to.is_not_from(from)
}

/// Prepares both; false if one of them refuses.
async fn begin(
    draft: &RemoteDraft,
    object: &RemoteObject,
    source: &mut Session,
    dest: &mut Session,
    mode: Mode,
    rest: Option<Restart>,
    size: u64,
) -> Result<bool, Error> {
    let (from, to) = (&object.remote, draft.remote());
    // What is this host to one of them is another to the other.
    if dest.peer.ip().is_loopback() != source.peer.ip().is_loopback() {
        return Ok(false);
    }
    from.plan().enter(source, mode).await?;
    to.plan().enter(dest, mode).await?;
    from.plan().introduce(source, dest).await?;
    if let Some(streams) = from.streams() {
        from.plan().parallel(source, streams).await?;
    }
    // Some have no such command.
    dest.ask(format!("ALLO {size}")).await?;
    let all = to.plan().ask_all(dest).await?;
    if from.plan().aim(source, &all).await.is_err() {
        return Ok(false);
    }
    if let Some(rest) = rest {
        for session in [&mut *source, &mut *dest] {
            if session.ask(format!("REST {rest}")).await?.code != 350 {
                return Ok(false);
            }
        }
    }
    (source.moving, dest.moving) = (true, true);
    dest.send(&[b"STOR ", &draft.path()?[..]].concat()).await?;
    source.send(&[b"RETR ", &from.path(&object.key)?[..]].concat()).await?;
    Ok(true)
}

/// How far the file has come, as far as that is known.
struct Watch<'a> {
    remote: &'a Remote,
    draft: &'a RemoteDraft,
    seen: u64,
    at: Instant,
    /// Whether the server says so by itself.
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

    /// Asks how far the file has come, and says whether nothing has moved for too long.
    async fn look(&mut self, moved: &(dyn Fn(u64) + Send + Sync)) -> bool {
        let mut limit = self.remote.options().stall;
        if !self.perf {
            match timeout(WORDS, self.remote.size(self.draft.part())).await {
                Ok(Ok(Some(there))) => self.saw(there, moved),
                // Nothing is to be seen of it before it is complete.
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
    let name = watch.draft.label();
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut sent, mut came) = (false, false);
    while !(sent && came) {
        tokio::select! {
            reply = source.next(), if !sent => sent = done(&name, "source", reply?, dest, came).await?,
            reply = dest.next(), if !came => {
                let reply = reply?;
                if reply.code == 112 {
                    let lines: Vec<String> = reply.lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect();
                    if let Ok(perf) = Perf::parse(lines.iter().map(String::as_str)) {
                        watch.perf = true;
                        watch.saw(perf.bytes, moved);
                    }
                }
                came = done(&name, "destination", reply, source, sent).await?;
            }
            _ = ticks.tick() => if watch.look(moved).await {
                return Err(Error::Stalled { name, after: watch.remote.options().stall });
            },
        }
    }
    (source.in_step, dest.in_step) = (true, true);
    moved(watch.size);
    Ok(())
}

/// Whether this was a server's last word; if it failed, the other's words are told, too.
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
