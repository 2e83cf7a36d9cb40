//! Bundles at this gateway: which connections may join which session, and how they reach its relay
//! (`docs/protocol/session.md` §6.7).
//!
//! ```text
//!   ATTACH ──► Bundles::claim ──► JoinPermit ── OPENED sent ──► JoinPermit::take ──┐
//!                                                                                  ├──► BundleMembers ──► relay
//!   Pool::attach ──► BundleMembers::seat ──► JoinPermit ── OPENED received ────────┘
//! ```
//!
//! A permit is held while a connection is joining, and no relay ends before its permits are used or dropped. Otherwise
//! one end could be done with a connection that the other has just added.

use crate::refusal::Refusal;
use crate::slots::Slot;
use phoebus_net::Stream;
use phoebus_proto::session::bundle::TOKEN_LEN;
use phoebus_proto::session::message::Attach;
use phoebus_proto::session::{Code, Principal, SessionId};
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

/// The connections that are joining one bundle.
#[derive(Debug)]
pub(crate) struct BundleMembers {
    /// The total, including the first.
    streams: u16,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Connections that may still join, including those with a permit.
    expected: u16,
    /// Permits that are held.
    seats: u16,
    arrived: Vec<JoinedConnection>,
    closed: bool,
    relay: Option<Waker>,
}

/// A connection that has joined, and its lender.
#[derive(Debug)]
pub(crate) struct JoinedConnection {
    pub(crate) stream: Arc<Stream>,
    pub(crate) lender: ReturnHandle,
}

/// Returns a connection of a bundle to its lender, for another session.
pub(crate) struct ReturnHandle(Box<dyn FnOnce(Arc<Stream>) + Send + Sync>);

impl ReturnHandle {
    pub(crate) fn new(give_back: impl FnOnce(Arc<Stream>) + Send + Sync + 'static) -> Self {
        Self(Box::new(give_back))
    }

    /// Returns `stream`, which is free for another session.
    pub(crate) fn give_back(self, stream: Arc<Stream>) {
        (self.0)(stream);
    }
}

impl fmt::Debug for ReturnHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReturnHandle")
    }
}

impl BundleMembers {
    /// For a bundle that `expected` connections may join.
    pub(crate) fn new(expected: u16) -> Arc<Self> {
        let state = Mutex::new(State { expected, ..State::default() });
        Arc::new(Self { streams: expected + 1, state })
    }

    /// A permit to bring a connection, unless the bundle is closed.
    pub(crate) fn seat(self: &Arc<Self>) -> Option<JoinPermit> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        state.seats += 1;
        Some(JoinPermit { members: self.clone(), held: true })
    }

    /// Records that an expected connection will not join.
    pub(crate) fn expect_one_less(&self) {
        let mut state = self.lock();
        state.expected = state.expected.saturating_sub(1);
        state.wake();
    }

    /// The connections that have joined since the last call. Wakes the caller when there are more.
    pub(crate) fn arrived(&self, cx: &Context<'_>) -> Vec<JoinedConnection> {
        let mut state = self.lock();
        if !state.relay.as_ref().is_some_and(|relay| relay.will_wake(cx.waker())) {
            state.relay = Some(cx.waker().clone());
        }
        std::mem::take(&mut state.arrived)
    }

    /// Whether no more connections will join.
    pub(crate) fn is_complete(&self) -> bool {
        let state = self.lock();
        state.arrived.is_empty() && state.seats == 0 && (state.expected == 0 || state.closed)
    }

    /// Closes the bundle to new connections. Fails, and returns false, while a connection is joining.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.lock();
        let empty = state.seats == 0 && state.arrived.is_empty();
        state.closed |= empty;
        empty
    }

    /// Closes the bundle and drops the connections that have just joined, because the session has failed.
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

/// The right to bring a connection into a bundle, given up on drop.
#[derive(Debug)]
pub(crate) struct JoinPermit {
    members: Arc<BundleMembers>,
    held: bool,
}

impl JoinPermit {
    /// The most connections that the bundle may have.
    pub(crate) fn streams(&self) -> u16 {
        self.members.streams
    }

    /// Adds `newcomer`. If the session has failed meanwhile, the connection is reset.
    pub(crate) fn take(mut self, newcomer: JoinedConnection) {
        self.held = false;
        let mut state = self.members.lock();
        state.seats -= 1;
        state.expected = state.expected.saturating_sub(1);
        if !state.closed {
            state.arrived.push(newcomer);
        }
        state.wake();
    }
}

impl Drop for JoinPermit {
    fn drop(&mut self) {
        if self.held {
            let mut state = self.members.lock();
            state.seats -= 1;
            state.wake();
        }
    }
}

