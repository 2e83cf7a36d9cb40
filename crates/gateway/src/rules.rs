//! What the rules say about a request: the first one that fits decides (P8–P10, P25, invariant 5).
//!
//! Names and addresses are judged apart. A rule fits a destination by its name, or by the addresses that it leads to. So a
//! name cannot lead where an address would be refused: each address of a name that this gateway resolves is judged anew,
//! by all rules in their order.
//!
//! What a rule covers depends on whether it gives something. `*` allows public addresses only, and denies everything. A range
//! denies an address also where a translator on the path would lead to it.

use crate::config::{
    ANY, Action, Config, Pattern, Rule, RulePlace, Source, SpokenFor, Table, addresses_reached, is_known_by, is_private,
};
use crate::request::Request;
use phoebus_proto::endpoint::HostRef;
use phoebus_proto::session::Principal;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What rules say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Verdict<'a> {
    /// This rule allows it. The addresses of a name that this gateway resolves are yet to be judged.
    Allowed(&'a Rule),
    /// This rule refuses it, or redirects it.
    Refused(&'a Rule),
    /// The addresses of the name will decide.
    ByAddress,
    /// No rule fits.
    Unknown,
}

/// Judges a destination by name. `resolves`: this gateway resolves it, so that its addresses will be judged too.
pub(crate) fn judge_name<'a>(config: &'a Config, request: &Request, resolves: bool) -> Verdict<'a> {
    let host = request.destination.host.as_ref();
    let names = |rule: &&Rule| rule.to.is_empty() || rule.to.iter().any(|to| to.fit(host).is_some());
    let named = fitting(config, request, &[]).find(names);
    if let Some(rule) = named.filter(|rule| rule.action == Action::Allow) {
        return Verdict::Allowed(rule);
    }
    // Rules before that one may allow or redirect an address. One that is denied changes nothing if none is allowed.
    let is_before = |rule: &&Rule| named.is_none_or(|named| !std::ptr::eq(*rule, named));
    let by_address =
        |rule: &Rule| rule.action != Action::Deny && rule.to.iter().any(|to| matches!(to, Pattern::Net(_)));
    match named {
        _ if resolves && fitting_user(config, request).take_while(is_before).any(by_address) => Verdict::ByAddress,
        Some(rule) => Verdict::Refused(rule),
        None => Verdict::Unknown,
    }
}

/// Judges the address `addr`: the destination itself, or one that its name leads to. `is_own` tells that it is an address of
/// this gateway's host or links.
pub(crate) fn judge_address<'a>(config: &'a Config, request: &Request, addr: IpAddr, is_own: bool) -> Verdict<'a> {
    let host = request.destination.host.as_ref();
    let name = Some(host).filter(|host| matches!(host, HostRef::Name(_)));
    let meant: Vec<IpAddr> = addresses_meant(addr).collect();
    let covers = |rule: &Rule, to: &Pattern| match rule.action {
        Action::Allow => gives(rule.place.table, to, name, addr, is_own),
        Action::Deny | Action::Redirect(_) => takes(to, name, &meant),
    };
    let fits = |rule: &&Rule| rule.to.is_empty() || rule.to.iter().any(|to| covers(rule, to));
    match fitting(config, request, &meant).find(fits) {
        Some(rule) if rule.action == Action::Allow => Verdict::Allowed(rule),
        Some(rule) => Verdict::Refused(rule),
        None => Verdict::Unknown,
    }
}

/// Whether a rule that allows `to` gives this address.
fn gives(table: Table, to: &Pattern, name: Option<HostRef<'_>>, addr: IpAddr, is_own: bool) -> bool {
    if *to == Pattern::Any && table == Table::Rule && is_private(addr) {
        return false;
    }
    match name {
        Some(name) if to.fit(name).is_some() => to.name_may_lead_to(addr, is_own),
        Some(_) => matches!(to, Pattern::Net(_)) && to.admits(addr, is_own),
        None => to.admits(addr, is_own),
    }
}

