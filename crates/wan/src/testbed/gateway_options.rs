//! What gateways a testbed is to have.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// What gateways to start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GatewayOptions {
    /// The `phoebus` program.
    pub program: PathBuf,
    /// What carries sessions between gateways, by its name in their configuration; TCP if nothing is said.
    pub transport: Option<String>,
    /// What protects the connections between gateways, by its name in their configuration; nothing if nothing is said.
    pub security: Option<String>,
    /// Connections of each hop between gateways; one if nothing is said.
    #[serde(default)]
    pub streams: Option<u16>,
    /// With them the gateways take QUIC and, on the next port, UDT beside TCP, and the ends' programs have certificates of their
    /// own to show; a transport or protection may need them.
    pub certificates: Option<Certificates>,
    /// Settings of the profile towards other gateways, by their keys in a gateway's configuration, such as
    /// `congestion_control`.
    pub wan: BTreeMap<String, String>,
    /// The same towards the ends.
    pub lan: BTreeMap<String, String>,
    /// Where the gateways' logs go; otherwise into the testbed's directory, which goes with the testbed.
    pub logs: Option<PathBuf>,
}

/// Certificates and keys for the hosts of one testbed, in PEM.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Certificates {
    /// The certificate of the authority that all trust.
    pub authority: String,
    /// Each host's certificate and key.
    pub hosts: BTreeMap<String, (String, String)>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.hosts.keys()).finish()
    }
}
