//! `phoebus agent`: the gateway on loopback that carries the first hop of one user's programs over QUIC, UDT or TLS
//! (S1, S12; docs/guide/run.md, "A better first hop").
//!
//! - [`start::ensure`] is what `phoebus run` and `phoebus connect` do: find the agent that runs, or start one. So does
//!   [`start::for_proxy`], for programs that come to the agent by SOCKS or HTTP.
//! - `claim` holds the files by which it is found: a lock that ends with the process, and a secret for this user's
//!   eyes.
//! - Here is the agent itself: it proves its gateway first, then serves until nobody has used it for a while.

mod claim;
mod hint;
mod start;

pub(crate) use start::{AgentHandle, ensure, for_proxy};

use crate::exit::{self, Exit};
use crate::gateway::start_log;
use crate::options::{self, Route};
use anyhow::{Context, Result, anyhow};
use claim::Claim;
use phoebus_client::Agents;
use phoebus_client::environment::variable;
use phoebus_config::agent::{Running, Secret};
use phoebus_config::bearer::BearerPlaces;
use phoebus_config::first_hop::{By, FirstHop};
use phoebus_config::logins::Logins;
use phoebus_config::settings::{Key, Settings};
use phoebus_gateway::Gateway;
use phoebus_gateway::config::{Agent, Allowed, Config, Log, LogLevel};
use phoebus_net::CongestionControl;
use phoebus_net::credentials::{CredentialFiles, Credentials};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::units::Span;
use std::io::Write;
use std::net::{Ipv6Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{SignalKind, signal};

/// Longest interval between checks whether the agent is used.
const LOOK: Duration = Duration::from_secs(1);
/// How long an agent that has removed its name still serves programs that had found it: far longer than they need.
const GRACE: Duration = Duration::from_secs(1);
/// Longest wait for the gateway: longer than its own attempts with each transport in turn, and with a name.
const START_TIME: Duration = Duration::from_secs(30);
/// Log target of lines about the transport of the hop and its reason, which are logged without a failure.
const CHOICES: &str = "phoebus_gateway::pool::choosing";
/// Default port of TLS.
const TCP: &str = "tcp";
/// First line on standard output once the agent can be used, followed by notes about the first hop.
const READY: &str = "ready";

/// Carry the first hop of your programs over QUIC, UDT or TLS
///
/// `phoebus run --first-hop quic` starts an agent if none runs. It ends after it has been unused for a while
/// (--agent-idle). Only programs of the same user can use it. Started by hand, it stays in the foreground.
#[derive(clap::Args)]
#[command(after_help = "\
Exit codes: 0 unused for too long, or stopped by a signal; 1 it failed; 2 wrong options, variables or configuration; \
3 the gateway cannot be reached over this first hop.

Example:
  phoebus agent --gateway pg1.example/5006 --first-hop quic --ca ca.pem
")]
pub(crate) struct Args {
    #[command(flatten)]
    route: Route,
    /// Leave the terminal and the process that started it
    #[arg(long, hide = true)]
    background: bool,
    /// The second half of that
    #[arg(long, hide = true, conflicts_with = "background")]
    detached: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if args.background {
        return detach();
    }
    let settings = options::settings(&args.route.variables())?;
    let plan = Plan::of(&settings)?;
    if args.detached {
        rustix::process::setsid().context("cannot leave the terminal")?;
    }
    // The log is in memory on many systems, so lines of each session are left out.
    start_log(&Log { level: LogLevel::Warn, ..Log::default() }, false, Some(CHOICES))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let result = runtime.block_on(plan.serve(args.detached));
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

/// Starts the agent as a process of its own: the caller becomes a program that knows nothing of it.
fn detach() -> Result<ExitCode> {
    let arguments = std::env::args_os().skip(1).filter(|word| word != "--background");
    let mut agent = Command::new("/proc/self/exe");
    agent.arg0("phoebus").args(arguments).arg("--detached").stdin(Stdio::null());
    agent.spawn().context("cannot start the agent")?;
    Ok(ExitCode::SUCCESS)
}

/// The settings of an agent.
pub(crate) struct Plan {
    settings: Settings,
    first_hop: FirstHop,
    gateway: Endpoint,
    /// `None` for a first hop by TCP.
    credentials: Option<Credentials>,
    agents: Agents,
}

impl Plan {
    /// The settings for an agent, if `settings` ask for something that it can do.
    ///
    /// # Errors
    /// One sentence with what is missing and how to get it; exit code 2.
    pub(crate) fn of(settings: &Settings) -> Result<Self> {
        let gateway = settings.path.first().cloned().ok_or_else(|| {
            Exit::usage("a first hop leads to a gateway, and none is set; give --gateway HOST/PORT or set PHOEBUS_GW")
        })?;
        let first_hop = settings.first_hop.ok_or_else(|| {
            Exit::usage(
                "an agent is for a first hop by quic, udt, tls or auto, or by tcp for programs that use a proxy; give \
                 --first-hop or set PHOEBUS_FIRST_HOP",
            )
        })?;
        let agents = Agents::for_proxy(settings, variable).ok_or_else(|| Exit::usage("PHOEBUS_DISABLE is set"))?;
        let is_protected = first_hop.by != By::Tcp;
        let credentials = is_protected.then(|| credentials(settings, first_hop, &gateway)).transpose()?;
        Ok(Self { settings: settings.clone(), first_hop, gateway, credentials, agents })
    }

    /// Runs the agent until its end.
    async fn serve(self, detached: bool) -> Result<()> {
        let mut terminated = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        let mut interrupted = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
        claim::make_directory(self.agents.directory())?;
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| anyhow!("the system gave no random bytes: {error}"))?;
        let secret = Secret(secret);
        let (gateway, note) = self.connect(secret).await?;
        let mut addresses = gateway.addresses().into_iter();
        let running = Running { addresses: [addresses.next(), addresses.next()], secret };
        let mut claim = Claim::make(&self.agents, &running)?;
        let notes: Vec<String> = self.unusable_proxy().into_iter().chain((!note.is_empty()).then_some(note)).collect();
        self.announce(detached, &notes.join("; "))?;
        let idle = self.settings.agent_idle;
        let mut used = Instant::now();
        loop {
            tokio::select! {
                _ = terminated.recv() => break,
                _ = interrupted.recv() => break,
                () = tokio::time::sleep(LOOK.min(idle / 4).max(Duration::from_millis(10))) => {}
            }
            if gateway.is_busy() || claim.is_held() {
                used = Instant::now();
            } else if used.elapsed() >= idle && claim.leave(|| gateway.close_admin()) {
                tokio::time::sleep(GRACE).await;
                while gateway.is_busy() {
                    tokio::time::sleep(LOOK).await;
                }
                break;
            }
        }
        // Another agent may start while this one still serves.
        gateway.close_admin();
        drop(claim);
        gateway.drain().await;
        Ok(())
    }

    /// The agent's gateway, connected to the user's by the first available transport; and notes about unavailable ones.
    async fn connect(&self, secret: Secret) -> Result<(Gateway, String)> {
        let gateway = Gateway::start(self.configuration(secret))?;
        let name = self.gateway.host.to_string();
        let why = match tokio::time::timeout(START_TIME, gateway.try_peer(&name)).await {
            Ok(Ok(())) => {
                let note = instead(&gateway);
                return Ok((gateway, note));
            }
            Ok(Err(failed)) => match &failed[..] {
                [(transport, why)] => {
                    hint::with_options(why) + &hint::of_silence(transport, why, &self.gateway, self.port())
                }
                several => failures(several),
            },
            Err(_) => format!("{name} did not answer within {}", Span(START_TIME)),
        };
        // A gateway that cannot be reached is not waited for.
        gateway.end().await;
        Err(Exit::with(exit::UNREACHABLE, format!("no first hop by {} to {}: {why}", self.first_hop, self.gateway)))
    }

    /// The note about a proxy certificate that no gateway can be shown.
    fn unusable_proxy(&self) -> Option<String> {
        let file = self.settings.proxy.as_deref().filter(|_| self.credentials.is_some())?;
        let problem = match file.is_absolute() {
            // The agent has left the working directory.
            false => format!("\"{}\" is not an absolute file name", file.display()),
            true => Credentials::check_proxy(file, SystemTime::now()).err()?.to_string(),
        };
        Some(format!("gateways are shown no Grid proxy (X509_USER_PROXY): {problem}"))
    }

    /// The gateway's port for the first hop.
    fn port(&self) -> u16 {
        self.first_hop.port.map_or(self.gateway.port, Into::into)
    }

    fn configuration(&self, secret: Secret) -> Config {
        let port = self.port();
        let transports: &[(By, Option<u16>)] = match self.first_hop.by {
            // QUIC uses the session port, over UDP.
            By::Auto => &[(By::Quic, None), (By::Udt, Some(port.saturating_add(1))), (By::Tls, None)],
            by => &[(by, None)],
        };
        let allowed = |&(by, port): &(By, Option<u16>)| Allowed {
            transport: if by == By::Tls { TCP.to_owned() } else { by.name().to_owned() },
            port,
        };
        let congestion_control = match self.settings.congestion_control.as_deref() {
            None => CongestionControl::System,
            Some("bbr") => CongestionControl::Auto,
            Some(name) => name.parse().unwrap_or(CongestionControl::Auto),
        };
        Config::agent(Agent {
            gateway: self.gateway.clone(),
            port,
            allowed: transports.iter().map(allowed).collect(),
            congestion_control,
            credentials: self.credentials.clone(),
            contact: self.settings.user.clone(),
            logins: Logins::place(variable),
            bearer: Some(BearerPlaces::of(variable)),
            secret,
            ipv6: TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok(),
            admin: claim::admin_socket(&self.agents),
        })
    }

    /// Tells the starter that programs can connect.
    fn announce(&self, detached: bool, note: &str) -> Result<()> {
        let mut out = std::io::stdout();
        if !detached {
            writeln!(out, "an agent carries first hops to {} by {}", self.gateway, self.first_hop)?;
            if !note.is_empty() {
                writeln!(out, "{note}")?;
            }
            return Ok(());
        }
        writeln!(out, "{READY} {note}").and_then(|()| out.flush()).context("whoever started the agent is gone")?;
        let nothing = std::fs::OpenOptions::new().write(true).open("/dev/null").context("cannot open /dev/null")?;
        rustix::stdio::dup2_stdout(&nothing).context("cannot let go of standard output")?;
        std::env::set_current_dir("/").context("cannot leave the working directory")
    }
}

/// The note if `agent` could not use the preferred transport.
fn instead(agent: &Gateway) -> String {
    let pool = agent.status().pools.into_iter().next();
    let Some((transport, choice)) = pool.and_then(|pool| Some((pool.transport, pool.choice?))) else {
        return String::new();
    };
    match choice.failed.is_empty() {
        true => String::new(),
        false => format!("the first hop goes by {}, since {}", called(&transport), failures(&choice.failed)),
    }
}

/// Unavailable transports, with reasons.
fn failures(failed: &[(String, String)]) -> String {
    let failed = failed.iter().map(|(transport, why)| {
        let why = hint::with_options(why);
        format!("{} was not available: {why}", called(transport))
    });
    failed.collect::<Vec<_>>().join("; ")
}

/// The name of a transport for `--first-hop`.
fn called(transport: &str) -> &str {
    if transport == TCP { By::Tls.name() } else { transport }
}

/// Trusted authorities of the agent, and the user's certificate.
fn credentials(settings: &Settings, first_hop: FirstHop, gateway: &Endpoint) -> Result<Credentials> {
    let Some(authorities) = settings.authorities.clone() else {
        return Err(Exit::usage(format!(
            "a first hop by {first_hop} has to know whom to trust: set {} (--ca) to a file with the authority that signed \
             the certificate of {}; whoever runs that gateway has it, as ca.pem if phoebus cert init made it",
            Key::Authorities,
            gateway.host
        )));
    };
    let lacks = |has: Key, lacks: Key, option: &str| {
        Exit::usage(format!(
            "{has} is set and {lacks} ({option}) is not; expected both, which phoebus cert init makes, or none, for a gateway \
             that wants to see no certificate"
        ))
    };
    let loaded = match (settings.certificate.clone(), settings.key.clone()) {
        (Some(certificate), Some(key)) => Credentials::load(CredentialFiles { certificate, key, authorities }),
        (None, None) => Credentials::trusting(&authorities).map(|own| own.with_proxy(settings.proxy.clone())),
        (Some(_), None) => return Err(lacks(Key::Certificate, Key::PrivateKey, "--key")),
        (None, Some(_)) => return Err(lacks(Key::PrivateKey, Key::Certificate, "--cert")),
    };
    loaded.map_err(Exit::usage)
}
