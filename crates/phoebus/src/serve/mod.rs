//! `phoebus serve`: the GridFTP and FTP server as a process; [`inetd`] for one user, on standard input and output, and
//! [`relay`] for that one's data.

mod exposed;
mod inetd;
mod relay;

use crate::exit::Exit;
use crate::gateway::start_log;
use crate::password;
use crate::standard;
use anyhow::{Context, Result};
use phoebus_client::{Options, Sessions};
use phoebus_config::settings::Settings;
use phoebus_gateway::config::Log;
use phoebus_gridftp::server::config::{Anonymous, PORT};
use phoebus_gridftp::server::{Config, Gateways, Quota, Reloader, Server, StartError, hash_password};
use phoebus_net::transport::Transport;
use phoebus_net::{CongestionControl, Profile, limits};
use phoebus_proto::endpoint::Endpoint;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

/// Serve files by GridFTP and FTP
///
/// Without a configuration file, --root and --anonymous serve one directory to everybody on this machine. SIGTERM or
/// SIGINT: the server accepts no new clients, and transfers finish within limits.drain. SIGHUP: it reads the
/// configuration again. The log goes to standard error. Standard output gets a line for each listening address.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 stopped by a signal, after all sessions had finished; 1 it could not start, or sessions had to be ended;
2 wrong options or configuration.

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
    /// The directory to serve; clients reach nothing outside it [with --inetd, default: /]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Addresses to listen on, instead of those of the configuration [default: 127.0.0.1:2811]
    #[arg(long, value_name = "ADDR", value_parser = listener)]
    listen: Vec<SocketAddr>,
    /// Accept the users anonymous and ftp with any password; they may change files, unless --read-only is given
    #[arg(long)]
    anonymous: bool,
    /// Refuse all changes
    #[arg(long)]
    read_only: bool,
    /// Serve the user who started this on standard input and output, without a password; for use by ssh
    #[arg(long, conflicts_with_all = ["config", "listen", "anonymous", "data_node", "check", "json"])]
    inetd: bool,
    /// With --inetd: carry data between standard input and output and a server started by another login of this user
    #[arg(long, requires = "inetd", conflicts_with_all = ["root", "read_only"])]
    data: bool,
    /// Move data for a front end that has the secret of `[stripes]`, and serve nobody else
    #[arg(long, requires = "config")]
    data_node: bool,
    /// Only check the configuration: everything that it names exists and is usable, and nobody else can read secrets
    #[arg(long)]
    check: bool,
    /// Write the log as JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Read a password from standard input and print its hash for a configuration. On a terminal it is asked for twice,
    /// without echo
    #[arg(long, exclusive = true)]
    hash_password: bool,
}

