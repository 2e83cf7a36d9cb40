//! Listings: MLSD (RFC 3659, section 7), or LIST in the form of `ls -l`.

use super::error::{refused, senseless};
use super::known::Lists;
use super::ls_lines;
use super::remote::Remote;
use super::retrieve::Retrieval;
use super::session::Session;
use phoebus_files::key::{Key, MAX_NAME};
use phoebus_files::store::{BytesFlow, Entry, Fallible, Kind, Listing, Meta, Time};
use phoebus_files::{Error, ErrorKind, is_ours};
use phoebus_proto::gridftp::facts::{Facts, Type};
use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

/// Entries in a batch.
const PAGE: usize = 1000;

/// Most entries that are held back until it is known what was listed.
const HELD: usize = 100_000;

/// Most names of one directory.
const MOST: usize = 1_000_000;

/// Most bytes of the names of one directory: a million names of usual length.
const MOST_BYTES: usize = 64 << 20;

/// Longest line, in bytes.
const MAX_LINE: usize = 64 << 10;

/// The command of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// MLSD.
    Facts,
    /// LIST -a.
    All,
    /// LIST.
    Plain,
}

/// Number and bytes of the names of a directory.
#[derive(Debug, Default)]
pub(super) struct KeptNames {
    number: usize,
    bytes: usize,
}

impl KeptNames {
    /// Counts a name of the directory that errors call `dir`.
    ///
    /// # Errors
    /// [`Error::Limit`]: too many names, or too many bytes.
    pub(super) fn count(&mut self, name: &[u8], dir: impl FnOnce() -> String) -> Result<(), Error> {
        self.number += 1;
        self.bytes += name.len();
        let (what, limit) = match self {
            Self { number, .. } if *number > MOST => ("the number of its names", MOST),
            Self { bytes, .. } if *bytes > MOST_BYTES => ("the length of all its names in bytes", MOST_BYTES),
            _ => return Ok(()),
        };
        Err(Error::Limit { name: dir(), what, limit: limit as u64 })
    }
}

/// Whether a local file can have a name of this length.
pub(super) fn is_name(name: &[u8]) -> bool {
    name.len() <= MAX_NAME
}

/// A listing in progress.
#[derive(Debug)]
pub(super) struct RemoteListing {
    remote: Remote,
    dir: Key,
    flow: BytesFlow,
    form: Form,
    /// Whether drafts are included.
    drafts: bool,
    /// Whether only names are needed, so that no times are requested.
    undated: bool,
    /// Whether the listing is known to be that of the directory.
    sure: bool,
    /// Whether the listing had an entry for the directory itself.
    itself: bool,
    /// The permissions of the directory itself, if listed.
    own_mode: Option<u32>,
    /// Whether invalid lines are skipped.
    lenient: bool,
    /// Listed names beyond ASCII.
    odd: HashSet<Vec<u8>>,
    odd_kept: KeptNames,
    /// Entries to return first.
    first: Vec<Entry>,
    /// Received bytes of an incomplete line.
    rest: Vec<u8>,
    ended: bool,
    /// The first invalid line. It is reported after all entries: a name with a line end becomes two lines.
    wrong: Option<Error>,
}

impl RemoteListing {
    /// Lists with drafts and their journals.
    pub(super) async fn with_drafts(remote: Remote, dir: Key) -> Result<Self, Error> {
        // `phoebus serve` lists drafts only on request.
        let drafts = if remote.has("XDRAFTS") { drafts_in(&remote, &dir).await? } else { Vec::new() };
        let mut listing = Self::begin(remote, dir).await?;
        (listing.drafts, listing.first) = (true, drafts);
        Ok(listing)
    }

    pub(super) async fn begin(remote: Remote, dir: Key) -> Result<Self, Error> {
        let form = match (remote.has("MLST"), remote.lists()) {
            (true, _) => Form::Facts,
            (_, Some(Lists::Plain)) => Form::Plain,
            _ => Form::All,
        };
        Self::begin_as(remote, dir, form).await
    }

    /// Lists by LIST, including drafts. Skips invalid lines.
    pub(super) async fn by_list(remote: Remote, dir: Key) -> Result<Self, Error> {
        let form = if remote.lists() == Some(Lists::Plain) { Form::Plain } else { Form::All };
        let listing = Self::begin_as(remote, dir, form).await?;
        Ok(Self { drafts: true, undated: true, lenient: true, ..listing })
    }

