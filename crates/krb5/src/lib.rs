//! Kerberos 5 at the end that is logged in to (RFC 4121, RFC 2743), by the system's library, MIT's `libgssapi_krb5`: tickets are
//! looked at, and what follows is protected, by the code that all of Kerberos uses, with its configuration and its keytabs.
//!
//! - [`Acceptor`]: whose tickets are taken: those for a principal of a keytab.
//! - [`Accepting`]: tokens of one client in and out, until [`Context`] is there.
//! - [`Context`]: who the client is, and messages under protection.
//!
//! `sys` is the library as its header has it (`gssapi/gssapi.h`, RFC 2744); nothing else knows of it.

mod order;
mod sys;

use order::{Seen, Twice};
use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::flag;

/// Why the library does not do what it was asked for, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Failure {
    what: &'static str,
    why: String,
}

/// Of what a failure is where the client does not ask for what is needed.
const LACKS: &str = "the client's context lacks";

impl Failure {
    /// Whether it is that the client does not ask for what is needed, which it may be told.
    pub fn is_lacking(&self) -> bool {
        self.what == LACKS
    }

    fn new(what: &'static str, why: impl Into<String>) -> Self {
        Self { what, why: why.into() }
    }
}

/// Whose tickets are taken. Clones are the same.
#[derive(Clone)]
pub struct Acceptor(Arc<sys::Credential>);

impl Acceptor {
    /// One that takes tickets for any principal of the keytab in this file.
    ///
    /// # Errors
    /// [`Failure`]: the keytab is not there, cannot be read, or has no key.
    pub fn of_keytab(path: &Path) -> Result<Self, Failure> {
        let name = [b"FILE:", path.as_os_str().as_bytes()].concat();
        let name = CString::new(name).map_err(|_| Failure::new("the keytab", "no file has such a name"))?;
        sys::Credential::of_keytab(&name).map(|credential| Self(Arc::new(credential)))
    }

    /// For one client, of which nothing has come yet.
    pub fn begin(&self) -> Accepting {
        Accepting { acceptor: self.clone(), context: sys::Context::none() }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

/// A context that is being made.
pub struct Accepting {
    acceptor: Acceptor,
    context: sys::Context,
}

impl fmt::Debug for Accepting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Accepting")
    }
}

/// What a token came to.
#[derive(Debug)]
pub enum Step {
    /// This goes to the client, and another token is to come.
    Continue(Accepting, Vec<u8>),
    /// The ends know each other; this goes to the client, if it is not empty.
    Done(Context, Vec<u8>),
}

impl Accepting {
    /// Takes a token of the client's. It may wait for the disk: the library notes tickets, so that none is taken twice.
    ///
    /// # Errors
    /// [`Failure`]: the client does not prove who it is, or by something else than Kerberos, or does not ask that this end proves who it
    /// is, too, and that nobody can alter messages or send them twice.
    pub fn step(mut self, token: &[u8]) -> Result<Step, Failure> {
        let accepted = self.context.accept(&self.acceptor.0, token)?;
        let Some(name) = accepted.client else { return Ok(Step::Continue(self, accepted.token)) };
        if !accepted.is_krb5 {
            return Err(Failure::new("the client", "it proves who it is by another mechanism than Kerberos"));
        }
        let needed = [
            (flag::MUTUAL, "mutual authentication"),
            (flag::INTEGRITY, "integrity of messages"),
            (flag::REPLAY, "detection of messages that come twice"),
        ];
        let lacking: Vec<_> =
            needed.iter().filter(|(bit, _)| accepted.flags & bit == 0).map(|(_, what)| *what).collect();
        if !lacking.is_empty() {
            return Err(Failure { what: LACKS, why: lacking.join(", ") });
        }
        let private = accepted.flags & flag::CONFIDENTIALITY != 0;
        let talk = Talk { context: self.context, seen: Seen::default(), numbered: None, strayed: false };
        let context = Context { principal: name, private, talk: Mutex::new(talk) };
        Ok(Step::Done(context, accepted.token))
    }
}

/// Two ends that know each other.
pub struct Context {
    principal: String,
    private: bool,
    talk: Mutex<Talk>,
}

struct Talk {
    context: sys::Context,
    /// Which messages of the client's have come.
    seen: Seen,
    /// Whether they have numbers, once one has come.
    numbered: Option<bool>,
    /// Whether one came where it did not belong.
    strayed: bool,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.principal)
    }
}

/// A message that has come.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened {
    /// What it says.
    pub bytes: Vec<u8>,
    /// Whether nobody else could read it.
    pub private: bool,
    /// Which of the client's messages it is: each has the next number. None, if the context is of those whose messages hide it (RFC 1964).
    pub number: Option<u64>,
}

impl Context {
    /// Who the client is, as `name@REALM`.
    pub fn principal(&self) -> &str {
        &self.principal
    }

    /// `bytes` as they go to the client: nobody can alter them, and, if they are to be `private`, read them.
    ///
    /// # Errors
    /// [`Failure`]; also where the library cannot keep them private.
    pub fn wrap(&self, bytes: &[u8], private: bool) -> Result<Vec<u8>, Failure> {
        let talk = self.talk();
        let (wrapped, is_private) = talk.context.wrap(bytes, private)?;
        if private && !is_private {
            return Err(Failure::new("the message", "it cannot be kept private"));
        }
        Ok(wrapped)
    }

    /// What the client said in a message, which nobody has altered or sent twice.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn unwrap(&self, token: &[u8]) -> Result<Opened, Failure> {
        let mut talk = self.talk();
        let sys::Unwrapped { bytes, private, replayed } = talk.context.unwrap(token)?;
        let number = number(token);
        // The library takes one message in more than one frame, of which only one shows the number.
        if *talk.numbered.get_or_insert(number.is_some()) != number.is_some() {
            return Err(Failure::new("the message", "it is framed otherwise than those before it"));
        }
        let noted = match number {
            Some(number) => talk.seen.note(number),
            None if replayed => Err(Twice::Before),
            None => Ok(()),
        };
        noted.map_err(|twice| {
            let why = match twice {
                Twice::Before => "it came before",
                Twice::Old => "it is too old to tell whether it came before",
            };
            Failure::new("the message", why)
        })?;
        Ok(Opened { bytes, private, number })
    }

    /// Whether messages can be kept private.
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// The highest number of a message of the client's that has come; 0 before any.
    pub fn latest(&self) -> u64 {
        self.talk().seen.latest().unwrap_or(0)
    }

    /// Whether all messages of the client's after the number `from`, up to `to`, have come, each where it belongs.
    pub fn has_all(&self, from: u64, to: u64) -> bool {
        let talk = self.talk();
        !talk.strayed && talk.seen.has_all(from, to)
    }

    /// Notes that a message came over a connection for which it was not meant, as somebody on the way may have brought about: from then
    /// on nobody can tell that all has come ([`Self::has_all`]).
    pub fn stray(&self) {
        self.talk().strayed = true;
    }

    fn talk(&self) -> MutexGuard<'_, Talk> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of a message that has been opened, where it stands in clear (RFC 4121, section 4.2.6.2).
fn number(token: &[u8]) -> Option<u64> {
    let (header, _) = token.split_first_chunk::<16>()?;
    let number: [u8; 8] = header[8..].try_into().ok()?;
    header.starts_with(&[5, 4]).then(|| u64::from_be_bytes(number))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn a_keytab_that_is_not_there_is_named_by_the_library() {
        let error = Acceptor::of_keytab(Path::new("/nonexistent/keytab")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/keytab"), "{error}");
    }
}
