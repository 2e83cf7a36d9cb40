//! Servers: what people say of them, and who logs in.
//!
//! A password comes from the URL, from `PHOEBUS_FTP_PASSWORD` or from `~/.netrc`, and goes nowhere but to the server.

use super::netrc::Netrc;
use super::ssh::{Ssh, SshArgs};
use super::stack::Stack;
use super::url::{Scheme, Url};
use super::way::Ways;
use super::{Again, Far};
use crate::exit::{self, Exit};
use anyhow::Result;
use clap::ValueEnum;
use phoebus_files::key::Key;
use phoebus_gridftp::client::{Grid, Inside, Login, NetStack, Options, Password, Remote, Security, Segment, trusting};
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

/// How many connections to one host SSH makes at a time: with 10 that have not logged in, sshd begins to refuse (MaxStartups).
const SSH_SESSIONS: usize = 8;

/// What is said of servers, the same for all commands about files.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct FarArgs {
    /// For ftp://, ask for TLS before the login (AUTH TLS), for commands and data, and go on with nothing less: the same as ftpes://
    #[arg(long, alias = "ssl-reqd")]
    explicit_tls: bool,
    /// For ftps:// and ftpes://, believe the authorities whose certificates are in FILE, and not those of the system
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// For gsiftp://, whether both ends of data connections prove who they are: "own" (DCAU A) or "none" (DCAU N); by SSH, whether
    /// they know each other's keys
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    data_auth: DataAuth,
    /// What protects data: "clear", "safe" (against changes) or "private" (PROT C, S, P) [default: clear for gsiftp://, private by
    /// SSH where the far side has it]
    #[arg(long, value_name = "HOW", value_enum)]
    data_protection: Option<DataProtection>,
    /// For HOST:PATH, what the far side's shell knows Phoebus as
    #[arg(long, alias = "far-phoebus", value_name = "COMMAND", default_value = "phoebus")]
    remote_command: String,
    #[command(flatten)]
    ssh: SshArgs,
    /// What carries data connections, as GCT writes it, the lowest first: "udt", "tcp:sndbuf=4MiB,rate:rate=1gbit", or
    /// "phoebus:path=HOST/PORT|HOST/PORT" for gateways
    #[arg(long, value_name = "DRIVER[:OPTIONS],...")]
    pub(super) stack: Option<String>,
    /// Where things are removed at a server that does not tell symbolic links from directories: take what it lists as a directory for one,
    /// though what a link leads to then goes, too
    #[arg(long)]
    trust_listings: bool,
    /// Go through these gateways, or through "none", whatever the environment says [env: PHOEBUS_PATH, PHOEBUS_GW and the others
    /// of phoebus run]
    #[arg(long, alias = "via", value_name = "HOST/PORT,...")]
    pub(super) gateways: Option<String>,
}

impl FarArgs {
    /// Refuses what is said of SSH where none of `urls` goes by it: somebody means something else. `asking` tells those who mean by -i
    /// that they be asked what there is instead.
    ///
    /// # Errors
    /// So it is (exit code 2).
    pub(crate) fn check_ssh<'a>(&self, urls: impl IntoIterator<Item = &'a Url>, asking: Option<&str>) -> Result<()> {
        let is_ssh = |url: &Url| matches!(url, Url::Far(far) if far.scheme.is_ssh());
        match self.ssh.given() {
            Some(option) if !urls.into_iter().any(is_ssh) => {
                let asking = asking.filter(|_| option == "-i").map(|asking| format!("; {asking}")).unwrap_or_default();
                Err(Exit::usage(format!(
                    "{option} is for HOST:PATH and sshftp://, as in scp, and no place here is one{asking}"
                )))
            }
            _ => Ok(()),
        }
    }
}

/// Whether the ends of data connections prove who they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum DataAuth {
    #[default]
    Own,
    None,
}

/// What protects data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DataProtection {
    Clear,
    Safe,
    Private,
}

