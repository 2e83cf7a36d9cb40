//! A GSSAPI security context, as GCT's mechanism builds it from TLS (1.2 or 1.3).
//!
//! Tokens are bare TLS records. After the handshake, the initiator sends one byte inside TLS: `0`, or `D` to
//! delegate its rights. After `D`, the acceptor sends a request for a proxy (PKCS#10), and the initiator
//! answers with a certificate, both in DER. If the initiator's own flight completed the handshake (TLS 1.3),
//! the acceptor first sends one NUL byte, so that tokens keep alternating.
//!
//! [`Context`] is pure: tokens and the time are arguments. Only keys come from the operating system's random
//! generator.

mod error;
mod exchange;
mod hello;
pub(crate) mod records;
mod verifier;

use std::fmt;
use std::sync::{Arc, PoisonError};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;

use crate::credential::Credential;
use crate::name;
use crate::proxy::request::Request;
use crate::proxy::verify::{ChainError, Verified};
use crate::trust::TrustStore;
use records::Records;
use verifier::Verdict;

pub use error::HandshakeError;

/// Largest token, in bytes. GCT's longest is a flight with a certificate chain: some thousand bytes.
pub const MAX_TOKEN: usize = 256 * 1024;
/// Most tokens from a peer before the context is open; in a stream of records each record counts as one.
pub const MAX_TOKENS: usize = 64;

/// The inputs of one end: its own credential, its trust anchors, and the algorithms.
#[derive(Clone)]
pub struct Endpoint {
    /// Its certificate chain and key.
    pub credential: Credential,
    /// Its trust anchors.
    pub trust: Arc<TrustStore>,
    /// The algorithms: [`provider`](crate::credential::provider).
    pub provider: Arc<CryptoProvider>,
}

/// The expected peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// The host of this name or address, proved by its own certificate: a proxy of it does not count.
    Host(String),
    /// The holder of this subject, in text form: for DCAU S, or for a server whose subject is given.
    Subject(String),
    /// Any peer with a trusted certificate; the caller decides by [`Context::peer`] what it may do.
    Anyone,
}

/// Whether the initiator delegates its rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delegation {
    /// No delegation.
    None,
    /// Delegation of limited rights.
    Limited,
    /// Delegation of all rights: a full proxy, or a limited one if the initiator's own proxy is limited.
    Full,
}

/// The result of processing a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send this token and wait for the next. It may be empty if records are processed one by one.
    Continue(Vec<u8>),
    /// The context is open; send this token, unless it is empty.
    Done(Vec<u8>),
}

/// A security context, open or being established.
pub struct Context {
    endpoint: Endpoint,
    records: Records,
    verdict: Verdict,
    state: State,
    peer: Option<Verified>,
    delegated: Option<Credential>,
    /// Whether rights are delegated; `None` for plain TLS, which has no delegation messages.
    delegation: Option<Delegation>,
    now: i64,
    tokens: usize,
}

enum State {
    /// In the TLS handshake.
    Handshake { initiator: bool },
    /// The initiator waits for the acceptor to pass its turn.
    InitiatorFlag,
    /// The initiator waits for a request.
    InitiatorRequest,
    /// The acceptor waits for `0` or `D`.
    AcceptorFlag,
    /// The acceptor waits for its proxy.
    AcceptorCertificate(Option<Request>),
    /// Open.
    Open,
    /// Failed permanently.
    Failed,
}

impl Expect {
    fn server_name(&self) -> ServerName<'static> {
        // The name only fills a field of the handshake; `check` authenticates the peer.
        let placeholder = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
        match self {
            Self::Host(host) => ServerName::try_from(host.clone()).unwrap_or(placeholder),
            _ => placeholder,
        }
    }

    fn check(&self, peer: &Verified) -> Result<(), HandshakeError> {
        let identity = || peer.identity().to_owned();
        match self {
            Self::Host(host) if peer.proxies() > 0 => {
                Err(HandshakeError::ProxyAsHost { identity: identity(), host: host.clone() })
            }
            Self::Host(host) if !peer.is_host(host) => {
                Err(HandshakeError::OtherHost { identity: identity(), host: host.clone() })
            }
            Self::Subject(expected) if !name::same(peer.identity(), expected) => {
                Err(HandshakeError::OtherSubject { identity: identity(), expected: expected.clone() })
            }
            _ => Ok(()),
        }
    }
}

impl Context {
    /// Starts a context as the initiator, and returns the first token to send. `now` is in seconds since
    /// 1970.
    ///
    /// # Errors
    /// [`HandshakeError::Tls`] if the algorithms do not suffice for TLS.
    pub fn initiate(
        endpoint: &Endpoint,
        expect: Expect,
        delegation: Delegation,
        now: i64,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        Self::new(endpoint, expect, Some(delegation), true, now)?.begun()
    }

    /// As [`Context::initiate`] for plain TLS: data follows the handshake directly.
    pub(crate) fn initiate_tls(
        endpoint: &Endpoint,
        expect: Expect,
        now: i64,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        Self::new(endpoint, expect, None, true, now)?.begun()
    }

    fn begun(mut self) -> Result<(Self, Vec<u8>), HandshakeError> {
        let mut token = Vec::new();
        self.records.emit(&mut token);
        Ok((self, token))
    }

    /// Starts a context as the acceptor. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// [`HandshakeError::Tls`] if the algorithms do not suffice for TLS.
    pub fn accept(endpoint: &Endpoint, expect: Expect, now: i64) -> Result<Self, HandshakeError> {
        Self::new(endpoint, expect, Some(Delegation::None), false, now)
    }

