//! Detects symbolic links among listed directories.
//!
//! `phoebus serve` and GCT mark links by facts. On other servers MLSD may describe the target of a link (pyftpdlib),
//! and so may LIST (aioftp, Twisted, ProFTPD with `ShowSymlinks off`). A directory in LIST is believed if the server is
//! known to list links as links. One listed link proves nothing: the server may list only dangling links so.

use super::commands::facts_of;
use super::error::refused;
use super::listing::{KeptNames, RemoteListing, is_name, meta_of};
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Kind, Meta, TriedDir};
use phoebus_files::{DirNature, Error, ErrorKind, OwnDirs};
use phoebus_proto::gridftp::reply::Reply;

impl Remote {
    /// Whether the facts of one name distinguish a link from its target.
    pub(super) fn tells_links_by_facts(&self) -> bool {
        self.tells_fact("X.link")
    }

    /// What `key` is itself, if the server tells.
    pub(super) async fn look_at_link(&self, key: &Key) -> Result<Meta, Error> {
        if !self.tells_links_by_facts() || key.is_root() {
            return self.look(key).await;
        }
        let reply = self.about("MLST", key).await?;
        match facts_of(&reply).filter(|_| reply.code == 250) {
            Some((facts, _)) => {
                let is_link =
                    facts.others.iter().any(|(name, value)| name.eq_ignore_ascii_case("X.link") && value == "yes");
                let meta = meta_of(&facts);
                Ok(if is_link { Meta { kind: Kind::Link, size: None, ..meta } } else { meta })
            }
            None => self.look(key).await,
        }
    }

    /// Whether MLST and MLSD send `fact` by default (RFC 3659, section 7.8: marked with a star). The absence of an
    /// optional fact means nothing.
    fn tells_fact(&self, fact: &str) -> bool {
        let facts = self.0.features.parameters("MLST").unwrap_or_default();
        facts
            .split(';')
            .filter_map(|known| known.trim().strip_suffix('*'))
            .any(|known| known.eq_ignore_ascii_case(fact))
    }

    pub(super) async fn own_dirs_in(&self, dir: &Key) -> Result<OwnDirs, Error> {
        // A directory in MLSD is a directory.
        if self.has("XDRAFTS") || self.tells_fact("UNIX.slink") {
            return Ok(OwnDirs::all(DirNature::Yes));
        }
        let (mut dirs, mut links) = (Vec::new(), Vec::new());
        let trusted = self.options().trust_listings;
        match self.dirs_and_links(dir, &mut dirs, &mut links).await {
            Err(error) if trusted && error.kind() != ErrorKind::Passing => {}
            listed => listed?,
        }
        let mut own = OwnDirs::all(if trusted { DirNature::Yes } else { DirNature::Unknown });
        let listed = if trusted { DirNature::Yes } else { self.judge_listings().await? };
        dirs.into_iter().for_each(|name| own.note(name, listed));
        links.into_iter().for_each(|name| own.note(name, DirNature::Link));
        Ok(own)
    }

    /// The entries of `dir` in LIST.
    async fn dirs_and_links(&self, dir: &Key, dirs: &mut Vec<Vec<u8>>, links: &mut Vec<Vec<u8>>) -> Result<(), Error> {
        let mut listing = RemoteListing::by_list(self.clone(), dir.clone()).await?;
        let mut kept = KeptNames::default();
        loop {
            let page = listing.page().await?;
            if page.is_empty() {
                return Ok(());
            }
            for Entry { name, meta } in page.into_iter().filter(|entry| is_name(&entry.name)) {
                let found = match meta.kind {
                    Kind::Dir => &mut *dirs,
                    Kind::Link => &mut *links,
                    _ => continue,
                };
                kept.count(&name, || self.label(dir))?;
                found.push(name);
            }
        }
    }

    /// What a directory in the server's LIST is.
    async fn judge_listings(&self) -> Result<DirNature, Error> {
        Ok(match by_name(&self.0.greeting) {
            DirNature::Unknown => by_name(&self.status().await?),
            known => known,
        })
    }

    /// Whether `key`, which is no directory, is a symbolic link. `None` if unknown.
    pub(super) async fn is_link_at(&self, key: &Key) -> Result<Option<bool>, Error> {
        if self.tells_links_by_facts() {
            return Ok(Some(self.look_at_link(key).await?.kind == Kind::Link));
        }
        let (mut dirs, mut links) = (Vec::new(), Vec::new());
        match self.dirs_and_links(&key.parent(), &mut dirs, &mut links).await {
            Err(error) if error.kind() == ErrorKind::Passing => return Err(error),
            Err(_) => return Ok(None),
            Ok(()) => {}
        }
        if links.iter().any(|link| link == key.name()) {
            return Ok(Some(true));
        }
        let lists_links = self.options().trust_listings || self.judge_listings().await? == DirNature::Yes;
        Ok(lists_links.then_some(false))
    }