/// How files are carried from and to servers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Carried {
    /// Over how many connections, if extended blocks are to be used.
    pub(crate) streams: Option<u32>,
    /// What chooses over how many they go otherwise.
    pub(crate) choose: Option<fn(&Segment) -> u32>,
    /// Whether all data nodes of a server move each file.
    pub(crate) striped: bool,
    /// Whether files are written under their own names.
    pub(crate) in_place: bool,
    /// The name of the directory beside each file in which its draft is, if it is in one.
    pub(crate) partial_dir: Option<Key>,
    /// How many control connections are used at a time for reading, and for writing.
    pub(crate) sessions: Option<usize>,
    /// How long nothing may move.
    pub(crate) stall: Option<Duration>,
}

/// Connects to the server of `far` and logs in.
///
/// # Errors
/// With the exit code that says why not.
pub(super) async fn connect(
    far: &Far,
    args: &FarArgs,
    carried: &Carried,
    ways: &mut Ways,
    again: &Again,
) -> Result<Remote> {
    let whole = Far { path: Vec::new(), home: false, ..far.clone() }.to_string();
    let mut options = Options::new(whole.trim_end_matches('/'), far.server.clone());
    options.security = security(far, args)?;
    let by_ssh = far.scheme.is_ssh();
    (options.stack, options.inside) = match args.stack.as_deref().map(Stack::parse).transpose()? {
        Some(Stack::Net(stack)) => (Some(fitting(stack, &options.security)?), None),
        Some(Stack::Inside) if by_ssh => (None, Some(Inside::always())),
        Some(Stack::Inside) => {
            return Err(Exit::usage(format!("{far}: --stack ssh is for HOST:PATH and sshftp://")));
        }
        _ if by_ssh => (of_ssh(far, args)?, Some(Inside::if_needed())),
        _ => (None, None),
    };
    let note = options.stack.as_ref().map(|stack| format!("data by {}", stack.text())).unwrap_or_default();
    options.way = match by_ssh {
        true => {
            ways.are_not_asked_for(&options.name)?;
            Some(Arc::new(Ssh::to(far, &args.ssh, &args.remote_command, &options.name)?))
        }
        false => ways.to(&far.server, &options.name, &note)?,
    };
    if let (Some(_), Some(stack), false) = (&options.way, &options.stack, by_ssh) {
        let text = stack.text();
        return Err(Exit::usage(format!(
            "--stack {text}: data goes through gateways, which carry it; --gateways none goes directly"
        )));
    }
    options.login = login(far)?;
    options.data_elsewhere = matches!(&options.security, Security::Grid(Grid { data_auth: true, .. }));
    (options.streams, options.choose, options.in_place) = (carried.streams, carried.choose, carried.in_place);
    let most = if by_ssh { SSH_SESSIONS } else { usize::MAX };
    options.partial_dir = carried.partial_dir.clone();
    options.striped = carried.striped;
    options.trust_listings = args.trust_listings;
    options.sessions = carried.sessions.unwrap_or(options.sessions).min(most);
    let state = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    options.state = state.or_else(|| Some(home()?.join(".local/state"))).map(|dir| dir.join("phoebus/uploads"));
    options.ports = ports()?;
    if let Some(stall) = carried.stall {
        (options.stall, options.patience) = (stall, options.patience.min(stall));
    }
    let (name, stack) = (options.name.clone(), args.stack.as_deref());
    let mut attempt = 1;
    let remote = loop {
        match Remote::connect(options.clone()).await {
            Ok(remote) => break remote,
            // ssh has tried all addresses of the host: whoever runs scp is told at once, too.
            // The same of a host on the way (ProxyJump), which has tried those of the next one.
            Err(error)
                if by_ssh
                    && ["ssh: connect to host", "stdio forwarding failed"]
                        .iter()
                        .any(|words| error.to_string().contains(words)) =>
            {
                return Err(exit::of_files(error));
            }
            Err(error) => match again.wait(attempt, &error) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(exit::of_files(error)),
            },
        }
        attempt += 1;
    };
    if by_ssh {
        let data = match stack {
            _ if let Some(why) = remote.why_inside() => match why {
                "" => "data inside ssh".to_owned(),
                why => format!("data inside ssh, since data connections do not get through: {why}"),
            },
            Some(stack) => format!("data by {stack}"),
            None if remote.is_under_tls() => "data under TLS".to_owned(),
            None => "data in clear".to_owned(),
        };
        ways.beside(&name, &format!("commands by ssh, {data}"));
    }
    Ok(remote)
}

