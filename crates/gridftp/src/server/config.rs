//! What is served to whom: read from TOML, or made by a program.

use super::quota::Quota;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::units::{ByteSize, Span};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    /// Data connections.
    pub data: Data,
    /// Data nodes.
    pub stripes: Stripes,
    /// Whether this is a data node itself, which works for its front end alone.
    #[serde(skip)]
    pub data_node: bool,
    /// The one who is served, where the server's control connection was made for him and nobody listens.
    #[serde(skip)]
    pub trusted: Option<Trusted>,
}

/// Who is known before he logs in, by whatever made his control connection (SSH).
#[derive(Debug, Clone)]
pub struct Trusted {
    /// What the server calls him.
    pub name: String,
    /// The directory that he sees.
    pub root: PathBuf,
    /// Where he is in it to begin with; at its root, if this is not beneath it.
    pub home: PathBuf,
    /// Whether nothing can be changed.
    pub read_only: bool,
}

/// What is served to everybody.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Anonymous {
    /// The directory.
    pub root: PathBuf,
    /// Whether nothing can be changed: so by default.
    #[serde(default = "yes")]
    pub read_only: bool,
    /// How much may be beneath it.
    #[serde(default)]
    pub quota: Quota,
    /// The user of the system as whom files are read and written, where the server is root.
    #[serde(default)]
    pub account: Option<String>,
    /// Whether data may go to others than the control connection's peer. Off by default: a server that lets everybody say so
    /// can be made to connect to anyone (RFC 2577).
    #[serde(default)]
    pub third_party: bool,
}

/// Grid security (U1): who the server is, whom it believes, and which user each subject is.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gsi {
    /// The server's certificate, with those that lead to its authority.
    #[serde(default = "hostcert")]
    pub certificate: PathBuf,
    /// Its key, which nobody else may be able to read.
    #[serde(default = "hostkey")]
    pub key: PathBuf,
    /// The directory of authorities, with their signing policies and revocation lists.
    #[serde(default = "authorities")]
    pub authorities: PathBuf,
    /// Which user each subject is, of those that the configuration names.
    #[serde(default = "gridmap")]
    pub gridmap: PathBuf,
}

/// Kerberos (RFC 2228, RFC 4121): by which keys the server knows tickets, and which user each principal is.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kerberos {
    /// The keytab, with keys of `ftp/HOST@REALM` or `host/HOST@REALM`.
    #[serde(default = "keytab")]
    pub keytab: PathBuf,
    /// Realms whose principals `name@REALM` are the users of these names.
    #[serde(default)]
    pub realms: Vec<String>,
    /// Which user a principal is, written as `name@REALM`, whatever its realm.
    #[serde(default)]
    pub principals: BTreeMap<String, String>,
}

impl Kerberos {
    /// Which user this principal is.
    #[cfg(feature = "kerberos")]
    pub(super) fn user_of<'a>(&'a self, principal: &'a str) -> Option<&'a str> {
        if let Some(user) = self.principals.get(principal) {
            return Some(user);
        }
        let (name, realm) = principal.rsplit_once('@')?;
        // A name of several parts, such as jane/admin, is another than jane.
        let plain = !name.is_empty() && !name.contains(['/', '@', '\\']);
        (plain && self.realms.iter().any(|known| known == realm)).then_some(name)
    }
}

/// Protection by TLS (RFC 4217).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The server's certificate, with those that lead to its authority, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM, which nobody else may be able to read.
    pub key: PathBuf,
    /// Whether passwords are taken under TLS only: so by default.
    #[serde(default = "yes")]
    pub required: bool,
}

fn keytab() -> PathBuf {
    "/etc/krb5.keytab".into()
}

fn hostcert() -> PathBuf {
    "/etc/grid-security/hostcert.pem".into()
}

fn hostkey() -> PathBuf {
    "/etc/grid-security/hostkey.pem".into()
}

fn authorities() -> PathBuf {
    "/etc/grid-security/certificates".into()
}

fn gridmap() -> PathBuf {
    "/etc/grid-security/grid-mapfile".into()
}

/// A user.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// The name.
    pub name: String,
    /// As `phoebus serve --hash-password` prints it. Without one he comes by certificate or ticket only.
    #[serde(default)]
    pub password: Option<String>,
    /// The directory.
    pub root: PathBuf,
    /// Whether nothing can be changed.
    #[serde(default)]
    pub read_only: bool,
    /// How much may be beneath it.
    #[serde(default)]
    pub quota: Quota,
    /// The user of the system as whom files are read and written, where the server is root.
    #[serde(default)]
    pub account: Option<String>,
    /// Whether data may go to, and come from, others than the control connection's peer.
    #[serde(default)]
    pub third_party: bool,
}

