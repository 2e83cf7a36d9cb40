//! Limits by user, group, source and peer (P25, P28): how much each account uses, and what a session takes of it.
//!
//! A session counts for all accounts that it belongs to: what a peer brings counts for the peer, and for the user if the peer is
//! believed about them. Otherwise a peer could use up what belongs to somebody else. All is taken before the next hop is
//! connected, or nothing.

use crate::config::{Account, Config, Limit};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::rules::is_believed;
use phoebus_proto::session::Code;
use phoebus_proto::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The method of those who are known by a certificate.
const CERTIFICATE: &str = "certificate";
/// The least number of accounts at which those without use are looked for.
const SWEEP: usize = 1024;

/// What an account uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountStatus {
    /// Such as `user ada`.
    pub account: String,
    /// Sessions that are open or being opened.
    pub sessions: u32,
    /// Their memory, in bytes; 0 if it is not limited.
    pub memory: u64,
}

/// The accounts in use.
#[derive(Debug, Default)]
pub(crate) struct Accounts(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    accounts: HashMap<Account, Use>,
    /// The number of accounts at which those without use are removed.
    sweep: usize,
}

#[derive(Debug, Default)]
struct Use {
    sessions: u32,
    memory: u64,
    opened: Option<Opened>,
}

/// Sessions opened lately, by number and per second.
#[derive(Debug, Clone, Copy)]
struct Opened {
    /// How many may be opened now.
    left: f64,
    at: Instant,
    rate: f64,
}

impl Opened {
    fn new(now: Instant, rate: f64) -> Self {
        Self { left: rate.max(1.0), at: now, rate }
    }

    /// The same at a later moment. At most as many as in a second may be opened at once, and one in any case.
    fn at(self, now: Instant) -> Self {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        Self { left: (self.left + passed * self.rate).min(self.rate.max(1.0)), at: now, ..self }
    }

    fn is_full(self) -> bool {
        self.left >= self.rate.max(1.0)
    }

    /// How long the next session has to wait.
    fn wait(self) -> Option<Duration> {
        (self.left < 1.0).then(|| Duration::from_secs_f64((1.0 - self.left) / self.rate))
    }
}

/// What a session has taken, returned on drop.
#[derive(Debug)]
pub(crate) struct Taken {
    accounts: Arc<Accounts>,
    taken: Vec<(Account, u64)>,
}

/// The accounts of `request` that have limits.
pub(crate) fn accounts_of<'a>(config: &'a Config, request: &Request) -> Vec<(Account, &'a Limit)> {
    let limits = &config.account_limits;
    if limits.is_empty() {
        return Vec::new();
    }
    let principal = Some(&request.principal).filter(|principal| is_believed(config, principal));
    let user = principal.and_then(|principal| match principal.user.as_str() {
        "" if principal.method == CERTIFICATE => Some(Account::Certificate(principal.subject.clone())),
        // Who has given no more than an address is not known.
        "" => None,
        user => Some(Account::User(user.to_owned())),
    });
    // Only users are in groups.
    let groups = principal.filter(|principal| !principal.user.is_empty());
    let groups = groups.map(|principal| &principal.groups[..]).unwrap_or_default();
    let named = user.into_iter().chain(groups.iter().cloned().map(Account::Group));
    let named = named.chain(request.peer.clone().map(Account::Peer));
    let mut all: Vec<_> = named.filter_map(|account| Some((limits.of(&account)?, account))).collect();
    all.extend(limits.of_source(request.source()).map(|(account, limit)| (limit, account)));
    all.extend(limits.total().map(|limit| (limit, Account::Gateway)));
    all.into_iter().map(|(limit, account)| (account, limit)).collect()
}

impl Accounts {
    /// Takes a session, with `memory` in bytes, of all `accounts`. Fails if one of them has not that much.
    pub(crate) fn take(
        self: &Arc<Self>,
        accounts: Vec<(Account, &Limit)>,
        memory: u64,
        now: Instant,
    ) -> Result<Taken, Refusal> {
        let mut used = self.lock();
        for (account, limit) in &accounts {
            let before = used.accounts.get(account);
            check(account, limit, before, memory, now).map_err(|reason| {
                let redirect = limit.gateway.clone().map(Box::new);
                Refusal { redirect, ..Refusal::new(Code::Limit, format!("{reason} ({})", limit.place())) }
            })?;
        }
        let mut taken = Vec::with_capacity(accounts.len());
        for (account, limit) in accounts {
            let bytes = limit.memory.map_or(0, |_| memory);
            let own = used.accounts.entry(account.clone()).or_default();
            own.sessions += 1;
            own.memory += bytes;
            own.opened = limit.rate_of_sessions.map(|rate| {
                let opened = opened(own, rate, now);
                Opened { left: opened.left - 1.0, ..opened }
            });
            taken.push((account, bytes));
        }
        used.sweep(now);
        Ok(Taken { accounts: self.clone(), taken })
    }