/// What carries data of a server behind SSH: TLS, by keys that the two ends tell each other there. Phoebus has it at the far side, and
/// must; what else is there may not, and then data goes in clear unless it was asked for.
fn of_ssh(far: &Far, args: &FarArgs) -> Result<Option<NetStack>> {
    match (args.data_auth, args.data_protection) {
        (DataAuth::None, Some(DataProtection::Safe | DataProtection::Private)) => {
            Err(Exit::usage("--data-protection: data can be protected only with --data-auth own"))
        }
        (_, Some(DataProtection::Safe)) => {
            Err(Exit::usage(format!("{far}: by SSH, --data-protection is clear or private")))
        }
        (DataAuth::None, _) | (_, Some(DataProtection::Clear)) => Ok(None),
        (DataAuth::Own, asked) => {
            let optional = far.scheme == Scheme::Sshftp && asked.is_none();
            Ok(Some(if optional { NetStack::tls().optional() } else { NetStack::tls() }))
        }
    }
}

/// `stack`, if what it says of protection is what there will be.
fn fitting(stack: NetStack, security: &Security) -> Result<NetStack> {
    let (named, wants) = match (stack.protection(), security) {
        (Some("tls"), Security::Tls { .. }) => return Ok(stack.certified()),
        (None, _)
        | (Some("gsi"), Security::Grid(Grid { data_auth: true, .. }))
        | (Some("tls"), Security::None | Security::Grid(Grid { data_auth: false, .. })) => return Ok(stack),
        (Some("gsi"), _) => ("gsi", "gsiftp:// with --data-auth own"),
        (Some(_), _) => ("tls", "data that nothing else protects (--data-auth none)"),
    };
    Err(Exit::usage(format!("--stack {}: driver {named} is for {wants}", stack.text())))
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
    let grid = far.scheme == Scheme::Gsiftp;
    let explicit = far.scheme == Scheme::Ftpes || (far.scheme == Scheme::Ftp && args.explicit_tls);
    let tls = explicit || far.scheme == Scheme::Ftps;
    let by_ssh = far.scheme.is_ssh();
    if !grid && !by_ssh && (args.data_auth, args.data_protection) != Default::default() {
        return Err(Exit::usage(format!("{far}: --data-auth and --data-protection are for gsiftp://, and for SSH")));
    }
    if !by_ssh && args.ssh.given().is_some() {
        return Err(Exit::usage(format!("{far}: -P, -i and -J are for HOST:PATH and sshftp://")));
    }
    if tls {
        let config = trusting(args.ca.as_deref()).map_err(Exit::usage)?;
        return Ok(Security::Tls { config, implicit: !explicit && far.server.port == IMPLICIT });
    }
    if !grid {
        return Ok(Security::None);
    }
    let protection = match args.data_protection {
        None | Some(DataProtection::Clear) => Protection::Clear,
        Some(DataProtection::Safe) => Protection::Safe,
        Some(DataProtection::Private) => Protection::Private,
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
    if far.scheme.is_ssh() {
        // The far side's server knows who he is, whatever it is told.
        let user = far.user.clone().or_else(|| Some("ssh".to_owned()));
        return Ok(Login { user, password: password("phoebus@".to_owned()) });
    }
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