/// Limits of the server and of each session.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Control connections at a time. 1000 by default, each a few kilobytes while it moves nothing.
    pub connections: usize,
    /// Of these, from one address. 100 by default: clients with many files in flight have some tens.
    pub per_address: usize,
    /// Of these, of one user. 500 by default.
    pub per_user: usize,
    /// How often a client may fail to log in on one connection. 3 by default.
    pub attempts: u32,
    /// How long a client has to log in. 60 s by default.
    pub login: Span,
    /// How long a client may say nothing. 10 minutes by default, as in GCT's server.
    pub idle: Span,
    /// The longest line, in bytes. 64 KiB by default: paths have 4 KiB, and tokens of security in base64 some tens.
    pub line: ByteSize,
    /// How many commands may wait while one is carried out. 1000 by default: clients with small files send ahead (U7).
    pub ahead: usize,
    /// How long sessions have to end their transfers when the server is told to end. 30 s by default.
    pub drain: Span,
}

/// Data connections.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Ports that are listened on, as `[first, last]`: for firewalls. Any that is free by default.
    pub ports: Option<(u16, u16)>,
    /// What clients are told to connect to, where address translation gives the server another address.
    pub public: Option<IpAddr>,
    /// Gateways from which data connections are taken as from the control connection's peer: those whose sessions end here.
    pub gateways: Vec<IpAddr>,
    /// What may carry data connections, the first of which does unless a client asks for another (`SITE SETNETSTACK`). `tcp` by
    /// default; `udt`, `quic`, `phoebus`, `rate` and the libraries below are the others.
    pub drivers: Vec<String>,
    /// The stack of drivers that carries them in the place of the first driver, as clients write it.
    pub stack: Option<String>,
    /// Drivers that are loaded.
    #[serde(rename = "driver")]
    pub libraries: Vec<DriverLibrary>,
    /// Gateways of the driver `phoebus`.
    pub sessions: Sessions,
    /// Connections over which one transfer may go. 64 by default.
    pub streams: u32,
    /// Connections of all transfers together whose bytes the kernel moves, on a thread each. 64 by default: far more than keep a network
    /// busy, and far below what the runtime has threads for.
    pub threads: usize,
    /// For how long one has its thread while others wait for one. 20 ms by default.
    pub turn: Span,
    /// Blocks that are read, sent and written at once. 1 MiB by default.
    pub block: ByteSize,
    /// The largest socket buffers that clients may ask for. 1 GiB by default; the kernel has a limit of its own.
    pub buffer: ByteSize,
    /// How long connecting may take, and how long a connection is waited for. 60 s by default.
    pub patience: Span,
    /// How long nothing may move. 2 minutes by default: longer than paths take to heal.
    pub stall: Span,
    /// Between markers of what has arrived. 5 s by default, as in GCT's server.
    pub markers: Span,
}

/// A driver that is loaded (`docs/guide/drivers.md`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverLibrary {
    /// What clients call it.
    pub name: String,
    /// The shared library, by its absolute path.
    pub library: PathBuf,
    /// Its options, on every connection.
    #[serde(default)]
    pub options: BTreeMap<String, toml::Value>,
}

impl DriverLibrary {
    /// Its options as texts.
    pub(super) fn texts(&self) -> Result<BTreeMap<String, String>, String> {
        let text = |(key, value): (&String, &toml::Value)| match value {
            toml::Value::String(text) => Ok((key.clone(), text.clone())),
            toml::Value::Integer(number) => Ok((key.clone(), number.to_string())),
            toml::Value::Boolean(yes) => Ok((key.clone(), yes.to_string())),
            _ => Err(format!("option {key} is not a text, a number, true or false")),
        };
        self.options.iter().map(text).collect()
    }
}

/// Sessions by which data connections are made (the driver `phoebus`).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sessions {
    /// The gateways, as `host/port`, the first hop first, where a client names none.
    pub path: Vec<String>,
    /// Gateways beside those that clients may name.
    pub gateways: Vec<String>,
}

/// Data nodes, which move data in the front end's place (S11).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stripes {
    /// Where they listen for their front end, as `host:port`. They may have the same configuration.
    pub nodes: Vec<String>,
    /// The file by which they and the front end know each other, which nobody else may be able to read.
    pub secret: Option<PathBuf>,
}

impl Stripes {
    /// Where the nodes are; none, if there are none.
    pub(super) fn at(&self) -> Result<Option<Vec<Endpoint>>, ConfigError> {
        let at = self.nodes.iter().map(|node| node.parse());
        let at: Vec<_> = at.collect::<Result<_, _>>().map_err(|error| {
            ConfigError::Value(format!("stripes.nodes: addresses such as dn1.example:2812 were expected: {error}"))
        })?;
        Ok(Some(at).filter(|at| !at.is_empty()))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1000,
            per_address: 100,
            per_user: 500,
            attempts: 3,
            login: Span(Duration::from_secs(60)),
            idle: Span(Duration::from_secs(600)),
            line: ByteSize(64 << 10),
            ahead: 1000,
            drain: Span(Duration::from_secs(30)),
        }
    }
}

