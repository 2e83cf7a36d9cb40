//! A security context: what GSSAPI calls one, as GCT's mechanism makes it out of TLS (1.2 or 1.3).
//!
//! Tokens are bare TLS records. When the handshake is over, the initiator sends one byte inside TLS: `0`, or `D` to
//! lend its rights. After `D` the acceptor sends a request for a proxy (PKCS#10), and the initiator answers with a
//! certificate, both in DER. Where the initiator's own flight ended the handshake (TLS 1.3) the acceptor first sends one
//! NUL byte, so that tokens keep taking turns.
//!
//! [`Context`] is pure: tokens and the time are arguments. Only keys come from the operating system's randomness.

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

/// The most bytes of one token. GCT's longest is a flight with a chain of certificates: some thousand bytes.
pub const MAX_TOKEN: usize = 256 * 1024;
/// The most tokens that a peer may send before the context is there; in a stream of records each record is one.
pub const MAX_TOKENS: usize = 64;

/// What one end brings: its own credential, whom it believes, and the algorithms.
#[derive(Clone)]
pub struct Endpoint {
    /// Its certificate and key.
    pub credential: Credential,
    /// Whom it believes.
    pub trust: Arc<TrustStore>,
    /// Algorithms and randomness: [`provider`](crate::credential::provider).
    pub provider: Arc<CryptoProvider>,
}

/// Who the peer has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// The host of this name or address, by the certificate that its authority issued: a proxy is no host.
    Host(String),
    /// The holder of this subject, in text form: DCAU S, or a server whose subject was given.
    Subject(String),
    /// Anyone who is believed; whether he may is decided by who asks ([`Context::peer`]).
    Anyone,
}

/// Whether the initiator lends its rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delegation {
    /// It does not.
    None,
    /// As a limited proxy.
    Limited,
    /// All of them: as a full proxy, or as a limited one where its own is limited.
    Full,
}

/// What a token led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send this token and wait for the next. It may be empty where records come one by one.
    Continue(Vec<u8>),
    /// The context is there; send this token, unless it is empty.
    Done(Vec<u8>),
}

/// A context that is coming about, or is there.
pub struct Context {
    endpoint: Endpoint,
    records: Records,
    verdict: Verdict,
    state: State,
    peer: Option<Verified>,
    delegated: Option<Credential>,
    /// Whether rights are lent; `None` where that is not talked about.
    delegation: Option<Delegation>,
    now: i64,
    tokens: usize,
}

enum State {
    /// TLS.
    Handshake { initiator: bool },
    /// The initiator waits for the acceptor's turn to pass.
    InitiatorFlag,
    /// The initiator waits for a request.
    InitiatorRequest,
    /// The acceptor waits for `0` or `D`.
    AcceptorFlag,
    /// The acceptor waits for its proxy.
    AcceptorCertificate(Option<Request>),
    /// There.
    Open,
    /// Never to be.
    Failed,
}

impl Expect {
    fn server_name(&self) -> ServerName<'static> {
        // The name goes into the handshake only; who the peer is, `check` decides.
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
    /// Begins a context as the side that speaks first, at a time in seconds since 1970; the token is to be sent.
    ///
    /// # Errors
    /// [`HandshakeError::Tls`] where the algorithms do not make up TLS.
    pub fn initiate(
        endpoint: &Endpoint,
        expect: Expect,
        delegation: Delegation,
        now: i64,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        Self::new(endpoint, expect, Some(delegation), true, now)?.begun()
    }

    /// The same for plain TLS: nothing is said between the handshake and the data.
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

    /// Begins a context as the side that answers, at a time in seconds since 1970.
    ///
    /// # Errors
    /// [`HandshakeError::Tls`] where the algorithms do not make up TLS.
    pub fn accept(endpoint: &Endpoint, expect: Expect, now: i64) -> Result<Self, HandshakeError> {
        Self::new(endpoint, expect, Some(Delegation::None), false, now)
    }

    /// The same for plain TLS: nothing is said between the handshake and the data.
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

    /// Takes the peer's next token: one or more whole TLS records.
    ///
    /// # Errors
    /// [`HandshakeError`]; the context is then over, and [`alert`](Self::alert) may have a last token for the peer.
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

    /// The sentence of the verifier, where it is what ended the handshake.
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

    /// After a failure: what tells the peer of it, a TLS alert, if there is something to tell.
    pub fn alert(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if matches!(self.state, State::Failed) {
            self.records.emit(&mut out);
        }
        out
    }

    /// Whether the context is there.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Who the peer is, once the context is there.
    pub fn peer(&self) -> Option<&Verified> {
        self.peer.as_ref().filter(|_| self.is_open())
    }

    /// The rights that the peer lent, if it did.
    pub fn delegated(&self) -> Option<&Credential> {
        self.delegated.as_ref()
    }

    /// The version of TLS and the cipher, for reports.
    pub fn protection(&self) -> String {
        let version = self.records.tls().protocol_version().map_or("no TLS".to_owned(), |v| format!("{v:?}"));
        let suite = self.records.tls().negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()));
        format!("{version} {}", suite.unwrap_or_default()).trim_end().to_owned()
    }

    /// Protects a message for the peer: one token. Both integrity and secrecy; TLS here knows nothing less.
    ///
    /// # Errors
    /// [`HandshakeError::Over`] before the context is there.
    pub fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        let mut token = Vec::new();
        self.seal(message, &mut token)?;
        Ok(token)
    }

    /// Opens a message of the peer.
    ///
    /// # Errors
    /// [`HandshakeError`] where it is not one, was altered, replayed or left out of order.
    pub fn unwrap(&mut self, token: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        if token.len() > MAX_TOKEN {
            return Err(HandshakeError::TokenTooLong(token.len()));
        }
        match self.open(token)? {
            message if message.is_empty() => Err(HandshakeError::NoMessage),
            message => Ok(message),
        }
    }

    /// Appends the records that carry these bytes.
    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        if !self.is_open() {
            return Err(HandshakeError::Over);
        }
        self.records.put(plain)?;
        self.records.emit(out);
        Ok(())
    }

    /// What is in these whole records.
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
