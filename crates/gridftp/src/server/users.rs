//! Who may log in, by passwords, which are kept as PBKDF2 (RFC 8018) of themselves, or by certificates; and what each user may.

use super::config::{Config, ConfigError, Trusted, is_anonymous};
use super::count::network;
use super::hex::{hex, unhex};
use super::quota::{Limited, Quota};
use super::session::task::{Account, Identity as Proved};
use phoebus_files::Links;
use phoebus_files::key::Key;
use phoebus_files::local::{Identity, Local, Share, Turns};
use phoebus_files::store::Store;
use phoebus_gsi::gridmap::GridMap;
use ring::pbkdf2;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often the hash is repeated: what OWASP advises (2023) for PBKDF2 with HMAC-SHA-256.
const ROUNDS: u32 = 600_000;

/// The most rounds that are believed to be meant: some seconds of a processor.
const MAX_ROUNDS: u32 = 50_000_000;

const NAME: &str = "pbkdf2-sha256";

/// What GCT's clients say instead of a name.
const DEFAULT_USER: &str = ":globus-mapping:";

/// A user, and where his files are.
#[derive(Debug, Clone)]
pub(super) struct Served {
    pub(super) account: Account,
    pub(super) store: Arc<dyn Store>,
    /// The same store, if there is a bound to what is in it.
    pub(super) limited: Option<Limited>,
    /// What both stand on.
    local: Local,
}

impl Served {
    /// One with what is in `local`, of which `limited` is the bounded form.
    fn new(account: Account, local: Local, limited: Option<Limited>) -> Self {
        let store: Arc<dyn Store> = match &limited {
            Some(limited) => Arc::new(limited.clone()),
            None => Arc::new(local.clone()),
        };
        Self { account, store, limited, local }
    }

    /// The same, whose checksums are computed by this share of turns.
    fn sharing(&self, share: Share) -> Self {
        let local = self.local.clone().with_checksums(share);
        let limited = self.limited.as_ref().map(|limited| limited.of(local.clone()));
        Self::new(self.account.clone(), local, limited)
    }
}

/// All who may log in.
#[derive(Debug)]
pub(super) struct Users {
    /// The only one, whatever he says, if he is known already.
    trusted: Option<Served>,
    anonymous: Option<Served>,
    /// The turns in which checksums are computed for all of them.
    turns: Turns,
    named: HashMap<String, (Option<Hashed>, Served)>,
    /// Which of them each subject of a certificate is.
    gridmap: GridMap,
    /// Which of them each principal is.
    #[cfg(feature = "kerberos")]
    kerberos: Option<super::config::Kerberos>,
    /// What the passwords of those are compared with whom nobody knows, so that they take as long.
    nobody: Hashed,
}

/// A password, as it is kept.
#[derive(Clone, PartialEq, Eq)]
struct Hashed {
    rounds: NonZeroU32,
    salt: Vec<u8>,
    hash: Vec<u8>,
}

impl std::fmt::Debug for Hashed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hashed)")
    }
}

impl Users {
    /// Those of a configuration, whose directories are opened; what they have is counted on from `before`.
    pub(super) fn new(config: &Config, before: Option<(&Config, &Self)>) -> Result<Self, ConfigError> {
        // What waits for its turn does so across a change.
        let (at_once, of_one, step) = config.limits.turns();
        let turns = before.filter(|(before, _)| before.limits.turns() == (at_once, of_one, step));
        let turns = turns.map_or_else(|| Turns::new(at_once, of_one, step), |(_, before)| before.turns.clone());
        let before = before.map(|(_, before)| before);
        let trusted = config.trusted.as_ref().map(own).transpose()?;
        let system = |account| System { account, patience: config.limits.accounts.0 };
        let anonymous = match &config.anonymous {
            Some(all) => {
                let (read_only, third_party) = (all.read_only, all.third_party);
                let account =
                    Account { name: "anonymous".to_owned(), read_only, third_party, keyed_third_party: false };
                let counted = before.and_then(|before| before.anonymous.as_ref());
                Some(served(account, &all.root, (all.quota, counted), system(all.account.as_deref()))?)
            }
            None => None,
        };
        let mut named = HashMap::new();
        for user in &config.users {
            let hashed = match &user.password {
                Some(password) => Some(Hashed::parse(password).ok_or_else(|| {
                    ConfigError::Value(format!(
                        "user \"{}\": password: a line that phoebus serve --hash-password has printed was expected",
                        user.name
                    ))
                })?),
                None => None,
            };
            let (read_only, third_party) = (user.read_only, user.third_party);
            let account = Account { name: user.name.clone(), read_only, third_party, keyed_third_party: false };
            let counted = before.and_then(|before| before.named.get(&user.name)).map(|(_, served)| served);
            let served = served(account, &user.root, (user.quota, counted), system(user.account.as_deref()))?;
            let served = served.sharing(turns.of(&format!("user {}", user.name)));
            named.insert(user.name.clone(), (hashed, served));
        }
        let gridmap = match &config.gsi {
            Some(gsi) => phoebus_gsi::files::gridmap(&gsi.gridmap)
                .map_err(|error| ConfigError::Value(format!("gsi.gridmap: {error}")))?,
            None => GridMap::default(),
        };
        let rounds = named.values().filter_map(|(hashed, _): &(Option<Hashed>, _)| Some(hashed.as_ref()?.rounds)).max();
        let nobody = Hashed {
            rounds: rounds.unwrap_or(NonZeroU32::MIN),
            salt: vec![0; 16],
            // No password hashes to nothing.
            hash: vec![0; 32],
        };
        Ok(Self {
            trusted,
            anonymous,
            turns,
            named,
            gridmap,
            #[cfg(feature = "kerberos")]
            kerberos: config.kerberos.clone(),
            nobody,
        })
    }

