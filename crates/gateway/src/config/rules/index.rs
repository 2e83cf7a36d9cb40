//! Finds the rules that can fit a request, so that a decision does not depend on how many rules name others.

use super::super::{Net, Pattern};
use super::{ANY, Rule, Source};
use phoebus_proto::endpoint::HostRef;
use std::collections::HashMap;
use std::net::IpAddr;

/// Numbers of rules, each list in ascending order.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Rules only for users of these names.
    by_user: HashMap<String, Vec<usize>>,
    /// Rules only for members of these groups. A rule for users and groups is in both.
    by_group: HashMap<String, Vec<usize>>,
    /// Rules for others too.
    for_all: Vec<usize>,
    /// Rules with these ranges, by the length of the prefix. A rule with several destinations is in several lists.
    by_prefix: Vec<(u8, HashMap<Net, Vec<usize>>)>,
    by_name: HashMap<String, Vec<usize>>,
    by_domain: HashMap<String, Vec<usize>>,
    /// Rules for every destination.
    to_all: Vec<usize>,
}

/// Several lists as one, in ascending order and each number once.
pub(super) struct Merged<'a>(Vec<&'a [usize]>);

impl Index {
    pub(super) fn of(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        for (number, rule) in rules.iter().enumerate() {
            index.add_for(number, rule);
            index.add_to(number, rule);
        }
        index
    }

    /// Adds a rule by whom it is for.
    fn add_for(&mut self, number: usize, rule: &Rule) {
        let names = |source: &Source| match source {
            Source::Group(_) => true,
            Source::User(name) => name != ANY,
            _ => false,
        };
        let Some(only) = rule.who.iter().find(|sources| sources.iter().all(names)) else {
            return self.for_all.push(number);
        };
        for source in only {
            match source {
                Source::User(name) => add(self.by_user.entry(name.clone()).or_default(), number),
                Source::Group(name) => add(self.by_group.entry(name.clone()).or_default(), number),
                _ => {}
            }
        }
    }

    /// Adds a rule by its destinations.
    fn add_to(&mut self, number: usize, rule: &Rule) {
        if rule.to.is_empty() || rule.to.contains(&Pattern::Any) {
            return self.to_all.push(number);
        }
        for to in &rule.to {
            match to {
                Pattern::Net(net) => {
                    let prefix = net.prefix();
                    let at = self.by_prefix.iter().position(|(own, _)| *own == prefix).unwrap_or_else(|| {
                        self.by_prefix.push((prefix, HashMap::new()));
                        self.by_prefix.len() - 1
                    });
                    add(self.by_prefix[at].1.entry(net.truncated()).or_default(), number);
                }
                Pattern::Name(name) => add(self.by_name.entry(name.clone()).or_default(), number),
                Pattern::Domain(name) => add(self.by_domain.entry(name.clone()).or_default(), number),
                Pattern::Any => {}
            }
        }
    }

    /// The rules that can fit this user, who is in these groups.
    pub(super) fn of_user<'a>(&'a self, user: &str, groups: &[String]) -> Merged<'a> {
        let own = (!user.is_empty()).then(|| self.by_user.get(user)).flatten();
        let groups = groups.iter().filter_map(|group| self.by_group.get(group));
        Merged::of([&self.for_all].into_iter().chain(own).chain(groups))
    }

    /// The rules that can fit the destination `host`, or one of `addresses`.
    pub(super) fn of_destination<'a>(&'a self, host: HostRef<'_>, addresses: &[IpAddr]) -> Merged<'a> {
        let nets = addresses.iter().flat_map(|addr| {
            let within = |(prefix, nets): &'a (u8, HashMap<Net, Vec<usize>>)| nets.get(&Net::around(*addr, *prefix)?);
            self.by_prefix.iter().filter_map(within)
        });
        let name = if let HostRef::Name(name) = host { name } else { "" };
        let ends = name.match_indices('.').map(|(at, _)| &name[at + 1..]);
        let domains = [name].into_iter().chain(ends).filter_map(|domain| self.by_domain.get(domain));
        Merged::of([&self.to_all].into_iter().chain(self.by_name.get(name)).chain(domains).chain(nets))
    }
}

