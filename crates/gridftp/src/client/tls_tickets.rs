//! TLS sessions that the data connections of one control connection resume (RFC 4217, section 10.2), by which servers
//! recognize the client. Each TLS 1.3 ticket is used once, and each connection brings new ones.

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most tickets: one for each connection of a transfer, and as many again.
const TICKETS: usize = 1024;

/// The sessions of one control connection, and so of one server.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<Known>);

#[derive(Default)]
struct Known {
    group: Option<NamedGroup>,
    session: Option<Tls12ClientSessionValue>,
    tickets: VecDeque<Tls13ClientSessionValue>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tickets", self.tickets.len())
    }
}

impl Sessions {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.known().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.known().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.known().session = Some(value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.known().session.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.known().session = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut known = self.known();
        if known.tickets.len() >= TICKETS {
            known.tickets.pop_front();
        }
        known.tickets.push_back(value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.known().tickets.pop_back()
    }
}
