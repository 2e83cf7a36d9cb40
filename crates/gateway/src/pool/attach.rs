//! Further connections of a hop: each asks the peer to join a session that the first has opened (`docs/protocol/session.md`
//! §6.7).

use super::way::Chosen;
use super::{OUT_SIZE, Pool, Warm};
use crate::bundle::{Lender, Newcomer, Roster};
use crate::handshake::Asking;
use crate::refusal::Refusal;
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::message::Attach;
use phoebus_proto::session::{Mode, SessionId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;
use tracing::debug;

impl Pool {
    /// Brings the connections that make `streams` with the first one, `opened`, as they come; those that cannot be had are left
    /// out.
    pub(crate) fn attach(self: &Arc<Self>, opened: &Warm, streams: u16) -> Option<Arc<Roster>> {
        let by = opened.by.clone();
        let opened = opened.opened().filter(|_| streams > 1)?;
        let token: Arc<[u8]> = opened.token.into();
        let roster = Roster::new(streams - 1);
        for index in 1..streams {
            let (pool, roster) = (self.clone(), roster.clone());
            let place = Place { session: opened.session, token: token.clone(), index, by: by.clone() };
            tokio::spawn(async move {
                let limit = pool.limits.greeting;
                let why = match timeout(limit, pool.attach_one(&place, &roster)).await {
                    Ok(Ok(())) => return,
                    Ok(Err(refusal)) => refusal.reason,
                    Err(_) => "no answer in time".to_owned(),
                };
                roster.expect_one_less();
                debug!(peer = pool.peer.name, session = %place.session, index, "a hop has a connection less: {why}");
            });
        }
        Some(roster)
    }

    async fn attach_one(self: &Arc<Self>, place: &Place, roster: &Arc<Roster>) -> Result<(), Refusal> {
        let late = || Refusal::new(phoebus_proto::session::Code::NoSession, "the session was over before");
        if self.chosen().is_like(&place.by)
            && let Some(mut warm) = self.take()
        {
            let Some(seat) = roster.seat() else {
                self.keep(warm);
                return Err(late());
            };
            let padding = warm.manner(Place::STREAMS).padding;
            warm.asking.attach(&place.attach(padding)).map_err(|e| self.cannot_ask(&e))?;
            match self.hear(&mut warm, Duration::MAX).await {
                Ok(()) => {
                    self.counts.reused.fetch_add(1, Ordering::Relaxed);
                    return self.joined(warm).map(|newcomer| seat.take(newcomer));
                }
                Err(unheard) if !unheard.dead => return Err(unheard.refusal),
                Err(_) => self.counts.stale.fetch_add(1, Ordering::Relaxed),
            };
        }
        let stream = self.dial(&place.by, Duration::MAX).await?;
        let Some(seat) = roster.seat() else {
            // It takes a greeting to be of use to another.
            stream.close();
            return Err(late());
        };
        let (hello, auth, attach) = (self.own.hello(), self.auth(), place.attach(0));
        let asking = Asking::join(vec![0; OUT_SIZE], Vec::new(), &hello, auth.as_ref(), &attach);
        let mut warm = Warm::new(stream, asking.map_err(|e| self.cannot_ask(&e))?, Mode::Framed, place.by.clone());
        self.hear(&mut warm, Duration::MAX).await.map_err(|unheard| unheard.refusal)?;
        self.joined(warm).map(|newcomer| seat.take(newcomer))
    }

    /// What came back for an ATTACH.
    fn joined(self: &Arc<Self>, warm: Warm) -> Result<Newcomer, Refusal> {
        if warm.asking.state() != State::Opened {
            let refusal = self.refused(&warm);
            if warm.asking.state() == State::Refused && super::stays_usable(refusal.code) {
                self.keep(warm);
            }
            return Err(refusal);
        }
        // What follows is the stream's.
        warm.stream.unprotect().map_err(|error| self.failed(&error.into()))?;
        let (stream, unplugged) = warm.parts();
        Ok(Newcomer { stream, lender: Lender::Pool(self.clone(), unplugged) })
    }
}

/// A place in a bundle.
struct Place {
    session: SessionId,
    token: Arc<[u8]>,
    index: u16,
    /// As the first connection was made.
    by: Arc<Chosen>,
}

impl Place {
    /// There are at least two where there are places.
    const STREAMS: u16 = 2;

    fn attach(&self, padding: u16) -> Attach<'_> {
        Attach { session: self.session, token: &self.token, index: self.index, padding }
    }
}
