//! The paths that connections to servers have taken, for reports (S20).

use phoebus_client::Report;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The content of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Channel {
    Control,
    Data,
    Both,
}

/// The paths so far.
#[derive(Debug, Default)]
pub struct Paths(Mutex<Vec<Taken>>);

/// A path.
#[derive(Debug, PartialEq, Eq)]
struct Taken {
    server: String,
    channel: Channel,
    /// The gateways. Empty if direct.
    by: Vec<String>,
    /// A note about it.
    note: String,
    /// The report of its first session.
    first: Option<Report>,
    sessions: u64,
}

impl Paths {
    fn all(&self) -> MutexGuard<'_, Vec<Taken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records direct connections.
    pub(super) fn direct(&self, server: &str, channel: Channel, note: &str) {
        self.note(Taken {
            server: server.to_owned(),
            channel,
            by: Vec::new(),
            note: note.to_owned(),
            first: None,
            sessions: 0,
        });
    }

    pub(super) fn add(&self, server: &str, channel: Channel, report: &Report) {
        let between = report.hops.split_last().map_or(&[][..], |(_, between)| between);
        let by = if is_direct(report) { Vec::new() } else { between.iter().map(|hop| hop.to.clone()).collect() };
        let (note, first) = (report.note.clone(), Some(report.clone()));
        self.note(Taken { server: server.to_owned(), channel, by, note, first, sessions: 1 });
    }

    fn note(&self, taken: Taken) {
        let mut all = self.all();
        let same = |known: &&mut Taken| {
            (&known.server, known.channel, &known.by, &known.note)
                == (&taken.server, taken.channel, &taken.by, &taken.note)
        };
        match all.iter_mut().find(same) {
            Some(known) => known.sessions += taken.sessions,
            None => all.push(taken),
        }
    }

    /// As JSON: each path.
    pub fn json(&self) -> Value {
        let one = |taken: &Taken| {
            let channel = match taken.channel {
                Channel::Control => "control",
                Channel::Data => "data",
                Channel::Both => "all",
            };
            json!({
                "server": taken.server,
                "channel": channel,
                "path": if taken.by.is_empty() { json!("direct") } else { json!(taken.by) },
                "sessions": taken.sessions,
                "note": taken.note,
                "first_session": taken.first,
            })
        };
        Value::Array(self.all().iter().map(one).collect())
    }

    /// Whether no server was used.
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }
}

/// As text: `direct`, `by pg1, pg2`, `commands direct, data by pg1`; of each server, if they differ.
impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.all();
        let mut servers: Vec<&str> = Vec::new();
        for taken in all.iter() {
            if !servers.contains(&taken.server.as_str()) {
                servers.push(&taken.server);
            }
        }
        let of = |server: &str| of_server(&all.iter().filter(|taken| taken.server == server).collect::<Vec<_>>());
        let said: Vec<String> = servers.iter().map(|server| of(server)).collect();
        match &said[..] {
            [first, rest @ ..] if rest.iter().all(|other| other == first) => f.write_str(first),
            _ => {
                let each = servers.iter().zip(&said).map(|(server, said)| format!("{server} {said}"));
                f.write_str(&each.collect::<Vec<_>>().join("; "))
            }
        }
    }
}

fn of_server(taken: &[&Taken]) -> String {
    let mut parts: Vec<(&str, String)> = Vec::new();
    for Taken { channel, by, note, .. } in taken {
        let way = if by.is_empty() { "direct".to_owned() } else { format!("by {}", by.join(", ")) };
        // The note already says that and why it is direct.
        let way = match (note.strip_prefix("direct: "), by.is_empty()) {
            (Some(why), true) => format!("direct ({why})"),
            _ if note.is_empty() => way,
            _ => format!("{way} ({note})"),
        };
        let what = match channel {
            Channel::Control => "commands",
            Channel::Data => "data",
            Channel::Both => "",
        };
        parts.push((what, way));
    }
    match &parts[..] {
        [(_, first), rest @ ..] if rest.iter().all(|(_, other)| other == first) => first.clone(),
        _ => parts.iter().map(|(what, way)| format!("{what} {way}").trim().to_owned()).collect::<Vec<_>>().join(", "),
    }
}

/// Whether the session of `report` used no gateway.
pub(super) fn is_direct(report: &Report) -> bool {
    report.session.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_client::Hop;

    fn report(by: &[&str], note: &str) -> Report {
        let hop = |to: &str| Hop { to: to.to_owned(), ..Hop::default() };
        let hops = by.iter().copied().chain(["10.0.0.4:21"]).map(hop).collect();
        let session = if by.is_empty() { "" } else { "5" }.to_owned();
        Report { session, hops, note: note.to_owned(), ..Report::default() }
    }

    #[test]
    fn ways_are_told_in_a_few_words() {
        let paths = Paths::default();
        paths.direct("ftp://a", Channel::Both, "");
        assert_eq!(paths.to_string(), "direct");
        let paths = Paths::default();
        for channel in [Channel::Control, Channel::Data, Channel::Data] {
            paths.add("ftp://a", channel, &report(&["pg1", "pg2"], ""));
        }
        assert_eq!(paths.to_string(), "by pg1, pg2");
        assert_eq!((paths.json()[1]["sessions"].as_u64(), paths.json()[1]["path"][1].as_str()), (Some(2), Some("pg2")));
        paths.direct("ftp://b", Channel::Both, "");
        assert_eq!(paths.to_string(), "ftp://a by pg1, pg2; ftp://b direct");
        let paths = Paths::default();
        paths.direct("gsiftp://a", Channel::Control, "why");
        paths.add("gsiftp://a", Channel::Data, &report(&["pg1"], ""));
        assert_eq!(paths.to_string(), "commands direct (why), data by pg1");
        let paths = Paths::default();
        paths.add("ftp://a", Channel::Control, &report(&[], "direct: gateway pg1: no answer"));
        paths.direct("ftp://a", Channel::Data, "direct: gateway pg1: no answer");
        assert_eq!(paths.to_string(), "direct (gateway pg1: no answer)");
    }
}
