//! What this gateway, or an agent, proves itself with to a peer: an address of its operator (P26), or the password of the agent's user
//! (P27).

use super::LocalIdentity;
use crate::handshake::Asking;
use phoebus_config::logins::{Login, Logins};
use phoebus_net::{ConnectionNote, Stream};
use phoebus_proto::session::auth::scram::{self, Binding};
use phoebus_proto::session::auth::{Credential, Exchange};
use phoebus_proto::session::login::{self, LoginError, Random};
use phoebus_proto::session::message::{Hello, Open};
use phoebus_proto::session::plan;
use std::io;
use std::sync::Arc;

/// The authentication of one connection.
#[derive(Debug)]
pub(super) struct OwnLogin {
    contact: Option<String>,
    password: Option<Login>,
    binding: Option<Binding>,
    random: Random,
    exchange: Option<Exchange>,
    /// On a connection with several streams: who has authenticated on it.
    note: Option<Arc<ConnectionNote>>,
}

/// The login that the user keeps for the peer now: it may have changed since the agent has started.
///
/// # Errors
/// The file cannot be used.
pub(super) async fn kept(own: &LocalIdentity) -> io::Result<Option<Login>> {
    let Some((file, gateway)) = own.logins.clone() else { return Ok(None) };
    let read = move || Logins::read(&file).map(|logins| logins.at(gateway.as_ref()).cloned());
    let read = tokio::task::spawn_blocking(read).await.map_err(|error| io::Error::other(error.to_string()))?;
    read.map_err(|error| io::Error::other(error.to_string()))
}

/// The password that was proved on a connection.
#[derive(Debug, PartialEq, Eq)]
struct Shown(Login);

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
        let binding = if password.is_some() { stream.channel_binding() } else { None };
        let note = stream.connection_note();
        Ok(Self { contact: own.contact.clone(), password, binding, random, exchange: None, note })
    }

    /// None: for a connection on which nothing is requested.
    pub(super) fn none() -> Self {
        Self { contact: None, password: None, binding: None, random: [0; _], exchange: None, note: None }
    }

    /// Begins a greeting.
    ///
    /// # Errors
    /// A message that does not fit.
    pub(super) fn greet(&mut self, hello: &Hello<'_>) -> Result<Asking, LoginError> {
        let credential = self.first_credential();
        let begun = credential.as_ref().map(|credential| (credential, self.random));
        let (asking, exchange) = login::greet((Vec::new(), Vec::new()), hello, begun)?;
        self.exchange = exchange;
        Ok(asking)
    }

    /// Begins a greeting with a request.
    ///
    /// # Errors
    /// A message that does not fit.
    pub(super) fn connect(&mut self, hello: &Hello<'_>, open: &Open<'_>) -> Result<Asking, LoginError> {
        let credential = self.first_credential();
        let begun = credential.as_ref().map(|credential| (credential, self.random));
        let (asking, exchange) = login::connect((Vec::new(), Vec::new()), hello, begun, open)?;
        self.exchange = exchange;
        Ok(asking)
    }

    /// Goes on after the peer's CHALLENGE or PROVED; begins where a peer wants authentication since its reload. Returns whether there
    /// is more to do.
    ///
    /// # Errors
    /// The peer has not proved itself, or breaks the rules.
    pub(super) fn go_on(&mut self, asking: &mut Asking, open: Option<&Open<'_>>) -> Result<bool, LoginError> {
        let credential = self.credential();
        if self.exchange.is_none()
            && let Some(credential) = &credential
        {
            let begun = login::begin(asking, (credential, self.random), open)?;
            let goes_on = begun.is_some();
            self.exchange = begun;
            return Ok(goes_on);
        }
        let mut exchange = self.exchange.take();
        let goes_on = login::go_on(asking, exchange.as_mut(), self.credential().as_ref(), open);
        self.exchange = exchange;
        if let (Some(note), Some(password), false) = (&self.note, &self.password, self.awaits_proof()) {
            note.set(Shown(password.clone()));
        }
        goes_on
    }

    fn awaits_proof(&self) -> bool {
        self.exchange.as_ref().is_none_or(Exchange::awaits_proof)
    }

    /// What is shown at once: nothing if it was shown on this connection before. The peer asks if it has forgotten.
    fn first_credential(&self) -> Option<Credential<'_>> {
        let shown = self.note.as_ref().and_then(|note| note.get::<Shown>());
        let is_known = shown.is_some_and(|shown| self.password.as_ref() == Some(&shown.0));
        self.credential().filter(|_| !is_known)
    }

    fn credential(&self) -> Option<Credential<'_>> {
        let login = self.password.as_ref();
        let login =
            login.map(|login| scram::Login { user: &login.user, keys: &login.keys, binding: self.binding.as_ref() });
        plan::credential(None, login, self.contact.as_deref())
    }
}
