//! Options that stand for the variables of a client: `--gateway` for `PHOEBUS_GW`, and so on. An option stands before
//! the environment.

use crate::exit::Exit;
use phoebus_client::{Report, environment};
use phoebus_config::settings::{DEFAULT_CONGESTION_CONTROL, Key, Settings};
use std::io::Write;

/// The gateways, and their use.
#[derive(clap::Args)]
pub(crate) struct Route {
    /// First gateway; its routes choose the rest [env: PHOEBUS_GW]
    #[arg(long, short, value_name = "HOST/PORT")]
    gateway: Option<String>,
    /// All gateways in order, in place of --gateway [env: PHOEBUS_PATH]
    #[arg(long, value_name = "HOST/PORT,...", conflicts_with = "gateway")]
    path: Option<String>,
    /// Congestion control of the first hop, or "system" [env: PHOEBUS_CC; default: bbr where it is permitted]
    #[arg(long, value_name = "NAME")]
    cc: Option<String>,
    /// E-mail address for gateways that ask for one [env: PHOEBUS_USER]
    #[arg(long, value_name = "ADDRESS")]
    user: Option<String>,
    /// Ask the gateways to reserve this rate for each connection, such as 100mbit, or to refuse it [env:
    /// PHOEBUS_BANDWIDTH]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    bandwidth: Option<String>,
    /// Connect directly if the first gateway cannot be reached [env: PHOEBUS_FALLBACK=1]
    #[arg(long)]
    fallback: bool,
    /// Connect directly to destinations whose measured round trip was shorter than this, such as 2ms [env:
    /// PHOEBUS_BYPASS_RTT]
    #[arg(long, value_name = "DURATION")]
    bypass_rtt: Option<String>,
    /// Append each session's report to this file, in JSON [env: PHOEBUS_REPORT]
    #[arg(long, value_name = "FILE")]
    report: Option<String>,
    /// Report each connection on standard error [env: PHOEBUS_VERBOSE=1]
    #[arg(long, short)]
    verbose: bool,
    /// Transport of the first hop: quic, udt, tls or auto, through an agent that is started if none runs; or tcp [env:
    /// PHOEBUS_FIRST_HOP]
    #[arg(long, value_name = "NAME[/PORT]", help_heading = "First hop")]
    first_hop: Option<String>,
    /// Trusted authorities for the first gateway's certificate (PEM file) [env: PHOEBUS_CA]
    #[arg(long, value_name = "FILE", help_heading = "First hop")]
    ca: Option<String>,
    /// Your certificate, for gateways that require one (PEM file) [env: PHOEBUS_CERT]
    #[arg(long, value_name = "FILE", help_heading = "First hop")]
    cert: Option<String>,
    /// The certificate's private key (PEM file) [env: PHOEBUS_KEY]
    #[arg(long, value_name = "FILE", help_heading = "First hop")]
    key: Option<String>,
    /// How long an unused agent keeps running [env: PHOEBUS_AGENT_IDLE; default: 5m]
    #[arg(long, value_name = "DURATION", help_heading = "First hop")]
    agent_idle: Option<String>,
}

/// A variable to be set, or to be removed because an option replaces it.
pub(crate) type Variable = (Key, Option<String>);

impl Route {
    /// The variables that these options stand for.
    pub(crate) fn variables(self) -> Vec<Variable> {
        let switch = |on: bool| on.then(|| "1".to_owned());
        let mut variables: Vec<Variable> = [
            (Key::Gateway, self.gateway),
            (Key::Path, self.path),
            (Key::CongestionControl, self.cc),
            (Key::User, self.user),
            (Key::Bandwidth, self.bandwidth),
            (Key::Fallback, switch(self.fallback)),
            (Key::BypassRtt, self.bypass_rtt),
            (Key::Report, self.report.map(absolute)),
            (Key::Verbose, switch(self.verbose)),
            (Key::FirstHop, self.first_hop),
            (Key::Authorities, self.ca.map(absolute)),
            (Key::Certificate, self.cert.map(absolute)),
            (Key::PrivateKey, self.key.map(absolute)),
            (Key::AgentIdle, self.agent_idle),
        ]
        .into_iter()
        .filter(|(_, value)| value.is_some())
        .collect();
        // The environment's path would stand before this gateway.
        if variables.iter().any(|(key, _)| *key == Key::Gateway) {
            variables.push((Key::Path, None));
        }
        variables
    }
}

