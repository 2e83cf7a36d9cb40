//! Servers: what people say of them, and who logs in.
//!
//! A password comes from the URL, from `PHOEBUS_FTP_PASSWORD` or from `~/.netrc`, and goes nowhere but to the server.

use super::Far;
use super::netrc::Netrc;
use super::url::Scheme;
use super::way::Ways;
use crate::exit::{self, Exit};
use anyhow::Result;
use clap::ValueEnum;
use phoebus_gridftp::client::{Grid, Login, Options, Password, Remote, Security, Segment, trusting};
use phoebus_gridftp::data::Protection;
use phoebus_gsi::context::Endpoint as Identity;
use phoebus_gsi::credential::provider;
use phoebus_gsi::files::{self, Places};
use phoebus_gsi::trust::{MissingPolicy, directory};
use phoebus_proto::endpoint::Host;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Where TLS begins with the connection (`ftps` of RFC 1700); on other ports it is asked for.
const IMPLICIT: u16 = 990;

/// What is said of servers, the same for all commands about files.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct FarArgs {
    /// For ftps://, believe the authorities whose certificates are in FILE, and not those of the system
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// For gsiftp://, whether both ends of data connections prove who they are: "own" (DCAU A) or "none" (DCAU N)
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    data_auth: DataAuth,
    /// For gsiftp://, what protects data: "clear", "safe" (against changes) or "private" (PROT C, S, P)
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    data_protection: DataProtection,
    /// Go through these gateways, or through "none", whatever the environment says [env: PHOEBUS_PATH, PHOEBUS_GW and the others
    /// of phoebus run]
    #[arg(long, value_name = "HOST/PORT,...")]
    pub(super) via: Option<String>,
}

/// Whether the ends of data connections prove who they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum DataAuth {
    #[default]
    Own,
    None,
}

/// What protects data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum DataProtection {
    #[default]
    Clear,
    Safe,
    Private,
}

/// How files are carried from and to servers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Carried {
    /// Over how many connections, if extended blocks are to be used.
    pub(crate) streams: Option<u32>,
    /// What chooses over how many they go otherwise.
    pub(crate) choose: Option<fn(&Segment) -> u32>,
    /// Whether files are written under their own names.
    pub(crate) in_place: bool,
    /// How many control connections are used at a time for reading, and for writing.
    pub(crate) sessions: Option<usize>,
    /// How long nothing may move.
    pub(crate) stall: Option<Duration>,
}

/// Connects to the server of `far` and logs in.
///
/// # Errors
/// With the exit code that says why not.
pub(super) async fn connect(far: &Far, args: &FarArgs, carried: Carried, ways: &mut Ways) -> Result<Remote> {
    let whole = Far { path: Vec::new(), home: false, ..far.clone() }.to_string();
    let mut options = Options::new(whole.trim_end_matches('/'), far.server.clone());
    options.way = ways.to(&far.server, &options.name)?;
    options.login = login(far)?;
    options.security = security(far, args)?;
    options.data_elsewhere = matches!(&options.security, Security::Grid(Grid { data_auth: true, .. }));
    (options.streams, options.choose, options.in_place) = (carried.streams, carried.choose, carried.in_place);
    options.sessions = carried.sessions.unwrap_or(options.sessions);
    let state = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    options.state = state.or_else(|| Some(home()?.join(".local/state"))).map(|dir| dir.join("phoebus/uploads"));
    options.ports = ports()?;
    if let Some(stall) = carried.stall {
        (options.stall, options.patience) = (stall, options.patience.min(stall));
    }
    Remote::connect(options).await.map_err(exit::of_files)
}

/// On which ports this end may listen, as Grid tools are told it.
fn ports() -> Result<Option<RangeInclusive<u16>>> {
    let Some(text) = std::env::var("GLOBUS_TCP_PORT_RANGE").ok().filter(|text| !text.trim().is_empty()) else {
        return Ok(None);
    };
    let mut ends = text.split([',', ' ']).filter(|part| !part.is_empty()).map(|part| part.parse::<u16>().ok());
    match (ends.next().flatten(), ends.next().flatten(), ends.next()) {
        (Some(first), Some(last), None) if 0 < first && first <= last => Ok(Some(first..=last)),
        _ => Err(Exit::usage(format!(
            "GLOBUS_TCP_PORT_RANGE is \"{text}\": two ports such as 50000,51000 were expected"
        ))),
    }
}

