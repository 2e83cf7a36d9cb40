//! What can go wrong with a testbed, each as one sentence that names the culprit and what was expected.

use std::io;
use std::path::PathBuf;

/// Why a testbed could not be built, found or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A scenario that cannot be built, with the place in its file where there is one.
    #[error("{place}{message}")]
    Scenario {
        /// `FILE:LINE:COLUMN: `, or nothing for a scenario that came from no file.
        place: String,
        /// What is wrong, and what was expected.
        message: String,
    },
    /// A name that is no host of the testbed.
    #[error("testbed {testbed} has no host \"{host}\"; it has {known}")]
    UnknownHost {
        /// The testbed.
        testbed: String,
        /// The name that was given.
        host: String,
        /// The hosts that there are.
        known: String,
    },
    /// A name that is no link of the testbed.
    #[error("testbed {testbed} has no link \"{link}\"; it has {known}")]
    UnknownLink {
        /// The testbed.
        testbed: String,
        /// The name that was given.
        link: String,
        /// The links that there are.
        known: String,
    },
    /// A text that cannot name a testbed.
    #[error("\"{0}\" cannot name a testbed: expected up to 32 letters, digits and dashes")]
    Name(String),
    /// A testbed of that name is running.
    #[error("a testbed named {0} is running; choose another --name, or end it with `phoebus testbed down --name {0}`")]
    NameTaken(String),
    /// No testbed of that name is running, or none at all.
    #[error("{}", not_running(name.as_deref(), known))]
    NotRunning {
        /// The name that was asked for.
        name: Option<String>,
        /// The testbeds that are running.
        known: String,
    },
    /// More than one testbed is running, and none was named.
    #[error("several testbeds are running, {0}; choose one with --name")]
    Ambiguous(String),
    /// The process that owns a testbed refused a request.
    #[error("{message}")]
    Remote {
        /// Its sentence.
        message: String,
        /// Whether the request was at fault.
        bad_input: bool,
    },
    /// The process that owns a testbed ended before its time.
    #[error("the testbed's process ended unexpectedly; the testbed is gone")]
    Lost,
    /// A gateway did not start.
    #[error("the gateway on {host} {what}")]
    Gateway {
        /// The host that it was to run on.
        host: String,
        /// What became of it, and what it said.
        what: String,
    },
    /// The caller may not make namespaces or TUN devices.
    #[error("{0}")]
    NotPermitted(String),
    /// The system refused something that a testbed needs.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A file of the testbed's state could not be read or written.
    #[error("cannot use {}: {source}", path.display())]
    State {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Whether the request itself is at fault, rather than the machine it was made on.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Scenario { .. }
            | Self::UnknownHost { .. }
            | Self::UnknownLink { .. }
            | Self::Name(_)
            | Self::NameTaken(_)
            | Self::NotRunning { .. }
            | Self::Ambiguous(_) => true,
            Self::Remote { bad_input, .. } => *bad_input,
            Self::Gateway { .. } | Self::Lost | Self::NotPermitted(_) | Self::System { .. } | Self::State { .. } => {
                false
            }
        }
    }

    pub(crate) fn scenario(message: impl Into<String>) -> Self {
        Self::Scenario { place: String::new(), message: message.into() }
    }

    /// Turns a system error into one that says what was attempted; for `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::System { what: what.into(), source: source.into() }
    }

    /// Turns a system error into one that names a file of the state; for `map_err`.
    pub(crate) fn state<E: Into<io::Error>>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        move |source| Self::State { path: path.into(), source: source.into() }
    }
}

fn not_running(name: Option<&str>, known: &str) -> String {
    match (name, known) {
        (None, _) => "no testbed is running; start one with `phoebus testbed up`".into(),
        (Some(name), "none") => format!("no testbed is running, so none is called {name}"),
        (Some(name), known) => format!("no testbed called {name} is running; there is {known}"),
    }
}
