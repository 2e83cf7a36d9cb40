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
    known: Arc<Known>,
    /// Of the tags; random. `None`: the system has no random numbers.
    key: OnceLock<Option<[u8; 32]>>,
    turns: Arc<Turns>,
}

impl fmt::Debug for Passwords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Passwords({} known)", lock(&self.known.0).len())
    }
}

/// A password to check.
pub(crate) struct Claim<'a> {
    pub(crate) from: IpAddr,
    pub(crate) user: &'a str,
    pub(crate) password: &'a [u8],
}

impl Passwords {
    /// Checks a password, at most `at_a_time` of them at once. A check that has begun counts, even if nobody waits for it.
    pub(crate) async fn check(
        &self,
        users: &Users,
        guesses: &Arc<Guesses>,
        at_a_time: NonZeroU32,
        claim: Claim<'_>,
    ) -> Login {
        let Claim { from, user, password } = claim;
        let must_wait = || {
            let now = Instant::now();
            guesses.wait(now, from).or_else(|| guesses.user_wait(now, from, user)).is_some()
        };
        let verifier = users.verifier(user);
        let tag = self.tag(&verifier, user, password);
        let succeeded = || {
            guesses.succeeded(Instant::now(), from, user);
            Login::Right
        };
        // Before known ones too: a guesser must not try passwords on these.
        if must_wait() {
            return Login::Unchecked;
        }
        if self.known.has(tag) {
            return succeeded();
        }
        let turn = Turns::take(&self.turns, at_a_time).await;
        // Others of this source may have been wrong meanwhile, or have had the same password.
        if must_wait() {
            return Login::Unchecked;
        }
        if self.known.has(tag) {
            return succeeded();
        }
        let (password, known, guesses) = (password.to_vec(), self.known.clone(), guesses.clone());
        let name = user.to_owned();
        let (found, answer) = oneshot::channel();
        let work = move || {
            // Without it, relays only have to share.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            let is_right = PasswordHash::from(verifier).is_of(&password);
            // Before the next one begins, and also if nobody waits any more.
            match (is_right, tag) {
                (false, _) => guesses.failed(Instant::now(), from, &name),
                (true, Some(tag)) => known.add(tag),
                (true, None) => {}
            }
            drop(turn);
            let _ = found.send(is_right);
        };
        let thread = std::thread::Builder::new().name("password".to_owned()).spawn(work);
        match thread.is_ok().then_some(answer.await) {
            Some(Ok(true)) => succeeded(),
            Some(Ok(false)) => Login::Wrong,
            Some(Err(_)) | None => Login::Unchecked,
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
}

/// The passwords that were right, and since when that is known.
#[derive(Default)]
struct Known(Mutex<HashMap<Tag, Instant>>);

impl Known {
    fn has(&self, tag: Option<Tag>) -> bool {
        tag.is_some_and(|tag| lock(&self.0).get(&tag).is_some_and(|since| since.elapsed() < KNOWN))
    }

    fn add(&self, tag: Tag) {
        let mut all = lock(&self.0);
        if all.len() >= KNOWN_MAX {
            all.retain(|_, since| since.elapsed() < KNOWN);
        }
        if all.len() < KNOWN_MAX {
            all.insert(tag, Instant::now());
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_accounts::password::scram_keys;
    use phoebus_proto::session::auth::scram::Salting;
    use std::net::Ipv4Addr;
    use tokio::runtime::Builder;

    fn users(password: &str) -> Users {
        let verifier = scram_keys(password.as_bytes(), Salting::new(b"salt", 4096).unwrap()).verifier();
        Users::parse(&format!("ada {verifier}\n"), "users").unwrap()
    }

    /// Checks all at once: each by a host, of a user, and the password.
    fn check(
        passwords: &Arc<Passwords>,
        guesses: &Arc<Guesses>,
        users: &Users,
        all: &[(u8, &'static str)],
    ) -> Vec<Login> {
        let one = |(host, password): &(u8, &'static str)| {
            let (passwords, guesses, users) = (passwords.clone(), guesses.clone(), users.clone());
            let (from, password) = (Ipv4Addr::new(192, 0, 2, *host).into(), password.as_bytes());
            async move {
                let claim = Claim { from, user: "ada", password };
                passwords.check(&users, &guesses, NonZeroU32::new(2).unwrap(), claim).await
            }
        };
        let runtime = Builder::new_current_thread().build().unwrap();
        let begun: Vec<_> = all.iter().map(|claim| runtime.spawn(one(claim))).collect();
        runtime.block_on(async {
            let mut found = Vec::new();
            for check in begun {
                found.push(check.await.unwrap());
            }
            found
        })
    }

    #[test]
    fn one_source_gets_few_guesses_however_many_it_makes_at_once() {
        let (passwords, guesses, users) = (Arc::default(), Arc::default(), users("secret"));
        let found = check(&passwords, &guesses, &users, &[(1, "wrong"); 100]);
        let wrong = found.iter().filter(|login| **login == Login::Wrong).count();
        // Six, and what was begun beside the sixth.
        assert!((6..=7).contains(&wrong), "{wrong}");
        assert!(!found.contains(&Login::Right));
        assert_eq!(
            check(&passwords, &guesses, &users, &[(1, "secret"), (2, "secret")]),
            [Login::Unchecked, Login::Right]
        );
    }

    #[test]
    fn right_passwords_are_known_by_user_and_verifier() {
        let (passwords, guesses) = (Arc::<Passwords>::default(), Arc::default());
        let before = users("secret");
        assert_eq!(check(&passwords, &guesses, &before, &[(1, "secret"); 8]), [Login::Right; 8]);
        assert_eq!(lock(&passwords.known.0).len(), 1);
        let known = |users: &Users, user: &str, password: &str| {
            passwords.known.has(passwords.tag(&users.verifier(user), user, password.as_bytes()))
        };
        assert!(known(&before, "ada", "secret"));
        assert!(
            !known(&before, "ada", "secre") && !known(&before, "adas", "ecret") && !known(&before, "eve", "secret")
        );
        assert!(!known(&users("another"), "ada", "secret"));
    }
}
