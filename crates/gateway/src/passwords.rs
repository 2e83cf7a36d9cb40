//! Checks passwords that programs send as they are, by SOCKS or HTTP (P27).
//!
//! A password is hashed by a thread of its own, of low priority, and only few at a time: hashing takes some tenths of a second of a
//! processor on purpose. A password that was right is known for some minutes, by a keyed hash of it and of the user's verifier, so
//! that another verifier makes it unknown. Unknown users cost as much as known ones.

use crate::guesses::Guesses;
use hmac::{Hmac, Mac};
use phoebus_accounts::password::PasswordHash;
use phoebus_config::users::Users;
use phoebus_proto::entry::Login;
use phoebus_proto::session::auth::scram::Verifier;
use sha2::Sha256;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// For how long a right password is known: a program opens many connections, and a user who is removed is gone at once anyway.
const KNOWN: Duration = Duration::from_secs(300);
/// Most passwords that are known, of 50 bytes each.
const KNOWN_MAX: usize = 10_000;
/// The priority of the threads: relays come first.
const NICE: i32 = 10;

type Tag = [u8; 32];

/// The passwords that are being checked, and those that were right.
#[derive(Default)]
pub(crate) struct Passwords {
    known: Mutex<HashMap<Tag, Instant>>,
    /// Of the tags; random. `None`: the system has no random numbers.
    key: OnceLock<Option<[u8; 32]>>,
    turns: Arc<Turns>,
}

impl fmt::Debug for Passwords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Passwords({} known)", lock(&self.known).len())
    }
}

/// A password to check.
pub(crate) struct Claim<'a> {
    pub(crate) from: IpAddr,
    pub(crate) user: &'a str,
    pub(crate) password: &'a [u8],
}

impl Passwords {
    /// Checks a password, at most `at_a_time` of them at once. Cancel safe.
    pub(crate) async fn check(
        &self,
        users: &Users,
        guesses: &Guesses,
        at_a_time: NonZeroU32,
        claim: Claim<'_>,
    ) -> Login {
        let Claim { from, user, password } = claim;
        let must_wait = || guesses.wait(Instant::now(), from).is_some();
        let verifier = users.verifier(user);
        let tag = self.tag(&verifier, user, password);
        let succeeded = || {
            guesses.succeeded(from);
            Login::Right
        };
        // Before known ones too: a guesser must not try passwords on these.
        if must_wait() {
            return Login::Unchecked;
        }
        if self.is_known(tag) {
            return succeeded();
        }
        let turn = Turns::take(&self.turns, at_a_time).await;
        // Others of this source may have been wrong meanwhile, or have had the same password.
        if must_wait() {
            return Login::Unchecked;
        }
        if self.is_known(tag) {
            return succeeded();
        }
        match hash(verifier, password.to_vec(), turn).await {
            None => Login::Unchecked,
            Some(true) => {
                self.remember(tag);
                succeeded()
            }
            Some(false) => {
                guesses.failed(Instant::now(), from);
                Login::Wrong
            }
        }
    }

    fn tag(&self, verifier: &Verifier, user: &str, password: &[u8]) -> Option<Tag> {
        let key = self.key.get_or_init(|| {
            let mut key = [0; 32];
            getrandom::fill(&mut key).ok().map(|()| key)
        });
        let mut mac = Hmac::<Sha256>::new_from_slice(key.as_ref()?).ok()?;
        for part in [verifier.to_string().as_bytes(), user.as_bytes(), password] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        Some(mac.finalize().into_bytes().into())
    }

    fn is_known(&self, tag: Option<Tag>) -> bool {
        tag.is_some_and(|tag| lock(&self.known).get(&tag).is_some_and(|since| since.elapsed() < KNOWN))
    }

    fn remember(&self, tag: Option<Tag>) {
        let (Some(tag), mut known) = (tag, lock(&self.known)) else { return };
        if known.len() >= KNOWN_MAX {
            known.retain(|_, since| since.elapsed() < KNOWN);
        }
        if known.len() < KNOWN_MAX {
            known.insert(tag, Instant::now());
        }
    }
}

/// Whether the password has this verifier, found out by a thread that keeps the turn to its end. `None` if there is no thread.
async fn hash(verifier: Verifier, password: Vec<u8>, turn: Turn) -> Option<bool> {
    let (found, answer) = oneshot::channel();
    let work = move || {
        // Without it, relays only have to share.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        let is_right = PasswordHash::from(verifier).is_of(&password);
        drop(turn);
        let _ = found.send(is_right);
    };
    std::thread::Builder::new().name("password".to_owned()).spawn(work).ok()?;
    answer.await.ok()
}

/// The threads that work.
#[derive(Default)]
struct Turns {
    taken: Mutex<u32>,
    ended: Notify,
}

/// The right to a thread, returned on drop.
struct Turn(Arc<Turns>);

impl Turns {
    async fn take(turns: &Arc<Self>, at_a_time: NonZeroU32) -> Turn {
        loop {
            let ended = turns.ended.notified();
            {
                let mut taken = lock(&turns.taken);
                if *taken < at_a_time.get() {
                    *taken += 1;
                    return Turn(turns.clone());
                }
            }
            ended.await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *lock(&self.0.taken) -= 1;
        self.0.ended.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
