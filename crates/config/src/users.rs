//! The users file: who may log in with a password, shared by gateways and file servers (P27).
//!
//! ```text
//! # seed: 32 random bytes in hexadecimal
//! # name  verifier                                  groups
//! ada     SCRAM-SHA-256$600000:SALT$STORED:SERVER   physics,operators
//! bob     pbkdf2-sha256:600000:SALT:HASH
//! ```
//!
//! A verifier is what `phoebus passwd` writes, in PostgreSQL's form, or what `phoebus serve --hash-password` has printed. Neither is
//! a password, but both can be searched for weak ones, so that others must not read the file. Of the seed, the salts of users are made
//! whom nobody knows, so that these stay when the file changes.

use crate::private_file::{self, PrivateText};
use phoebus_proto::hex::{hex, unhex};
use phoebus_proto::session::auth::scram::{KEY_LEN, Keys, Salting, USER_MAX, Verifier, seed_of};
use phoebus_proto::session::principal::GROUPS_MAX;
use phoebus_proto::text::is_unprintable;
use std::collections::HashMap;
use std::path::Path;
use std::{fmt, fs, io};

/// Rounds that are named for users whom nobody knows, where the file has no users.
const ROUNDS: u32 = 600_000;
/// What the line with the seed begins with.
const SEED: &str = "# seed: ";
/// What a name is.
const NAME: &str = "at most 255 bytes without blanks, commas or #";
/// What an older verifier begins with.
const OLDER: &str = "pbkdf2-sha256:";

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// What is known of the password.
    pub verifier: Verifier,
    /// Names of groups, as rules use them; at most [`GROUPS_MAX`].
    pub groups: Vec<String>,
}

/// All users of a file.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Users {
    by_name: HashMap<String, User>,
    /// Of which the salts of unknown users are made.
    seed: [u8; KEY_LEN],
    /// How passwords are salted, one of each number of rounds and length: unknown users look like one of them.
    saltings: Vec<Salting>,
}

/// Why a users file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// It cannot be read.
    #[error("{file}: cannot be read: {source}")]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("{file}: cannot be written: {source}")]
    Unwritable {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// Others can read or change it.
    #[error("{file}: others can read or change it (mode {mode:o}); expected at most 640: chmod 640 {file}")]
    Public {
        /// The file.
        file: String,
        /// Its permissions.
        mode: u32,
    },
    /// There is no such user.
    #[error("{file}: there is no user \"{name}\"")]
    Unknown {
        /// The file.
        file: String,
        /// The name.
        name: String,
    },
    /// A name that no line can have.
    #[error("\"{name}\" is no {what}; expected {NAME}")]
    Name {
        /// The name.
        name: String,
        /// Of what.
        what: &'static str,
    },
    /// Too many groups.
    #[error("a user can be in at most {GROUPS_MAX} groups")]
    Groups,
    /// A line is wrong.
    #[error("{file}:{line}:{column}: {reason}")]
    Line {
        /// The file.
        file: String,
        /// From 1.
        line: usize,
        /// From 1, in letters.
        column: usize,
        /// What is wrong, and what was expected.
        reason: String,
    },
}

impl Users {
    /// Reads a file.
    ///
    /// # Errors
    /// [`UsersError`].
    pub fn read(path: &Path) -> Result<Self, UsersError> {
        let file = path.display().to_string();
        match private_file::read(path) {
            Ok(Some(found)) => Self::of(&found, &file),
            Ok(None) => {
                Err(UsersError::Unreadable { file, source: io::Error::other("no such file (phoebus passwd makes it)") })
            }
            Err(source) => Err(UsersError::Unreadable { file, source }),
        }
    }

    fn of(found: &PrivateText, file: &str) -> Result<Self, UsersError> {
        if found.mode & 0o027 != 0 {
            return Err(UsersError::Public { file: file.to_owned(), mode: found.mode });
        }
        Self::parse(&found.text, file)
    }

