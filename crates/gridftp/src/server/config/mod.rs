//! The configuration of the server, from TOML or from a program.
//!
//! - `phoebus_accounts::config`: users and what they may see. `security`: how they authenticate.
//! - `limits`: of the server and of each session. `data`: data connections. `drafts`: cut transfers. `stripes`: data
//!   nodes.
//! - `reach`: third parties that data connections may be made to.
//! - [`check`](Config::check): checks values, naming each.

mod check;
mod data;
mod drafts;
mod limits;
mod origin;
mod reach;
mod security;
mod stripes;

pub use data::{Data, DriverLibrary, Sessions};
pub use drafts::Drafts;
pub(super) use limits::FILES_OF_BATCH;
pub use limits::Limits;
pub use origin::Origin;
pub use phoebus_accounts::config::{Anonymous, Trusted, User};
pub use reach::Reach;
pub use security::{Gsi, Kerberos, Tls};
pub use stripes::Stripes;

use phoebus_accounts::{Unusable, UsersConfig};
use phoebus_config::users::{Users, UsersError};
use phoebus_proto::units::in_words;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The port of GridFTP.
pub const PORT: u16 = 2811;

/// Largest configuration that is read: room for thousands of users, and an end for endless devices.
const FILE_MAX: u64 = 16 << 20;

/// The configuration. The default serves nothing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Addresses of control connections.
    pub listen: Vec<SocketAddr>,
    /// Name in the greeting. The host's name by default.
    pub name: Option<String>,
    /// Users `anonymous` and `ftp`, with any password.
    pub anonymous: Option<Anonymous>,
    /// Users with passwords.
    #[serde(rename = "user")]
    pub users: Vec<User>,
    /// Where the passwords of users stand who have none here.
    #[serde(rename = "users")]
    pub passwords: Option<Passwords>,
    /// Logins with certificates (`AUTH GSSAPI`).
    pub gsi: Option<Gsi>,
    /// Logins with Kerberos tickets (`AUTH GSSAPI`), if the program was built with `kerberos`.
    pub kerberos: Option<Kerberos>,
    /// TLS (`AUTH TLS`).
    pub tls: Option<Tls>,
    /// Limits of sizes, counts and times.
    pub limits: Limits,
    /// Logging.
    pub log: Log,
    /// Data connections.
    pub data: Data,
    /// Drafts of cut transfers.
    pub drafts: Drafts,
    /// Data nodes.
    pub stripes: Stripes,
    /// Whether this server is a data node, which works only for its front end.
    #[serde(skip)]
    pub data_node: bool,
    /// The user of a server that was started for one control connection and does not listen.
    #[serde(skip)]
    pub trusted: Option<Trusted>,
    /// The file that it was read from.
    #[serde(skip)]
    pub origin: Origin,
}

/// Passwords in a file that gateways can use too.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Passwords {
    /// The file ([`phoebus_config::users`]), relative to the configuration.
    pub file: PathBuf,
    /// What it says.
    #[serde(skip)]
    pub users: Users,
}

/// Logging of the serving program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Most lines of one kind from one source in a minute; all sources together may write ten times as many. Logins,
    /// transfers and changes do not count. 0 writes all. 20 by default: enough to see an attack, and a few megabytes a
    /// day from a persistent attacker.
    pub repeats: u32,
}

impl Default for Log {
    fn default() -> Self {
        Self { repeats: 20 }
    }
}

/// An unusable configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file with passwords cannot be used.
    #[error(transparent)]
    Passwords(#[from] UsersError),
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is too long.
    #[error("{} is longer than the {FILE_MAX} bytes that are read", .0.display())]
    Long(PathBuf),
    /// The file has a syntax or type error.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What was expected, and of which key. The line itself may hold a password, and is left out.
        message: String,
    },
    /// A value is out of range.
    #[error("{0}")]
    Value(String),
}

impl From<Unusable> for ConfigError {
    fn from(Unusable(text): Unusable) -> Self {
        Self::Value(text)
    }
}

/// Describes an error in `line`: its key, without values, which may be passwords.
fn told(line: &str, message: &str) -> String {
    let message = match message.trim() {
        "invalid socket address syntax" => "expected an address and port such as 127.0.0.1:2811 or [::]:2811",
        message => message,
    };
    let message = &in_words(message).replace("a sequence", "a list: [\"…\"], or [[…]] for tables");
    let header = line.trim().trim_start_matches('[').trim_end_matches(']');
    if ["unknown field", "missing field", "invalid type: map"].iter().any(|kind| message.starts_with(kind))
        && [format!("[{header}]"), format!("[[{header}]]")].contains(&line.trim().to_owned())
    {
        return one_line(message);
    }
    let key = line.split_once('=').map_or("", |(key, _)| key.trim());
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.\"".contains(&byte));
    match is_key {
        true if key.contains("password") => {
            format!("expected a hash in quotes, as `phoebus serve --hash-password` prints it, in: {key}")
        }
        true => format!("{}, in: {key}", one_line(message)),
        // A continuation line of a longer value.
        false => {
            let cut = message.split(['`', '"']).next().unwrap_or_default().trim_end();
            match cut.strip_suffix(", expected") {
                Some("key with no value") => "expected KEY = VALUE, and there is no \"=\"".to_owned(),
                Some(begin) => one_line(begin),
                None => one_line(cut),
            }
        }
    }
}

