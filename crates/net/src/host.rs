//! Compares a profile with the host's kernel settings (U16) and suggests the commands that would lift their
//! limits. Nothing here changes a setting: the host belongs to its administrator.

use crate::profile::Profile;
use crate::stats::Stats;
use std::fmt;
use std::time::Duration;

/// One limitation by the host's settings, and how to lift it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// What the setting costs.
    pub problem: String,
    /// The command that changes it, for an administrator to run.
    pub command: String,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; to change it: {}", self.problem, self.command)
    }
}

/// The kernel settings that affect transfers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// `net.ipv4.tcp_rmem`: minimum, default and maximum receive buffer, in bytes.
    pub tcp_rmem: [u64; 3],
    /// `net.ipv4.tcp_wmem`: minimum, default and maximum send buffer, in bytes.
    pub tcp_wmem: [u64; 3],
    /// `net.core.rmem_max`: the largest receive buffer that a program may set, in bytes.
    pub rmem_max: u64,
    /// `net.core.wmem_max`: the same for the send buffer.
    pub wmem_max: u64,
    /// `net.ipv4.tcp_fastopen`: bit 0 client, bit 1 server.
    pub fast_open: u64,
    /// `net.ipv4.tcp_slow_start_after_idle`.
    pub slow_start_after_idle: bool,
}

impl Host {
    /// Reads the settings of this process's network namespace. A setting that cannot be read counts as
    /// unlimited and gives no advice.
    pub fn read() -> Self {
        Self {
            tcp_rmem: triple("ipv4/tcp_rmem"),
            tcp_wmem: triple("ipv4/tcp_wmem"),
            // On older kernels these two exist only in the initial network namespace.
            rmem_max: number("core/rmem_max", u64::MAX),
            wmem_max: number("core/wmem_max", u64::MAX),
            fast_open: number("ipv4/tcp_fastopen", 3),
            slow_start_after_idle: number("ipv4/tcp_slow_start_after_idle", 0) != 0,
        }
    }

    /// The most that the kernel buffers for one direction of a session, in bytes: the receive buffer of one
    /// socket and the send buffer of another.
    pub fn buffer_max(&self) -> u64 {
        self.tcp_rmem[2].saturating_add(self.tcp_wmem[2])
    }

    /// What this host's settings cost a listener under `profile`.
    pub fn advice_for_listener(&self, profile: &Profile) -> Vec<Advice> {
        if profile.fast_open && self.fast_open & 2 == 0 {
            return vec![Advice {
                problem: "TCP fast open is off for servers, so every first connection costs a round trip more"
                    .to_owned(),
                command: format!("sysctl -w net.ipv4.tcp_fastopen={}", self.fast_open | 3),
            }];
        }
        Vec::new()
    }

    /// What this host's settings cost a pooled connection under `profile` with the measured `stats`.
    pub fn advice_for_peer(&self, profile: &Profile, stats: &Stats) -> Vec<Advice> {
        let mut advice = Vec::new();
        if self.slow_start_after_idle && stats.congestion_control != "bbr" {
            advice.push(Advice {
                problem:
                    "idle connections lose their congestion window (tcp_slow_start_after_idle), so warm ones start \
                          no faster than new ones"
                        .to_owned(),
                command: "sysctl -w net.ipv4.tcp_slow_start_after_idle=0".to_owned(),
            });
        }
        let Some(capacity) = profile.capacity else { return advice };
        let rtt = Duration::from_micros(stats.rtt_us);
        let product = (capacity.0 as f64 / 8.0 * rtt.as_secs_f64()) as u64;
        // Twice the bandwidth-delay product: the kernel charges its overhead to the buffer, and half of a
        // receive buffer is not advertised as window (tcp_adv_win_scale).
        let needed = product.saturating_mul(2).next_power_of_two();
        let sides = [
            ("send", "wmem", self.tcp_wmem, self.wmem_max, profile.send_buffer.bytes()),
            ("receive", "rmem", self.tcp_rmem, self.rmem_max, profile.receive_buffer.bytes()),
        ];
        for (which, name, [least, first, greatest], asked_max, fixed) in sides {
            let problem = |limit: &str| {
                format!(
                    "the {which} buffer stays below what {capacity} over {:.1} ms needs ({needed} bytes): {limit}",
                    rtt.as_secs_f64() * 1e3
                )
            };
            match fixed {
                None if greatest < needed => advice.push(Advice {
                    problem: problem(&format!("net.ipv4.tcp_{name} ends at {greatest}")),
                    command: format!("sysctl -w net.ipv4.tcp_{name}=\"{least} {first} {needed}\""),
                }),
                Some(asked) if asked > asked_max => advice.push(Advice {
                    problem: problem(&format!("net.core.{name}_max is {asked_max}")),
                    command: format!("sysctl -w net.core.{name}_max={asked}"),
                }),
                _ => {}
            }
        }
        advice
    }
}

fn text(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap_or_default().trim().to_owned()
}

fn number(name: &str, otherwise: u64) -> u64 {
    text(name).parse().unwrap_or(otherwise)
}

fn triple(name: &str) -> [u64; 3] {
    let mut values = [u64::MAX; 3];
    for (value, word) in values.iter_mut().zip(text(name).split_whitespace()) {
        *value = word.parse().unwrap_or(u64::MAX);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::units::BitRate;

    fn host() -> Host {
        Host {
            tcp_rmem: [4096, 131_072, 6 << 20],
            tcp_wmem: [4096, 16_384, 4 << 20],
            rmem_max: 212_992,
            wmem_max: 212_992,
            fast_open: 1,
            slow_start_after_idle: true,
        }
    }

    fn stats(rtt_ms: u64) -> Stats {
        Stats { rtt_us: rtt_ms * 1000, congestion_control: "cubic".to_owned(), ..Stats::default() }
    }

    #[test]
    fn default_settings_get_advice_for_a_long_path() {
        let profile = Profile { capacity: Some(BitRate(1_000_000_000)), ..Profile::default() };
        let advice = host().advice_for_peer(&profile, &stats(100));
        let commands: Vec<_> = advice.iter().map(|a| a.command.as_str()).collect();
        assert_eq!(
            commands,
            [
                "sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
                "sysctl -w net.ipv4.tcp_wmem=\"4096 16384 33554432\"",
                "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 33554432\"",
            ]
        );
        assert_eq!(host().advice_for_listener(&profile)[0].command, "sysctl -w net.ipv4.tcp_fastopen=3");
    }

    #[test]
    fn sufficient_settings_get_no_advice() {
        let near = Profile { capacity: Some(BitRate(100_000_000)), ..Profile::default() };
        let host = Host { slow_start_after_idle: false, fast_open: 3, ..host() };
        assert_eq!(host.advice_for_peer(&near, &stats(1)), []);
        assert_eq!(host.advice_for_listener(&near), []);
    }
}