    /// Reads the text of a file; `file` is its name in errors.
    ///
    /// # Errors
    /// [`UsersError::Line`].
    pub fn parse(text: &str, file: &str) -> Result<Self, UsersError> {
        let (mut by_name, mut saltings) = (HashMap::new(), Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = |part: &str, reason: String| {
                let before = part.as_ptr().addr().saturating_sub(line.as_ptr().addr());
                let column = line.get(..before).unwrap_or(line).chars().count() + 1;
                UsersError::Line { file: file.to_owned(), line: number, column, reason }
            };
            let mut words = line.split_whitespace();
            let Some(name) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            let end = &line[line.trim_end().len()..];
            if !is_name(name) {
                return Err(wrong(name, format!("this is no name; expected {NAME}")));
            }
            let expected = "expected what phoebus passwd, phoebus serve --hash-password or PostgreSQL writes";
            let Some(text) = words.next() else {
                return Err(wrong(end, format!("user \"{name}\" has no verifier; {expected}")));
            };
            let verifier = Verifier::parse(text).or_else(|| older(text));
            let verifier = verifier.ok_or_else(|| wrong(text, format!("this is no verifier; {expected}")))?;
            let groups: Vec<&str> = words.next().map(|all| all.split(',').collect()).unwrap_or_default();
            if let Some(odd) = groups.iter().find(|group| !is_name(group)) {
                return Err(wrong(odd, format!("this is no name of a group; expected {NAME}")));
            }
            if let Some(beyond) = groups.get(GROUPS_MAX) {
                return Err(wrong(beyond, format!("user \"{name}\" is in more than {GROUPS_MAX} groups")));
            }
            if let Some(more) = words.next() {
                let reason = "nothing was expected behind the groups, which have commas between them";
                return Err(wrong(more, reason.to_owned()));
            }
            let kind = |salting: &Salting| (salting.rounds(), salting.salt().len());
            if !saltings.iter().any(|known| kind(known) == kind(&verifier.salting)) {
                saltings.push(verifier.salting);
            }
            let groups = groups.into_iter().map(str::to_owned).collect();
            if by_name.insert(name.to_owned(), User { verifier, groups }).is_some() {
                return Err(wrong(name, format!("user \"{name}\" stands here a second time; expected one line each")));
            }
        }
        if saltings.is_empty() {
            saltings.extend(Salting::new(&[0; 16], ROUNDS));
        }
        let given = text.lines().find_map(|line| line.strip_prefix(SEED)).and_then(|seed| unhex(seed.trim()));
        let seed = seed_of(given.as_deref().unwrap_or(text.as_bytes()));
        Ok(Self { by_name, seed, saltings })
    }

    /// The user with this name.
    pub fn get(&self, name: &str) -> Option<&User> {
        self.by_name.get(name)
    }

    /// Whether anybody is in this group.
    pub fn has_group(&self, name: &str) -> bool {
        self.by_name.values().any(|user| user.groups.iter().any(|group| group == name))
    }

    /// Number of users.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Their names, in any order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The verifier of a user; of an unknown one, one that no password has, salted like one of the others, and always in the same way.
    pub fn verifier(&self, name: &str) -> Verifier {
        let unknown = || Verifier::of_nobody(Salting::of_nobody(&self.seed, name, &self.saltings).unwrap_or_default());
        self.get(name).map_or_else(unknown, |user| user.verifier)
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users({})", self.by_name.len())
    }
}

/// A change to a user.
#[derive(Debug, Clone)]
pub enum Change {
    /// None: the file is only checked.
    Nothing,
    /// This verifier, and these groups. `None`: the same groups as before.
    Set {
        /// The new verifier.
        verifier: Box<Verifier>,
        /// The new groups.
        groups: Option<Vec<String>>,
    },
    /// The user is removed.
    Remove,
}

