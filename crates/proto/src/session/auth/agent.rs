//! `agent`: a user's programs show the secret of the user's agent on this host, which only that user can read.

use super::{AuthError, Check, Proven, Verdict};

/// The mechanism's name.
pub const NAME: &str = "agent";

/// The agent's side. `S` tells whether data are the secret, in constant time.
pub struct Acceptor<S>(pub S);

impl<S: Fn(&[u8]) -> bool + Send> Check for Acceptor<S> {
    fn receive(&mut self, data: &[u8]) -> Verdict {
        match (self.0)(data) {
            true => Verdict::Proven(Proven { subject: String::new(), vouched: None, last: None }),
            false => Verdict::Refused(AuthError::Wrong),
        }
    }
}
