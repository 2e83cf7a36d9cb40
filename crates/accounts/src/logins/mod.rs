//! Limits and delays for passwords, so that guessing harms nobody else. Hashing takes a processor some tenths of a
//! second, on purpose, and anybody who connects can ask for it (RFC 2577, section 5: guesses are to be limited and
//! delayed).
//!
//! - Few passwords are checked at a time, and those of each queue one after the other, so that nobody waits for all that
//!   another has asked for.
//! - After a failed login, the next passwords of the queue wait before they are checked, longer after each failure.
//!   Delaying the reply instead would leak the result, and a guesser need not wait for replies.
//! - All clients of an address are one queue; a user who has logged in from there recently has a separate queue, which
//!   guesses at others do not delay. Only the password distinguishes a user from somebody who guesses at it there. So
//!   several waiting passwords (four) are checked at once, of different users first and otherwise at random: connecting
//!   repeatedly gives no advantage over waiting.

mod remembered;

pub use remembered::Delays;

use crate::count::network;
use remembered::{QueueKey, Remembered};
use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep};

/// Default delay after a first failed login: little for a typing error, much for guessing.
pub const FIRST_DELAY: Duration = Duration::from_secs(1);

/// Default time to log in.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Default number of concurrent checks, each on one processor for some tenths of a second: half of the processors, at
/// least one. The others move data.
pub fn checks_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, |all| (all.get() / 2).max(1))
}

/// Passwords of a queue that are checked one after the other once its delay has passed.
const AT_ONCE: usize = 4;

/// Schedules checks of passwords and tickets.
#[derive(Debug)]
pub struct Checks {
    threads: Arc<Semaphore>,
    /// One place for each address that presents tickets.
    tickets: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    /// Waiting passwords, in queues that a task serves ([`Checks::serve`]).
    passwords: Mutex<HashMap<QueueKey, Waiting>>,
    remembered: Arc<Remembered>,
}

/// A queue of waiting passwords.
#[derive(Debug)]
struct Waiting {
    all: Vec<WaitingPassword>,
    /// Delays of the latest request; a reload may change them.
    delays: Delays,
}

/// A waiting password.
#[derive(Debug)]
struct WaitingPassword {
    user: String,
    turn: oneshot::Sender<Turn>,
}

/// Permission to check. Dropping it ends the turn.
type Turn = mpsc::Sender<()>;

impl Checks {
    /// At most `at_once` concurrent checks (at least one), without remembered failures.
    pub fn new(at_once: usize) -> Self {
        Self::with(at_once, Arc::default())
    }

    /// The same with another limit, sharing what is remembered.
    pub fn again(&self, at_once: usize) -> Self {
        Self::with(at_once, self.remembered.clone())
    }

