//! `phoebus bench`: Phoebus and its peers, measured in the same run (P40, P41, R8, R12, R14, S26, S27, S30, S31).
//!
//! Reading order:
//!
//! - `engine` runs an experiment: every row at every point, interleaved; `results` stores the values.
//! - `stats`, `table`, `plot`, `report`, `conditions` present them.
//! - `hop` defines the transports of a path's hops, `flows` moves bytes over it, `usage` measures processor use.
//! - `process` starts programs, ends them, and reads their costs; `peer` holds our own programs.
//!
//! A partial experiment (`--only`, `--rtt`, `--loss`) with `--resume` adds to the results in its directory, so that a
//! long experiment can be done in parts.

mod bed;
mod bottleneck;
mod compared;
mod conditions;
mod emulator;
mod engine;
mod fairness;
mod flows;
mod gateway;
mod gridftp;
mod gridftp_small;
mod haproxy;
mod hop;
mod iperf;
mod latency;
mod libudt;
mod loopback;
mod narrow;
mod object_flow;
mod peer;
mod plot;
mod process;
mod quinn;
mod rate;
mod relay;
mod relay_wan;
mod report;
mod results;
mod sc09;
mod short;
mod sshd;
mod stats;
mod table;
mod throughput;
mod transfer;
mod transports;
mod usage;
mod wan;

use clap::{Args, Subcommand};
use engine::{Experiment, Options};
use phoebus_wan::testbed::gain_privileges;
use report::Report;
use results::{Results, Store};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure Phoebus beside its peers.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// One stream over a WAN: round trips and losses, beside direct connections and other relays.
    Throughput(throughput::ThroughputArgs),
    /// Transfers of 1 to 128 MB: through gateways that have just started, through warm ones, and direct.
    Short(short::ShortArgs),
    /// Connect and one-byte echo, with and without delay.
    Latency(latency::LatencyArgs),
    /// One gateway on loopback beside HAProxy, or with --wan two on a long path: processor time, sessions a second, memory.
    Relay(relay::RelayArgs),
    /// The transports on loopback: UDT beside libudt, QUIC beside quinn's perf tool.
    Udt(loopback::UdtArgs),
    /// What a transfer costs its client: UDT direct, and UDT behind a gateway.
    Cpu(transports::CpuArgs),
    /// Flows over time on a narrow WAN: among nine competing ones, and alone on a circuit, at its rate or not.
    Bottleneck(bottleneck::BottleneckArgs),
    /// UDT and QUIC beside TCP on one bottleneck.
    Fairness(fairness::FairnessArgs),
    /// Rates, as the link counts them: of one and of several sessions, before and after a change.
    Rate(rate::RateArgs),
    /// GridFTP's own programs, direct and through gateways: the SC09 paper's figures. Needs `make xio`.
    Sc09(sc09::Sc09Args),
    /// Our GridFTP client and server beside GCT's, each with each: memory to memory on loopback, or from disk to disk.
    Gridftp(gridftp::GridftpArgs),
    /// Files as objects over a long path, beside UDT, QUIC and other projects' programs.
    Objects(gridftp::ObjectsArgs),
    /// Objects in packets of many sizes, with and without batches.
    Packets(gridftp::PacketsArgs),
    /// Readers, writers and buffers of a slow store.
    Stores(gridftp::StoresArgs),
    /// Many short files on one machine, and to and from a server at several round trips, beside globus-url-copy, rsync, rclone and scp.
    Small(gridftp_small::SmallArgs),
    /// The emulated links against their own settings.
    Emulator(emulator::EmulatorArgs),
    /// The programs that experiments run.
    #[command(subcommand, hide = true)]
    Peer(peer::PeerCommand),
}

/// Options of every experiment.
#[derive(Debug, Clone, Args)]
struct Common {
    /// Repetitions of every measurement, rows taking turns [default: 5, with --quick 2].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Fewer points and shorter measurements: to try things out, not to compare.
    #[arg(long)]
    quick: bool,
    /// Where values (CSV, JSON), the report (Markdown) and its drawings (SVG) go.
    #[arg(long, value_name = "DIR", default_value = "bench-results")]
    out: PathBuf,
    /// Keep what DIR has of this experiment, and measure only what it lacks.
    #[arg(long)]
    resume: bool,
    /// Measure only these rows.
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    only: Vec<String>,
    /// Seeds the random losses of the links.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the values as JSON instead of the report.
    #[arg(long)]
    json: bool,
}

impl Common {
    fn runs(&self) -> u32 {
        self.runs.unwrap_or(if self.quick { 2 } else { 5 })
    }

    #[cfg(test)]
    fn for_tests() -> Self {
        Self { runs: None, quick: false, out: PathBuf::new(), resume: false, only: Vec::new(), seed: 1, json: false }
    }
}

