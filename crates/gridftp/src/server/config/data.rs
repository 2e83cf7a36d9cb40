//! Data connections: drivers and limits.

use super::Reach;
use phoebus_proto::units::{BitRate, ByteSize, Span};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Data connections.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Ports to listen on, as `[first, last]`, for firewalls. Any free port by default.
    pub ports: Option<(u16, u16)>,
    /// Address that clients are told to connect to, if address translation gives the server another one.
    pub public: Option<IpAddr>,
    /// Gateways whose sessions end here. Data connections from them count as the client's.
    pub gateways: Vec<IpAddr>,
    /// Third parties that data connections may be made to, for users with `third_party` and those with authenticated
    /// data connections. `public` addresses by default; ranges add others, such as a site's own network.
    pub third_party_to: Reach,
    /// Drivers that clients may choose (`SITE SETNETSTACK`). The first is the default. By default `tcp`, `udt`, `quic`,
    /// `object` and `rate`, which need nothing from the administrator; the others are `phoebus` and the libraries below.
    pub drivers: Vec<String>,
    /// The default stack of drivers, as clients write it, instead of the first driver.
    pub stack: Option<String>,
    /// Drivers that are loaded from libraries.
    #[serde(rename = "driver")]
    pub libraries: Vec<DriverLibrary>,
    /// Gateways of the driver `phoebus`.
    pub sessions: Sessions,
    /// Most connections of one transfer. 64 by default.
    pub streams: u32,
    /// Most connections of all transfers that have a thread each, on which the kernel moves bytes. 64 by default: more
    /// than a network needs, and far fewer than the runtime's threads.
    pub threads: usize,
    /// Time slice of a connection's thread while others wait. 20 ms by default.
    pub turn: Span,
    /// Size of blocks that are read, sent and written. 1 MiB by default.
    pub block: ByteSize,
    /// Blocks of a file that are read from a disk at a time (L9). 4 by default: while one waits for the disk, others are read,
    /// hashed and sent.
    pub readers: usize,
    /// Blocks of a file that are written at a time. 4 by default.
    pub writers: usize,
    /// The highest fixed rate that clients may ask for (`object:control=fixed`), which is for reserved circuits and yields to
    /// nobody. None by default.
    pub circuit: Option<BitRate>,
    /// Memory for the chunks of all files that go as objects. 1 GiB by default: a transfer wants a tenth of it. Each has at
    /// least 256 KiB, whatever others take.
    pub object_memory: ByteSize,
    /// Largest socket buffers that clients may set. 1 GiB by default; the kernel has its own limit.
    pub buffer: ByteSize,
    /// Limit for making or awaiting a data connection. 60 s by default.
    #[serde(rename = "patience")]
    pub reply_timeout: Span,
    /// Longest time without progress. 2 minutes by default: longer than most paths take to recover.
    #[serde(rename = "stall")]
    pub stall_timeout: Span,
    /// How long the control connection must stay open, beyond a round trip, after a stream that ends as if its sender
    /// had been killed (MODE S in clear, of unknown length), before the file is published. 100 ms by default:
    /// connections of a killed process end within tens of milliseconds of each other.
    pub quiet: Span,
    /// Interval of markers of what has arrived. 5 s by default, as in GCT's server.
    pub markers: Span,
}

/// A driver from a library (`docs/guide/drivers.md`).
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverLibrary {
    /// Its name for clients.
    pub name: String,
    /// Absolute path of the shared library.
    pub library: PathBuf,
    /// Options of every connection.
    #[serde(default)]
    pub options: BTreeMap<String, toml::Value>,
}

impl DriverLibrary {
    /// The options as texts.
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

/// Sessions under data connections (the driver `phoebus`).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sessions {
    /// Default path: gateways as `host/port`, the first hop first.
    pub path: Vec<String>,
    /// Further gateways that clients may name.
    pub gateways: Vec<String>,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            ports: None,
            public: None,
            gateways: Vec::new(),
            third_party_to: Reach::default(),
            drivers: ["tcp", "udt", "quic", "object", "rate"].map(str::to_owned).to_vec(),
            stack: None,
            libraries: Vec::new(),
            sessions: Sessions::default(),
            streams: 64,
            threads: 64,
            turn: Span(Duration::from_millis(20)),
            block: ByteSize(1 << 20),
            readers: 4,
            writers: 4,
            circuit: None,
            object_memory: ByteSize(1 << 30),
            buffer: ByteSize(1 << 30),
            reply_timeout: Span(Duration::from_secs(60)),
            stall_timeout: Span(Duration::from_secs(120)),
            quiet: Span(Duration::from_millis(100)),
            markers: Span(Duration::from_secs(5)),
        }
    }
}
