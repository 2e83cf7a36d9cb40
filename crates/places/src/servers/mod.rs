//! Connects to servers, and logs in.
//!
//! A password comes from the URL, from [`Logins`](crate::Logins) or from `~/.netrc`, and goes only to the server.

mod again;
mod caller;
mod gateways;
mod netrc;
mod paths;
mod ssh;
mod stack;

pub(crate) use again::RetryPolicy;
pub use caller::{AgentHandle, Caller, Variable};
pub(crate) use gateways::GatewayPath;
pub use paths::Paths;

use crate::error::{Error, Result};
use crate::options::{Carried, DataAuth, DataProtection, ServerOptions};
use crate::url::{Far, Scheme};
use netrc::Netrc;
use phoebus_gridftp::client::{
    AutoObjects, Grid, Inside, Login, NetStack, Options, Password, Remote, Security, trusting,
};
use phoebus_gridftp::data::{KnownPaths, Protection};
use phoebus_gsi::context::Endpoint as Identity;
use phoebus_gsi::credential::provider;
use phoebus_gsi::files::{self, Places};
use phoebus_gsi::trust::{MissingPolicy, directory};
use phoebus_proto::endpoint::Host;
use ssh::Ssh;
use stack::Stack;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Port on which TLS begins with the connection (`ftps`, RFC 1700). On other ports AUTH TLS is used.
const IMPLICIT: u16 = 990;

/// SSH logins to a host at a time: with 10 unauthenticated ones, sshd begins to refuse (MaxStartups).
const SSH_SESSIONS: usize = 8;