/// Changes a user in a file, which is replaced whole; one that is not there is made with mode 640. Other lines stay as they are.
/// Returns whether the user was there.
///
/// # Errors
/// [`UsersError`]; nothing has changed then.
pub fn change(path: &Path, name: &str, change: &Change) -> Result<bool, UsersError> {
    let file = path.display().to_string();
    named(name, "user")?;
    if let Change::Nothing = change {
        return match private_file::read(path) {
            Ok(Some(found)) => Users::of(&found, &file).map(|users| users.get(name).is_some()),
            Ok(None) => Ok(false),
            Err(source) => Err(UsersError::Unreadable { file, source }),
        };
    }
    let mut was_there = false;
    let updated = private_file::update(path, 0o640, |found| {
        let users = found.as_ref().map_or_else(|| Ok(Users::default()), |found| Users::of(found, &file))?;
        was_there = users.get(name).is_some();
        let line = line(&users, name, change, &file)?;
        let text = found.map_or_else(new_file, |found| Ok(found.text))?;
        let is_of_name = |line: &&str| line.split_whitespace().next() == Some(name);
        let mut lines: Vec<&str> = text.lines().collect();
        match (lines.iter().position(is_of_name), &line) {
            (Some(at), Some(line)) => lines[at] = line,
            (Some(at), None) => drop(lines.remove(at)),
            (None, Some(line)) => lines.push(line),
            (None, None) => {}
        }
        Ok::<_, Failed>(lines.iter().flat_map(|line| [line, "\n"]).collect())
    });
    updated.map(|()| was_there).map_err(|failed| match failed {
        Failed::Io(source) => UsersError::Unwritable { file, source },
        Failed::Users(error) => error,
    })
}

/// The new line of a user; `None` for one who is removed.
fn line(users: &Users, name: &str, change: &Change, file: &str) -> Result<Option<String>, UsersError> {
    let before = users.get(name);
    let Change::Set { verifier, groups } = change else {
        let unknown = || UsersError::Unknown { file: file.to_owned(), name: name.to_owned() };
        return before.map(|_| None).ok_or_else(unknown);
    };
    let groups = groups.as_ref().or(before.map(|user| &user.groups)).cloned().unwrap_or_default();
    groups.iter().try_for_each(|group| named(group, "group"))?;
    if groups.len() > GROUPS_MAX {
        return Err(UsersError::Groups);
    }
    Ok(Some(format!("{name} {verifier} {}", groups.join(",")).trim_end().to_owned()))
}

/// What a new file begins with.
fn new_file() -> io::Result<String> {
    let mut seed = [0; KEY_LEN];
    fs::File::open("/dev/urandom").and_then(|mut random| io::Read::read_exact(&mut random, &mut seed))?;
    Ok(format!("{SEED}{}\n# name verifier groups; written by phoebus passwd\n", hex(&seed)))
}

/// Whether a user or a group can have this name.
pub fn is_name(name: &str) -> bool {
    let odd = |letter: char| is_unprintable(letter) || letter.is_whitespace() || [',', '#'].contains(&letter);
    // Rules have a star for everybody.
    !name.is_empty() && name != "*" && name.len() <= USER_MAX && !name.contains(odd)
}

fn named(name: &str, what: &'static str) -> Result<(), UsersError> {
    if is_name(name) { Ok(()) } else { Err(UsersError::Name { name: name.to_owned(), what }) }
}

enum Failed {
    Io(io::Error),
    Users(UsersError),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<UsersError> for Failed {
    fn from(error: UsersError) -> Self {
        Self::Users(error)
    }
}

/// The verifier in a line of `phoebus serve --hash-password`: its hash is what SCRAM makes its keys of.
fn older(text: &str) -> Option<Verifier> {
    let [rounds, salt, hash] = text.strip_prefix(OLDER)?.split(':').collect::<Vec<_>>()[..] else { return None };
    let salting = Salting::new(&unhex(salt)?, rounds.parse().ok()?)?;
    let salted: [u8; KEY_LEN] = unhex(hash)?.try_into().ok()?;
    Some(Keys::of(salting, &salted).verifier())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: &str = "SCRAM-SHA-256$4096:YSBzYWx0$AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn error(text: &str) -> String {
        Users::parse(text, "users").unwrap_err().to_string()
    }

