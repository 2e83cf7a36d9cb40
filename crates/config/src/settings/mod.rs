//! What a client is told by its user and its administrator (P30, P32, P38): variables, and files of the same names.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `PHOEBUS_GW` | the first gateway, `host/port`; its routes choose the rest | none: all connections are direct |
//! | `PHOEBUS_PATH` | the whole path, `host/port,host/port`; overrides `PHOEBUS_GW` | |
//! | `PHOEBUS_ONLY`, `PHOEBUS_EXCEPT` | which destinations go through gateways ([`crate::select`]) | all but this host's own |
//! | `PHOEBUS_USER` | an e-mail address for anonymous sessions (P26) | none |
//! | `PHOEBUS_DISABLE` | `1`: as if Phoebus were not there | `0` |
//! | `PHOEBUS_CC` | congestion control of the first hop, or `system` to leave it alone | `bbr`, where it is permitted |
//! | `PHOEBUS_BYPASS_RTT` | destinations whose path measured a shorter round trip go direct (S26); `0`: none | `0` |
//! | `PHOEBUS_FALLBACK` | `1`: go direct when the first gateway cannot be reached | `0` |
//! | `PHOEBUS_REPORT` | a file to which each session's report is appended, one line of JSON each | none |
//! | `PHOEBUS_VERBOSE` | `1`: say on standard error what happens | `0` |
//! | `PHOEBUS_FIRST_HOP` | what carries the first hop: `quic`, `udt`, `tls` or `auto` by way of an agent, `tcp` without one ([`crate::agent`]) | an agent that runs, otherwise `tcp` |
//! | `PHOEBUS_CA` | the authorities that may vouch for the first gateway, a PEM file | none |
//! | `PHOEBUS_CERT`, `PHOEBUS_KEY` | this user's certificate and its key, PEM files, for gateways that want to see one | none |
//! | `X509_USER_PROXY` | this user's proxy certificate, for gateways that ask for one, unless `PHOEBUS_CERT` is set | none |
//! | `PHOEBUS_BANDWIDTH` | how much the gateways are asked to keep free for each session, such as `100mbit` | none |
//! | `PHOEBUS_AGENT_IDLE` | how long an idle agent waits before it ends | `5m` |
//! | `PHOEBUS_CACHE` | the file that remembers round trips for `PHOEBUS_BYPASS_RTT` | `~/.cache/phoebus/bypass` |
//!
//! A file has a line `NAME=value` for each setting, empty lines, and comments that begin with `#`. The environment overrides
//! the user's file, and that overrides the administrator's. A file with an error is refused as a whole; the error names the line.

mod files;
mod key;
mod read;
mod value;

pub use files::{ADMINISTRATOR_FILE, FILE_MAX, contents, user_file};
pub use key::Key;
pub use read::{File, SettingsError};
pub use value::CONGESTION_CONTROL_MAX;

use crate::first_hop::FirstHop;
use crate::select::Selection;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::units::BitRate;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The default congestion control of the first hop: the one in Linux that loss hurts least. Unprivileged programs get it only
/// if `net.ipv4.tcp_allowed_congestion_control` lists it; the report tells what is in force.
pub const DEFAULT_CONGESTION_CONTROL: &str = "bbr";
/// How long an idle agent runs by default: what its connections have learned about the path is rarely true for longer.
pub const AGENT_IDLE: Duration = Duration::from_secs(300);

/// The settings of a client. `Default` is a client without gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Gateways, the first hop first. Empty: all connections are direct. One gateway may choose further ones.
    pub path: Vec<Endpoint>,
    /// Only these destinations use gateways.
    pub only: Option<Selection>,
    /// These destinations do not.
    pub except: Option<Selection>,
    /// E-mail address of anonymous sessions (P26).
    pub user: Option<String>,
    /// Whether Phoebus is switched off.
    pub disabled: bool,
    /// Congestion control to ask for on the first hop; `None` leaves the system's.
    pub congestion_control: Option<String>,
    /// Destinations with a shorter round trip are connected directly (S26); zero: none.
    pub bypass_rtt: Duration,
    /// Whether to connect directly if the first gateway cannot be reached.
    pub fallback: bool,
    /// The file to which session reports are appended.
    pub report: Option<PathBuf>,
    /// Whether to report on standard error.
    pub verbose: bool,
    /// The file that remembers round trips.
    pub cache: Option<PathBuf>,
    /// The transport of the first hop, if one is required; otherwise an agent is used if one runs.
    pub first_hop: Option<FirstHop>,
    /// Certificates of the trusted authorities for the first gateway.
    pub authorities: Option<PathBuf>,
    /// This user's certificate, for gateways that require one.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// This user's proxy certificate (RFC 3820) with its key, for gateways that ask for one.
    pub proxy: Option<PathBuf>,
    /// Bandwidth to ask for with every session. Short paths then use gateways, too.
    pub bandwidth: Option<BitRate>,
    /// How long an idle agent runs.
    pub agent_idle: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            path: Vec::new(),
            only: None,
            except: None,
            user: None,
            disabled: false,
            congestion_control: Some(DEFAULT_CONGESTION_CONTROL.to_owned()),
            bypass_rtt: Duration::ZERO,
            fallback: false,
            report: None,
            verbose: false,
            cache: None,
            first_hop: None,
            authorities: None,
            certificate: None,
            key: None,
            proxy: None,
            bandwidth: None,
            agent_idle: AGENT_IDLE,
        }
    }
}

impl Settings {
    /// Whether a connection to `addr`, looked up under `names`, uses gateways (P33).
    ///
    /// At the far end, this host's own addresses (loopback, link-local, unspecified) mean another host. So they are connected
    /// directly, unless `PHOEBUS_ONLY` has a range that contains them.
    pub fn selects<'a>(&self, addr: SocketAddr, names: impl Iterator<Item = &'a str> + Clone) -> bool {
        let wanted = match &self.only {
            Some(only) if is_loopback_or_link(addr.ip().to_canonical()) => only.matches_address(addr),
            Some(only) => only.matches(addr, names.clone()),
            None => !is_loopback_or_link(addr.ip().to_canonical()),
        };
        wanted
            && !self.disabled
            && !self.path.is_empty()
            && !self.except.as_ref().is_some_and(|e| e.matches(addr, names))
    }

    /// The same for a name that was not looked up: address ranges do not match it.
    pub fn selects_name(&self, name: &str, port: u16) -> bool {
        let own = name == "localhost" || name.ends_with(".localhost");
        self.only.as_ref().map_or(!own, |only| only.matches_name(name, port))
            && !self.disabled
            && !self.path.is_empty()
            && !self.except.as_ref().is_some_and(|except| except.matches_name(name, port))
    }
}

/// Whether every host has this address for itself or its links: loopback, link-local, unspecified. At the far end it would
/// mean another host.
pub fn is_loopback_or_link(ip: IpAddr) -> bool {
    ip.is_loopback()
        || ip.is_unspecified()
        || match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
}

#[cfg(test)]
mod tests;
