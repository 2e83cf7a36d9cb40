//! Directories of a server: MLSD (RFC 3659, section 7), or where there is none, LIST as `ls -l` writes it.

use super::error::{refused, senseless};
use super::remote::Remote;
use super::retrieve::Retrieval;
use super::unix;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Fallible, Flow, Kind, Listing, Meta, Time};
use phoebus_files::{Error, Sort, is_ours};
use phoebus_proto::gridftp::facts::{Facts, Type};
use std::collections::HashSet;
use std::sync::PoisonError;

/// How many entries are given at a time.
const PAGE: usize = 1000;

/// How many entries of a listing are held back until it is known what was listed.
const HELD: usize = 100_000;

/// How many names of a directory are looked at.
pub(super) const MOST: usize = 1_000_000;

/// How long a line may be.
const MAX_LINE: usize = 64 << 10;

/// How a server lists without MLSD: `LIST -a` has names that begin with a dot, too, but some take `-a` for a path, and list that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lists {
    /// `LIST -a` has what there is, the directory itself among it.
    Itself,
    /// `LIST -a` has what there is.
    All,
    /// `LIST -a` is something else, and LIST has what there is.
    Plain,
}

/// How a directory is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// MLSD.
    Facts,
    /// LIST -a.
    All,
    /// LIST.
    Plain,
}

/// The entries of a directory, on their way.
#[derive(Debug)]
pub(super) struct RemoteListing {
    remote: Remote,
    dir: Key,
    flow: Retrieval,
    form: Form,
    /// Whether drafts are among what is given.
    drafts: bool,
    /// Whether names alone are wanted: then nobody is asked for times.
    undated: bool,
    /// Whether it is known that this is the directory's listing.
    sure: bool,
    /// Whether the directory itself was among it.
    itself: bool,
    /// Whether lines that make no sense are passed over.
    lenient: bool,
    /// Names beyond ASCII that were listed.
    odd: HashSet<Vec<u8>>,
    /// What is given before all else.
    first: Vec<Entry>,
    /// What has come and is not a whole line.
    rest: Vec<u8>,
    ended: bool,
    /// The first line that lists nothing, of which is told when all others have been given: a name with a line end in it is two.
    wrong: Option<Error>,
}

