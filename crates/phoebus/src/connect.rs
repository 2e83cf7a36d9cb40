//! `phoebus connect`: joins standard input and output to a session, for shells and for tools with a proxy command.

use crate::agent;
use crate::exit::{self, Exit};
use crate::options::{self, Route};
use crate::standard;
use anyhow::{Context, Result};
use phoebus_client::{Options, Report, Session};
use phoebus_config::settings::Settings;
use phoebus_proto::endpoint::{Endpoint, Host};
use std::future::pending;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

/// Bytes that are moved at a time in each direction: a large segment train, and little memory.
const CHUNK: usize = 256 * 1024;

/// Time for the peer to end after this end was told to: `ssh` ends its proxy command by SIGHUP, which ends most of its
/// sessions.
const FAREWELL: Duration = Duration::from_secs(1);

/// Silence of standard input after which it counts as ended, once the end was requested: what was written before is
/// still carried.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Signal number for the exit code if nobody reads the output.
const SIGPIPE: u8 = 13;

/// Open a session and join it to standard input and output
///
/// The end of standard input ends that direction only; the destination may send more to standard output. Exit code 0
/// means that both directions ended and every byte was delivered. Without a gateway the connection is direct, unless
/// PHOEBUS_ONLY names the destination. SIGHUP and SIGTERM count as the end of standard input, and the other end then
/// has a second to finish; a second signal ends at once.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 both directions ended cleanly; 1 the session broke; 2 wrong options, variables or configuration; \
3 it could not be opened; 129, 143 ended by SIGHUP, SIGTERM; 141 standard output was closed.

Examples:
  echo QUIT | phoebus connect --gateway pg1.example/5006 mail.example:25
  ssh -o ProxyCommand='phoebus connect --gateway pg1.example/5006 %h:%p' dtn.example.org
")]
pub(crate) struct Args {
    #[command(flatten)]
    route: Route,
    /// Print the session's report to standard error, in JSON
    #[arg(long)]
    json: bool,
    /// The destination; the last gateway resolves names
    #[arg(value_name = "HOST:PORT")]
    destination: String,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let variables = args.route.variables();
    let settings = options::settings(&variables)?;
    let destination: Endpoint = args.destination.parse().map_err(Exit::usage)?;
    if settings.bandwidth.is_some() && settings.path.is_empty() {
        return Err(Exit::usage(
            "a bandwidth is asked of gateways (--bandwidth, PHOEBUS_BANDWIDTH), and none is set; give --gateway HOST/PORT or set \
             PHOEBUS_GW",
        ));
    }
    if is_to_go_through(&settings, &destination) {
        return Err(Exit::usage(format!(
            "PHOEBUS_ONLY names {destination}, which is to go through gateways, and no gateway is set; give --gateway HOST/PORT or set \
             PHOEBUS_GW"
        )));
    }
    options::check_report(&settings)?;
    standard::check_input()?;
    standard::check_output()?;
    // Held until the session is over.
    let _agent = agent::ensure(&settings, &variables, exit::UNREACHABLE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let session = phoebus_client::connect(&Options::from(&settings), &destination).await;
        let session = session.map_err(|error| Exit::with(exit::UNREACHABLE, error))?;
        tell(session.report(), args.json, settings.verbose, settings.report.as_deref())?;
        join(session).await
    });
    // A thread of the runtime may still wait for standard input.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

/// Whether the settings send connections to `destination` through gateways, but name none.
fn is_to_go_through(settings: &Settings, destination: &Endpoint) -> bool {
    if settings.only.is_none() || !settings.path.is_empty() {
        return false;
    }
    // The same settings with a gateway.
    let with_one = Settings { path: vec![destination.clone()], ..settings.clone() };
    match &destination.host {
        Host::Addr(addr) => with_one.selects(SocketAddr::new(*addr, destination.port), std::iter::empty()),
        Host::Name(name) => with_one.selects_name(name, destination.port),
    }
}

fn tell(report: &Report, json: bool, verbose: bool, file: Option<&Path>) -> Result<()> {
    let line = serde_json::to_string(report)?;
    if json {
        eprintln!("{line}");
    } else if verbose || !report.note.is_empty() {
        eprintln!("phoebus: {report}");
    }
    if let Some(file) = file {
        let append = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let appended = append.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        appended.with_context(|| format!("cannot write the report to {}", file.display()))?;
    }
    Ok(())
}