    fn with(at_once: usize, remembered: Arc<Remembered>) -> Self {
        let threads = Arc::new(Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)));
        Self { threads, tickets: Mutex::default(), passwords: Mutex::default(), remembered }
    }

    /// Runs `check` of a ticket on a blocking thread, when it is the turn of `from`. `None` if it panics. Dropping the
    /// future before its turn cancels it.
    pub async fn ticket<T: Send + 'static>(
        &self,
        from: IpAddr,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        // The semaphores are never closed.
        let place = self.place(network(from)).acquire_owned().await.ok()?;
        self.run(place, check).await
    }

    /// The same for a password of `user`, after the delay of its queue. A `None` of `check` counts as a failure.
    pub async fn password<T: Send + 'static>(
        self: &Arc<Self>,
        (from, user): (IpAddr, &str),
        delays: Delays,
        check: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let queue = self.remembered.queue(from, user, now());
        let turn = self.enter(&queue, user, delays).await.ok()?;
        let (remembered, user) = (self.remembered.clone(), user.to_owned());
        let checked = self.run(turn, move || {
            let checked = check();
            // Also if the client is gone by now.
            match checked {
                Some(_) => remembered.succeeded(from, &user, now()),
                None => remembered.failed(queue, now()),
            }
            checked
        });
        checked.await.flatten()
    }

    /// The delay of `user`'s next password.
    pub fn owed(&self, (from, user): (IpAddr, &str), delays: Delays) -> Duration {
        self.remembered.owed(&self.remembered.queue(from, user, now()), delays, now())
    }

    /// The queue's permit comes first: one password of each queue waits for a thread.
    async fn run<T: Send + 'static>(
        &self,
        place: impl Send + 'static,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let thread: OwnedSemaphorePermit = self.threads.clone().acquire_owned().await.ok()?;
        let checked = tokio::task::spawn_blocking(move || {
            let _places = (place, thread);
            check()
        });
        checked.await.ok()
    }

    fn place(&self, from: IpAddr) -> Arc<Semaphore> {
        let mut queues = lock(&self.tickets);
        if let Some(place) = queues.get(&from).and_then(Weak::upgrade) {
            return place;
        }
        queues.retain(|_, place| place.strong_count() > 0);
        let place = Arc::new(Semaphore::new(1));
        queues.insert(from, Arc::downgrade(&place));
        place
    }

    /// Queues in `queue`, and starts its task if needed.
    fn enter(self: &Arc<Self>, queue: &QueueKey, user: &str, delays: Delays) -> oneshot::Receiver<Turn> {
        let (turn, told) = oneshot::channel();
        let one = WaitingPassword { user: user.to_owned(), turn };
        match lock(&self.passwords).entry(queue.clone()) {
            Entry::Occupied(mut waiting) => {
                let waiting = waiting.get_mut();
                // Bounded by the connections from there.
                waiting.all.retain(WaitingPassword::is_there);
                waiting.all.push(one);
                waiting.delays = delays;
            }
            Entry::Vacant(place) => {
                place.insert(Waiting { all: vec![one], delays });
                tokio::spawn(self.clone().serve(queue.clone()));
            }
        }
        told
    }

    /// Serves `queue` until nobody waits.
    async fn serve(self: Arc<Self>, queue: QueueKey) {
        let delays = || lock(&self.passwords).get(&queue).map(|waiting| waiting.delays);
        while let Some(delays) = delays() {
            sleep(self.remembered.owed(&queue, delays, now())).await;
            let next = self.next(&queue);
            if next.is_empty() {
                // Later clients start a new task.
                return;
            }
            for one in next {
                let (turn, mut over) = mpsc::channel(1);
                // Clients that are gone are skipped.
                let _ = one.turn.send(turn);
                let _ = over.recv().await;
            }
        }
    }

    /// The next passwords to check in `queue`. `None` ends the queue.
    fn next(&self, queue: &QueueKey) -> Vec<WaitingPassword> {
        let mut queues = lock(&self.passwords);
        let Some(waiting) = queues.get_mut(queue) else { return Vec::new() };
        let next = draw(&mut waiting.all);
        if next.is_empty() {
            queues.remove(queue);
        }
        next
    }
}

/// Chooses waiting passwords at random: one of each user, then another of each.
fn draw(all: &mut Vec<WaitingPassword>) -> Vec<WaitingPassword> {
    let chance = RandomState::new();
    let waiting = all.drain(..).filter(WaitingPassword::is_there).enumerate();
    let mut shuffled: Vec<_> = waiting.map(|(number, one)| (chance.hash_one(number), one)).collect();
    shuffled.sort_by_key(|(chance, _)| *chance);
    let mut of_user = HashMap::<String, usize>::new();
    let mut ranked: Vec<_> = shuffled
        .into_iter()
        .map(|(_, one)| {
            let before = of_user.entry(one.user.clone()).or_default();
            *before += 1;
            (*before, one)
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    all.extend(ranked.split_off(ranked.len().min(AT_ONCE)).into_iter().map(|(_, one)| one));
    ranked.into_iter().map(|(_, one)| one).collect()
}

impl WaitingPassword {
    /// Whether the client still waits.
    fn is_there(&self) -> bool {
        !self.turn.is_closed()
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
