//! TLS sessions of one data connection: they can be resumed only after the connection is accepted as the client's. TLS
//! 1.2 names a session before the server can ask anything of the peer, so refused connections have named ones too.

use rustls::ServerConfig;
use rustls::server::StoresServerSessions;
use std::sync::{Arc, Mutex, PoisonError};

/// New sessions of a connection that is not accepted yet. Known ones can be resumed.
#[derive(Debug)]
pub(super) struct Unproven {
    known: Arc<dyn StoresServerSessions>,
    /// `None` once the connection is accepted.
    made: Mutex<Option<NewSessions>>,
}

#[derive(Default)]
struct NewSessions(Vec<(Vec<u8>, Vec<u8>)>);

impl std::fmt::Debug for NewSessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Sessions are secrets.
        write!(f, "{} sessions", self.0.len())
    }
}

impl Unproven {
    /// The configuration for one connection, and its new sessions.
    pub(super) fn of(config: &ServerConfig) -> (Arc<ServerConfig>, Arc<Self>) {
        let made = Mutex::new(Some(NewSessions::default()));
        let sessions = Arc::new(Self { known: config.session_storage.clone(), made });
        let mut own = config.clone();
        own.session_storage = sessions.clone();
        (Arc::new(own), sessions)
    }

    /// Accepts the connection: its sessions count, also later ones.
    pub(super) fn accept(&self) {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).take();
        for (key, value) in made.unwrap_or_default().0 {
            self.known.put(key, value);
        }
    }
}

impl StoresServerSessions for Unproven {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *made {
            Some(made) => {
                made.0.push((key, value));
                true
            }
            None => self.known.put(key, value),
        }
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.known.get(key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.known.take(key)
    }

    fn can_cache(&self) -> bool {
        self.known.can_cache()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::server::ServerSessionMemoryCache;

    #[test]
    fn sessions_count_after_the_connection_is_accepted() {
        let known: Arc<dyn StoresServerSessions> = ServerSessionMemoryCache::new(32);
        assert!(known.put(vec![0], vec![7]));
        let own = || Unproven { known: known.clone(), made: Mutex::new(Some(NewSessions::default())) };
        let (refused, accepted) = (own(), own());
        assert!(refused.put(vec![1], vec![7]) && accepted.put(vec![2], vec![7]));
        assert_eq!((refused.get(&[0]), refused.get(&[1]), accepted.get(&[2])), (Some(vec![7]), None, None));
        accepted.accept();
        drop(refused);
        assert!(accepted.put(vec![3], vec![7]));
        let there = |key: u8| known.get(&[key]).is_some();
        assert!(there(0) && !there(1) && there(2) && there(3));
        assert!(!format!("{:?}", own()).contains('7'));
    }
}
