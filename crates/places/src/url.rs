//! What users write for a place: a local path, a URL, `host:path`, or `-` (conventions of U1, `globus-url-copy`, `scp`
//! and `rsync`).
//!
//! A server's path begins at its root: `gsiftp://host/data/a`. A path that begins with `/~/`, or a `host:path` without
//! a leading slash, begins at the login's directory.

use percent_encoding::percent_decode_str;
use phoebus_gridftp::client::Password;
use phoebus_proto::endpoint::Endpoint;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// A place as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Url {
    /// Standard input or output.
    Standard,
    /// A local path.
    Local(PathBuf),
    /// A path on a server.
    Far(Far),
}

/// A path on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Far {
    /// The protocol.
    pub scheme: Scheme,
    /// The user, if given.
    pub user: Option<String>,
    /// The password, if given.
    pub password: Option<Password>,
    /// The server.
    pub server: Endpoint,
    /// The path: bytes, which may be invalid UTF-8.
    pub path: Vec<u8>,
    /// Whether the path begins at the login's directory, and not at the root.
    pub home: bool,
}

/// The protocol of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// GridFTP with GSI.
    Gsiftp,
    /// FTP or GridFTP, with a password or anonymous.
    Ftp,
    /// FTP over TLS from the start of the connection, on its own port.
    Ftps,
    /// FTP over TLS by `AUTH TLS` on any port, as FileZilla and WinSCP write it.
    Ftpes,
    /// GridFTP over SSH, by the far side's own program.
    Sshftp,
    /// The same by Phoebus, written as `host:path`.
    Ssh,
}

/// Hosts of these names need a user if the path begins at the root: a missing slash of a URL is more likely.
const LIKE_SCHEMES: [&str; 12] =
    ["ftp", "ftps", "ftpes", "gsiftp", "sshftp", "file", "http", "https", "sftp", "scp", "ssh", "rsync"];

/// A text that is no valid place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\": {expected} was expected")]
pub struct UrlError {
    text: String,
    expected: &'static str,
}

impl Scheme {
    const ALL: [Self; 5] = [Self::Gsiftp, Self::Ftp, Self::Ftps, Self::Ftpes, Self::Sshftp];

    /// The scheme.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gsiftp => "gsiftp",
            Self::Ftp => "ftp",
            Self::Ftps => "ftps",
            Self::Ftpes => "ftpes",
            Self::Sshftp => "sshftp",
            Self::Ssh => "ssh",
        }
    }

    /// Whether it uses SSH.
    pub fn is_ssh(self) -> bool {
        matches!(self, Self::Sshftp | Self::Ssh)
    }

    /// The default port.
    pub fn port(self) -> u16 {
        match self {
            Self::Gsiftp => 2811,
            Self::Ftp | Self::Ftpes => 21,
            Self::Ftps => 990,
            Self::Sshftp | Self::Ssh => 22,
        }
    }
}

impl Url {
    /// Parses a place. Anything that is no URL is a local path, in any bytes.
    ///
    /// # Errors
    /// A URL without a host, with an unknown scheme, or with an invalid port.
    pub fn parse(written: &OsStr) -> Result<Self, UrlError> {
        let local = || Ok(Self::Local(PathBuf::from(written)));
        let Some(text) = written.to_str() else { return local() };
        if text == "-" {
            return Ok(Self::Standard);
        }
        if let Some((scheme, rest)) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) {
            let scheme = scheme.to_ascii_lowercase();
            if scheme == "file" {
                return file(text, rest);
            }
            let known = Scheme::ALL.into_iter().find(|known| known.name() == scheme);
            let error = || {
                let expected = match &*scheme {
                    "http" | "https" => {
                        "a place of a server of FTP or SSH, or \"phoebus run -- curl\" with this URL, which goes through gateways,"
                    }
                    "sftp" | "scp" => "HOST:PATH, for which ssh starts phoebus at the host,",
                    _ => "gsiftp://, ftp://, ftps://, ftpes://, sshftp://, file:///, HOST:PATH or a path",
                };
                error(text, expected)
            };
            return far(text, known.ok_or_else(error)?, rest).map(Self::Far);
        }
        if let Some(path) = text.strip_prefix("file:").filter(|path| path.starts_with('/')) {
            return Ok(Self::Local(decoded(path).into()));
        }
        match split_remote(text) {
            Some((host, path)) if is_drive(host, path) => {
                Err(error(text, "a path of this machine without a drive letter"))
            }
            Some((host, path)) if path.starts_with('/') && LIKE_SCHEMES.contains(&&*host.to_ascii_lowercase()) => {
                Err(error(
                    text,
                    "two slashes after the scheme, as in ftp://HOST/PATH, or a user before a host of this name",
                ))
            }
            Some((_, path)) if path.starts_with(':') => Err(error(
                text,
                "HOST:PATH with one colon (no rsync daemon is spoken with), or ./ before a path of this machine",
            )),
            Some((host, path)) => remote(text, host, path).map(Self::Far),
            None => local(),
        }
    }
}

