//! HTTP CONNECT (RFC 9110 §9.3.6) in HTTP/1.1 and HTTP/1.0 (RFC 9112), with passwords (RFC 7617), on the proxy's side.
//!
//! One request for each connection. What does not follow the grammar to the letter is refused: nothing is passed on, so that no
//! other reader can take it for something else.

mod request;
mod status;

use super::{Access, Login, Refusal, Step};
use crate::endpoint::Endpoint;
use crate::session::Code;
use request::{Bad, Connect, basic, connect};
use status::{FORBIDDEN, PASSWORD, Status, TIMEOUT, TOO_LONG, TOO_MANY, status_of};

/// Longest head of a request: far longer than programs send, and a bound on what a stranger occupies.
pub(super) const HEAD_MAX: usize = 8192;
/// What ends a head.
const END: &[u8] = b"\r\n\r\n";
/// Memory is taken in such steps.
const STEP: usize = 512;

/// The state of a connection.
pub(super) struct Http {
    /// The gateway's name.
    name: String,
    access: Access,
    state: State,
    head: Vec<u8>,
    filled: usize,
    out: Vec<u8>,
    sent: usize,
}

#[derive(PartialEq, Eq)]
enum State {
    Head,
    /// A user's name and password are being checked.
    Checking {
        to: Endpoint,
        user: Vec<u8>,
        password: Vec<u8>,
    },
    Opening(Endpoint),
    Opened,
    Closing(String),
}

impl Http {
    pub(super) fn new(name: &str, access: Access) -> Self {
        let (state, out) = (State::Head, Vec::new());
        Self { name: name.to_owned(), access, state, head: Vec::new(), filled: 0, out, sent: 0 }
    }

    pub(super) fn space(&mut self) -> &mut [u8] {
        let wanted = match self.state {
            State::Head => self.filled + self.missing(),
            _ => self.filled,
        };
        if self.head.len() < wanted {
            self.head.resize(wanted.next_multiple_of(STEP), 0);
        }
        &mut self.head[self.filled..wanted]
    }

    pub(super) fn received(&mut self, n: usize) {
        if self.state != State::Head {
            return;
        }
        self.filled = (self.filled + n).min(self.head.len());
        let head = &self.head[..self.filled];
        let read = match head.strip_suffix(END) {
            Some(lines) => connect(lines),
            None if self.filled >= HEAD_MAX => Err((TOO_LONG, "the head of the request is longer than 8192 bytes")),
            None => return,
        };
        match read.and_then(|connect| judge(connect, self.access)) {
            Ok(state) => self.state = state,
            Err((status, why)) => self.close(status, why, None),
        }
        // It may have a password.
        self.head = Vec::new();
        self.filled = 0;
    }

    pub(super) fn step(&self) -> Step<'_> {
        match &self.state {
            State::Head => Step::Read,
            State::Checking { user, password, .. } => Step::Login { user, password },
            State::Opening(to) => Step::Open(to),
            State::Opened => Step::Close("the session is open"),
            State::Closing(why) => Step::Close(why),
        }
    }

    pub(super) fn login(&mut self, login: Login) {
        let State::Checking { to, .. } = &self.state else { return };
        match login {
            Login::Right => self.state = State::Opening(to.clone()),
            Login::Wrong => self.close(PASSWORD, "the user or the password is wrong", None),
            Login::Unchecked => self.close(TOO_MANY, "too many passwords were wrong, or wait; try again later", None),
        }
    }

    pub(super) fn opened(&mut self) {
        if matches!(self.state, State::Opening(_)) {
            self.say("HTTP/1.1 200 Connection established\r\n\r\n".to_owned());
            self.state = State::Opened;
        }
    }

    pub(super) fn refused(&mut self, refusal: Refusal<'_>) {
        let Refusal { code, hop, reason } = refusal;
        let is_begun = self.state != State::Head;
        let (status, error) = match code {
            Code::HandshakeTimeout if !is_begun => (TIMEOUT, None),
            code => status_of(code),
        };
        let sentence = if hop.is_empty() || hop == self.name { reason.to_owned() } else { format!("{hop}: {reason}") };
        self.close(status, &sentence, error);
    }

    pub(super) fn outgoing(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    pub(super) fn sent(&mut self, n: usize) {
        self.sent = (self.sent + n).min(self.out.len());
    }

    /// How many more bytes the head has at least: what is missing of its end.
    fn missing(&self) -> usize {
        let head = &self.head[..self.filled];
        let has = (1..END.len()).rev().find(|len| head.ends_with(&END[..*len])).unwrap_or(0);
        END.len() - has
    }

    fn say(&mut self, text: String) {
        (self.out, self.sent) = (text.into_bytes(), 0);
    }

    /// Answers with an error, and its name in Proxy-Status (RFC 9209).
    fn close(&mut self, status: Status, sentence: &str, error: Option<&str>) {
        let Status { number, phrase, fields } = status;
        let (length, name) = (sentence.len() + 1, &self.name);
        let error = error.map(|error| format!("Proxy-Status: \"{name}\"; error={error}\r\n")).unwrap_or_default();
        self.say(format!(
            "HTTP/1.1 {number} {phrase}\r\n{fields}{error}Content-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{sentence}\n"
        ));
        self.state = State::Closing(sentence.to_owned());
    }
}

/// What follows from a request.
fn judge(connect: Connect<'_>, access: Access) -> Result<State, Bad> {
    let Connect { to, authorization } = connect;
    match access {
        Access::Open => Ok(State::Opening(to)),
        Access::Closed => Err((
            FORBIDDEN,
            "this listener wants a certificate or a password, and takes either only where nobody can read it: by an https:// proxy",
        )),
        Access::Password => {
            let wanted = "this listener wants a user's name and password";
            let given = authorization.ok_or((PASSWORD, wanted))?;
            let (user, password) = basic(given).ok_or((PASSWORD, "expected a password by the scheme Basic"))?;
            Ok(State::Checking { to, user, password })
        }
    }
}
