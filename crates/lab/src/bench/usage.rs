//! Processor use during a measurement: it shows whether the processors and not the network set the limit (S24).

use super::process::cpu_seconds;
use anyhow::{Context, anyhow};
use std::fs;
use std::time::Instant;

/// Watches the machine and some of its processes from its creation on.
#[derive(Debug)]
pub(crate) struct Watch {
    started: Instant,
    machine: ProcessorTicks,
    processes: Vec<(&'static str, u32, f64)>,
}

/// The processor use during the watch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Usage {
    /// Duration of the watch, in seconds.
    pub(crate) seconds: f64,
    /// The share of all processors that was not idle, in per cent.
    pub(crate) busy: f64,
    /// Processor time of each role, in seconds.
    pub(crate) roles: Vec<(&'static str, f64)>,
}

/// The counters of proc_stat(5), in ticks of all processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessorTicks {
    all: u64,
    idle: u64,
}

impl Watch {
    /// Starts to watch processes by their roles; several may share a role.
    pub(crate) fn start(processes: &[(&'static str, u32)]) -> anyhow::Result<Self> {
        let processes = processes.iter().map(|(role, pid)| Ok((*role, *pid, cpu_seconds(*pid)?)));
        let processes = processes.collect::<anyhow::Result<_>>()?;
        Ok(Self { started: Instant::now(), machine: ProcessorTicks::now()?, processes })
    }

    /// The use up to now. All processes must still be running.
    pub(crate) fn stop(self) -> anyhow::Result<Usage> {
        let (seconds, now) = (self.started.elapsed().as_secs_f64(), ProcessorTicks::now()?);
        let mut roles: Vec<(&'static str, f64)> = Vec::new();
        for (role, pid, before) in self.processes {
            let used = cpu_seconds(pid).with_context(|| format!("cannot see what the {role} has used"))? - before;
            match roles.iter_mut().find(|(other, _)| *other == role) {
                Some((_, sum)) => *sum += used,
                None => roles.push((role, used)),
            }
        }
        Ok(Usage { seconds, busy: now.busy_since(self.machine), roles })
    }
}

impl ProcessorTicks {
    fn now() -> anyhow::Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Self::read(&text).ok_or_else(|| anyhow!("/proc/stat does not begin with the times of all processors"))
    }

    fn read(stat: &str) -> Option<Self> {
        let times = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
        // user, nice, system, idle, iowait, irq, softirq, steal; user and nice already include guests.
        let times: Vec<u64> = times.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { all: times.iter().sum(), idle: times.get(3)? + times.get(4)? })
    }

    fn busy_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle);
        100.0 * all.saturating_sub(idle) as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_excludes_idle_time() {
        let read = |line: &str| ProcessorTicks::read(line).unwrap();
        let before = read("cpu  10 0 10 80 0 0 0 0 5 0\ncpu0 1 2 3 4");
        let after = read("cpu  30 0 20 130 10 5 5 0 9 0");
        assert_eq!((before, after), (ProcessorTicks { all: 100, idle: 80 }, ProcessorTicks { all: 200, idle: 140 }));
        assert!((after.busy_since(before) - 40.0).abs() < 1e-9);
        assert_eq!(ProcessorTicks::read("intr 1 2 3"), None);
    }

    #[test]
    fn processes_of_a_role_are_summed() {
        let me = std::process::id();
        let watch = Watch::start(&[("test", me), ("other", me), ("test", me)]).unwrap();
        let usage = watch.stop().unwrap();
        assert_eq!(usage.roles.iter().map(|(role, _)| *role).collect::<Vec<_>>(), ["test", "other"]);
        assert!(usage.seconds >= 0.0 && (0.0..=100.0).contains(&usage.busy));
    }
}
