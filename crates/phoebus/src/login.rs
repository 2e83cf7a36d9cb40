//! `phoebus login`: proves a password to a gateway once, and keeps what later sessions need.

use crate::exit::{self, Exit};
use crate::options;
use crate::password;
use anyhow::{Context, Result};
use phoebus_accounts::password::scram_keys;
use phoebus_client::LoginAt;
use phoebus_config::environment::variable;
use phoebus_config::logins::{Login, Logins};
use phoebus_config::users::is_name;
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

Exit codes: 0 done; 1 the login cannot be kept; 2 wrong arguments; 3 the gateway cannot be reached; 6 it does not accept the password,
or cannot be trusted.

Examples:
  phoebus login pg1.example --user ada --ca ca.pem
  phoebus login pg1.example --user ada --raw < password.txt        # in a network that you trust
  phoebus login pg1.example --forget
  phoebus login --list
")]
pub(crate) struct Args {
    /// The gateway, as programs name it: HOST or HOST:PORT
    #[arg(value_name = "GATEWAY", required_unless_present = "list")]
    gateway: Option<String>,
    /// The user's name at the gateway. There is one login for each gateway: another one takes its place
    #[arg(long, short, value_name = "NAME", required_unless_present_any = ["forget", "list"])]
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
    /// Show at which gateways there are logins, of whom, and whether for connections with TLS or without (raw)
    #[arg(long, conflicts_with_all = ["gateway", "user", "forget", "raw", "ca"])]
    list: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let place = Logins::place(variable).ok_or_else(|| Exit::usage("HOME is not set, so that no login can be kept"))?;
    if args.list {
        let logins = Logins::read(&place).map_err(Exit::usage)?;
        let line = |login: &Login| {
            format!("{}\t{}\t{}\n", login.gateway, login.user, if login.is_raw { "raw" } else { "tls" })
        };
        print!("{}", logins.iter().map(line).collect::<String>());
        return Ok(ExitCode::SUCCESS);
    }
    let gateway = Endpoint::parse(&args.gateway.unwrap_or_default(), Some(DEFAULT_PORT)).map_err(Exit::usage)?;
    let Some(user) = args.user else {
        let was_there = Logins::forget(&place, &gateway).map_err(Exit::usage)?;
        eprintln!("phoebus: {}", if was_there { "the login was forgotten" } else { "there was no login" });
        return Ok(ExitCode::SUCCESS);
    };
    if !is_name(&user) {
        return Err(Exit::usage(format!(
            "\"{user}\" is no user's name; expected at most 255 bytes without blanks, commas or #"
        )));
    }
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
        let wrong = matches!(&error, phoebus_client::Error::Refused { code: Code::AuthFailed, .. });
        let said =
            if wrong { format!("{gateway} does not accept {user} with this password") } else { error.to_string() };
        Exit::with(if denied { exit::DENIED } else { exit::UNREACHABLE }, said)
    })?;
    let who = format!("{user} at {gateway}");
    Logins::keep(&place, Login { gateway, user, is_raw: args.raw, keys }).context("cannot keep the login")?;
    eprintln!("phoebus: logged in as {who}, until the password changes");
    Ok(ExitCode::SUCCESS)
}