/// Who opened a session, and is the only one who may add connections to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A peer, from whichever of its addresses.
    Peer(String),
    /// A client, by its address, and the method and subject that it has proved.
    Client(IpAddr, [String; 2]),
}

impl Owner {
    /// The owner of a connection from `from`: this peer, or a client.
    pub(crate) fn of(peer: Option<&str>, from: SocketAddr, principal: &Principal) -> Self {
        match peer {
            Some(name) => Self::Peer(name.to_owned()),
            None => Self::Client(from.ip(), [principal.method.clone(), principal.subject.clone()]),
        }
    }
}

/// All bundles that neighbours may join.
#[derive(Debug, Default)]
pub(crate) struct Bundles(Mutex<HashMap<SessionId, Entry>>);

#[derive(Debug)]
struct Entry {
    owner: Owner,
    token: [u8; TOKEN_LEN],
    streams: u16,
    /// Indexes that are taken, as a bit set.
    taken: u64,
    members: Arc<BundleMembers>,
}

/// A bundle that its owner may join with more connections, until this is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    bundles: Arc<Bundles>,
    session: SessionId,
    pub(crate) token: [u8; TOKEN_LEN],
    /// The total number of connections.
    pub(crate) streams: u16,
    pub(crate) members: Arc<BundleMembers>,
    /// The right to as many descriptors.
    slots: Vec<Slot>,
}

impl Bundles {
    /// Lets `owner` add connections to `session`, one for each of `slots`. `None` if there are no slots, or no random
    /// numbers.
    pub(crate) fn offer(self: &Arc<Self>, session: SessionId, owner: Owner, slots: Vec<Slot>) -> Option<Offer> {
        let further = u16::try_from(slots.len()).ok().filter(|further| *further > 0)?;
        let mut token = [0; TOKEN_LEN];
        getrandom::fill(&mut token).ok()?;
        let (streams, members) = (further + 1, BundleMembers::new(further));
        // Index 0 is the connection that opened the session.
        let entry = Entry { owner, token, streams, taken: 1, members: members.clone() };
        lock(&self.0).insert(session, entry);
        Some(Offer { bundles: self.clone(), session, token, streams, members, slots })
    }

    /// A permit for the connection with which `owner` asks to join. All refusals look the same, so that a guesser
    /// learns nothing.
    pub(crate) fn claim(&self, attach: &Attach<'_>, owner: &Owner) -> Result<JoinPermit, Refusal> {
        let refused = || Refusal::new(Code::NoSession, "there is no session that this connection may join");
        let mut bundles = lock(&self.0);
        let entry = bundles.get_mut(&attach.session).ok_or_else(refused)?;
        // Compares in constant time.
        let differs = entry.token.iter().zip(attach.token).fold(0, |differs, (a, b)| differs | (a ^ b));
        let proved = attach.token.len() == TOKEN_LEN && differs == 0 && entry.owner == *owner;
        let place = 1u64.checked_shl(attach.index.into()).unwrap_or(0);
        if !proved || attach.index >= entry.streams || place == 0 || entry.taken & place != 0 {
            return Err(refused());
        }
        let seat = entry.members.seat().ok_or_else(refused)?;
        entry.taken |= place;
        Ok(seat)
    }
}

impl Offer {
    /// Closes the bundle, and returns the right to the descriptors for as long as they are in use.
    pub(crate) fn into_slots(mut self) -> Vec<Slot> {
        std::mem::take(&mut self.slots)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        lock(&self.bundles.0).remove(&self.session);
        self.members.give_up();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::SlotCounter;

    const SESSION: SessionId = SessionId([5; 16]);

    fn slots(n: u32) -> Vec<Slot> {
        let counter: Arc<SlotCounter> = Arc::default();
        (0..n).map(|_| counter.take([127, 0, 0, 1].into(), 9, 9).unwrap()).collect()
    }

    #[test]
    fn owner_with_token_gets_each_place_once() {
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
            (good, &Owner::Client([127, 0, 0, 1].into(), Default::default())),
        ] {
            assert_eq!(bundles.claim(&attach, who).unwrap_err().code, Code::NoSession, "{attach:?} of {who:?}");
        }
        let seat = bundles.claim(&good, &owner).unwrap();
        assert!(bundles.claim(&good, &owner).is_err(), "the place is taken");
        assert!(!offer.members.close(), "someone is on the way in");
        drop(seat);
        assert!(bundles.claim(&good, &owner).is_err(), "a place is given once");
        assert!(offer.members.close());
        assert!(bundles.claim(&Attach { index: 2, ..good }, &owner).is_err(), "it is too late");
        drop(offer);
        assert!(lock(&bundles.0).is_empty());
    }
}
