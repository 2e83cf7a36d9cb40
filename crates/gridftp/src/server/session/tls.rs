//! TLS configurations of the server, and the sessions that clients may resume. A client can resume only the sessions of
//! its own control connection, so a data connection that resumes one is that client's (RFC 4217, section 10.2; vsftpd
//! and ProFTPD require it by default).

use rustls::ServerConfig;
use rustls::server::StoresServerSessions;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sessions of data connections that are kept for a client besides those of its control connection. Clients that use
/// each session once get a new one with each data connection.
const LATER: usize = 256;

/// Tickets for clients that do not say how many they want (RFC 9149): two, as OpenSSL's servers give, and two more for
/// clients that use each once and open several data connections at a time. Each data connection brings another. rustls
/// sends tickets only at the end of a handshake.
const TICKETS: usize = 4;

/// The TLS configurations of the server.
#[derive(Debug, Clone)]
pub(crate) struct TlsConfigs {
    pub(crate) control: Arc<ServerConfig>,
    pub(crate) data: Arc<ServerConfig>,
    /// Whether data connections have to resume a session of the control connection.
    pub(crate) resumes: bool,
}

impl TlsConfigs {
    /// Makes the configurations for clients with up to `at_once` data connections at a time, which may ask for as many
    /// tickets.
    pub(crate) fn new(config: ServerConfig, resumes: bool, at_once: usize) -> Self {
        let (mut control, mut data) = (config.clone(), config);
        control.send_tls13_tickets = TICKETS;
        control.max_tls13_tickets = at_once.max(TICKETS);
        data.send_tls13_tickets = 1;
        Self { control: Arc::new(control), data: Arc::new(data), resumes }
    }

    /// The same with sessions of their own, for one client.
    pub(crate) fn of_one_client(&self) -> Self {
        let sessions: Arc<dyn StoresServerSessions> = Arc::new(Sessions::new(self.control.max_tls13_tickets));
        let own = |config: &ServerConfig| {
            let mut config = config.clone();
            config.session_storage = sessions.clone();
            Arc::new(config)
        };
        Self { control: own(&self.control), data: own(&self.data), resumes: self.resumes }
    }
}

/// The TLS sessions of one client. Each may be resumed repeatedly, because some clients keep only that of the control
/// connection.
#[derive(Debug)]
struct Sessions {
    /// Number of first sessions that stay.
    first: usize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    sessions: HashMap<Vec<u8>, Vec<u8>>,
    /// Later sessions, the oldest first.
    later: VecDeque<Vec<u8>>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Sessions are secrets.
        write!(f, "{} sessions", self.sessions.len())
    }
}

impl Sessions {
    fn new(first: usize) -> Self {
        Self { first, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let mut known = self.known();
        if known.sessions.len() >= self.first {
            known.later.push_back(key.clone());
        }
        known.sessions.insert(key, value);
        if known.later.len() > LATER
            && let Some(oldest) = known.later.pop_front()
        {
            known.sessions.remove(&oldest);
        }
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.known().sessions.get(key).cloned()
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.get(key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_tls_sessions_stay_and_later_ones_are_bounded() {
        let sessions = Sessions::new(2);
        let key = |i: usize| i.to_be_bytes().to_vec();
        (0..1000).for_each(|i| assert!(sessions.put(key(i), vec![1])));
        let there = |i: usize| sessions.get(&key(i)).is_some() && sessions.take(&key(i)).is_some();
        assert!(there(0) && there(1) && !there(2) && there(999) && there(1000 - LATER) && !there(999 - LATER));
        assert_eq!(sessions.known().sessions.len(), 2 + LATER);
        assert_eq!(format!("{:?}", sessions.known()), "258 sessions");
    }
}
