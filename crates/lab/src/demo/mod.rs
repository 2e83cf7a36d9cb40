//! `phoebus demo`: the benefit of sessions, shown with unmodified programs (P39, P40, S30).
//!
//! On an emulated path – a lossy campus network at either end, a long clean WAN between two gateways – unmodified
//! iperf3, curl and scp move data from `src` to `dst`, directly and through the gateways. The received data is
//! compared with the original. Reading order: `stage` builds the path and starts the servers, `transfer` runs one
//! program and measures it, `acts` lists the programs, `table` and `picture` show the results.

mod acts;
mod interrupt;
mod picture;
mod stage;
mod table;
mod transfer;

use crate::exit::Exit;
use anyhow::{Context, Result};
use phoebus_proto::units::{ByteSize, Probability, Span};
use phoebus_wan::model::Loss;
use phoebus_wan::testbed::Sc09;
use serde::Serialize;
use stage::Stage;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use transfer::Outcome;

/// scp moves this fraction 1/n of the file: OpenSSH is slow over such a path, with any transport.
pub(crate) const SMALL: u64 = 32;

/// Show what gateways gain: real programs and real data over an emulated WAN
///
/// Builds two end hosts, two gateways and the links between them on this machine, moves data with iperf3, curl and scp,
/// directly and through the gateways, verifies it, and prints and draws the comparison. Takes about four minutes, most
/// of them for the direct transfers. Nothing of the machine is changed.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 all data arrived intact; 1 something failed; 2 wrong options, or programs are missing."
)]
pub struct Args {
    /// Size of the file that curl moves; scp moves a thirty-second of it
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    size: ByteSize,
    /// How long each run of iperf3 takes
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    time: Span,
    /// Stop a file's transfer after this time; directly, 1GiB takes about ten minutes
    #[arg(long, default_value = "2m", value_name = "DURATION")]
    limit: Span,
    /// Round-trip time between the gateways
    #[arg(long, default_value = "100ms", value_name = "DURATION")]
    wan_rtt: Span,
    /// Random loss on the links to the end hosts, each way
    #[arg(long, default_value = "0.01%", value_name = "PROBABILITY")]
    lan_loss: Probability,
    /// Where to write the picture
    #[arg(long, default_value = "phoebus-demo.svg", value_name = "FILE")]
    picture: PathBuf,
    /// Where the data is kept while it is moved; needs room for three times its size
    #[arg(long, default_value_os_t = std::env::temp_dir(), value_name = "DIRECTORY")]
    directory: PathBuf,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// Everything that a reader needs to judge the figures.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    /// The links, nearest first, such as `8ms, 0.01% loss`.
    links: [String; 3],
    /// Kernel, cores and TCP settings.
    conditions: Vec<String>,
    /// The hops of a session, from its report.
    session: String,
    /// The programs and their results.
    acts: Vec<Act>,
    /// Segments that the links dropped, at random and for lack of room.
    lost: String,
}

/// One program, direct and through gateways.
#[derive(Debug, Serialize)]
pub(crate) struct Act {
    /// `curl, 1 GiB`.
    title: String,
    /// The result without gateways.
    direct: Option<Outcome>,
    /// The result through gateways.
    session: Option<Outcome>,
    /// A remark; empty if there is none.
    note: &'static str,
}

impl Act {
    /// The session's rate relative to the direct transfer.
    fn gain(&self) -> Option<f64> {
        Some(self.session.as_ref()?.bits_per_second / self.direct.as_ref()?.bits_per_second)
    }
}

/// Runs `phoebus demo`.
///
/// # Errors
/// A program is missing, or a step failed; with its exit code.
pub fn run(args: Args) -> Result<ExitCode> {
    // Before the process has a second thread.
    phoebus_wan::testbed::gain_privileges().map_err(Exit::usage)?;
    if args.size.0 < 1 << 20 {
        return Err(Exit::usage(format!("--size: {} is too little to measure; expected at least 1MiB", args.size)));
    }
    if args.time.0 < Duration::from_secs(1) {
        return Err(Exit::usage(format!("--time: {} is too short to measure; expected at least 1s", args.time)));
    }
    if args.limit.0 < Duration::from_secs(1) {
        return Err(Exit::usage(format!(
            "--limit: {} is too short to move anything; expected at least 1s",
            args.limit
        )));
    }
    let existed = args.picture.exists();
    let picture = std::fs::OpenOptions::new().append(true).create(true).open(&args.picture);
    picture.map_err(|error| {
        let why = phoebus_net::reason(&error);
        Exit::usage(format!("--picture: cannot write {}: {why}", args.picture.display()))
    })?;
    if !existed {
        let _ = std::fs::remove_file(&args.picture);
    }
    let path = Sc09 { wan_rtt: args.wan_rtt, lan_loss: Loss::Bernoulli(args.lan_loss), ..Sc09::default() };
    let (results, intact) = perform(&args, &path)?;
    let picture = picture::draw(&results);
    std::fs::write(&args.picture, picture).with_context(|| format!("cannot write {}", args.picture.display()))?;
    crate::standard::note(&match args.json {
        true => serde_json::to_string_pretty(&results)?,
        false => format!("{}\nPicture: {}", table::print(&results), args.picture.display()),
    });
    if !intact {
        return Err(Exit::with(crate::exit::FAILED, "a file arrived altered"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the path, transfers and compares; nothing is left when this returns.
fn perform(args: &Args, path: &Sc09) -> Result<(Results, bool)> {
    let stage = Stage::build(&args.directory, path, args.size)?;
    stage.say(&format!("{}: {}", stage.links().join(" | "), stage.conditions().join("; ")));
    let session = stage.session()?;
    stage.say(&format!("a session: {session}"));
    let acts = acts::all(&stage, args)?;
    let intact = acts.iter().flat_map(|act| [&act.direct, &act.session]).flatten().all(|o| o.intact != Some(false));
    let results = Results { links: stage.links(), conditions: stage.conditions(), session, lost: stage.lost(), acts };
    Ok((results, intact))
}
