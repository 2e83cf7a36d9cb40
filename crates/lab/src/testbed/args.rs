//! The arguments of `phoebus testbed`.

use clap::{Args, Subcommand, ValueEnum};
use phoebus_net::credentials::{Authority, CredentialsError};
use phoebus_net::{Buffer, CongestionControl};
use phoebus_proto::session::bundle::STREAMS_MAX;
use phoebus_proto::units::{ByteSize, Span};
use phoebus_wan::model::{Loss, Rate};
use phoebus_wan::testbed::{Certificates, Error, GatewayOptions, Sc09, Scenario};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Hosts and an emulated WAN between them, on this machine.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: run and exec exit as their command does, with 128 plus the number of the signal that
ended it; 125 the testbed failed; 126 the command cannot be executed; 127 it was not found. The
others: 0 done; 1 failed. 2 wrong options or scenario.

Examples:
  phoebus testbed run --wan-rtt 100ms -- sh -c 'phoebus testbed exec src -- ping -c 3 dst'
  phoebus testbed up --gateways && phoebus testbed exec pg1 -- phoebus status
  phoebus testbed set wan:forward loss=1% && phoebus testbed status")]
pub struct TestbedArgs {
    #[command(subcommand)]
    pub(crate) command: TestbedCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TestbedCommand {
    /// Build a testbed, run a command beside it, and take it down.
    Run {
        /// Write the testbed's last report, counters included, to this file as JSON.
        #[arg(long, value_name = "FILE")]
        counters: Option<PathBuf>,
        /// Do not print the conditions.
        #[arg(long, short)]
        quiet: bool,
        #[command(flatten)]
        build: Build,
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
        which: TestbedChoice,
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
        which: TestbedChoice,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run a command in a host.
    Exec {
        #[command(flatten)]
        which: TestbedChoice,
        /// The host.
        host: String,
        /// What to run there.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Change a link while packets are under way.
    Set {
        #[command(flatten)]
        which: TestbedChoice,
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
        which: TestbedChoice,
        /// The link.
        link: String,
    },
    /// End a cut.
    Heal {
        #[command(flatten)]
        which: TestbedChoice,
        /// The link.
        link: String,
    },
    /// The process that owns a testbed for `run` and `up`; not for people.
    #[command(hide = true)]
    Supervise,
}

/// Which testbed.
#[derive(Debug, Args)]
pub(crate) struct TestbedChoice {
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
    /// Start a gateway on every gateway host, joined to each other and open to sessions between the other hosts.
    #[arg(long)]
    pub(crate) gateways: bool,
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
    #[arg(long, value_name = "BYTES", help_heading = "Path", value_parser = mtu)]
    pub(crate) mtu: Option<u16>,
    /// Seeds every random draw [default: 1].
    #[arg(long, value_name = "NUMBER", help_heading = "Path", value_parser = seed)]
    pub(crate) seed: Option<u64>,
    /// Congestion control of src and dst [default: cubic].
    #[arg(long, value_name = "NAME", help_heading = "Path")]
    pub(crate) cc: Option<String>,
    /// Congestion control of pg1 and pg2, for programs that do not choose their own.
    #[arg(long, value_name = "NAME", help_heading = "Path")]
    pub(crate) gateway_cc: Option<String>,
    #[command(flatten)]
    pub(crate) between: GatewayArgs,
}

/// How the gateways of a testbed are set.
#[derive(Debug, Args)]
#[command(next_help_heading = "Gateways")]
pub(crate) struct GatewayArgs {
    /// What carries sessions between gateways; auto: what suits the path.
    #[arg(long, value_name = "NAME", requires = "gateways", default_value = "tcp", value_parser = transport)]
    pub(crate) wan_transport: String,
    /// Connections of each hop between gateways [default: 1].
    #[arg(long, value_name = "N", requires = "gateways", value_parser = clap::value_parser!(u16).range(1..=i64::from(STREAMS_MAX)))]
    pub(crate) wan_streams: Option<u16>,
    /// What protects them at least: encrypt, auth or none.
    #[arg(long, value_name = "NAME", requires = "gateways", default_value = "encrypt")]
    pub(crate) wan_security: Security,
    /// Congestion control between gateways: auto, system, bbr, cubic or reno.
    #[arg(long, value_name = "NAME", requires = "gateways")]
    pub(crate) wan_cc: Option<CongestionControl>,
    /// Send buffer between gateways: auto or a size.
    #[arg(long, value_name = "SIZE", requires = "gateways")]
    pub(crate) wan_send_buffer: Option<Buffer>,
    /// Receive buffer between gateways: auto or a size.
    #[arg(long, value_name = "SIZE", requires = "gateways")]
    pub(crate) wan_receive_buffer: Option<Buffer>,
    /// Congestion control of the gateways towards the ends.
    #[arg(long, value_name = "NAME", requires = "gateways")]
    pub(crate) lan_cc: Option<CongestionControl>,
    /// Keep the gateways' logs in this directory.
    #[arg(long, value_name = "DIRECTORY", requires = "gateways")]
    pub(crate) gateway_logs: Option<PathBuf>,
}

/// Protection between gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Security {
    /// Everything is encrypted.
    Encrypt,
    /// Both ends authenticate; data is not encrypted.
    Auth,
    /// Nothing is protected.
    None,
}

impl Security {
    /// The name in configurations.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Auth => "auth",
            Self::None => "none",
        }
    }
}

