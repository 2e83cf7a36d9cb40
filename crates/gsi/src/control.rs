//! GSSAPI on the control channel (RFC 2228 as GCT implements it): `AUTH GSSAPI`, `ADAT`, and protected
//! commands (`ENC`, `MIC`, `CONF`) and replies (632, 631, 633).
//!
//! Lines are passed without their CRLF. Tokens are base64. GCT protects every command with `ENC` and every
//! reply with 632, whatever the level, since its TLS always encrypts. This module does the same as a client;
//! as a server it answers each command with the reply code that matches the command's protection.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::context::{Context, Delegation, Endpoint, Expect, HandshakeError, MAX_TOKEN, Step};

/// Longest line with a token, in characters.
pub const MAX_LINE: usize = MAX_TOKEN / 3 * 4 + 16;

/// The protection of a line. All three are the same TLS records and differ only in their keywords.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// `MIC` and 631: integrity.
    Integrity,
    /// `CONF` and 633: confidentiality.
    Confidentiality,
    /// `ENC` and 632: both.
    Privacy,
}

/// The client's next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Send this line, and pass its reply to [`ClientLogin::reply`].
    Send(String),
    /// The context is open: call [`ClientLogin::finish`].
    Done,
}

/// The server's next action.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The reply line to send.
    pub line: String,
    /// Whether the context is open: call [`ServerLogin::finish`].
    pub done: bool,
    /// The failure, if any, for the log.
    pub error: Option<ControlError>,
}

/// The reason why the control channel could not be secured, or a line could not be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ControlError {
    /// The server refused the command.
    #[error("the server refused {what}: {code} {text}")]
    Refused {
        /// The command.
        what: &'static str,
        /// The reply code.
        code: u16,
        /// The reply text.
        text: String,
    },
    /// The server's reply does not fit the protocol.
    #[error("the server answered {code} {text}; {expected} was expected")]
    Unexpected {
        /// The reply code.
        code: u16,
        /// The reply text.
        text: String,
        /// The expected reply.
        expected: &'static str,
    },
    /// The security context failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// A token is not base64.
    #[error("the token is not base64")]
    Base64,
    /// A line exceeds [`MAX_LINE`].
    #[error("a line of {0} characters; at most {MAX_LINE} are read")]
    TooLong(usize),
    /// A line arrived in clear after the channel was secured.
    #[error("a line came unprotected; ENC, MIC or CONF, or a reply 631, 632 or 633, was expected")]
    Unprotected,
    /// A protected command is not valid UTF-8.
    #[error("a protected command is not text")]
    NotText,
}

/// A client's login, from the greeting `220` to a secured control channel.
#[derive(Debug)]
pub struct ClientLogin {
    context: Context,
    /// The first token, until the server has accepted the mechanism.
    first: Option<Vec<u8>>,
}

impl ClientLogin {
    /// Starts a login; the returned line is to be sent after the server's greeting. `now` is in seconds since
    /// 1970.
    ///
    /// # Errors
    /// [`ControlError::Handshake`].
    pub fn begin(
        endpoint: &Endpoint,
        server: Expect,
        delegation: Delegation,
        now: i64,
    ) -> Result<(Self, String), ControlError> {
        let (context, first) = Context::initiate(endpoint, server, delegation, now)?;
        Ok((Self { context, first: Some(first) }, "AUTH GSSAPI".to_owned()))
    }

