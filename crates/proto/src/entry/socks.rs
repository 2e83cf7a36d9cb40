//! SOCKS5 (RFC 1928) with passwords (RFC 1929), on the server's side. CONNECT is the only command: a session carries one connection
//! from the client to a destination.

use super::{Access, Login, Refusal, Step};
use crate::endpoint::{Endpoint, Host};
use crate::session::Code;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The version, and with it the first byte of every connection.
pub(super) const VERSION: u8 = 5;
/// The version of the exchange of a password.
const PASSWORD_VERSION: u8 = 1;

const NO_METHOD: u8 = 0xff;
const WITHOUT: u8 = 0;
const PASSWORD: u8 = 2;

const CONNECT: u8 = 1;

const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// The longest message: a name and a password of 255 bytes each.
const MESSAGE_MAX: usize = 513;

/// Reply codes (RFC 1928 §6).
mod reply {
    pub(super) const SUCCEEDED: u8 = 0;
    pub(super) const FAILURE: u8 = 1;
    pub(super) const NOT_ALLOWED: u8 = 2;
    pub(super) const NETWORK_UNREACHABLE: u8 = 3;
    pub(super) const HOST_UNREACHABLE: u8 = 4;
    pub(super) const REFUSED: u8 = 5;
    pub(super) const EXPIRED: u8 = 6;
    pub(super) const COMMAND: u8 = 7;
    pub(super) const ADDRESS: u8 = 8;
}

/// The state of a connection.
pub(super) struct Socks {
    access: Access,
    state: State,
    buffer: [u8; MESSAGE_MAX],
    filled: usize,
    out: [u8; 10],
    /// The part of `out` that is to be sent.
    pending: std::ops::Range<usize>,
}

#[derive(PartialEq, Eq)]
enum State {
    /// Reads which methods the client has.
    Methods,
    /// Reads a name and a password.
    Password,
    /// The buffer has a name and a password, which are being checked.
    Checking,
    Request,
    Opening(Endpoint),
    Opened,
    Closing(&'static str),
}

impl Socks {
    pub(super) fn new(access: Access) -> Self {
        Self { access, state: State::Methods, buffer: [0; MESSAGE_MAX], filled: 0, out: [0; 10], pending: 0..0 }
    }

    pub(super) fn space(&mut self) -> &mut [u8] {
        let end = self.expected();
        &mut self.buffer[self.filled.min(end)..end]
    }

    pub(super) fn received(&mut self, n: usize) {
        let before = self.expected();
        self.filled = (self.filled + n).min(before);
        // What has arrived may tell that more has to.
        if self.filled < before || self.expected() > before {
            return;
        }
        match self.state {
            State::Methods => self.choose(),
            State::Password if self.buffer[0] != PASSWORD_VERSION => {
                self.close("the exchange of the password has another version than 1");
            }
            State::Password => self.state = State::Checking,
            State::Request => self.request(),
            _ => {}
        }
    }

    pub(super) fn step(&self) -> Step<'_> {
        match &self.state {
            State::Methods | State::Password | State::Request => Step::Read,
            State::Checking => {
                let (user, password) = self.credentials();
                Step::Login { user, password }
            }
            State::Opening(to) => Step::Open(to),
            State::Opened => Step::Close("the session is open"),
            State::Closing(why) => Step::Close(why),
        }
    }

    pub(super) fn login(&mut self, login: Login) {
        if self.state != State::Checking {
            return;
        }
        let is_right = login == Login::Right;
        self.say(&[PASSWORD_VERSION, u8::from(!is_right)]);
        self.buffer.fill(0);
        match is_right {
            true => self.enter(State::Request),
            false => self.close("the user or the password is wrong"),
        }
    }

    pub(super) fn opened(&mut self) {
        if matches!(self.state, State::Opening(_)) {
            self.reply(reply::SUCCEEDED);
            self.state = State::Opened;
        }
    }

    pub(super) fn refused(&mut self, refusal: Refusal<'_>) {
        // Before there is a request, no message can tell.
        if matches!(self.state, State::Opening(_) | State::Request) {
            self.reply(reply_to(refusal.code));
        }
        self.close("the session was refused");
    }

    pub(super) fn outgoing(&self) -> &[u8] {
        &self.out[self.pending.clone()]
    }

    pub(super) fn sent(&mut self, n: usize) {
        self.pending.start = (self.pending.start + n).min(self.pending.end);
    }

