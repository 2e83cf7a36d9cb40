//! Options of connections to servers, of logins, and of transfers.

use super::error::{Error, Result};
use super::url::Url;
use phoebus_files::key::Key;
use phoebus_gridftp::client::{Password, Segment};
use phoebus_gsi::files::Places;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Options of connections to servers.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Whether `ftp://` requires TLS before the login (AUTH TLS).
    pub explicit_tls: bool,
    /// A PEM file with the trusted authorities for `ftps://` and `ftpes://`. Servers whose own certificate is in it are
    /// trusted, too.
    pub ca: Option<PathBuf>,
    /// A PEM file with the trusted authorities where [`Self::ca`] is not set (`SSL_CERT_FILE`). If neither is set, the
    /// system's authorities are trusted.
    pub system_ca: Option<PathBuf>,
    /// Whether both ends of data connections authenticate.
    pub data_auth: DataAuth,
    /// What protects data. By default nothing does under GSI, and TLS does by SSH where the far side has it.
    pub data_protection: Option<DataProtection>,
    /// For `HOST:PATH`, the command that the far side's shell runs for Phoebus.
    pub remote_command: String,
    /// How `ssh` is run, for `HOST:PATH` and `sshftp://`.
    pub ssh: SshOptions,
    /// The driver stack of data connections, in GCT's notation.
    pub stack: Option<String>,
    /// Whether an entry that a server lists as a directory counts as one, though it may be a symbolic link.
    pub trust_listings: bool,
    /// The gateways to use, `HOST/PORT` separated by commas, or `none`. By default those of the settings
    /// ([`Caller::settings`](crate::Caller::settings)).
    pub gateways: Option<String>,
    /// Logins for URLs without a user.
    pub logins: Logins,
    /// Credentials and trusted authorities of Grid tools, for `gsiftp://`.
    pub grid: Option<Places>,
    /// The directory with notes of interrupted uploads, for servers that cannot tell of them. Without one no notes are
    /// kept.
    pub state: Option<PathBuf>,
    /// The ports that this end may listen on, in the notation of `GLOBUS_TCP_PORT_RANGE`. By default any.
    pub port_range: Option<String>,
}

impl Default for ServerOptions {
    /// Defaults everywhere, without credentials.
    fn default() -> Self {
        Self {
            explicit_tls: false,
            ca: None,
            system_ca: None,
            data_auth: DataAuth::default(),
            data_protection: None,
            remote_command: "phoebus".to_owned(),
            ssh: SshOptions::default(),
            stack: None,
            trust_listings: false,
            gateways: None,
            logins: Logins::default(),
            grid: None,
            state: None,
            port_range: None,
        }
    }
}

impl ServerOptions {
    /// Refuses SSH options if none of `urls` uses SSH, because something else was meant. `asking` is the advice for
    /// users of `-i` who want to be asked before files are replaced or removed.
    ///
    /// # Errors
    /// An SSH option is set, and no URL uses SSH ([`Error::Request`]).
    pub fn check_ssh<'a>(&self, urls: impl IntoIterator<Item = &'a Url>, asking: Option<&str>) -> Result<()> {
        let is_ssh = |url: &Url| matches!(url, Url::Far(far) if far.scheme.is_ssh());
        match self.ssh.given() {
            Some(option) if !urls.into_iter().any(is_ssh) => {
                let asking = asking.filter(|_| option == "-i").map(|asking| format!("; {asking}")).unwrap_or_default();
                Err(Error::request(format!(
                    "{option} is for HOST:PATH and sshftp://, as in scp, and no place here is one{asking}"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Options of `ssh`.
#[derive(Debug, Clone, Default)]
pub struct SshOptions {
    /// The port of the SSH server where the URL has none (`-P`). By default that of ssh_config, or 22.
    pub port: Option<u16>,
    /// Files with private keys to log in with (`-i`).
    pub identity: Vec<PathBuf>,
    /// Hosts to go through, `[USER@]HOST[:PORT]` separated by commas (`-J`).
    pub jump: Option<String>,
    /// The command that is run for `ssh` (`PHOEBUS_SSH`): a program and its first arguments, quoted as for a shell.
    pub command: Option<OsString>,
    /// The command that the far side runs for `sshftp://` (`GLOBUS_REMOTE_SSHFTP`).
    pub remote_sshftp: Option<String>,
}

impl SshOptions {
    /// The name of an option that is set, if any is.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let options = [(!self.identity.is_empty(), "-i"), (self.port.is_some(), "-P"), (self.jump.is_some(), "-J")];
        options.into_iter().find_map(|(given, option)| given.then_some(option))
    }
}

/// Logins for URLs without a user.
#[derive(Debug, Clone, Default)]
pub struct Logins {
    /// The user (`PHOEBUS_FTP_USER`).
    pub user: Option<String>,
    /// The password of the user that [`Self::user`] or the URL names (`PHOEBUS_FTP_PASSWORD`).
    pub password: Option<Password>,
    /// The path of the `.netrc`, which may be missing.
    pub netrc: Option<PathBuf>,
}

/// Whether both ends of data connections authenticate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DataAuth {
    /// Both do (DCAU A). By SSH, each end knows the other's key.
    #[default]
    Own,
    /// Neither does (DCAU N).
    None,
}

/// What protects data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataProtection {
    /// Nothing (PROT C).
    Clear,
    /// Integrity is protected (PROT S).
    Safe,
    /// Integrity and confidentiality are protected (PROT P).
    Private,
}

/// Options of transfers with servers.
#[derive(Debug, Clone, Default)]
pub struct Carried {
    /// The number of connections for each file, if extended blocks are to be used.
    pub streams: Option<u32>,
    /// Chooses the number of connections where [`Self::streams`] is not set.
    pub choose: Option<fn(&Segment) -> u32>,
    /// Whether all data nodes of a striped server move each file.
    pub striped: bool,
    /// Whether files are written under their own names, without drafts.
    pub in_place: bool,
    /// The name of the directory beside each file that holds its draft, if one does.
    pub partial_dir: Option<Key>,
    /// The most control connections for reading, and as many for writing.
    pub sessions: Option<usize>,
    /// How long a transfer may make no progress before it fails.
    pub stall_timeout: Option<Duration>,
}
