//! The logins file of a user: what `phoebus login` keeps for gateways that want a password (P27).
//!
//! ```text
//! # gateway      user  salt and rounds    keys
//! pg1.example:5006  ada   600000:SALT        CLIENT:SERVER
//! ```
//!
//! The keys are not the password, and serve with these gateways only. But whoever has them can log in there, so that the file must be
//! closed to others.

use crate::private_file;
use phoebus_proto::endpoint::{Endpoint, EndpointRef};
use phoebus_proto::hex::{hex, unhex};
use phoebus_proto::session::auth::scram::{KEY_LEN, Keys, Salting};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// Longest file that is read, in bytes: of thousands of gateways.
const FILE_MAX: u64 = 1 << 20;

/// A login at one gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The gateway, as paths name it.
    pub gateway: Endpoint,
    /// The user's name there.
    pub user: String,
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
    /// Others could read it.
    #[error(
        "{file}: others can read it (mode {mode:o}); expected a file of this user with mode 600: chmod 600 {file}, and a new password"
    )]
    Public {
        /// The file.
        file: String,
        /// Its permissions.
        mode: u32,
    },
    /// A line is wrong.
    #[error("{file}:{line}: expected what phoebus login has written: GATEWAY USER ROUNDS:SALT CLIENT:SERVER")]
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
        let failed = |source| LoginsError::Io { file: name.clone(), source };
        let file = match fs::File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            other => other.map_err(failed)?,
        };
        let mode = file.metadata().map_err(failed)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(LoginsError::Public { file: name, mode });
        }
        let mut text = String::new();
        file.take(FILE_MAX).read_to_string(&mut text).map_err(failed)?;
        Self::parse(&text, &name)
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

    /// Adds a login, in place of an earlier one at the same gateway.
    pub fn insert(&mut self, login: Login) {
        self.remove(&login.gateway);
        self.0.push(login);
    }

    /// Removes the login at a gateway. Returns whether there was one.
    pub fn remove(&mut self, gateway: &Endpoint) -> bool {
        let before = self.0.len();
        self.0.retain(|login| login.gateway != *gateway);
        self.0.len() < before
    }

    /// Writes the file, closed to others, whole or not at all.
    ///
    /// # Errors
    /// [`LoginsError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), LoginsError> {
        let failed = |source| LoginsError::Io { file: path.display().to_string(), source };
        let directory = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory).map_err(failed)?;
        private_file::write(path, self.to_string().as_bytes(), 0o600).map_err(failed)
    }
}

/// The text of the file.
impl fmt::Display for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("# Written by phoebus login. Whoever reads this can log in: keep it closed to others.\n")?;
        self.0.iter().try_for_each(|Login { gateway, user, keys }| {
            let [salt, client, server] = [keys.salting.salt(), keys.client(), keys.server()].map(hex);
            writeln!(f, "{gateway} {user} {}:{salt} {client}:{server}", keys.salting.rounds())
        })
    }
}

fn login(line: &str) -> Option<Login> {
    let [gateway, user, salting, keys] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
    let ((rounds, salt), (client, server)) = (salting.split_once(':')?, keys.split_once(':')?);
    let salting = Salting::new(&unhex(salt)?, rounds.parse().ok()?)?;
    let key = |text: &str| -> Option<[u8; KEY_LEN]> { unhex(text)?.try_into().ok() };
    let keys = Keys::kept(salting, key(client)?, key(server)?);
    Some(Login { gateway: Endpoint::parse(gateway, None).ok()?, user: user.to_owned(), keys })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn login(gateway: &str, user: &str) -> Login {
        let keys = Keys::of(Salting::new(b"salt", 4096).unwrap(), &[7; KEY_LEN]);
        Login { gateway: Endpoint::parse(gateway, None).unwrap(), user: user.to_owned(), keys }
    }

    #[test]
    fn logins_are_read_as_they_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("phoebus/logins");
        let mut logins = Logins::read(&path).unwrap();
        logins.insert(login("pg1.example:5006", "ada"));
        logins.insert(login("[2001:db8::1]:7", "eve"));
        logins.insert(login("pg1.example:5006", "bob"));
        logins.write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read = Logins::read(&path).unwrap();
        assert_eq!(read, logins);
        assert_eq!(read.at(Endpoint::parse("pg1.example:5006", None).unwrap().as_ref()).unwrap().user, "bob");
        assert!(read.at(Endpoint::parse("pg1.example:5007", None).unwrap().as_ref()).is_none());
        assert!(logins.remove(&Endpoint::parse("pg1.example:5006", None).unwrap()));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Logins::read(&path).unwrap_err().to_string().contains("others can read it (mode 640)"));
    }

    #[test]
    fn errors_show_nothing_of_a_line() {
        let text = format!("# x\n{}", login("pg1:1", "ada").keys.salting.rounds());
        let error = Logins::parse(&text, "logins").unwrap_err().to_string();
        assert!(error.starts_with("logins:2: expected") && !error.contains("4096"), "{error}");
    }
}
