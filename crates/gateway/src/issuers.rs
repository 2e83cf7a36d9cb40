//! Who issues the tokens that this gateway takes (P8): their keys, which a thread for each fetches in the background. No handshake waits
//! for it.

use crate::config::TokenIssuer;
use phoebus_net::https::{Https, HttpsError};
use phoebus_proto::session::auth::{Check, Proven, Verdict, Vouched};
use phoebus_tokens::{KeySet, Schedule, Token, TokenError, Verified, discovery};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};
use tracing::{info, warn};

/// The issuers of a configuration.
#[derive(Debug, Default)]
pub(crate) struct Issuers(Vec<Arc<KnownIssuer>>);

/// An issuer and its keys.
#[derive(Debug)]
struct KnownIssuer {
    settings: Arc<TokenIssuer>,
    keys: Arc<Keys>,
}

/// What the thread that fetches keys shares with those who use them.
#[derive(Debug)]
struct Keys {
    state: Mutex<State>,
    /// The thread has something to do earlier than it knows.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    keys: Option<Arc<KeySet>>,
    schedule: Schedule,
    /// What the schedule's times are since.
    epoch: Instant,
    /// The last failure, which is logged once.
    failure: Option<String>,
    /// Whether no configuration has the issuer any more.
    is_over: bool,
}

impl Issuers {
    /// The issuers of a configuration. Those that `old` has, with the same settings, keep their keys.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn start(all: &[Arc<TokenIssuer>], old: Option<&Self>) -> io::Result<Self> {
        let known = |settings: &Arc<TokenIssuer>| {
            let before = old.and_then(|old| old.0.iter().find(|known| known.settings == *settings));
            before.cloned().map_or_else(|| KnownIssuer::start(settings.clone()), Ok)
        };
        all.iter().map(known).collect::<io::Result<_>>().map(Self)
    }

    /// Whether tokens of an issuer with these settings count.
    pub(crate) fn has(&self, settings: &TokenIssuer) -> bool {
        self.0.iter().any(|known| *known.settings == *settings)
    }

    /// Verifies a token.
    fn verify(&self, data: &[u8]) -> Result<(Arc<TokenIssuer>, Verified), TokenError> {
        let token = Token::read(data)?;
        let issuer = self.0.iter().find(|known| known.settings.issuer.url == token.issuer());
        let issuer = issuer.ok_or_else(|| token.unknown_issuer())?;
        issuer.verify(&token).map(|verified| (issuer.settings.clone(), verified))
    }
}

impl Drop for KnownIssuer {
    fn drop(&mut self) {
        self.keys.lock().is_over = true;
        self.keys.changed.notify_all();
    }
}

impl KnownIssuer {
    fn start(settings: Arc<TokenIssuer>) -> io::Result<Arc<Self>> {
        let state =
            State { keys: None, schedule: Schedule::default(), epoch: Instant::now(), failure: None, is_over: false };
        let keys = Arc::new(Keys { state: Mutex::new(state), changed: Condvar::new() });
        let (url, https) = (settings.issuer.url.clone(), settings.https.clone());
        let fetcher = Fetcher { url, https, keys: keys.clone() };
        std::thread::Builder::new().name("issuer-keys".into()).spawn(move || fetcher.run())?;
        Ok(Arc::new(Self { settings, keys }))
    }

    fn verify(&self, token: &Token) -> Result<Verified, TokenError> {
        let state = self.keys.lock();
        let keys = state.keys.clone().filter(|_| state.schedule.counts(state.epoch.elapsed()));
        drop(state);
        let verdict = self.settings.issuer.verify(token, &*keys.ok_or(TokenError::NoKeys)?, now());
        if verdict == Err(TokenError::UnknownKey) && self.keys.lock().schedule.ask() {
            self.keys.changed.notify_all();
        }
        verdict
    }
}

impl Keys {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that keeps the keys of an issuer.
struct Fetcher {
    url: String,
    https: Https,
    keys: Arc<Keys>,
}

impl Fetcher {
    fn run(self) {
        while self.wait() {
            let fetched = self.fetch();
            let mut state = self.keys.lock();
            let now = state.epoch.elapsed();
            state.schedule.attempted(now, fetched.is_ok());
            match fetched {
                Ok(keys) => {
                    if keys.is_empty() {
                        warn!(
                            issuer = self.url,
                            "the issuer has no key that verifies signatures: its tokens are refused"
                        );
                    } else if state.keys.is_none() || state.failure.is_some() {
                        info!(issuer = self.url, "the issuer's keys are known");
                    }
                    (state.keys, state.failure) = (Some(Arc::new(keys)), None);
                }
                Err(reason) => {
                    if state.failure.as_ref() != Some(&reason) {
                        let has_keys = state.keys.is_some();
                        warn!(issuer = self.url, has_keys, "the issuer's keys cannot be fetched: {reason}");
                    }
                    state.failure = Some(reason);
                    if state.keys.is_some() && !state.schedule.counts(now) {
                        warn!(
                            issuer = self.url,
                            "the issuer's keys are too old: its tokens are refused until they can be fetched"
                        );
                        state.keys = None;
                    }
                }
            }
        }
    }

    /// Waits for the next attempt. False if there is none.
    fn wait(&self) -> bool {
        let mut state = self.keys.lock();
        loop {
            if state.is_over {
                return false;
            }
            let wait = state.schedule.wait(state.epoch.elapsed());
            if wait.is_zero() {
                return true;
            }
            state = self.keys.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fetch(&self) -> Result<KeySet, String> {
        let [first, second] = discovery::metadata_urls(&self.url);
        let (url, metadata) = match self.https.get(&first) {
            Err(HttpsError::NotFound(_)) => (second.clone(), self.https.get(&second)),
            metadata => (first, metadata),
        };
        let metadata = metadata.map_err(|error| error.to_string())?;
        let keys = discovery::keys_url(&self.url, &metadata).map_err(|error| format!("{url}: {error}"))?;
        let document = self.https.get(&keys).map_err(|error| error.to_string())?;
        KeySet::parse(&document).map_err(|error| format!("{keys}: {error}"))
    }
}

/// The gateway's side of the mechanism `token`.
pub(crate) struct TokenCheck {
    issuers: Arc<Issuers>,
    /// Who has issued the token that was accepted.
    accepted: Arc<Mutex<Option<Arc<TokenIssuer>>>>,
}

impl TokenCheck {
    /// `accepted` learns who has issued the token.
    pub(crate) fn new(issuers: Arc<Issuers>, accepted: Arc<Mutex<Option<Arc<TokenIssuer>>>>) -> Self {
        Self { issuers, accepted }
    }
}

impl Check for TokenCheck {
    fn receive(&mut self, data: &[u8]) -> Verdict {
        match self.issuers.verify(data) {
            Ok((issuer, Verified { subject, user, groups, expires })) => {
                *self.accepted.lock().unwrap_or_else(PoisonError::into_inner) = Some(issuer);
                Verdict::Proven(Proven { subject, vouched: Some(Vouched { user, groups, expires }), last: None })
            }
            Err(error) => Verdict::Declined(error.to_string()),
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