/// An address to listen on.
fn listener(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "expected an address and port such as 127.0.0.1:2811 or [::]:2811")
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if args.hash_password {
        return hash();
    }
    if args.data {
        return relay::run();
    }
    if args.inetd {
        if relay::is_asked_for(std::env::var("SSH_ORIGINAL_COMMAND").ok().as_deref()) {
            return relay::run();
        }
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
    // The configuration as read, to compare later ones with.
    let fixed = Fixed { listen: args.listen.is_empty().then(|| config.listen.clone()), repeats: config.log.repeats };
    if !args.listen.is_empty() {
        config.listen = args.listen;
    } else if args.config.is_none() {
        config.listen = vec![SocketAddr::from(([127, 0, 0, 1], PORT))];
    }
    config.data_node = args.data_node;
    let descriptors = limits::raise_descriptors();
    let exposed = args.config.as_deref().and_then(|file| exposed::warning(&config, file));
    if args.check {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the server's threads")?;
        runtime.block_on(Server::check(&config, Some(Arc::new(Through)))).map_err(Exit::usage)?;
        let (warnings, exposed) = (config.warnings(descriptors), exposed.iter());
        warnings.iter().chain(exposed).for_each(|warning| eprintln!("phoebus: {warning}"));
        standard::print("this is a valid configuration\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    start_log(&Log { repeats: config.log.repeats, ..Log::default() }, args.json, None)?;
    config.warnings(descriptors).iter().chain(&exposed).for_each(|warning| tracing::warn!("{warning}"));
    let runtime = crate::runtime::multi_thread();
    let runtime = runtime.context("cannot start the server's threads")?;
    let cut = runtime.block_on(serve(config, args.config.map(|file| (file, fixed))))?;
    runtime.shutdown_background();
    if cut > 0 {
        anyhow::bail!("ended {cut} sessions that had not finished");
    }
    Ok(ExitCode::SUCCESS)
}

/// Values of settings that a reload does not change.
#[derive(Clone)]
struct Fixed {
    /// None where the command says it.
    listen: Option<Vec<SocketAddr>>,
    repeats: u32,
}

impl Fixed {
    /// The keys whose values are others in `config`.
    fn changed(&self, config: &Config) -> Vec<&'static str> {
        let listen = self.listen.as_ref().is_some_and(|listen| *listen != config.listen);
        let keys = [("listen", listen), ("log.repeats", self.repeats != config.log.repeats)];
        keys.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
    }
}

/// Serves by `config`, which was read from `file`, if from any.
async fn serve(config: Config, file: Option<(PathBuf, Fixed)>) -> Result<usize> {
    // Before the server can be reached, since signals may come from then on.
    let mut term = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut hup = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    // Files may be on slow disks, and name services may be slow.
    let started = tokio::task::spawn_blocking(move || Server::start_with(config, Some(Arc::new(Through))));
    let server = tokio::select! {
        started = started => started?.map_err(|error| match error {
            StartError::Config(error) => Exit::usage(error),
            StartError::Listen(error) => error.into(),
        })?,
        _ = term.recv() => return Ok(0),
        _ = int.recv() => return Ok(0),
    };
    let mut out = std::io::stdout();
    for addr in server.addresses() {
        writeln!(out, "listening on {addr}")?;
        tracing::info!(address = %addr, "listening");
    }
    out.flush()?;
    let reloader = server.reloader();
    let end = async {
        let (mut reloads, mut again) = (JoinSet::new(), false);
        loop {
            tokio::select! {
                _ = term.recv() => return tracing::info!("SIGTERM: nobody new is served, and files that were begun finish"),
                _ = int.recv() => return tracing::info!("SIGINT: nobody new is served, and files that were begun finish"),
                Some(()) = hup.recv(), if !again => match reloads.is_empty() {
                    true => drop(reloads.spawn(reload(reloader.clone(), file.clone()))),
                    false => {
                        again = true;
                        tracing::warn!("SIGHUP: the configuration is still being read, and is read again after that");
                    }
                },
                Some(_) = reloads.join_next() => if std::mem::take(&mut again) {
                    reloads.spawn(reload(reloader.clone(), file.clone()));
                },
            }
        }
    };
    let cut = server.run(end).await;
    tracing::info!(cut, "ended");
    Ok(cut)
}

/// Reads the configuration and its files again. An unusable one changes nothing.
async fn reload(reloader: Reloader, file: Option<(PathBuf, Fixed)>) {
    let Some((file, fixed)) = file else {
        tracing::warn!("SIGHUP: there is no configuration file to read again; it has to be given by --config");
        return;
    };
    let name = file.display().to_string();
    // Directories and keys may lie on slow disks.
    let read = move || {
        let config = Config::read(&file)?;
        let (changed, warnings, exposed) =
            (fixed.changed(&config), config.warnings(limits::descriptors()), exposed::warning(&config, &file));
        reloader.reload(config).map(|()| (changed, warnings, exposed))
    };
    let done = tokio::task::spawn_blocking(read).await;
    match done {
        Ok(Ok((changed, warnings, exposed))) => {
            tracing::info!(file = name, "the configuration was read again; new connections are served by it");
            warnings.iter().chain(&exposed).for_each(|warning| tracing::warn!(file = name, "{warning}"));
            for key in changed {
                tracing::warn!(file = name, "{key} has changed; it takes a restart to change what it says");
            }
        }
        Ok(Err(error)) => {
            tracing::error!(file = name, %error, "the configuration cannot be used, and nothing is changed")
        }
        Err(error) => tracing::error!(file = name, %error, "the configuration was not read again"),
    }
}

/// Opens sessions for data connections. Gateways in the environment are for users' programs, and do not count here.
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

/// Prints a password as a configuration has it: from standard input, since arguments are seen by others.
fn hash() -> Result<ExitCode> {
    let hashed = hash_password(&password::read_new()?).map_err(|_| anyhow::anyhow!("the system has no randomness"))?;
    standard::print(&format!("{hashed}\n"))?;
    Ok(ExitCode::SUCCESS)
}