    #[test]
    fn users_have_verifiers_and_groups() {
        // The hash of "secret" by Python's hashlib.pbkdf2_hmac, 5000 rounds.
        let older = "pbkdf2-sha256:5000:000102030405060708090a0b0c0d0e0f:\
                     00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
        let text = format!("# users\n\nada {ADA} physics,operators\n  bob\t{older}  \n");
        let users = Users::parse(&text, "users").unwrap();
        assert_eq!((users.len(), users.get("ada").unwrap().groups.join(" ")), (2, "physics operators".to_owned()));
        let hash = unhex("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff").unwrap();
        assert!(users.verifier("bob").is_of(&hash.try_into().unwrap()));
        assert!(users.get("eve").is_none() && users.get("# users").is_none());
        // Unknown users have salts of their own, which stay, and are salted like one of the others.
        let [eve, again, mallory] = ["eve", "eve", "mallory"].map(|name| users.verifier(name).salting);
        assert!(eve == again && eve != mallory);
        let likes: Vec<_> = (0..50).map(|n| users.verifier(&n.to_string()).salting).collect();
        for known in ["ada", "bob"].map(|name| users.verifier(name).salting) {
            let shape = |salting: &Salting| (salting.rounds(), salting.salt().len());
            assert!(likes.iter().filter(|other| shape(other) == shape(&known)).count() > 10);
        }
        // They stay when the file changes, if it has a seed.
        let salted = |name: &str, more: &str| {
            let text = format!("{SEED}0011\nada {ADA}\n{more}");
            Users::parse(&text, "users").unwrap().verifier(name).salting
        };
        assert_eq!(salted("eve", ""), salted("eve", &format!("carl {ADA}\n")));
    }

    #[test]
    fn wrong_lines_are_named() {
        let expected = "expected what phoebus passwd, phoebus serve --hash-password or PostgreSQL writes";
        for (text, said) in [
            ("ada", format!("users:1:4: user \"ada\" has no verifier; {expected}")),
            ("\nada secret", format!("users:2:5: this is no verifier; {expected}")),
            (&format!("ada {ADA} a b"), "users:1:".to_owned()),
            (&format!("ada {ADA}\nada {ADA}"), "users:2:1: user \"ada\" stands here a second time".to_owned()),
        ] {
            assert!(error(text).starts_with(&said), "{}", error(text));
            assert!(!error(text).contains("secret"), "{}", error(text));
        }
    }

    #[test]
    fn users_are_set_and_removed_and_other_lines_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        let set = |groups: Option<&[&str]>| Change::Set {
            verifier: Box::new(Verifier::parse(ADA).unwrap()),
            groups: groups.map(|all| all.iter().map(|group| (*group).to_owned()).collect()),
        };
        change(&path, "ada", &set(Some(&["physics"]))).unwrap();
        fs::write(&path, fs::read_to_string(&path).unwrap() + "\n# a remark\n").unwrap();
        change(&path, "bob", &set(None)).unwrap();
        change(&path, "ada", &set(None)).unwrap();
        // Behind what a new file begins with.
        let rest = || fs::read_to_string(&path).unwrap().lines().skip(2).collect::<Vec<_>>().join("\n");
        assert_eq!(rest(), format!("ada {ADA} physics\n\n# a remark\nbob {ADA}"));
        change(&path, "ada", &Change::Remove).unwrap();
        assert_eq!(rest(), format!("\n# a remark\nbob {ADA}"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        change(&link, "carl", &set(None)).unwrap();
        assert!(link.is_symlink() && rest().contains("carl"));
        fs::remove_file(link).unwrap();
        let error = |name: &str, changed: &Change| change(&path, name, changed).unwrap_err().to_string();
        assert!(error("ada", &Change::Remove).contains("there is no user \"ada\""));
        assert!(error("a b", &set(None)).contains("is no user"));
        assert!(error("eve", &set(Some(&["a,b"]))).contains("is no group"));
        fs::write(&path, "ada x\n").unwrap();
        assert!(error("bob", &set(None)).contains("users:1:5: this is no verifier"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn file_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users");
        fs::write(&path, format!("ada {ADA}\n")).unwrap();
        for (mode, is_fine) in [(0o600, true), (0o640, true), (0o644, false), (0o602, false), (0o660, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Users::read(&path).is_ok(), is_fine, "{mode:o}");
        }
        assert!(Users::read(&dir.path().join("none")).unwrap_err().to_string().contains("cannot be read"));
    }
}
