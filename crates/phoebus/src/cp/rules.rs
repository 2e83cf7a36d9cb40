//! `--include` and `--exclude`, whose order among each other counts.

use crate::exit::Exit;
use anyhow::Result;
use clap::{Arg, ArgAction, ArgMatches, Command, Error, FromArgMatches};
use phoebus_files::plan::Filter;

/// Patterns in the given order, and whether each includes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules(Vec<(bool, String)>);

const RULES: [(&str, bool, &str); 2] = [
    ("include", true, "Copy what PATTERN matches in a directory. The first matching --include or --exclude applies"),
    (
        "exclude",
        false,
        "Skip what PATTERN matches: a name such as '*.tmp', a path such as 'run*/raw', or a directory such as 'cache/'",
    ),
];

impl Rules {
    /// The filter.
    ///
    /// # Errors
    /// An invalid pattern (exit code 2).
    pub(crate) fn filter(&self) -> Result<Filter> {
        let mut filter = Filter::default();
        for (includes, pattern) in &self.0 {
            let added = if *includes { filter.include(pattern) } else { filter.exclude(pattern) };
            added.map_err(Exit::usage)?;
        }
        Ok(filter)
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromArgMatches for Rules {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut found: Vec<(usize, bool, String)> = Vec::new();
        for (name, includes, _) in RULES {
            let patterns = matches.get_many::<String>(name).into_iter().flatten();
            let places = matches.indices_of(name).into_iter().flatten();
            found.extend(places.zip(patterns).map(|(place, pattern)| (place, includes, pattern.clone())));
        }
        found.sort();
        Ok(Self(found.into_iter().map(|(_, includes, pattern)| (includes, pattern)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Rules {
    fn augment_args(command: Command) -> Command {
        RULES.iter().fold(command, |command, (name, _, help)| {
            command.arg(Arg::new(*name).long(*name).value_name("PATTERN").action(ArgAction::Append).help(*help))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_matching_rule_applies() {
        let command = <Rules as clap::Args>::augment_args(Command::new("x"));
        let given = ["x", "--exclude", "a", "--include=b", "--exclude", "c"];
        let rules = Rules::from_arg_matches(&command.get_matches_from(given)).unwrap();
        assert_eq!(rules.0, [(false, "a".to_owned()), (true, "b".to_owned()), (false, "c".to_owned())]);
        assert!(Rules(vec![(true, "[".to_owned())]).filter().is_err());
    }
}