    async fn begin_as(remote: Remote, dir: Key, form: Form) -> Result<Self, Error> {
        let (name, path) = (remote.label(&dir), remote.path(&dir)?);
        let mut session = remote.beside_in_time().await?;
        if form == Form::Facts {
            session.leave_dir().await?;
        } else {
            // Servers may take a path after LIST for a pattern or an option, and many list nothing for a missing one.
            let reply = session.ask([b"CWD ", &path[..]].concat()).await?;
            if !reply.is_success() {
                remote.keep(session);
                return Err(refused(&name, "list", "CWD", &reply));
            }
        }
        let command = match form {
            Form::Facts => [b"MLSD ", &path[..]].concat(),
            Form::All => b"LIST -a".to_vec(),
            Form::Plain => b"LIST".to_vec(),
        };
        let flow = BytesFlow::over(Arc::new(Retrieval::of_listing(remote.clone(), session, name, command)));
        let sure = form != Form::All || remote.lists() == Some(Lists::All);
        let (drafts, undated, itself, own_mode, lenient, odd, odd_kept, first, rest, ended, wrong) = Default::default();
        Ok(Self {
            remote,
            dir,
            flow,
            form,
            drafts,
            undated,
            sure,
            itself,
            own_mode,
            lenient,
            odd,
            odd_kept,
            first,
            rest,
            ended,
            wrong,
        })
    }

    /// The permissions of the directory itself, if received.
    pub(super) fn own_mode(&self) -> Option<u32> {
        self.own_mode
    }

    /// More entries, once the listing is known to be that of the directory.
    pub(super) async fn page(&mut self) -> Result<Vec<Entry>, Error> {
        if self.sure {
            return self.some().await;
        }
        let mut held = Vec::new();
        loop {
            match self.some().await {
                Ok(page) if page.is_empty() && !self.itself => break,
                Ok(page) => held.extend(page),
                Err(error) if error.kind() == ErrorKind::Passing => return Err(error),
                Err(error) if self.itself => return Err(error),
                Err(_) => {
                    held.clear();
                    break;
                }
            }
            if self.itself || held.len() > HELD {
                self.sure = true;
                if self.itself {
                    self.remote.note_lists(Lists::Itself);
                }
                return Ok(held);
            }
        }
        self.sure = true;
        self.plainly(held).await
    }

    /// Combines LIST with `held`, the result of `LIST -a` without an entry for the directory itself: `held` counts if
    /// it has everything in LIST.
    async fn plainly(&mut self, held: Vec<Entry>) -> Result<Vec<Entry>, Error> {
        let mut plain = Self::begin_as(self.remote.clone(), self.dir.clone(), Form::Plain).await?;
        (plain.drafts, plain.undated, plain.lenient) = (self.drafts, self.undated, self.lenient);
        let mut listed = Vec::new();
        loop {
            let page = plain.some().await?;
            if page.is_empty() {
                break;
            }
            listed.extend(page);
            if listed.len() > held.len() {
                // LIST has entries that `LIST -a` lacks. The rest is returned as it comes.
                self.remote.note_lists(Lists::Plain);
                *self = plain;
                return Ok(listed);
            }
        }
        let names: HashSet<&[u8]> = held.iter().map(|entry| &entry.name[..]).collect();
        let all = listed.iter().all(|entry| names.contains(&entry.name[..]));
        self.ended = true;
        match all {
            true if !listed.is_empty() => self.remote.note_lists(Lists::All),
            true if held.is_empty() => return self.empty().await,
            true => {}
            false => self.remote.note_lists(Lists::Plain),
        }
        Ok(if all { held } else { listed })
    }

    /// Handles an empty listing. Some servers send one for an unreadable directory. If other directories list
    /// themselves, this one was not read.
    async fn empty(&self) -> Result<Vec<Entry>, Error> {
        if self.remote.lists().is_none() && !self.dir.is_root() {
            let mut root = Self::begin_as(self.remote.clone(), Key::ROOT, Form::All).await?;
            // An unlistable directory says nothing about the server's listings.
            while !root.itself && root.some().await.is_ok_and(|page| !page.is_empty()) {}
            if root.itself {
                self.remote.note_lists(Lists::Itself);
            }
        }
        if self.remote.lists() != Some(Lists::Itself) {
            return Ok(Vec::new());
        }
        let source = std::io::Error::other(
            "the server lists nothing, and not even the directory itself (perhaps nobody may read it)",
        );
        Err(Error::Denied { name: self.remote.label(&self.dir), act: "list", source })
    }

