//! Directories of a server: MLSD (RFC 3659, section 7), or where there is none, LIST as `ls -l` writes it.

use super::error::{refused, senseless};
use super::remote::Remote;
use super::retrieve::Retrieval;
use super::unix;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Fallible, Flow, Kind, Listing, Meta, Time};
use phoebus_files::{Error, is_ours};
use phoebus_proto::gridftp::facts::{Facts, Type};

/// How many entries are given at a time.
const PAGE: usize = 1000;

/// How long a line may be.
const MAX_LINE: usize = 64 << 10;

/// The entries of a directory, on their way.
#[derive(Debug)]
pub(super) struct RemoteListing {
    remote: Remote,
    dir: Key,
    flow: Retrieval,
    facts: bool,
    /// What has come and is not a whole line.
    rest: Vec<u8>,
    ended: bool,
    /// The first line that lists nothing, of which is told when all others have been given: a name with a line end in it is two.
    wrong: Option<Error>,
}

impl RemoteListing {
    pub(super) async fn begin(remote: Remote, dir: Key) -> Result<Self, Error> {
        let (name, path) = (remote.label(&dir), remote.path(&dir)?);
        let facts = remote.has("MLST");
        let mut session = remote.beside_in_time().await?;
        let command = if facts {
            [b"MLSD ", &path[..]].concat()
        } else {
            // A path after LIST may be taken for a pattern or an option; and of one that is not there many list nothing.
            let reply = session.ask([b"CWD ", &path[..]].concat()).await?;
            if !reply.is_success() {
                remote.keep(session);
                return Err(refused(&name, "list", "CWD", &reply));
            }
            b"LIST -a".to_vec()
        };
        let flow = Retrieval::of_listing(remote.clone(), session, name, command);
        Ok(Self { remote, dir, flow, facts, rest: Vec::new(), ended: false, wrong: None })
    }

    async fn page(&mut self) -> Result<Vec<Entry>, Error> {
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
        if !self.facts {
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
    fn entry(&self, line: &[u8]) -> Result<Option<Entry>, Error> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return Ok(None);
        }
        let entry = if self.facts {
            let parsed = Facts::parse(line);
            let (facts, name) = parsed.map_err(|error| senseless(&self.remote.label(&self.dir), error.to_string()))?;
            match facts.kind {
                Some(Type::Current | Type::Parent) => None,
                // Some list whole paths.
                _ => Some(Entry { name: last(&name).to_vec(), meta: meta_of(&facts) }),
            }
        } else {
            let text: String = String::from_utf8_lossy(line).chars().take(100).collect();
            unix::parse(line).map_err(|()| {
                let reason = format!("the server lists \"{}\", which is not as ls -l has it", text.escape_debug());
                Error::Store { name: self.remote.label(&self.dir), reason, sort: phoebus_files::Sort::Request }
            })?
        };
        Ok(entry.filter(|entry| !is_ours(&entry.name) && !matches!(&entry.name[..], b"." | b"..")))
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

impl Listing for RemoteListing {
    fn more(&mut self) -> Fallible<'_, Vec<Entry>> {
        Box::pin(self.page())
    }
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
    }
}
