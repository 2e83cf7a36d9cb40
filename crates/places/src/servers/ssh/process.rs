//! A running `ssh`, its output and its end.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};
use std::process::{Child, ChildStderr, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time for `ssh` to end after its connection, and to print messages.
const FAREWELL: Duration = Duration::from_secs(5);

/// Time to end after a signal.
const MOMENT: Duration = Duration::from_secs(1);

/// Interval of checks whether it has ended.
const LOOK: Duration = Duration::from_millis(10);

/// Without waiting.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Most output that is kept.
const MAX_WORDS: usize = 2048;

/// A running `ssh`. Dropping it closes its input, gives it a moment to end, and then kills it. If no server has
/// answered, it is told to end at once, since it may never read its input.
#[derive(Debug)]
pub(super) struct Process {
    child: Option<Child>,
    words: Option<Arc<Words>>,
    has_answered: bool,
}

/// The end of its standard error.
#[derive(Debug)]
struct Words {
    from: ChildStderr,
    /// Locked during a read.
    heard: Mutex<Vec<u8>>,
}

impl Words {
    fn of(from: ChildStderr) -> Arc<Self> {
        let words = Arc::new(Self { from, heard: Mutex::default() });
        let all = words.clone();
        // The pipe must be read, and a master process for other connections may keep it open for hours.
        thread::spawn(move || while all.is_there(None) && all.hear() {});
        words
    }

    /// Whether something can be read, or the end, within `limit`.
    fn is_there(&self, limit: Option<&Timespec>) -> bool {
        loop {
            match poll(&mut [PollFd::new(&self.from, PollFlags::IN)], limit) {
                Err(Errno::INTR) => {}
                ready => return ready.is_ok_and(|ready| ready > 0),
            }
        }
    }

    /// Reads some of it. False at the end.
    fn hear(&self) -> bool {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        // Another task may have read it meanwhile.
        if !self.is_there(Some(&NOW)) {
            return true;
        }
        let mut room = [0; 512];
        match rustix::io::read(&self.from, &mut room) {
            Ok(len @ 1..) => {
                heard.extend_from_slice(&room[..len]);
                let over = heard.len().saturating_sub(MAX_WORDS);
                heard.drain(..over);
                true
            }
            Err(Errno::INTR) => true,
            _ => false,
        }
    }

    /// Reads what has been written by now.
    fn hear_all(&self) {
        (0..256).all(|_| self.is_there(Some(&NOW)) && self.hear());
    }
}

impl Process {
    pub(super) fn new(mut child: Child) -> Self {
        let words = child.stderr.take().map(Words::of);
        Self { child: Some(child), words, has_answered: false }
    }

    /// Records that a server has answered: now `ssh` ends when its input does.
    pub(super) fn mark_answered(&mut self) {
        self.has_answered = true;
    }

    /// Waits for its end, and its last output.
    pub(super) async fn ended(&mut self) -> Option<ExitStatus> {
        self.ended_within(FAREWELL).await
    }

    async fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        while let Some(child) = self.child.as_mut().filter(|_| Instant::now() < until) {
            if let Ok(Some(status)) = child.try_wait() {
                self.words.iter().for_each(|words| words.hear_all());
                return Some(status);
            }
            tokio::time::sleep(LOOK).await;
        }
        None
    }

    /// Ends it without waiting.
    pub(super) async fn end(mut self) {
        self.tell(Signal::TERM);
        if self.ended_within(MOMENT).await.is_none() {
            self.tell(Signal::KILL);
            self.ended_within(MOMENT).await;
        }
        // If killing fails, nothing else can be done.
        self.has_answered = true;
    }

    /// Sends a signal to it, and to its process group if it has its own.
    fn tell(&mut self, signal: Signal) {
        // After it was waited for, its number may belong to another process.
        let Some(child) = self.child.as_mut() else { return };
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        let pid = Pid::from_child(child);
        let _ = match getpgid(Some(pid)) {
            Ok(group) if group == pid => kill_process_group(pid, signal),
            _ => kill_process(pid, signal),
        };
    }

    /// Its standard error, for a sentence.
    pub(super) fn words(&self) -> String {
        let Some(words) = &self.words else { return String::new() };
        as_words(&words.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Output as part of a sentence.
pub(super) fn as_words(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let noise =
        |line: &&str| line.is_empty() || line.starts_with("Warning: Permanently added") || line.starts_with('@');
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !noise(line)).collect();
    lines.join(" ").chars().flat_map(char::escape_debug).collect::<String>().replace("\\'", "'").replace("\\\"", "\"")
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_answered {
            self.tell(Signal::TERM);
        }
        let Some(mut child) = self.child.take() else { return };
        thread::spawn(move || {
            let until = Instant::now() + FAREWELL;
            while Instant::now() < until {
                if !matches!(child.try_wait(), Ok(None)) {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
            // It is of no more use, and nobody else would end it.
            let _ = child.kill();
            let _ = child.wait();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[tokio::test]
    async fn last_output_of_ssh_is_reported() {
        for _ in 0..20 {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 1 & printf '%3000d\\n' 7 >&2; echo why >&2; exit 255"]).stderr(Stdio::piped());
            let mut process = Process::new(command.spawn().unwrap());
            assert_eq!(process.ended().await.and_then(|status| status.code()), Some(255));
            assert!(process.words().ends_with("7 why"), "{}", process.words());
        }
    }

    /// With a group of its own and without, and one that does not heed the first signal.
    #[tokio::test]
    async fn abandoned_ssh_is_ended_with_its_children() {
        for (script, has_group) in [
            ("echo $$ >&2; exec sleep 100", false),
            ("sleep 100 & echo $! >&2; wait", true),
            ("trap '' TERM; echo $$ >&2; while :; do sleep 100; done", true),
        ] {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stderr(Stdio::piped());
            if has_group {
                command.process_group(0);
            }
            let process = Process::new(command.spawn().unwrap());
            while process.words().is_empty() {
                tokio::time::sleep(LOOK).await;
            }
            let pid: i32 = process.words().parse().unwrap();
            process.end().await;
            // What it has started is nobody's child, and may take a moment to go.
            while is_running(pid) {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    #[tokio::test]
    async fn silent_ssh_is_ended_on_drop() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >&2; exec sleep 100"]).stderr(Stdio::piped());
        let process = Process::new(command.spawn().unwrap());
        while process.words().is_empty() {
            tokio::time::sleep(LOOK).await;
        }
        let pid: i32 = process.words().parse().unwrap();
        drop(process);
        while is_running(pid) {
            tokio::time::sleep(LOOK).await;
        }
    }

    fn is_running(pid: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
    }
}
