//! The conditions of an experiment: the settings that a testbed fixes on its hosts, and the values in force.
//!
//! Throughput over a long path means little without them: with the default 4 MB of `tcp_wmem`, a sender that
//! could fill 1 Gbit/s over 100 ms reaches a sixth of it. So a testbed sets them, reads them back, and prints
//! them with every result.

use super::Error;
use super::HostSpec;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::io;

/// The maximum of `tcp_rmem` and `tcp_wmem`, in bytes: ten times what 1 Gbit/s needs over 100 ms, so that no
/// host limit distorts an experiment.
pub const TCP_MEMORY_MAX: u64 = 128 << 20;

/// A host's settings as read back from its kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostConditions {
    /// Minimum, default and maximum of a receive buffer, in bytes.
    pub tcp_rmem: String,
    /// Minimum, default and maximum of a send buffer, in bytes.
    pub tcp_wmem: String,
    /// Whether connections start without metrics cached from earlier ones.
    pub tcp_no_metrics_save: String,
    /// Bit 1: fast open as a client; bit 2: as a server.
    pub tcp_fastopen: String,
    /// The default congestion control.
    pub congestion_control: String,
    /// Why it is not the requested one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub congestion_control_refused: Option<String>,
}

impl fmt::Display for HostConditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tcp_rmem, tcp_wmem, tcp_no_metrics_save, tcp_fastopen, congestion_control, .. } = self;
        write!(f, "{congestion_control}, tcp_rmem {tcp_rmem}, tcp_wmem {tcp_wmem}")?;
        write!(f, ", tcp_no_metrics_save {tcp_no_metrics_save}, tcp_fastopen {tcp_fastopen}")?;
        self.congestion_control_refused.as_ref().map_or(Ok(()), |why| write!(f, "; {why}"))
    }
}

/// Properties of a host's network beyond its specification.
pub(super) struct Network {
    /// Whether the kernel supports IPv6.
    pub(super) ipv6: bool,
    /// Whether the host is a router and forwards packets.
    pub(super) forwards: bool,
    /// Whether TCP keeps the system's settings.
    pub(super) stock: bool,
}

/// Configures the network of the calling thread's host, and reads back the TCP settings.
pub(super) fn apply(host: &HostSpec, network: &Network) -> Result<HostConditions, Error> {
    let at = |key: &str| format!("host \"{}\": cannot set {key}", host.name);
    let set = |key: &str, value: &str| write(key, value).map_err(Error::system(at(key)));
    // Paths may be asymmetric, so a packet may arrive on another interface than the route back to its source.
    set("net.ipv4.conf.all.rp_filter", "0")?;
    set("net.ipv4.conf.default.rp_filter", "0")?;
    set("net.ipv4.ip_forward", if network.forwards { "1" } else { "0" })?;
    if network.ipv6 {
        set("net.ipv6.conf.all.forwarding", if network.forwards { "1" } else { "0" })?;
        // Hosts have only the addresses from the testbed, and send no unsolicited messages.
        set("net.ipv6.conf.default.addr_gen_mode", "1")?;
        set("net.ipv6.conf.default.accept_ra", "0")?;
        set("net.ipv6.conf.default.router_solicitations", "0")?;
    }
    let mut refused = None;
    if !network.stock {
        for key in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
            let current = read(key).map_err(Error::system(at(key)))?;
            let kept: Vec<_> = current.split_whitespace().take(2).collect();
            set(key, &format!("{} {TCP_MEMORY_MAX}", kept.join(" ")))?;
        }
        set("net.ipv4.tcp_no_metrics_save", "1")?;
        set("net.ipv4.tcp_fastopen", "3")?;
        if let Some(wanted) = &host.congestion_control {
            refused = write(CONGESTION_CONTROL, wanted).err().map(|error| why_refused(wanted, &error));
        }
    }
    for (key, value) in &host.sysctl {
        set(key, value)?;
    }
    let get = |key: &str| read(key).unwrap_or_else(|error| format!("unknown ({error})"));
    Ok(HostConditions {
        tcp_rmem: get("net.ipv4.tcp_rmem"),
        tcp_wmem: get("net.ipv4.tcp_wmem"),
        tcp_no_metrics_save: get("net.ipv4.tcp_no_metrics_save"),
        tcp_fastopen: get("net.ipv4.tcp_fastopen"),
        congestion_control: get(CONGESTION_CONTROL),
        congestion_control_refused: refused,
    })
}

const CONGESTION_CONTROL: &str = "net.ipv4.tcp_congestion_control";

/// Explains why the requested congestion control was refused.
fn why_refused(wanted: &str, error: &io::Error) -> String {
    let list = |key| read(key).unwrap_or_default();
    let available = list("net.ipv4.tcp_available_congestion_control");
    if !available.split_whitespace().any(|one| one == wanted) {
        return format!("{wanted} was refused: the kernel has {available}");
    }
    let allowed = list("net.ipv4.tcp_allowed_congestion_control");
    if !allowed.split_whitespace().any(|one| one == wanted) {
        return format!(
            "{wanted} was refused as the host's default: the machine's net.ipv4.tcp_allowed_congestion_control lists only \
             {allowed}, and a testbed does not change the machine (a program can still ask for it by socket option, as root)"
        );
    }
    format!("{wanted} was refused: {error}")
}

fn path(key: &str) -> String {
    format!("/proc/sys/{}", key.replace('.', "/"))
}

fn read(key: &str) -> io::Result<String> {
    Ok(fs::read_to_string(path(key))?.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn write(key: &str, value: &str) -> io::Result<()> {
    fs::write(path(key), value)
}
