//! Whether a server says that something is not there, for those who remove or leave out something for that.
//!
//! 550 is the answer to all that concerns a file (RFC 959, section 4.2). Many servers say in words why; some have one sentence for
//! everything, such as vsftpd. That counts where the server has the same for a name that nothing has.

use super::error::refused;
use super::orders::Unseen;
use super::remote::Remote;
use phoebus_files::key::Key;
use phoebus_files::{Error, Sort};
use phoebus_proto::gridftp::reply::Reply;
use ring::rand::SecureRandom;

impl Remote {
    /// Whether nothing has the name `key`.
    ///
    /// # Errors
    /// The server says something else, or nothing from which that could be told.
    pub(super) async fn says_gone(&self, key: &Key) -> Result<bool, Error> {
        self.sayable(key).await?;
        let (command, reply) = match self.look_at(key).await {
            Ok(_) => return Ok(false),
            Err(Unseen::Said(error)) if error.sort() == Sort::NotFound => return Ok(true),
            Err(Unseen::Said(error)) => return Err(error),
            Err(Unseen::Unsaid(command, reply)) => (command, reply),
        };
        let mut random = [0; 8];
        let _ = ring::rand::SystemRandom::new().fill(&mut random);
        let name: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let Ok(nothing) = key.parent().join(&name) else { return Ok(false) };
        let answer = self.about(command, &nothing).await?;
        match is_alike(&reply, key, &answer, &nothing) {
            true => Ok(true),
            false => Err(refused(&self.label(key), "tell whether there is", command, &reply)),
        }
    }
}

/// Whether `one`, about `key`, says the same as `other` says about the name `nothing`, whichever names they repeat.
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
    fn answers_are_compared_without_names() {
        let (key, nothing) = (Key::parse("d/a").unwrap(), Key::parse("d/0123").unwrap());
        let alike = |one: &str, other: &str| is_alike(&Reply::new(550, one), &key, &Reply::new(550, other), &nothing);
        assert!(alike("Failed to change directory.", "Failed to change directory."));
        assert!(alike("/d/a: cannot", "/d/0123: cannot") && alike("a: cannot", "0123: cannot"));
        assert!(!alike("/d/a: broken", "/d/0123: cannot") && !alike("Failed.", "Failed to change directory."));
    }
}
