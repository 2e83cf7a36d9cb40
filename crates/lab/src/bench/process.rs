//! Programs under measurement: none exceeds its time limit, none is left behind, and their costs are read from the
//! kernel.

use anyhow::{Context, anyhow, bail};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval between checks while waiting.
const LOOK: Duration = Duration::from_millis(5);
/// Longest wait for a server to listen.
const START: Duration = Duration::from_secs(10);
/// Characters from the end of a program's standard error that an error message quotes.
const LAST_WORDS: usize = 400;

/// A home for programs that are to know nothing from before: not even the superuser can keep anything there.
pub(crate) const NO_HOME: &str = "/dev/null";

/// A program in the background. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Background {
    name: String,
    child: Child,
    /// Its standard error: a file, since reading a pipe would take processor time from what is measured.
    errors: File,
    /// The lines of its standard output, if a caller wants them.
    lines: Option<mpsc::Receiver<String>>,
}

impl Background {
    /// Starts `command`; errors call it `name`.
    pub(crate) fn start(name: &str, mut command: Command) -> anyhow::Result<Self> {
        let errors = tempfile::tempfile().context("cannot keep the errors of programs")?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors.try_clone()?);
        let child = command.spawn().with_context(|| cannot_start(name, &command))?;
        Ok(Self { name: name.to_owned(), child, errors, lines: None })
    }

    /// Starts `command` and waits for its first line of output. It continues to run; dropping it closes its standard
    /// input.
    pub(crate) fn until_it_says(name: &str, mut command: Command, limit: Duration) -> anyhow::Result<(Self, String)> {
        let errors = tempfile::tempfile().context("cannot keep the errors of programs")?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors.try_clone()?);
        let mut child = command.spawn().with_context(|| cannot_start(name, &command))?;
        let lines = child.stdout.take().map(lines);
        let mut background = Self { name: name.to_owned(), errors, child, lines };
        let line = background.next_line(limit)?;
        Ok((background, line))
    }

    /// The next line of its output, including the newline; an error if it ends or `limit` passes first.
    pub(crate) fn next_line(&mut self, limit: Duration) -> anyhow::Result<String> {
        let heard = match &self.lines {
            Some(lines) => lines.recv_timeout(limit),
            None => bail!("nobody listens to {}", self.name),
        };
        match heard {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("{} said nothing within {} s", self.name, limit.as_secs()),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                let why = self.last_words(status);
                bail!("{} failed: {why}", self.name)
            }
        }
    }

    /// Waits until it listens on `port`.
    pub(crate) fn listening(mut self, port: u16) -> anyhow::Result<Self> {
        let deadline = Instant::now() + START;
        loop {
            let seen = listens(self.pid(), port);
            // An ended process has no network namespace to inspect.
            if let Some(status) = self.child.try_wait()? {
                let why = self.last_words(status);
                bail!("{} ended before it listened on port {port}: {why}", self.name);
            }
            // Nor has a process that is just ending.
            let late = Instant::now() > deadline;
            match seen {
                Ok(true) => return Ok(self),
                Err(error) if late => {
                    return Err(error).with_context(|| format!("cannot see what {} listens on", self.name));
                }
                _ => {}
            }
            if late {
                bail!("{} did not listen on port {port} within {} s", self.name, START.as_secs());
            }
            thread::sleep(LOOK);
        }
    }

    /// Its process identifier.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Checks that it is still running; otherwise the error says why it ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let why = self.last_words(status);
                bail!("{} ended: {why}", self.name)
            }
        }
    }

    fn last_words(&mut self, status: ExitStatus) -> String {
        format!("{status}{}", quoted(&end_of(&self.errors)))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last text in `file`, more than [`LAST_WORDS`] characters of it.
fn end_of(file: &File) -> String {
    const LAST_BYTES: u64 = 4 * LAST_WORDS as u64;
    let start = file.metadata().map_or(0, |it| it.len().saturating_sub(LAST_BYTES));
    let mut bytes = vec![0; 2 * LAST_BYTES as usize];
    let len = file.read_at(&mut bytes, start).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// Runs `command` to its end and returns its standard output. Kills it after `limit`.
pub(crate) fn run(name: &str, mut command: Command, limit: Duration) -> anyhow::Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| cannot_start(name, &command))?;
    let output = child.stdout.take().map(collect);
    let errors = child.stderr.take().map(collect);
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => thread::sleep(LOOK),
        }
    };
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    let text = |thread: Option<JoinHandle<String>>| thread.and_then(|t| t.join().ok()).unwrap_or_default();
    let (output, errors) = (text(output), text(errors));
    match status {
        Some(status) if status.success() => Ok(output),
        // Some programs report errors on standard output, while a loader or shim writes to standard error.
        Some(status) => bail!("{name} failed: {status}{}{}", quoted(&errors), quoted(&output)),
        None => bail!("{name} did not end within {} s{}", limit.as_secs(), quoted(&errors)),
    }
}

