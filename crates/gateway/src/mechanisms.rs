//! How clients of a listener authenticate (P8, P26, P27): the mechanisms that this gateway has, in one table.

use crate::config::{Mechanism, TokenIssuer};
use crate::issuers::TokenCheck;
use crate::shared::Setup;
use phoebus_config::users::Users;
use phoebus_net::Stream;
use phoebus_net::transport::Security;
use phoebus_proto::session::auth::scram::{self, NONCE_LEN, Verifier, Verifiers};
use phoebus_proto::session::auth::{Check, agent, anonymous, token};
use std::io;
use std::sync::{Arc, Mutex};

/// An exchange that has begun, and the mechanism's name.
pub(crate) struct Exchange {
    pub(crate) mechanism: &'static str,
    pub(crate) check: Box<dyn Check>,
    /// The users as they were when it began.
    pub(crate) users: Arc<Users>,
    /// Who has issued the token that was accepted.
    pub(crate) issuer: Arc<Mutex<Option<Arc<TokenIssuer>>>>,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("mechanism", &self.mechanism).finish_non_exhaustive()
    }
}

impl Mechanism {
    /// Its name in CHALLENGE and AUTH on this connection; `None` if the connection itself is the proof, or is not protected as it
    /// has to be.
    pub(crate) fn on(&self, stream: &Stream) -> Option<&'static str> {
        match self {
            Self::Agent(_) => Some(agent::NAME),
            Self::Anonymous => Some(anonymous::NAME),
            Self::Certificate | Self::Grid => None,
            Self::Token => stream.channel_binding().map(|_| token::NAME),
            Self::Scram { .. } if stream.channel_binding().is_some() => Some(scram::PLUS),
            Self::Scram { raw } => Some(scram::PLAIN).filter(|_| *raw && stream.security() == Security::None),
        }
    }

    /// What a client lacks on whose connection none of the listener's mechanisms can be used, and how it gets it.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Certificate => Some("a certificate"),
            Self::Scram { .. } => {
                Some("a password inside TLS or QUIC (phoebus login --ca FILE, and a first hop by tls, quic or udt)")
            }
            Self::Token => {
                Some("a token inside TLS or QUIC (in BEARER_TOKEN_FILE, and a first hop by tls, quic or udt)")
            }
            Self::Grid => Some("a Grid proxy (in X509_USER_PROXY, and a first hop by tls, quic or udt)"),
            Self::Anonymous | Self::Agent(_) => None,
        }
    }

    /// Begins an exchange.
    ///
    /// # Errors
    /// There are no random numbers.
    pub(crate) fn begin(&self, setup: &Setup, stream: &Stream) -> io::Result<Option<Exchange>> {
        let (users, issuer) = (setup.config.users.clone(), Arc::default());
        let check: Box<dyn Check> = match *self {
            Self::Agent(secret) => Box::new(agent::Acceptor(move |data: &[u8]| secret.is(data))),
            Self::Anonymous => Box::new(anonymous::Acceptor),
            Self::Certificate | Self::Grid => return Ok(None),
            Self::Token => Box::new(TokenCheck::new(setup.issuers.clone(), Arc::clone(&issuer))),
            Self::Scram { .. } => {
                let mut random = [0; NONCE_LEN];
                getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
                Box::new(scram::Acceptor::new(Known(users.clone()), stream.channel_binding(), random))
            }
        };
        Ok(self.on(stream).map(|mechanism| Exchange { mechanism, check, users, issuer }))
    }
}

/// The users of a file.
struct Known(Arc<Users>);

impl Verifiers for Known {
    fn verifier(&self, user: &str) -> Verifier {
        self.0.verifier(user)
    }
}