    /// Those who may change what is in their directories, one for each directory and account of the system.
    pub(super) fn writers(&self, config: &Config) -> Vec<Served> {
        let all = config.anonymous.iter().map(|all| (&all.root, &all.account, self.anonymous.as_ref()));
        let named = config.users.iter().map(|user| {
            let served = self.named.get(&user.name).map(|(_, served)| served);
            (&user.root, &user.account, served)
        });
        let mut seen = HashSet::new();
        let writers = all.chain(named).filter_map(|(root, account, served)| {
            let served = served.filter(|served| !served.account.read_only)?;
            seen.insert((root, account)).then(|| served.clone())
        });
        writers.collect()
    }

    /// Whether there is nothing to be looked at: it is known who the client is, or he may be anybody.
    pub(super) fn needs_no_password(&self, user: &str) -> bool {
        self.trusted.is_some() || is_anonymous(user)
    }

    /// Whether the configuration names this user.
    pub(super) fn knows(&self, user: &str) -> bool {
        self.named.contains_key(user)
    }

    /// Whoever it is who comes from `client` and need not say: one address is one user.
    fn anybody(&self, client: IpAddr) -> Option<Served> {
        let share = || self.turns.of(&format!("address {}", network(client)));
        self.anonymous.as_ref().map(|served| served.sharing(share()))
    }

    /// Who `user` is, who comes from `client`, if this is his password. Takes a while, on purpose.
    pub(super) fn login(&self, user: &str, password: &[u8], client: IpAddr) -> Option<Served> {
        if self.needs_no_password(user) {
            return self.trusted.clone().or_else(|| self.anybody(client));
        }
        let (hashed, served) = match self.named.get(user) {
            Some((Some(hashed), served)) => (hashed, Some(served)),
            _ => (&self.nobody, None),
        };
        if hashed.is_of(password) { served.cloned() } else { None }
    }
}

impl Users {
    /// Looks whether each can see what is in his directory, as whoever he is to the system.
    ///
    /// # Errors
    /// [`ConfigError::Value`], naming him.
    pub(super) async fn look(&self) -> Result<(), ConfigError> {
        let all = self.anonymous.iter().chain(&self.trusted).chain(self.named.values().map(|(_, served)| served));
        for served in all {
            let seen = async { served.store.list(&Key::ROOT).await?.more().await };
            if let Err(error) = seen.await {
                return Err(ConfigError::Value(format!("the root of {}: {error}", served.account.name)));
            }
        }
        Ok(())
    }

    /// Who `user` is, who comes from `client`, for whom a front end speaks.
    pub(super) fn vouched(&self, user: &str, client: IpAddr) -> Option<Served> {
        let anonymous = if is_anonymous(user) { self.anybody(client) } else { None };
        anonymous.or_else(|| self.named.get(user).map(|(_, served)| served.clone()))
    }

    /// Who `user` is, if whoever has proved to be this may be he; whom the grid-mapfile names first, or whom a principal is, if none
    /// is asked for.
    pub(super) fn mapped(&self, user: &str, proved: &Proved) -> Option<Served> {
        let user = match (proved, user) {
            (Proved::Certificate(subject), DEFAULT_USER) => self.gridmap.default_user(subject)?,
            (Proved::Certificate(subject), user) => Some(user).filter(|user| self.gridmap.allows(subject, user))?,
            #[cfg(feature = "kerberos")]
            (Proved::Principal(principal), asked) => {
                let user = self.kerberos.as_ref()?.user_of(principal)?;
                Some(user).filter(|user| asked == DEFAULT_USER || asked == *user)?
            }
        };
        self.named.get(user).map(|(_, served)| served.clone())
    }
}

