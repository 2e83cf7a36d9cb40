//! Bundles at this gateway: who may join which session, and how a connection gets to its relay (`docs/protocol/session.md`
//! §6.7).
//!
//! ```text
//!   ATTACH ──► Bundles::claim ──► Seat ── OPENED sent ──► Seat::take ──┐
//!                                                                      ├──► Roster ──► relay
//!   Pool::attach ──► Roster::seat ──► Seat ── OPENED heard ────────────┘
//! ```
//!
//! A seat is held while a connection is on its way in, and no relay ends before its seats are taken or given up. Otherwise one
//! end could be through with a connection that the other has just taken in.

use crate::pool::{Pool, Unplugged};
use crate::quota::Slot;
use crate::refusal::Refusal;
use phoebus_net::Stream;
use phoebus_proto::session::bundle::TOKEN_LEN;
use phoebus_proto::session::message::Attach;
use phoebus_proto::session::{Code, SessionId};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use tokio::sync::oneshot;

/// Connections on their way into one bundle.
#[derive(Debug)]
pub(crate) struct Roster {
    /// In all, the first included.
    streams: u16,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Connections that may still come, those with a seat among them.
    expected: u16,
    /// Seats that are held.
    seats: u16,
    arrived: Vec<Newcomer>,
    closed: bool,
    relay: Option<Waker>,
}

/// A connection that has joined, and who gets it back.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) stream: Arc<Stream>,
    pub(crate) lender: Lender,
}

/// Who has lent a connection to a bundle.
#[derive(Debug)]
pub(crate) enum Lender {
    /// The pool of the peer that it leads to.
    Pool(Arc<Pool>, Unplugged),
    /// The task that has accepted it.
    Caller(oneshot::Sender<Arc<Stream>>),
}

impl Lender {
    /// Gives back `stream`, which is free for another session.
    pub(crate) fn give_back(self, stream: Arc<Stream>) {
        match self {
            Self::Pool(pool, unplugged) => pool.put_back(unplugged.plug(stream)),
            // A caller that is gone leaves it to be reset.
            Self::Caller(caller) => drop(caller.send(stream)),
        }
    }
}

impl Roster {
    /// For a bundle that `expected` connections may join.
    pub(crate) fn new(expected: u16) -> Arc<Self> {
        let state = Mutex::new(State { expected, ..State::default() });
        Arc::new(Self { streams: expected + 1, state })
    }

    /// The right to bring a connection, while the bundle takes any.
    pub(crate) fn seat(self: &Arc<Self>) -> Option<Seat> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        state.seats += 1;
        Some(Seat { roster: self.clone(), held: true })
    }

    /// One that was expected will not come.
    pub(crate) fn expect_one_less(&self) {
        let mut state = self.lock();
        state.expected = state.expected.saturating_sub(1);
        state.wake();
    }

    /// Those that have come since the last time; wakes the caller when there are more.
    pub(crate) fn arrived(&self, cx: &Context<'_>) -> Vec<Newcomer> {
        let mut state = self.lock();
        if !state.relay.as_ref().is_some_and(|relay| relay.will_wake(cx.waker())) {
            state.relay = Some(cx.waker().clone());
        }
        std::mem::take(&mut state.arrived)
    }

    /// Whether nobody is to come any more.
    pub(crate) fn is_complete(&self) -> bool {
        let state = self.lock();
        state.arrived.is_empty() && state.seats == 0 && (state.expected == 0 || state.closed)
    }

    /// Takes nobody in any more; false while someone is on the way in.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.lock();
        let empty = state.seats == 0 && state.arrived.is_empty();
        state.closed |= empty;
        empty
    }

    /// Takes nobody in any more, and lets go who has come: the session has failed.
    pub(crate) fn give_up(&self) {
        let mut state = self.lock();
        state.closed = true;
        let gone = std::mem::take(&mut state.arrived);
        drop(state);
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn wake(&self) {
        if let Some(relay) = &self.relay {
            relay.wake_by_ref();
        }
    }
}

/// The right to bring a connection into a bundle, given up when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    roster: Arc<Roster>,
    held: bool,
}

impl Seat {
    /// Connections that the bundle may consist of.
    pub(crate) fn streams(&self) -> u16 {
        self.roster.streams
    }

    /// Brings `newcomer`. Where the session has failed meanwhile, it is reset.
    pub(crate) fn take(mut self, newcomer: Newcomer) {
        self.held = false;
        let mut state = self.roster.lock();
        state.seats -= 1;
        state.expected = state.expected.saturating_sub(1);
        if !state.closed {
            state.arrived.push(newcomer);
        }
        state.wake();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.held {
            let mut state = self.roster.lock();
            state.seats -= 1;
            state.wake();
        }
    }
}

/// Who has opened a session, and alone may add connections to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A peer, from whichever of its addresses.
    Peer(String),
    /// A client, by its address and by what it has shown of itself.
    Client(IpAddr, String),
}

impl Owner {
    /// Whoever asks on a connection from `from`: this peer, or a client that has shown to be `identity`.
    pub(crate) fn of(peer: Option<&str>, from: SocketAddr, identity: &str) -> Self {
        match peer {
            Some(name) => Self::Peer(name.to_owned()),
            None => Self::Client(from.ip(), identity.to_owned()),
        }
    }
}

