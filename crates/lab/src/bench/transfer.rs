//! One endless transfer: watched at its receiver from the first data byte on, and ended when its time is over. So
//! only arrived bytes count; logins and handshakes do not, and their time is reported separately (S31, R8).

use crate::bench::flows::{GOODPUT, PROCESSORS_BUSY, cpu};
use crate::bench::process;
use crate::bench::results::{Metric, Reading};
use crate::bench::usage::Watch;
use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// From the start of the client to the first byte of data at the receiver.
pub(crate) const SET_UP: Metric = Metric { name: "set-up", unit: "s" };
/// The client's share of one processor during the transfer.
pub(crate) const SHARE: Metric = Metric { name: "client's share of a processor", unit: "%" };

/// Peak memory of all processes of a role together, with shared pages counted once; `None` for roles without it.
pub(crate) fn memory(role: &str) -> Option<Metric> {
    let name = match role {
        "client" => "client memory",
        "server" => "server memory",
        _ => return None,
    };
    Some(Metric { name, unit: "MB" })
}

/// Interval of checks for the first byte.
const LOOK: Duration = Duration::from_millis(2);
/// Interval of checks on a client during the transfer.
const GLANCE: Duration = Duration::from_millis(100);
/// Memory is read at every so many checks, because reading it takes time.
const EACH: u32 = 5;
/// The roles whose memory is read.
const ROLES: [&str; 2] = ["client", "server"];
/// Bytes that a receiver writes only when data arrives, and not with control messages: a quarter of a block of MODE
/// E.
const FIRST: u64 = 64 << 10;
/// Longest wait for killed processes to end.
const PARTING: Duration = Duration::from_secs(10);

/// The receiver.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Receiver {
    /// A process that the caller ends.
    Process(u32),
    /// The processes of this name among the descendants of a server.
    Children {
        /// The server.
        of: u32,
        /// The kernel's name, at most 15 characters.
        name: &'static str,
    },
    /// Everything behind an interface of a process's network. It counts alike for all programs, including those that
    /// receive without writing. Headers count too: on loopback they are less than a thousandth.
    Interface {
        /// The process.
        of: u32,
        /// The interface.
        device: &'static str,
        /// The descendants to end.
        name: Option<&'static str>,
    },
}

/// A sending program; its output goes to a file. Dropping it kills it.
pub(crate) struct Client {
    child: Child,
    said: PathBuf,
}

