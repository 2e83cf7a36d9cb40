//! Many short files at once, in one of two ways:
//!
//! - `exchange`: `phoebus serve` takes and sends some hundred files in one exchange (`XBATCH`).
//! - `store` and `retrieve`: other GridFTP servers get commands about many files at once (`pipelined`), and the files go
//!   over one data connection that is kept between them (MODE E; GFD.20, section 3.4).
//!
//! Either verifies each file, and leaves what it cannot carry to the caller, who carries it alone.

mod exchange;
mod pipelined;
mod queue;
mod retrieve;
mod store;

use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::store::{Batches, Boxed, Fallible, ShortObject};
use phoebus_files::sum::Algorithm;
use std::time::Duration;

/// Most files of a batch: a round trip of 100 ms is then a fraction of a millisecond for each.
const MOST: usize = 512;

/// The same for a server that is nearer than this: batches then overlap, and cost no round trips worth saving.
const MOST_NEAR: usize = 128;
const NEAR: Duration = Duration::from_millis(2);

/// Most bytes that a server may send for one: some times as many as the files had when they were listed.
const MOST_BYTES: usize = 64 << 20;

/// Longest wait for acknowledgements of sent data if the server has it already.
const SETTLE: Duration = Duration::from_secs(5);

/// Bytes of a block.
const BLOCK: usize = 256 << 10;

/// How a server takes batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// In one exchange.
    Exchange,
    /// By pipelined commands, with this algorithm for checksums.
    Pipelined(Algorithm),
}

impl Remote {
    /// How the server takes batches, if it does and the user's options allow it.
    fn form_of_batches(&self) -> Option<Form> {
        let options = self.options();
        // Drafts of their own, and writing in place, are things that a user has asked for.
        if options.partial_dir.is_some() || options.in_place || options.striped {
            return None;
        }
        if self.has("XBATCH") {
            return Some(Form::Exchange);
        }
        // Servers with SPAS queue the commands that come while they are busy. Earlier versions of `phoebus serve` (XDRAFTS)
        // know nothing of pipelined drafts.
        let queues = ["SPAS", "PARALLEL", "MLST", "MFMT", "CKSM"].iter().all(|feature| self.has(feature));
        let is_tcp = options.stack.is_none() && options.inside.is_none();
        let is_usable = queues && is_tcp && !self.has("XDRAFTS") && self.0.ahead.is_taken();
        // A stranger who took the server's data connection could forge the combinable checksums.
        let known = &self.0.algorithms;
        let algorithm = known.iter().find(|known| **known == Algorithm::Sha256).or(known.last()).filter(|_| is_usable);
        algorithm.copied().map(Form::Pipelined)
    }

    /// Whether the server takes batches.
    pub(super) fn takes_batches(&self) -> bool {
        self.form_of_batches().is_some()
    }
}

impl Batches for Remote {
    fn most(&self) -> usize {
        if self.0.rtt < NEAR { MOST_NEAR } else { MOST }
    }

    fn algorithm(&self) -> Algorithm {
        match self.form_of_batches() {
            Some(Form::Pipelined(algorithm)) => algorithm,
            Some(Form::Exchange) | None => Algorithm::Crc32c,
        }
    }

    fn put<'a>(&'a self, objects: &'a [ShortObject]) -> Fallible<'a, Vec<bool>> {
        match self.form_of_batches() {
            Some(Form::Exchange) => Box::pin(exchange::put(self, objects)),
            Some(Form::Pipelined(algorithm)) => Box::pin(store::put(self, objects, algorithm)),
            None => Box::pin(async { Ok(vec![false; objects.len()]) }),
        }
    }

    fn get<'a>(&'a self, keys: &'a [Key]) -> Fallible<'a, Vec<Option<ShortObject>>> {
        match self.form_of_batches() {
            Some(Form::Exchange) => Box::pin(exchange::get(self, keys)),
            Some(Form::Pipelined(algorithm)) => Box::pin(retrieve::get(self, keys, algorithm)),
            None => Box::pin(async { Ok(vec![None; keys.len()]) }),
        }
    }

    fn abandon<'a>(&'a self, objects: &'a [ShortObject]) -> Boxed<'a, ()> {
        match self.form_of_batches() {
            // `phoebus serve` removes what was not published.
            Some(Form::Exchange) | None => Box::pin(async {}),
            Some(Form::Pipelined(_)) => Box::pin(store::abandon(self, objects)),
        }
    }
}