/// Connects to the server of `far` and logs in.
///
/// # Errors
/// It is unreachable, the login is refused, or an option is wrong.
pub(crate) async fn connect(
    far: &Far,
    said: &ServerOptions,
    carried: &Carried,
    ways: &mut GatewayPath,
    again: &RetryPolicy,
) -> Result<Remote> {
    let whole = Far { path: Vec::new(), home: false, ..far.clone() }.to_string();
    let mut options = Options::new(whole.trim_end_matches('/'), far.server.clone());
    options.security = security(far, said)?;
    let by_ssh = far.scheme.is_ssh();
    (options.stack, options.inside) = match said.stack.as_deref().map(Stack::parse).transpose()? {
        Some(Stack::Net(stack)) => (Some(fitting(stack, &options.security)?), None),
        Some(Stack::Auto(objects)) => {
            options.auto = Some(auto(objects, carried));
            (if by_ssh { of_ssh(far, said)? } else { None }, by_ssh.then(Inside::if_needed))
        }
        Some(Stack::Inside) if by_ssh => (None, Some(Inside::always())),
        Some(Stack::Inside) => {
            return Err(Error::request(format!("{far}: --stack ssh is for HOST:PATH and sshftp://")));
        }
        _ if by_ssh => (of_ssh(far, said)?, Some(Inside::if_needed())),
        _ => (None, None),
    };
    for_objects(&mut options, carried)?;
    let note = options.stack.as_ref().map(data_by).unwrap_or_default();
    options.way = match by_ssh {
        true => {
            ways.are_not_asked_for(&options.name)?;
            Some(Arc::new(Ssh::to(far, &said.ssh, &said.remote_command, &options.name)?))
        }
        false => ways.to(&far.server, &options.name, &note)?,
    };
    if let (Some(_), Some(stack), false) = (&options.way, &options.stack, by_ssh)
        && !stack.has_objects()
    {
        let text = stack.text();
        return Err(Error::request(format!(
            "--stack {text}: data goes through gateways, which carry it; --gateways none goes directly"
        )));
    }
    if options.way.is_some() && !by_ssh && options.stack.as_ref().is_some_and(NetStack::has_clear_objects) {
        return Err(Error::request(
            "--stack object:seal=none: nothing goes through gateways in the clear; leave seal out, or go directly (--gateways none)",
        ));
    }
    if let (Some(_), Some(auto), false) = (&options.way, &mut options.auto, by_ssh) {
        auto.obstacle = Some("data goes through gateways".into());
    }
    options.login = login(far, said)?;
    options.data_elsewhere = matches!(&options.security, Security::Grid(Grid { data_auth: true, .. }));
    (options.streams, options.choose, options.in_place) = (carried.streams, carried.choose, carried.in_place);
    let most = if by_ssh { SSH_SESSIONS } else { usize::MAX };
    options.partial_dir = carried.partial_dir.clone();
    options.striped = carried.striped;
    options.trust_listings = said.trust_listings;
    options.sessions = carried.sessions.unwrap_or(options.sessions).min(most);
    options.state = said.state.clone();
    options.known_paths =
        said.state.as_ref().map(|dir| KnownPaths::in_file(dir.with_file_name("paths"))).unwrap_or_default();
    options.ports = said.port_range.as_deref().map(ports).transpose()?;
    if let Some(stall_timeout) = carried.stall_timeout {
        (options.stall_timeout, options.reply_timeout) = (stall_timeout, options.reply_timeout.min(stall_timeout));
    }
    // What `auto` chooses stands in the report by itself.
    let stack = said.stack.as_deref().filter(|_| options.auto.is_none());
    let name = options.name.clone();
    let mut attempt = 1;
    let remote = loop {
        match Remote::connect(options.clone()).await {
            Ok(remote) => break remote,
            // ssh has tried all addresses of the host, as for scp.
            // The same holds for a jump host, which has tried those of the next one.
            Err(error)
                if by_ssh
                    && ["ssh: connect to host", "stdio forwarding failed"]
                        .iter()
                        .any(|words| error.to_string().contains(words)) =>
            {
                return Err(error.into());
            }
            Err(error) => match again.wait(attempt, &error) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(error.into()),
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

/// The data stack of a server behind SSH: TLS between pinned keys. Phoebus at the far side must have it; other servers
/// may not, and then data goes in clear unless TLS was requested.
fn of_ssh(far: &Far, said: &ServerOptions) -> Result<Option<NetStack>> {
    match (said.data_auth, said.data_protection) {
        (DataAuth::None, Some(DataProtection::Safe | DataProtection::Private)) => {
            Err(Error::request("--data-protection: data can be protected only with --data-auth own"))
        }
        (_, Some(DataProtection::Safe)) => {
            Err(Error::request(format!("{far}: by SSH, --data-protection is clear or private")))
        }
        (DataAuth::None, _) | (_, Some(DataProtection::Clear)) => Ok(None),
        (DataAuth::Own, asked) => {
            let optional = far.scheme == Scheme::Sshftp && asked.is_none();
            Ok(Some(if optional { NetStack::tls().optional() } else { NetStack::tls() }))
        }
    }
}

/// What carries data, for the report.
fn data_by(stack: &NetStack) -> String {
    let streams = if stack.has_objects() { ", streams and many short files by tcp,tls" } else { "" };
    format!("data by {}{streams}", stack.text())
}

/// Objects for the files for which this end chooses them.
fn auto(objects: NetStack, carried: &Carried) -> AutoObjects {
    let obstacle = match carried {
        _ if carried.streams.is_some() => Some("--streams asks for connections".into()),
        _ if carried.striped => Some("data nodes take no objects (--stripe)".into()),
        _ => None,
    };
    AutoObjects { stack: objects, choose: crate::auto::carrier, obstacle }
}

/// Adapts the options to a stack that carries files as objects, if it does.
fn for_objects(options: &mut Options, carried: &Carried) -> Result<()> {
    let Some(stack) = options.stack.as_ref().filter(|stack| stack.has_objects()) else { return Ok(()) };
    let text = stack.text();
    if carried.streams.is_some() {
        return Err(Error::request(format!(
            "--stack {text}: objects take no --streams, since one stream of packets suffices"
        )));
    }
    if carried.striped {
        return Err(Error::request(format!("--stack {text}: objects do not go to data nodes (--stripe)")));
    }
    if let Security::Grid(grid) = &mut options.security {
        // The keys that the two ends tell each other over the authenticated control connection protect data.
        grid.data_auth = false;
    }
    Ok(())
}

/// Checks that the protection in `stack` matches the options.
fn fitting(stack: NetStack, security: &Security) -> Result<NetStack> {
    let (named, wants) = match (stack.protection(), security) {
        (Some("tls"), Security::Tls { .. }) => return Ok(stack.certified()),
        (None, _)
        | (Some("gsi"), Security::Grid(Grid { data_auth: true, .. }))
        | (Some("tls"), Security::None | Security::Grid(Grid { data_auth: false, .. })) => return Ok(stack),
        (Some("gsi"), _) => ("gsi", "gsiftp:// with --data-auth own"),
        (Some(_), _) => ("tls", "data that nothing else protects (--data-auth none)"),
    };
    Err(Error::request(format!("--stack {}: driver {named} is for {wants}", stack.text())))
}

/// The ports that this end may listen on, as for Grid tools.
fn ports(text: &str) -> Result<RangeInclusive<u16>> {
    let mut ends = text.split([',', ' ']).filter(|part| !part.is_empty()).map(|part| part.parse::<u16>().ok());
    match (ends.next().flatten(), ends.next().flatten(), ends.next()) {
        (Some(first), Some(last), None) if 0 < first && first <= last => Ok(first..=last),
        _ => Err(Error::request(format!(
            "GLOBUS_TCP_PORT_RANGE is \"{text}\": two ports such as 50000,51000 were expected"
        ))),
    }
}

fn security(far: &Far, said: &ServerOptions) -> Result<Security> {
    let grid = far.scheme == Scheme::Gsiftp;
    let explicit = far.scheme == Scheme::Ftpes || (far.scheme == Scheme::Ftp && said.explicit_tls);
    let tls = explicit || far.scheme == Scheme::Ftps;
    let by_ssh = far.scheme.is_ssh();
    if !grid && !by_ssh && (said.data_auth, said.data_protection) != Default::default() {
        return Err(Error::request(format!("{far}: --data-auth and --data-protection are for gsiftp://, and for SSH")));
    }
    if !by_ssh && said.ssh.given().is_some() {
        return Err(Error::request(format!("{far}: -P, -i and -J are for HOST:PATH and sshftp://")));
    }
    if tls {
        let config = trusting(said.ca.as_deref(), said.system_ca.as_deref()).map_err(Error::request)?;
        return Ok(Security::Tls { config, implicit: !explicit && far.server.port == IMPLICIT });
    }
    if !grid {
        return Ok(Security::None);
    }
    let protection = match said.data_protection {
        None | Some(DataProtection::Clear) => Protection::Clear,
        Some(DataProtection::Safe) => Protection::Safe,
        Some(DataProtection::Private) => Protection::Private,
    };
    let data_auth = said.data_auth == DataAuth::Own;
    if !data_auth && protection != Protection::Clear {
        return Err(Error::request("--data-protection: data can be protected only with --data-auth own"));
    }
    Ok(Security::Grid(Grid { identity: identity(said.grid.as_ref())?, data_auth, protection }))
}

/// The user's credential and trusted authorities, from the files of Grid tools.
fn identity(places: Option<&Places>) -> Result<Identity> {
    let denied = |error: &dyn std::fmt::Display| Error::Denied(error.to_string());
    let places = places.ok_or_else(|| denied(&"gsiftp:// wants a certificate, and there is none"))?;
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

/// The login for `far`.
fn login(far: &Far, said: &ServerOptions) -> Result<Login> {
    let logins = &said.logins;
    if far.scheme.is_ssh() {
        // The far side's server knows the user already.
        let user = far.user.clone().or_else(|| Some("ssh".to_owned()));
        return Ok(Login { user, password: Some(Password("phoebus@".to_owned())) });
    }
    let user = far.user.clone().or_else(|| logins.user.clone());
    if let Some(given) = &far.password {
        return Ok(Login { user, password: Some(given.clone()) });
    }
    if let (Some(_), Some(found)) = (&user, &logins.password) {
        return Ok(Login { user, password: Some(found.clone()) });
    }
    // A certificate identifies the user.
    if far.scheme == Scheme::Gsiftp {
        return Ok(Login { user, password: None });
    }
    let netrc = logins.netrc.as_deref().map_or_else(|| Ok(Netrc::default()), Netrc::read).map_err(Error::request)?;
    let host = match &far.server.host {
        Host::Addr(addr) => addr.to_string(),
        Host::Name(name) => name.clone(),
    };
    Ok(match netrc.find(&host, user.as_deref()) {
        Some(entry) => {
            let found = entry.password.clone().map(Password);
            Login { user: user.or_else(|| entry.login.clone()), password: found }
        }
        None => Login { user, password: None },
    })
}
