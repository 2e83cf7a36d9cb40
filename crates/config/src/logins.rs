//! The logins file of a user: what `phoebus login` keeps for gateways that want a password (P27).
//!
//! ```text
//! # gateway         user  where  rounds and salt  keys
//! pg1.example:5006  ada   tls    600000:SALT      CLIENT:SERVER
//! ```
//!
//! A login that was made inside TLS (`tls`) is shown inside TLS only; one without (`raw`) on any connection.
//!
//! The keys are not the password, and serve with these gateways only. But whoever has them can log in there, so that the file must be
//! closed to others.

use crate::private_file::{self, PrivateText};
use phoebus_proto::endpoint::{Endpoint, EndpointRef};
use phoebus_proto::hex::{hex, unhex};
use phoebus_proto::session::auth::scram::{KEY_LEN, Keys, Salting};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// Where a password may be proved.
const TLS: &str = "tls";
const RAW: &str = "raw";

/// A login at one gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The gateway, as paths name it.
    pub gateway: Endpoint,
    /// The user's name there.
    pub user: String,
    /// Whether the password may be proved on connections without TLS: the user has said so.
    pub is_raw: bool,
    /// The keys of the password.
    pub keys: Keys,
}

/// All logins of a user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logins(Vec<Login>);

/// Why a logins file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoginsError {
    /// It cannot be read or written.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// Others could read it, or it is another user's.
    #[error(
        "{file}: {whose} (mode {mode:o}); expected a file of this user with mode 600: chmod 600 {file}, and new passwords if others may have read it"
    )]
    Public {
        /// The file.
        file: String,
        /// What is wrong.
        whose: &'static str,
        /// Its permissions.
        mode: u32,
    },
    /// A line is wrong.
    #[error("{file}:{line}: expected what phoebus login has written; without this line it can write it anew")]
    Line {
        /// The file.
        file: String,
        /// From 1.
        line: usize,
    },
}

impl Logins {
    /// Where the file is: `phoebus/logins` in the user's directory of configurations. `None` without a home. `lookup` is usually
    /// [`environment::variable`](crate::environment::variable).
    pub fn place(lookup: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
        let absolute = |name: &str| lookup(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
        Some(base.join("phoebus/logins"))
    }

    /// Reads a file. One that is not there has no logins.
    ///
    /// # Errors
    /// [`LoginsError`].
    pub fn read(path: &Path) -> Result<Self, LoginsError> {
        let name = path.display().to_string();
        match private_file::read(path) {
            Ok(None) => Ok(Self::default()),
            Ok(Some(found)) => Self::of(&found, &name),
            Err(source) => Err(LoginsError::Io { file: name, source }),
        }
    }

    fn of(found: &PrivateText, file: &str) -> Result<Self, LoginsError> {
        // What this process owns, whoever that is, tells its user.
        let own = fs::metadata("/proc/self").map(|own| own.uid());
        let is_anothers = own.is_ok_and(|own| own != found.owner && found.owner != 0);
        let whose = match found.mode & 0o077 {
            0 if !is_anothers => return Self::parse(&found.text, file),
            0 => "it is another user's",
            _ => "others can read it",
        };
        Err(LoginsError::Public { file: file.to_owned(), whose, mode: found.mode })
    }

    /// Reads the text of a file; `file` is its name in errors.
    ///
    /// # Errors
    /// [`LoginsError::Line`], which has nothing of the line.
    pub fn parse(text: &str, file: &str) -> Result<Self, LoginsError> {
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let read = |(line, text): (usize, &str)| login(text).ok_or(LoginsError::Line { file: file.to_owned(), line });
        lines.map(read).collect::<Result<_, _>>().map(Self)
    }

    /// The login at a gateway.
    pub fn at(&self, gateway: EndpointRef) -> Option<&Login> {
        self.0.iter().find(|login| login.gateway.as_ref() == gateway)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Login> {
        self.0.iter()
    }

    /// Adds a login to a file, in place of an earlier one at the same gateway.
    ///
    /// # Errors
    /// [`LoginsError`]; nothing has changed then.
    pub fn keep(path: &Path, login: Login) -> Result<(), LoginsError> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let failed = |source| LoginsError::Io { file: path.display().to_string(), source };
        fs::create_dir_all(directory).map_err(failed)?;
        Self::update(path, |logins| {
            logins.retain(|other| other.gateway != login.gateway);
            logins.push(login);
        })
    }

    /// Removes the login at a gateway from a file. Returns whether there was one.
    ///
    /// # Errors
    /// [`LoginsError`]; nothing has changed then.
    pub fn forget(path: &Path, gateway: &Endpoint) -> Result<bool, LoginsError> {
        if !path.exists() {
            return Ok(false);
        }
        let mut was_there = false;
        let updated = Self::update(path, |logins| {
            was_there = logins.iter().any(|login| login.gateway == *gateway);
            logins.retain(|login| login.gateway != *gateway);
        });
        updated.map(|()| was_there)
    }

    /// Lines that nobody can read are left out.
    fn update(path: &Path, change: impl FnOnce(&mut Vec<Login>)) -> Result<(), LoginsError> {
        let file = path.display().to_string();
        let updated = private_file::update(path, 0o600, |before| {
            let mut logins = match before.map(|found| (Self::of(&found, &file), found)) {
                Some((Err(LoginsError::Line { .. }), found)) => Self(found.text.lines().filter_map(login).collect()),
                Some((of, _)) => of?,
                None => Self::default(),
            };
            change(&mut logins.0);
            Ok::<_, Failed>(logins.to_string())
        });
        updated.map_err(|failed| match failed {
            Failed::Io(source) => LoginsError::Io { file, source },
            Failed::Logins(error) => error,
        })
    }
}

enum Failed {
    Io(io::Error),
    Logins(LoginsError),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<LoginsError> for Failed {
    fn from(error: LoginsError) -> Self {
        Self::Logins(error)
    }
}

/// The text of the file.
impl fmt::Display for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("# Written by phoebus login. Whoever reads this can log in: keep it closed to others.\n")?;
        self.0.iter().try_for_each(|Login { gateway, user, is_raw, keys }| {
            let place = if *is_raw { RAW } else { TLS };
            let [salt, client, server] = [keys.salting.salt(), keys.client(), keys.server()].map(hex);
            writeln!(f, "{gateway} {user} {place} {}:{salt} {client}:{server}", keys.salting.rounds())
        })
    }
}

