//! Limits of the server and of each session.

use super::super::logins::Delays;
use phoebus_files::local::{CHECKSUM_STEP, checksums_at_once};
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
    /// How long after the first failed login the next password from that address is not looked at; twice as long after each further one.
    /// 1 s by default: nothing to whoever has mistyped, and much to who guesses.
    pub failure_delay: Span,
    /// The longest of these, and no more than half of `login`: who shares the address of one who guesses waits for one of them, or two, and
    /// so is not shut out. A third of `login` by default, and no more than 20 s.
    pub failure_delay_max: Option<Span>,
    /// How many passwords are looked at at a time, each by one processor for some tenths of a second. Half of the processors by default,
    /// and at least one: what is left moves data.
    pub password_checks: usize,
    /// How many steps of checksums of whole files (CKSM) are computed at a time, each on a thread of its own. One for each processor by
    /// default, and at least four, since disks are waited for.
    pub checksums: usize,
    /// Of these, for one user, and of those who log in as anonymous for one address. Half by default: what the others ask for goes on even
    /// where his files are on a disk that hangs.
    pub checksums_per_user: Option<usize>,
    /// How many bytes are read in one step. Between two of them others have their turn, and what was aborted ends. 4 MiB by default: some
    /// milliseconds of a disk.
    pub checksum_step: ByteSize,
    /// How long the system's sources of names may take to say who the `account` of a user is. 30 s by default: more than directories over
    /// the network need, and less than one waits for a server to start.
    pub accounts: Span,
    /// How long a client has to log in. 60 s by default.
    pub login: Span,
    /// How long a client may say nothing. 10 minutes by default, as in GCT's server.
    pub idle: Span,
    /// The longest line, in bytes. 64 KiB by default: paths have 4 KiB, and tokens of security in base64 some tens.
    pub line: ByteSize,
    /// How many commands may wait while one is carried out. 1000 by default: clients with small files send ahead (U7).
    pub ahead: usize,
    /// How many bytes these may have, for one connection. 256 KiB by default: some thousand paths of usual length.
    pub ahead_bytes: ByteSize,
    /// The most bytes of a listing on the control channel (STAT, MLSC), which is kept until the client has read it. 32 MiB by default: some
    /// hundred thousand names; MLSD and LIST have no limit.
    pub listing: ByteSize,
    /// How many bytes of commands sent ahead and of such listings are kept for all connections from one address. 64 MiB by default.
    pub memory_per_address: ByteSize,
    /// The same for all connections. 256 MiB by default.
    pub memory: ByteSize,
    /// How long sessions have to end their transfers when the server is told to end. 30 s by default.
    pub drain: Span,
}

impl Limits {
    /// How long passwords wait after failed logins.
    pub(in super::super) fn delays(&self) -> Delays {
        let usual = (self.login.0 / 3).min(Duration::from_secs(20));
        Delays { first: self.failure_delay.0, most: self.failure_delay_max.map_or(usual, |most| most.0) }
    }

    /// The turns in which checksums are computed: how many, how many for one user, and for how many bytes.
    pub(in super::super) fn turns(&self) -> (usize, usize, u64) {
        let of_one = self.checksums_per_user.unwrap_or_else(|| self.checksums.div_ceil(2));
        (self.checksums, of_one, self.checksum_step.0)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1000,
            per_address: 100,
            per_user: 500,
            attempts: 3,
            failure_delay: Span(Duration::from_secs(1)),
            failure_delay_max: None,
            password_checks: std::thread::available_parallelism().map_or(1, |all| (all.get() / 2).max(1)),
            checksums: checksums_at_once(),
            checksums_per_user: None,
            checksum_step: ByteSize(CHECKSUM_STEP),
            accounts: Span(Duration::from_secs(30)),
            login: Span(Duration::from_secs(60)),
            idle: Span(Duration::from_secs(600)),
            line: ByteSize(64 << 10),
            ahead: 1000,
            ahead_bytes: ByteSize(256 << 10),
            listing: ByteSize(32 << 20),
            memory_per_address: ByteSize(64 << 20),
            memory: ByteSize(256 << 20),
            drain: Span(Duration::from_secs(30)),
        }
    }
}
