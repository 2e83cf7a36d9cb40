//! Evaluates a request: the peer's identity, AUTH, and what is requested (P26, P27).

use super::Connection;
use crate::admit;
use crate::bundle::{JoinPermit, Owner};
use crate::config::Auth as WantedAuth;
use crate::peer_identity::PeerIdentity;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::shared::Setup;
use crate::slots::Slot;
use phoebus_net::transport::Security;
use phoebus_proto::session::acceptor;
use phoebus_proto::session::message::{Auth, Challenge};
use phoebus_proto::session::{Code, List, ProtocolError, SessionId};

/// The result of a request, decided as far as possible at once.
pub(super) enum Asked {
    /// A credential was accepted, or is required.
    Again,
    Session(Box<Request>),
    /// Join a session as a further connection.
    Join(SessionId, JoinPermit),
    Refuse(Refusal),
}

impl Connection {
    /// The names in the peer's certificate.
    pub(super) fn proved(&self) -> &[String] {
        self.stream.identity().map_or(&[], |identity| &identity.names)
    }

    pub(super) fn caller<'a>(&self, setup: &'a Setup) -> PeerIdentity<'a> {
        PeerIdentity::of(setup, self.acceptor.peer_name(), self.from.ip(), &self.stream)
    }

    /// The identity of the requester: the name in its certificate, or else the address that it gave.
    pub(super) fn identity(&self) -> &str {
        self.proved().first().map_or(&self.identity, String::as_str)
    }

    /// A slot for a client to stay between sessions: its connection is protected, a rule applies to it, and there is
    /// room.
    pub(super) fn keep(&self, setup: &Setup) -> Option<Slot> {
        let (limits, addr) = (&setup.config.limits, self.from.ip());
        let stranger = matches!(self.caller(setup), PeerIdentity::Stranger);
        let protected = self.stream.security() > Security::None && self.stream.security() >= self.settings.security;
        let welcome = stranger && protected && admit::may_ask(&setup.config, addr, self.proved());
        if welcome { self.shared.admission.client(limits, addr) } else { None }
    }

    pub(super) fn asked(&mut self, setup: &Setup) -> Asked {
        let request = match self.acceptor.request() {
            Some(request) => request,
            None => return Asked::Refuse(Refusal::new(Code::Internal, "nothing was asked")),
        };
        let caller = self.caller(setup);
        if let Some(refusal) = caller.refusal(self.settings.security, &self.stream) {
            return Asked::Refuse(refusal);
        }
        match request {
            _ if self.acceptor.peer_is_beacon() => {
                Asked::Refuse(Refusal::new(Code::Protocol, "nothing can be asked for on a beacon"))
            }
            acceptor::Request::Auth(Auth { mechanism: Auth::AGENT, data }) => match self.settings.auth {
                WantedAuth::Secret(secret) if secret.is(data) => {
                    self.authenticated = true;
                    self.acceptor.accept_auth();
                    Asked::Again
                }
                _ => Asked::Refuse(Refusal::new(Code::AuthFailed, "that is not the secret of this agent")),
            },
            // Where a secret is required, an address does not replace it.
            acceptor::Request::Auth(_) if matches!(self.settings.auth, WantedAuth::Secret(_)) => self.challenge(),
            acceptor::Request::Auth(Auth { mechanism: Auth::ANONYMOUS, data }) => match email(data) {
                Some(address) => {
                    self.identity = address.to_owned();
                    self.authenticated = true;
                    self.acceptor.accept_auth();
                    Asked::Again
                }
                None => Asked::Refuse(Refusal::new(Code::AuthFailed, "anonymous sessions need an e-mail address")),
            },
            acceptor::Request::Auth(_) => self.challenge(),
            acceptor::Request::Open(_) | acceptor::Request::Attach(_) | acceptor::Request::Unsupported(_)
                if self.settings.auth != WantedAuth::None && !self.authenticated =>
            {
                self.challenge()
            }
            acceptor::Request::Open(open) => {
                let peer = caller.peer().map(|pool| pool.peer.name.as_str());
                let proved = self.proved().to_vec();
                let instance = if peer.is_some() { 0 } else { self.acceptor.peer_instance() };
                Asked::Session(Box::new(Request {
                    proved,
                    instance,
                    asks_for_datagrams: self.shared.data.datagrams.is_some(),
                    ..Request::new(&open, self.from, peer, self.identity())
                }))
            }
            acceptor::Request::Unsupported(unknown) => {
                Asked::Refuse(Refusal::new(Code::Feature, ProtocolError::Feature(unknown).to_string()))
            }
            acceptor::Request::Attach(attach) => {
                let peer = caller.peer().map(|pool| pool.peer.name.as_str());
                let owner = Owner::of(peer, self.from, self.identity());
                match self.shared.bundles.claim(&attach, &owner) {
                    Ok(permit) => Asked::Join(attach.session, permit),
                    Err(refusal) => Asked::Refuse(refusal),
                }
            }
        }
    }

    fn challenge(&mut self) -> Asked {
        let wanted = [if let WantedAuth::Secret(_) = self.settings.auth { Auth::AGENT } else { Auth::ANONYMOUS }];
        let challenge = Challenge { mechanisms: List::new(&wanted), data: &[] };
        match self.acceptor.challenge(&challenge) {
            Ok(()) => Asked::Again,
            Err(error) => Asked::Refuse(Refusal::new(Code::Internal, error.to_string())),
        }
    }
}

/// Something like an e-mail address (P26), for the log.
fn email(data: &[u8]) -> Option<&str> {
    let address = std::str::from_utf8(data).ok()?;
    let (local, domain) = address.rsplit_once('@')?;
    let plain = !address.chars().any(|c| c.is_control() || c.is_whitespace());
    (plain && !local.is_empty() && !domain.is_empty() && address.len() <= 254).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_means_an_address() {
        assert_eq!(email(b"user@example.org"), Some("user@example.org"));
        for text in ["", "user", "@example.org", "user@", "a b@c", "a@b\n", &format!("{}@b", "a".repeat(300))] {
            assert_eq!(email(text.as_bytes()), None, "{text}");
        }
        assert_eq!(email(&[0xff, b'@', b'x']), None);
    }
}