    /// As [`Context::accept`] for plain TLS: data follows the handshake directly.
    pub(crate) fn accept_tls(endpoint: &Endpoint, expect: Expect, now: i64) -> Result<Self, HandshakeError> {
        Self::new(endpoint, expect, None, false, now)
    }

    fn new(
        endpoint: &Endpoint,
        expect: Expect,
        delegation: Option<Delegation>,
        initiator: bool,
        now: i64,
    ) -> Result<Self, HandshakeError> {
        let (connection, verdict) = verifier::connection(endpoint, expect, initiator, now)?;
        Ok(Self {
            endpoint: endpoint.clone(),
            records: Records::new(connection),
            verdict,
            state: State::Handshake { initiator },
            peer: None,
            delegated: None,
            delegation,
            now,
            tokens: 0,
        })
    }

    /// Processes the peer's next token: one or more whole TLS records.
    ///
    /// # Errors
    /// [`HandshakeError`]; the context has then failed, and [`alert`](Self::alert) may return a last token
    /// for the peer.
    pub fn step(&mut self, token: &[u8]) -> Result<Step, HandshakeError> {
        let outcome = self.advance(token);
        if outcome.is_err() {
            self.state = State::Failed;
        }
        outcome
    }

    fn advance(&mut self, token: &[u8]) -> Result<Step, HandshakeError> {
        if token.len() > MAX_TOKEN {
            return Err(HandshakeError::TokenTooLong(token.len()));
        }
        self.tokens += 1;
        if self.tokens > MAX_TOKENS {
            return Err(HandshakeError::TooManyTokens);
        }
        if matches!(self.state, State::Open | State::Failed) {
            return Err(HandshakeError::Over);
        }
        self.absorb(token).map_err(|error| self.reason(error))?;
        match &mut self.state {
            State::Handshake { initiator } => {
                let initiator = *initiator;
                if !self.records.is_handshaking() {
                    self.settle_peer()?;
                    self.after_handshake(initiator)?;
                }
            }
            State::InitiatorFlag => self.send_flag()?,
            State::InitiatorRequest => self.answer_request()?,
            State::AcceptorFlag => self.read_flag()?,
            State::AcceptorCertificate(_) => self.read_certificate()?,
            State::Open | State::Failed => {}
        }
        let mut out = Vec::new();
        self.records.emit(&mut out);
        Ok(if matches!(self.state, State::Open) { Step::Done(out) } else { Step::Continue(out) })
    }

    fn absorb(&mut self, token: &[u8]) -> Result<(), rustls::Error> {
        if matches!(self.state, State::Handshake { initiator: false }) {
            let mut token = token.to_vec();
            hello::hide(&mut token);
            return self.records.absorb(&token);
        }
        self.records.absorb(token)
    }

    /// The verifier's own error, if it ended the handshake.
    fn reason(&self, error: rustls::Error) -> HandshakeError {
        match &*self.verdict.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Err(reason)) => reason.clone(),
            _ => error.into(),
        }
    }

    fn settle_peer(&mut self) -> Result<(), HandshakeError> {
        match self.verdict.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(Ok(peer)) => self.peer = Some(peer),
            Some(Err(error)) => return Err(error),
            None => return Err(ChainError::Empty.into()),
        }
        Ok(())
    }

    /// After a failure: the TLS alert for the peer, if there is one.
    pub fn alert(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if matches!(self.state, State::Failed) {
            self.records.emit(&mut out);
        }
        out
    }

    /// Whether the context is open.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// The peer's verified chain, once the context is open.
    pub fn peer(&self) -> Option<&Verified> {
        self.peer.as_ref().filter(|_| self.is_open())
    }

    /// The credential that the peer delegated, if any.
    pub fn delegated(&self) -> Option<&Credential> {
        self.delegated.as_ref()
    }

    /// The TLS version and cipher suite, for reports.
    pub fn protection(&self) -> String {
        let version = self.records.tls().protocol_version().map_or("no TLS".to_owned(), |v| format!("{v:?}"));
        let suite = self.records.tls().negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()));
        format!("{version} {}", suite.unwrap_or_default()).trim_end().to_owned()
    }

    /// Encrypts a message for the peer into one token. TLS always provides integrity and confidentiality
    /// here.
    ///
    /// # Errors
    /// [`HandshakeError::Over`] before the context is open.
    pub fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        let mut token = Vec::new();
        self.seal(message, &mut token)?;
        Ok(token)
    }

    /// Decrypts a message from the peer.
    ///
    /// # Errors
    /// [`HandshakeError`] if the token is malformed, altered, replayed or out of order.
    pub fn unwrap(&mut self, token: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        if token.len() > MAX_TOKEN {
            return Err(HandshakeError::TokenTooLong(token.len()));
        }
        match self.open(token)? {
            message if message.is_empty() => Err(HandshakeError::NoMessage),
            message => Ok(message),
        }
    }

    /// Encrypts bytes and appends the records.
    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        if !self.is_open() {
            return Err(HandshakeError::Over);
        }
        self.records.put(plain)?;
        self.records.emit(out);
        Ok(())
    }

    /// Decrypts whole records.
    pub(crate) fn open(&mut self, records: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        if !self.is_open() {
            return Err(HandshakeError::Over);
        }
        self.records.absorb(records)?;
        Ok(self.records.take())
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("open", &self.is_open()).field("peer", &self.peer).finish_non_exhaustive()
    }
}