impl Url {
    /// Whether it ends in `.` or `..`, or is the login's directory: a directory without its name.
    pub fn has_no_name(&self) -> bool {
        let (path, home) = match self {
            Self::Standard => return false,
            Self::Local(path) => (path.as_os_str().as_bytes(), false),
            Self::Far(far) => (&far.path[..], far.home),
        };
        match path.split(|&byte| byte == b'/').rfind(|part| !part.is_empty()) {
            Some(last) => last == b"." || last == b"..",
            None => home,
        }
    }
}

/// As written, without a password.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standard => f.write_str("-"),
            Self::Local(path) => path.display().fmt(f),
            Self::Far(far) => far.fmt(f),
        }
    }
}

/// In a form that can be parsed again, without the password.
impl fmt::Display for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scheme != Scheme::Ssh {
            write!(f, "{}://", self.scheme.name())?;
        }
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        let host = match &self.server.host {
            phoebus_proto::endpoint::Host::Addr(addr @ std::net::IpAddr::V6(_)) => format!("[{addr}]"),
            phoebus_proto::endpoint::Host::Addr(addr) => addr.to_string(),
            phoebus_proto::endpoint::Host::Name(name) => name.clone(),
        };
        f.write_str(&host)?;
        if self.scheme == Scheme::Ssh {
            let path = String::from_utf8_lossy(&self.path);
            let root = if self.home || path.starts_with('/') { "" } else { "/" };
            return write!(f, ":{root}{path}");
        }
        if self.server.port != self.scheme.port() {
            write!(f, ":{}", self.server.port)?;
        }
        write!(
            f,
            "{}{}",
            if self.home { "/~/" } else { "/" },
            String::from_utf8_lossy(&self.path).trim_start_matches('/')
        )
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

fn error(text: &str, expected: &'static str) -> UrlError {
    // Text before an @ may be a password.
    let shown = match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
        _ => text.to_owned(),
    };
    UrlError { text: shown.chars().take(200).collect(), expected }
}

fn decoded(text: &str) -> std::ffi::OsString {
    std::ffi::OsString::from_vec(percent_decode_str(text).collect())
}

/// Parses the part after `file://`.
fn file(text: &str, rest: &str) -> Result<Url, UrlError> {
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        return Err(error(text, "a path of this machine that begins with a slash, as in file:///data/a"));
    }
    Ok(Url::Local(decoded(path).into()))
}

/// Parses the part after a server's scheme.
fn far(text: &str, scheme: Scheme, rest: &str) -> Result<Far, UrlError> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, host) = authority.rsplit_once('@').map_or((None, authority), |(login, host)| (Some(login), host));
    let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
        Some((user, password)) => (text_of(text, user)?, text_of(text, password)?),
        None => (None, None),
    };
    let (path, home) =
        path.strip_prefix("~/").or((path == "~").then_some("")).map_or((path, false), |path| (path, true));
    Ok(Far {
        scheme,
        user,
        password: password.map(Password),
        server: endpoint(text, host, scheme.port())?,
        path: percent_decode_str(path).collect(),
        home,
    })
}

fn endpoint(text: &str, host: &str, port: u16) -> Result<Endpoint, UrlError> {
    // Endpoints may also have a slash before the port, or no brackets around an address with colons.
    let bare = host.contains('/') || (host.matches(':').count() > 1 && !host.starts_with('['));
    let parsed = if bare { None } else { Endpoint::parse(host, Some(port)).ok() };
    parsed.ok_or_else(|| error(text, "a host, and a port from 1 to 65535 if there is one"))
}

/// Decodes a user or password. `None` if it is empty.
fn text_of(url: &str, part: &str) -> Result<Option<String>, UrlError> {
    let decoded = percent_decode_str(part).decode_utf8();
    let text = decoded.map_err(|_| error(url, "a user and password in UTF-8"))?;
    if text.contains(['\r', '\n', '\0']) {
        return Err(error(url, "a user and password of one line"));
    }
    Ok(Some(text.into_owned()).filter(|text| !text.is_empty()))
}

/// Splits `[user@]host:path`. A slash before the colon makes it a path, as for scp.
fn split_remote(text: &str) -> Option<(&str, &str)> {
    let login = text.find('@').map_or(0, |at| at + 1);
    let colon = match text[login..].strip_prefix('[') {
        Some(rest) => login + 1 + rest.find("]:")? + 1,
        None => text.find(':')?,
    };
    let (host, path) = (&text[..colon], &text[colon + 1..]);
    (!host.is_empty() && !host.contains('/')).then_some((host, path))
}