    /// How many bytes the message has, as far as known. Grows with the bytes that tell.
    fn expected(&self) -> usize {
        let byte = |at: usize| if self.filled > at { Some(usize::from(self.buffer[at])) } else { None };
        match self.state {
            State::Methods => byte(1).map_or(2, |count| 2 + count),
            State::Password => match byte(1) {
                None => 2,
                Some(user) => byte(2 + user).map_or(3 + user, |password| 3 + user + password),
            },
            // The shortest address has a byte behind its type.
            State::Request => match (byte(3), byte(4)) {
                (Some(kind), _) if kind == usize::from(IPV4) => 10,
                (Some(kind), _) if kind == usize::from(IPV6) => 22,
                (Some(kind), Some(name)) if kind == usize::from(NAME) => 7 + name,
                (Some(kind), None) if kind == usize::from(NAME) => 5,
                _ => 4,
            },
            _ => 0,
        }
    }

    fn choose(&mut self) {
        let has = |method: u8| self.buffer[2..self.filled].contains(&method);
        let (method, next) = match self.access {
            _ if self.buffer[0] != VERSION => return self.close("this is not SOCKS5"),
            Access::Open if has(WITHOUT) => (WITHOUT, State::Request),
            Access::Password if has(PASSWORD) => (PASSWORD, State::Password),
            Access::Open => (NO_METHOD, State::Closing("the client does not go without authentication")),
            Access::Password => (NO_METHOD, State::Closing("the client has no password, which this listener wants")),
            Access::Closed => (NO_METHOD, State::Closing("this listener takes no password on such a connection")),
        };
        self.say(&[VERSION, method]);
        self.enter(next);
    }

    fn credentials(&self) -> (&[u8], &[u8]) {
        let user = 2..2 + usize::from(self.buffer[1]);
        let password = user.end + 1..user.end + 1 + usize::from(self.buffer[user.end]);
        (&self.buffer[user], &self.buffer[password])
    }

    fn request(&mut self) {
        let [version, command, _, kind] = [0, 1, 2, 3].map(|at| self.buffer[at]);
        if version != VERSION {
            return self.close("the request is not one of SOCKS5");
        }
        if command != CONNECT {
            self.reply(reply::COMMAND);
            return self.close("only CONNECT can be asked for");
        }
        let (address, port) = (&self.buffer[4..self.filled.saturating_sub(2).max(4)], self.filled.saturating_sub(2));
        let port = u16::from_be_bytes([self.buffer[port], self.buffer[port + 1]]);
        let host = match kind {
            IPV4 => <[u8; 4]>::try_from(address).ok().map(|four| Host::Addr(Ipv4Addr::from(four).into())),
            IPV6 => <[u8; 16]>::try_from(address).ok().map(|six| Host::Addr(Ipv6Addr::from(six).into())),
            NAME => std::str::from_utf8(&address[1..]).ok().and_then(|name| name.parse().ok()),
            _ => {
                self.reply(reply::ADDRESS);
                return self.close("the address has a type that is not known");
            }
        };
        match host.filter(|_| port != 0) {
            Some(host) => self.state = State::Opening(Endpoint { host, port }),
            None => {
                self.reply(reply::FAILURE);
                self.close("the destination is not a name or address with a port");
            }
        }
    }

    fn reply(&mut self, code: u8) {
        // The address that the last gateway's socket is bound to is none of this host.
        self.say(&[VERSION, code, 0, IPV4, 0, 0, 0, 0, 0, 0]);
    }

    fn say(&mut self, bytes: &[u8]) {
        self.out[..bytes.len()].copy_from_slice(bytes);
        self.pending = 0..bytes.len();
    }

    fn close(&mut self, why: &'static str) {
        self.enter(State::Closing(why));
    }

    fn enter(&mut self, state: State) {
        (self.state, self.filled) = (state, 0);
    }
}

/// The reply for a code, so that the client's error is the one of a direct connection, where there is one.
fn reply_to(code: Code) -> u8 {
    match code {
        Code::AuthRequired | Code::AuthFailed | Code::NotAllowed => reply::NOT_ALLOWED,
        Code::NetworkUnreachable => reply::NETWORK_UNREACHABLE,
        Code::HostUnreachable | Code::NameNotFound | Code::NoRoute | Code::Loop => reply::HOST_UNREACHABLE,
        Code::Refused => reply::REFUSED,
        Code::TimedOut | Code::HandshakeTimeout => reply::EXPIRED,
        _ => reply::FAILURE,
    }
}