    /// The reply to STAT, in which most servers name their software.
    async fn status(&self) -> Result<String, Error> {
        let ask = async || Ok::<_, Error>(self.ask(b"STAT".to_vec()).await?.text());
        self.0.status.get_or_try_init(ask).await.cloned()
    }

    /// The server's refusal to remove `key` as a directory.
    pub(super) async fn try_dir_at(&self, key: &Key) -> Result<TriedDir, Error> {
        self.forget(key);
        let reply = self.about("RMD", key).await?;
        if reply.is_success() {
            return Ok(TriedDir::Removed);
        }
        if matches!(reply.code, 421 | 426) {
            return Err(refused(&self.label(key), "remove the directory", "RMD", &reply));
        }
        Ok(judge_refusal(&reply, key))
    }
}

/// What a directory in LIST is, for the server software that `text` names.
fn by_name(text: &str) -> DirNature {
    let text = text.to_ascii_lowercase();
    let has = |names: &[&str]| names.iter().any(|name| text.contains(name));
    match () {
        // No setting makes these list a link as its target.
        () if text.starts_with("(vsftpd ") || text.contains("- secure, fast, stable") => DirNature::Yes,
        () if text.starts_with("pyftpdlib ") => DirNature::Yes,
        // A setting makes these do so (`ShowSymlinks off`, `BrokenClientsCompatibility`). The reply to RMD shows it.
        () if has(&["proftpd", "pure-ftpd"]) => DirNature::Likely,
        () => DirNature::Unknown,
    }
}

/// What the refusal of RMD says about `key`. The text after the last colon counts, since a path before it may have any
/// words.
fn judge_refusal(reply: &Reply, key: &Key) -> TriedDir {
    let text = reply.text().to_ascii_lowercase();
    let said = text.rsplit(": ").next().unwrap_or_default();
    let called = String::from_utf8_lossy(key.as_bytes()).to_ascii_lowercase();
    let says = |words: &str| said.contains(words) && !called.contains(words);
    match (says("not empty"), says("not a directory")) {
        // A text with contradictory words means nothing.
        _ if said.contains(" or ") && !called.contains(" or ") => TriedDir::Refused,
        (true, false) => TriedDir::NotEmpty,
        (false, true) => TriedDir::NotDir,
        _ => TriedDir::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_recognized_by_greeting() {
        for (text, own) in [
            ("(vsFTPd 3.0.3)", DirNature::Yes),
            ("pyftpdlib 1.5.7 ready.", DirNature::Yes),
            ("ProFTPD Server (x) [::1]", DirNature::Likely),
            ("---------- Welcome to Pure-FTPd [privsep] [TLS] ----------", DirNature::Likely),
            ("welcome", DirNature::Unknown),
            ("Twisted 22.4.0 FTP Server", DirNature::Unknown),
            // Text of an administrator, and user names.
            ("vsftpd mirror", DirNature::Unknown),
            ("FTP server status:\nLogged in as pyftpdlib", DirNature::Unknown),
            ("FTP server status:\nvsFTPd 3.0.3 - secure, fast, stable", DirNature::Yes),
        ] {
            assert_eq!(by_name(text), own, "{text}");
        }
    }

    #[test]
    fn refusals_are_compared_without_the_name() {
        for (text, name, tried) in [
            ("/x/a: Directory not empty", "x/a", TriedDir::NotEmpty),
            ("Directory not empty.", "x/a", TriedDir::NotEmpty),
            ("Can't remove directory: Not a directory", "x/a", TriedDir::NotDir),
            ("Cannot rmd, a is not a directory", "x/a", TriedDir::NotDir),
            ("Remove directory operation failed.", "x/a", TriedDir::Refused),
            ("/x/not empty: Permission denied", "x/not empty", TriedDir::Refused),
            ("No directory: /not empty/a", "not empty/a", TriedDir::Refused),
            ("cannot remove the directory /a: Directory not empty", "a", TriedDir::NotEmpty),
            ("Remove failed: not a directory or not empty", "a", TriedDir::Refused),
            ("Remove failed: not empty, not a directory", "a", TriedDir::Refused),
            ("a is not empty or not allowed", "a", TriedDir::Refused),
            ("/x/this or that: Directory not empty", "this or that", TriedDir::NotEmpty),
        ] {
            let key = Key::parse(name.as_bytes()).unwrap();
            assert_eq!(judge_refusal(&Reply::new(550, text), &key), tried, "{text}");
        }
    }
}
