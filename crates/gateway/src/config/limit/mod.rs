//! `[[limit]]`: how much users, groups, sources and peers may use (P25, P28).
//!
//! Limits for users, for groups, for sources and for peers all count. Of those for users, the first that fits a user does, and
//! so on for each kind. So an exception stands before the rule that it is one of.

mod read;

use super::Net;
use crate::slots;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::units::{BitRate, ByteSize};
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;

/// What one account may use.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    /// For whom it is.
    pub whom: Whom,
    /// Sessions at a time.
    pub sessions: Option<NonZeroU32>,
    /// Sessions opened per second.
    pub rate_of_sessions: Option<f64>,
    /// Memory of all sessions, in bytes.
    pub memory: Option<ByteSize>,
    /// Bits per second, in each direction.
    pub bandwidth: Option<BitRate>,
    /// The gateway that those are sent to who have reached it.
    pub gateway: Option<Endpoint>,
    /// Its number among the limits, from 1.
    pub number: u32,
    /// Its line in the file, from 1.
    pub line: u32,
}

impl Limit {
    /// One that limits nothing.
    pub(crate) fn empty(whom: Whom) -> Self {
        Self {
            whom,
            sessions: None,
            rate_of_sessions: None,
            memory: None,
            bandwidth: None,
            gateway: None,
            number: 0,
            line: 0,
        }
    }

    /// How the administrator finds it.
    pub(crate) fn place(&self) -> String {
        match self.whom {
            Whom::Everybody => "limits.memory".to_owned(),
            _ => format!("[[limit]] {}", self.number),
        }
    }
}

/// For whom a limit is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whom {
    /// This user.
    User(String),
    /// The users of this group together.
    Group(String),
    /// These addresses together.
    Source(Net),
    /// What this peer brings.
    Peer(String),
    /// Each of a kind, by itself.
    Each(Kind),
    /// Everybody together.
    Everybody,
}

impl Whom {
    /// Whether a limit for `other` that comes after one for this counts for nobody.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Each(Kind::User), Self::User(_))
            | (Self::Each(Kind::Group), Self::Group(_))
            | (Self::Each(Kind::Source), Self::Source(_))
            | (Self::Each(Kind::Peer), Self::Peer(_)) => true,
            (Self::Source(net), Self::Source(other)) => net.covers(other),
            _ => self == other,
        }
    }
}

/// What a limit can count by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Users, and names in certificates.
    User,
    /// Groups.
    Group,
    /// IPv4 addresses, and IPv6 /64 networks.
    Source,
    /// Peers.
    Peer,
}

/// What use is counted for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Account {
    /// A user.
    User(String),
    /// Who has shown a certificate for this name.
    Certificate(String),
    /// A group.
    Group(String),
    /// A source; if a peer names it, that of this peer.
    Source(IpAddr, Option<String>),
    /// A range of sources; if a peer names them, those of this peer.
    Range(Net, Option<String>),
    /// A peer.
    Peer(String),
    /// The whole gateway.
    Gateway,
}

/// `user ada`, `source 192.0.2.7`, `source 192.0.2.7 of peer pg1`
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user {name}"),
            Self::Certificate(name) => write!(f, "certificate {name}"),
            Self::Group(name) => write!(f, "group {name}"),
            Self::Source(addr, None) => write!(f, "source {addr}"),
            Self::Source(addr, Some(peer)) => write!(f, "source {addr} of peer {peer}"),
            Self::Range(net, None) => write!(f, "source {net}"),
            Self::Range(net, Some(peer)) => write!(f, "source {net} of peer {peer}"),
            Self::Peer(name) => write!(f, "peer {name}"),
            Self::Gateway => f.write_str("the gateway"),
        }
    }
}

/// `10 sessions at a time, 5 sessions a second`
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.sessions.map(|n| format!("{n} sessions at a time")),
            self.rate_of_sessions.map(|n| format!("{n} sessions a second")),
            self.memory.map(|size| format!("{size} of memory")),
            self.bandwidth.map(|rate| format!("{rate} in each direction")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// All limits, found by name.
#[derive(Debug, Clone, Default)]
pub struct AccountLimits {
    limits: Vec<Limit>,
    /// That of the whole gateway.
    total: Option<Limit>,
    users: Named,
    groups: Named,
    peers: Named,
}

/// Limits of one kind, by number.
#[derive(Debug, Clone, Default)]
struct Named {
    by_name: HashMap<String, usize>,
    each: Option<usize>,
}

impl Named {
    fn add(&mut self, name: Option<&String>, number: usize) {
        match name {
            Some(name) => {
                self.by_name.entry(name.clone()).or_insert(number);
            }
            None => self.each = self.each.or(Some(number)),
        }
    }

    /// The first that fits `name`.
    fn of(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied().into_iter().chain(self.each).min()
    }
}

impl AccountLimits {
    fn new(limits: Vec<Limit>, total: Option<Limit>) -> Self {
        let (mut users, mut groups, mut peers) = (Named::default(), Named::default(), Named::default());
        for (number, limit) in limits.iter().enumerate() {
            match &limit.whom {
                Whom::User(name) => users.add(Some(name), number),
                Whom::Each(Kind::User) => users.add(None, number),
                Whom::Group(name) => groups.add(Some(name), number),
                Whom::Each(Kind::Group) => groups.add(None, number),
                Whom::Peer(name) => peers.add(Some(name), number),
                Whom::Each(Kind::Peer) => peers.add(None, number),
                Whom::Source(_) | Whom::Each(Kind::Source) | Whom::Everybody => {}
            }
        }
        Self { limits, total, users, groups, peers }
    }

    /// Those in the configuration's tables, in their order.
    pub fn all(&self) -> &[Limit] {
        &self.limits
    }

    /// Whether nothing is limited.
    pub(crate) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.total.is_none()
    }

    /// That of the whole gateway.
    pub(crate) fn total(&self) -> Option<&Limit> {
        self.total.as_ref()
    }

    /// The limit of an account that has a name.
    pub(crate) fn of(&self, account: &Account) -> Option<&Limit> {
        let number = match account {
            Account::User(name) => self.users.of(name)?,
            Account::Certificate(_) => self.users.each?,
            Account::Group(name) => self.groups.of(name)?,
            Account::Peer(name) => self.peers.of(name)?,
            Account::Source(addr, peer) => {
                let (own, limit) = self.of_source(*addr, peer.as_deref())?;
                return Some(limit).filter(|_| own == *account);
            }
            Account::Gateway => return self.total.as_ref(),
            Account::Range(net, _) => {
                return self.limits.iter().find(|limit| limit.whom == Whom::Source(*net));
            }
        };
        self.limits.get(number)
    }

    /// The account that a source's use counts for, and its limit. Sources that a peer names have accounts of their own.
    pub(crate) fn of_source(&self, addr: IpAddr, peer: Option<&str>) -> Option<(Account, &Limit)> {
        let peer = || peer.map(str::to_owned);
        self.limits.iter().find_map(|limit| match &limit.whom {
            Whom::Source(net) if net.contains(addr) => Some((Account::Range(*net, peer()), limit)),
            Whom::Each(Kind::Source) => Some((Account::Source(slots::key(addr), peer()), limit)),
            _ => None,
        })
    }
}
