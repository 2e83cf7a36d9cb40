//! Kerberos 5 on the accepting side (RFC 4121, RFC 2743), implemented by the system's library, MIT's `libgssapi_krb5`. So
//! tickets are verified, and messages protected, by the code, configuration and keytabs that all Kerberos programs share.
//!
//! - [`Acceptor`]: accepts tickets for the principals of a keytab.
//! - [`Accepting`]: exchanges tokens with one client until the [`Context`] is established.
//! - [`Context`]: the client's identity, and protected messages.
//!
//! `sys` binds the library's header (`gssapi/gssapi.h`, RFC 2744); only that module knows it.

mod order;
mod sys;

use order::{ReceivedNumbers, Twice};
use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::flag;

/// A failure of the library, with its own message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct Failure {
    what: &'static str,
    why: String,
}

/// The subject of a failure when the client does not request a required property.
const LACKS: &str = "the client's context lacks";

impl Failure {
    /// Whether the client did not request a required property. The client may be told of such a failure.
    pub fn is_insufficient_request(&self) -> bool {
        self.what == LACKS
    }

    fn new(what: &'static str, why: impl Into<String>) -> Self {
        Self { what, why: why.into() }
    }
}

/// Accepts tickets with the keys of a keytab. Clones share the keys.
#[derive(Clone)]
pub struct Acceptor(Arc<sys::Credential>);

impl Acceptor {
    /// Loads the keys of all principals of a keytab file.
    ///
    /// # Errors
    /// [`Failure`] if the keytab is missing, cannot be read, or has no key.
    pub fn of_keytab(path: &Path) -> Result<Self, Failure> {
        let name = [b"FILE:", path.as_os_str().as_bytes()].concat();
        let name = CString::new(name).map_err(|_| Failure::new("the keytab", "no file has such a name"))?;
        sys::Credential::of_keytab(&name).map(|credential| Self(Arc::new(credential)))
    }

    /// Starts the authentication of one client.
    pub fn begin(&self) -> Accepting {
        Accepting { acceptor: self.clone(), context: sys::Context::none() }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

/// A context that is being established.
pub struct Accepting {
    acceptor: Acceptor,
    context: sys::Context,
}

impl fmt::Debug for Accepting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Accepting")
    }
}

/// The result of processing a token.
#[derive(Debug)]
pub enum Step {
    /// Send this token to the client, and wait for another.
    Continue(Accepting, Vec<u8>),
    /// The context is established; send this token to the client, unless it is empty.
    Done(Context, Vec<u8>),
}

impl Accepting {
    /// Processes a token from the client. It may block on the disk: the library records tickets to detect
    /// replays.
    ///
    /// # Errors
    /// [`Failure`] if the client does not prove its identity, uses another mechanism than Kerberos, or does
    /// not request mutual authentication, integrity and replay detection.
    pub fn step(mut self, token: &[u8]) -> Result<Step, Failure> {
        let accepted = self.context.accept(&self.acceptor.0, token)?;
        let Some(name) = accepted.client else { return Ok(Step::Continue(self, accepted.token)) };
        if !accepted.is_krb5 {
            return Err(Failure::new("the client", "it authenticates by another mechanism than Kerberos"));
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
        let talk = Talk { context: self.context, seen: ReceivedNumbers::default(), numbered: None, has_stray: false };
        let context = Context { principal: name, private, talk: Mutex::new(talk) };
        Ok(Step::Done(context, accepted.token))
    }
}

/// An established context.
pub struct Context {
    principal: String,
    private: bool,
    talk: Mutex<Talk>,
}

struct Talk {
    context: sys::Context,
    /// The message numbers received from the client.
    seen: ReceivedNumbers,
    /// Whether messages carry numbers in clear; `None` before the first message.
    numbered: Option<bool>,
    /// Whether a message arrived on a connection where it did not belong.
    has_stray: bool,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.principal)
    }
}

/// A decrypted message.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its content.
    pub bytes: Vec<u8>,
    /// Whether it was encrypted.
    pub private: bool,
    /// Its sequence number; each message of the client has the next. `None` in a context whose messages
    /// conceal it (RFC 1964).
    pub number: Option<u64>,
}

impl Context {
    /// The client's principal, as `name@REALM`.
    pub fn principal(&self) -> &str {
        &self.principal
    }

    /// Protects `bytes` for the client: against alteration and, if `private`, by encryption.
    ///
    /// # Errors
    /// [`Failure`]; also if the library cannot encrypt.
    pub fn wrap(&self, bytes: &[u8], private: bool) -> Result<Vec<u8>, Failure> {
        let talk = self.talk();
        let (wrapped, is_private) = talk.context.wrap(bytes, private)?;
        if private && !is_private {
            return Err(Failure::new("the message", "it cannot be kept private"));
        }
        Ok(wrapped)
    }

    /// Decrypts a message from the client and checks its integrity and that it is no replay.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn unwrap(&self, token: &[u8]) -> Result<Opened, Failure> {
        self.unwrap_meant(token, |_| true)
    }

    /// The same for a message that may have arrived on a connection for which it was not meant, perhaps through an
    /// attacker. Unless it `is_meant`, [`Self::has_all`] returns false from the moment on at which it counts as arrived.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn unwrap_meant(&self, token: &[u8], is_meant: impl FnOnce(&Opened) -> bool) -> Result<Opened, Failure> {
        let mut talk = self.talk();
        let sys::Unwrapped { bytes, private, replayed } = talk.context.unwrap(token)?;
        let number = number(token);
        let opened = Opened { bytes, private, number };
        talk.has_stray |= !is_meant(&opened);
        // The library accepts several token formats in one context, of which only one shows the number.
        if *talk.numbered.get_or_insert(number.is_some()) != number.is_some() {
            return Err(Failure::new("the message", "its token format differs from that of earlier messages"));
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
        Ok(opened)
    }

    /// Whether the context can encrypt messages.
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// The highest number of a received message; 0 before the first.
    pub fn latest(&self) -> u64 {
        self.talk().seen.latest().unwrap_or(0)
    }

    /// Whether all of the client's messages after number `from`, up to `to`, have arrived on their own
    /// connections.
    pub fn has_all(&self, from: u64, to: u64) -> bool {
        let talk = self.talk();
        !talk.has_stray && talk.seen.has_all(from, to)
    }

    fn talk(&self) -> MutexGuard<'_, Talk> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of a decrypted message, if the token shows it in clear (RFC 4121, section 4.2.6.2).
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
    fn error_names_the_missing_keytab() {
        let error = Acceptor::of_keytab(Path::new("/nonexistent/keytab")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/keytab"), "{error}");
    }
}
