//! Options for the gateways of a testbed.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The gateways to start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GatewayOptions {
    /// The `phoebus` program.
    pub program: PathBuf,
    /// Transport between gateways, by its name in their configuration; `None` selects TCP.
    pub transport: Option<String>,
    /// Protection of connections between gateways, by its name in their configuration; `None` selects none.
    pub security: Option<String>,
    /// Number of connections of each hop between gateways; `None` selects one.
    #[serde(default)]
    pub streams: Option<u16>,
    /// Certificates for gateways and ends. With them the gateways also listen for QUIC and, on the next port,
    /// UDT, and programs on the ends can present certificates; some transports and protections require them.
    pub certificates: Option<Certificates>,
    /// Settings of the profile towards other gateways, by their keys in a gateway's configuration, such as
    /// `congestion_control`.
    pub wan: BTreeMap<String, String>,
    /// Settings of the profile towards the ends.
    pub lan: BTreeMap<String, String>,
    /// Directory for the gateways' logs; `None` selects the testbed's directory, which is removed with the
    /// testbed.
    pub logs: Option<PathBuf>,
}

/// Certificates and keys for the hosts of one testbed, in PEM.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Certificates {
    /// The certificate of the authority that all hosts trust.
    pub authority: String,
    /// Each host's certificate and key.
    pub hosts: BTreeMap<String, (String, String)>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.hosts.keys()).finish()
    }
}