impl Default for Data {
    fn default() -> Self {
        Self {
            ports: None,
            public: None,
            gateways: Vec::new(),
            drivers: vec!["tcp".to_owned()],
            stack: None,
            libraries: Vec::new(),
            sessions: Sessions::default(),
            streams: 64,
            threads: 64,
            turn: Span(Duration::from_millis(20)),
            block: ByteSize(1 << 20),
            buffer: ByteSize(1 << 30),
            patience: Span(Duration::from_secs(60)),
            stall: Span(Duration::from_secs(120)),
            markers: Span(Duration::from_secs(5)),
        }
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
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where, and what was expected.
        source: Box<toml::de::Error>,
    },
    /// A value makes no sense.
    #[error("{0}")]
    Value(String),
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
        let mut config: Self =
            parsed.map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })?;
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

    /// Looks for values that make no sense.
    ///
    /// # Errors
    /// [`ConfigError::Value`], naming the setting.
    pub fn check(&self) -> Result<(), ConfigError> {
        let value = |text: &str| Err(ConfigError::Value(text.to_owned()));
        let listens = self.trusted.is_none();
        if listens && self.listen.is_empty() {
            return value("listen: at least one address to listen on was expected");
        }
        if listens && self.anonymous.is_none() && self.users.is_empty() {
            return value("nobody may log in: [anonymous] or [[user]] was expected");
        }
        if self.data.ports.is_some_and(|(first, last)| first == 0 || first > last) {
            return value("data.ports: [first, last] was expected, the first not 0 and not above the last");
        }
        if self.data.gateways.iter().any(|gateway| gateway.is_unspecified() || gateway.is_multicast()) {
            return value("data.gateways: addresses of hosts were expected");
        }
        if !(1..=1024).contains(&self.data.streams) {
            return value("data.streams: 1 to 1024 were expected");
        }
        if !(1..=256).contains(&self.data.threads) {
            return value("data.threads: 1 to 256 were expected");
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&self.data.turn.0) {
            return value("data.turn: 1ms to 1s were expected");
        }
        if !((4 << 10)..=(64 << 20)).contains(&self.data.block.0) {
            return value("data.block: 4KiB to 64MiB were expected");
        }
        if !(512..=1 << 20).contains(&self.limits.line.0) {
            return value("limits.line: 512B to 1MiB were expected");
        }
        if self.stripes.secret.is_none() && (self.data_node || self.stripes.at()?.is_some()) {
            return value("stripes.secret: the file by which front end and data nodes know each other was expected");
        }
        if self.gsi.is_some() && self.users.is_empty() {
            return value("[gsi]: at least one [[user]] was expected, whom certificates can be mapped to");
        }
        if let Some(kerberos) = &self.kerberos {
            if !cfg!(feature = "kerberos") {
                return value("[kerberos]: this program was built without Kerberos (cargo build --features kerberos)");
            }
            if kerberos.realms.is_empty() && kerberos.principals.is_empty() {
                return value("[kerberos]: realms or principals were expected, by which principals are users");
            }
            if self.users.is_empty() {
                return value("[kerberos]: at least one [[user]] was expected, who principals can be");
            }
        }
        for (i, user) in self.users.iter().enumerate() {
            let twice = self.users[..i].iter().any(|other| other.name == user.name);
            if twice || user.name.is_empty() || is_anonymous(&user.name) {
                return Err(ConfigError::Value(format!(
                    "user \"{}\": a name was expected that no other user has, nor anonymous logins",
                    user.name
                )));
            }
            if user.password.is_none() && self.gsi.is_none() && self.kerberos.is_none() {
                let text = format!("user \"{}\": a password, or [gsi] or [kerberos], was expected", user.name);
                return Err(ConfigError::Value(text));
            }
        }
        Ok(())
    }
}

/// Whether this is the name of everybody.
pub(super) fn is_anonymous(name: &str) -> bool {
    ["anonymous", "ftp"].iter().any(|all| name.eq_ignore_ascii_case(all))
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let good = "listen = [\"127.0.0.1:2811\"]\n[anonymous]\nroot = \"/srv\"\n";
        let config = checked(good).unwrap();
        assert!(config.anonymous.is_some_and(|all| all.read_only && !all.third_party));
        for (more, says) in [
            ("", "nobody may log in"),
            ("[anonymous]\nroot = \"/\"\nsecure = true", "unknown field `secure`"),
            ("[anonymous]\nroot = \"/\"\n[data]\nports = [9, 8]", "data.ports"),
            ("[anonymous]\nroot = \"/\"\n[data]\nstreams = 0", "data.streams"),
            ("[anonymous]\nroot = \"/\"\n[data]\nthreads = 0", "data.threads"),
            ("[anonymous]\nroot = \"/\"\n[data]\nturn = \"2s\"", "data.turn"),
            ("[anonymous]\nroot = \"/\"\n[data]\ngateways = [\"::\"]", "data.gateways"),
            ("[[user]]\nname = \"jane\"\nroot = \"/\"", "a password, or [gsi] or [kerberos]"),
            ("[gsi]\n[anonymous]\nroot = \"/\"", "[gsi]: at least one"),
            ("[[user]]\nname = \"FTP\"\npassword = \"x\"\nroot = \"/\"", "user \"FTP\""),
        ] {
            let error = checked(&format!("listen = [\"127.0.0.1:2811\"]\n{more}")).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(checked("[anonymous]\nroot = \"/\"").unwrap_err().contains("listen"));
    }
}