/// Whether `host:path` is a local path of another system, such as `C:/x`.
fn is_drive(host: &str, path: &str) -> bool {
    host.len() == 1 && host.starts_with(|c: char| c.is_ascii_alphabetic()) && path.starts_with(['/', '\\'])
}

fn remote(text: &str, host: &str, path: &str) -> Result<Far, UrlError> {
    let (user, host) = host.split_once('@').map_or((None, host), |(user, host)| (Some(user.to_owned()), host));
    let path = path.strip_prefix("~/").unwrap_or(path);
    Ok(Far {
        scheme: Scheme::Ssh,
        user: user.filter(|user| !user.is_empty()),
        password: None,
        server: endpoint(text, host, Scheme::Ssh.port())?,
        path: OsStr::new(path).as_bytes().to_vec(),
        home: !path.starts_with('/'),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn parse(text: &str) -> Url {
        Url::parse(OsStr::new(text)).unwrap()
    }

    /// The equivalent URL and its path.
    fn far(text: &str) -> (String, Vec<u8>) {
        match parse(text) {
            Url::Far(far) => (far.to_string(), far.path),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn places_are_read_as_people_write_them() {
        assert_eq!(parse("-"), Url::Standard);
        for (text, path) in [
            ("a b", "a b"),
            ("./host:x", "./host:x"),
            ("/a:b", "/a:b"),
            (":a", ":a"),
            ("file:///a%20b/c", "/a b/c"),
            ("file:/a", "/a"),
            ("FILE://localhost/a", "/a"),
            ("dir@2/a:b", "dir@2/a:b"),
        ] {
            assert_eq!(parse(text), Url::Local(Path::new(path).into()), "{text}");
        }
        let odd = OsStr::from_bytes(b"ftp:\xff");
        assert_eq!(Url::parse(odd).unwrap(), Url::Local(odd.into()));
        for (text, url, path) in [
            ("gsiftp://Dtn.example//data/a", "gsiftp://dtn.example/data/a", &b"/data/a"[..]),
            ("gsiftp://dtn.example", "gsiftp://dtn.example/", b""),
            ("ftp://u%40x:p%3a@h:2121/a%2Fb%ff", "ftp://u@x@h:2121/a/b\u{fffd}", b"a/b\xff"),
            ("ftp://[::1]:21/~/x", "ftp://[::1]/~/x", b"x"),
            ("ftps://192.0.2.1:990/~", "ftps://192.0.2.1/~/", b""),
            ("host:data/a b", "host:data/a b", b"data/a b"),
            ("me@host:/a", "me@host:/a", b"/a"),
            ("sshftp://me@host/a", "sshftp://me@host/a", b"a"),
            ("[2001:db8::1]:~/a", "[2001:db8::1]:a", b"a"),
            ("host:", "host:", b""),
            ("me@ftp:/a", "me@ftp:/a", b"/a"),
            ("ftp:a", "ftp:a", b"a"),
            ("c:a", "c:a", b"a"),
        ] {
            assert_eq!(far(text), (url.to_owned(), path.to_vec()), "{text}");
        }
    }

    #[test]
    fn invalid_places_are_named_without_the_password() {
        for text in [
            "http://host/a",
            "ftp:///a",
            "gsiftp://host:0/a",
            "ftp://host:x/",
            "ftp://::1/a",
            "file://host/a",
            "ftp:/host/x",
            "GSIFTP:/h/x",
            "https:/h",
            "C:/x",
            "host::module/x",
            "me@[::1]::x",
            "c:\\x",
        ] {
            let error = Url::parse(OsStr::new(text)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{text}\": ")) && error.ends_with(" was expected"), "{error}");
        }
        let said = |text: &str| Url::parse(OsStr::new(text)).unwrap_err().to_string();
        assert!(said("https://host/a").contains("\"phoebus run -- curl\""));
        assert!(said("sftp://host/a").contains("HOST:PATH") && said("scp://host/a").contains("HOST:PATH"));
        let error = Url::parse(OsStr::new("ftp://me:secret@host:0/a")).unwrap_err().to_string();
        assert!(error.starts_with("\"ftp://…@host:0/a\""), "{error}");
        assert!(Url::parse(OsStr::new("ftp://me%0d%0aDELE:x@host/")).is_err());
        let Url::Far(far) = parse("ftp://me:secret@host/") else { panic!("it is a URL") };
        assert!(!format!("{far:?}{far}").contains("secret") && far.password == Some(Password("secret".to_owned())));
    }
}
