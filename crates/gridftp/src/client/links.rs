//! Which of what a server lists as directories are symbolic links.
//!
//! Our own server and GCT tell links by facts. Of others MLSD may tell what a link leads to (pyftpdlib), and LIST as well (aioftp, Twisted, ProFTPD
//! with `ShowSymlinks off`). What LIST calls a directory is believed where the server is known to list links as links: by its name, or
//! since it has listed a link to a directory as one.

use super::error::refused;
use super::listing::meta_of;
use super::listing::{MOST, RemoteListing};
use super::orders::facts_of;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{Entry, Kind, Meta, TriedDir};
use phoebus_files::{Error, Own, OwnDirs, Sort};
use phoebus_proto::gridftp::reply::Reply;

/// How many links are tried for one that leads to a directory.
const TRIED: usize = 4;

impl Remote {
    /// Whether what is said of a name alone tells a link from what it leads to.
    pub(super) fn tells_links_by_facts(&self) -> bool {
        self.facts().contains("x.link")
    }

    /// What `key` is itself, where the server tells.
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

    /// The facts that MLST has, in small letters.
    fn facts(&self) -> String {
        self.0.features.parameters("MLST").unwrap_or_default().to_ascii_lowercase()
    }

    pub(super) async fn own_dirs_in(&self, dir: &Key) -> Result<OwnDirs, Error> {
        // What MLSD lists as a directory is one.
        if self.has("XDRAFTS") || self.facts().contains("unix.slink") {
            return Ok(OwnDirs::all(Own::Yes));
        }
        let (mut dirs, mut links) = (Vec::new(), Vec::new());
        let trusted = self.options().trust_listings;
        match self.dirs_and_links(dir, &mut dirs, &mut links).await {
            Err(error) if trusted && error.sort() != Sort::Passing => {}
            listed => listed?,
        }
        let listed = match self.0.lists_links.get() {
            Some(listed) => *listed,
            None => self.judge_listings(dir, &dirs, &links).await?,
        };
        let mut own = OwnDirs::all(if trusted { Own::Yes } else { Own::Unknown });
        let listed = if trusted { Own::Yes } else { listed };
        dirs.into_iter().for_each(|name| own.note(name, listed));
        links.into_iter().for_each(|name| own.note(name, Own::Link));
        Ok(own)
    }

    /// What LIST has in `dir`.
    async fn dirs_and_links(&self, dir: &Key, dirs: &mut Vec<Vec<u8>>, links: &mut Vec<Vec<u8>>) -> Result<(), Error> {
        let mut listing = RemoteListing::by_list(self.clone(), dir.clone()).await?;
        loop {
            let page = listing.page().await?;
            if page.is_empty() {
                return Ok(());
            }
            for Entry { name, meta } in page {
                match meta.kind {
                    Kind::Dir => dirs.push(name),
                    Kind::Link => links.push(name),
                    _ => {}
                }
            }
            if dirs.len() + links.len() > MOST {
                let what = "the directories in a directory that are looked at";
                return Err(Error::Limit { name: self.label(dir), what, limit: MOST as u64 });
            }
        }
    }

    /// What the server's LIST calls a directory is, as far as that is known: `links` are what it calls links in `dir`.
    async fn judge_listings(&self, dir: &Key, dirs: &[Vec<u8>], links: &[Vec<u8>]) -> Result<Own, Error> {
        let known = match by_name(&self.0.greeting) {
            Own::Unknown => by_name(&self.status().await?),
            known => known,
        };
        if known != Own::Unknown && known != Own::Likely {
            return Ok(*self.0.lists_links.get_or_init(|| async { known }).await);
        }
        // A link to nowhere may be listed as one by a server that has looked for what it leads to.
        // And a link called "r -> s" is read as "r", which may be a directory beside it.
        for link in links.iter().filter(|link| !dirs.contains(link)).take(TRIED) {
            let Ok(link) = dir.join(link) else { continue };
            if self.about("CWD", &link).await?.is_success() {
                return Ok(*self.0.lists_links.get_or_init(|| async { Own::Yes }).await);
            }
        }
        Ok(known)
    }

    /// What STAT says, in which most servers name themselves.
    async fn status(&self) -> Result<String, Error> {
        let ask = async || Ok::<_, Error>(self.ask(b"STAT".to_vec()).await?.text());
        self.0.status.get_or_try_init(ask).await.cloned()
    }

    /// What the server says when it is to remove `key` as a directory.
    pub(super) async fn try_dir_at(&self, key: &Key) -> Result<TriedDir, Error> {
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

/// What a server that names itself so in `text` lists as a directory.
fn by_name(text: &str) -> Own {
    let text = text.to_ascii_lowercase();
    let has = |names: &[&str]| names.iter().any(|name| text.contains(name));
    match () {
        // Nothing makes these list a link as what it leads to.
        () if text.starts_with("(vsftpd ") || text.contains("- secure, fast, stable") => Own::Yes,
        () if text.starts_with("pyftpdlib ") => Own::Yes,
        // These do so if they are told to (`ShowSymlinks off`, `BrokenClientsCompatibility`); and RMD tells.
        () if has(&["proftpd", "pure-ftpd"]) => Own::Likely,
        () => Own::Unknown,
    }
}

/// What the refusal of RMD says of `key`: by the words behind the last colon, since a path before it says nothing.
fn judge_refusal(reply: &Reply, key: &Key) -> TriedDir {
    let text = reply.text().to_ascii_lowercase();
    let said = text.rsplit(": ").next().unwrap_or_default();
    let judged = [("not empty", TriedDir::NotEmpty), ("not a directory", TriedDir::NotDir)];
    let called = String::from_utf8_lossy(key.as_bytes()).to_ascii_lowercase();
    let found = judged.into_iter().find(|(words, _)| said.contains(words) && !called.contains(words));
    found.map_or(TriedDir::Refused, |(_, tried)| tried)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_known_by_name() {
        for (text, own) in [
            ("(vsFTPd 3.0.3)", Own::Yes),
            ("pyftpdlib 1.5.7 ready.", Own::Yes),
            ("ProFTPD Server (x) [::1]", Own::Likely),
            ("---------- Welcome to Pure-FTPd [privsep] [TLS] ----------", Own::Likely),
            ("welcome", Own::Unknown),
            ("Twisted 22.4.0 FTP Server", Own::Unknown),
            // Words of an administrator, and names of users.
            ("vsftpd mirror", Own::Unknown),
            ("FTP server status:\nLogged in as pyftpdlib", Own::Unknown),
            ("FTP server status:\nvsFTPd 3.0.3 - secure, fast, stable", Own::Yes),
        ] {
            assert_eq!(by_name(text), own, "{text}");
        }
    }

    #[test]
    fn refusals_are_read_without_the_name() {
        for (text, name, tried) in [
            ("/x/a: Directory not empty", "x/a", TriedDir::NotEmpty),
            ("Directory not empty.", "x/a", TriedDir::NotEmpty),
            ("Can't remove directory: Not a directory", "x/a", TriedDir::NotDir),
            ("Cannot rmd, a is not a directory", "x/a", TriedDir::NotDir),
            ("Remove directory operation failed.", "x/a", TriedDir::Refused),
            ("/x/not empty: Permission denied", "x/not empty", TriedDir::Refused),
            ("No directory: /not empty/a", "not empty/a", TriedDir::Refused),
            ("cannot remove the directory /a: Directory not empty", "a", TriedDir::NotEmpty),
        ] {
            let key = Key::parse(name.as_bytes()).unwrap();
            assert_eq!(judge_refusal(&Reply::new(550, text), &key), tried, "{text}");
        }
    }
}