fn security(far: &Far, args: &FarArgs) -> Result<Security> {
    let (grid, tls) = (far.scheme == Scheme::Gsiftp, far.scheme == Scheme::Ftps);
    if !grid && (args.data_auth, args.data_protection) != Default::default() {
        return Err(Exit::usage(format!("{far}: --data-auth and --data-protection are for gsiftp://")));
    }
    if tls {
        let config = trusting(args.ca.as_deref()).map_err(Exit::usage)?;
        return Ok(Security::Tls { config, implicit: far.server.port == IMPLICIT });
    }
    if !grid {
        return Ok(Security::None);
    }
    let protection = match args.data_protection {
        DataProtection::Clear => Protection::Clear,
        DataProtection::Safe => Protection::Safe,
        DataProtection::Private => Protection::Private,
    };
    let data_auth = args.data_auth == DataAuth::Own;
    if !data_auth && protection != Protection::Clear {
        return Err(Exit::usage("--data-protection: data can be protected only with --data-auth own"));
    }
    Ok(Security::Grid(Grid { identity: identity()?, data_auth, protection }))
}

/// Who the user is by the files of Grid tools, and whom he believes.
fn identity() -> Result<Identity> {
    let home = home();
    let uid = rustix::process::getuid().as_raw();
    let places = Places::usual(|name| std::env::var_os(name), uid, home.as_deref());
    let denied = |error: &dyn std::fmt::Display| Exit::with(exit::DENIED, error);
    let provider = provider();
    let credential = if places.proxy.exists() {
        files::credential(&places.proxy, &provider)
    } else if places.user.0.exists() {
        files::credential_of_two(&places.user.0, &places.user.1, &provider)
    } else {
        let (proxy, user) = (places.proxy.display(), places.user.0.display());
        return Err(denied(&format!(
            "gsiftp:// wants a certificate, and neither a proxy ({proxy}; grid-proxy-init makes one) nor {user} is there"
        )));
    };
    let credential = credential.map_err(|error| denied(&error))?;
    let authorities = places.authorities.iter().find(|dir| dir.is_dir()).ok_or_else(|| {
        let looked: Vec<String> = places.authorities.iter().map(|dir| dir.display().to_string()).collect();
        denied(&format!("gsiftp:// wants authorities to believe, and {} are not there", looked.join(" and ")))
    })?;
    let loaded = directory::load(authorities, MissingPolicy::Refuse).and_then(directory::Loaded::strict);
    let trust = Arc::new(loaded.map_err(|error| denied(&error))?);
    Ok(Identity { credential, trust, provider })
}

/// Who logs in to `far`.
fn login(far: &Far) -> Result<Login> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let password = |text: String| Some(Password(text));
    let user = far.user.clone().or_else(|| set("PHOEBUS_FTP_USER"));
    if let Some(given) = &far.password {
        return Ok(Login { user, password: password(given.0.clone()) });
    }
    if let (Some(_), Some(found)) = (&user, set("PHOEBUS_FTP_PASSWORD")) {
        return Ok(Login { user, password: password(found) });
    }
    // A certificate says who logs in.
    if far.scheme == Scheme::Gsiftp {
        return Ok(Login { user, password: None });
    }
    let file = std::env::var_os("NETRC").map(PathBuf::from).or_else(|| Some(home()?.join(".netrc")));
    let netrc = file.map_or_else(|| Ok(Netrc::default()), |file| Netrc::read(&file)).map_err(Exit::usage)?;
    let host = match &far.server.host {
        Host::Addr(addr) => addr.to_string(),
        Host::Name(name) => name.clone(),
    };
    Ok(match netrc.find(&host, user.as_deref()) {
        Some(entry) => {
            let found = entry.password.clone().and_then(password);
            Login { user: user.or_else(|| entry.login.clone()), password: found }
        }
        None => Login { user, password: None },
    })
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME")
        .filter(|home| !home.is_empty())
        .map(PathBuf::from)
        .filter(|home: &PathBuf| home != Path::new("/nonexistent"))
}
