//! HTTP CONNECT (RFC 9110 §9.3.6) in HTTP/1.1 and HTTP/1.0 (RFC 9112), with passwords (RFC 7617), on the proxy's side.
//!
//! One request for each connection. What does not follow the grammar to the letter is refused: nothing is passed on, so that no
//! other reader can take it for something else.

use super::{Access, Login, Refusal, Step};
use crate::endpoint::{Endpoint, Host};
use crate::session::Code;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Longest head of a request: far longer than programs send, and a bound on what a stranger occupies.
pub(super) const HEAD_MAX: usize = 8192;
/// What ends a head.
const END: &[u8] = b"\r\n\r\n";
/// Memory is taken in such steps.
const STEP: usize = 512;

/// The state of a connection.
#[derive(Debug)]
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

#[derive(Debug, PartialEq, Eq)]
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

/// A response that ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Status {
    number: u16,
    phrase: &'static str,
    /// Header fields besides those of every response.
    fields: &'static str,
}

const BAD_REQUEST: Status = Status { number: 400, phrase: "Bad Request", fields: "" };
const METHOD: Status = Status { number: 405, phrase: "Method Not Allowed", fields: "Allow: CONNECT\r\n" };
const TOO_LONG: Status = Status { number: 431, phrase: "Request Header Fields Too Large", fields: "" };
const VERSION: Status = Status { number: 505, phrase: "HTTP Version Not Supported", fields: "" };
const FORBIDDEN: Status = Status { number: 403, phrase: "Forbidden", fields: "" };
const TOO_MANY: Status = Status { number: 429, phrase: "Too Many Requests", fields: "" };
const TIMEOUT: Status = Status { number: 408, phrase: "Request Timeout", fields: "" };
const UNAVAILABLE: Status = Status { number: 503, phrase: "Service Unavailable", fields: "" };
const BAD_GATEWAY: Status = Status { number: 502, phrase: "Bad Gateway", fields: "" };
const GATEWAY_TIMEOUT: Status = Status { number: 504, phrase: "Gateway Timeout", fields: "" };
const PASSWORD: Status = Status {
    number: 407,
    phrase: "Proxy Authentication Required",
    fields: "Proxy-Authenticate: Basic realm=\"phoebus\", charset=\"UTF-8\"\r\n",
};

/// A request that is refused before anything is opened for it.
type Bad = (Status, &'static str);

/// What a request asks for.
struct Connect<'a> {
    to: Endpoint,
    /// The value of Proxy-Authorization.
    authorization: Option<&'a [u8]>,
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

/// Reads the lines of a head.
fn connect(head: &[u8]) -> Result<Connect<'_>, Bad> {
    let mut rest = Some(head);
    let mut line = || {
        let Some(text) = rest else { return Ok(None) };
        let end = text.windows(2).position(|two| two == b"\r\n");
        rest = end.map(|end| &text[end + 2..]);
        let line = &text[..end.unwrap_or(text.len())];
        // A line feed alone ends no line here, so that nobody sees other lines in the head.
        match line.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control()) {
            true => Ok(Some(line)),
            false => Err((BAD_REQUEST, "the head of the request has a control character")),
        }
    };
    let first = line()?.unwrap_or_default();
    let (target, version) = request_line(first)?;
    let (mut hosts, mut authorization) = (0, None);
    while let Some(line) = line()? {
        let (name, value) = field(line).ok_or((BAD_REQUEST, "a header field is malformed"))?;
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
        } else if name.eq_ignore_ascii_case(b"proxy-authorization") {
            if authorization.replace(value).is_some() {
                return Err((BAD_REQUEST, "there are two fields Proxy-Authorization"));
            }
        } else if name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err((BAD_REQUEST, "CONNECT has no content (RFC 9110, section 9.3.6)"));
        }
    }
    if hosts > 1 || hosts == 0 && version == b"HTTP/1.1" {
        return Err((BAD_REQUEST, "expected one field Host (RFC 9112, section 3.2)"));
    }
    let to =
        authority(target).ok_or((BAD_REQUEST, "expected CONNECT HOST:PORT, with brackets around an IPv6 address"))?;
    Ok(Connect { to, authorization })
}

/// The target and the version in a request line.
fn request_line(line: &[u8]) -> Result<(&[u8], &[u8]), Bad> {
    let [method, target, version] = line.split(|byte| *byte == b' ').collect::<Vec<_>>()[..] else {
        return Err((BAD_REQUEST, "expected a line such as CONNECT host.example:443 HTTP/1.1"));
    };
    if method.is_empty() || !method.iter().copied().all(is_token) || target.is_empty() {
        return Err((BAD_REQUEST, "expected a line such as CONNECT host.example:443 HTTP/1.1"));
    }
    match version {
        b"HTTP/1.1" | b"HTTP/1.0" if method == b"CONNECT" => Ok((target, version)),
        version if !version.starts_with(b"HTTP/") => {
            Err((BAD_REQUEST, "expected HTTP/1.1 at the end of the first line"))
        }
        _ if method != b"CONNECT" => {
            Err((METHOD, "this proxy takes CONNECT alone; for http:// addresses use its SOCKS5 (socks5h://)"))
        }
        _ => Err((VERSION, "expected HTTP/1.1 or HTTP/1.0")),
    }
}

/// The name and the value of a header field. No field goes on in another line (RFC 9112 §5.2).
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    (!name.is_empty() && name.iter().copied().all(is_token)).then(|| (name, value.trim_ascii()))
}

/// Whether a token may have this byte (RFC 9110 §5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The destination in `HOST:PORT`.
fn authority(text: &[u8]) -> Option<Endpoint> {
    let text = std::str::from_utf8(text).ok()?;
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
        Some(six) => Host::Addr(six?.parse::<Ipv6Addr>().ok()?.into()),
        None if host.contains(':') => return None,
        None => match host.parse::<Ipv4Addr>() {
            Ok(four) => Host::Addr(four.into()),
            Err(_) => host.parse().ok()?,
        },
    };
    let digits = port.bytes().all(|digit| digit.is_ascii_digit());
    let port = port.parse().ok().filter(|port| *port != 0 && digits)?;
    Some(Endpoint { host, port })
}

/// The name and the password in the value of Proxy-Authorization.
fn basic(value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, rest) = value.split_at_checked(b"basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let text = STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = text.iter().position(|byte| *byte == b':')?;
    Some((text[..colon].to_vec(), text[colon + 1..].to_vec()))
}

/// The status for a code, and its name in RFC 9209 §2.3.
fn status_of(code: Code) -> (Status, Option<&'static str>) {
    match code {
        Code::NotAllowed => (FORBIDDEN, Some("http_request_denied")),
        Code::AuthRequired | Code::AuthFailed => (FORBIDDEN, Some("http_request_denied")),
        Code::Limit => (UNAVAILABLE, Some("connection_limit_reached")),
        Code::Draining => (UNAVAILABLE, Some("destination_unavailable")),
        Code::TimedOut | Code::HandshakeTimeout => (GATEWAY_TIMEOUT, Some("connection_timeout")),
        Code::NameNotFound => (BAD_GATEWAY, Some("dns_error")),
        Code::Refused => (BAD_GATEWAY, Some("connection_refused")),
        Code::NoRoute | Code::NetworkUnreachable | Code::HostUnreachable => {
            (BAD_GATEWAY, Some("destination_ip_unroutable"))
        }
        Code::Loop => (BAD_GATEWAY, Some("proxy_loop_detected")),
        Code::Internal => (BAD_GATEWAY, Some("proxy_internal_error")),
        _ => (BAD_GATEWAY, Some("destination_unavailable")),
    }
}