impl Client {
    /// Starts `command`.
    pub(crate) fn start(mut command: Command, said: &Path) -> anyhow::Result<Self> {
        let file = File::create(said).with_context(|| format!("cannot write {}", said.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        Ok(Self { child, said: said.to_owned() })
    }

    /// Its process identifier.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.said).unwrap_or_default()).into_owned()
    }

    /// Waits for its end, and checks that it succeeded.
    pub(crate) fn wait_for_success(&mut self) -> anyhow::Result<()> {
        if self.child.wait()?.success() { Ok(()) } else { self.check() }
    }

    /// Checks that it is still running.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let said = self.said();
        let errors: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if errors.is_empty() {
            bail!("the client ended before its time: {status}, and said nothing");
        }
        bail!(
            "the client ended before its time: {status}, saying: {}",
            errors[errors.len().saturating_sub(3)..].join(" / ")
        )
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Receiver {
    fn processes(self) -> Vec<u32> {
        let (of, name) = match self {
            Self::Process(pid) => return vec![pid],
            Self::Interface { name: None, .. } => return Vec::new(),
            Self::Children { of, name } | Self::Interface { of, name: Some(name), .. } => (of, name),
        };
        let is_one = |pid: &u32| {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            comm.trim_end() == name
        };
        descendants(of).into_iter().filter(is_one).collect()
    }

    /// Bytes that the receiver has written in any direction, almost all of them data.
    pub(crate) fn written(self) -> u64 {
        if let Self::Interface { of, device, .. } = self {
            let counters = fs::read_to_string(format!("/proc/{of}/net/dev")).unwrap_or_default();
            let own = counters.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'));
            return own.and_then(|own| own.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0);
        }
        let of = |pid: u32| {
            let io = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
            io.lines().find_map(|line| line.strip_prefix("wchar: ")?.trim().parse::<u64>().ok())
        };
        self.processes().into_iter().filter_map(of).sum()
    }

    /// Whether data, and not only control messages, has arrived since the count was `before`.
    pub(crate) fn has_data(self, before: u64) -> bool {
        self.written().saturating_sub(before) >= FIRST
    }

    /// Ends the descendants: some of GCT's processes would wait for their lost client for ever.
    pub(crate) fn end(self) {
        if let Self::Process(_) = self {
            return;
        }
        let deadline = Instant::now() + PARTING;
        while !self.processes().is_empty() && Instant::now() < deadline {
            for pid in self.processes().into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
                // If this fails, the process has already ended.
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(GLANCE);
        }
    }
}

/// Lets `client` send for `seconds` from the first byte on, which must arrive within `limit`, and then ends both
/// sides. Meanwhile it watches the costs of `others` and their descendants, by role; those that exist at the first
/// byte must run until the end.
pub(crate) fn watch(
    client: &mut Client,
    began: Instant,
    receiver: Receiver,
    seconds: u64,
    others: &[(&'static str, u32)],
    limit: Duration,
) -> anyhow::Result<Vec<Reading>> {
    let result = measure(client, began, receiver, seconds, others, limit);
    // Kill the client first, so that nothing takes its end for the end of the transfer.
    let _ = client.child.kill();
    let _ = client.child.wait();
    receiver.end();
    result
}

fn measure(
    client: &mut Client,
    began: Instant,
    receiver: Receiver,
    seconds: u64,
    others: &[(&'static str, u32)],
    limit: Duration,
) -> anyhow::Result<Vec<Reading>> {
    // The counter may include earlier transfers.
    let base = receiver.written();
    let mut before = base;
    while before.saturating_sub(base) < FIRST {
        client.check()?;
        if began.elapsed() > limit {
            bail!("no data arrived within {} s", limit.as_secs());
        }
        std::thread::sleep(LOOK);
        before = receiver.written();
    }
    let first = Instant::now();
    let with_children = |(role, pid)| std::iter::once(pid).chain(descendants(pid)).map(move |pid| (role, pid));
    let roles = std::iter::once(("client", client.pid())).chain(others.iter().copied());
    let roles: Vec<_> = roles.flat_map(with_children).collect();
    let usage = Watch::start(&roles)?;
    let (mut most, mut glances) = ([0.0f64; 2], 0u32);
    while first.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(GLANCE.min(Duration::from_secs(seconds).saturating_sub(first.elapsed())));
        client.check()?;
        glances += 1;
        if glances % EACH == 0 {
            for (most, role) in most.iter_mut().zip(ROLES) {
                *most = most.max(held(role, &roles));
            }
        }
    }
    let bytes = receiver.written().saturating_sub(before);
    let took = first.elapsed().as_secs_f64();
    let usage = usage.stop()?;
    let mut readings = vec![
        (GOODPUT, bytes as f64 * 8e-6 / took),
        (SET_UP, first.duration_since(began).as_secs_f64()),
        (PROCESSORS_BUSY, usage.busy),
    ];
    for (role, used) in usage.roles {
        readings.push((cpu(role), used * 1e9 / bytes.max(1) as f64));
        if role == "client" {
            readings.push((SHARE, 100.0 * used / usage.seconds));
        }
    }
    for (role, most) in ROLES.into_iter().zip(most).filter(|(_, most)| *most > 0.0) {
        readings.extend(memory(role).map(|metric| (metric, most)));
    }
    Ok(readings)
}

/// The memory of a role's processes, in megabytes; shared pages are divided among them. A process that has just ended
/// counts 0.
fn held(role: &str, roles: &[(&'static str, u32)]) -> f64 {
    let own = roles.iter().filter(|(other, _)| *other == role).filter_map(|(_, pid)| process::memory(*pid).ok());
    own.sum::<u64>() as f64 * 1e-6
}

/// All descendants of a process.
fn descendants(pid: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let mut left = vec![pid];
    while let Some(parent) = left.pop() {
        let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|child| child.parse::<u32>().ok());
            let children: Vec<_> = children.collect();
            left.extend(&children);
            all.extend(children);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::process::Background;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn value(readings: &[Reading], metric: Metric) -> f64 {
        readings.iter().find(|(one, _)| *one == metric).unwrap().1
    }

    /// A receiver that writes little at first, and a client that only waits.
    #[test]
    fn watch_counts_from_the_first_data_byte_on() {
        let room = tempfile::tempdir().unwrap();
        let script = "dd if=/dev/zero of=/dev/null bs=1000 count=3 2>/dev/null; \
                      sleep 0.3; while :; do sleep 0.01; echo; done | dd if=/dev/zero of=/dev/null bs=65536";
        let measured = |seconds| {
            let began = Instant::now();
            let server = Background::start("the server", shell(&format!("({script}) & wait"))).unwrap();
            let mut client = Client::start(shell("echo hello; exec sleep 600"), &room.path().join("said")).unwrap();
            let receiver = Receiver::Children { of: server.pid(), name: "dd" };
            let gateway = Background::start("a gateway", shell("exec sleep 600")).unwrap();
            let others = [("gateways", gateway.pid())];
            let readings = watch(&mut client, began, receiver, seconds, &others, Duration::from_secs(60)).unwrap();
            assert_eq!(client.said(), "hello\n");
            assert_eq!(receiver.processes(), Vec::<u32>::new(), "it was ended");
            readings
        };
        // On a busy machine the receiver may not run within a second.
        let mut readings = Vec::new();
        for seconds in [1, 5, 30] {
            readings = measured(seconds);
            if value(&readings, GOODPUT) > 1.0 {
                break;
            }
        }
        assert!(value(&readings, GOODPUT) > 1.0, "{readings:?}");
        assert!(value(&readings, SET_UP) > 0.2 && value(&readings, SHARE) < 50.0, "{readings:?}");
    }

    #[test]
    fn watch_quotes_a_client_that_ends() {
        let room = tempfile::tempdir().unwrap();
        let server = Background::start("the server", shell("exec sleep 600")).unwrap();
        let mut client = Client::start(shell("echo one; echo two >&2; exit 3"), &room.path().join("said")).unwrap();
        let receiver = Receiver::Children { of: server.pid(), name: "dd" };
        let error = watch(&mut client, Instant::now(), receiver, 1, &[], Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.to_string(), "the client ended before its time: exit status: 3, saying: one / two");
    }
}
