//! The arguments of `phoebus testbed`.

use clap::{Args, Subcommand};
use phoebus_proto::units::{ByteSize, Span};
use phoebus_wan::model::{Loss, Rate};
use phoebus_wan::testbed::{Sc09, Scenario};
use std::ffi::OsString;
use std::path::PathBuf;

/// Hosts and an emulated WAN between them, on this machine.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct TestbedArgs {
    #[command(subcommand)]
    pub(crate) command: TestbedCommand,
}

const EXIT_CODES: &str = "\
Exit codes: run and exec give those of their command; 128 plus the signal's number if one ended it; 127 if it was not found,
126 if it could not be started; 125 if the testbed failed. All others: 0 done, 1 failed. 2 always means bad arguments or a
bad scenario.";

#[derive(Debug, Subcommand)]
pub(crate) enum TestbedCommand {
    /// Build a testbed, run a command beside it, and take it down.
    Run {
        #[command(flatten)]
        build: Build,
        /// Write the testbed's last report, counters included, to this file as JSON.
        #[arg(long, value_name = "FILE")]
        counters: Option<PathBuf>,
        /// Do not print the conditions.
        #[arg(long, short)]
        quiet: bool,
        /// What to run; `phoebus testbed exec HOST -- …` in it finds the testbed.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Build a testbed that stays until `down`.
    Up {
        #[command(flatten)]
        build: Build,
    },
    /// Take a testbed down, with everything that runs in its hosts.
    Down {
        #[command(flatten)]
        which: Which,
        /// All testbeds of this user.
        #[arg(long, conflicts_with = "name")]
        all: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show testbeds: their conditions, links and counters.
    Status {
        #[command(flatten)]
        which: Which,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run a command in a host.
    Exec {
        #[command(flatten)]
        which: Which,
        /// The host.
        host: String,
        /// What to run there.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Change a link while packets are under way.
    Set {
        #[command(flatten)]
        which: Which,
        /// The link, or one direction of it: `wan`, `wan:forward`, `wan:backward`.
        #[arg(value_name = "LINK[:DIRECTION]")]
        link: String,
        /// What to change: delay, jitter, reorder, loss, rate or queue, such as `loss=1%` or `rate=unlimited`.
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
    /// Interrupt a link: everything on it is lost, until it is healed.
    Cut {
        #[command(flatten)]
        which: Which,
        /// The link.
        link: String,
    },
    /// End a cut.
    Heal {
        #[command(flatten)]
        which: Which,
        /// The link.
        link: String,
    },
    /// The process that owns a testbed for `run` and `up`; not for people.
    #[command(hide = true)]
    Supervise,
}

/// Which testbed.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The testbed; otherwise the one that this command runs in, or the only one there is.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// What to build: the path of the SC09 paper, `src` – `pg1` – `pg2` – `dst`, with these settings, or a scenario.
#[derive(Debug, Args)]
pub(crate) struct Build {
    /// A name for the testbed; otherwise it gets one of its own.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Leave the hosts' TCP as the system made it.
    #[arg(long)]
    pub(crate) stock: bool,
    /// Build what this TOML file describes instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = PATH)]
    pub(crate) scenario: Option<PathBuf>,
    /// Round-trip time between the gateways [default: 100ms].
    #[arg(long, value_name = "TIME", help_heading = "Path")]
    pub(crate) wan_rtt: Option<Span>,
    /// Round-trip time between each end and its gateway [default: 8ms].
    #[arg(long, value_name = "TIME", help_heading = "Path")]
    pub(crate) lan_rtt: Option<Span>,
    /// Random loss on the links to the ends, each way [default: 0.01%].
    #[arg(long, value_name = "LOSS", help_heading = "Path")]
    pub(crate) lan_loss: Option<Loss>,
    /// Random loss between the gateways, each way [default: 0].
    #[arg(long, value_name = "LOSS", help_heading = "Path")]
    pub(crate) wan_loss: Option<Loss>,
    /// Rate of every link, or `unlimited` [default: 1gbit].
    #[arg(long, value_name = "RATE", help_heading = "Path")]
    pub(crate) rate: Option<Rate>,
    /// Queue of the links to the ends [default: 4MB].
    #[arg(long, value_name = "SIZE", help_heading = "Path")]
    pub(crate) lan_queue: Option<ByteSize>,
    /// Queue between the gateways [default: 16MB].
    #[arg(long, value_name = "SIZE", help_heading = "Path")]
    pub(crate) wan_queue: Option<ByteSize>,
    /// Largest packet of every link, in bytes [default: 1500].
    #[arg(long, value_name = "BYTES", help_heading = "Path")]
    pub(crate) mtu: Option<u16>,
    /// Seeds every random draw [default: 1].
    #[arg(long, value_name = "NUMBER", help_heading = "Path")]
    pub(crate) seed: Option<u64>,
    /// Congestion control of src and dst [default: cubic].
    #[arg(long, value_name = "NAME", help_heading = "Path")]
    pub(crate) cc: Option<String>,
    /// Congestion control of pg1 and pg2, for programs that do not choose their own.
    #[arg(long, value_name = "NAME", help_heading = "Path")]
    pub(crate) gateway_cc: Option<String>,
}

/// The flags that describe a path, and thus go with no scenario file.
const PATH: [&str; 11] =
    ["wan_rtt", "lan_rtt", "lan_loss", "wan_loss", "rate", "lan_queue", "wan_queue", "mtu", "seed", "cc", "gateway_cc"];

impl Build {
    /// The scenario that the flags or the file describe.
    pub(crate) fn scenario(&self) -> Result<Scenario, phoebus_wan::testbed::Error> {
        let mut scenario = match &self.scenario {
            Some(path) => Scenario::load(path)?,
            None => self.path().scenario(),
        };
        scenario.stock |= self.stock;
        Ok(scenario)
    }

    fn path(&self) -> Sc09 {
        let default = Sc09::default();
        Sc09 {
            wan_rtt: self.wan_rtt.unwrap_or(default.wan_rtt),
            lan_rtt: self.lan_rtt.unwrap_or(default.lan_rtt),
            lan_loss: self.lan_loss.unwrap_or(default.lan_loss),
            wan_loss: self.wan_loss.unwrap_or(default.wan_loss),
            rate: self.rate.unwrap_or(default.rate),
            lan_queue: self.lan_queue.unwrap_or(default.lan_queue),
            wan_queue: self.wan_queue.unwrap_or(default.wan_queue),
            mtu: self.mtu.unwrap_or(default.mtu),
            seed: self.seed.unwrap_or(default.seed),
            cc: self.cc.clone().or(default.cc),
            gateway_cc: self.gateway_cc.clone().or(default.gateway_cc),
            stock: self.stock,
        }
    }
}