    /// What is in use, the most used first.
    pub(crate) fn status(&self) -> Vec<AccountStatus> {
        let used = self.lock();
        let status = |(account, own): (&Account, &Use)| AccountStatus {
            account: account.to_string(),
            sessions: own.sessions,
            memory: own.memory,
        };
        let mut all: Vec<_> = used.accounts.iter().filter(|(_, own)| own.sessions > 0).map(status).collect();
        all.sort_by(|a, b| b.sessions.cmp(&a.sessions).then_with(|| a.account.cmp(&b.account)));
        all
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What may be opened now, at this rate.
fn opened(own: &Use, rate: f64, now: Instant) -> Opened {
    // A reload may have changed the rate.
    own.opened.map_or_else(|| Opened::new(now, rate), |opened| Opened { rate, ..opened.at(now) })
}

/// Whether an account that has used `before` may use a session more. Otherwise, what is missing, and what would be granted now.
fn check(account: &Account, limit: &Limit, before: Option<&Use>, memory: u64, now: Instant) -> Result<(), String> {
    let none = Use::default();
    let before = before.unwrap_or(&none);
    if let Some(most) = limit.sessions.filter(|most| before.sessions >= most.get()) {
        return Err(format!(
            "{account} has its {most} sessions in use; a further one may come when one of them has ended"
        ));
    }
    if let Some(most) = limit.memory
        && before.memory.saturating_add(memory) > most.0
    {
        let (free, memory) = (ByteSize(most.0.saturating_sub(before.memory)), ByteSize(memory));
        return Err(format!("{account} has {free} of its {most} of memory left, and a session takes {memory}"));
    }
    if let Some(rate) = limit.rate_of_sessions
        && let Some(wait) = opened(before, rate, now).wait()
    {
        let wait = wait.as_secs_f64();
        return Err(format!("{account} opens at most {rate} sessions a second; the next one may come in {wait:.1} s"));
    }
    Ok(())
}

impl Used {
    /// Removes accounts that nothing is counted for any more, when there are many.
    fn sweep(&mut self, now: Instant) {
        if self.accounts.len() < self.sweep.max(SWEEP) {
            return;
        }
        self.accounts.retain(|_, own| own.is_used(now));
        self.sweep = self.accounts.len() * 2;
    }
}

impl Use {
    fn is_used(&self, now: Instant) -> bool {
        self.sessions > 0 || self.opened.is_some_and(|opened| !opened.at(now).is_full())
    }
}

impl Taken {
    /// The accounts that the session counts for, besides the whole gateway.
    pub(crate) fn accounts(&self) -> Vec<Account> {
        let accounts = self.taken.iter().map(|(account, _)| account);
        accounts.filter(|account| **account != Account::Gateway).cloned().collect()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let mut used = self.accounts.lock();
        for (account, memory) in &self.taken {
            let Some(own) = used.accounts.get_mut(account) else { continue };
            own.sessions = own.sessions.saturating_sub(1);
            own.memory = own.memory.saturating_sub(*memory);
            if !own.is_used(Instant::now()) {
                used.accounts.remove(account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Kind, Whom};

    fn limit() -> Limit {
        Limit { number: 2, ..Limit::empty(Whom::Each(Kind::User)) }
    }

    fn user(n: u32) -> Account {
        Account::User(format!("user{n}"))
    }

    #[test]
    fn sessions_per_second_are_counted_by_credit() {
        let accounts = Arc::<Accounts>::default();
        let limit = Limit { rate_of_sessions: Some(2.0), ..limit() };
        let start = Instant::now();
        let take = |ms| accounts.take(vec![(user(1), &limit)], 0, start + Duration::from_millis(ms)).map(drop);
        assert!(take(0).is_ok() && take(0).is_ok());
        let refusal = take(0).unwrap_err();
        assert_eq!(refusal.code, Code::Limit);
        assert_eq!(
            refusal.reason,
            "user user1 opens at most 2 sessions a second; the next one may come in 0.5 s ([[limit]] 2)"
        );
        assert!(take(400).is_err() && take(500).is_ok() && take(600).is_err());
        // Credit does not grow for ever.
        assert!(take(60_000).is_ok() && take(60_000).is_ok() && take(60_000).is_err());
    }

    #[test]
    fn all_is_taken_or_nothing() {
        let accounts = Arc::<Accounts>::default();
        let wide = limit();
        let narrow = Limit { memory: Some(ByteSize(10 << 20)), ..limit() };
        let group = || Account::Group("physics".to_owned());
        let take = |n, memory| accounts.take(vec![(user(n), &wide), (group(), &narrow)], memory, Instant::now());
        let first = take(1, 6 << 20).unwrap();
        let refusal = take(2, 6 << 20).unwrap_err();
        assert_eq!(
            refusal.reason,
            "group physics has 4MiB of its 10MiB of memory left, and a session takes 6MiB ([[limit]] 2)"
        );
        let in_use: Vec<_> =
            accounts.status().iter().map(|own| (own.account.clone(), own.sessions, own.memory)).collect();
        assert_eq!(in_use, [("group physics".to_owned(), 1, 6 << 20), ("user user1".to_owned(), 1, 0)]);
        drop(first);
        assert!(accounts.lock().accounts.is_empty());
    }

    #[test]
    fn accounts_without_use_are_forgotten() {
        let accounts = Arc::<Accounts>::default();
        let limit = Limit { rate_of_sessions: Some(1.0), ..limit() };
        let start = Instant::now();
        for n in 0..10_000 {
            let at = start + Duration::from_millis(n.into());
            drop(accounts.take(vec![(user(n), &limit)], 0, at).unwrap());
        }
        // Those of the last second, and as many that wait to be swept.
        let kept = accounts.lock().accounts.len();
        assert!(kept <= 3000, "{kept}");
        assert!(size_of::<(Account, Use)>() <= 256, "{} bytes", size_of::<(Account, Use)>());
    }
}