/// The processor time that a process has used, in seconds, including ended threads, without children.
pub(crate) fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let [user, system] = user_and_system_seconds(pid)?;
    Ok(user + system)
}

/// The same, in user mode and in the kernel.
pub(crate) fn user_and_system_seconds(pid: u32) -> anyhow::Result<[f64; 2]> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the process has ended")?;
    let ticks = used_ticks(&stat).ok_or_else(|| anyhow!("/proc/{pid}/stat has no processor times: {stat}"))?;
    Ok(ticks.map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// The processor time of a process and of its ended children, in seconds, and whether the process has ended.
pub(crate) fn spent(pid: u32) -> anyhow::Result<(f64, bool)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the process has ended")?;
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let ticks: u64 = fields.iter().skip(11).take(4).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Ok((ticks as f64 / rustix::param::clock_ticks_per_second() as f64, fields.first() == Some(&"Z")))
}

/// How often the present threads of a process have given up a processor: to wait, and because others had their turn.
pub(crate) fn context_switches(pid: u32) -> anyhow::Result<[u64; 2]> {
    let mut all = [0; 2];
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("the process has ended")? {
        // A thread that ends meanwhile no longer counts.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else { continue };
        for (sum, name) in all.iter_mut().zip(["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"]) {
            *sum += field(&status, name).unwrap_or(0);
        }
    }
    Ok(all)
}

/// The memory of a process, in bytes: its private pages, and its share of shared pages.
pub(crate) fn memory(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let kilobytes = field(&text, "Pss:").ok_or_else(|| anyhow!("{path} has no Pss"))?;
    Ok(kilobytes * 1024)
}

/// Kernel memory that grows with connections: slabs, and the pages of TCP buffers, in bytes. For the whole machine.
pub(crate) fn kernel_memory() -> anyhow::Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let slab = field(&meminfo, "Slab:").ok_or_else(|| anyhow!("/proc/meminfo has no Slab"))? * 1024;
    let sockstat = fs::read_to_string("/proc/net/sockstat").context("cannot read /proc/net/sockstat")?;
    let pages =
        sockstat.lines().find_map(|line| line.strip_prefix("TCP:")?.split_once(" mem ")?.1.trim().parse::<u64>().ok());
    let pages = pages.ok_or_else(|| anyhow!("/proc/net/sockstat has no memory of TCP"))?;
    Ok(slab + pages * rustix::param::page_size() as u64)
}

