//! Directories: for people, as names, or as facts (RFC 959, RFC 3659, section 7).

use super::super::answer::Failure;
use super::super::session::task::{FactNames, Format, LINK, NO_DRAFTS, Transfer};
use super::super::work::{Tell, Worker};
use super::flow::Made;
use bytes::Bytes;
use phoebus_files::block::Block;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Kind, Listing, Meta, Store, Time};
use phoebus_files::{Error, Sort, is_ours};
use phoebus_proto::gridftp::facts::{Facts, Type};
use phoebus_proto::gridftp::line::is_line;
use phoebus_proto::gridftp::time::Stamp;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

/// Beyond this age a listing shows the year and not the time, as `ls` does.
const HALF_A_YEAR: i64 = 15_778_476;

/// How many directories may wait while one is listed.
const MAX_BELOW: usize = 1 << 20;

/// What has a name that cannot be said.
const UNSAYABLE: &str = "OS.phoebus=unsayable";

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Worker {
    pub(super) async fn send_listing(
        &mut self,
        transfer: &Transfer,
        key: &Key,
        format: &Format,
        tell: &Tell,
    ) -> Result<u64, Failure> {
        let channel = self.channel_of(transfer)?;
        let store = self.store()?;
        let mut listed = lines(store, key.clone(), format.clone()).await?;
        Self::begin(&channel, None, tell).await;
        let (sender, flow) = Made::pair();
        let make = tokio::spawn(async move {
            let mut at = 0;
            loop {
                let block = match listed.more().await {
                    Ok(Some(lines)) if lines.is_empty() => continue,
                    Ok(Some(lines)) => {
                        let text: Vec<u8> =
                            lines.into_iter().flat_map(|line| [line, b"\r\n".to_vec()].concat()).collect();
                        Ok(Block::new(at, Bytes::from(text)))
                    }
                    Ok(None) => return,
                    Err(error) => Err(error),
                };
                at += block.as_ref().map_or(0, Block::len);
                if sender.send(block).await.is_err() {
                    return;
                }
            }
        });
        let moved = Arc::<AtomicU64>::default();
        let sent = tokio::select! {
            sent = channel.send(transfer.settings.mode, 1, flow, &moved) => sent.map_err(Failure::from),
            () = tell.stopped() => Err(Failure::Stopped),
        };
        make.abort();
        sent
    }
}

/// A line of a listing, without its end.
pub(in super::super) type Line = Vec<u8>;

/// The lines of a listing, some at a time.
pub(in super::super) struct Listed {
    store: Arc<dyn Store>,
    key: Key,
    format: Format,
    /// Those that come before the entries.
    first: Vec<Line>,
    entries: Option<Box<dyn Listing>>,
    /// Where the entries are, below `key`, with a slash at its end.
    within: Vec<u8>,
    /// Directories below `key` that are still to be listed.
    below: Vec<Vec<u8>>,
    now: Time,
}

/// Begins to list `key`: the entries of a directory, or the file itself.
pub(in super::super) async fn lines(store: Arc<dyn Store>, key: Key, format: Format) -> Result<Listed, Error> {
    let meta = store.stat(&key).await?;
    let now = SystemTime::now().into();
    let (first, within, below) = (Vec::new(), Vec::new(), Vec::new());
    let mut listed = Listed { store, key, format, first, entries: None, within, below, now };
    if meta.kind == Kind::Dir {
        let all = matches!(listed.format, Format::Drafts { .. });
        let entries = if all { listed.store.list_all(&listed.key) } else { listed.store.list(&listed.key) };
        listed.entries = Some(entries.await?);
        if let Format::Facts { names, read_only, .. } = listed.format {
            let mut own = facts(&meta, read_only);
            own.kind = Some(Type::Current);
            names.keep(&mut own);
            listed.first.extend(own.encode(b"."));
        }
    } else if matches!(listed.format, Format::Facts { .. } | Format::Drafts { .. }) {
        let name = format!("/{}", listed.key);
        return Err(Error::Kind { name, is: meta.kind.described(), expected: "a directory" });
    } else {
        let line = match &listed.format {
            // As it was asked for, which is what comes before entries, with a slash.
            Format::Names(before) => before.strip_suffix(b"/").map(<[u8]>::to_vec).filter(|name| is_line(name)),
            _ => listed.line(listed.key.name(), &meta),
        };
        listed.first.extend(line);
    }
    Ok(listed)
}

impl Listed {
    /// More lines, and none at the end.
    pub(in super::super) async fn more(&mut self) -> Result<Option<Vec<Line>>, Error> {
        let mut lines = std::mem::take(&mut self.first);
        if self.entries.is_none()
            && let Some(within) = self.below.pop()
        {
            self.entries = match self.store.list(&below(&self.key, &within)?).await {
                Ok(entries) => Some(entries),
                // One that was removed meanwhile has nothing below it; of any other that would be a lie.
                Err(error) if error.sort() == Sort::NotFound => None,
                Err(error) => return Err(error),
            };
            self.within = [&within[..], b"/"].concat();
            return Ok(Some(lines));
        }
        let here = below(&self.key, &self.within)?;
        if let Some(listing) = &mut self.entries {
            let entries = listing.more().await?;
            if entries.is_empty() {
                self.entries = None;
            }
            let only_drafts = matches!(self.format, Format::Drafts { .. });
            for entry in entries.into_iter().filter(|entry| !only_drafts || is_ours(&entry.name)) {
                let meta = followed(&self.store, &here, &entry).await;
                let name = [&self.within[..], &entry.name].concat();
                // Links are not followed down: they may lead up.
                if matches!(self.format, Format::Facts { deep: true, .. }) && entry.meta.kind == Kind::Dir {
                    if self.below.len() >= MAX_BELOW {
                        let what = "the number of directories that are still to be listed";
                        return Err(Error::Limit { name: format!("/{}", self.key), what, limit: MAX_BELOW as u64 });
                    }
                    self.below.push(name.clone());
                }
                lines.extend(self.line(&name, &meta));
            }
        }
        let ended = lines.is_empty() && self.entries.is_none() && self.below.is_empty();
        Ok(if ended { None } else { Some(lines) })
    }

