//! `phoebus gateway`: the gateway as a process, with its log and its runtime.

pub(crate) mod explain;
mod init;

use crate::exit::Exit;
use crate::repeats::Repeats;
use crate::standard;
use anyhow::{Context, Result};
use phoebus_gateway::config::{Config, Log, LogFormat, LogLevel};
use phoebus_gateway::{Outcome, StartError};
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Threads for the names of peers, which the C library resolves only by blocking; more names at a time wait.
const RESOLVER_THREADS: usize = 16;

/// Run a gateway: accept sessions and relay them to the next gateway or to their destination
///
/// Only what the configuration permits is allowed. SIGTERM or SIGINT: the gateway accepts no new sessions, and the
/// others finish within limits.drain_timeout; a second signal ends them. SIGHUP: it reads the configuration again. The
/// log goes to standard error.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Exit codes: 0 stopped by a signal, after all sessions had finished; 1 it could not start, or sessions had to be ended;
2 wrong options or configuration. With --explain: 0 answered, whatever the decision is; 2 the question or the
configuration is wrong.

Examples:
  phoebus gateway init --dir gateways pg1.example --peer pg2.example --from 10.1.0.0/16 --to 10.3.0.0/16
  phoebus gateway --config /etc/phoebus/gateway.toml
  phoebus gateway --config gateway.toml --explain 'user=ada from=192.0.2.7 to=host.example:22'
"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Configuration file (docs/guide/gateway/reference.md)
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Only check the configuration, and whether this process may open enough descriptors for its limits
    #[arg(long)]
    check: bool,
    /// Only say what would become of a session, by which rule and under which limits: 'user=ada from=192.0.2.7 to=host:22'.
    /// Further keys: group, method, certificate, peer, origin, listener, transport, security
    #[arg(long, value_name = "SESSION", conflicts_with = "check")]
    explain: Option<String>,
    /// Write the log as JSON, one object a line, whatever the configuration says; with --explain, the answer
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    Init(init::InitArgs),
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if let Some(Command::Init(args)) = &args.command {
        standard::check_output()?;
        standard::print(&init::run(args)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let file = args.config.ok_or_else(|| Exit::usage("no configuration was given; expected --config FILE"))?;
    let config = Config::read(&file).map_err(Exit::usage)?;
    if args.check {
        phoebus_gateway::check(&config).map_err(Exit::usage)?;
        config.warnings().iter().for_each(|warning| eprintln!("phoebus: {}: {warning}", file.display()));
        standard::print(&format!("{} is a valid configuration\n", file.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(session) = &args.explain {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
        let answer = runtime.block_on(phoebus_gateway::explain(&config, session));
        // A thread may still be waiting for a name.
        runtime.shutdown_background();
        explain::show(
            &answer.map_err(|message| Exit::usage(format!("--explain: {message}")))?,
            Some(&file),
            args.json,
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    start_log(&config.log, args.json, None)?;
    // This thread is the first of the gateway's; it starts the others.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(RESOLVER_THREADS)
        .enable_all()
        .build()
        .context("cannot start the gateway's threads")?;
    let outcome = runtime.block_on(phoebus_gateway::serve(config, &file));
    // A thread may still be waiting for a name.
    runtime.shutdown_background();
    match outcome {
        Ok(Outcome::Drained) => Ok(ExitCode::SUCCESS),
        Ok(Outcome::Ended(sessions)) => anyhow::bail!("ended {sessions} sessions that had not finished"),
        Err(error @ StartError::Descriptors { .. }) => Err(Exit::usage(error)),
        Err(error) => Err(error.into()),
    }
}

/// Sends the log to standard error, as `log` has it, or as JSON; of one module, `informed`, down to `info` in any case.
pub(crate) fn start_log(log: &Log, json: bool, informed: Option<&str>) -> Result<()> {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let targets = Targets::new().with_default(level);
    let (most, targets) = match informed {
        Some(module) => (level.max(LevelFilter::INFO), targets.with_target(module, level.max(LevelFilter::INFO))),
        None => (level, targets),
    };
    let builder = tracing_subscriber::fmt().with_max_level(most).with_writer(std::io::stderr);
    let repeats = (log.repeats > 0).then(|| Repeats::new(log.repeats));
    let started = if json || log.format == LogFormat::Json {
        builder.json().flatten_event(true).finish().with(targets).with(repeats).try_init()
    } else {
        let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
        builder.with_ansi(colours).finish().with(targets).with(repeats).try_init()
    };
    started.map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))
}