/// Whether a socket in the network namespace of `pid` listens on TCP `port`.
fn listens(pid: u32, port: u16) -> io::Result<bool> {
    let wanted = format!(":{port:04X}");
    for table in ["tcp", "tcp6"] {
        let text = match fs::read_to_string(format!("/proc/{pid}/net/{table}")) {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && table == "tcp6" => continue,
            other => other?,
        };
        let listening = text.lines().skip(1).any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            // The local address, the remote address, and the state; 0A is TCP_LISTEN.
            fields.next().is_some_and(|local| local.ends_with(&wanted)) && fields.nth(1) == Some("0A")
        });
        if listening {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The number after `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// utime and stime of proc_pid_stat(5), the 14th and 15th field; the second field, in parentheses, may contain
/// anything.
fn used_ticks(stat: &str) -> Option<[u64; 2]> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    Some([times.next()?.ok()?, times.next()?.ok()?])
}

fn lines(stream: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (said, heard) = mpsc::channel();
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = String::new();
            match stream.read_line(&mut line) {
                // The last line may lack its newline. If the receiver is gone, stop.
                Ok(n) if n > 0 && said.send(line).is_ok() => {}
                _ => return,
            }
        }
    });
    heard
}

fn collect(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // The output before an error is still worth quoting.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn cannot_start(name: &str, command: &Command) -> String {
    format!("cannot start {name} ({})", command.get_program().to_string_lossy())
}

fn quoted(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        return String::new();
    }
    let start = text.char_indices().rev().nth(LAST_WORDS - 1).map_or(0, |(at, _)| at);
    format!(", saying: {}", text[start..].replace('\n', " / "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn run_returns_the_output() {
        assert_eq!(run("it", shell("echo yes; echo no >&2"), Duration::from_secs(30)).unwrap(), "yes\n");
    }

    #[test]
    fn run_reports_why_a_program_failed() {
        let error = run("it", shell("echo reason >&2; exit 3"), Duration::from_secs(30)).unwrap_err().to_string();
        assert_eq!(error, "it failed: exit status: 3, saying: reason");
        let error = run("it", Command::new("/no/such/program"), Duration::from_secs(30)).unwrap_err().to_string();
        assert_eq!(error, "cannot start it (/no/such/program)");
    }

    #[test]
    fn run_kills_a_program_after_its_limit() {
        let mut command = Command::new("sleep");
        command.arg("600");
        let error = run("it", command, Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.starts_with("it did not end within"), "{error}");
    }

    #[test]
    fn background_returns_lines_while_the_program_runs() {
        let limit = Duration::from_secs(30);
        let (mut cat, line) = Background::until_it_says("cat", shell("echo ready; exec cat"), limit).unwrap();
        assert_eq!(line, "ready\n");
        cat.check().unwrap();
        let error = Background::until_it_says("it", shell("echo why >&2; exit 4"), limit).unwrap_err().to_string();
        assert_eq!(error, "it failed: exit status: 4, saying: why");
    }

    #[test]
    fn listens_finds_a_listening_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(std::process::id(), port).unwrap());
        drop(listener);
        // A child that another test is just starting inherits the descriptor until its exec.
        let deadline = Instant::now() + Duration::from_secs(60);
        while listens(std::process::id(), port).unwrap() {
            assert!(Instant::now() < deadline, "it is still seen");
            thread::sleep(LOOK);
        }
    }

    #[test]
    fn listening_quotes_a_server_that_dies() {
        let server = Background::start("server", shell("echo port taken >&2; exit 1")).unwrap();
        let error = server.listening(1).unwrap_err().to_string();
        assert_eq!(error, "server ended before it listened on port 1: exit status: 1, saying: port taken");
    }

    #[test]
    fn processor_time_grows_with_work() {
        let me = std::process::id();
        let before = cpu_seconds(me).unwrap();
        let (mut n, deadline) = (0u64, Instant::now() + Duration::from_secs(60));
        while cpu_seconds(me).unwrap() <= before && Instant::now() < deadline {
            n = std::hint::black_box(n + 1);
        }
        assert!(cpu_seconds(me).unwrap() > before);
        assert_eq!(used_ticks("7 (a) b) S 1 1 1 0 -1 0 0 0 0 0 250 50 0 0"), Some([250, 50]));
    }

    #[test]
    fn spent_includes_ended_children() {
        let (used, ended) = spent(std::process::id()).unwrap();
        assert!(used >= 0.0 && !ended);
    }

    #[test]
    fn context_switches_count_waits() {
        let switches = || context_switches(std::process::id()).unwrap();
        let before = switches();
        let waiting = thread::spawn(move || {
            thread::sleep(Duration::from_millis(1));
            switches()
        });
        assert!(waiting.join().unwrap()[0] > before[0]);
        assert!(context_switches(u32::MAX).is_err());
    }

    #[test]
    fn memory_counts_the_process() {
        let before = memory(std::process::id()).unwrap();
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(memory(std::process::id()).unwrap() >= before + (block.len() as u64) / 2);
        assert!(kernel_memory().unwrap() > 0);
    }
}
