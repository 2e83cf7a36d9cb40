//! Names that servers alter: they drop or replace bytes, and would then read, write or remove other files.
//!
//! RFC 959 does not cover bytes beyond ASCII. RFC 3659, section 2.2, requires servers to accept all bytes except line
//! ends. GCT drops everything but printable ASCII, pure-ftpd replaces tabs and trailing blanks by `_`, and pyftpdlib
//! replaces invalid UTF-8 by U+FFFD.

use super::error::{refused, senseless};
use super::known::Odd;
use super::listing::RemoteListing;
use super::remote::Remote;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::store::Listing;
use phoebus_proto::gridftp::line::is_line;
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::hex::hex;
use ring::rand::SecureRandom;
use std::collections::BTreeSet;

/// The odd characters in `name`, one component of a path.
fn odd(name: &[u8]) -> BTreeSet<Odd> {
    let mut all: BTreeSet<Odd> = name.iter().filter(|b| b.is_ascii_control()).map(|b| Odd::Control(*b)).collect();
    match std::str::from_utf8(name) {
        Ok(text) if text.is_ascii() => {}
        Ok(_) => drop(all.insert(Odd::NotAscii)),
        Err(_) => drop(all.insert(Odd::NotUtf8)),
    }
    if name.first() == Some(&b' ') {
        all.insert(Odd::Leading);
    }
    if let Some(last @ (b' ' | b'.')) = name.last() {
        all.insert(Odd::Trailing(*last));
    }
    all
}

impl Remote {
    /// Refuses a name that the server is known to alter.
    pub(super) async fn sayable(&self, key: &Key) -> Result<(), Error> {
        let plain = key.as_bytes().iter().all(|b| matches!(b, b' '..=b'~' | b'\t'));
        // A name that no command can carry is refused where it is sent.
        if plain || !is_line(key.as_bytes()) || !self.has("MLST") {
            return Ok(());
        }
        match self.0.names.ascii_alone.get_or_try_init(|| self.leaves_out()).await? {
            false => Ok(()),
            true => Err(senseless(
                &self.label(key),
                "the server leaves out what of a name is no printable ASCII, and would take it for another",
            )),
        }
    }

    /// Whether the server drops bytes that are not printable ASCII, as GCT does without protection of commands. Tested
    /// with a name that does not exist but would then be that of a directory.
    async fn leaves_out(&self) -> Result<bool, Error> {
        const ODD: &[u8] = "\u{e9}".as_bytes();
        let home = self.path(self.home())?;
        let lines = [&b"/"[..], &[&home[..], b"/"].concat()].map(|dir| [b"MLST ", dir, ODD].concat());
        let replies = self.ask_all(lines.into()).await?;
        let as_said = |reply: &Reply| reply.lines.iter().any(|line| line.windows(ODD.len()).any(|bytes| bytes == ODD));
        Ok(replies.iter().any(|reply| reply.code == 250 && !as_said(reply)))
    }

    /// Refuses a new name that the server would alter. To find out, creates an empty directory of that name in a hidden
    /// one, reads its name, and removes both. Each combination of odd characters is tried once.
    pub(super) async fn keeps_name(&self, key: &Key) -> Result<(), Error> {
        self.sayable(key).await?;
        let odd = odd(key.name());
        // `phoebus serve` keeps all names, and refuses hidden names of drafts.
        if odd.is_empty() || self.has("XDRAFTS") || !is_line(key.as_bytes()) {
            return Ok(());
        }
        self.path(key)?;
        let altered = |name: &[u8]| {
            let shown = String::from_utf8_lossy(name).escape_debug().to_string();
            senseless(&self.label(key), format!("the server alters such names: it would call it \"{shown}\""))
        };
        let mut seen = self.0.names.seen.lock().await;
        let (kept, refused) = &mut *seen;
        if odd.is_subset(kept) {
            return Ok(());
        }
        if refused.iter().any(|altered| altered.is_subset(&odd)) {
            return Err(senseless(&self.label(key), "the server alters such names, and would call it otherwise"));
        }
        match self.called(key, &odd).await? {
            None => kept.extend(odd),
            Some(name) => {
                refused.push(odd);
                return Err(altered(&name));
            }
        }
        Ok(())
    }

