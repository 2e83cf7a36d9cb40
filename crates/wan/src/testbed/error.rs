//! Errors of testbeds, each as one sentence that names the faulty part and what was expected.

use std::io;
use std::path::PathBuf;

/// The reason why a testbed could not be built, found or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The scenario cannot be built; names the place in its file if there is one.
    #[error("{place}{message}")]
    Scenario {
        /// `FILE:LINE:COLUMN: `, or empty for a scenario that came from no file.
        place: String,
        /// The problem, and what was expected.
        message: String,
    },
    /// The testbed has no such host.
    #[error("testbed {testbed} has no host \"{host}\"; it has {known}")]
    UnknownHost {
        /// The testbed.
        testbed: String,
        /// The given name.
        host: String,
        /// The existing hosts.
        known: String,
    },
    /// The testbed has no such link.
    #[error("testbed {testbed} has no link \"{link}\"; it has {known}")]
    UnknownLink {
        /// The testbed.
        testbed: String,
        /// The given name.
        link: String,
        /// The existing links.
        known: String,
    },
    /// The text is not a valid testbed name.
    #[error("\"{0}\" cannot name a testbed: expected up to 32 letters, digits and dashes")]
    Name(String),
    /// A testbed of that name is running.
    #[error("a testbed named {0} is running; choose another --name, or end it with `phoebus testbed down --name {0}`")]
    NameTaken(String),
    /// The testbed is not running, or none is.
    #[error("{}", not_running(name.as_deref(), known))]
    NotRunning {
        /// The requested name.
        name: Option<String>,
        /// The running testbeds.
        known: String,
    },
    /// Several testbeds are running, and none was named.
    #[error("several testbeds are running, {0}; choose one with --name")]
    Ambiguous(String),
    /// The testbed's owner refused a request.
    #[error("{message}")]
    Remote {
        /// The owner's message.
        message: String,
        /// Whether the request was invalid.
        bad_input: bool,
    },
    /// The testbed's owner process ended unexpectedly.
    #[error("the testbed's process ended unexpectedly; the testbed is gone")]
    Lost,
    /// A gateway did not start.
    #[error("the gateway on {host} {what}")]
    Gateway {
        /// The host on which it should run.
        host: String,
        /// What happened, with the end of its log.
        what: String,
    },
    /// The caller may not create namespaces or TUN devices.
    #[error("{0}")]
    NotPermitted(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file of the testbed's state could not be read or written.
    #[error("cannot use {}: {source}", path.display())]
    State {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Whether the request is invalid, as opposed to a problem of the machine.
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

    /// Adds what was attempted to a system error; for `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::System { what: what.into(), source: source.into() }
    }

    /// Adds a file of the state to a system error; for `map_err`.
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
