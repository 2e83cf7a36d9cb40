//! What this library has changed on a socket of the program, to be undone when the session is over.

use crate::process::Locked;
use crate::socket_options::OfFamily;

/// The changes of one socket.
#[derive(Clone, Copy)]
pub(crate) struct Changes {
    /// The socket's earlier congestion control, with a zero at its end; empty if it was not changed.
    pub(crate) congestion_control: [u8; 16],
    /// Whether IPV6_V6ONLY was cleared, to reach a gateway over IPv4.
    pub(crate) widened: bool,
    /// What the program's socket had before one of another family replaced it.
    pub(crate) original: Option<OfFamily>,
}

impl Changes {
    pub(crate) const NONE: Self = Self { congestion_control: [0; 16], widened: false, original: None };

    fn is_none(&self) -> bool {
        self.congestion_control[0] == 0 && !self.widened && self.original.is_none()
    }
}

/// Number of sockets with an open session whose changes are kept. Few sockets connect again, and most of them soon.
const KEPT: usize = 256;

/// Their cookies and changes, and the next index.
static OF_SESSIONS: Locked<(usize, [(u64, Changes); KEPT])> = Locked::new((0, [(0, Changes::NONE); KEPT]));

/// Keeps the changes of the socket with this cookie until its session is over.
pub(crate) fn keep(cookie: u64, changes: &Changes) {
    if changes.is_none() {
        return;
    }
    OF_SESSIONS.with(|(next, kept)| match kept.iter_mut().find(|(known, _)| *known == cookie) {
        Some(slot) => slot.1 = *changes,
        None => {
            kept[*next % KEPT] = (cookie, *changes);
            *next = next.wrapping_add(1);
        }
    });
}

/// Takes the changes of the socket with this cookie, as far as they are kept.
pub(crate) fn take(cookie: u64) -> Changes {
    OF_SESSIONS.with(|(_, kept)| match kept.iter_mut().find(|(known, _)| *known == cookie) {
        Some(found) => std::mem::replace(found, (0, Changes::NONE)).1,
        None => Changes::NONE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_taken_once() {
        let widened = Changes { widened: true, ..Changes::NONE };
        keep(u64::MAX, &widened);
        keep(u64::MAX - 1, &Changes::NONE);
        assert!(take(u64::MAX).widened && !take(u64::MAX).widened);
    }
}