/// Whether a rule that refuses `to` refuses an address that means these, and that is reached by that name, if any.
fn takes(to: &Pattern, name: Option<HostRef<'_>>, meant: &[IpAddr]) -> bool {
    match (to, name) {
        (Pattern::Any, _) => true,
        (Pattern::Net(net), _) => meant.iter().any(|addr| net.contains(*addr)),
        (to, Some(name)) => to.fit(name).is_some(),
        (_, None) => false,
    }
}

/// The addresses that connections to `addr` may end at: the kernel takes the unspecified one for loopback.
fn addresses_meant(addr: IpAddr) -> impl Iterator<Item = IpAddr> {
    addresses_reached(addr).flat_map(|addr| {
        let loopback = match addr {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        std::iter::once(addr).chain(addr.is_unspecified().then_some(loopback))
    })
}

/// The rules for the requester and the destination's port, in their order, without many that do not fit the destination, nor
/// any of `addresses`.
fn fitting<'a>(config: &'a Config, request: &Request, addresses: &[IpAddr]) -> impl Iterator<Item = &'a Rule> {
    let Principal { user, groups, .. } = &request.principal;
    let to = (request.destination.host.as_ref(), addresses);
    config.rules.for_both((user, groups), to).filter(is_for(config, request))
}

/// The rules for the requester and the destination's port, in their order.
fn fitting_user<'a>(config: &'a Config, request: &Request) -> impl Iterator<Item = &'a Rule> {
    let Principal { user, groups, .. } = &request.principal;
    config.rules.for_user(user, groups).filter(is_for(config, request))
}

/// Whether a rule is for the requester and the destination's port.
fn is_for<'c, 'r>(config: &'c Config, request: &'r Request) -> impl Fn(&&Rule) -> bool + use<'c, 'r> {
    let port = request.destination.port;
    let belief = Belief::of(config, &request.principal);
    move |rule| {
        // A claim that is to the claimant's disadvantage needs no proof.
        let belief = if rule.action == Action::Allow { belief } else { Belief::All };
        let is_of = |source: &Source| fits(source, request, belief);
        (rule.ports.is_empty() || rule.ports.iter().any(|ports| ports.contains(&port)))
            && rule.who.iter().all(|any| any.iter().any(is_of))
    }
}

/// Whether `source` is who requests, and how.
fn fits(source: &Source, request: &Request, belief: Belief<'_>) -> bool {
    let principal = &request.principal;
    let is_user = !principal.user.is_empty();
    match source {
        Source::Net(net) => net.contains(request.from.ip()),
        Source::Peer(name) => request.peer.as_ref() == Some(name),
        Source::Certificate(proved) => proved.fits(&request.proved),
        Source::User(name) => is_user && (name == ANY || *name == principal.user) && belief.in_user(principal),
        Source::Group(name) => is_user && principal.groups.contains(name) && belief.in_group(principal, name),
        Source::Method(name) => is_known_by(principal, name) && belief.in_all(principal),
        Source::Listener(addr) => request.arrival.listener == Some(*addr),
        Source::Transport(name) => *request.arrival.transport == **name,
        Source::Security(security) => request.arrival.security == *security,
    }
}

/// What this gateway believes of what a principal is said to be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Belief<'a> {
    /// All: it has proved itself here.
    All,
    /// That for which a peer may speak (P12).
    Spoken(&'a [SpokenFor]),
}

impl<'a> Belief<'a> {
    /// About `principal`, by who says so.
    pub(crate) fn of(config: &'a Config, principal: &Principal) -> Self {
        let by = &principal.spoken_for_by;
        let spoken = || config.peers.get(by).map_or(&[][..], |peer| &peer.speaks_for);
        if by.is_empty() { Self::All } else { Self::Spoken(spoken()) }
    }

    /// Whether it is this user.
    pub(crate) fn in_user(self, principal: &Principal) -> bool {
        self.by(|whom| whom.covers_user(principal))
    }

