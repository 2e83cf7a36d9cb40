//! What carries a file, where that is left to this end (`phoebus cp --stack auto`): connections, or objects over UDP (S25).

use super::stack::NetStack;
use phoebus_files::block::Block;
use phoebus_files::store::{Fallible, Flow};
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Measurements of a file's path, for choosing what carries it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment {
    /// Bytes to move.
    pub size: u64,
    /// Round trip of the server's replies.
    pub rtt: Duration,
    /// Bytes that the kernel allows in flight on one connection.
    pub window: u64,
    /// Fraction of segments that were retransmitted. 0 before many were sent.
    pub loss: f64,
    /// The rate that the latest object has found the path to carry, in bits per second with all headers. 0 before that.
    pub rate: f64,
}

/// Objects, for the files that are chosen for them.
#[derive(Debug, Clone)]
pub struct AutoObjects {
    /// The stack of objects.
    pub stack: NetStack,
    /// Chooses what carries a file.
    pub choose: fn(&Segment) -> Carrier,
    /// Why none of this server's files can go as objects, as the end of a sentence, if that is known.
    pub obstacle: Option<Cow<'static, str>>,
}

/// What carries a file, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carrier {
    /// Whether it goes as an object. Otherwise it goes over connections.
    pub is_object: bool,
    /// Why, as the end of a sentence.
    pub why: Cow<'static, str>,
}

/// How many files went by a carrier, for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarriedFiles {
    /// The carrier.
    pub carrier: Carrier,
    /// Number of files.
    pub files: u64,
}

/// What has carried the files of a server.
#[derive(Debug, Default)]
pub(super) struct Carriers {
    all: Mutex<Vec<CarriedFiles>>,
    /// Why the server takes no objects, if it has refused them.
    refusal: Mutex<Option<String>>,
}

impl Carriers {
    /// What has carried files.
    pub(super) fn all(&self) -> Vec<CarriedFiles> {
        lock(&self.all).clone()
    }

    /// Records what carries a file.
    pub(super) fn note(&self, carrier: Carrier) {
        let mut all = lock(&self.all);
        match all.iter_mut().find(|known| known.carrier == carrier) {
            Some(known) => known.files += 1,
            // Few: each reason stands in this program, or comes once from the server or the network.
            None => all.push(CarriedFiles { carrier, files: 1 }),
        }
    }

    /// Why the server takes no objects, if it has refused them.
    pub(super) fn refusal(&self) -> Option<String> {
        lock(&self.refusal).clone()
    }

    /// Records that the server takes no objects.
    pub(super) fn refused(&self, why: &str) {
        *lock(&self.refusal) = Some(why.to_owned());
    }
}

/// A flow that knows whether anything was read of it. Before that, it can go by another carrier.
#[derive(Debug)]
pub(super) struct Untouched {
    flow: Arc<dyn Flow>,
    was_read: AtomicBool,
}

impl Untouched {
    pub(super) fn new(flow: Arc<dyn Flow>) -> Self {
        Self { flow, was_read: AtomicBool::new(false) }
    }

    /// Whether anything was read.
    pub(super) fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Acquire)
    }
}

impl Flow for Untouched {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        self.was_read.store(true, Ordering::Release);
        self.flow.next()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
