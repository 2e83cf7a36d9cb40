//! `phoebus connect`: the standard streams joined to a session, for shells and for tools with a proxy command.

use crate::agent;
use crate::exit::{self, Exit};
use crate::options::{self, Route};
use crate::standard;
use anyhow::{Context, Result};
use phoebus_client::{Options, Report, Session};
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_proto::settings::Settings;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What is moved at a time in each direction: a large segment train, and little to hold in memory.
const CHUNK: usize = 256 * 1024;

/// Open a session and join it to standard input and output
///
/// Standard input's end ends that direction only; what the destination still sends goes to standard output. Exit code 0
/// means that both directions ended and every byte was delivered. Without a gateway the connection is direct, unless
/// PHOEBUS_ONLY names the destination.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 both directions ended cleanly; 1 the session broke; 2 wrong options, variables or configuration; \
3 it could not be opened.

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
    /// Where the session is to end; names are resolved by the last gateway
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
    // A thread of the runtime may still be waiting for standard input.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

/// Whether the settings say that connections to `destination` go through gateways, and name none.
fn is_to_go_through(settings: &Settings, destination: &Endpoint) -> bool {
    if settings.only.is_none() || !settings.path.is_empty() {
        return false;
    }
    // What would be so if there were one.
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

/// Carries both directions to their ends. A failure of one is a failure of the session, also while standard input has
/// nothing to say.
async fn join(session: Session) -> Result<()> {
    let broke = |error| anyhow::anyhow!("the session broke: {}", phoebus_client::reason(&error));
    let up = async {
        let mut to = &session;
        carry(tokio::io::stdin(), &mut to, "standard input", "the session broke").await?;
        to.shutdown().await.map_err(broke)
    };
    let down = carry(&session, tokio::io::stdout(), "the session broke", "standard output");
    tokio::select! {
        biased;
        ended = async { tokio::try_join!(up, down) } => ended.map(|_| ())?,
        error = session.failed() => return Err(broke(error)),
    }
    session.finish().await.map_err(broke)
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    source: &str,
    sink: &str,
) -> Result<()> {
    let failed = |what: &str, error: std::io::Error| anyhow::anyhow!("{what}: {}", phoebus_client::reason(&error));
    let mut buffer = vec![0; CHUNK];
    loop {
        let n = from.read(&mut buffer).await.map_err(|error| failed(source, error))?;
        if n == 0 {
            return to.flush().await.map_err(|error| failed(sink, error));
        }
        to.write_all(&buffer[..n]).await.map_err(|error| failed(sink, error))?;
        // What is interactive must not wait in a buffer.
        to.flush().await.map_err(|error| failed(sink, error))?;
    }
}