/// Carries both directions to their ends. A failure of one fails the session, even while standard input is silent.
/// After a signal, or once nobody reads standard output, this end ends in order, and the peer has a moment to do so.
async fn join(session: Session) -> Result<()> {
    let mut signals = Signals::new()?;
    // The number of the ending signal.
    let (ask, mut asked) = watch::channel(None);
    let (broke, of_input) = (|error| failed("the session broke", &error), asked.clone());
    let whole = async {
        let both = async { tokio::try_join!(up(&session, of_input), down(&session, &ask)) };
        tokio::select! {
            biased;
            ended = both => ended.map(|_| ())?,
            error = session.failed() => return Err(broke(error)),
        }
        session.finish().await.map_err(broke)
    };
    let given_up = async {
        tokio::select! {
            number = signals.next() => drop(ask.send_replace(Some(number))),
            _ = asked.wait_for(Option::is_some) => {}
        }
        tokio::select! {
            _ = signals.next() => {}
            () = sleep(FAREWELL) => {}
        }
    };
    let result = tokio::select! {
        biased;
        result = whole => result,
        () = given_up => Ok(()),
    };
    let Some(number) = *ask.borrow() else { return result };
    // Without a reader of the output, the rest does not matter.
    let failure = result.err().filter(|_| number != SIGPIPE).map_or(String::new(), |error| error.to_string());
    Err(Exit::with(exit::SIGNAL + number, failure))
}

fn failed(what: &str, error: &io::Error) -> anyhow::Error {
    anyhow::anyhow!("{what}: {}", phoebus_client::reason(error))
}

/// Copies standard input to the session, until either ends or the end was requested (`asked`).
async fn up(session: &Session, mut asked: watch::Receiver<Option<u8>>) -> Result<()> {
    let (mut from, mut to) = (tokio::io::stdin(), session);
    let broke = |error| failed("the session broke", &error);
    let mut buffer = vec![0; CHUNK];
    loop {
        let n = tokio::select! {
            biased;
            read = from.read(&mut buffer) => read.map_err(|error| failed("standard input", &error))?,
            () = async {
                let _ = asked.wait_for(Option::is_some).await;
                sleep(LAST_WORDS).await;
            } => 0,
        };
        if n == 0 {
            return to.shutdown().await.map_err(broke);
        }
        to.write_all(&buffer[..n]).await.map_err(broke)?;
        to.flush().await.map_err(broke)?;
    }
}

/// Copies the session to standard output. If that has gone, requests the end, and discards the rest.
async fn down(mut from: &Session, ask: &watch::Sender<Option<u8>>) -> Result<()> {
    let mut to = tokio::io::stdout();
    let (mut buffer, mut is_read) = (vec![0; CHUNK], true);
    loop {
        let n = from.read(&mut buffer).await.map_err(|error| failed("the session broke", &error))?;
        if n == 0 {
            return Ok(());
        }
        if !is_read {
            continue;
        }
        // Interactive output must not wait in a buffer.
        let written = async {
            to.write_all(&buffer[..n]).await?;
            to.flush().await
        };
        match written.await {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                is_read = false;
                ask.send_modify(|number| *number = number.or(Some(SIGPIPE)));
            }
            Err(error) => return Err(failed("standard output", &error)),
        }
    }
}

/// Signals that request the end, except those that the parent (nohup) ignores.
struct Signals {
    hangup: Option<Signal>,
    terminate: Option<Signal>,
}

impl Signals {
    fn new() -> Result<Self> {
        let ignored = ignored();
        let heard = |kind: SignalKind| {
            let is_ignored = ignored >> (kind.as_raw_value() - 1) & 1 == 1;
            (!is_ignored).then(|| signal(kind)).transpose().context("cannot wait for signals")
        };
        Ok(Self { hangup: heard(SignalKind::hangup())?, terminate: heard(SignalKind::terminate())? })
    }

    /// The next signal's number.
    async fn next(&mut self) -> u8 {
        async fn of(signal: &mut Option<Signal>) {
            match signal {
                Some(signal) => drop(signal.recv().await),
                None => pending().await,
            }
        }
        tokio::select! {
            () = of(&mut self.hangup) => 1,
            () = of(&mut self.terminate) => 15,
        }
    }
}

/// Ignored signals as a bit mask. `None` if the kernel does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
