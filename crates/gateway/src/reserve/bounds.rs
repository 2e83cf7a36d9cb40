//! What bounds a connection: the rate of its segment, and the bandwidth of each account that its session belongs to.

use super::Segment;
use crate::config::Account;
use crate::failure::Side;

/// Something that has a rate, which the connections that it bounds share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Bound {
    /// The rate of a profile, towards one neighbour.
    Segment(Segment),
    /// The bandwidth of an account. `true`: towards destinations; `false`: towards clients.
    Account(Account, bool),
}

impl Bound {
    /// Its name in the log.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Segment(segment) => format!("profile {}", segment.profile),
            Self::Account(account, _) => account.to_string(),
        }
    }
}

/// All that bounds one connection; the segment comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds(pub(super) Box<[Bound]>);

impl Bounds {
    /// Of a connection at this side of a session that counts for `accounts`.
    pub(crate) fn new(segment: Segment, side: Side, accounts: &[Account]) -> Self {
        let up = side == Side::Second;
        let accounts = accounts.iter().map(|account| Bound::Account(account.clone(), up));
        Self(std::iter::once(Bound::Segment(segment)).chain(accounts).collect())
    }
}

impl From<Segment> for Bounds {
    fn from(segment: Segment) -> Self {
        Self::new(segment, Side::First, &[])
    }
}