/// All bundles that others may join.
#[derive(Debug, Default)]
pub(crate) struct Bundles(Mutex<HashMap<SessionId, Entry>>);

#[derive(Debug)]
struct Entry {
    owner: Owner,
    token: [u8; TOKEN_LEN],
    streams: u16,
    /// Places that are taken, as a bit set.
    taken: u64,
    roster: Arc<Roster>,
}

/// A bundle that the one who asked for it may join with further connections, until this is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    bundles: Arc<Bundles>,
    session: SessionId,
    pub(crate) token: [u8; TOKEN_LEN],
    /// Connections in all.
    pub(crate) streams: u16,
    pub(crate) roster: Arc<Roster>,
    /// The right to that many descriptors.
    slots: Vec<Slot>,
}

impl Bundles {
    /// Lets `owner` bring connections for `session`, one for each of `slots`; `None` where there are none, or no random numbers.
    pub(crate) fn offer(self: &Arc<Self>, session: SessionId, owner: Owner, slots: Vec<Slot>) -> Option<Offer> {
        let further = u16::try_from(slots.len()).ok().filter(|further| *further > 0)?;
        let mut token = [0; TOKEN_LEN];
        getrandom::fill(&mut token).ok()?;
        let (streams, roster) = (further + 1, Roster::new(further));
        // The connection that has asked is there.
        let entry = Entry { owner, token, streams, taken: 1, roster: roster.clone() };
        lock(&self.0).insert(session, entry);
        Some(Offer { bundles: self.clone(), session, token, streams, roster, slots })
    }

    /// A seat for the connection with which `owner` asks to join. All reasons against it sound the same: who guesses learns
    /// nothing.
    pub(crate) fn claim(&self, attach: &Attach<'_>, owner: &Owner) -> Result<Seat, Refusal> {
        let refused = || Refusal::new(Code::NoSession, "there is no session that this connection may join");
        let mut bundles = lock(&self.0);
        let entry = bundles.get_mut(&attach.session).ok_or_else(refused)?;
        // Takes as long for every token.
        let differs = entry.token.iter().zip(attach.token).fold(0, |differs, (a, b)| differs | (a ^ b));
        let proved = attach.token.len() == TOKEN_LEN && differs == 0 && entry.owner == *owner;
        let place = 1u64.checked_shl(attach.index.into()).unwrap_or(0);
        if !proved || attach.index >= entry.streams || place == 0 || entry.taken & place != 0 {
            return Err(refused());
        }
        let seat = entry.roster.seat().ok_or_else(refused)?;
        entry.taken |= place;
        Ok(seat)
    }
}

impl Offer {
    /// Takes nobody in any more. What is left is the right to the descriptors, for as long as they are in use.
    pub(crate) fn into_slots(mut self) -> Vec<Slot> {
        std::mem::take(&mut self.slots)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        lock(&self.bundles.0).remove(&self.session);
        self.roster.give_up();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;

    const SESSION: SessionId = SessionId([5; 16]);

    fn slots(n: u32) -> Vec<Slot> {
        let quota: Arc<Quota> = Arc::default();
        (0..n).map(|_| quota.take([127, 0, 0, 1].into(), 9, 9).unwrap()).collect()
    }

    #[test]
    fn only_the_owner_with_the_token_gets_each_place_once() {
        let bundles: Arc<Bundles> = Arc::default();
        let owner = Owner::Peer("pg1".to_owned());
        assert!(bundles.offer(SESSION, owner.clone(), slots(0)).is_none());
        let offer = bundles.offer(SESSION, owner.clone(), slots(2)).unwrap();
        let good = Attach { session: SESSION, token: &offer.token, index: 1, padding: 0 };
        let wrong = [0; TOKEN_LEN];
        for (attach, who) in [
            (Attach { session: SessionId([6; 16]), ..good }, &owner),
            (Attach { token: &wrong, ..good }, &owner),
            (Attach { token: &offer.token[..8], ..good }, &owner),
            (Attach { token: &[], ..good }, &owner),
            (Attach { index: 0, ..good }, &owner),
            (Attach { index: 3, ..good }, &owner),
            (Attach { index: 64, ..good }, &owner),
            (Attach { index: u16::MAX, ..good }, &owner),
            (good, &Owner::Peer("pg3".to_owned())),
            (good, &Owner::Client([127, 0, 0, 1].into(), String::new())),
        ] {
            assert_eq!(bundles.claim(&attach, who).unwrap_err().code, Code::NoSession, "{attach:?} of {who:?}");
        }
        let seat = bundles.claim(&good, &owner).unwrap();
        assert!(bundles.claim(&good, &owner).is_err(), "the place is taken");
        assert!(!offer.roster.close(), "someone is on the way in");
        drop(seat);
        assert!(bundles.claim(&good, &owner).is_err(), "a place is given once");
        assert!(offer.roster.close());
        assert!(bundles.claim(&Attach { index: 2, ..good }, &owner).is_err(), "it is too late");
        drop(offer);
        assert!(lock(&bundles.0).is_empty());
    }
}
