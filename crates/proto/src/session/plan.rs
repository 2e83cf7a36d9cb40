//! Which gateway a client asks for a session, and what it does after a failure (P10, P38, S1): decisions only, without sockets.
//!
//! ```text
//!           absent, not demanded            absent, fallback, never redirected
//!   agent ─────────────────────► gateway ───────────────────────────────────► destination
//!     │                           │   ▲
//!     └─ refused, names a better ─┴───┘
//! ```
//!
//! Programs, the C library and the preload shim share these decisions. The caller connects, and reports the result
//! ([`Plan::failed`]).

use super::auth::Credential;
use super::auth::scram::Login;
use crate::endpoint::{Endpoint, EndpointRef, HostRef};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// Longest wait for the first gateway to accept a connection: four SYNs. People wait no longer for a gateway that is meant to
/// be near.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Longest wait for the path to connect to the destination: longer than a gateway's own connect, which takes Linux up to 127 s,
/// so that the gateway reports the failure.
pub const OPEN_LIMIT: Duration = Duration::from_secs(150);
/// How many times a refusing gateway may name a better one. Gateways that share a load need one or two, and a session must not
/// be redirected without end.
pub const REDIRECTS: u8 = 4;

/// What the settings permit after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How many redirects are followed; 0: none.
    pub redirects: u8,
    /// Whether to connect directly if the first gateway cannot be reached.
    pub fallback: bool,
}

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// An agent on this host.
    Agent {
        /// Whether only an agent may carry the first hop.
        demanded: bool,
    },
    /// The current gateway.
    Gateway,
    /// The destination, without gateways.
    Destination,
}

/// The end of a connection that led to no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure<'a> {
    /// Nobody accepted the connection.
    Absent,
    /// The other end refused the session, and may have named a better gateway.
    Refused(Option<EndpointRef<'a>>),
    /// The connection broke, or the peer broke the protocol or did not answer in time.
    Broken,
}

/// The next step after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Connect to the gateway itself, without the agent.
    Gateway,
    /// Ask the better gateway, which is now [`Plan::gateway`]. The session needs a new identifier.
    Better,
    /// Connect directly to the destination.
    Destination,
    /// Give up; with the reason why no further gateway is asked, if a redirect was followed or impossible.
    Over(Option<RedirectEnd>),
}

/// Why no further gateway was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedirectEnd {
    /// The last gateway named no other.
    Failed,
    /// It named one that was asked before.
    Circle,
    /// The permitted number of redirects was followed.
    Limit,
}

/// The gateways that were asked, in order. The caller chooses the storage, since the preload shim may not allocate.
pub trait Asked {
    /// All of them.
    fn all(&self) -> impl DoubleEndedIterator<Item = EndpointRef<'_>> + Clone;

    /// Adds a better gateway; at most [`Policy::redirects`] are added.
    fn push(&mut self, gateway: EndpointRef);
}

impl Asked for Vec<Endpoint> {
    fn all(&self) -> impl DoubleEndedIterator<Item = EndpointRef<'_>> + Clone {
        self.iter().map(Endpoint::as_ref)
    }

    fn push(&mut self, gateway: EndpointRef) {
        self.push(gateway.to_owned());
    }
}

/// The plan of one opening. The caller keeps the path of the settings, and passes the same one to every call.
#[derive(Debug, Clone)]
pub struct Plan<A> {
    policy: Policy,
    asked: A,
    /// How many entries of the path were asked, or lie behind a better gateway.
    passed: usize,
}

impl<A: Asked> Plan<A> {
    /// Begins with the first gateway of the path: `asked` holds it, or nothing if there is none.
    pub fn new(policy: Policy, asked: A) -> Self {
        let passed = asked.all().count();
        Self { policy, asked, passed }
    }

