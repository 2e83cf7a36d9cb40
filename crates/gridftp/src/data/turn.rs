//! Turns: what a connection has to do, done by a thread that may block, some time at a time.
//!
//! Bytes between a plain TCP connection and a file need nobody but the kernel, and a thread that waits with it: as long as the other
//! end keeps up, no task is woken and no byte looked at. A thread that finds nothing to do goes; then the runtime waits. For its turn the
//! thread is the user whose files it reads or writes.

use super::connection::Loose;
use super::error::Error;
use phoebus_files::local::Identity;
use phoebus_net::bulk::Bulk;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long a turn is where nobody says: what it moved is then told, and others that wait for a thread get one.
const TURN: Duration = Duration::from_millis(20);

/// How many connections have a thread at a time where nobody says: far more than keep a network busy, and far below what the
/// runtime's pool has threads for (512), since disks are waited for there, too.
const THREADS: usize = 64;

/// Threads for connections whose bytes are those of a TCP socket as they are. Clones are the same; those that are made by default are
/// the process's.
#[derive(Debug, Clone)]
pub struct Carriers {
    free: Arc<Semaphore>,
    turn: Duration,
}

impl Carriers {
    /// So many connections have a thread at a time (64 by default, and at least one), each for so long until another one may have it
    /// (20 ms by default).
    pub fn new(threads: usize, turn: Duration) -> Self {
        Self { free: Arc::new(Semaphore::new(threads.clamp(1, Semaphore::MAX_PERMITS))), turn }
    }
}

impl Default for Carriers {
    fn default() -> Self {
        static PROCESS: LazyLock<Carriers> = LazyLock::new(|| Carriers::new(THREADS, TURN));
        PROCESS.clone()
    }
}

/// What a connection has to do.
pub(super) trait Work: Send + 'static {
    /// As whom it is to be done, if not as the process. Each file is used as its own user whatever this says
    /// ([`UserFile::act`](phoebus_files::local::UserFile::act)), which costs less where the thread is that user already.
    fn user(&self) -> Option<Arc<Identity>>;

    /// Does what [`Step::Prepare`] asked for, as the process.
    ///
    /// # Errors
    /// The work has failed.
    fn prepare(&mut self) -> Result<Step, Error>;

    /// Does some of it. What it has begun when it finds nothing more to do it goes on with the next time.
    ///
    /// # Errors
    /// `WouldBlock` where the connection is not ready; otherwise the work has failed.
    fn step(&mut self, bulk: &Bulk) -> Result<Step, Error>;
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// There is more to do.
    More,
    /// There would be, if it were given something.
    Starved,
    /// Something has to be prepared as the process ([`Work::prepare`]): what may start a thread, which would stay the user, or takes what
    /// a user is allowed little of.
    Prepare,
    /// All is done.
    Done,
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// It was long enough.
    Over,
    /// The connection is not ready.
    Waits,
    /// There is nothing to send yet.
    Starved,
    /// All is done.
    Done,
}

/// Has `work` done with `connection` for one turn. Dropped, the connection is reset within a moment.
///
/// # Errors
/// Those of the work; the connection is reset.
pub(super) async fn turn<W: Work>(
    connection: Loose,
    mut work: W,
    carriers: &Carriers,
) -> Result<(Loose, W, Why), Error> {
    // It is never closed.
    let permit = carriers.free.clone().acquire_owned().await.ok();
    let turn = carriers.turn;
    let guard = Guard::default();
    let given_up = guard.0.clone();
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let until = Instant::now() + turn;
        loop {
            let user = work.user();
            let mut steps = || steps(&mut work, &connection.bulk, &given_up, until);
            let step = match user {
                Some(user) => user.act(steps).map_err(Error::Broken)?,
                None => steps(),
            };
            let why = match step {
                Ok(Step::Prepare) => match work.prepare()? {
                    Step::Starved => Why::Starved,
                    Step::Done => Why::Done,
                    Step::More | Step::Prepare => continue,
                },
                Ok(Step::More) => Why::Over,
                Ok(Step::Starved) => Why::Starved,
                Ok(Step::Done) => Why::Done,
                Err(Error::Broken(error)) if error.kind() == io::ErrorKind::WouldBlock => Why::Waits,
                Err(error) => return Err(error),
            };
            return Ok((connection, work, why));
        }
    });
    done.await.unwrap_or(Err(Error::GivenUp))
}

/// Steps of `work`, until the turn is over or there is something else to say.
fn steps<W: Work>(work: &mut W, bulk: &Bulk, given_up: &AtomicBool, until: Instant) -> Result<Step, Error> {
    loop {
        if given_up.load(Ordering::Relaxed) {
            return Err(Error::GivenUp);
        }
        match work.step(bulk) {
            Ok(Step::More) if Instant::now() < until => {}
            other => return other,
        }
    }
}

/// Tells the thread of a turn when nobody waits for it any more.
#[derive(Default)]
struct Guard(Arc<AtomicBool>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