/// The settings that these variables, the environment and the files amount to.
///
/// # Errors
/// One sentence, exit code 2.
pub(crate) fn settings(variables: &[Variable]) -> anyhow::Result<Settings> {
    // An option is named as such when it is wrong, the environment when that is.
    for (key, value) in variables {
        if let Some(value) = value {
            Settings::default().apply(*key, value).map_err(|why| Exit::usage(format!("{}: {why}", option(*key))))?;
        }
    }
    let settings = environment::load(|name| match variables.iter().find(|(key, _)| key.name() == name) {
        Some((_, value)) => value.clone(),
        None => environment::variable(name),
    })
    .map_err(|error| Exit::usage(error.to_string()))?;
    check_congestion_control(&settings, variables)?;
    Ok(settings)
}

/// A requested congestion control must exist in this kernel. The default may be missing, or forbidden, which each
/// session's report says.
fn check_congestion_control(settings: &Settings, variables: &[Variable]) -> anyhow::Result<()> {
    let asked = variables.iter().any(|(key, value)| *key == Key::CongestionControl && value.is_some());
    let named = settings.congestion_control.as_deref().filter(|name| asked || *name != DEFAULT_CONGESTION_CONTROL);
    let Some(name) = named.filter(|_| !settings.disabled) else { return Ok(()) };
    match phoebus_net::tcp::has_congestion_control(name) {
        Ok(false) => {
            let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
            let known = known.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(", ");
            let expected = format!("expected one of {known}, or system for the host's own");
            Err(Exit::usage(format!("--cc (PHOEBUS_CC): this host's kernel has no \"{name}\"; {expected}")))
        }
        // Without a socket the program has other worries.
        Ok(true) | Err(_) => Ok(()),
    }
}

/// Makes sure that reports can be written where they are wanted, before anything is begun.
///
/// # Errors
/// One sentence, exit code 2.
pub(crate) fn check_report(settings: &Settings) -> anyhow::Result<()> {
    let Some(file) = &settings.report else { return Ok(()) };
    phoebus_files::append_to(file).map(drop).map_err(|error| {
        let why = phoebus_client::reason(&error);
        Exit::usage(format!("PHOEBUS_REPORT (--report): cannot write {}: {why}", file.display()))
    })
}

/// Appends the report of a session, if requested. A failure is reported, and does not stop anything.
pub(crate) fn append_report(settings: &Settings, report: &Report) {
    let Some(file) = &settings.report else { return };
    let line = serde_json::to_string(report).unwrap_or_default();
    let append = phoebus_files::append_to(file);
    if let Err(error) = append.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())) {
        let why = phoebus_client::reason(&error);
        eprintln!("phoebus: cannot write the report to {}: {why}", file.display());
    }
}

/// The option that stands for a variable.
fn option(key: Key) -> &'static str {
    match key {
        Key::Gateway => "--gateway",
        Key::Path => "--path",
        Key::Only => "--only",
        Key::Except => "--except",
        Key::User => "--user",
        Key::Disable => "PHOEBUS_DISABLE",
        Key::CongestionControl => "--cc",
        Key::BypassRtt => "--bypass-rtt",
        Key::Fallback => "--fallback",
        Key::Report => "--report",
        Key::Verbose => "--verbose",
        Key::Cache => "PHOEBUS_CACHE",
        Key::FirstHop => "--first-hop",
        Key::Authorities => "--ca",
        Key::Certificate => "--cert",
        Key::PrivateKey => "--key",
        Key::Bandwidth => "--bandwidth",
        Key::AgentIdle => "--agent-idle",
    }
}

/// On the command line a file is relative to the directory that the user is in.
fn absolute(file: String) -> String {
    std::path::absolute(&file).ok().and_then(|path| path.into_os_string().into_string().ok()).unwrap_or(file)
}
