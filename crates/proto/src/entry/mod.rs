//! Ways into a gateway or an agent for programs that know nothing of sessions: SOCKS5 (RFC 1928, RFC 1929) and HTTP CONNECT
//! (RFC 9110 §9.3.6, RFC 9112).
//!
//! [`Proxy`] is the gateway's side of either. It reads no byte beyond the request: later bytes belong to the session, which may not
//! exist yet. Its output is sent before it reads again.

mod http;
mod socks;

use crate::endpoint::Endpoint;
use crate::session::Code;
use http::Http;
use socks::Socks;
use std::fmt;

/// A way into a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    /// The session protocol.
    Session,
    /// SOCKS5.
    Socks,
    /// HTTP CONNECT.
    Http,
}

impl Entry {
    /// Every entry.
    pub const ALL: [Self; 3] = [Self::Session, Self::Socks, Self::Http];

    /// The name in configurations, logs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Socks => "socks",
            Self::Http => "http",
        }
    }

    /// The entry of a connection that begins with this byte. All bytes that begin nothing else are left to the session protocol,
    /// which refuses them.
    pub fn of(first: u8) -> Self {
        match first {
            socks::VERSION => Self::Socks,
            // A method is a token (RFC 9110 §9.1), and every registered one begins with a letter.
            letter if letter.is_ascii_alphabetic() => Self::Http,
            _ => Self::Session,
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a requester has to show before it may ask for sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing, or it has shown that already.
    Open,
    /// A user's name and password.
    Password,
    /// Something that it cannot show on this connection.
    Closed,
}

/// What is to be done next. Debug output hides the password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// Read into [`Proxy::space`].
    Read,
    /// Check a password, and say so by [`Proxy::login`].
    Login {
        /// The user's name, as it was sent.
        user: &'a [u8],
        /// The password.
        password: &'a [u8],
    },
    /// Open a session to this destination, and say so by [`Proxy::opened`] or [`Proxy::refused`].
    Open(&'a Endpoint),
    /// Close the connection after the output was sent, for this reason.
    Close(&'a str),
}

/// How a password was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Login {
    /// It is the user's.
    Right,
    /// The user or the password is wrong.
    Wrong,
    /// It was not checked, because there were too many.
    Unchecked,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// The reason, for machines.
    pub code: Code,
    /// The gateway or address at fault.
    pub hop: &'a str,
    /// The reason, as a sentence.
    pub reason: &'a str,
}

/// The gateway's side of a connection by SOCKS or HTTP. Debug output hides what it has read.
pub struct Proxy(Protocol);

enum Protocol {
    Socks(Box<Socks>),
    Http(Box<Http>),
}

impl fmt::Debug for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("Read"),
            Self::Login { .. } => f.write_str("Login"),
            Self::Open(to) => write!(f, "Open({to})"),
            Self::Close(why) => write!(f, "Close({why})"),
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({:?})", self.step())
    }
}

impl Proxy {
    /// For a connection by `entry`, which a gateway called `name` has accepted. `None` for the session protocol.
    pub fn new(entry: Entry, name: &str, access: Access) -> Option<Self> {
        match entry {
            Entry::Session => None,
            Entry::Socks => Some(Self(Protocol::Socks(Box::new(Socks::new(access))))),
            Entry::Http => Some(Self(Protocol::Http(Box::new(Http::new(name, access))))),
        }
    }

    /// Room for bytes that certainly belong to the request; empty unless [`Proxy::step`] is to read.
    pub fn space(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Protocol::Socks(socks) => socks.space(),
            Protocol::Http(http) => http.space(),
        }
    }

    /// Records that `n` bytes were read into [`Proxy::space`].
    pub fn received(&mut self, n: usize) {
        match &mut self.0 {
            Protocol::Socks(socks) => socks.received(n),
            Protocol::Http(http) => http.received(n),
        }
    }

    /// What is to be done, once the output is sent.
    pub fn step(&self) -> Step<'_> {
        match &self.0 {
            Protocol::Socks(socks) => socks.step(),
            Protocol::Http(http) => http.step(),
        }
    }

    /// Says how the password was judged. Does nothing unless one is to be checked.
    pub fn login(&mut self, login: Login) {
        match &mut self.0 {
            Protocol::Socks(socks) => socks.login(login),
            Protocol::Http(http) => http.login(login),
        }
    }

    /// Says that the session is open: after the output, the connection carries its bytes.
    pub fn opened(&mut self) {
        match &mut self.0 {
            Protocol::Socks(socks) => socks.opened(),
            Protocol::Http(http) => http.opened(),
        }
    }

    /// Says that there is no session. The connection ends after the output.
    pub fn refused(&mut self, refusal: Refusal<'_>) {
        match &mut self.0 {
            Protocol::Socks(socks) => socks.refused(refusal),
            Protocol::Http(http) => http.refused(refusal),
        }
    }

    /// Bytes to send.
    pub fn outgoing(&self) -> &[u8] {
        match &self.0 {
            Protocol::Socks(socks) => socks.outgoing(),
            Protocol::Http(http) => http.outgoing(),
        }
    }

    /// Records that `n` bytes of the output were sent.
    pub fn sent(&mut self, n: usize) {
        match &mut self.0 {
            Protocol::Socks(socks) => socks.sent(n),
            Protocol::Http(http) => http.sent(n),
        }
    }
}

#[cfg(test)]
mod tests;
