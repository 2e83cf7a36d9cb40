//! `[[limit]]`: how much users, groups, sources and peers may use (P25, P28).
//!
//! Limits for users, for groups, for sources and for peers all count. Of those for users, the first that fits a user does, and
//! so on for each kind. So an exception stands before the rule that it is one of.

use super::reader::Reader;
use super::rules::Nameable;
use super::{ConfigError, Limits, Net, raw};
use crate::slots;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::units::{BitRate, ByteSize};
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use toml::Spanned;

/// The lowest bandwidth: as for the rate of a profile.
const BANDWIDTH_MIN: BitRate = BitRate(10_000);
/// The bounds of `rate_of_sessions`: one in a day, and more than any gateway opens.
const RATES: std::ops::RangeInclusive<f64> = 1.0 / 86_400.0..=1_000_000.0;

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
    /// A source.
    Source(IpAddr),
    /// A range of sources.
    Range(Net),
    /// A peer.
    Peer(String),
    /// The whole gateway.
    Gateway,
}

/// `user ada`, `source 192.0.2.7`
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user {name}"),
            Self::Certificate(name) => write!(f, "certificate {name}"),
            Self::Group(name) => write!(f, "group {name}"),
            Self::Source(addr) => write!(f, "source {addr}"),
            Self::Range(net) => write!(f, "source {net}"),
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
            Account::Source(addr) => {
                let (own, limit) = self.of_source(*addr)?;
                return Some(limit).filter(|_| own == *account);
            }
            Account::Gateway => return self.total.as_ref(),
            Account::Range(net) => {
                return self.limits.iter().find(|limit| limit.whom == Whom::Source(*net));
            }
        };
        self.limits.get(number)
    }

    /// The account that a source's use counts for, and its limit.
    pub(crate) fn of_source(&self, addr: IpAddr) -> Option<(Account, &Limit)> {
        self.limits.iter().find_map(|limit| match &limit.whom {
            Whom::Source(net) if net.contains(addr) => Some((Account::Range(*net), limit)),
            Whom::Each(Kind::Source) => Some((Account::Source(slots::key(addr)), limit)),
            _ => None,
        })
    }
}

/// Whether this much memory is enough for a session; otherwise, what was expected.
fn holds_a_session(memory: ByteSize, buffer: Option<ByteSize>) -> Result<(), String> {
    let Some(buffer) = buffer else {
        let message = "without limits.buffer, nobody knows how much memory a session takes; expected both, or neither";
        return Err(message.to_owned());
    };
    let one = ByteSize(buffer.0.saturating_mul(2));
    match memory >= one {
        true => Ok(()),
        false => Err(format!("{memory} holds no session, which takes twice limits.buffer; expected at least {one}")),
    }
}

impl Reader<'_> {
    /// All limits, with the total memory of `limits`.
    pub(super) fn account_limits(
        &self,
        raw: &[Spanned<raw::AccountLimit>],
        nameable: &Nameable<'_>,
        limits: &Limits,
    ) -> Result<AccountLimits, ConfigError> {
        let of_one = |(number, limit)| self.account_limit(number, limit, nameable, limits.buffer);
        let all = (1..).zip(raw).map(of_one).collect::<Result<_, _>>()?;
        let key = ["limits", "memory"];
        let total = limits.memory.map(|memory| {
            holds_a_session(memory, limits.buffer).map_err(|message| self.at_key(&key, message))?;
            let line = self.span(&key).map_or(0, |span| self.line(span));
            Ok(Limit { memory: Some(memory), line, ..Limit::empty(Whom::Everybody) })
        });
        Ok(AccountLimits::new(all, total.transpose()?))
    }

    fn account_limit(
        &self,
        number: u32,
        given: &Spanned<raw::AccountLimit>,
        nameable: &Nameable<'_>,
        buffer: Option<ByteSize>,
    ) -> Result<Limit, ConfigError> {
        let raw = given.get_ref();
        let whom = self.whom(given, nameable)?;
        if let Some(rate) = raw.rate_of_sessions.as_ref().filter(|rate| !RATES.contains(rate.get_ref())) {
            let message =
                format!("{} is no number of sessions a second; expected one such as 5 or 0.1", rate.get_ref());
            return Err(self.at(rate, message));
        }
        if let Some(rate) = raw.bandwidth.as_ref().filter(|rate| *rate.get_ref() < BANDWIDTH_MIN) {
            return Err(self.at(rate, format!("this bandwidth is too low; expected at least {BANDWIDTH_MIN}")));
        }
        if let Some(memory) = &raw.memory {
            holds_a_session(*memory.get_ref(), buffer).map_err(|message| self.at(memory, message))?;
        }
        let gateway = raw.gateway.as_ref().map(|gateway| self.target(gateway, nameable)).transpose()?;
        let limit = Limit {
            sessions: raw.sessions,
            rate_of_sessions: raw.rate_of_sessions.as_ref().map(|rate| *rate.get_ref()),
            memory: raw.memory.as_ref().map(|size| *size.get_ref()),
            bandwidth: raw.bandwidth.as_ref().map(|rate| *rate.get_ref()),
            gateway,
            number,
            line: self.line(given.span()),
            ..Limit::empty(whom)
        };
        if limit.to_string().is_empty() {
            let message = "this limits nothing; expected sessions, rate_of_sessions, memory or bandwidth";
            return Err(self.at(given, message));
        }
        Ok(limit)
    }

    fn whom(&self, given: &Spanned<raw::AccountLimit>, nameable: &Nameable<'_>) -> Result<Whom, ConfigError> {
        let raw = given.get_ref();
        let all = [&raw.user, &raw.group, &raw.source, &raw.peer, &raw.each];
        if all.iter().filter(|name| name.is_some()).count() != 1 {
            let message =
                "a limit is for one of user, group, source, peer and each; expected exactly one of these keys";
            return Err(self.at(given, message));
        }
        for name in [&raw.user, &raw.group].into_iter().flatten() {
            self.needs_users(name, nameable)?;
        }
        if let Some(name) = &raw.user {
            return Ok(Whom::User(name.get_ref().clone()));
        }
        if let Some(name) = &raw.group {
            return Ok(Whom::Group(name.get_ref().clone()));
        }
        if let Some(net) = &raw.source {
            return self.parse(net).map(Whom::Source);
        }
        if let Some(peer) = &raw.peer {
            let name = peer.get_ref().to_ascii_lowercase();
            let is_known = nameable.peers.contains_key(&name);
            return if is_known {
                Ok(Whom::Peer(name))
            } else {
                Err(self.unknown(peer, "peer", nameable.peers.keys()))
            };
        }
        let kinds = [("user", Kind::User), ("group", Kind::Group), ("source", Kind::Source), ("peer", Kind::Peer)];
        let Some(each) = &raw.each else { return Err(self.at(given, "this limit is for nobody")) };
        let kind = kinds.into_iter().find(|(name, _)| name == each.get_ref());
        let known = kinds.map(|(name, _)| name.to_owned());
        kind.map(|(_, kind)| Whom::Each(kind)).ok_or_else(|| self.unknown(each, "kind of account", known.iter()))
    }
}