    /// Whether it is in `group`.
    pub(crate) fn in_group(self, principal: &Principal, group: &str) -> bool {
        self.by(|whom| whom.covers_group(principal, group))
    }

    /// Whether all of it is so, such as the method and the subject.
    pub(crate) fn in_all(self, principal: &Principal) -> bool {
        self.by(|whom| whom.covers_all(principal))
    }

    fn by(self, covers: impl Fn(&SpokenFor) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::Spoken(all) => all.iter().any(covers),
        }
    }
}

/// Whether a rule could allow something to a client that is no peer, and that makes this request.
pub(crate) fn may_ask(config: &Config, request: &Request) -> bool {
    let Principal { user, groups, .. } = &request.principal;
    let is_from = |rule: &&Rule| rule.who.iter().all(|any| any.iter().any(|source| fits(source, request, Belief::All)));
    config.rules.for_user(user, groups).filter(|rule| rule.action == Action::Allow).any(|rule| is_from(&rule))
}

/// Where the deciding rule stands, in [`Verdict::Allowed`] and [`Verdict::Refused`].
impl Verdict<'_> {
    pub(crate) fn place(&self) -> Option<RulePlace> {
        match self {
            Self::Allowed(rule) | Self::Refused(rule) => Some(rule.place),
            Self::ByAddress | Self::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::endpoint::Endpoint;
    use phoebus_proto::session::SessionId;
    use phoebus_proto::session::auth::scram;
    use phoebus_proto::session::message::Open;
    use std::fmt::Write as _;
    use std::time::Instant;

    fn request(to: &str, principal: Principal) -> Request {
        let to: Endpoint = to.parse().unwrap();
        Request::new(&Open::new(SessionId([1; 16]), to.as_ref()), ([192, 0, 2, 9], 5).into(), None, principal)
    }

    /// What is left out of the search decides nothing: the same rule is found among all.
    #[test]
    fn search_finds_the_rule_that_comes_first_among_all() {
        let mut seed = 7u32;
        let mut any = move |n: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % n
        };
        let mut tos =
            ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "0.0.0.0/0", "2001:db8::/32", "host.example", ".example"]
                .to_vec();
        tos.extend(["*", "64:ff9b::/96", "127.0.0.0/8"]);
        let start = "name = \"pg\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\n[[peer]]\nname = \"pg1\"\naddress = \"pg1.example\"\n\
                     security = \"none\"\n";
        for _ in 0..60 {
            let mut text = start.to_owned();
            for _ in 0..any(12) {
                let [a, b] = [0; 2].map(|_| tos[any(10) as usize]);
                let action = ["allow", "deny"][any(2) as usize];
                let _ = writeln!(text, "[[rule]]\naction = \"{action}\"\nto = [\"{a}\", \"{b}\"]");
                if any(3) == 0 {
                    let _ = writeln!(text, "ports = [{}]", 1 + any(2));
                }
            }
            let mut config = Config::parse(&text, "pg.toml".as_ref()).unwrap();
            let mut rules = config.rules.to_vec();
            for rule in &mut rules {
                let users = || vec![Source::User("ada".to_owned()), Source::Group("staff".to_owned())];
                match any(4) {
                    0 => rule.who = vec![users()],
                    1 => rule.who = vec![vec![Source::User("bob".to_owned())]],
                    _ => {}
                }
            }
            config.rules = crate::config::Rules::new(rules);
            for user in ["ada", "bob", ""] {
                let groups = if user == "bob" { vec!["staff".to_owned()] } else { Vec::new() };
                let principal = Principal { user: user.to_owned(), groups, ..Principal::new(scram::PLUS, user) };
                for (host, addr) in [
                    ("host.example", "10.1.2.3"),
                    ("a.b.example", "64:ff9b::10.1.9.9"),
                    ("other", "2001:db8::1"),
                    ("[::ffff:10.1.2.3]", "::ffff:10.1.2.3"),
                    ("0.0.0.0", "0.0.0.0"),
                ] {
                    let request = request(&format!("{host}:1"), principal.clone());
                    let addr: IpAddr = addr.parse().unwrap();
                    let mut all = config.clone();
                    let found = [judge_name(&config, &request, true), judge_address(&config, &request, addr, false)];
                    // One rule alone is found by itself or not at all.
                    let alone = |rule: &Rule, all: &mut Config| {
                        all.rules = crate::config::Rules::new(vec![rule.clone()]);
                        judge_address(all, &request, addr, false).place()
                    };
                    let first = config.rules.iter().find_map(|rule| alone(rule, &mut all));
                    assert_eq!(found[1].place(), first, "{user} {host} {addr}\n{text}");
                    let is_name = matches!(request.destination.host.as_ref(), HostRef::Name(_));
                    if let (true, Verdict::Allowed(rule) | Verdict::Refused(rule)) = (is_name, found[0]) {
                        let fits =
                            |rule: &&Rule| rule.to.iter().any(|to| to.fit(request.destination.host.as_ref()).is_some());
                        let naive = config.rules.iter().filter(is_for(&config, &request)).find(fits);
                        assert_eq!(naive, Some(rule), "{user} {host}\n{text}");
                    }
                }
            }
        }
    }

    /// Prints how long a decision takes with 10 000 users and 1000 rules.
    #[test]
    #[ignore = "measures; its figure is for people"]
    fn decision_with_many_rules_and_users_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        let verifier = "SCRAM-SHA-256$4096:AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:\
                        AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let mut users = String::new();
        for n in 0..10_000 {
            let _ = writeln!(users, "user{n} {verifier} group{},all", n % 500);
        }
        std::fs::write(&file, users).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let start = format!(
            "name = \"pg\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\nauth = \"scram\"\nraw_password = true\n\
             [users]\nfile = {file:?}\n"
        );
        let by_user = |n: usize| {
            let named: Vec<_> = (0..10).map(|i| format!("\"user{}\"", n * 10 + i)).collect();
            format!("user = [{}]\nports = [\"1-9\"]", named.join(", "))
        };
        let by_group = |n: usize| format!("group = \"group{}\"\nports = [\"1-9\"]", n % 500);
        let by_port = |_: usize| "to = \"*\"\nports = [23, \"1000-2000\"]".to_owned();
        let by_address = |n: usize| format!("to = [\"10.{}.{}.0/24\", \"host{n}.example\"]", n / 256, n % 256);
        type Of<'a> = &'a dyn Fn(usize) -> String;
        for (what, of) in [
            ("by user", &by_user as Of<'_>),
            ("by group", &by_group),
            ("by destination", &by_address),
            ("by port", &by_port),
        ] {
            let mut text = start.clone();
            for n in 0..999 {
                let _ = writeln!(text, "[[rule]]\naction = \"deny\"\n{}", of(n));
            }
            text.push_str("[[rule]]\naction = \"allow\"\nuser = \"*\"\nto = \"*\"\nports = [22]\n");
            let config = Config::parse(&text, "pg.toml".as_ref()).unwrap();
            let principal = Principal {
                user: "user9999".to_owned(),
                groups: vec!["group499".to_owned(), "all".to_owned()],
                ..Principal::new(scram::PLUS, "user9999")
            };
            let request = request("198.51.100.1:22", principal);
            let addr = IpAddr::from([198, 51, 100, 1]);
            let rounds = 20_000;
            let since = Instant::now();
            let allowed = (0..rounds).filter(|_| {
                matches!(std::hint::black_box(judge_address(&config, &request, addr, false)), Verdict::Allowed(_))
            });
            assert_eq!(allowed.count(), rounds);
            println!("1000 rules {what}: {:.2} µs a decision", since.elapsed().as_secs_f64() * 1e6 / rounds as f64);
        }
    }
}
