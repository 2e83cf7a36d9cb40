//! Sets the stack of drivers of data connections on the server by SITE SETNETSTACK, and the keys that drivers need (U9–U12).

use super::data::DataPlan;
use super::error::{passing, words};
use super::inside::Relays;
use super::session::Session;
use super::stack::{AcceptedStack, NetStack};
use crate::data::Mode;
use crate::data::pinned::OwnKey;
use phoebus_files::{Error, ErrorKind};
use phoebus_net::transport::Transport;
use phoebus_proto::gridftp::inside;
use phoebus_proto::gridftp::pin::Pin;
use std::sync::Arc;

impl DataPlan<'_> {
    /// Sets the configured stack of drivers on the server, unless it is set: for a transfer in `mode`, or for a listing.
    pub(super) async fn carry(&self, session: &mut Session, mode: Option<Mode>) -> Result<(), Error> {
        if self.options.inside().is_some() {
            return self.carry_inside(session).await;
        }
        let by_choice = self.has_chosen_objects();
        let Some(stack) = self.stack.filter(|_| by_choice || !session.refuses_stack) else {
            return self.carry_by_default(session).await;
        };
        let stack = &match mode {
            Some(mode) => stack.in_mode(mode),
            None => stack.to_list(),
        };
        let key = match stack.keyed() {
            Some(_) => Some(self.own_key(session)?.pin()),
            None => None,
        };
        let line = stack.line(self.is_proved() && !by_choice, key);
        if session.stack.as_ref().is_some_and(|told| told.line == line) {
            return Ok(());
        }
        self.prove(session, !by_choice).await?;
        let theirs = match self.tell(session, stack, &line).await {
            Err(Error::Store { kind: ErrorKind::Request, .. }) if stack.optional && !by_choice => {
                session.refuses_stack = true;
                return Ok(());
            }
            told => told?,
        };
        let own = session.own.clone();
        let told = stack.told(line, own.as_ref().zip(theirs));
        let failed = |error| passing(&session.name, format!("data cannot be carried: {}", phoebus_net::reason(&error)));
        session.stack = Some(told.map_err(failed)?);
        Ok(())
    }

    /// Sets the server's default stack, after a file that went as an object by this end's choice.
    async fn carry_by_default(&self, session: &mut Session) -> Result<(), Error> {
        if session.stack.is_none() || self.options.auto.is_none() {
            return Ok(());
        }
        // The data endpoint belongs to the previous stack.
        session.take_prefetched().await?;
        (session.stack, session.key_exchange) = (None, None);
        let name = session.name.clone();
        session.must("SITE SETNETSTACK default", &name, "use").await?;
        self.prove(session, true).await
    }

    /// Has certificates authenticate data connections, if they are to at all, or not: objects have keys of their own.
    async fn prove(&self, session: &mut Session, by_certificates: bool) -> Result<(), Error> {
        if !self.is_proved() || session.proves_data == by_certificates {
            return Ok(());
        }
        if by_certificates {
            return self.announce(session).await;
        }
        let name = session.name.clone();
        // Only authenticated connections are protected.
        session.must("PROT C", &name, "leave the protection of data to the stack of").await?;
        session.must("DCAU N", &name, "use").await?;
        session.proves_data = false;
        Ok(())
    }

    /// Switches the server to data inside SSH.
    pub(super) async fn carry_inside(&self, session: &mut Session) -> Result<(), Error> {
        if session.stack.as_ref().is_some_and(|told| told.line == inside::DRIVER) {
            return Ok(());
        }
        let failed = |name: &str, reason, kind| Error::Store { name: name.to_owned(), reason, kind };
        let Some(way) = &self.options.way else {
            return Err(failed(
                &session.name,
                "only servers that ssh starts take data inside it".to_owned(),
                ErrorKind::Request,
            ));
        };
        // The data endpoint belongs to the previous stack.
        session.take_prefetched().await?;
        (session.stack, session.key_exchange) = (None, None);
        let reply = session.ask(format!("SITE SETNETSTACK {}", inside::DRIVER)).await?;
        if !reply.is_success() {
            let reason = format!(
                "the far side's server takes no data inside SSH: it answers SITE SETNETSTACK with {}",
                words(&reply)
            );
            return Err(failed(&session.name, reason, ErrorKind::Request));
        }
        let ticket = inside::Ticket::of_answer(&reply);
        let ticket = ticket.map_err(|error| failed(&session.name, error.to_string(), ErrorKind::Other))?;
        let relays: Arc<dyn Transport> = Arc::new(Relays::new(way.clone(), ticket));
        // No data connection comes from the network then.
        session.data = Some(relays.clone());
        session.stack = Some(AcceptedStack::inside(relays));
        Ok(())
    }

    /// This end's key for the session.
    fn own_key<'s>(&self, session: &'s mut Session) -> Result<&'s OwnKey, Error> {
        if session.own.is_none() {
            let own = OwnKey::new().map_err(|error| passing(&session.name, error.to_string()))?;
            session.own = Some(own);
        }
        session.own.as_ref().ok_or_else(|| passing(&session.name, "there is no key"))
    }

    /// Sets the stack, with this end's key if it needs one.
    async fn tell(&self, session: &mut Session, stack: &NetStack, line: &str) -> Result<Option<Pin>, Error> {
        // The data endpoint belongs to the previous stack.
        session.take_prefetched().await?;
        (session.stack, session.key_exchange) = (None, None);
        let reply = session.ask(format!("SITE SETNETSTACK {line}")).await?;
        let failed = |reason| Error::Store { name: session.name.to_string(), reason, kind: ErrorKind::Request };
        if !reply.is_success() {
            let (text, words) = (stack.text(), words(&reply));
            return Err(failed(format!(
                "the server does not carry data by {text}: it answers SITE SETNETSTACK with {words}"
            )));
        }
        let theirs = stack.keyed().map(|driver| Pin::of_answer(driver, &reply)).transpose();
        // The server now uses the stack, but this end cannot.
        theirs.map_err(|error| {
            let (name, reason) = (session.name.to_string(), error.to_string());
            Error::Store { name, reason, kind: ErrorKind::Other }
        })
    }

    /// Sets the stack on this server and on that of `other`, for data between the two. If the stack needs keys, each
    /// server learns the other's, unless it has it.
    pub(super) async fn introduce(&self, session: &mut Session, other: &mut Session) -> Result<(), Error> {
        let Some(stack) = self.stack.filter(|stack| stack.keyed().is_some()) else { return Ok(()) };
        if session.was_at(other.key_exchange.as_ref()) {
            return Ok(());
        }
        let line = |key| stack.line(self.is_proved(), key);
        let first = self.tell(session, stack, &line(None)).await?;
        let second = self.tell(other, stack, &line(first)).await?;
        self.tell(session, stack, &line(second)).await?;
        session.meet(other);
        Ok(())
    }
}
