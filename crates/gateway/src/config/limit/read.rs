//! `[[limit]]` as it is read from the file.

use super::super::reader::Reader;
use super::super::rules::Nameable;
use super::super::{ConfigError, Limits, raw};
use super::{AccountLimits, Kind, Limit, Whom};
use phoebus_proto::units::{BitRate, ByteSize};
use toml::Spanned;

/// The lowest bandwidth: as for the rate of a profile.
const BANDWIDTH_MIN: BitRate = BitRate(10_000);
/// The bounds of `rate_of_sessions`: one in a day, and more than any gateway opens.
const RATES: std::ops::RangeInclusive<f64> = 1.0 / 86_400.0..=1_000_000.0;

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
    pub(in super::super) fn account_limits(
        &self,
        raw: &[Spanned<raw::AccountLimit>],
        nameable: &Nameable<'_>,
        limits: &Limits,
    ) -> Result<AccountLimits, ConfigError> {
        let of_one = |(number, limit)| self.account_limit(number, limit, nameable, limits.buffer);
        let all: Vec<Limit> = (1..).zip(raw).map(of_one).collect::<Result<_, _>>()?;
        for (at, given) in raw.iter().enumerate() {
            if let Some(before) = all[..at].iter().find(|before| before.whom.covers(&all[at].whom)) {
                let message = format!(
                    "[[limit]] {} comes before, and is for all that this one is for; expected the exception first",
                    before.number
                );
                return Err(self.at(given, message));
            }
        }
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
