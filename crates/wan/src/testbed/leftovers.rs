//! Kills processes that outlive a testbed whose owner and sentinel were both killed.

use super::environment::ENV_NAME;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Kills every process in a host of the dead testbed `name`: one that is in one of its network namespaces and
/// has the testbed's name in its environment. The kernel reuses inode numbers of namespaces, so neither
/// condition suffices alone.
pub(super) fn kill(name: &str, namespaces: &[u64]) {
    kill_where(|pid| {
        let namespace = fs::metadata(format!("/proc/{pid}/ns/net")).map(|namespace| namespace.ino());
        namespace.is_ok_and(|inode| namespaces.contains(&inode)) && bears_name(pid, name)
    });
}

/// Kills every process with the name of the testbed `name` in its environment, except this one.
pub(super) fn kill_by_name(name: &str) {
    kill_where(|pid| bears_name(pid, name));
}

fn bears_name(pid: i32, name: &str) -> bool {
    let entry = format!("{ENV_NAME}={name}");
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == entry.as_bytes()))
}

fn kill_where(condemned: impl Fn(i32) -> bool) {
    // A process may fork while the list is read; the next round finds its children.
    for _ in 0..100 {
        let Ok(entries) = fs::read_dir("/proc") else { return };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        let mut found = false;
        for pid in pids.filter_map(Pid::from_raw).filter(|pid| *pid != rustix::process::getpid()) {
            // The descriptor pins the process, so that the signal cannot reach a later process with the same
            // id.
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            if condemned(pid.as_raw_nonzero().get()) {
                found |= pidfd_send_signal(&process, Signal::KILL).is_ok();
            }
        }
        if !found {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
