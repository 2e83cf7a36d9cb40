//! `phoebus login`: proves a password to a gateway once, and keeps what later sessions need.

use crate::exit::{self, Exit};
use crate::options;
use crate::password;
use anyhow::{Context, Result};
use phoebus_accounts::password::scram_keys;
use phoebus_client::LoginAt;
use phoebus_config::environment::variable;
use phoebus_config::logins::{Login, Logins};
use phoebus_net::credentials::{CredentialFiles, Credentials};
use phoebus_proto::endpoint::{DEFAULT_PORT, Endpoint};
use phoebus_proto::session::Code;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Longest wait for the gateway, each time.
const LIMIT: Duration = Duration::from_secs(30);

/// Log in at a gateway that wants a password, and keep what later sessions need of it
#[derive(clap::Args)]
#[command(after_help = "\
The password is read from standard input, since others can see arguments; a terminal does not show it. It is not kept: the keys that
it makes at this gateway are, in ~/.config/phoebus/logins (mode 600). Sessions whose first gateway is this one use them.

Exit codes: 0 logged in; 2 wrong arguments; 6 the gateway does not accept the password, or cannot be trusted; 11 it cannot be
reached.

Examples:
  phoebus login pg1.example --user ada --ca ca.pem
  phoebus login pg1.example --user ada --raw < password.txt        # in a network that you trust
  phoebus login pg1.example --forget
")]
pub(crate) struct Args {
    /// The gateway: HOST or HOST:PORT
    #[arg(value_name = "GATEWAY")]
    gateway: String,
    /// The user's name at the gateway
    #[arg(long, short, value_name = "NAME", required_unless_present = "forget")]
    user: Option<String>,
    /// The authority that signed the gateway's certificate [default: PHOEBUS_CA]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Prove the password without TLS, now and later: whoever sees that can search for a weak password
    #[arg(long, conflicts_with = "ca")]
    raw: bool,
    /// Forget the login at this gateway
    #[arg(long, conflicts_with = "user")]
    forget: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let gateway = Endpoint::parse(&args.gateway, Some(DEFAULT_PORT)).map_err(Exit::usage)?;
    let place = Logins::place(variable).ok_or_else(|| Exit::usage("HOME is not set, so that no login can be kept"))?;
    let Some(user) = args.user else {
        return match Logins::forget(&place, &gateway).map_err(Exit::usage)? {
            true => Ok(ExitCode::SUCCESS),
            false => Err(Exit::usage(format!("there is no login at {gateway}"))),
        };
    };
    // A wrong file is told before anybody types a password.
    Logins::read(&place).map_err(Exit::usage)?;
    let settings = options::settings(&[])?;
    let authorities = args.ca.or(settings.authorities);
    let credentials = match (authorities, settings.certificate, settings.key) {
        _ if args.raw => None,
        (Some(authorities), Some(certificate), Some(key)) => {
            Some(Credentials::load(CredentialFiles { certificate, key, authorities }).map_err(Exit::usage)?)
        }
        (Some(authorities), ..) => Some(Credentials::trusting(&authorities).map_err(Exit::usage)?),
        (None, ..) => {
            return Err(Exit::usage(
                "the gateway has to prove itself: --ca FILE names the authority that signed its certificate (or --raw gives up on that)",
            ));
        }
    };
    let password = password::read_once()?;
    let at = LoginAt { gateway: &gateway, user: &user, credentials: credentials.as_ref(), limit: LIMIT };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let keys = runtime.block_on(at.log_in(move |salting| scram_keys(&password, salting)));
    let keys = keys.map_err(|error| {
        let denied = [Code::AuthFailed, Code::AuthRequired, Code::NotAllowed].contains(&error.code());
        Exit::with(if denied { exit::DENIED } else { exit::UNREACHABLE }, error)
    })?;
    Logins::keep(&place, Login { gateway, user, is_raw: args.raw, keys }).context("cannot keep the login")?;
    Ok(ExitCode::SUCCESS)
}
