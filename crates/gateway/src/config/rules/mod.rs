//! Who may connect to what: the ordered `[[rule]]`s, and the `[[allow]]`s behind them (P8–P10, P25).
//!
//! Both are the same to the rest of the gateway. Rules stand in the order of the file, and all `[[allow]]`s follow the last
//! rule, wherever they stand in the file.

mod index;
mod method;
mod read;

use super::{Net, Pattern, Proved};
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::{Endpoint, HostRef};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Deref, RangeInclusive};
use std::sync::Arc;

use index::{Index, Merged};
pub(crate) use method::is_known_by;
pub(super) use method::read as read_method;
pub(super) use read::Nameable;

/// A `[[rule]]`, or an `[[allow]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What happens to sessions that it fits.
    pub action: Action,
    /// Who asks. Each entry must fit, and it does if one of its sources does. Empty: everyone.
    pub who: Vec<Vec<Source>>,
    /// The destinations; empty, which only refusing rules are: all.
    pub to: Vec<Pattern>,
    /// The ports of the destinations; empty means all.
    pub ports: Vec<RangeInclusive<u16>>,
    /// What those are told whom it refuses; empty for the gateway's own sentence.
    pub reason: String,
    /// Where it stands.
    pub place: RulePlace,
}

impl Rule {
    /// A rule of no file, which allows `to` on all ports.
    pub(crate) fn allow(who: Vec<Vec<Source>>, to: Vec<Pattern>) -> Self {
        let place = RulePlace { table: Table::Allow, number: 1, line: 0 };
        Self { action: Action::Allow, who, to, ports: Vec::new(), reason: String::new(), place }
    }
}

/// What a rule decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The session may be opened.
    Allow,
    /// It is refused.
    Deny,
    /// It is refused, and the client is told to ask this gateway.
    Redirect(Endpoint),
}

impl Action {
    /// Its name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Redirect(_) => "redirect",
        }
    }
}

/// Where a rule stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulePlace {
    /// The kind of its table.
    pub table: Table,
    /// Its number among the tables of this kind, from 1.
    pub number: u32,
    /// The line of the file as it was read, from 1; 0 for a rule that no file has.
    pub line: u32,
}

/// `rule 2 (line 31)`
impl fmt::Display for RulePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (line {})", self.table.name(), self.number, self.line)
    }
}

/// The kind of table that a rule was written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Table {
    /// `[[rule]]`
    Rule,
    /// `[[allow]]`
    Allow,
}

impl Table {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Allow => "allow",
        }
    }
}

/// The name that stands for every user.
pub(crate) const ANY: &str = "*";

/// Who requests a session, or how the request arrives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A connection from these addresses.
    Net(Net),
    /// This peer.
    Peer(String),
    /// Clients with a certificate for such a name.
    Certificate(Proved),
    /// This user, who has proved a password here; `*` for every user.
    User(String),
    /// The users of this group.
    Group(String),
    /// Whoever is known by this method. `scram` stands for all mechanisms of that family.
    Method(String),
    /// A connection to the listener at this address.
    Listener(SocketAddr),
    /// A connection by this transport.
    Transport(String),
    /// A connection with this protection, no more and no less.
    Security(Security),
}

/// All rules, in the order in which they are judged.
#[derive(Debug, Clone, Default)]
pub struct Rules(Arc<Indexed>);

#[derive(Debug, Default)]
struct Indexed {
    rules: Vec<Rule>,
    index: Index,
}

impl Rules {
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        let index = Index::of(&rules);
        Self(Arc::new(Indexed { rules, index }))
    }

    /// The rules that can fit this user, who is in these groups, in their order. Those that are left out are for others.
    pub(crate) fn for_user<'a>(&'a self, user: &str, groups: &[String]) -> impl Iterator<Item = &'a Rule> + use<'a> {
        self.by_numbers(self.0.index.of_user(user, groups))
    }

    /// The rules that can fit this user, and the destination `host` or one of `addresses`, in their order. Most of those that
    /// cannot are left out.
    pub(crate) fn for_both<'a>(
        &'a self,
        (user, groups): (&str, &[String]),
        (host, addresses): (HostRef<'_>, &[IpAddr]),
    ) -> impl Iterator<Item = &'a Rule> + use<'a> {
        let by_user = self.0.index.of_user(user, groups);
        let by_destination = self.0.index.of_destination(host, addresses);
        let is_shorter = by_destination.len() < by_user.len();
        self.by_numbers(if is_shorter { by_destination } else { by_user })
    }

    fn by_numbers<'a>(&'a self, numbers: Merged<'a>) -> impl Iterator<Item = &'a Rule> + use<'a> {
        numbers.filter_map(|number| self.0.rules.get(number))
    }
}

impl Deref for Rules {
    type Target = [Rule];

    fn deref(&self) -> &[Rule] {
        &self.0.rules
    }
}