impl RemoteListing {
    /// A listing with drafts and their journals.
    pub(super) async fn with_drafts(remote: Remote, dir: Key) -> Result<Self, Error> {
        // A server of ours lists its drafts only when it is asked for them.
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

    /// What LIST has, drafts among it, whatever else there is; lines that make no sense are passed over.
    pub(super) async fn by_list(remote: Remote, dir: Key) -> Result<Self, Error> {
        let form = if remote.lists() == Some(Lists::Plain) { Form::Plain } else { Form::All };
        let listing = Self::begin_as(remote, dir, form).await?;
        Ok(Self { drafts: true, undated: true, lenient: true, ..listing })
    }

    async fn begin_as(remote: Remote, dir: Key, form: Form) -> Result<Self, Error> {
        let (name, path) = (remote.label(&dir), remote.path(&dir)?);
        let mut session = remote.beside_in_time().await?;
        if form != Form::Facts {
            // A path after LIST may be taken for a pattern or an option; and of one that is not there many list nothing.
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
        let flow = Retrieval::of_listing(remote.clone(), session, name, command);
        let sure = form != Form::All || remote.lists() == Some(Lists::All);
        let (drafts, undated, itself, lenient, odd, first, rest, ended, wrong) = Default::default();
        Ok(Self { remote, dir, flow, form, drafts, undated, sure, itself, lenient, odd, first, rest, ended, wrong })
    }

    /// More entries, of what is known to be the directory's listing.
    pub(super) async fn page(&mut self) -> Result<Vec<Entry>, Error> {
        if self.sure {
            return self.some().await;
        }
        let mut held = Vec::new();
        loop {
            match self.some().await {
                Ok(page) if page.is_empty() && !self.itself => break,
                Ok(page) => held.extend(page),
                Err(error) if error.sort() == Sort::Passing => return Err(error),
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

    /// What there is where `LIST -a` has listed `held`, without the directory itself: that, if it has all that LIST has.
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
                // There is more than `LIST -a` says. What follows comes as it is read.
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

    /// A directory of which nothing is listed: some say nothing else of one that may not be read. Where others have themselves in their
    /// listing, this one was not read.
    async fn empty(&self) -> Result<Vec<Entry>, Error> {
        if self.remote.lists().is_none() && !self.dir.is_root() {
            let mut root = Self::begin_as(self.remote.clone(), Key::ROOT, Form::All).await?;
            // What cannot be listed says nothing of others.
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

    /// More entries, as they come.
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
                    self.rest.extend_from_slice(block.bytes()?);
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

    /// What a line lists, unless it is not to be seen.
    fn entry(&mut self, line: &[u8]) -> Result<Option<Entry>, Error> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return Ok(None);
        }
        let entry = if self.form == Form::Facts {
            let parsed = Facts::parse(line);
            let (facts, name) = parsed.map_err(|error| senseless(&self.remote.label(&self.dir), error.to_string()))?;
            match facts.kind {
                Some(Type::Current | Type::Parent) => None,
                // Some list whole paths.
                _ => Some(Entry { name: last(&name).to_vec(), meta: meta_of(&facts) }),
            }
        } else if self.lenient {
            unix::parse(line).unwrap_or_default()
        } else {
            let text: String = String::from_utf8_lossy(line).chars().take(100).collect();
            unix::parse(line).map_err(|()| {
                let reason = format!("the server lists \"{}\", which is not as ls -l has it", text.escape_debug());
                Error::Store { name: self.remote.label(&self.dir), reason, sort: Sort::Request }
            })?
        };
        if let Some(entry) = &entry {
            self.itself |= entry.name == b".";
            if !entry.name.is_ascii() && !self.odd.insert(entry.name.clone()) {
                let shown = String::from_utf8_lossy(&entry.name).escape_debug().to_string();
                let reason =
                    format!("the server calls more than one file \"{shown}\", so that none of them can be asked for");
                return Err(senseless(&self.remote.label(&self.dir), reason));
            }
        }
        Ok(entry.filter(|entry| (self.drafts || !is_ours(&entry.name)) && !matches!(&entry.name[..], b"." | b"..")))
    }

    /// Asks for the times of files, which LIST does not tell.
    async fn date(&self, page: &mut [Entry]) -> Result<(), Error> {
        for some in page.chunks_mut(PAGE) {
            let files: Vec<&mut Entry> = some.iter_mut().filter(|entry| entry.meta.kind == Kind::File).collect();
            let keys: Result<Vec<Key>, _> = files.iter().map(|entry| self.dir.join(&entry.name)).collect();
            // What cannot be a name is for others to complain of.
            let Ok(keys) = keys else { continue };
            let times = self.remote.all_modified(&keys).await?;
            files.into_iter().zip(times).for_each(|(entry, time)| entry.meta.modified = time);
        }
        Ok(())
    }
}

impl Remote {
    /// The names in `dir`, unless the server keeps all names as they are said, as our own does.
    pub(super) async fn names_in(&self, dir: &Key) -> Result<Option<HashSet<Vec<u8>>>, Error> {
        if self.has("XDRAFTS") {
            return Ok(None);
        }
        let (mut listing, mut names) = (RemoteListing::begin(self.clone(), dir.clone()).await?, HashSet::new());
        listing.undated = true;
        loop {
            let page = listing.page().await?;
            if page.is_empty() {
                return Ok(Some(names));
            }
            names.extend(page.into_iter().map(|entry| entry.name));
            if names.len() > MOST {
                let what = "the names of a directory that are looked at";
                return Err(Error::Limit { name: self.label(dir), what, limit: MOST as u64 });
            }
        }
    }

    /// How it lists without MLSD, as far as is known.
    fn lists(&self) -> Option<Lists> {
        *self.0.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_lists(&self, lists: Lists) {
        *self.0.lists.lock().unwrap_or_else(PoisonError::into_inner) = Some(lists);
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

/// The drafts in `dir` of a server that keeps them to itself.
pub(super) async fn drafts_in(remote: &Remote, dir: &Key) -> Result<Vec<Entry>, Error> {
    let name = remote.label(dir);
    let reply = remote.about("SITE DRAFTS", dir).await?;
    match reply.code {
        250 => {}
        // An older version, which has no way to list them.
        500..=504 => return Ok(Vec::new()),
        _ => return Err(refused(&name, "list the drafts in", "SITE DRAFTS", &reply)),
    }
    let mut drafts = Vec::new();
    // The first line and the last one frame the others.
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

/// What facts say.
pub(super) fn meta_of(facts: &Facts) -> Meta {
    let kind = match &facts.kind {
        // What says nothing of its type has bytes, or is found to have none.
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
