//! The options `--transport` and `--first-hop`: transports and first hops that an experiment compares.

use super::bed::{Bed, BedRoute};
use super::hop::Wan;
use crate::testbed::Security;
use anyhow::Result;
use std::process::Command;

/// What is compared.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Transports")]
pub(crate) struct Compared {
    /// Compares what carries the WAN instead: bbr, cubic, reno, quic, udt, udt-native, auto.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(super) transport: Vec<Wan>,
    /// What carries the first hop: cubic or bbr of the program's own TCP, or quic or udt by an agent
    /// [default: what suits the experiment].
    #[arg(long, value_delimiter = ',', value_name = "NAME", requires = "transport")]
    first_hop: Vec<FirstHop>,
    /// What protects the hop between the gateways; QUIC is always encrypted.
    #[arg(long, value_name = "NAME", requires = "transport", default_value = "encrypt")]
    security: Security,
}

impl Compared {
    /// Whether any transport was requested.
    pub(super) fn any(&self) -> bool {
        !self.transport.is_empty()
    }

    /// The requested transports between the gateways.
    pub(super) fn wans(&self) -> Vec<Wan> {
        self.transport.iter().map(|wan| wan.clone().secured(self.security)).collect()
    }

    /// The requested first hops, or `usual` if none were requested.
    pub(super) fn hops(&self, usual: &[FirstHop]) -> Vec<FirstHop> {
        if self.first_hop.is_empty() { usual.to_vec() } else { self.first_hop.clone() }
    }

    /// No comparison.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self { transport: Vec::new(), first_hop: Vec::new(), security: Security::Encrypt }
    }
}

/// What carries sessions from `src` to the first gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FirstHop {
    /// The program's own TCP connection under cubic, as on most hosts.
    Cubic,
    /// The same under bbr, where the host permits it to the shim.
    Bbr,
    /// QUIC, by an agent at `src`.
    Quic,
    /// UDT with TLS, by an agent at `src`.
    Udt,
}

impl FirstHop {
    /// The prefix in a row's identifier; empty for an unchanged host.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Cubic => "",
            Self::Bbr => "hop-bbr+",
            Self::Quic => "hop-quic+",
            Self::Udt => "hop-udt+",
        }
    }

    /// Sets the environment of `command`, which runs at `src`, to use this first hop. Returns the agent's process, if
    /// there is one.
    pub(super) fn route(self, bed: &mut Bed, command: &mut Command) -> Result<Option<u32>> {
        match self {
            Self::Cubic => bed.route(command, BedRoute::Phoebus, Some("cubic")).map(|()| None),
            Self::Bbr => bed.route(command, BedRoute::Phoebus, Some("bbr")).map(|()| None),
            Self::Quic => bed.route_by_agent(command, "quic").map(Some),
            // The address on which a testbed's gateways accept the program's own TCP.
            Self::Udt => bed.route_by_agent(command, "udt/5007").map(Some),
        }
    }
}