/// Who has started this server: what he may is what the system lets him.
fn own(trusted: &Trusted) -> Result<Served, ConfigError> {
    let everything = trusted.root == Path::new("/");
    // He could connect to anybody by himself, unless he was let in for these files alone; and who has the key he has told may come
    // from anywhere.
    let (third_party, keyed_third_party) = (false, everything);
    let account = Account { name: trusted.name.clone(), read_only: trusted.read_only, third_party, keyed_third_party };
    let links = if everything { Links::Anywhere } else { Links::Beneath };
    let opened = Local::new(&trusted.root, links);
    let store = opened.map_err(|error| ConfigError::Value(format!("the root of {}: {error}", trusted.name)))?;
    Ok(Served::new(account, store.called(""), None))
}

/// Whom of the system a user acts as, if not as the server, and how long it may take to say who that is.
#[derive(Clone, Copy)]
struct System<'a> {
    account: Option<&'a str>,
    patience: Duration,
}

/// A user; what he has is counted on from what he was `before`, where that was the same directory.
fn served(
    account: Account,
    root: &Path,
    (quota, before): (Quota, Option<&Served>),
    system: System<'_>,
) -> Result<Served, ConfigError> {
    let store = store(&account.name, root, system)?;
    if quota == Quota::default() {
        return Ok(Served::new(account, store, None));
    }
    let limited = Limited::new(store.clone(), root, quota, before.and_then(|before| before.limited.as_ref()));
    Ok(Served::new(account, store, Some(limited)))
}

fn store(user: &str, root: &Path, system: System<'_>) -> Result<Local, ConfigError> {
    let opened = Local::new(root, Links::Beneath);
    let opened = opened.map_err(|error| ConfigError::Value(format!("the root of {user}: {error}")))?;
    // Clients see no more of where it is than they can reach.
    let opened = opened.called("");
    let Some(account) = system.account else {
        if rustix::process::geteuid().is_root() {
            tracing::warn!(user, "files are read and written as root, since no account is configured");
        }
        return Ok(opened);
    };
    let identity = Identity::named(account, system.patience);
    let identity =
        identity.map_err(|error| ConfigError::Value(format!("the account \"{account}\" of {user}: {error}")))?;
    Ok(opened.acting_as(identity))
}

/// `password` as a configuration has it.
///
/// # Errors
/// The system has no randomness.
pub fn hash_password(password: &[u8]) -> Result<String, ring::error::Unspecified> {
    let mut salt = [0; 16];
    SystemRandom::new().fill(&mut salt)?;
    let mut hash = [0; 32];
    let rounds = NonZeroU32::new(ROUNDS).unwrap_or(NonZeroU32::MIN);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, rounds, &salt, password, &mut hash);
    Ok(format!("{NAME}:{ROUNDS}:{}:{}", hex(&salt), hex(&hash)))
}

impl Hashed {
    fn parse(text: &str) -> Option<Self> {
        let [name, rounds, salt, hash] = text.trim().split(':').collect::<Vec<_>>()[..] else { return None };
        let rounds: NonZeroU32 = rounds.parse().ok()?;
        let (salt, hash) = (unhex(salt)?, unhex(hash)?);
        let sound = name == NAME && rounds.get() <= MAX_ROUNDS && salt.len() >= 8 && hash.len() == 32;
        sound.then_some(Self { rounds, salt, hash })
    }

    fn is_of(&self, password: &[u8]) -> bool {
        pbkdf2::verify(pbkdf2::PBKDF2_HMAC_SHA256, self.rounds, &self.salt, password, &self.hash).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_password_is_taken() {
        // Of Python's hashlib.pbkdf2_hmac("sha256", b"secret", bytes(range(16)), 1000).
        let kept = "pbkdf2-sha256:1000:000102030405060708090a0b0c0d0e0f:\
                    4efb2bbb6d2eb58ea8deaed54417ae2fd87fd50a8a8568709363da60d4560606";
        let hashed = Hashed::parse(kept).unwrap();
        assert!(hashed.is_of(b"secret") && !hashed.is_of(b"other") && !format!("{hashed:?}").contains("4efb"));
        let own = Hashed::parse(&hash_password(b"secret").unwrap()).unwrap();
        assert!(own.is_of(b"secret") && !own.is_of(b"Secret") && !own.is_of(b""));
        for text in ["", "secret", "md5:1:00:00", "pbkdf2-sha256:0:0011223344556677:00", &kept[..60]] {
            assert!(Hashed::parse(text).is_none(), "{text}");
        }
    }
}