    /// The current gateway; `None` without a path.
    pub fn gateway(&self) -> Option<EndpointRef<'_>> {
        self.asked.all().next_back()
    }

    /// The gateways that were asked, in order; the last is [`Plan::gateway`].
    pub fn asked(&self) -> &A {
        &self.asked
    }

    /// The first and the last gateway that were asked, if a redirect was followed.
    pub fn redirected(&self) -> Option<(EndpointRef<'_>, EndpointRef<'_>)> {
        let mut all = self.asked.all();
        Some((all.next()?, all.next_back()?))
    }

    /// The rest of the path for the request: the gateways behind the current one, and for an agent also the current one.
    pub fn onward<'a>(&'a self, path: &'a [Endpoint], by_agent: bool) -> impl Iterator<Item = EndpointRef<'a>> {
        let own = self.gateway().filter(|_| by_agent);
        own.into_iter().chain(path.iter().skip(self.passed).map(Endpoint::as_ref))
    }

    /// Decides what to do after a connection to `hop` ended in `failure`.
    pub fn failed(&mut self, path: &[Endpoint], hop: Hop, failure: Failure) -> Next {
        match (hop, failure) {
            (Hop::Destination, _) | (Hop::Agent { demanded: true }, Failure::Absent) => return Next::Over(None),
            (Hop::Agent { demanded: false }, Failure::Absent) => return Next::Gateway,
            _ => {}
        }
        let followed = self.asked.all().count().saturating_sub(1);
        let end = match failure {
            // Only a gateway on this host or link may name one there. Others would lead programs to services of their own host.
            Failure::Refused(Some(better)) if is_near(better) && !self.gateway().is_some_and(is_near) => {
                RedirectEnd::Failed
            }
            Failure::Refused(Some(better)) if self.asked.all().any(|gateway| gateway == better) => RedirectEnd::Circle,
            Failure::Refused(Some(_)) if followed >= self.policy.redirects.into() => RedirectEnd::Limit,
            Failure::Refused(Some(better)) => {
                // It may be the next one of the path.
                if path.get(self.passed).is_some_and(|next| next.as_ref() == better) {
                    self.passed += 1;
                }
                self.asked.push(better);
                return Next::Better;
            }
            _ => RedirectEnd::Failed,
        };
        match (followed, end) {
            // A gateway that answers has its reasons: no direct connection bypasses it.
            (0, RedirectEnd::Failed) if self.policy.fallback && failure == Failure::Absent => Next::Destination,
            (0, RedirectEnd::Failed | RedirectEnd::Limit) => Next::Over(None),
            _ => Next::Over(Some(end)),
        }
    }
}

/// Whether connections to `gateway` stay on this host, or on one of its links.
fn is_near(gateway: EndpointRef) -> bool {
    match gateway.host {
        HostRef::Name(name) => name == "localhost" || name.ends_with(".localhost"),
        HostRef::Addr(addr) => match addr.to_canonical() {
            IpAddr::V4(addr) => {
                addr.is_loopback() || addr.is_unspecified() || addr.is_link_local() || addr.is_multicast()
            }
            IpAddr::V6(addr) => {
                addr.is_loopback() || addr.is_unspecified() || addr.is_unicast_link_local() || addr.is_multicast()
            }
        },
    }
}

/// The client's proof for the request: an agent's secret, as the agent itself tells the gateway its user; otherwise the user's
/// password, if one is kept for the gateway, or e-mail address, if one is set (P26, P27).
pub fn credential<'a>(
    agent: Option<&'a [u8]>,
    login: Option<Login<'a>>,
    address: Option<&'a str>,
) -> Option<Credential<'a>> {
    match (agent, login, address) {
        (Some(secret), ..) => Some(Credential::Agent(secret)),
        (None, Some(login), _) => Some(Credential::Password(login)),
        (None, None, Some(address)) => Some(Credential::Anonymous(address)),
        (None, None, None) => None,
    }
}

/// The chain of redirects for people: the gateways of `asked`, and the one that the last of them `named`.
pub fn trail<'a>(
    asked: impl Iterator<Item = EndpointRef<'a>> + Clone,
    named: Option<EndpointRef<'a>>,
    end: RedirectEnd,
) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        match end {
            RedirectEnd::Failed => f.write_str("redirected: ")?,
            RedirectEnd::Circle => f.write_str("gave up, for the redirects lead in a circle: ")?,
            RedirectEnd::Limit => {
                let followed = asked.clone().count().saturating_sub(1);
                write!(f, "gave up, for the limit of redirects, {followed}, is reached: ")?;
            }
        }
        for (i, gateway) in asked.clone().chain(named).enumerate() {
            let arrow = if i == 0 { "" } else { " → " };
            write!(f, "{arrow}{gateway}")?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests;
