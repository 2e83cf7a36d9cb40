//! Schedules steps of checksums: reading and hashing a large file takes a thread and a processor for long, and anybody
//! who may read it can ask for it without limit. Servers schedule other work of their users in the same way.
//!
//! Turns go round between owners, and within an owner to the longest waiting request, so one owner's requests do not
//! delay others. An owner who holds the most turns allowed is passed over: its files may be on a disk that hangs.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Default length of a step: some milliseconds of reading, after which others take turns, and a dropped request ends.
pub const STEP: u64 = 4 << 20;

/// Default number of concurrent steps: one for each processor, at least four, since they wait for disks.
pub fn at_once() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).max(4)
}

/// The scheduler, shared by all owners. Clones share it.
#[derive(Debug, Clone)]
pub struct Turns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    at_once: usize,
    of_one: usize,
    step: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    owners: HashMap<Arc<str>, Owner>,
    /// Owners with waiting requests and free turns, the next first.
    line: VecDeque<Arc<str>>,
}

#[derive(Debug, Default)]
struct Owner {
    held: usize,
    /// Waiting requests in order. Dropped ones are closed.
    waiting: VecDeque<oneshot::Sender<Turn>>,
    in_line: bool,
}

/// The share of one owner.
#[derive(Debug, Clone)]
pub struct Share {
    turns: Turns,
    owner: Arc<str>,
}

/// A turn. Dropping it returns it.
#[derive(Debug)]
pub struct Turn(Share);

impl Turns {
    /// `most` turns at a time, of which one owner has at most `of_one`, for steps of `step` bytes.
    pub fn new(at_once: usize, of_one: usize, step: u64) -> Self {
        let (at_once, of_one, step) = (at_once.max(1), of_one.max(1), step.max(1));
        Self(Arc::new(Shared { at_once, of_one, step, state: Mutex::default() }))
    }

    /// The share of the one who has `share` of others.
    pub fn of_same(&self, share: &Share) -> Share {
        Share { turns: self.clone(), owner: share.owner.clone() }
    }

