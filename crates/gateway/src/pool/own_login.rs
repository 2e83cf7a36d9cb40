//! What this gateway, or an agent, proves itself with to a peer: the password or the bearer token of the agent's user (P8, P27), or an
//! address of its operator (P26).
//!
//! A password proves itself without being told, and an address is no secret: both go with the greeting. A token goes to a peer that has
//! asked for one, and only inside TLS or QUIC, where the peer has proved itself.

use super::LocalIdentity;
use crate::handshake::{Asking, OwnLoginError};
use phoebus_config::bearer::BearerError;
use phoebus_config::logins::{Login, Logins};
use phoebus_net::{ConnectionNote, Stream};
use phoebus_proto::session::auth::scram::{self, Binding};
use phoebus_proto::session::auth::{Credential, Exchange, token};
use phoebus_proto::session::login::{self, LoginError, Random};
use phoebus_proto::session::message::{Hello, Open};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The authentication of one connection.
#[derive(Debug)]
pub(super) struct OwnLogin {
    contact: Option<String>,
    password: Option<Login>,
    token: Token,
    /// Whether the peer has ever asked for a token.
    is_asked_for_token: Arc<AtomicBool>,
    binding: Option<Binding>,
    random: Random,
    exchange: Option<Exchange>,
    /// What was sent on this connection. Nothing is sent twice.
    sent: Vec<Kind>,
    /// On a connection with several streams: who has authenticated on it.
    note: Option<Arc<ConnectionNote>>,
}

/// What a credential is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Password,
    Token,
    Contact,
}

/// The token of an agent's user.
enum Token {
    None,
    Found(String),
    Unusable(BearerError),
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Found(_) => f.write_str("Found"),
            Self::Unusable(error) => write!(f, "Unusable({error})"),
        }
    }
}

/// As whom the user would log in now: it may have changed since the agent has started.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kept {
    password: Option<Login>,
    /// The hash of the token.
    token: Option<u64>,
}

impl Kept {
    /// # Errors
    /// The file with the user's passwords cannot be used.
    pub(super) async fn now(own: &LocalIdentity) -> io::Result<Self> {
        let token = match bearer(own).await? {
            Token::Found(token) => {
                let mut hasher = DefaultHasher::new();
                token.hash(&mut hasher);
                Some(hasher.finish())
            }
            Token::None | Token::Unusable(_) => None,
        };
        Ok(Self { password: kept(own).await?, token })
    }
}

/// The login that the user keeps for the peer now.
async fn kept(own: &LocalIdentity) -> io::Result<Option<Login>> {
    let Some((file, gateway)) = own.logins.clone() else { return Ok(None) };
    let read = move || Logins::read(&file).map(|logins| logins.at(gateway.as_ref()).cloned());
    let read = tokio::task::spawn_blocking(read).await.map_err(|error| io::Error::other(error.to_string()))?;
    read.map_err(|error| io::Error::other(error.to_string()))
}

/// The user's token now.
async fn bearer(own: &LocalIdentity) -> io::Result<Token> {
    let Some(places) = own.bearer.clone() else { return Ok(Token::None) };
    let read = tokio::task::spawn_blocking(move || places.read()).await;
    Ok(match read.map_err(|error| io::Error::other(error.to_string()))? {
        Ok(Some(token)) => Token::Found(token),
        Ok(None) => Token::None,
        Err(error) => Token::Unusable(error),
    })
}

/// The password or the token that was proved on a connection.
#[derive(Debug, PartialEq, Eq)]
enum Shown {
    Password(Box<Login>),
    Token,
}

impl OwnLogin {
    /// On this connection.
    ///
    /// # Errors
    /// The file with the user's passwords cannot be used, or there are no random numbers.
    pub(super) async fn on(stream: &Stream, own: &LocalIdentity) -> io::Result<Self> {
        let other = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
        let mut random: Random = [0; _];
        getrandom::fill(&mut random).map_err(|error| other(&error))?;
        let password = kept(own).await?;
        let is_protected = stream.channel_binding().is_some();
        let token = if is_protected { bearer(own).await? } else { Token::None };
        let binding = if password.is_some() { stream.channel_binding() } else { None };
        let note = stream.connection_note();
        let is_asked_for_token = own.is_asked_for_token.clone();
        Ok(Self {
            contact: own.contact.clone(),
            password,
            token,
            is_asked_for_token,
            binding,
            random,
            note,
            ..Self::none()
        })
    }

    /// None: for a connection on which nothing is requested.
    pub(super) fn none() -> Self {
        Self {
            contact: None,
            password: None,
            token: Token::None,
            is_asked_for_token: Arc::default(),
            binding: None,
            random: [0; _],
            exchange: None,
            sent: Vec::new(),
            note: None,
        }
    }