fn add(list: &mut Vec<usize>, number: usize) {
    if list.last() != Some(&number) {
        list.push(number);
    }
}

impl<'a> Merged<'a> {
    fn of(lists: impl Iterator<Item = &'a Vec<usize>>) -> Self {
        Self(lists.map(Vec::as_slice).filter(|list| !list.is_empty()).collect())
    }

    /// The most numbers that can come.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|list| list.len()).sum()
    }
}

impl Iterator for Merged<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if let [only] = &mut self.0[..] {
            let (next, rest) = only.split_first()?;
            *only = rest;
            return Some(*next);
        }
        let next = self.0.iter().filter_map(|list| list.first()).min().copied()?;
        for list in &mut self.0 {
            if let Some((first, rest)) = list.split_first()
                && *first == next
            {
                *list = rest;
            }
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, RulePlace, Table};
    use super::*;
    use phoebus_proto::endpoint::Host;

    fn rule(who: Vec<Vec<Source>>) -> Rule {
        let place = RulePlace { table: Table::Rule, number: 1, line: 1 };
        Rule { action: Action::Deny, who, to: Vec::new(), ports: Vec::new(), reason: String::new(), place }
    }

    #[test]
    fn rules_come_in_order_and_without_those_of_others() {
        let user = |name: &str| Source::User(name.to_owned());
        let group = |name: &str| Source::Group(name.to_owned());
        let method = || vec![Source::Method("scram".to_owned())];
        let index = Index::of(&[
            rule(vec![vec![user("bob")]]),
            rule(vec![vec![user("ada"), group("physics")]]),
            rule(Vec::new()),
            rule(vec![method(), vec![group("physics"), group("staff")]]),
            rule(vec![vec![user(ANY)]]),
            rule(vec![vec![user("ada"), Source::Peer("pg1".to_owned())]]),
            rule(vec![vec![user("ada"), user("ada")], method()]),
        ]);
        let of = |user: &str, groups: &[&str]| {
            let groups: Vec<_> = groups.iter().map(|&group| group.to_owned()).collect();
            index.of_user(user, &groups).collect::<Vec<_>>()
        };
        assert_eq!(of("ada", &["physics", "staff"]), [1, 2, 3, 4, 5, 6]);
        assert_eq!(of("bob", &["staff"]), [0, 2, 3, 4, 5]);
        assert_eq!(of("", &[]), [2, 4, 5]);
    }

    #[test]
    fn rules_are_found_by_destination() {
        let to = |to: &[&str]| Rule { to: to.iter().map(|to| to.parse().unwrap()).collect(), ..rule(Vec::new()) };
        let index = Index::of(&[
            to(&["10.1.2.3/8", "10.0.0.0/16"]),
            to(&[]),
            to(&["host.example", ".example"]),
            to(&["2001:db8::/32", "192.0.2.7"]),
            to(&["0.0.0.0/0", "*"]),
            to(&[".other.example"]),
            to(&["0.0.0.0/0"]),
        ]);
        let of = |host: &str, addresses: &[&str]| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|addr| addr.parse().unwrap()).collect();
            index.of_destination(host.parse::<Host>().unwrap().as_ref(), &addresses).collect::<Vec<_>>()
        };
        assert_eq!(of("10.9.9.9", &["10.9.9.9"]), [0, 1, 4, 6]);
        assert_eq!(of("192.0.2.7", &["192.0.2.7"]), [1, 3, 4, 6]);
        assert_eq!(of("2001:db8::1", &["2001:db8::1", "10.0.0.1"]), [0, 1, 3, 4, 6]);
        assert_eq!(of("host.example", &[]), [1, 2, 4]);
        assert_eq!(of("a.other.example", &["192.0.2.7"]), [1, 2, 3, 4, 5, 6]);
        assert_eq!(of("another.example", &[]), [1, 2, 4]);
        assert_eq!(of("badexample", &[]), [1, 4]);
    }
}