    /// The share of `owner`.
    pub fn of(&self, owner: &str) -> Share {
        Share { turns: self.clone(), owner: owner.into() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns free turns, after `change`.
    fn after(&self, change: impl FnOnce(&mut State)) {
        let mut given = Vec::new();
        {
            let mut state = self.state();
            change(&mut state);
            while state.held < self.0.at_once
                && let Some(owner) = state.line.pop_front()
            {
                if let Some(waiting) = state.next_of(&owner, self.0.of_one) {
                    given.push((waiting, Turn(Share { turns: self.clone(), owner })));
                }
            }
        }
        // A request that was dropped meanwhile returns its turn, for which the lock must be free.
        given.into_iter().for_each(|(waiting, turn)| drop(waiting.send(turn)));
    }
}

impl State {
    /// Queues this owner, if it has waiting requests and may have a turn.
    fn queue(&mut self, name: &Arc<str>, of_one: usize) {
        let Some(owner) = self.owners.get_mut(name) else { return };
        if owner.held == 0 && owner.waiting.is_empty() {
            self.owners.remove(name);
        } else if !owner.in_line && owner.held < of_one && !owner.waiting.is_empty() {
            owner.in_line = true;
            self.line.push_back(name.clone());
        }
    }

    /// The request that gets the first owner's turn. The owner moves to the end of the queue, or leaves it.
    fn next_of(&mut self, name: &Arc<str>, of_one: usize) -> Option<oneshot::Sender<Turn>> {
        let owner = self.owners.get_mut(name)?;
        owner.in_line = false;
        let waiting = std::iter::from_fn(|| owner.waiting.pop_front()).find(|waiting| !waiting.is_closed());
        if waiting.is_some() {
            owner.held += 1;
            self.held += 1;
        }
        self.queue(name, of_one);
        waiting
    }
}

impl Share {
    /// Bytes of one step.
    pub(super) fn step(&self) -> u64 {
        self.turns.0.step
    }

    /// Waits for a turn. Dropping the future takes none. `None` never happens while the scheduler exists.
    pub async fn turn(&self) -> Option<Turn> {
        let (sender, turn) = oneshot::channel();
        self.turns.after(|state| {
            let owner = state.owners.entry(self.owner.clone()).or_default();
            owner.waiting.retain(|waiting| !waiting.is_closed());
            owner.waiting.push_back(sender);
            state.queue(&self.owner, self.turns.0.of_one);
        });
        // The request stays queued as long as this lives.
        turn.await.ok()
    }
}

impl Default for Share {
    /// A scheduler of one store alone.
    fn default() -> Self {
        Turns::new(at_once(), at_once(), STEP).of("")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Share { turns, owner: name } = &self.0;
        turns.after(|state| {
            state.held -= 1;
            if let Some(owner) = state.owners.get_mut(name) {
                owner.held -= 1;
            }
            state.queue(name, turns.0.of_one);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;

    type Waiting = std::pin::Pin<Box<dyn Future<Output = Option<Turn>> + Send>>;

    fn ask(turns: &Turns, owner: &str) -> Waiting {
        let share = turns.of(owner);
        Box::pin(async move { share.turn().await })
    }

    /// The turn of one who asks or waits, if he has it.
    async fn got(waiting: &mut Waiting) -> Option<Turn> {
        std::future::poll_fn(|cx| {
            Poll::Ready(match waiting.as_mut().poll(cx) {
                Poll::Ready(turn) => turn,
                Poll::Pending => None,
            })
        })
        .await
    }

    #[tokio::test]
    async fn turns_go_round_between_owners() {
        let turns = Turns::new(1, 1, STEP);
        let mut held = got(&mut ask(&turns, "a")).await;
        let mut waiting: Vec<_> = ["a", "a", "a", "a", "b", "b", "c"].map(|name| (name, ask(&turns, name))).into();
        for (_, one) in &mut waiting {
            assert!(got(one).await.is_none());
        }
        let mut order = String::new();
        while !waiting.is_empty() {
            drop(held.take());
            for i in 0..waiting.len() {
                held = got(&mut waiting[i].1).await;
                if held.is_some() {
                    order.push_str(waiting.remove(i).0);
                    break;
                }
            }
            assert!(held.is_some(), "nobody has the turn after {order}");
        }
        assert_eq!(order, "bcabaaa");
        drop(held);
        assert!(turns.state().owners.is_empty() && turns.state().held == 0);
    }

    #[tokio::test]
    async fn one_owner_cannot_take_all_turns() {
        let turns = Turns::new(4, 3, STEP);
        let mut all: Vec<_> = (0..10).map(|_| ask(&turns, "a")).collect();
        let mut held = Vec::new();
        for one in &mut all {
            held.extend(got(one).await);
        }
        assert_eq!(held.len(), 3);
        let other = got(&mut ask(&turns, "b")).await;
        assert!(other.is_some());
        drop(other);
        // Those who have left take no turn, and are not kept.
        all.truncate(4);
        held.clear();
        let last = got(&mut all[3]).await;
        assert!(last.is_some() && turns.state().held == 1);
        drop((last, ask(&turns, "a")));
        let mut again = ask(&turns, "a");
        assert!(got(&mut again).await.is_some());
        assert!(turns.state().owners.is_empty() && turns.state().line.is_empty());
    }

    #[tokio::test]
    async fn expired_turn_is_passed_on() {
        let turns = Turns::new(1, 1, STEP);
        let held = got(&mut ask(&turns, "a")).await;
        let (mut left, mut stays) = (ask(&turns, "a"), ask(&turns, "b"));
        assert!(got(&mut left).await.is_none() && got(&mut stays).await.is_none());
        drop(held);
        // It is his, and he goes without having looked.
        drop(left);
        assert!(got(&mut stays).await.is_some());
    }
}
