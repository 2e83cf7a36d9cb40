//! Starts an agent on demand, one for all programs with the same first hop.

use super::{Plan, READY, claim};
use crate::exit::Exit;
use crate::options::Variable;
use anyhow::{Context, Result};
use phoebus_client::Agents;
use phoebus_config::agent::Running;
use phoebus_config::first_hop::By;
use phoebus_config::settings::Settings;
use phoebus_proto::units::Span;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for a new agent: longer than it waits for its gateway.
const START_TIME: Duration = Duration::from_secs(40);
/// Time after which the user is told about the wait.
const SILENT_TIME: Duration = Duration::from_secs(3);
/// Lowest number of the descriptor that keeps the agent, so that programs' own choices stay free.
const HIGH: i32 = 100;

/// Keeps the agent running while it lives.
pub(crate) struct AgentHandle(File);

impl AgentHandle {
    /// Lets the program that this process becomes, and its children, keep the agent.
    pub(crate) fn pass_on(self) -> Result<()> {
        // Any number will do if none as high is available.
        let passed =
            rustix::io::fcntl_dupfd_cloexec(&self.0, HIGH).or_else(|_| rustix::io::fcntl_dupfd_cloexec(&self.0, 3));
        let passed = passed.context("cannot keep hold of the agent")?;
        rustix::io::fcntl_setfd(&passed, rustix::io::FdFlags::empty()).context("cannot keep hold of the agent")?;
        // The kernel closes it with the program.
        std::mem::forget(passed);
        Ok(())
    }
}

/// The agent that `settings` ask for, started if none runs. `None` if they ask for none. Wrong settings end with exit
/// code 2, an unavailable agent with `failed`.
pub(crate) fn ensure(settings: &Settings, variables: &[Variable], failed: u8) -> Result<Option<AgentHandle>> {
    if settings.disabled || settings.first_hop.is_none_or(|hop| hop.by == By::Tcp) {
        return Ok(None);
    }
    if settings.fallback {
        return Err(Exit::usage(
            "a first hop that is demanded (--first-hop, PHOEBUS_FIRST_HOP) does not go with going direct instead \
             (--fallback, PHOEBUS_FALLBACK); expected one of them",
        ));
    }
    let Plan { agents, .. } = Plan::of(settings)?;
    match hold(&agents, variables) {
        Ok(held) => Ok(Some(held)),
        // Reports of its sessions repeat it.
        Err(error) if agents.demanded().is_none() => {
            eprintln!("phoebus: {}; it goes by tcp, without an agent", crate::exit::sentence(&error));
            Ok(None)
        }
        Err(error) => Err(Exit::with(failed, crate::exit::sentence(&error))),
    }
}

/// The agent for programs that come by SOCKS or HTTP, started if none runs: its address and secret. Wrong settings end with
/// exit code 2, an unavailable agent with `failed`.
pub(crate) fn for_proxy(settings: &Settings, variables: &[Variable], failed: u8) -> Result<(AgentHandle, Running)> {
    let Plan { agents, .. } = Plan::of(settings)?;
    let gone = || Exit::with(failed, "the agent has ended at once".to_owned());
    let held = hold(&agents, variables).map_err(|error| Exit::with(failed, crate::exit::sentence(&error)))?;
    Ok((held, agents.find_own().ok_or_else(gone)?))
}

fn hold(agents: &Agents, variables: &[Variable]) -> Result<AgentHandle> {
    claim::make_directory(agents.directory())?;
    let starting = claim::starting(agents)?;
    let users = claim::users(agents)?;
    // An agent that is just leaving holds it for a moment.
    flock(&users, FlockOperation::LockShared).context("cannot hold the agent")?;
    if agents.find_own().is_none() {
        start(agents, variables)?;
    }
    drop(starting);
    Ok(AgentHandle(users))
}

fn start(agents: &Agents, variables: &[Variable]) -> Result<()> {
    let (log, path) = claim::log(agents)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("phoebus").args(["agent", "--background"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    command.env_remove("LD_PRELOAD");
    for (key, value) in variables {
        match value {
            Some(value) => command.env(key.name(), value),
            None => command.env_remove(key.name()),
        };
    }
    let mut child = command.spawn().context("cannot start an agent")?;
    let out = child.stdout.take();
    child.wait().context("cannot start an agent")?;
    let tell = || {
        let by = agents.demanded().map_or_else(|| "quic, udt or tls".to_owned(), |hop| hop.to_string());
        let limit = Span(super::START_TIME);
        eprintln!("phoebus: the gateway has not answered the agent by {by} yet; the agent tries for {limit} at most");
    };
    if let Some(note) = out.and_then(|out| readiness(out, SILENT_TIME, tell)) {
        if !note.is_empty() {
            eprintln!("phoebus: {note}");
        }
        return Ok(());
    }
    anyhow::bail!("{}", last_words(&path))
}

/// The agent's note once it can be used. `None` if it ends or times out. After `silent` without a word, calls `tell`
/// once.
fn readiness(mut out: ChildStdout, silent: Duration, tell: impl FnOnce()) -> Option<String> {
    let begun = Instant::now();
    let deadline = begun + START_TIME;
    let mut tell = Some(tell);
    let mut said = Vec::new();
    loop {
        let next = if tell.is_some() { begun + silent } else { deadline };
        let left = next.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&out.as_fd(), PollFlags::IN)], Some(&left)) {
            Ok(0) => match tell.take() {
                Some(tell) => {
                    tell();
                    continue;
                }
                None => return None,
            },
            Err(rustix::io::Errno::INTR) => continue,
            _ => {}
        }
        let mut bytes = [0; 512];
        match out.read(&mut bytes) {
            Ok(n) if n > 0 => said.extend_from_slice(&bytes[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            _ => return None,
        }
        if let Some(line) = said.strip_suffix(b"\n") {
            let line = String::from_utf8_lossy(line);
            return line.strip_prefix(READY).map(|note| note.trim().to_owned());
        }
    }
}

/// The last words of an agent that has ended.
fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let said = text.lines().filter_map(|line| line.strip_prefix("phoebus: ")).next_back();
    said.map_or_else(
        || {
            format!(
                "the agent did not say within {} s that it can be used; its log is {}",
                START_TIME.as_secs(),
                log.display()
            )
        },
        str::to_owned,
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

    use super::*;
    use std::io::Write;

    #[test]
    fn waiting_for_a_silent_agent_is_reported() {
        // It stays silent until the notice of the wait.
        let mut agent = Command::new("sh");
        agent.args(["-c", "read told && echo \"ready $told\""]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut agent = agent.spawn().unwrap();
        let (mut own, out) = (agent.stdin.take().unwrap(), agent.stdout.take().unwrap());
        let note = readiness(out, Duration::from_millis(10), || writeln!(own, "once").unwrap());
        assert_eq!(note.as_deref(), Some("once"));
        assert!(agent.wait().unwrap().success());
    }
}
