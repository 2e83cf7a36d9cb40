//! HELP, FEAT, STAT, LANG: what the server supports, and the state of the session (RFC 959, 2389, 2640).

use super::commands::{Entry, FEATURES, Feature, SITE};
use super::task::DataEndpoint;
use super::{Session, Step};
use crate::data::Mode;
use phoebus_files::sum::Algorithm;
use phoebus_proto::gridftp::features;
use phoebus_proto::gridftp::reply::Reply;

impl Session {
    pub(super) fn feat(&self) -> Step {
        let of = |entry: &Entry| match entry.feature {
            Feature::No => Vec::new(),
            Feature::Is(words) => vec![words.to_owned()],
            Feature::Facts => vec![format!("MLST {}", self.settings.facts.feature())],
            Feature::Mechanisms => self.mechanisms().map(|mechanism| format!("AUTH {mechanism}")).collect(),
            Feature::Checksums => {
                // The cheapest comes first, and those that can be combined from parts come before all others.
                let all = Algorithm::ALL.iter().enumerate().map(|(i, algorithm)| format!("{algorithm}:{};", 10 + i));
                vec![format!("CKSM {}", all.collect::<String>())]
            }
        };
        let all: Vec<String> =
            self.commands().flat_map(of).chain(FEATURES.iter().map(|&feature| feature.to_owned())).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        Step::Say(features::print(&all))
    }

    pub(super) fn help(&self, about: Option<String>) -> Step {
        let about = about.map(|about| about.to_ascii_uppercase());
        match about.as_deref() {
            None => Step::Say(self.listed()),
            Some("SITE") => self.site_help(None),
            Some(verb) => explained(self.find(verb), ""),
        }
    }

    /// GCT's clients send this and search the reply for other commands, so it lists all commands.
    pub(super) fn site_help(&self, about: Option<String>) -> Step {
        let about = about.map(|about| about.to_ascii_uppercase());
        match about {
            None => {
                let site = SITE.iter().map(|entry| format!(" SITE {}", usage(entry)));
                let mut reply = self.listed();
                let end = reply.lines.len() - 1;
                reply.lines.splice(end..end, site.map(String::into_bytes));
                Step::Say(reply)
            }
            Some(verb) => explained(SITE.iter().find(|entry| entry.verb == verb), "SITE "),
        }
    }

    fn listed(&self) -> Reply {
        let verbs: Vec<&str> = self.commands().map(|entry| entry.verb).collect();
        let rows = verbs.chunks(8).map(|row| row.iter().map(|verb| format!("    {verb:4}")).collect::<String>());
        let first = ["The following commands are recognized:".to_owned()];
        Reply::of_lines(214, first.into_iter().chain(rows).chain(["End".to_owned()]))
    }

    pub(super) fn lang(language: Option<String>) -> Step {
        match language.as_deref() {
            None | Some("EN" | "en") => Step::say(200, "answers are in English"),
            Some(_) => Step::say(504, "answers are in English only (EN)"),
        }
    }

    pub(super) fn stat(&self) -> Step {
        let settings = &self.settings;
        let name = self.account().map_or("nobody", |account| account.name.as_str());
        let way = match &self.aim {
            DataEndpoint::None => "no data connection is set up".to_owned(),
            DataEndpoint::Connect(to) => format!("data connections go to {to:?}"),
            DataEndpoint::Listen => "data connections are waited for".to_owned(),
            DataEndpoint::StripesConnect(to) => format!("data connections of the data nodes go to {to:?}"),
            DataEndpoint::StripesListen => "data connections are waited for by the data nodes".to_owned(),
        };
        let lines = [
            "how things stand:".to_owned(),
            format!(" {name} is logged in from {}", self.peer),
            format!(
                " TYPE {}; MODE {}; STRU F",
                if settings.ascii { "A" } else { "I" },
                match settings.mode {
                    Mode::Stream => "S",
                    Mode::Extended => "E",
                }
            ),
            format!(" {} stream{}; {way}", settings.streams, if settings.streams == 1 { "" } else { "s" }),
            "end of status".to_owned(),
        ];
        Step::Say(Reply::of_lines(211, lines))
    }
}

fn usage(entry: &Entry) -> String {
    format!("{} {}", entry.verb, entry.usage).trim_end().to_owned()
}

fn explained(entry: Option<&Entry>, before: &str) -> Step {
    match entry {
        Some(entry) => Step::say(214, format!("{before}{}", usage(entry))),
        None => Step::say(502, "not implemented here"),
    }
}
