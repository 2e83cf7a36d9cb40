//! Limits of the server and of each session.

use phoebus_proto::units::{ByteSize, Span};
use serde::Deserialize;
use std::time::Duration;

/// Limits of the server and of each session.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Control connections at a time. 1000 by default, each a few kilobytes while it moves nothing.
    pub connections: usize,
    /// Of these, from one address. 100 by default: clients with many files in flight have some tens.
    pub per_address: usize,
    /// Of these, of one user. 500 by default.
    pub per_user: usize,
    /// How often a client may fail to log in on one connection. 3 by default.
    pub attempts: u32,
    /// How long a client has to log in. 60 s by default.
    pub login: Span,
    /// How long a client may say nothing. 10 minutes by default, as in GCT's server.
    pub idle: Span,
    /// The longest line, in bytes. 64 KiB by default: paths have 4 KiB, and tokens of security in base64 some tens.
    pub line: ByteSize,
    /// How many commands may wait while one is carried out. 1000 by default: clients with small files send ahead (U7).
    pub ahead: usize,
    /// How long sessions have to end their transfers when the server is told to end. 30 s by default.
    pub drain: Span,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1000,
            per_address: 100,
            per_user: 500,
            attempts: 3,
            login: Span(Duration::from_secs(60)),
            idle: Span(Duration::from_secs(600)),
            line: ByteSize(64 << 10),
            ahead: 1000,
            drain: Span(Duration::from_secs(30)),
        }
    }
}