    /// The name that the server gives to a new directory `key`, if it alters it.
    async fn called(&self, key: &Key, odd: &BTreeSet<Odd>) -> Result<Option<Vec<u8>>, Error> {
        let failed = |error: phoebus_files::key::KeyError| senseless(&self.label(key), error.to_string());
        let mut random = [0; 8];
        let _ = ring::rand::SystemRandom::new().fill(&mut random);
        let tag = hex(&random);
        let dir = key.parent().join(format!(".names.{tag}.phoebus-part")).map_err(failed)?;
        // Listings may omit names that begin with a dot.
        let hidden = key.name().starts_with(b".");
        let tried = if hidden { &key.name()[1..] } else { key.name() };
        let inner = dir.join([if hidden { &b"x"[..] } else { b"" }, tried].concat()).map_err(failed)?;
        let made = self.about("MKD", &dir).await?;
        if !made.is_success() {
            // Most servers accept UTF-8 beyond ASCII. Odder names are tested.
            return match odd.iter().all(|odd| *odd == Odd::NotAscii) {
                true => Ok(None),
                false => Err(refused(&self.label(key), "find out whether the server alters the name of", "MKD", &made)),
            };
        }
        let found: Result<Option<Vec<u8>>, Error> = async {
            // A server that refuses the name will refuse the file too.
            if !self.about("MKD", &inner).await?.is_success() {
                return Ok(None);
            }
            let (mut listing, mut last) = (RemoteListing::begin(self.clone(), dir.clone()).await?, None);
            loop {
                let page = listing.more().await?;
                if page.iter().any(|entry| entry.name == inner.name()) {
                    return Ok(None);
                }
                match page.into_iter().next_back() {
                    Some(entry) => last = Some(entry.name),
                    None => return Ok(last),
                }
            }
        }
        .await;
        // Some servers create a directory under a name by which they do not find it. What cannot be removed is empty
        // and hidden.
        let called = found.as_ref().ok().and_then(Option::as_ref).and_then(|name| dir.join(name).ok());
        for key in [Some(&inner), called.as_ref(), Some(&dir)].into_iter().flatten() {
            let _ = self.about("RMD", key).await;
        }
        found
    }

    /// Refuses a name under which the server has something that it calls otherwise, before a change.
    pub(super) async fn is_there_as_said(&self, key: &Key) -> Result<(), Error> {
        if odd(key.name()).is_empty() || self.has("XDRAFTS") {
            return self.sayable(key).await;
        }
        if !self.has("MLST") {
            return self.keeps_name(key).await;
        }
        self.sayable(key).await?;
        // MLST returns the name, which `look` compares.
        self.look(key).await.map(drop)
    }

    /// Refuses a reply to MLST about `key` that has another name: `found`.
    pub(super) fn same_name(&self, key: &Key, found: &[u8]) -> Result<(), Error> {
        if self.has("XDRAFTS") {
            return Ok(());
        }
        let said = key.as_bytes().rsplit(|&b| b == b'/').zip(found.rsplit(|&b| b == b'/'));
        for (asked, found) in said {
            if asked != found && !odd(asked).is_empty() {
                let shown = String::from_utf8_lossy(found).escape_debug().to_string();
                let reason = format!("the server alters such names: it takes it for \"{shown}\"");
                return Err(senseless(&self.label(key), reason));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_names_are_recognized() {
        assert_eq!(odd(b"plain name-1.h5"), BTreeSet::new());
        assert_eq!(odd(b".hidden"), BTreeSet::new());
        assert_eq!(odd(b"a\tb "), [Odd::Control(b'\t'), Odd::Trailing(b' ')].into());
        assert_eq!(odd(" \u{e9}".as_bytes()), [Odd::NotAscii, Odd::Leading].into());
        assert_eq!(odd(b"n\xff."), [Odd::NotUtf8, Odd::Trailing(b'.')].into());
    }
}
