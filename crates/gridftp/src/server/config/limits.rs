//! Limits of the server and of each session.

use phoebus_accounts::ChecksumTurns;
use phoebus_accounts::logins::{Delays, FIRST_DELAY, LOGIN_TIMEOUT, checks_at_once};
use phoebus_files::local::{CHECKSUM_STEP, checksums_at_once};
use phoebus_proto::units::{ByteSize, Span};
use serde::Deserialize;
use std::time::Duration;

/// Files that a batch has open at a time: enough that one sync for all costs little for each.
pub(in super::super) const FILES_OF_BATCH: usize = 32;

/// Limits of the server and of each session.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Control connections. 1000 by default. An idle one takes a few kilobytes.
    pub connections: usize,
    /// Control connections of one address. 100 by default; a client with many files in flight has some tens.
    pub per_address: usize,
    /// Control connections of one user. 500 by default.
    pub per_user: usize,
    /// Failed logins on one connection before it is closed. 3 by default.
    pub attempts: u32,
    /// Delay of the next password of an address after its first failed login; it doubles with each further one. 1 s by
    /// default: little for a typing error, much for guessing.
    pub failure_delay: Span,
    /// Largest delay, at most half of `login`: a user at the address of somebody who guesses waits for one or two
    /// delays, and still gets in. A third of `login` by default, at most 20 s.
    pub failure_delay_max: Option<Span>,
    /// Passwords that are checked at a time. Each takes a processor some tenths of a second. Half of the processors by
    /// default, at least one, so that the others move data.
    pub password_checks: usize,
    /// Steps of whole-file checksums (CKSM) that run at a time, each on a thread. One for each processor by default, at
    /// least four, since they wait for disks.
    pub checksums: usize,
    /// Of these, for one user, or for one address of anonymous users. Half by default, so that others continue while
    /// one user's disk hangs.
    pub checksums_per_user: Option<usize>,
    /// Bytes that one step reads. Between steps, others take turns and aborts take effect. 4 MiB by default: some
    /// milliseconds of a disk.
    pub checksum_step: ByteSize,
    /// Batches of short files (SITE MPUT, SITE MGET) that have files open at a time, each up to 32 of them and a
    /// thread that waits for the disk. 8 by default: more keep a disk no busier, and short ones take their turn soon.
    pub batches: usize,
    /// Of these, for one user, or for one address of anonymous users. Half by default, so that others continue while
    /// one user's disk hangs.
    pub batches_per_user: Option<usize>,
    /// Longest wait for the system to resolve a user's `account`. 30 s by default: more than directories over the
    /// network need.
    pub accounts: Span,
    /// Time to log in. 60 s by default.
    pub login: Span,
    /// Time without a command. 10 minutes by default, as in GCT's server.
    pub idle: Span,
    /// Longest line, in bytes. 64 KiB by default: paths have up to 4 KiB, security tokens in base64 some tens.
    pub line: ByteSize,
    /// Commands that may wait during another. 1000 by default: clients with small files send ahead (U7).
    pub ahead: usize,
    /// Bytes of such commands on one connection. 256 KiB by default: some thousand paths.
    pub ahead_bytes: ByteSize,
    /// Most bytes of a listing on the control channel (STAT, MLSC), which stays in memory until it is sent. 32 MiB by
    /// default: some hundred thousand names. MLSD and LIST have no limit.
    pub listing: ByteSize,
    /// Bytes of waiting commands and such listings, for all connections of one address. 64 MiB by default.
    pub memory_per_address: ByteSize,
    /// The same for all connections. 256 MiB by default.
    pub memory: ByteSize,
    /// Time for transfers to end when the server shuts down. 30 s by default.
    pub drain: Span,
}

impl Limits {
    /// The delays after failed logins.
    pub(in super::super) fn delays(&self) -> Delays {
        Delays::new(self.failure_delay.0, self.failure_delay_max.map(|most| most.0), self.login.0)
    }

    /// Batches at a time, and how many of these one user has.
    pub(in super::super) fn batch_turns(&self) -> [usize; 2] {
        [self.batches, self.batches_per_user.unwrap_or_else(|| self.batches.div_ceil(2))]
    }

    /// The scheduler of checksums.
    pub(super) fn checksum_turns(&self) -> ChecksumTurns {
        let of_one = self.checksums_per_user.unwrap_or_else(|| self.checksums.div_ceil(2));
        ChecksumTurns { at_once: self.checksums, of_one, step: self.checksum_step.0 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1000,
            per_address: 100,
            per_user: 500,
            attempts: 3,
            failure_delay: Span(FIRST_DELAY),
            failure_delay_max: None,
            password_checks: checks_at_once(),
            checksums: checksums_at_once(),
            checksums_per_user: None,
            checksum_step: ByteSize(CHECKSUM_STEP),
            batches: 8,
            batches_per_user: None,
            accounts: Span(Duration::from_secs(30)),
            login: Span(LOGIN_TIMEOUT),
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
