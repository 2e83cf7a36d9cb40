//! Listings of directories: for people, as names, or as facts (RFC 959; RFC 3659, section 7).

use super::super::failure::Failure;
use super::super::session::task::{FactNames, Format, LINK, NO_DRAFTS, Transfer};
use super::super::worker::{TaskClient, Worker};
use super::flow::ChannelFlow;
use bytes::Bytes;
use phoebus_files::block::Block;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Kind, Listing, Meta, Store, Time};
use phoebus_files::{Error, ErrorKind, is_ours};
use phoebus_proto::gridftp::facts::{Facts, Type};
use phoebus_proto::gridftp::line::is_line;
use phoebus_proto::gridftp::time::Stamp;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

/// Beyond this age a listing shows the year and not the time, as `ls` does.
const HALF_A_YEAR: i64 = 15_778_476;

/// Most directories that wait while one is listed.
const MAX_BELOW: usize = 1 << 20;

/// Shown in place of a name that cannot be transmitted.
const UNSAYABLE: &str = "OS.phoebus=unsayable";

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Worker {
    pub(super) async fn send_listing(
        &mut self,
        transfer: &Transfer,
        key: &Key,
        format: &Format,
        client: &TaskClient,
    ) -> Result<u64, Failure> {
        let channel = self.channel_of(transfer)?;
        let store = self.store()?;
        let mut listed = lines(store, key.clone(), format.clone()).await?;
        Self::begin(&channel, None, client).await;
        let (sender, flow) = ChannelFlow::pair();
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
            () = client.stopped() => Err(Failure::Stopped),
        };
        make.abort();
        sent
    }
}

/// A line of a listing without its end.
pub(in super::super) type Line = Vec<u8>;

/// A listing in progress, read in batches.
pub(in super::super) struct ListingReader {
    store: Arc<dyn Store>,
    key: Key,
    format: Format,
    /// Lines before the entries.
    first: Vec<Line>,
    entries: Option<Box<dyn Listing>>,
    /// The path of the entries below `key`, with a final slash.
    within: Vec<u8>,
    /// Directories below `key` that are still to list.
    below: Vec<Vec<u8>>,
    now: Time,
}

/// Starts to list `key`: the entries of a directory, or the file itself.
pub(in super::super) async fn lines(store: Arc<dyn Store>, key: Key, format: Format) -> Result<ListingReader, Error> {
    let meta = store.stat(&key).await?;
    let now = SystemTime::now().into();
    let (first, within, below) = (Vec::new(), Vec::new(), Vec::new());
    let mut listed = ListingReader { store, key, format, first, entries: None, within, below, now };
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
            // The path as the client wrote it, with a final slash, precedes the entries.
            Format::Names(before) => before.strip_suffix(b"/").map(<[u8]>::to_vec).filter(|name| is_line(name)),
            _ => listed.line(listed.key.name(), &meta),
        };
        listed.first.extend(line);
    }
    Ok(listed)
}

impl ListingReader {
    /// The next lines, or `None` at the end.
    pub(in super::super) async fn more(&mut self) -> Result<Option<Vec<Line>>, Error> {
        let mut lines = std::mem::take(&mut self.first);
        if self.entries.is_none()
            && let Some(within) = self.below.pop()
        {
            self.entries = match self.store.list(&below(&self.key, &within)?).await {
                Ok(entries) => Some(entries),
                // A directory that was removed meanwhile is skipped. Any other error ends the listing, which would be
                // incomplete.
                Err(error) if error.kind() == ErrorKind::NotFound => None,
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
                // Links are not followed, since they may lead up.
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

    /// The line of one entry. A name with a line end cannot be requested: it is left out, except among facts, which
    /// programs read. There a placeholder shows that the listing is incomplete.
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

/// Joins the directory `within` to `key`.
fn below(key: &Key, within: &[u8]) -> Result<Key, Error> {
    let joined = Key::parse(within).and_then(|within| key.beneath(&within));
    let error = |error| Error::Io { name: format!("/{key}"), act: "list", source: std::io::Error::other(error) };
    joined.map_err(error)
}

/// The metadata of an entry; for a link to a file, those of the file. A link to a directory stays a link: a client that
/// removes or moves a tree would otherwise treat its target as a part of the tree.
async fn followed(store: &Arc<dyn Store>, dir: &Key, entry: &Entry) -> Meta {
    if entry.meta.kind != Kind::Link {
        return entry.meta;
    }
    match dir.join(&entry.name) {
        Ok(key) => store.stat(&key).await.ok().filter(|meta| meta.kind != Kind::Dir).unwrap_or(entry.meta),
        Err(_) => entry.meta,
    }
}

/// Facts that only MLST reports.
pub(in super::super) struct Alone {
    /// The name is a directory from which drafts cannot be moved to another.
    pub refuses_drafts: bool,
    /// The name is a symbolic link.
    pub is_link: bool,
}

/// The line of one file, for MLST.
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

/// The form of `ls -l`, without the real owner.
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
