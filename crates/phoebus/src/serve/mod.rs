//! `phoebus serve`: the GridFTP and FTP server as a process; [`inetd`] for one user, on standard input and output.

mod inetd;

use crate::exit::Exit;
use crate::gateway::start_log;
use anyhow::{Context, Result};
use phoebus_client::{Options, Sessions};
use phoebus_gateway::config::Log;
use phoebus_gridftp::server::config::{Anonymous, PORT};
use phoebus_gridftp::server::{Config, Gateways, Quota, Server, StartError, hash_password};
use phoebus_net::transport::Transport;
use phoebus_net::{CongestionControl, Profile};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::settings::Settings;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// The longest password that is read to be hashed.
const MAX_PASSWORD: u64 = 4096;

/// Serve files by GridFTP and FTP
///
/// Without a configuration file one directory is served to everybody on this machine: --root and --anonymous. SIGTERM or SIGINT:
/// nobody new is accepted, and transfers finish within limits.drain. The log goes to standard error; standard output gets a
/// line for each address that is listened on.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 told to stop, and all sessions had finished; 1 it could not start, or sessions had to be ended; 2 wrong
options or configuration.

Examples:
  phoebus serve --root /srv/data --listen 127.0.0.1:2811 --anonymous --read-only
  phoebus serve --config /etc/phoebus/serve.toml
  phoebus serve --data-node --config /etc/phoebus/serve.toml --listen 192.0.2.7:2812
  phoebus serve --hash-password < password.txt
  ssh host phoebus serve --inetd                   what phoebus cp has ssh run for host:path
")]
pub(crate) struct Args {
    /// Configuration file (docs/guide/serve.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["root", "anonymous", "read_only"])]
    config: Option<PathBuf>,
    /// The directory that is served; nothing outside it can be reached [with --inetd, default: /]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Addresses to listen on, instead of those of the configuration [default: 127.0.0.1:2811]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<SocketAddr>,
    /// Let everybody in, as anonymous or ftp with any password
    #[arg(long)]
    anonymous: bool,
    /// Let nobody change anything
    #[arg(long)]
    read_only: bool,
    /// Serve whoever has started this, as the user that he is, on standard input and output, without a password: for ssh
    #[arg(long, conflicts_with_all = ["config", "listen", "anonymous", "data_node", "check", "json"])]
    inetd: bool,
    /// Move data for a front end, which proves to have the secret of `[stripes]`, and serve nobody else
    #[arg(long, requires = "config")]
    data_node: bool,
    /// Only check the configuration: whether all that it names is there and can be used, and nobody else can read secrets
    #[arg(long)]
    check: bool,
    /// Write the log as JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Read a password from standard input and print what a configuration has of it
    #[arg(long, exclusive = true)]
    hash_password: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if args.hash_password {
        return hash();
    }
    if args.inetd {
        return inetd::run(args.root.unwrap_or_else(|| "/".into()), args.read_only);
    }
    if args.anonymous != args.root.is_some() || (args.read_only && args.root.is_none()) {
        return Err(Exit::usage("--root DIR and --anonymous were expected together, and --read-only only with them"));
    }
    let mut config = match (&args.config, args.root) {
        (Some(file), _) => Config::read(file).map_err(Exit::usage)?,
        (None, Some(root)) => {
            let anonymous = Anonymous {
                root,
                read_only: args.read_only,
                quota: Quota::default(),
                account: None,
                third_party: false,
            };
            Config { anonymous: Some(anonymous), ..Config::default() }
        }
        (None, None) => return Err(Exit::usage("--root DIR with --anonymous, or --config FILE, was expected")),
    };
    if !args.listen.is_empty() {
        config.listen = args.listen;
    } else if args.config.is_none() {
        config.listen = vec![SocketAddr::from(([127, 0, 0, 1], PORT))];
    }
    config.data_node = args.data_node;
    if args.check {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the server's threads")?;
        runtime.block_on(Server::check(&config, Some(Arc::new(Through)))).map_err(Exit::usage)?;
        writeln!(std::io::stdout(), "this is a valid configuration")?;
        return Ok(ExitCode::SUCCESS);
    }
    start_log(&Log::default(), args.json, None)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("cannot start the server's threads")?;
    let cut = runtime.block_on(serve(config))?;
    runtime.shutdown_background();
    if cut > 0 {
        anyhow::bail!("ended {cut} sessions that had not finished");
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: Config) -> Result<usize> {
    // Before it can be reached: whoever sees that it can may send one.
    let mut term = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let server = Server::start_with(config, Some(Arc::new(Through))).map_err(|error| match error {
        StartError::Config(error) => Exit::usage(error),
        StartError::Listen(error) => error.into(),
    })?;
    let mut out = std::io::stdout();
    for addr in server.addresses() {
        writeln!(out, "listening on {addr}")?;
    }
    out.flush()?;
    let end = async {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    };
    Ok(server.run(end).await)
}

/// Data connections through gateways. What the environment says of gateways is for programs of users, and not heeded here.
#[derive(Debug)]
struct Through;

impl Gateways for Through {
    fn through(&self, path: &[Endpoint], profile: &Profile) -> Arc<dyn Transport> {
        let usual = Options::from(&Settings::default());
        // A stack that asks for a congestion control has the last word.
        let congestion_control = match profile.congestion_control {
            CongestionControl::Auto => usual.profile.congestion_control,
            asked => asked,
        };
        let profile = Profile { congestion_control, ..profile.clone() };
        let options = Options { path: path.to_vec(), profile, fallback: false, agents: None, cache: None, ..usual };
        Arc::new(Sessions::new(options, |report| tracing::info!(%report, "a data connection goes through gateways")))
    }
}

/// Prints the password on standard input as a configuration has it: on standard input, since arguments are seen by others.
fn hash() -> Result<ExitCode> {
    let mut password = Vec::new();
    std::io::stdin().take(MAX_PASSWORD + 1).read_to_end(&mut password).context("cannot read standard input")?;
    if password.last() == Some(&b'\n') {
        password.pop();
    }
    if password.is_empty() || password.len() as u64 > MAX_PASSWORD {
        return Err(Exit::usage("a password of 1 to 4096 bytes was expected on standard input"));
    }
    let hashed = hash_password(&password).map_err(|_| anyhow::anyhow!("the system has no randomness"))?;
    writeln!(std::io::stdout(), "{hashed}")?;
    Ok(ExitCode::SUCCESS)
}
