//! Decides whether a server's refusal means that a name does not exist, for operations that then skip or remove
//! something.
//!
//! 550 answers all failures about a file (RFC 959, section 4.2). Many servers add the reason; some, such as vsftpd,
//! have one sentence for all. That sentence counts if the server also uses it for a name that cannot exist.

use super::commands::Unseen;
use super::error::refused;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::{Error, ErrorKind};
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::hex::hex;
use ring::rand::SecureRandom;

impl Remote {
    /// Whether nothing has the name `key`.
    ///
    /// # Errors
    /// The server gives another reason, or none that can be recognized.
    pub(super) async fn says_gone(&self, key: &Key) -> Result<bool, Error> {
        self.sayable(key).await?;
        let (command, reply) = match self.look_at(key).await {
            Ok(_) => return Ok(false),
            Err(Unseen::Said(error)) if error.kind() == ErrorKind::NotFound => return Ok(true),
            Err(Unseen::Said(error)) => return Err(error),
            Err(Unseen::Unsaid(command, reply)) => (command, reply),
        };
        let mut random = [0; 8];
        let _ = ring::rand::SystemRandom::new().fill(&mut random);
        let Ok(nothing) = key.parent().join(hex(&random)) else { return Ok(false) };
        let answer = self.about(command, &nothing).await?;
        match is_alike(&reply, key, &answer, &nothing) {
            true => Ok(true),
            false => Err(refused(&self.label(key), "tell whether there is", command, &reply)),
        }
    }
}

/// Whether the text `one` about `key` equals the text `other` about `nothing`, apart from the names in them.
fn is_alike(one: &Reply, key: &Key, other: &Reply, nothing: &Key) -> bool {
    let (said, expected) = (one.text(), other.text());
    let last = |key: &Key| String::from_utf8_lossy(key.name()).into_owned();
    let whole = |key: &Key| String::from_utf8_lossy(key.as_bytes()).into_owned();
    one.code == other.code
        && (said == expected
            || said.replacen(&whole(key), &whole(nothing), 1) == expected
            || said.replacen(&last(key), &last(nothing), 1) == expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_compared_without_names() {
        let (key, nothing) = (Key::parse("d/a").unwrap(), Key::parse("d/0123").unwrap());
        let alike = |one: &str, other: &str| is_alike(&Reply::new(550, one), &key, &Reply::new(550, other), &nothing);
        assert!(alike("Failed to change directory.", "Failed to change directory."));
        assert!(alike("/d/a: cannot", "/d/0123: cannot") && alike("a: cannot", "0123: cannot"));
        assert!(!alike("/d/a: broken", "/d/0123: cannot") && !alike("Failed.", "Failed to change directory."));
    }
}
