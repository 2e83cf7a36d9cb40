//! Looking at passwords without harm to others: hashing takes a processor for some tenths of a second, on purpose, and whoever connects
//! can ask for it (RFC 2577, section 5: guesses are to be bounded and delayed).
//!
//! - Few at a time are looked at, and of each line one after the other, so that nobody waits for all that another has asked for.
//! - After a failed login the next passwords of that line wait until they are looked at, the longer the more of them there were. An answer
//!   that waited would tell by its silence, and whoever guesses need not stay for it.
//! - All who come from an address are a line, but who has logged in from there lately has one of his own: nobody keeps him out by guesses at
//!   others. Nothing but his password tells himself from who guesses at it from there. So some of those who wait have their turn at once
//!   ([`AT_ONCE`]), of different users first and else whomever chance takes: who comes again and again has no better place than who
//!   waits.

mod remembered;

pub(super) use remembered::Delays;

use super::count::network;
use remembered::{Line, Remembered};
use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep};

/// How many of a line have their turn when its delay has passed, one right after the other.
const AT_ONCE: usize = 4;

/// Whose turn it is to have a ticket or a password looked at.
#[derive(Debug)]
pub(super) struct Checks {
    threads: Arc<Semaphore>,
    /// One place for each address from which somebody shows tickets.
    tickets: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
    /// Who waits with a password, in lines that somebody serves ([`Checks::serve`]).
    passwords: Mutex<HashMap<Line, Waiting>>,
    remembered: Arc<Remembered>,
}

/// Those who wait in a line.
#[derive(Debug)]
struct Waiting {
    all: Vec<One>,
    /// As who came last has them: another configuration may have others.
    delays: Delays,
}

/// One who waits.
#[derive(Debug)]
struct One {
    user: String,
    turn: oneshot::Sender<Turn>,
}

/// It is one's turn for as long as this is held.
type Turn = mpsc::Sender<()>;

impl Checks {
    /// So many at a time.
    pub(super) fn new(at_once: usize) -> Self {
        Self::with(at_once, Arc::default())
    }

    /// The same, with what these remember.
    pub(super) fn again(&self, at_once: usize) -> Self {
        Self::with(at_once, self.remembered.clone())
    }

    fn with(at_once: usize, remembered: Arc<Remembered>) -> Self {
        let threads = Arc::new(Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS)));
        Self { threads, tickets: Mutex::default(), passwords: Mutex::default(), remembered }
    }

    /// Carries out `check` of a ticket on a thread that may take its time, when it is the turn of `from`; nothing if it panics. Dropped
    /// before its turn, it takes none.
    #[cfg_attr(not(feature = "kerberos"), allow(dead_code, reason = "only Kerberos has tickets"))]
    pub(super) async fn ticket<T: Send + 'static>(
        &self,
        from: IpAddr,
        check: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        // No semaphore is ever closed.
        let place = self.place(network(from)).acquire_owned().await.ok()?;
        self.run(place, check).await
    }

    /// The same for a password of `user`, once what his line owes for its failures has passed; no `T` is one more.
    pub(super) async fn password<T: Send + 'static>(
        self: &Arc<Self>,
        (from, user): (IpAddr, &str),
        delays: Delays,
        check: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let line = self.remembered.line(from, user, now());
        let turn = self.enter(&line, user, delays).await.ok()?;
        let (remembered, user) = (self.remembered.clone(), user.to_owned());
        let checked = self.run(turn, move || {
            let checked = check();
            // Also if whoever has asked is gone by now.
            match checked {
                Some(_) => remembered.succeeded(from, &user, now()),
                None => remembered.failed(line, now()),
            }
            checked
        });
        checked.await.flatten()
    }

    /// How long the next password of `user` waits.
    pub(super) fn owed(&self, (from, user): (IpAddr, &str), delays: Delays) -> Duration {
        self.remembered.owed(&self.remembered.line(from, user, now()), delays, now())
    }

    /// The line's place comes first: of each one waits for a thread, and those wait in line.
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
        let mut lines = lock(&self.tickets);
        if let Some(place) = lines.get(&from).and_then(Weak::upgrade) {
            return place;
        }
        lines.retain(|_, place| place.strong_count() > 0);
        let place = Arc::new(Semaphore::new(1));
        lines.insert(from, Arc::downgrade(&place));
        place
    }

    /// Waits in `line`, which is served from now on.
    fn enter(self: &Arc<Self>, line: &Line, user: &str, delays: Delays) -> oneshot::Receiver<Turn> {
        let (turn, told) = oneshot::channel();
        let one = One { user: user.to_owned(), turn };
        match lock(&self.passwords).entry(line.clone()) {
            Entry::Occupied(mut waiting) => {
                let waiting = waiting.get_mut();
                // There are no more than connections from there.
                waiting.all.retain(One::is_there);
                waiting.all.push(one);
                waiting.delays = delays;
            }
            Entry::Vacant(place) => {
                place.insert(Waiting { all: vec![one], delays });
                tokio::spawn(self.clone().serve(line.clone()));
            }
        }
        told
    }

    /// Gives turns to those who wait in `line` until there are none.
    async fn serve(self: Arc<Self>, line: Line) {
        let delays = || lock(&self.passwords).get(&line).map(|waiting| waiting.delays);
        while let Some(delays) = delays() {
            sleep(self.remembered.owed(&line, delays, now())).await;
            let next = self.next(&line);
            if next.is_empty() {
                // Whoever comes from now on has it served anew.
                return;
            }
            for one in next {
                let (turn, mut over) = mpsc::channel(1);
                // Who has gone meanwhile takes none.
                let _ = one.turn.send(turn);
                let _ = over.recv().await;
            }
        }
    }

    /// Whose turn it is next in `line`; it ends where nobody waits.
    fn next(&self, line: &Line) -> Vec<One> {
        let mut lines = lock(&self.passwords);
        let Some(waiting) = lines.get_mut(line) else { return Vec::new() };
        let next = draw(&mut waiting.all);
        if next.is_empty() {
            lines.remove(line);
        }
        next
    }
}

/// Takes out some of those who wait, by chance: of each user one, then of each another.
fn draw(all: &mut Vec<One>) -> Vec<One> {
    let chance = RandomState::new();
    let waiting = all.drain(..).filter(One::is_there).enumerate();
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

impl One {
    /// Whether he still waits.
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
