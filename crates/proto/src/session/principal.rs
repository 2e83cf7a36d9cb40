//! Who asks for a session (P8, P12): how it is known, and on whose word.

use super::List;
use std::fmt;

/// Most groups of a principal.
pub const GROUPS_MAX: usize = 32;

/// Who asks for a session. `T` is a text, and `G` a list of groups: borrowed in messages ([`PrincipalRef`]), owned elsewhere
/// ([`Principal`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Of<T, G> {
    /// How the subject was made known: a mechanism's name ([`auth`](super::auth)), `certificate`, or empty where an older gateway
    /// has passed on a subject alone. Two subjects of different methods are never the same, whatever they look like.
    pub method: T,
    /// The subject in the method's terms: an e-mail address, a name in a certificate, a user's name. Empty: nobody is known.
    pub subject: T,
    /// The user whom the first gateway takes the subject for; empty for none.
    pub user: T,
    /// The user's groups there.
    pub groups: G,
    /// The gateway that asks for the principal, and vouches for all of this; empty if the principal asks itself.
    pub spoken_for_by: T,
}

/// A principal in a message.
pub type PrincipalRef<'a> = Of<&'a str, List<'a, &'a str>>;
/// A principal.
pub type Principal = Of<String, Vec<String>>;

impl Principal {
    /// A subject without a user.
    pub fn new(method: &str, subject: &str) -> Self {
        Self { method: method.to_owned(), subject: subject.to_owned(), ..Self::default() }
    }

    /// Whether nobody is known.
    pub fn is_nobody(&self) -> bool {
        self.subject.is_empty()
    }

    /// Calls `then` with the principal as messages have it.
    pub fn lend<R>(&self, then: impl FnOnce(PrincipalRef<'_>) -> R) -> R {
        let groups: Vec<&str> = self.groups.iter().map(String::as_str).collect();
        let Self { method, subject, user, spoken_for_by, .. } = self;
        then(Of { method, subject, user, groups: List::new(&groups), spoken_for_by })
    }
}

impl PrincipalRef<'_> {
    /// The same, owned.
    pub fn to_owned(self) -> Principal {
        Of {
            method: self.method.to_owned(),
            subject: self.subject.to_owned(),
            user: self.user.to_owned(),
            groups: self.groups.iter().map(str::to_owned).collect(),
            spoken_for_by: self.spoken_for_by.to_owned(),
        }
    }
}

/// For people: `ada (SCRAM-SHA-256)`, `ada@example.org (anonymous), by pg1`; empty for nobody.
impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_nobody() {
            return Ok(());
        }
        let who = if self.user.is_empty() { &self.subject } else { &self.user };
        f.write_str(who)?;
        match (self.method.is_empty(), *who == self.subject) {
            (true, _) => {}
            (false, true) => write!(f, " ({})", self.method)?,
            (false, false) => write!(f, " ({} {})", self.method, self.subject)?,
        }
        if self.spoken_for_by.is_empty() { Ok(()) } else { write!(f, ", by {}", self.spoken_for_by) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Endpoint;
    use crate::session::SessionId;
    use crate::session::message::{Message, Open};

    #[test]
    fn people_see_who_how_and_on_whose_word() {
        assert_eq!(Principal::default().to_string(), "");
        assert_eq!(Principal::new("anonymous", "ada@example.org").to_string(), "ada@example.org (anonymous)");
        let mut ada = Principal::new("certificate", "ada.users.example");
        ada.user = "ada".to_owned();
        ada.spoken_for_by = "pg1".to_owned();
        assert_eq!(ada.to_string(), "ada (certificate ada.users.example), by pg1");
        assert_eq!(Principal::new("", "old").to_string(), "old");
        assert_eq!(ada.lend(|lent| lent.to_owned()), ada);
    }

    /// Else somebody would open sessions as a user, and be written down as nobody.
    #[test]
    fn messages_have_nobody_without_a_subject() {
        let groups = ["physics"];
        for (subject, expected) in [("", ""), ("ada", "ada")] {
            let principal =
                PrincipalRef { method: "token", subject, user: "ada", groups: List::new(&groups), spoken_for_by: "" };
            let to: Endpoint = "host.example:22".parse().unwrap();
            let open = Open { principal, ..Open::new(SessionId([1; 16]), to.as_ref()) };
            let mut out = [0; 512];
            let len = Message::Open(open).encode(&mut out).unwrap();
            let Message::Open(read) = Message::decode(&out[4..len]).unwrap() else { panic!("another message") };
            let read = read.principal.to_owned();
            assert_eq!((&*read.user, read.is_nobody()), (expected, expected.is_empty()));
            assert_eq!(read.groups.is_empty(), expected.is_empty());
        }
    }
}
