//! A logged-in user and the directory that is served.

use crate::account::Account;
use crate::config::Trusted;
use crate::error::Unusable;
use crate::quota::{Limited, Quota};
use phoebus_files::Links;
use phoebus_files::local::{Identity, Local, Share, Turns};
use phoebus_files::store::Store;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A user, and the store of the root.
#[derive(Debug, Clone)]
pub struct Served {
    /// The user's account.
    pub account: Account,
    /// The user's files, within the quota.
    pub store: Arc<dyn Store>,
    /// The same store, if it has a quota.
    pub limited: Option<Limited>,
    /// The store without quota.
    local: Local,
}

/// The root of a user, and the system user for file access, if not the server's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct UserRoot {
    pub(crate) root: PathBuf,
    pub(crate) account: Option<String>,
}

impl Served {
    fn new(account: Account, local: Local, limited: Option<Limited>) -> Self {
        let store: Arc<dyn Store> = match &limited {
            Some(limited) => Arc::new(limited.clone()),
            None => Arc::new(local.clone()),
        };
        Self { account, store, limited, local }
    }

    /// Opens the root `place`. The quota's count carries over from `before` if that was the same directory. `time_limit`
    /// limits the lookup of the system account.
    pub(crate) fn open(
        account: Account,
        place: &UserRoot,
        (quota, before): (Quota, Option<&Self>),
        time_limit: Duration,
    ) -> Result<Self, Unusable> {
        let store = store(&account.name, place, time_limit)?;
        if quota == Quota::default() {
            return Ok(Self::new(account, store, None));
        }
        let before = before.and_then(|before| before.limited.as_ref());
        let limited = Limited::new(store.clone(), &place.root, quota, before);
        Ok(Self::new(account, store, Some(limited)))
    }

    /// The user who started the server: only the system limits access.
    pub(crate) fn trusted(trusted: &Trusted) -> Result<Self, Unusable> {
        let everything = trusted.root == Path::new("/");
        // That user could connect anywhere without the server, unless SSH restricts the login; and connections with the
        // pinned key may come from anywhere.
        let (third_party, keyed_third_party) = (false, everything);
        let account =
            Account { name: trusted.name.clone(), read_only: trusted.read_only, third_party, keyed_third_party };
        let links = if everything { Links::Anywhere } else { Links::Beneath };
        let opened = Local::new(&trusted.root, links);
        let store = opened.map_err(|error| Unusable(format!("the root of {}: {error}", trusted.name)))?;
        Ok(Self::new(account, store.called(""), None))
    }

    /// The same user's share of `turns`.
    pub fn share_of(&self, turns: &Turns) -> Share {
        turns.of_same(self.local.checksums())
    }

    /// The same with this share of the checksum scheduler.
    pub(crate) fn sharing(&self, share: Share) -> Self {
        let local = self.local.clone().with_checksums(share);
        let limited = self.limited.as_ref().map(|limited| limited.of(local.clone()));
        Self::new(self.account.clone(), local, limited)
    }
}

fn store(user: &str, place: &UserRoot, time_limit: Duration) -> Result<Local, Unusable> {
    let opened = Local::new(&place.root, Links::Beneath);
    let opened = opened.map_err(|error| Unusable(format!("the root of {user}: {error}")))?;
    // Clients learn no more of its path than they can reach.
    let opened = opened.called("");
    let Some(account) = &place.account else {
        if rustix::process::geteuid().is_root() {
            tracing::warn!(user, "files are read and written as root, since no account is configured");
        }
        return Ok(opened);
    };
    let identity = Identity::named(account, time_limit);
    let identity = identity.map_err(|error| Unusable(format!("the account \"{account}\" of {user}: {error}")))?;
    Ok(opened.acting_as(identity))
}
