//! Whose turn it is to have a step of a checksum computed: reading and hashing a large file takes a thread and a processor for long, and
//! whoever may read a file can ask for it as often as he likes.
//!
//! Turns go round between owners, and within one to who has waited longest, so that many requests of one owner wait for each other and
//! not for others. One who holds as many as one may have is passed over: what he reads may be on a disk that hangs.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// How much is read in one turn, unless told otherwise: some milliseconds, after which others have theirs, and it is noticed that nobody
/// wants the checksum any more.
pub const STEP: u64 = 4 << 20;

/// How many steps of checksums are computed at once, unless told otherwise: one for each processor, and at least four, since disks are
/// waited for.
pub fn at_once() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).max(4)
}

/// The turns that all owners share. Clones are the same.
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
    /// Owners of whom somebody waits, and who hold fewer than one may have, the next first.
    line: VecDeque<Arc<str>>,
}

#[derive(Debug, Default)]
struct Owner {
    held: usize,
    /// Who waits, the first first. Those who have left are closed.
    waiting: VecDeque<oneshot::Sender<Turn>>,
    in_line: bool,
}

/// What of the turns is for one owner.
#[derive(Debug, Clone)]
pub struct Share {
    turns: Turns,
    owner: Arc<str>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn(Share);

impl Turns {
    /// So many at once, of which one owner has at most `of_one`, for `step` bytes each.
    pub fn new(at_once: usize, of_one: usize, step: u64) -> Self {
        let (at_once, of_one, step) = (at_once.max(1), of_one.max(1), step.max(1));
        Self(Arc::new(Shared { at_once, of_one, step, state: Mutex::default() }))
    }

    /// The share of this owner.
    pub fn of(&self, owner: &str) -> Share {
        Share { turns: self.clone(), owner: owner.into() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out what is free, after `change`.
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
        // Whoever has left meanwhile gives his turn back, for which the state is to be free.
        given.into_iter().for_each(|(waiting, turn)| drop(waiting.send(turn)));
    }
}

impl State {
    /// Has this owner stand in line, if he may and somebody of his waits.
    fn queue(&mut self, name: &Arc<str>, of_one: usize) {
        let Some(owner) = self.owners.get_mut(name) else { return };
        if owner.held == 0 && owner.waiting.is_empty() {
            self.owners.remove(name);
        } else if !owner.in_line && owner.held < of_one && !owner.waiting.is_empty() {
            owner.in_line = true;
            self.line.push_back(name.clone());
        }
    }

    /// Who gets the turn of an owner who was the first in line, and now is the last, or out of it.
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
    /// How many bytes one turn is for.
    pub(super) fn step(&self) -> u64 {
        self.turns.0.step
    }

    /// Waits for a turn. Dropped before, it takes none.
    pub(super) async fn turn(&self) -> Option<Turn> {
        let (sender, turn) = oneshot::channel();
        self.turns.after(|state| {
            let owner = state.owners.entry(self.owner.clone()).or_default();
            owner.waiting.retain(|waiting| !waiting.is_closed());
            owner.waiting.push_back(sender);
            state.queue(&self.owner, self.turns.0.of_one);
        });
        // Whoever waits is in the state for as long as this is there.
        turn.await.ok()
    }
}

impl Default for Share {
    /// All turns of a store that nobody else uses.
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
    async fn one_owner_leaves_some_for_others_whatever_he_waits_for() {
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
    async fn a_turn_that_came_too_late_is_given_on() {
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