    /// More entries, as received.
    async fn some(&mut self) -> Result<Vec<Entry>, Error> {
        let mut page = Vec::new();
        while page.is_empty() && !self.ended {
            match self.flow.next().await? {
                None => {
                    self.ended = true;
                    let last = std::mem::take(&mut self.rest);
                    page.extend(self.entry_or_wrong(&last));
                }
                Some(block) => {
                    self.rest.extend_from_slice(&block.body);
                    let mut from = 0;
                    let bytes = std::mem::take(&mut self.rest);
                    while let Some(end) = bytes[from..].iter().position(|&b| b == b'\n') {
                        page.extend(self.entry_or_wrong(&bytes[from..from + end]));
                        from += end + 1;
                    }
                    self.rest = bytes[from..].to_vec();
                    if self.rest.len() > MAX_LINE {
                        let name = self.remote.label(&self.dir);
                        return Err(Error::Limit { name, what: "a line of its listing", limit: MAX_LINE as u64 });
                    }
                }
            }
        }
        if self.form != Form::Facts && !self.undated {
            self.date(&mut page).await?;
        }
        match self.wrong.take_if(|_| page.is_empty()) {
            Some(error) => Err(error),
            None => Ok(page),
        }
    }

    fn entry_or_wrong(&mut self, line: &[u8]) -> Option<Entry> {
        self.entry(line).unwrap_or_else(|error| {
            self.wrong.get_or_insert(error);
            None
        })
    }

    /// Parses a line. `None` for entries that are not shown.
    fn entry(&mut self, line: &[u8]) -> Result<Option<Entry>, Error> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return Ok(None);
        }
        let mut entry = if self.form == Form::Facts {
            let parsed = Facts::parse(line);
            let (facts, name) = parsed.map_err(|error| senseless(&self.remote.label(&self.dir), error.to_string()))?;
            match facts.kind {
                Some(Type::Current | Type::Parent) => None,
                // Some servers list full paths.
                _ => Some(Entry { name: last(&name).to_vec(), meta: meta_of(&facts) }),
            }
        } else if self.lenient {
            ls_lines::parse(line).unwrap_or_default()
        } else {
            let text: String = String::from_utf8_lossy(line).chars().take(100).collect();
            ls_lines::parse(line).map_err(|()| {
                let reason = format!("the server lists \"{}\", which is not as ls -l has it", text.escape_debug());
                Error::Store { name: self.remote.label(&self.dir), reason, kind: ErrorKind::Request }
            })?
        };
        if let Some(entry) = &mut entry {
            if entry.name == b"." {
                (self.itself, self.own_mode) = (true, entry.meta.mode);
            }
            if is_name(&entry.name) && !entry.name.is_ascii() {
                self.odd_kept.count(&entry.name, || self.remote.label(&self.dir))?;
                if !self.odd.insert(entry.name.clone()) {
                    let shown = String::from_utf8_lossy(&entry.name).escape_debug().to_string();
                    let reason = format!(
                        "the server calls more than one file \"{shown}\", so that none of them can be asked for"
                    );
                    return Err(senseless(&self.remote.label(&self.dir), reason));
                }
            }
            // A prefix shows that a line is too long. The whole line is not kept.
            entry.name.truncate(MAX_NAME + 1);
        }
        Ok(entry.filter(|entry| (self.drafts || !is_ours(&entry.name)) && !matches!(&entry.name[..], b"." | b"..")))
    }

    /// Requests the modification times of files, which LIST lacks.
    async fn date(&self, page: &mut [Entry]) -> Result<(), Error> {
        for some in page.chunks_mut(PAGE) {
            let files = some.iter_mut().filter(|entry| entry.meta.kind == Kind::File);
            // Names that cannot be asked for are reported elsewhere.
            let (files, keys): (Vec<&mut Entry>, Vec<Key>) = files
                .filter_map(|entry| {
                    let key = self.dir.join(&entry.name).ok().filter(|key| self.remote.path(key).is_ok())?;
                    Some((entry, key))
                })
                .unzip();
            if keys.is_empty() {
                continue;
            }
            let times = self.remote.all_modified(&keys).await?;
            files.into_iter().zip(times).for_each(|(entry, time)| entry.meta.modified = time);
        }
        Ok(())
    }
}

