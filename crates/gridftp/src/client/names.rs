//! Names that servers do not take as they are said: they leave bytes out of them, or have others in their place, and would read, write
//! or remove what somebody else has.
//!
//! RFC 959 says nothing of bytes beyond ASCII, and RFC 3659, section 2.2, has servers take all bytes but line ends. GCT's leaves out what
//! is no printable ASCII, pure-ftpd writes `_` for a tab and for a blank at the end, and pyftpdlib writes U+FFFD for what is no UTF-8.

use super::error::{refused, senseless};
use super::listing::RemoteListing;
use super::remote::Remote;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_files::store::Listing;
use phoebus_proto::gridftp::line::is_line;
use phoebus_proto::gridftp::reply::Reply;
use ring::rand::SecureRandom;
use std::collections::BTreeSet;
use tokio::sync::OnceCell;

/// What is known of the names that a server takes.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Whether it leaves out what is no printable ASCII, once that matters.
    ascii_alone: OnceCell<bool>,
    /// What it was seen to keep, and in which combinations it was seen to alter something.
    seen: tokio::sync::Mutex<(BTreeSet<Odd>, Vec<BTreeSet<Odd>>)>,
}

/// What about a name some servers alter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Odd {
    /// A control character.
    Control(u8),
    /// UTF-8 beyond ASCII.
    NotAscii,
    /// Bytes that are no UTF-8.
    NotUtf8,
    /// A blank at its beginning.
    Leading,
    /// A blank or a dot at its end.
    Trailing(u8),
}

/// What is odd about `name`, one component of a path.
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
    /// Refuses a name of which the server is known to leave something out.
    pub(super) async fn sayable(&self, key: &Key) -> Result<(), Error> {
        let plain = key.as_bytes().iter().all(|b| matches!(b, b' '..=b'~' | b'\t'));
        // One that no command can have is refused where it would be said.
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

    /// Whether the server leaves out of names what is no printable ASCII, as GCT's does where nothing protects commands: then it finds a
    /// directory by a name that nothing has.
    async fn leaves_out(&self) -> Result<bool, Error> {
        const ODD: &[u8] = "\u{e9}".as_bytes();
        let home = self.path(self.home())?;
        let lines = [&b"/"[..], &[&home[..], b"/"].concat()].map(|dir| [b"MLST ", dir, ODD].concat());
        let replies = self.ask_all(lines.into()).await?;
        let as_said = |reply: &Reply| reply.lines.iter().any(|line| line.windows(ODD.len()).any(|bytes| bytes == ODD));
        Ok(replies.iter().any(|reply| reply.code == 250 && !as_said(reply)))
    }

    /// Refuses a name for something new that the server would call otherwise: makes an empty directory of that name, within a hidden one
    /// beside the place, looks what it is called, and removes both. What is odd about a name is tried once.
    pub(super) async fn keeps_name(&self, key: &Key) -> Result<(), Error> {
        self.sayable(key).await?;
        let odd = odd(key.name());
        // Our own keeps all names, and takes none of the hidden ones.
        if odd.is_empty() || self.has("XDRAFTS") || !is_line(key.as_bytes()) {
            return Ok(());
        }
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

    /// What the server calls a directory that is to have the name of `key`, if it calls it otherwise.
    async fn called(&self, key: &Key, odd: &BTreeSet<Odd>) -> Result<Option<Vec<u8>>, Error> {
        let failed = |error: phoebus_files::key::KeyError| senseless(&self.label(key), error.to_string());
        let mut random = [0; 8];
        let _ = ring::rand::SystemRandom::new().fill(&mut random);
        let tag: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let dir = key.parent().join(format!(".names.{tag}.phoebus-part")).map_err(failed)?;
        // Listings may leave out what begins with a dot.
        let hidden = key.name().starts_with(b".");
        let tried = if hidden { &key.name()[1..] } else { key.name() };
        let inner = dir.join([if hidden { &b"x"[..] } else { b"" }, tried].concat()).map_err(failed)?;
        let made = self.about("MKD", &dir).await?;
        if !made.is_success() {
            // UTF-8 beyond ASCII is what most servers take; for what is odder nobody vouches.
            return match odd.iter().all(|odd| *odd == Odd::NotAscii) {
                true => Ok(None),
                false => Err(refused(&self.label(key), "find out whether the server alters the name of", "MKD", &made)),
            };
        }
        let found: Result<Option<Vec<u8>>, Error> = async {
            // A server that does not take the name says so of the file, too.
            if !self.about("MKD", &inner).await?.is_success() {
                return Ok(None);
            }
            let (mut listing, mut names) = (RemoteListing::begin(self.clone(), dir.clone()).await?, Vec::new());
            loop {
                let page = listing.more().await?;
                if page.is_empty() {
                    break;
                }
                names.extend(page.into_iter().map(|entry| entry.name));
            }
            let altered = !names.iter().any(|name| name == inner.name());
            Ok(names.pop().filter(|_| altered))
        }
        .await;
        // Some make a directory by a name by which they do not find it. What cannot be removed is empty and hidden.
        let called = found.as_ref().ok().and_then(Option::as_ref).and_then(|name| dir.join(name).ok());
        for key in [Some(&inner), called.as_ref(), Some(&dir)].into_iter().flatten() {
            let _ = self.about("RMD", key).await;
        }
        found
    }

    /// Refuses a name under which the server has something that it calls otherwise, before that is changed.
    pub(super) async fn is_there_as_said(&self, key: &Key) -> Result<(), Error> {
        if odd(key.name()).is_empty() || self.has("XDRAFTS") {
            return self.sayable(key).await;
        }
        if !self.has("MLST") {
            return self.keeps_name(key).await;
        }
        self.sayable(key).await?;
        // Looking compares the names.
        self.look(key).await.map(drop)
    }

    /// Refuses what the server says of `key` where it says it of another name: `found`, from its answer to MLST.
    pub(super) fn same_name(&self, key: &Key, found: &[u8]) -> Result<(), Error> {
        if self.has("XDRAFTS") {
            return Ok(());
        }
        let said = key.as_bytes().rsplit(|&b| b == b'/').zip(found.rsplit(|&b| b == b'/'));
        for (asked, found) in said {
            // Telnet's escape may stand once or twice in an answer.
            if asked != found && !asked.contains(&0xff) && !odd(asked).is_empty() {
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
    fn what_is_odd_about_names() {
        assert_eq!(odd(b"plain name-1.h5"), BTreeSet::new());
        assert_eq!(odd(b".hidden"), BTreeSet::new());
        assert_eq!(odd(b"a\tb "), [Odd::Control(b'\t'), Odd::Trailing(b' ')].into());
        assert_eq!(odd(" \u{e9}".as_bytes()), [Odd::NotAscii, Odd::Leading].into());
        assert_eq!(odd(b"n\xff."), [Odd::NotUtf8, Odd::Trailing(b'.')].into());
    }
}