    /// Begins a greeting.
    ///
    /// # Errors
    /// A message that does not fit.
    pub(super) fn greet(&mut self, hello: &Hello<'_>) -> Result<Asking, LoginError> {
        self.begin(|login| login::greet((Vec::new(), Vec::new()), hello, login))
    }

    /// Begins a greeting with a request.
    ///
    /// # Errors
    /// A message that does not fit.
    pub(super) fn connect(&mut self, hello: &Hello<'_>, open: &Open<'_>) -> Result<Asking, LoginError> {
        self.begin(|login| login::connect((Vec::new(), Vec::new()), hello, login, open))
    }

    fn begin<A>(
        &mut self,
        begin: impl FnOnce(Option<(&Credential, Random)>) -> Result<(A, Option<Exchange>), LoginError>,
    ) -> Result<A, LoginError> {
        let first = self.first();
        let credential = first.and_then(|kind| self.credential(kind));
        let (asking, exchange) = begin(credential.as_ref().map(|credential| (credential, self.random)))?;
        self.exchange = exchange;
        self.sent.extend(first);
        Ok(asking)
    }

    /// Goes on after the peer's CHALLENGE or PROVED; begins where a peer wants authentication, or has wanted it since its reload.
    /// Returns whether there is more to do.
    ///
    /// # Errors
    /// The peer has not proved itself, or breaks the rules; or it wants a token, and the user's cannot be used.
    pub(super) fn go_on(&mut self, asking: &mut Asking, open: Option<&Open<'_>>) -> Result<bool, OwnLoginError> {
        let wanted = asking.challenge().filter(|challenge| challenge.data.is_empty());
        let wants_token = wanted.is_some_and(|wanted| wanted.mechanisms.iter().any(|name| name == token::NAME));
        // Whoever has to prove that it knows a password does not get anything else instead.
        if wanted.is_some() && !self.exchange.as_ref().is_some_and(Exchange::awaits_proof) {
            return self.begin_next(asking, open, wants_token);
        }
        let mut exchange = self.exchange.take();
        let password = self.credential(Kind::Password);
        let goes_on = login::go_on(asking, exchange.as_mut(), password.as_ref(), open);
        self.exchange = exchange;
        if let (Some(note), Some(password), false) = (&self.note, &self.password, self.awaits_proof()) {
            note.set(Shown::Password(Box::new(password.clone())));
        }
        Ok(goes_on?)
    }

    /// Begins with what the peer takes and has not got yet. False if there is nothing.
    fn begin_next(
        &mut self,
        asking: &mut Asking,
        open: Option<&Open<'_>>,
        wants_token: bool,
    ) -> Result<bool, OwnLoginError> {
        for kind in [Kind::Password, Kind::Token, Kind::Contact] {
            if self.sent.contains(&kind) {
                continue;
            }
            // An address does not stand for a token that the user means to show.
            if kind == Kind::Token
                && wants_token
                && matches!(self.token, Token::Unusable(_))
                && let Token::Unusable(error) = std::mem::replace(&mut self.token, Token::None)
            {
                return Err(error.into());
            }
            let Some(credential) = self.credential(kind) else { continue };
            let Some(exchange) = login::begin(asking, (&credential, self.random), open)? else { continue };
            self.exchange = Some(exchange);
            self.sent.push(kind);
            if kind == Kind::Token {
                self.is_asked_for_token.store(true, Ordering::Relaxed);
                self.note.iter().for_each(|note| note.set(Shown::Token));
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn awaits_proof(&self) -> bool {
        self.exchange.as_ref().is_none_or(Exchange::awaits_proof)
    }

    /// What is shown at once: nothing if it was shown on this connection before. The peer asks if it has forgotten.
    fn first(&self) -> Option<Kind> {
        let shown = self.note.as_ref().and_then(|note| note.get::<Shown>());
        let shown = shown.as_deref();
        match (&self.password, &self.token, &self.contact) {
            (Some(own), ..) => {
                let is_known = matches!(shown, Some(Shown::Password(login)) if **login == *own);
                (!is_known).then_some(Kind::Password)
            }
            (None, Token::Found(_), _) if self.is_asked_for_token.load(Ordering::Relaxed) => {
                (shown != Some(&Shown::Token)).then_some(Kind::Token)
            }
            // The peer may take both, and has to ask for the token.
            (None, Token::Found(_) | Token::Unusable(_), _) => None,
            (None, Token::None, contact) => contact.is_some().then_some(Kind::Contact),
        }
    }

    fn credential(&self, kind: Kind) -> Option<Credential<'_>> {
        match kind {
            Kind::Password => self.password.as_ref().map(|login| {
                let binding = self.binding.as_ref();
                Credential::Password(scram::Login { user: &login.user, keys: &login.keys, binding })
            }),
            Kind::Token => match &self.token {
                Token::Found(token) => Some(Credential::Token(token)),
                Token::None | Token::Unusable(_) => None,
            },
            Kind::Contact => self.contact.as_deref().map(Credential::Anonymous),
        }
    }
}