impl Remote {
    /// The names in `dir`, unless the server keeps names unaltered, as `phoebus serve` does.
    pub(super) async fn names_in(&self, dir: &Key) -> Result<Option<HashSet<Vec<u8>>>, Error> {
        if self.has("XDRAFTS") {
            return Ok(None);
        }
        let (mut listing, mut names) = (RemoteListing::begin(self.clone(), dir.clone()).await?, HashSet::new());
        let mut kept = KeptNames::default();
        listing.undated = true;
        loop {
            let page = listing.page().await?;
            if page.is_empty() {
                return Ok(Some(names));
            }
            for Entry { name, .. } in page.into_iter().filter(|entry| is_name(&entry.name)) {
                kept.count(&name, || self.label(dir))?;
                names.insert(name);
            }
        }
    }

    /// How the server lists without MLSD, as far as known.
    fn lists(&self) -> Option<Lists> {
        *self.0.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_lists(&self, lists: Lists) {
        *self.0.lists.lock().unwrap_or_else(PoisonError::into_inner) = Some(lists);
    }
}

impl Session {
    /// Makes the server leave the current directory. pure-ftpd enters the directory of MLSD and returns, and closes the
    /// connection if the directory to return to was removed.
    async fn leave_dir(&mut self) -> Result<(), Error> {
        // If the server refuses the root, the session stays where it is.
        if self.is_elsewhere && self.ask("CWD /").await?.is_success() {
            self.is_elsewhere = false;
        }
        Ok(())
    }
}

impl Listing for RemoteListing {
    fn more(&mut self) -> Fallible<'_, Vec<Entry>> {
        if !self.first.is_empty() {
            let first = std::mem::take(&mut self.first);
            return Box::pin(async { Ok(first) });
        }
        Box::pin(self.page())
    }
}

/// Lists the drafts in `dir` of a server that hides them.
pub(super) async fn drafts_in(remote: &Remote, dir: &Key) -> Result<Vec<Entry>, Error> {
    let name = remote.label(dir);
    let reply = remote.about("SITE DRAFTS", dir).await?;
    match reply.code {
        250 => {}
        // An older version cannot list drafts.
        500..=504 => return Ok(Vec::new()),
        _ => return Err(refused(&name, "list the drafts in", "SITE DRAFTS", &reply)),
    }
    let mut drafts = Vec::new();
    // The first and last lines frame the entries.
    let lines = reply.lines.iter().skip(1).take(reply.lines.len().saturating_sub(2));
    for line in lines {
        let line = line.strip_prefix(b" ").unwrap_or(line);
        let (facts, entry) = Facts::parse(line).map_err(|error| senseless(&name, error.to_string()))?;
        if is_ours(&entry) {
            drafts.push(Entry { name: entry, meta: meta_of(&facts) });
        }
    }
    Ok(drafts)
}

fn last(name: &[u8]) -> &[u8] {
    let trimmed = name.strip_suffix(b"/").unwrap_or(name);
    trimmed.rsplit(|&b| b == b'/').next().unwrap_or(trimmed)
}

/// Parses a line of facts.
pub(super) fn meta_of(facts: &Facts) -> Meta {
    let kind = match &facts.kind {
        // An entry without a type counts as a file; reading it shows the truth.
        None | Some(Type::File) => Kind::File,
        Some(Type::Dir | Type::Current | Type::Parent) => Kind::Dir,
        Some(Type::Link(_)) => Kind::Link,
        Some(Type::Other(other)) if other.to_ascii_lowercase().contains("chr") => Kind::Device,
        Some(Type::Other(_)) => Kind::Other,
    };
    Meta {
        kind,
        size: facts.size.filter(|_| kind == Kind::File),
        modified: facts.modify.map(|stamp| Time { seconds: stamp.seconds, nanos: stamp.nanos }),
        mode: facts.mode,
        sparse: false,
        identity: None,
    }
}
