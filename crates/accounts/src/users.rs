//! All users of a server.

use crate::account::Account;
use crate::config::{Anonymous, Trusted, User, is_anonymous};
use crate::count::network;
use crate::error::Unusable;
use crate::password::PasswordHash;
use crate::served::{Served, UserRoot};
use phoebus_files::key::Key;
use phoebus_files::local::Turns;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

/// The users in a server's configuration.
#[derive(Debug, Clone, Copy)]
pub struct UsersConfig<'a> {
    /// The only user, whatever name the client gives, if SSH has authenticated it.
    pub trusted: Option<&'a Trusted>,
    /// Anonymous access.
    pub anonymous: Option<&'a Anonymous>,
    /// Users with names.
    pub users: &'a [User],
    /// Passwords of those users whose configuration has none.
    pub verifiers: Option<&'a phoebus_config::users::Users>,
    /// The scheduler of their checksums.
    pub checksums: ChecksumTurns,
    /// Longest lookup of a system account.
    pub time_limit: Duration,
}

/// Settings of the checksum scheduler ([`Turns::new`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChecksumTurns {
    /// Concurrent steps.
    pub at_once: usize,
    /// Of these, for one user or one anonymous address.
    pub of_one: usize,
    /// Bytes of a step.
    pub step: u64,
}

/// All users.
#[derive(Debug)]
pub struct Users {
    /// The only user, whatever name the client gives, if SSH has authenticated it.
    trusted: Option<Served>,
    anonymous: Option<(UserRoot, Served)>,
    /// The checksum scheduler of all.
    turns: (ChecksumTurns, Turns),
    /// In the order of the configuration.
    named: Vec<Named>,
    /// Their index by name.
    index: HashMap<String, usize>,
    /// Unknown users' passwords are compared with this, so that they take as long.
    nobody: PasswordHash,
}

#[derive(Debug)]
struct Named {
    hash: Option<PasswordHash>,
    place: UserRoot,
    served: Served,
}

impl Users {
    /// Opens the roots of a configuration. Counts of quotas carry over from `before`, and so do queues of the checksum
    /// scheduler.
    ///
    /// # Errors
    /// [`Unusable`], naming the user.
    pub fn new(config: UsersConfig<'_>, before: Option<&Self>) -> Result<Self, Unusable> {
        let wanted = config.checksums;
        let turns = before.filter(|before| before.turns.0 == wanted).map(|before| before.turns.1.clone());
        let turns = turns.unwrap_or_else(|| Turns::new(wanted.at_once, wanted.of_one, wanted.step));
        let trusted = config.trusted.map(Served::trusted).transpose()?;
        let anonymous = match config.anonymous {
            Some(all) => {
                let (read_only, third_party) = (all.read_only, all.third_party);
                let account =
                    Account { name: "anonymous".to_owned(), read_only, third_party, keyed_third_party: false };
                let place = UserRoot { root: all.root.clone(), account: all.account.clone() };
                let counted = before.and_then(|before| before.anonymous.as_ref()).map(|(_, served)| served);
                let served = Served::open(account, &place, (all.quota, counted), config.time_limit)?;
                Some((place, served))
            }
            None => None,
        };
        let (mut named, mut index) = (Vec::new(), HashMap::new());
        for user in config.users {
            let hash = match &user.password {
                Some(password) => Some(PasswordHash::parse(password).ok_or_else(|| {
                    Unusable(format!(
                        "user \"{}\": password: a line that phoebus serve --hash-password has printed was expected",
                        user.name
                    ))
                })?),
                None => {
                    let kept = config.verifiers.and_then(|users| users.get(&user.name));
                    kept.map(|kept| kept.verifier.into())
                }
            };
            let (read_only, third_party) = (user.read_only, user.third_party);
            let account = Account { name: user.name.clone(), read_only, third_party, keyed_third_party: false };
            let place = UserRoot { root: user.root.clone(), account: user.account.clone() };
            let counted = before.and_then(|before| before.named(&user.name)).map(|named| &named.served);
            let served = Served::open(account, &place, (user.quota, counted), config.time_limit)?;
            let served = served.sharing(turns.of(&format!("user {}", user.name)));
            index.insert(user.name.clone(), named.len());
            named.push(Named { hash, place, served });
        }
        let nobody = PasswordHash::of_none(named.iter().filter_map(|named| named.hash.as_ref()));
        Ok(Self { trusted, anonymous, turns: (wanted, turns), named, index, nobody })
    }

    fn named(&self, user: &str) -> Option<&Named> {
        self.named.get(*self.index.get(user)?)
    }

    /// The user of this name, for clients that have authenticated without a password.
    pub fn user(&self, name: &str) -> Option<Served> {
        self.named(name).map(|named| named.served.clone())
    }

    /// Users who may write, one for each root and system account.
    pub fn writers(&self) -> Vec<Served> {
        let all = self.anonymous.iter().map(|(place, served)| (place, served));
        let named = self.named.iter().map(|named| (&named.place, &named.served));
        let mut seen = HashSet::new();
        let writers = all.chain(named).filter(|(place, served)| !served.account.read_only && seen.insert(*place));
        writers.map(|(_, served)| served.clone()).collect()
    }

    /// Whether `user` needs no password: anonymous, or authenticated already.
    pub fn needs_no_password(&self, user: &str) -> bool {
        self.trusted.is_some() || is_anonymous(user)
    }

    /// Whether the configuration names this user.
    pub fn knows(&self, user: &str) -> bool {
        self.index.contains_key(user)
    }

    /// Logs in `user` from `client` with a password. Slow on purpose.
    pub fn login(&self, user: &str, password: &[u8], client: IpAddr) -> Option<Served> {
        if self.needs_no_password(user) {
            return self.trusted.clone().or_else(|| self.anybody(client));
        }
        let (hash, served) = match self.named(user) {
            Some(Named { hash: Some(hash), served, .. }) => (hash, Some(served)),
            _ => (&self.nobody, None),
        };
        if hash.is_of(password) { served.cloned() } else { None }
    }

    /// Logs in `user` from `client`, whose password another server has checked.
    pub fn vouched(&self, user: &str, client: IpAddr) -> Option<Served> {
        let anonymous = if is_anonymous(user) { self.anybody(client) } else { None };
        anonymous.or_else(|| self.user(user))
    }

    /// An anonymous client: each address is a user.
    fn anybody(&self, client: IpAddr) -> Option<Served> {
        let share = || self.turns.1.of(&format!("address {}", network(client)));
        self.anonymous.as_ref().map(|(_, served)| served.sharing(share()))
    }

    /// Checks that each user can list the root, as the system user.
    ///
    /// # Errors
    /// [`Unusable`], naming the user.
    pub async fn look(&self) -> Result<(), Unusable> {
        let anonymous = self.anonymous.iter().map(|(place, served)| (Some(place), served));
        let trusted = self.trusted.iter().map(|served| (None, served));
        let named = self.named.iter().map(|named| (Some(&named.place), &named.served));
        for (place, served) in anonymous.chain(trusted).chain(named) {
            let seen = async { served.store.list(&Key::ROOT).await?.more().await };
            if let Err(error) = seen.await {
                let name = &served.account.name;
                let at = place.map(|place| format!(", {}", place.root.display())).unwrap_or_default();
                let why = error.to_string();
                // As clients do.
                let why = why.strip_prefix("cannot list /: ").unwrap_or(&why);
                return Err(Unusable(format!("the root of {name}{at}: cannot be listed: {why}")));
            }
        }
        Ok(())
    }
}
