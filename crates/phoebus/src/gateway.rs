//! `phoebus gateway`: the gateway as a process, with its log and its runtime.

use crate::exit::Exit;
use anyhow::{Context, Result};
use phoebus_gateway::config::{Config, Log, LogFormat, LogLevel};
use phoebus_gateway::{Outcome, StartError};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Threads for name resolution, which the C library does only by blocking; more names at a time wait.
const RESOLVER_THREADS: usize = 16;

/// Run a gateway: accept sessions and relay them to the next gateway or to their destination
///
/// Nothing is allowed but what the configuration allows. SIGTERM or SIGINT: no new sessions, the old ones finish within
/// limits.drain_timeout; a second one ends them. SIGHUP: read the configuration again. The log goes to standard error.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 told to stop, and all sessions had finished; 1 it could not start, or sessions had to be ended; 2 wrong
options or configuration.

Example:
  phoebus gateway --config /etc/phoebus/gateway.toml
")]
pub(crate) struct Args {
    /// Configuration file (docs/guide/gateway.md)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only check the configuration
    #[arg(long)]
    check: bool,
    /// Write the log as JSON, one object a line, whatever the configuration says
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let config = Config::read(&args.config).map_err(Exit::usage)?;
    if args.check {
        writeln!(std::io::stdout(), "{} is a valid configuration", args.config.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    start_log(&config.log, args.json, None)?;
    // This thread is the first of the gateway's; it starts the others.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(RESOLVER_THREADS)
        .enable_all()
        .build()
        .context("cannot start the gateway's threads")?;
    let outcome = runtime.block_on(phoebus_gateway::serve(config, &args.config));
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
    let started = if json || log.format == LogFormat::Json {
        builder.json().flatten_event(true).finish().with(targets).try_init()
    } else {
        let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
        builder.with_ansi(colours).finish().with(targets).try_init()
    };
    started.map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))
}
