//! What is served to whom: read from TOML, or made by a program.
//!
//! - `users`: who may log in, and what he sees. `security`: by what he proves who he is.
//! - `limits`: of the server and of each session. `data`: data connections, and what carries them. `drafts`: what is left of transfers. `stripes`: data nodes.
//! - `reach`: which third parties data connections may be made to.
//! - [`check`](Config::check): values that make no sense, each named.

mod check;
mod data;
mod drafts;
mod limits;
mod reach;
mod security;
mod stripes;
mod users;

pub use data::{Data, DriverLibrary, Sessions};
pub use drafts::Drafts;
pub use limits::Limits;
pub use reach::Reach;
pub use security::{Gsi, Kerberos, Tls};
pub use stripes::Stripes;
pub(super) use users::is_anonymous;
pub use users::{Anonymous, Trusted, User};

use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The port of GridFTP.
pub const PORT: u16 = 2811;

/// The largest configuration that is read: thousands of users, and no device that never ends.
const FILE_MAX: u64 = 16 << 20;

/// What is served to whom. By default nothing is, to nobody.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where control connections are accepted.
    pub listen: Vec<SocketAddr>,
    /// What the server calls itself in its greeting; the host's name if there is none.
    pub name: Option<String>,
    /// Whoever logs in as `anonymous` or `ftp`, with any password.
    pub anonymous: Option<Anonymous>,
    /// Those who log in with a password.
    #[serde(rename = "user")]
    pub users: Vec<User>,
    /// Clients that prove by certificates who they are (`AUTH GSSAPI`).
    pub gsi: Option<Gsi>,
    /// Clients that prove by tickets who they are (`AUTH GSSAPI`), where this program was built with `kerberos`.
    pub kerberos: Option<Kerberos>,
    /// Protection by TLS (`AUTH TLS`).
    pub tls: Option<Tls>,
    /// Limits and time limits.
    pub limits: Limits,
    /// What is logged.
    pub log: Log,
    /// Data connections.
    pub data: Data,
    /// What is left of transfers that were cut.
    pub drafts: Drafts,
    /// Data nodes.
    pub stripes: Stripes,
    /// Whether this is a data node itself, which works for its front end alone.
    #[serde(skip)]
    pub data_node: bool,
    /// The one who is served, where the server's control connection was made for him and nobody listens.
    #[serde(skip)]
    pub trusted: Option<Trusted>,
}

/// What is logged by the program that serves.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Lines of one kind from one source in a minute, and ten times as many of one kind from all sources together. Logins,
    /// transfers and changes are not counted. 0: all are written. 20 by default: enough to see what somebody tries, and a few megabytes a day of
    /// one who never stops.
    pub repeats: u32,
}

impl Default for Log {
    fn default() -> Self {
        Self { repeats: 20 }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// As the system says it.
        source: std::io::Error,
    },
    /// It is longer than is read.
    #[error("{} is longer than the {FILE_MAX} bytes that are read", .0.display())]
    Long(PathBuf),
    /// It is not what is expected.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// The character in it, from 1 on.
        column: usize,
        /// What was expected, and of which key. The line itself may hold a password, and is not told.
        message: String,
    },
    /// A value makes no sense.
    #[error("{0}")]
    Value(String),
}

/// What is told of `line`, of which `message` says what is wrong: its key, and no value of a password.
fn told(line: &str, message: &str) -> String {
    let key = line.split_once('=').map_or("", |(key, _)| key.trim());
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.\"".contains(&byte));
    match is_key {
        true if key.contains("password") => {
            format!("expected a hash in quotes, as `phoebus serve --hash-password` prints it, in: {key}")
        }
        true => format!("{}, in: {key}", one_line(message)),
        // What stands in the lines of a longer value.
        false => one_line(message.split(['`', '"']).next().unwrap_or_default()),
    }
}

impl Config {
    /// Reads a configuration file. Paths in it are taken from where it is.
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
        roots.chain(files).chain(keytab).chain(tls).chain(secret).for_each(|path| *path = beside.join(&*path));
        Ok(config)
    }
}

/// A log has a line for each thing that it says.
fn one_line(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join(", ")
}

fn yes() -> bool {
    true
}