    /// Processes the server's reply: its code, and its text without codes, with lines separated by `\n`.
    ///
    /// # Errors
    /// [`ControlError`]; the login has then failed.
    pub fn reply(&mut self, code: u16, text: &str) -> Result<Next, ControlError> {
        if text.len() > MAX_LINE {
            return Err(ControlError::TooLong(text.len()));
        }
        let refused = |what| ControlError::Refused { what, code, text: text.to_owned() };
        let unexpected = |expected| ControlError::Unexpected { code, text: text.to_owned(), expected };
        if let Some(first) = self.first.take() {
            return match code {
                334 => Ok(Next::Send(adat(&first))),
                400..=599 => Err(refused("AUTH GSSAPI")),
                _ => Err(unexpected("334")),
            };
        }
        let token = text.trim_start().strip_prefix("ADAT=").map(|token| decode(token.trim())).transpose()?;
        match (code, token) {
            (335, Some(token)) => match self.context.step(&token)? {
                Step::Continue(next) | Step::Done(next) if !next.is_empty() => Ok(Next::Send(adat(&next))),
                _ => Err(unexpected("235, since the context is established,")),
            },
            (235, token) => {
                if let Some(token) = token
                    && !matches!(self.context.step(&token)?, Step::Done(last) if last.is_empty())
                {
                    return Err(unexpected("335, since another token follows,"));
                }
                if self.context.is_open() { Ok(Next::Done) } else { Err(unexpected("335 with ADAT=")) }
            }
            (400..=599, _) => Err(refused("ADAT")),
            _ => Err(unexpected("335 or 235")),
        }
    }

    /// The secured channel, after [`Next::Done`].
    ///
    /// # Errors
    /// [`HandshakeError::Over`] before that.
    pub fn finish(self) -> Result<Protected, HandshakeError> {
        Protected::new(self.context)
    }
}

/// A server's login, from the greeting `220` to a secured control channel.
pub struct ServerLogin {
    endpoint: Endpoint,
    context: Option<Context>,
}

impl ServerLogin {
    /// Creates a login that waits for `AUTH`.
    pub fn new(endpoint: &Endpoint) -> Self {
        Self { endpoint: endpoint.clone(), context: None }
    }

    /// Processes `AUTH` or `ADAT` with its argument; `now` is in seconds since 1970. After a failure the
    /// client may start again; the caller bounds the number of attempts.
    pub fn command(&mut self, verb: &str, argument: &str, now: i64) -> Answer {
        let verb = verb.to_ascii_uppercase();
        match (verb.as_str(), argument.trim()) {
            ("AUTH", mechanism) if mechanism.eq_ignore_ascii_case("GSSAPI") => {
                match Context::accept(&self.endpoint, Expect::Anyone, now) {
                    Ok(context) => {
                        self.context = Some(context);
                        Answer::say("334 Using authentication type GSSAPI; ADAT must follow.")
                    }
                    Err(error) => Answer::fail("431 This server cannot use GSSAPI now", error.into()),
                }
            }
            ("AUTH", _) => Answer::say("504 Unknown authentication type; GSSAPI is known."),
            ("ADAT", token) => match &mut self.context {
                None => Answer::say("503 ADAT must follow AUTH GSSAPI."),
                Some(context) => match Self::advance(context, token) {
                    Ok(answer) => answer,
                    Err(error) => {
                        self.context = None;
                        let code = if matches!(error, ControlError::Handshake(_)) { 535 } else { 501 };
                        Answer::fail(&format!("{code} Authentication failed"), error)
                    }
                },
            },
            _ => Answer::say("530 Must perform GSSAPI authentication."),
        }
    }

    fn advance(context: &mut Context, token: &str) -> Result<Answer, ControlError> {
        if token.len() > MAX_LINE {
            return Err(ControlError::TooLong(token.len()));
        }
        Ok(match context.step(&decode(token)?)? {
            Step::Continue(token) => Answer::say(&format!("335 ADAT={}", STANDARD.encode(token))),
            Step::Done(token) => {
                let line = match token.as_slice() {
                    [] => "235 GSSAPI authentication successful.".to_owned(),
                    token => format!("235 ADAT={}", STANDARD.encode(token)),
                };
                Answer { done: true, ..Answer::say(&line) }
            }
        })
    }

    /// The secured channel, after an answer with [`Answer::done`].
    ///
    /// # Errors
    /// [`HandshakeError::Over`] before that.
    pub fn finish(self) -> Result<Protected, HandshakeError> {
        Protected::new(self.context.ok_or(HandshakeError::Over)?)
    }
}

