//! The part of a server's configuration about users.

use crate::quota::Quota;
use serde::Deserialize;
use std::path::PathBuf;

/// A user whom something else (SSH) has authenticated before the control connection.
#[derive(Debug, Clone)]
pub struct Trusted {
    /// The user's name on the server.
    pub name: String,
    /// The user's root directory.
    pub root: PathBuf,
    /// The start directory; the root, if this is not below it.
    pub home: PathBuf,
    /// Whether it is read-only.
    pub read_only: bool,
}

/// Anonymous access.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anonymous {
    /// The root directory.
    pub root: PathBuf,
    /// Whether it is read-only. True by default.
    #[serde(default = "yes")]
    pub read_only: bool,
    /// The quota below the root.
    #[serde(default)]
    pub quota: Quota,
    /// The system user for file access, if the server runs as root.
    #[serde(default)]
    pub account: Option<String>,
    /// Whether data may go to other hosts than the client's. False by default: an open server could be made to attack
    /// others (RFC 2577).
    #[serde(default)]
    pub third_party: bool,
}

/// A user with a name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// The name.
    pub name: String,
    /// The password's hash, as `phoebus serve --hash-password` prints it. Without one, the user needs a certificate or
    /// a ticket.
    #[serde(default)]
    pub password: Option<String>,
    /// The root directory.
    pub root: PathBuf,
    /// Whether it is read-only.
    #[serde(default)]
    pub read_only: bool,
    /// The quota below the root.
    #[serde(default)]
    pub quota: Quota,
    /// The system user for file access, if the server runs as root.
    #[serde(default)]
    pub account: Option<String>,
    /// Whether data may go to and come from other hosts than the client's.
    #[serde(default)]
    pub third_party: bool,
}

/// Whether `name` is an anonymous one.
pub fn is_anonymous(name: &str) -> bool {
    ["anonymous", "ftp"].iter().any(|all| name.eq_ignore_ascii_case(all))
}

fn yes() -> bool {
    true
}