/// Runs `phoebus bench`. Call it while the process has a single thread: without root, a testbed needs a user
/// namespace.
///
/// # Errors
/// The failure, with its exit code.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        BenchCommand::Throughput(args) if args.compared.any() => {
            measure(&transports::Transports::new(&args), &args.common)
        }
        BenchCommand::Throughput(args) => measure(&throughput::Throughput::new(&args), &args.common),
        BenchCommand::Short(args) if args.compared.any() => {
            measure(&transports::ShortTransfers::new(&args), &args.common)
        }
        BenchCommand::Short(args) => measure(&short::Short::new(&args), &args.common),
        BenchCommand::Latency(args) if args.compared.any() => {
            measure(&transports::Latencies::new(&args, args.common.runs()), &args.common)
        }
        BenchCommand::Latency(args) => measure(&latency::Latency::new(&args, args.common.runs()), &args.common),
        BenchCommand::Relay(args) if args.wan => measure(&relay_wan::RelayWan::new(&args)?, &args.common),
        BenchCommand::Relay(args) => measure(&relay::Relay::new(&args), &args.common),
        BenchCommand::Cpu(args) => measure(&transports::Cpu::new(&args), &args.common),
        BenchCommand::Udt(args) => measure(&loopback::Loopback::new(&args)?, &args.common),
        BenchCommand::Bottleneck(args) => measure_once(&bottleneck::Bottleneck::new(&args), &args.common),
        BenchCommand::Fairness(args) => measure(&fairness::Fairness::new(&args), &args.common),
        BenchCommand::Rate(args) => measure(&rate::RateHeld::new(&args), &args.common),
        BenchCommand::Sc09(args) => measure(&sc09::Sc09Figures::new(&args), &args.common),
        BenchCommand::Gridftp(args) if args.disk => measure(&gridftp::Disks::new(args.common.quick), &args.common),
        BenchCommand::Gridftp(args) if args.sizes.short => {
            let sizes = gridftp::Sizes::new(&args.sizes, args.path.loss, args.common.quick, args.common.seed);
            measure(&sizes, &args.common)
        }
        BenchCommand::Gridftp(args) if args.path.wan => measure(
            &gridftp::LongPath::new(&args.path, args.seconds, args.common.quick, args.common.seed),
            &args.common,
        ),
        BenchCommand::Gridftp(args) if args.path.concurrent => measure(
            &gridftp::Concurrent::new(&args.path, args.seconds, args.common.quick, args.common.seed),
            &args.common,
        ),
        BenchCommand::Gridftp(args) => measure(&gridftp::Servers::new(&args), &args.common),
        BenchCommand::Objects(args) if args.loopback => {
            measure(&gridftp::LocalObjects::new(args.common.quick), &args.common)
        }
        BenchCommand::Objects(args) if args.gateways => {
            measure(&gridftp::RelayedObjects::new(args.common.quick, args.common.seed), &args.common)
        }
        BenchCommand::Objects(args) if args.users => {
            measure(&gridftp::Starts::new(args.common.quick, args.common.seed), &args.common)
        }
        BenchCommand::Objects(args) => measure(&gridftp::Objects::new(&args), &args.common),
        BenchCommand::Packets(args) => measure(&gridftp::Packets::new(&args), &args.common),
        BenchCommand::Stores(args) => measure(&gridftp::Stores::new(&args), &args.common),
        BenchCommand::Small(args) => measure(&gridftp_small::Small::new(&args), &args.common),
        BenchCommand::Emulator(args) => {
            let store = prepare("emulator", &args.common)?;
            let (results, report) = emulator::run(&args, &store)?;
            publish(&results, &report, &store, &args.common)
        }
        BenchCommand::Peer(command) => peer::run(command).map(|()| ExitCode::SUCCESS),
    }
}

/// Runs `experiment`, saves and prints its results. If a measurement fails, it completes the others before it fails.
fn measure<E: Experiment>(experiment: &E, common: &Common) -> anyhow::Result<ExitCode> {
    let store = prepare(experiment.name(), common)?;
    let options = Options { runs: common.runs(), only: common.only.clone(), resume: common.resume };
    let results = engine::run(experiment, &options, &store)?;
    publish(&results, &experiment.report(&results), &store, common)
}

/// Like [`measure`], but with a single run by default: for experiments that last minutes.
fn measure_once<E: Experiment>(experiment: &E, common: &Common) -> anyhow::Result<ExitCode> {
    measure(experiment, &Common { runs: common.runs.or(Some(1)), ..common.clone() })
}

fn prepare(experiment: &str, common: &Common) -> anyhow::Result<Store> {
    gain_privileges()?;
    Store::new(&common.out, experiment)
}

fn publish(results: &Results, report: &Report, store: &Store, common: &Common) -> anyhow::Result<ExitCode> {
    report.save(results, store)?;
    let text = if common.json { serde_json::to_string_pretty(results)? } else { report.to_markdown(results) };
    // A reader who closes standard output still has the files.
    crate::standard::note(&text);
    eprintln!("Values and drawings are in {}.", common.out.display());
    Ok(if results.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