impl Answer {
    fn say(line: &str) -> Self {
        Self { line: line.to_owned(), done: false, error: None }
    }

    fn fail(start: &str, error: ControlError) -> Self {
        // A name in a certificate may contain any character, but a reply is one line.
        let text = format!("{start}: {error}").replace(|c: char| c.is_control(), " ");
        Self { line: text, done: false, error: Some(error) }
    }
}

/// A control channel with protected lines.
#[derive(Debug)]
pub struct Protected {
    context: Context,
}

impl Protected {
    fn new(context: Context) -> Result<Self, HandshakeError> {
        if context.is_open() { Ok(Self { context }) } else { Err(HandshakeError::Over) }
    }

    /// The security context, with the peer's identity and delegated credential.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Protects a client's command.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn command(&mut self, line: &str) -> Result<String, HandshakeError> {
        Ok(format!("ENC {}", self.seal(line)?))
    }

    /// Decrypts a command on the server; `None` if the verb is none of `ENC`, `MIC` and `CONF`.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn open_command(&mut self, verb: &str, argument: &str) -> Result<Option<(String, Level)>, ControlError> {
        let Some(level) = Level::of_verb(verb) else { return Ok(None) };
        let bytes = self.open(argument)?;
        let line = String::from_utf8(bytes).map_err(|_| ControlError::NotText)?;
        Ok(Some((line.trim_end_matches(['\r', '\n', '\0']).to_owned(), level)))
    }

    /// Protects a server's reply, which may consist of several lines separated by CRLF.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn reply(&mut self, level: Level, reply: &str) -> Result<String, HandshakeError> {
        Ok(format!("{} {}", level.code(), self.seal(reply)?))
    }

    /// Decrypts one line on the client, `632 TOKEN` or `632-TOKEN`, and returns bytes of the reply: one or several lines, or
    /// less than a line if the server protects a reply in pieces.
    ///
    /// # Errors
    /// [`ControlError::Unprotected`] for a line in clear, which anyone on the path could have written; otherwise the error of
    /// the token.
    pub fn open_reply(&mut self, line: &str) -> Result<Vec<u8>, ControlError> {
        let (code, rest) = line.split_at_checked(3).ok_or(ControlError::Unprotected)?;
        if !matches!(code, "631" | "632" | "633") {
            return Err(ControlError::Unprotected);
        }
        let token = rest.strip_prefix([' ', '-']).ok_or(ControlError::Unprotected)?;
        self.open(token)
    }

    fn seal(&mut self, line: &str) -> Result<String, HandshakeError> {
        let line = line.trim_end_matches(['\r', '\n']);
        Ok(STANDARD.encode(self.context.wrap(format!("{line}\r\n").as_bytes())?))
    }

    fn open(&mut self, token: &str) -> Result<Vec<u8>, ControlError> {
        if token.len() > MAX_LINE {
            return Err(ControlError::TooLong(token.len()));
        }
        Ok(self.context.unwrap(&decode(token.trim())?)?)
    }
}

impl Level {
    /// The level of a command's verb, if it is `MIC`, `CONF` or `ENC`.
    pub fn of_verb(verb: &str) -> Option<Self> {
        [("MIC", Self::Integrity), ("CONF", Self::Confidentiality), ("ENC", Self::Privacy)]
            .into_iter()
            .find_map(|(word, level)| word.eq_ignore_ascii_case(verb).then_some(level))
    }

    /// The code of a protected reply.
    pub fn code(self) -> u16 {
        match self {
            Self::Integrity => 631,
            Self::Privacy => 632,
            Self::Confidentiality => 633,
        }
    }
}

fn adat(token: &[u8]) -> String {
    format!("ADAT {}", STANDARD.encode(token))
}

fn decode(token: &str) -> Result<Vec<u8>, ControlError> {
    STANDARD.decode(token).map_err(|_| ControlError::Base64)
}
