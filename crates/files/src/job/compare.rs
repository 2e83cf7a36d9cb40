//! Compares two trees (`rclone check`): directory by directory, several files at a time, without changes.

use super::contents::contents;
use super::one::same_bytes;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::plan::{By, Filter};
use crate::store::{Kind, Meta, Store};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tokio::task::JoinSet;

/// The comparison to make.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The source.
    pub source: Arc<dyn Store>,
    /// The destination.
    pub dest: Arc<dyn Store>,
    /// Which attributes of files must be equal.
    pub by: By,
    /// What is left out on both sides.
    pub filter: Arc<Filter>,
    /// Whether the destination may have more.
    pub one_way: bool,
    /// Files that are compared at a time.
    pub at_once: usize,
}

/// A difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// Missing at the destination.
    Missing,
    /// Missing at the source.
    Extra,
    /// Different kinds, such as a directory and a file.
    Kind,
    /// Different sizes.
    Size,
    /// Different times of modification.
    Time,
    /// Different content, or targets of links.
    Content,
}

/// The result for one name; empty if equal.
pub type Finding = Result<Option<Difference>, Error>;

/// The state of the comparison on both sides.
type Pairs = BTreeMap<Vec<u8>, (Option<Meta>, Option<Meta>)>;

/// The state of a running comparison.
type Tasks = JoinSet<(Key, Finding)>;

impl Comparison {
    /// Compares `from` of the source with `to` of the destination. Reports each file and each difference, by its key
    /// relative to the two. A directory on one side only is reported once.
    pub async fn run(&self, from: &Key, to: &Key, mut tell: impl FnMut(&Key, &Finding)) {
        let (mut open, mut tasks) = (Vec::new(), Tasks::new());
        match tokio::join!(self.source.stat(from), self.dest.stat(to)) {
            (Ok(here), Ok(there)) if here.kind == Kind::Dir && there.kind == Kind::Dir => open.push(Key::ROOT),
            (Ok(here), Ok(there)) => self.begin(&mut tasks, (from, to), Key::ROOT, here, there),
            (Err(error), _) | (_, Err(error)) => tell(&Key::ROOT, &Err(error)),
        }
        while let Some(dir) = open.pop() {
            let pairs = match self.pairs(from, to, &dir).await {
                Ok(pairs) => pairs,
                Err(error) => {
                    tell(&dir, &Err(error));
                    continue;
                }
            };
            for (name, pair) in pairs {
                let key = match dir.join(&name) {
                    Ok(key) => key,
                    Err(error) => {
                        tell(&dir, &Err(self.wrong(&error)));
                        continue;
                    }
                };
                let meta = pair.0.or(pair.1);
                let is_dir = meta.is_some_and(|meta| meta.kind == Kind::Dir);
                let chosen = meta.is_none_or(|meta| meta.kind != Kind::File || self.filter.bounds.take(&meta));
                if !chosen || !self.filter.takes(&key, is_dir) {
                    continue;
                }
                match pair {
                    (Some(here), Some(there)) if here.kind == Kind::Dir && there.kind == Kind::Dir => open.push(key),
                    (Some(here), Some(there)) => {
                        while tasks.len() >= self.at_once.max(1) {
                            self.join(&mut tasks, &mut tell).await;
                        }
                        self.begin(&mut tasks, (from, to), key, here, there);
                    }
                    (Some(_), None) => tell(&key, &Ok(Some(Difference::Missing))),
                    (None, Some(_)) if !self.one_way => tell(&key, &Ok(Some(Difference::Extra))),
                    (None, _) => {}
                }
            }
        }
        while self.join(&mut tasks, &mut tell).await {}
    }

    async fn join(&self, tasks: &mut Tasks, tell: &mut impl FnMut(&Key, &Finding)) -> bool {
        match tasks.join_next().await {
            None => return false,
            Some(Ok((key, finding))) => tell(&key, &finding),
            Some(Err(error)) => {
                let error = Error::io(self.dest.name(), "compare something of", std::io::Error::other(error));
                tell(&Key::ROOT, &Err(error));
            }
        }
        true
    }

    /// The entries of both sides in `dir`.
    async fn pairs(&self, from: &Key, to: &Key, dir: &Key) -> Result<Pairs, Error> {
        let (here, there) = (self.beneath(from, dir)?, self.beneath(to, dir)?);
        let (here, there) = tokio::try_join!(contents(&*self.source, &here), contents(&*self.dest, &there))?;
        let mut pairs = Pairs::new();
        for (name, meta) in here {
            pairs.entry(name).or_default().0 = Some(meta);
        }
        for (name, meta) in there {
            pairs.entry(name).or_default().1 = Some(meta);
        }
        Ok(pairs)
    }

    fn begin(&self, tasks: &mut Tasks, (from, to): (&Key, &Key), key: Key, here: Meta, there: Meta) {
        let (all, from, to) = (self.clone(), self.beneath(from, &key), self.beneath(to, &key));
        tasks.spawn(async move {
            let finding = match (from, to) {
                (Ok(from), Ok(to)) => all.compare((&from, here), (&to, there)).await,
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
            (key, finding)
        });
    }

    async fn compare(&self, (from, here): (&Key, Meta), (to, there): (&Key, Meta)) -> Finding {
        if here.kind == Kind::Link && there.kind == Kind::Link && self.source.has_links() && self.dest.has_links() {
            let (one, other) = (self.source.read_link(from).await?, self.dest.read_link(to).await?);
            return Ok((one != other).then_some(Difference::Content));
        }
        // A link on one side counts as its target, as for a copy.
        let here = if here.kind == Kind::Link { self.source.stat(from).await? } else { here };
        let there = if there.kind == Kind::Link { self.dest.stat(to).await? } else { there };
        if here.kind != there.kind {
            return Ok(Some(Difference::Kind));
        }
        if here.kind != Kind::File {
            return Ok(None);
        }
        if here.size.is_none() || here.size != there.size {
            return Ok(Some(Difference::Size));
        }
        match self.by {
            By::Size => Ok(None),
            By::Time | By::Equal => match (here.modified, there.modified) {
                (Some(one), Some(other)) if one.is_about(other) => Ok(None),
                _ => Ok(Some(Difference::Time)),
            },
            By::Checksum => {
                let same = same_bytes(&*self.source, from, &*self.dest, to, here.size.unwrap_or(0)).await?;
                Ok((!same).then_some(Difference::Content))
            }
        }
    }

    fn beneath(&self, top: &Key, below: &Key) -> Result<Key, Error> {
        top.beneath(below).map_err(|error| self.wrong(&error))
    }

    fn wrong(&self, error: &crate::key::KeyError) -> Error {
        Error::Store { name: self.dest.name(), reason: error.to_string(), kind: ErrorKind::Request }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "missing at the destination",
            Self::Extra => "only at the destination",
            Self::Kind => "a file here and a directory there, or the like",
            Self::Size => "another size",
            Self::Time => "another time",
            Self::Content => "another content",
        })
    }
}
