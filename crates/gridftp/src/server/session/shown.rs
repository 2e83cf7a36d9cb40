//! What the server shows under TLS, and which sessions its clients may resume: each those of its own control connection and no other's, so
//! that a data connection that resumes one is that client's (RFC 4217, section 10.2; as vsftpd and ProFTPD ask by default).

use rustls::ServerConfig;
use rustls::server::StoresServerSessions;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many sessions of data connections are remembered for a client beside those of its control connection: clients that use each once
/// get another with each data connection.
const LATER: usize = 256;

/// How many tickets clients get with the control connection that do not say how many they want (RFC 9149): two, as OpenSSL's servers give,
/// and two more for those that use each once and have several data connections at a time. Each data connection brings another one.
/// TLS can send them later, too, but rustls does so at the end of a handshake only.
const TICKETS: usize = 4;

/// What the server shows under TLS.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) control: Arc<ServerConfig>,
    pub(crate) data: Arc<ServerConfig>,
    /// Whether data connections have to resume a session of the control connection.
    pub(crate) resumes: bool,
}

impl Shown {
    /// That of a configuration, for clients that may have so many data connections at a time: those that use each ticket once can ask for
    /// as many.
    pub(crate) fn new(config: ServerConfig, resumes: bool, at_once: usize) -> Self {
        let (mut control, mut data) = (config.clone(), config);
        control.send_tls13_tickets = TICKETS;
        control.max_tls13_tickets = at_once.max(TICKETS);
        data.send_tls13_tickets = 1;
        Self { control: Arc::new(control), data: Arc::new(data), resumes }
    }

    /// The same for one client, whose sessions nobody else can resume.
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

/// Sessions of one client. Each may be resumed any number of times, as clients do that remember only that of the control connection.
#[derive(Debug)]
struct Sessions {
    /// How many of the first are kept.
    first: usize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    sessions: HashMap<Vec<u8>, Vec<u8>>,
    /// Those after the first, the oldest first.
    later: VecDeque<Vec<u8>>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // They are secrets.
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
    fn a_clients_first_sessions_stay_and_later_ones_are_bounded() {
        let sessions = Sessions::new(2);
        let key = |i: usize| i.to_be_bytes().to_vec();
        (0..1000).for_each(|i| assert!(sessions.put(key(i), vec![1])));
        let there = |i: usize| sessions.get(&key(i)).is_some() && sessions.take(&key(i)).is_some();
        assert!(there(0) && there(1) && !there(2) && there(999) && there(1000 - LATER) && !there(999 - LATER));
        assert_eq!(sessions.known().sessions.len(), 2 + LATER);
        assert_eq!(format!("{:?}", sessions.known()), "258 sessions");
    }
}
