//! Options of servers, common to all commands about files, and their variables.

use super::caller::Command;
use anyhow::Result;
use clap::ValueEnum;
use phoebus_gridftp::data::stack;
use phoebus_gsi::files::Places;
use phoebus_places::{Carried, Logins, Password, ServerOptions, SshOptions, Stores, Url};
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of servers, common to all commands about files.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct FarArgs {
    /// For ftp://, require TLS for commands and data, starting before the login (AUTH TLS); the same as ftpes://
    #[arg(long, alias = "ssl-reqd")]
    explicit_tls: bool,
    /// For ftps:// and ftpes://, trust the authorities in FILE (PEM) instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Whether both ends of data connections authenticate each other: "own" (DCAU A; by keys over SSH) or "none" (DCAU
    /// N)
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    data_auth: DataAuth,
    /// Protection of data: "clear", "safe" (integrity) or "private" (encryption): PROT C, S, P [default: clear for
    /// gsiftp://; private over SSH if the remote side supports it]
    #[arg(long, value_name = "HOW", value_enum)]
    data_protection: Option<DataProtection>,
    /// For HOST:PATH, the command that runs Phoebus on the remote host
    #[arg(long, alias = "far-phoebus", value_name = "COMMAND", default_value = "phoebus")]
    remote_command: String,
    #[command(flatten)]
    ssh: SshArgs,
    /// Driver stack of data connections in GCT's notation, lowest driver first: "object" (files as objects over UDP, with
    /// phoebus serve), "udt", "tcp:sndbuf=4MiB,rate:rate=1gbit", or "phoebus:path=HOST/PORT|HOST/PORT" for gateways. "auto"
    /// chooses between TCP and objects for each file
    #[arg(long, value_name = "DRIVER[:OPTIONS],...")]
    stack: Option<String>,
    /// When removing at a server that lists symbolic links as directories, treat all of them as directories. The
    /// targets of links are then removed, too
    #[arg(long)]
    trust_listings: bool,
    /// Use these gateways, or "none", instead of those of the environment [env: PHOEBUS_PATH, PHOEBUS_GW and the others
    /// of phoebus run]
    #[arg(long, alias = "via", value_name = "HOST/PORT,...")]
    gateways: Option<String>,
}

/// Options of `ssh`, as in scp.
#[derive(Debug, Clone, Default, clap::Args)]
struct SshArgs {
    /// For HOST:PATH and sshftp://, the port of the SSH server if the URL has none [default: from ssh_config, or 22]
    #[arg(short = 'P', value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// For HOST:PATH and sshftp://, a private key file for the login; can be repeated
    #[arg(short = 'i', value_name = "FILE")]
    identity: Vec<PathBuf>,
    /// For HOST:PATH and sshftp://, the jump hosts in order (ProxyJump)
    #[arg(short = 'J', value_name = "[USER@]HOST[:PORT],...")]
    jump: Option<String>,
}

/// Whether data connections are authenticated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum DataAuth {
    #[default]
    Own,
    None,
}

/// The protection of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DataProtection {
    Clear,
    Safe,
    Private,
}

impl FarArgs {
    /// An empty set of stores with the options of servers. `carried`: options of transfers.
    pub(crate) fn stores(&self, carried: Carried) -> Stores {
        Stores::new(self.options(), carried, Arc::new(Command))
    }

    /// Whether `--stack` may carry files as objects.
    pub(crate) fn has_objects(&self) -> bool {
        let layers = self.stack.as_deref().and_then(|text| stack::parse(text).ok()).unwrap_or_default();
        layers.iter().any(|layer| [stack::OBJECT, "auto"].contains(&&*layer.name))
    }

    /// Refuses SSH options if none of `urls` uses SSH: see [`ServerOptions::check_ssh`].
    ///
    /// # Errors
    /// Exit code 2.
    pub(crate) fn check_ssh<'a>(&self, urls: impl IntoIterator<Item = &'a Url>, asking: Option<&str>) -> Result<()> {
        Ok(self.options().check_ssh(urls, asking)?)
    }

    /// Options of servers, from the command line and the environment.
    fn options(&self) -> ServerOptions {
        let home = home();
        // Services often run without HOME.
        let state_home = home.clone().or_else(env::home_dir);
        let state = path_of("XDG_STATE_HOME").or_else(|| Some(state_home?.join(".local/state")));
        let netrc = env::var_os("NETRC").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join(".netrc")));
        let uid = rustix::process::getuid().as_raw();
        ServerOptions {
            explicit_tls: self.explicit_tls,
            ca: self.ca.clone(),
            system_ca: path_of("SSL_CERT_FILE"),
            data_auth: match self.data_auth {
                DataAuth::Own => phoebus_places::DataAuth::Own,
                DataAuth::None => phoebus_places::DataAuth::None,
            },
            data_protection: self.data_protection.map(|protection| match protection {
                DataProtection::Clear => phoebus_places::DataProtection::Clear,
                DataProtection::Safe => phoebus_places::DataProtection::Safe,
                DataProtection::Private => phoebus_places::DataProtection::Private,
            }),
            remote_command: self.remote_command.clone(),
            ssh: self.ssh.options(),
            stack: self.stack.clone(),
            trust_listings: self.trust_listings,
            gateways: self.gateways.clone(),
            logins: Logins {
                user: text_of("PHOEBUS_FTP_USER"),
                password: text_of("PHOEBUS_FTP_PASSWORD").map(Password),
                netrc,
            },
            grid: Some(Places::usual(|name| env::var_os(name), uid, home.as_deref())),
            state: state.map(|dir| dir.join("phoebus/uploads")),
            port_range: text_of("GLOBUS_TCP_PORT_RANGE").filter(|text| !text.trim().is_empty()),
        }
    }
}

impl SshArgs {
    fn options(&self) -> SshOptions {
        SshOptions {
            port: self.port,
            identity: self.identity.clone(),
            jump: self.jump.clone(),
            command: env::var_os("PHOEBUS_SSH").filter(|said| !said.is_empty()),
            remote_sshftp: text_of("GLOBUS_REMOTE_SSHFTP"),
        }
    }
}

/// A variable of the environment that is text, unless it is empty.
fn text_of(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// A variable of the environment that is a path, unless it is empty.
fn path_of(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The user's home directory, if there is one.
fn home() -> Option<PathBuf> {
    path_of("HOME").filter(|home| home != Path::new("/nonexistent"))
}
