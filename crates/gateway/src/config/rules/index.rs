//! Finds the rules that can fit a user, so that a decision does not depend on how many rules name other users.

use super::{ANY, Rule, Source};
use std::collections::HashMap;

/// Numbers of rules, each list in ascending order.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Rules only for users of these names.
    by_user: HashMap<String, Vec<usize>>,
    /// Rules only for members of these groups. A rule for users and groups is in both.
    by_group: HashMap<String, Vec<usize>>,
    /// All other rules.
    others: Vec<usize>,
}

impl Index {
    pub(super) fn of(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        let names_all = |sources: &&Vec<Source>| {
            let named = |source: &Source| {
                matches!(source, Source::Group(_)) || matches!(source, Source::User(name) if name != ANY)
            };
            sources.iter().all(named)
        };
        for (number, rule) in rules.iter().enumerate() {
            let Some(only) = rule.who.iter().find(names_all) else {
                index.others.push(number);
                continue;
            };
            for source in only {
                let list = match source {
                    Source::User(name) => index.by_user.entry(name.clone()).or_default(),
                    Source::Group(name) => index.by_group.entry(name.clone()).or_default(),
                    _ => continue,
                };
                if list.last() != Some(&number) {
                    list.push(number);
                }
            }
        }
        index
    }

    /// The numbers of the rules that can fit this user, who is in these groups, in ascending order.
    pub(super) fn of_user<'a>(&'a self, user: &str, groups: &[String]) -> impl Iterator<Item = usize> + use<'a> {
        let own = (!user.is_empty()).then(|| self.by_user.get(user)).flatten();
        let groups = groups.iter().filter_map(|group| self.by_group.get(group));
        let lists = std::iter::once(&self.others).chain(own).chain(groups);
        let mut lists: Vec<&[usize]> = lists.map(Vec::as_slice).collect();
        std::iter::from_fn(move || {
            if let [only] = &mut lists[..] {
                let (next, rest) = only.split_first()?;
                *only = rest;
                return Some(*next);
            }
            let next = lists.iter().filter_map(|list| list.first()).min().copied()?;
            for list in &mut lists {
                if let Some((first, rest)) = list.split_first()
                    && *first == next
                {
                    *list = rest;
                }
            }
            Some(next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, RulePlace, Table};
    use super::*;

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
}