fn login(line: &str) -> Option<Login> {
    let [gateway, user, place, salting, keys] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
    if ![TLS, RAW].contains(&place) {
        return None;
    }
    let ((rounds, salt), (client, server)) = (salting.split_once(':')?, keys.split_once(':')?);
    let salting = Salting::new(&unhex(salt)?, rounds.parse().ok()?)?;
    let key = |text: &str| -> Option<[u8; KEY_LEN]> { unhex(text)?.try_into().ok() };
    let keys = Keys::kept(salting, key(client)?, key(server)?);
    Some(Login { gateway: Endpoint::parse(gateway, None).ok()?, user: user.to_owned(), is_raw: place == RAW, keys })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn login(gateway: &str, user: &str) -> Login {
        let keys = Keys::of(Salting::new(b"salt", 4096).unwrap(), &[7; KEY_LEN]);
        Login { gateway: Endpoint::parse(gateway, None).unwrap(), user: user.to_owned(), is_raw: user == "eve", keys }
    }

    #[test]
    fn logins_are_read_as_they_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("phoebus/logins");
        assert_eq!(Logins::read(&path).unwrap(), Logins::default());
        assert_eq!(Logins::read(Path::new("/dev/null/logins")).unwrap(), Logins::default());
        let all = [("pg1.example:5006", "ada"), ("[2001:db8::1]:7", "eve"), ("pg1.example:5006", "bob")];
        let all = all.map(|(gateway, user)| login(gateway, user));
        all.iter().for_each(|login| Logins::keep(&path, login.clone()).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let [ada, eve, bob] = &all;
        assert_eq!(Logins::read(&path).unwrap(), Logins(vec![eve.clone(), bob.clone()]));
        assert_eq!(Logins::read(&path).unwrap().at(ada.gateway.as_ref()), Some(bob));
        let other = Endpoint::parse("pg1.example:5007", None).unwrap();
        assert!(Logins::read(&path).unwrap().at(other.as_ref()).is_none());
        assert!(!Logins::forget(&path, &other).unwrap() && Logins::forget(&path, &bob.gateway).unwrap());
        assert_eq!(Logins::read(&path).unwrap(), Logins(vec![eve.clone()]));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Logins::read(&path).unwrap_err().to_string().contains("others can read it (mode 640)"));
    }

    #[test]
    fn errors_show_nothing_of_a_line() {
        let text = format!("# x\n{}", login("pg1:1", "ada").keys.salting.rounds());
        let error = Logins::parse(&text, "logins").unwrap_err().to_string();
        assert!(error.starts_with("logins:2: expected") && !error.contains("4096"), "{error}");
        // A login repairs the file.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("logins");
        Logins::keep(&path, login("pg1:1", "ada")).unwrap();
        fs::write(&path, fs::read_to_string(&path).unwrap() + "garbage\n").unwrap();
        assert!(Logins::read(&path).is_err());
        Logins::keep(&path, login("pg2:1", "ada")).unwrap();
        assert_eq!(Logins::read(&path).unwrap().0.len(), 2);
    }
}