impl Config {
    /// Reads a configuration file. Relative paths in it start from its directory.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let read = |source| ConfigError::Read { path: path.to_owned(), source };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(read)?;
        std::io::Read::read_to_string(&mut std::io::Read::take(file, FILE_MAX + 1), &mut text).map_err(read)?;
        if text.len() as u64 > FILE_MAX {
            return Err(ConfigError::Long(path.to_owned()));
        }
        let parsed = toml::from_str(&text);
        let mut config: Self = parsed.map_err(|source: toml::de::Error| {
            let before = source.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            let message = told(text.lines().nth(line - 1).unwrap_or_default(), source.message());
            ConfigError::Parse { path: path.to_owned(), line, column, message }
        })?;
        config.origin = Origin::new(path, &text);
        let beside = path.parent().unwrap_or(Path::new("."));
        let roots = config.users.iter_mut().map(|user| &mut user.root);
        let roots = roots.chain(config.anonymous.iter_mut().map(|all| &mut all.root));
        let files = config
            .gsi
            .iter_mut()
            .flat_map(|gsi| [&mut gsi.certificate, &mut gsi.key, &mut gsi.authorities, &mut gsi.gridmap]);
        let tls = config.tls.iter_mut().flat_map(|tls| [&mut tls.certificate, &mut tls.key]);
        let keytab = config.kerberos.iter_mut().map(|kerberos| &mut kerberos.keytab);
        let secret = config.stripes.secret.iter_mut();
        let passwords = config.passwords.iter_mut().map(|passwords| &mut passwords.file);
        let all = roots.chain(files).chain(keytab).chain(tls).chain(secret).chain(passwords);
        all.for_each(|path| *path = beside.join(&*path));
        if let Some(passwords) = &mut config.passwords {
            passwords.users = Users::read(&passwords.file)?;
        }
        Ok(config)
    }
}

impl Config {
    /// The users of the configuration.
    pub(super) fn accounts(&self) -> UsersConfig<'_> {
        UsersConfig {
            trusted: self.trusted.as_ref(),
            anonymous: self.anonymous.as_ref(),
            users: &self.users,
            verifiers: self.passwords.as_ref().map(|passwords| &passwords.users),
            checksums: self.limits.checksum_turns(),
            time_limit: self.limits.accounts.0,
        }
    }
}

/// The number of lines of one kind in a minute.
fn one_line(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_line_and_the_expectation_without_passwords() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("serve.toml");
        let address = "expected an address and port such as 127.0.0.1:2811 or [::]:2811";
        for (text, place, says) in [
            ("\n[anonymus]\n", "2:2", "unknown field `anonymus`, expected one of `listen`, "),
            ("[[usr]]\n", "1:3", "unknown field `usr`, expected one of `listen`, "),
            ("listen = [\"127.0.0.1\"]", "1:11", &format!("{address}, in: listen")),
            ("listen = [\n  \"127.0.0.1\",\n]", "2:3", address),
            (
                "[limits]\nidle = 5\n",
                "2:8",
                "invalid type: integer `5`, expected text in quotes such as \"5s\", in: idle",
            ),
            ("[anonymous]\nread_only = true\n", "1:1", "missing field `root`"),
            (
                "[anonymous]\nquota = \"10G\"\n",
                "2:9",
                "invalid type: string \"10G\", expected a table such as { bytes =",
            ),
            ("[user]\nname = \"jane\"\n", "1:1", "invalid type: map, expected a list: [\"…\"], or [[…]] for tables"),
            ("listen = \"127.0.0.1:21\"\n", "1:10", "invalid type: string \"127.0.0.1:21\", expected a list: ["),
            ("[[user]]\npassword \"geheim\"\n", "2:10", "expected KEY = VALUE, and there is no \"=\""),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Config::read(&file).unwrap_err().to_string();
            let said = error.strip_prefix(&format!("{}:{place}: ", file.display()));
            assert!(said.is_some_and(|said| said.starts_with(says)) && !error.contains("geheim"), "{text}: {error}");
        }
    }
}