    /// The line of one entry. One whose name has the end of a line in it nobody could ask for: then none, but among facts, which
    /// programs read, it is told that there is something, so that no copy of a directory is taken for all of it.
    fn line(&self, name: &[u8], meta: &Meta) -> Option<Line> {
        match &self.format {
            Format::Facts { names, .. } if !is_line(name) => {
                let mut facts = Facts { kind: Some(Type::Other(UNSAYABLE.to_owned())), ..Facts::default() };
                names.keep(&mut facts);
                facts.encode(&name.iter().map(|b| if is_line(&[*b]) { *b } else { b'?' }).collect::<Vec<_>>())
            }
            _ if !is_line(name) => None,
            Format::Long => Some(long(name, meta, self.now)),
            Format::Names(before) => Some([before, name].concat()),
            Format::Facts { names, read_only, .. } | Format::Drafts { names, read_only } => {
                let mut facts = facts(meta, *read_only);
                names.keep(&mut facts);
                facts.encode(name)
            }
        }
    }
}

/// The directory `within` beneath `key`.
fn below(key: &Key, within: &[u8]) -> Result<Key, Error> {
    let joined = Key::parse(within).and_then(|within| key.beneath(&within));
    let error = |error| Error::Io { name: format!("/{key}"), act: "list", source: std::io::Error::other(error) };
    joined.map_err(error)
}

/// What an entry is, or the file that it leads to. A link to a directory is told as a link: who removes or moves a tree would otherwise
/// take what is elsewhere for a part of it.
async fn followed(store: &Arc<dyn Store>, dir: &Key, entry: &Entry) -> Meta {
    if entry.meta.kind != Kind::Link {
        return entry.meta;
    }
    match dir.join(&entry.name) {
        Ok(key) => store.stat(&key).await.ok().filter(|meta| meta.kind != Kind::Dir).unwrap_or(entry.meta),
        Err(_) => entry.meta,
    }
}

/// What MLST alone tells of a name.
pub(in super::super) struct Alone {
    /// Whether it is a directory from which drafts are not taken elsewhere.
    pub refuses_drafts: bool,
    /// Whether it is a symbolic link.
    pub is_link: bool,
}

/// The facts of one file, for MLST.
pub(in super::super) fn facts_line(
    shown: &[u8],
    meta: &Meta,
    alone: &Alone,
    names: FactNames,
    read_only: bool,
) -> Option<Line> {
    let mut facts = facts(meta, read_only);
    facts.others.extend(alone.refuses_drafts.then(|| (NO_DRAFTS.to_owned(), "no".to_owned())));
    facts.others.extend(alone.is_link.then(|| (LINK.to_owned(), "yes".to_owned())));
    names.keep(&mut facts);
    facts.encode(shown)
}

fn facts(meta: &Meta, read_only: bool) -> Facts {
    let (kind, perm) = match (meta.kind, read_only) {
        (Kind::Dir, true) => (Type::Dir, "el"),
        (Kind::Dir, false) => (Type::Dir, "elcmpdf"),
        (Kind::File, true) => (Type::File, "r"),
        (Kind::File, false) => (Type::File, "rawdf"),
        (Kind::Link, _) => (Type::Link(None), if read_only { "" } else { "df" }),
        (Kind::Device, _) => (Type::Other("OS.unix=chr".to_owned()), "r"),
        (Kind::Other, _) => (Type::Other("OS.unix=other".to_owned()), if read_only { "" } else { "df" }),
    };
    Facts {
        kind: Some(kind),
        size: meta.size,
        modify: meta.modified.map(|time| Stamp { seconds: time.seconds, nanos: 0 }),
        perm: Some(perm.to_owned()),
        unique: None,
        mode: meta.mode,
        others: Vec::new(),
    }
}

/// As `ls -l` has it; whose a file is nobody needs to know.
fn long(name: &[u8], meta: &Meta, now: Time) -> Line {
    let kind = match meta.kind {
        Kind::File => '-',
        Kind::Dir => 'd',
        Kind::Link => 'l',
        Kind::Device => 'c',
        Kind::Other => 'p',
    };
    let mode = meta.mode.unwrap_or(0);
    let letters: String =
        (0..9).rev().zip("rwxrwxrwx".chars()).map(|(bit, c)| if mode >> bit & 1 == 1 { c } else { '-' }).collect();
    let modified = meta.modified.unwrap_or(Time { seconds: 0, nanos: 0 });
    let stamp = Stamp { seconds: modified.seconds, nanos: 0 }.to_string();
    let month = stamp[4..6].parse::<usize>().ok().and_then(|month| MONTHS.get(month.wrapping_sub(1))).unwrap_or(&"Jan");
    let recent = (now.seconds - HALF_A_YEAR..=now.seconds + 3600).contains(&modified.seconds);
    let when = if recent { format!("{}:{}", &stamp[8..10], &stamp[10..12]) } else { format!(" {}", &stamp[..4]) };
    let before = format!(
        "{kind}{letters}   1 ftp      ftp      {:>12} {month} {} {when} ",
        meta.size.unwrap_or(0),
        &stamp[6..8]
    );
    [before.as_bytes(), name].concat()
}
