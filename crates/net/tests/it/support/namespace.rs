//! Runs a test in a network namespace of its own, where the kernel's counters count nothing else.

use std::process::Command;
use std::time::Duration;

/// Runs the ignored test `name` of this program in a new network namespace. Needs root.
pub(crate) fn alone(name: &str) {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", "ip link set lo up && exec \"$0\" --exact \"$1\" --ignored --nocapture"]);
    let output = command.arg(own).arg(name).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    print!("{said}");
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// The kernel's UDP counters: buffers received from programs, and buffers delivered to programs. A segmented
/// or coalesced buffer counts once.
pub(crate) fn datagrams() -> [u64; 2] {
    let counters = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut udp = counters.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (udp.next().unwrap(), udp.next().unwrap());
    ["OutDatagrams", "InDatagrams"].map(|wanted| {
        let at = names.split(' ').position(|name| name == wanted).unwrap();
        values.split(' ').nth(at).unwrap().parse().unwrap()
    })
}

/// CPU time of this process.
pub(crate) fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    // utime and stime, in hundredths of a second.
    let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}
