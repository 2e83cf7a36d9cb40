//! Data connections, and what carries them.

use super::Reach;
use phoebus_proto::units::{ByteSize, Span};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Data connections.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Ports that are listened on, as `[first, last]`: for firewalls. Any that is free by default.
    pub ports: Option<(u16, u16)>,
    /// What clients are told to connect to, where address translation gives the server another address.
    pub public: Option<IpAddr>,
    /// Gateways from which data connections are taken as from the control connection's peer: those whose sessions end here.
    pub gateways: Vec<IpAddr>,
    /// Whom data connections may be made to beside the control connection's peer, for users with `third_party` and those whose data
    /// connections prove who is at their ends. `public` addresses by default; ranges name others, such as those of a site's own network.
    pub third_party_to: Reach,
    /// What may carry data connections, the first of which does unless a client asks for another (`SITE SETNETSTACK`). `tcp` by
    /// default; `udt`, `quic`, `phoebus`, `rate` and the libraries below are the others.
    pub drivers: Vec<String>,
    /// The stack of drivers that carries them in the place of the first driver, as clients write it.
    pub stack: Option<String>,
    /// Drivers that are loaded.
    #[serde(rename = "driver")]
    pub libraries: Vec<DriverLibrary>,
    /// Gateways of the driver `phoebus`.
    pub sessions: Sessions,
    /// Connections over which one transfer may go. 64 by default.
    pub streams: u32,
    /// Connections of all transfers together whose bytes the kernel moves, on a thread each. 64 by default: far more than keep a network
    /// busy, and far below what the runtime has threads for.
    pub threads: usize,
    /// For how long one has its thread while others wait for one. 20 ms by default.
    pub turn: Span,
    /// Blocks that are read, sent and written at once. 1 MiB by default.
    pub block: ByteSize,
    /// The largest socket buffers that clients may ask for. 1 GiB by default; the kernel has a limit of its own.
    pub buffer: ByteSize,
    /// How long connecting may take, and how long a connection is waited for. 60 s by default.
    pub patience: Span,
    /// How long nothing may move. 2 minutes by default: longer than paths take to heal.
    pub stall: Span,
    /// How long the control connection has to stay, beyond a round trip, after a stream that ends as it would if its sender had been killed
    /// (MODE S in clear, of unknown length), before the file gets its name. 100 ms by default: the ends of a killed process's
    /// connections come within some tens of each other.
    pub quiet: Span,
    /// Between markers of what has arrived. 5 s by default, as in GCT's server.
    pub markers: Span,
}

/// A driver that is loaded (`docs/guide/drivers.md`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverLibrary {
    /// What clients call it.
    pub name: String,
    /// The shared library, by its absolute path.
    pub library: PathBuf,
    /// Its options, on every connection.
    #[serde(default)]
    pub options: BTreeMap<String, toml::Value>,
}

impl DriverLibrary {
    /// Its options as texts.
    pub(in super::super) fn texts(&self) -> Result<BTreeMap<String, String>, String> {
        let text = |(key, value): (&String, &toml::Value)| match value {
            toml::Value::String(text) => Ok((key.clone(), text.clone())),
            toml::Value::Integer(number) => Ok((key.clone(), number.to_string())),
            toml::Value::Boolean(yes) => Ok((key.clone(), yes.to_string())),
            _ => Err(format!("option {key} is not a text, a number, true or false")),
        };
        self.options.iter().map(text).collect()
    }
}

/// Sessions by which data connections are made (the driver `phoebus`).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sessions {
    /// The gateways, as `host/port`, the first hop first, where a client names none.
    pub path: Vec<String>,
    /// Gateways beside those that clients may name.
    pub gateways: Vec<String>,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            ports: None,
            public: None,
            gateways: Vec::new(),
            third_party_to: Reach::default(),
            drivers: vec!["tcp".to_owned()],
            stack: None,
            libraries: Vec::new(),
            sessions: Sessions::default(),
            streams: 64,
            threads: 64,
            turn: Span(Duration::from_millis(20)),
            block: ByteSize(1 << 20),
            buffer: ByteSize(1 << 30),
            patience: Span(Duration::from_secs(60)),
            stall: Span(Duration::from_secs(120)),
            quiet: Span(Duration::from_millis(100)),
            markers: Span(Duration::from_secs(5)),
        }
    }
}
