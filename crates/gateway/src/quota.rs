//! Limits by user, group, source and peer (P25, P28): how much each account uses, and what a session takes of it.
//!
//! A session counts for all accounts that it belongs to: what a peer brings counts for the peer, for the user and for groups if the
//! peer is believed about them, and for sources of the peer's own. So a peer uses up nothing that belongs to somebody else. It can
//! name another source each time: only the limit for the peer bounds it. All is taken before the next hop is connected, or nothing.
//! What counts sessions by time is given back if none opens.

use crate::config::{Account, Config, Limit};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::rules::Belief;
use phoebus_proto::session::Code;
use phoebus_proto::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The method of those who are known by a certificate.
const CERTIFICATE: &str = "certificate";
/// The least number of accounts at which those without use are looked for.
const SWEEP: usize = 1024;
/// The most accounts that are remembered without sessions, for their sessions per second. A peer can name any source.
const IDLE_MAX: usize = 100_000;

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
    has_opened: bool,
}

/// The accounts of `request` that have limits.
pub(crate) fn accounts_of<'a>(config: &'a Config, request: &Request) -> Vec<(Account, &'a Limit)> {
    let limits = &config.account_limits;
    if limits.is_empty() {
        return Vec::new();
    }
    let principal = &request.principal;
    let belief = Belief::of(config, principal);
    let user = match principal.user.as_str() {
        "" if principal.method == CERTIFICATE && belief.in_all(principal) => {
            Some(Account::Certificate(principal.subject.clone()))
        }
        // Who has given no more than an address is not known.
        "" => None,
        user => Some(Account::User(user.to_owned())).filter(|_| belief.in_user(principal)),
    };
    // Only users are in groups, and in each once, whatever a peer says.
    let groups: BTreeSet<&String> = principal.groups.iter().filter(|_| !principal.user.is_empty()).collect();
    let groups = groups.into_iter().filter(|group| belief.in_group(principal, group));
    let named = user.into_iter().chain(groups.cloned().map(Account::Group));
    let named = named.chain(request.peer.clone().map(Account::Peer));
    let mut all: Vec<_> = named.filter_map(|account| Some((limits.of(&account)?, account))).collect();
    let source = limits.of_source(request.source(), request.peer.as_deref());
    all.extend(source.map(|(account, limit)| (limit, account)));
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
        Ok(Taken { accounts: self.clone(), taken, has_opened: false })
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
        let mut idle: Vec<Instant> = self.accounts.values().filter_map(Use::idle_since).collect();
        if idle.len() > IDLE_MAX {
            // Some more than are too many, since all are looked at for that.
            let spared = idle.len() - IDLE_MAX + IDLE_MAX / 8;
            let (_, last, _) = idle.select_nth_unstable(spared - 1);
            let last = *last;
            self.accounts.retain(|_, own| own.idle_since().is_none_or(|since| since > last));
        }
        let most = self.accounts.len() - self.idle() + IDLE_MAX;
        self.sweep = (self.accounts.len() * 2).min(most + 1);
    }

    /// How many have no sessions.
    fn idle(&self) -> usize {
        self.accounts.values().filter(|own| own.sessions == 0).count()
    }
}

impl Use {
    /// When the last session was opened, if there is none any more.
    fn idle_since(&self) -> Option<Instant> {
        self.opened.filter(|_| self.sessions == 0).map(|opened| opened.at)
    }

    /// Undoes that a session was opened.
    fn give_back(&mut self) {
        if let Some(opened) = &mut self.opened {
            opened.left = (opened.left + 1.0).min(opened.rate.max(1.0));
        }
    }

    fn is_used(&self, now: Instant) -> bool {
        self.sessions > 0 || self.opened.is_some_and(|opened| !opened.at(now).is_full())
    }
}

impl Taken {
    /// The session has opened: from now on it counts among those of its second.
    pub(crate) fn opened(&mut self) {
        self.has_opened = true;
    }

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
            if !self.has_opened {
                own.give_back();
            }
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
    use phoebus_proto::endpoint::Endpoint;
    use phoebus_proto::session::message::Open;
    use phoebus_proto::session::{Principal, SessionId};

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
        let take = |ms| {
            let taken = accounts.take(vec![(user(1), &limit)], 0, start + Duration::from_millis(ms));
            taken.map(|mut taken| taken.opened())
        };
        // Those that do not open take nothing.
        for _ in 0..9 {
            drop(accounts.take(vec![(user(1), &limit)], 0, start).unwrap());
        }
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
    fn sources_that_peers_name_are_counted_apart_and_groups_once() {
        let text = "name = \"pg\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\n[[peer]]\nname = \"pg1\"\n\
                    address = \"pg1.example\"\nsecurity = \"none\"\n[[limit]]\neach = \"source\"\nsessions = 1\n\
                    [[limit]]\neach = \"group\"\nsessions = 1\n";
        let config = Config::parse(text, "pg.toml".as_ref()).unwrap();
        let [to, origin]: [Endpoint; 2] = ["host.example:22", "192.0.2.9:5"].map(|text| text.parse().unwrap());
        let open = Open { origin: Some(origin.as_ref()), ..Open::new(SessionId([1; 16]), to.as_ref()) };
        let groups = ["physics", "physics"].map(str::to_owned).to_vec();
        let ada = Principal { user: "ada".to_owned(), groups, ..Principal::new("token", "ada") };
        let accounts = |from: [u8; 4], peer| {
            let request = Request::new(&open, (from, 5).into(), peer, ada.clone());
            accounts_of(&config, &request).into_iter().map(|(account, _)| account.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(accounts([192, 0, 2, 9], None), ["group physics", "source 192.0.2.9"]);
        assert_eq!(accounts([192, 0, 2, 1], Some("pg1")), ["source 192.0.2.9 of peer pg1"]);
    }

    #[test]
    fn accounts_without_use_are_forgotten() {
        let accounts = Arc::<Accounts>::default();
        let limit = Limit { rate_of_sessions: Some(1.0), ..limit() };
        let start = Instant::now();
        for n in 0..10_000 {
            let at = start + Duration::from_millis(n.into());
            accounts.take(vec![(user(n), &limit)], 0, at).unwrap().opened();
        }
        // Those of the last second, and as many that wait to be swept.
        let kept = accounts.lock().accounts.len();
        assert!(kept <= 3000, "{kept}");
        // Where many have to be remembered, the oldest are not.
        let accounts = Arc::<Accounts>::default();
        let limit = Limit { rate_of_sessions: Some(1e-4), ..limit };
        let mut first = accounts.take(vec![(user(u32::MAX), &limit)], 0, start).unwrap();
        first.opened();
        for n in 0..IDLE_MAX as u32 + 50_000 {
            let at = start + Duration::from_micros(n.into());
            accounts.take(vec![(user(n), &limit)], 0, at).unwrap().opened();
        }
        let used = accounts.lock();
        assert!(used.accounts.len() <= IDLE_MAX + 2, "{}", used.accounts.len());
        let newest = user(IDLE_MAX as u32 + 49_999);
        assert!(!used.accounts.contains_key(&user(0)) && used.accounts.contains_key(&newest));
        drop(used);
        // One with a session stays.
        assert_eq!(accounts.status().len(), 1);
        drop(first);
        assert!(size_of::<(Account, Use)>() <= 256, "{} bytes", size_of::<(Account, Use)>());
    }
}