/// The flags that describe a path, and therefore conflict with a scenario file.
const PATH: [&str; 11] =
    ["wan_rtt", "lan_rtt", "lan_loss", "wan_loss", "rate", "lan_queue", "wan_queue", "mtu", "seed", "cc", "gateway_cc"];

impl Build {
    /// The scenario of the flags or of the file.
    pub(crate) fn scenario(&self) -> Result<Scenario, Error> {
        let mut scenario = match &self.scenario {
            Some(path) => Scenario::load(path)?,
            None => self.path().scenario(),
        };
        scenario.stock |= self.stock;
        Ok(scenario)
    }

    /// Whether the user has chosen a congestion control for the hosts.
    pub(crate) fn asks_for_congestion_control(&self) -> bool {
        self.cc.is_some() || self.gateway_cc.is_some() || self.scenario.is_some()
    }

    /// The gateways to start, if requested.
    pub(crate) fn gateways(&self) -> Result<Option<GatewayOptions>, Error> {
        if !self.gateways {
            return Ok(None);
        }
        let GatewayArgs {
            wan_transport,
            wan_streams,
            wan_security,
            wan_cc,
            wan_send_buffer,
            wan_receive_buffer,
            lan_cc,
            gateway_logs,
        } = &self.between;
        let system = |what: &str| {
            let what = what.to_owned();
            move |source| Error::System { what, source }
        };
        let program = std::env::current_exe().map_err(system("cannot find this program's own file"))?;
        let logs =
            gateway_logs.as_ref().map(std::path::absolute).transpose().map_err(system("cannot use --gateway-logs"))?;
        let text = |key: &str, value: Option<String>| value.map(|value| (key.to_owned(), value));
        let wan = [
            text("congestion_control", wan_cc.map(|cc| cc.to_string())),
            text("send_buffer", wan_send_buffer.map(|size| size.to_string())),
            text("receive_buffer", wan_receive_buffer.map(|size| size.to_string())),
        ];
        let lan = text("congestion_control", lan_cc.map(|cc| cc.to_string()));
        let (wan, lan) = (wan.into_iter().flatten().collect(), BTreeMap::from_iter(lan));
        let hosts = self.scenario()?.hosts.into_iter().map(|host| host.name);
        let certificates = certificates(hosts);
        let certificates =
            Some(certificates.map_err(|error| system("cannot make certificates")(io::Error::other(error)))?);
        let (transport, security) = (Some(wan_transport.clone()), Some(wan_security.name().to_owned()));
        let streams = *wan_streams;
        Ok(Some(GatewayOptions { program, transport, streams, security, certificates, wan, lan, logs }))
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

/// Certificates for these hosts, from a temporary authority.
pub(crate) fn certificates(hosts: impl Iterator<Item = String>) -> Result<Certificates, CredentialsError> {
    /// Longer than any testbed lives.
    const LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
    let now = SystemTime::now();
    let (authority, own) = Authority::create("testbed", now)?;
    let issue = |host: String| {
        let issued = authority.issue(&host, &[], now, LIFE)?;
        Ok((host, (issued.certificate, issued.key)))
    };
    Ok(Certificates { authority: own.certificate, hosts: hosts.map(issue).collect::<Result<_, _>>()? })
}

fn transport(text: &str) -> Result<String, String> {
    let mut names = phoebus_gateway::transports();
    names.push("auto".to_owned());
    match names.iter().any(|name| name == text) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected one of: {}", names.join(", "))),
    }
}

fn mtu(text: &str) -> Result<u16, String> {
    let least = Scenario::MTU_MIN;
    let bytes = text.parse().ok().filter(|bytes| *bytes >= least);
    bytes.ok_or_else(|| format!("expected a number of bytes from {least}, which IPv6 needs, to {}", u16::MAX))
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}
