//! Who may log in, and what he sees.

use super::super::quota::Quota;
use super::yes;
use serde::Deserialize;
use std::path::PathBuf;

/// Who is known before he logs in, by whatever made his control connection (SSH).
#[derive(Debug, Clone)]
pub struct Trusted {
    /// What the server calls him.
    pub name: String,
    /// The directory that he sees.
    pub root: PathBuf,
    /// Where he is in it to begin with; at its root, if this is not beneath it.
    pub home: PathBuf,
    /// Whether nothing can be changed.
    pub read_only: bool,
}

/// What is served to everybody.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anonymous {
    /// The directory.
    pub root: PathBuf,
    /// Whether nothing can be changed: so by default.
    #[serde(default = "yes")]
    pub read_only: bool,
    /// How much may be beneath it.
    #[serde(default)]
    pub quota: Quota,
    /// The user of the system as whom files are read and written, where the server is root.
    #[serde(default)]
    pub account: Option<String>,
    /// Whether data may go to others than the control connection's peer. Off by default: a server that lets everybody say so
    /// can be made to connect to anyone (RFC 2577).
    #[serde(default)]
    pub third_party: bool,
}

/// A user.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// The name.
    pub name: String,
    /// As `phoebus serve --hash-password` prints it. Without one he comes by certificate or ticket only.
    #[serde(default)]
    pub password: Option<String>,
    /// The directory.
    pub root: PathBuf,
    /// Whether nothing can be changed.
    #[serde(default)]
    pub read_only: bool,
    /// How much may be beneath it.
    #[serde(default)]
    pub quota: Quota,
    /// The user of the system as whom files are read and written, where the server is root.
    #[serde(default)]
    pub account: Option<String>,
    /// Whether data may go to, and come from, others than the control connection's peer.
    #[serde(default)]
    pub third_party: bool,
}

/// Whether this is the name of everybody.
pub(in super::super) fn is_anonymous(name: &str) -> bool {
    ["anonymous", "ftp"].iter().any(|all| name.eq_ignore_ascii_case(all))
}
