//! The path settings that experiments over a WAN share, and their conditions for reports.

use super::bed::Bed;
use super::process;
use anyhow::Context;
use phoebus_proto::units::{Probability, Span};
use phoebus_wan::model::Loss;
use phoebus_wan::testbed::Sc09;
use std::process::Command;
use std::time::Duration;

/// Time limit of a setting's command.
const SETTING: Duration = Duration::from_secs(60);

/// The path of the SC09 paper with this round trip of the WAN and this loss on both LANs (S30).
pub(super) fn path(rtt: Span, loss: Probability, seed: u64, gateway_cc: &str) -> Sc09 {
    Sc09 {
        wan_rtt: rtt,
        lan_loss: Loss::Bernoulli(loss),
        seed,
        gateway_cc: Some(gateway_cc.to_owned()),
        // Senders at the ends request theirs by socket option: some hosts do not allow cubic as the default.
        cc: None,
        ..Sc09::default()
    }
}

/// Gives all routes of a host this congestion control, for sockets that request no other. `shell` is a shell there. A
/// network namespace cannot choose a default that the machine does not allow to all users, and a testbed changes no
/// machine.
pub(super) fn control_routes(mut shell: Command, control: &str) -> anyhow::Result<()> {
    let script = format!(
        "ip -4 route show | sed 's/ congctl.*//' | while read -r route; do ip route replace $route congctl {control} || exit 1; done"
    );
    shell.args(["-c", &script]);
    process::run("ip, of iproute2", shell, SETTING).with_context(|| format!("no routes under {control}")).map(drop)
}

/// A loss in per cent.
pub(super) fn percent(loss: Probability) -> String {
    let text = format!("{:.6}", loss.get() * 100.0);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The same path between hosts with the system's default settings.
pub(super) fn stock(settings: Sc09) -> Sc09 {
    Sc09 { stock: true, gateway_cc: None, ..settings }
}

/// The conditions at every point: the hosts' settings as their kernels report them, and the links without delay and
/// loss.
pub(super) fn conditions(bed: &Bed, seed: u64) -> Vec<(String, String)> {
    let defaults = Sc09::default();
    let hosts = bed.testbed.report().hosts;
    let mut all: Vec<_> =
        hosts.into_iter().map(|host| (format!("host {}", host.name), host.conditions.to_string())).collect();
    all.push((
        "links".into(),
        format!(
            "{} each, LAN round trips {}, LAN queues {}, WAN queue {}, no loss on the WAN, MTU {}, seed {seed}",
            defaults.rate, defaults.lan_rtt, defaults.lan_queue, defaults.wan_queue, defaults.mtu
        ),
    ));
    all
}

/// The conditions at the ends of the path with stock settings.
pub(super) fn stock_conditions(bed: &Bed) -> Vec<(String, String)> {
    let hosts = bed.testbed.report().hosts.into_iter().filter(|host| host.name == "src" || host.name == "dst");
    hosts.map(|host| (format!("stock host {}", host.name), host.conditions.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_print_as_they_are_written() {
        for text in ["0.001%", "0.01%", "0.1%", "1%", "0%", "12.5%"] {
            assert_eq!(percent(text.parse().unwrap()), text);
        }
    }
}
