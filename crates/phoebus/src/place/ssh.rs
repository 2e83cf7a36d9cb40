//! Servers behind SSH (U1): `sshftp://host/path` as GCT has it, and `host:path`. The control connection is the standard input and
//! output of a server that `ssh` starts at the far side, for one user who has proved to SSH who he is:
//!
//! - `sshftp://`: whatever the far side has for it, `~/.globus/sshftp` or `/etc/grid-security/sshftp`, which start
//!   `globus-gridftp-server -ssh`, or else Phoebus;
//! - `host:path`: `phoebus serve --inetd`.
//!
//! It is the user's own OpenSSH, with its configuration, keys and agent; what it asks, a password say, it asks on the terminal, and
//! nothing of it comes by here. Nothing that is said of a host reaches a shell: the far side's gets a text that is the same for all.
//! `-P`, `-i` and `-J` are scp's options of these names; `PHOEBUS_SSH` names another command than `ssh`, as `RSYNC_RSH` does for rsync.

use super::url::{Far, Scheme};
use crate::exit::Exit;
use anyhow::Result;
use phoebus_gridftp::client::{Beside, Reached, Way};
use phoebus_net::Error;
use phoebus_net::pair::Pair;
use phoebus_net::tcp::Tcp;
use phoebus_net::transport::{Boxed, Transport};
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_proto::session::Code;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;

/// What is run at the far side for `sshftp://`, in words that all shells understand. Where GCT's client is told what to run instead
/// (`GLOBUS_REMOTE_SSHFTP`), so is this.
const SSHFTP: &str = "test -x .globus/sshftp && exec .globus/sshftp; \
                      test -x /etc/grid-security/sshftp && exec /etc/grid-security/sshftp; exec phoebus serve --inetd";

/// Where the far side's command may be said by the user.
const REMOTE_SSHFTP: &str = "GLOBUS_REMOTE_SSHFTP";

/// The command that is run for `ssh`: a program and, after blanks, its first arguments; quotes are a shell's.
const SSH: &str = "PHOEBUS_SSH";

/// What runs the server of Phoebus.
const SERVE: &str = "serve --inetd";

/// What runs its relay of data.
const RELAY: &str = "serve --inetd --data";

/// How many logins are under way at a time beside those of control connections: with 10 in all, sshd begins to refuse (MaxStartups).
const LOGINS: usize = 2;

/// How long a login may take, which may wait for somebody to find and type his password: as long as sshd waits for it.
const LOGIN: Duration = Duration::from_secs(120);

/// How long anything else that a server has to say is waited for, if nobody says otherwise.
const USUAL: Duration = Duration::from_secs(60);

/// How long `ssh` has to end once its connection has: it may have something to say yet.
const FAREWELL: Duration = Duration::from_secs(5);

/// No wait at all.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// How much is kept of what `ssh` and the far side say.
const MAX_WORDS: usize = 2048;

/// What `ssh` is told of the way to hosts, by options that scp has, too.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SshArgs {
    /// For HOST:PATH and sshftp://, the port of the SSH server, where the URL has none [default: what ssh_config says, or 22]
    #[arg(short = 'P', value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// For HOST:PATH and sshftp://, a file with the private key to log in with; ssh tries several in turn
    #[arg(short = 'i', value_name = "FILE")]
    identity: Vec<PathBuf>,
    /// For HOST:PATH and sshftp://, hosts to go through, in turn (ProxyJump)
    #[arg(short = 'J', value_name = "[USER@]HOST[:PORT],...")]
    jump: Option<String>,
}

impl SshArgs {
    /// An option that is given, if any is.
    pub(super) fn given(&self) -> Option<&'static str> {
        let options = [(!self.identity.is_empty(), "-i"), (self.port.is_some(), "-P"), (self.jump.is_some(), "-J")];
        options.into_iter().find_map(|(given, option)| given.then_some(option))
    }
}

/// The way to a server at the far side.
#[derive(Debug)]
pub(super) struct Ssh {
    /// The program, and its arguments up to those of the host.
    program: Vec<String>,
    arguments: Vec<OsString>,
    /// The last argument of a login that carries data.
    relay: OsString,
    scheme: Scheme,
    /// Logins that carry data, while they are under way.
    logins: Semaphore,
    /// What host it goes to, once it was asked.
    host: OnceCell<Option<Host>>,
}

impl Ssh {
    /// The way to `far`, where `phoebus` is Phoebus, by `args` and the environment.
    ///
    /// # Errors
    /// What no user and no host can be called, a password, and a command that is none (exit code 2).
    pub(super) fn to(far: &Far, args: &SshArgs, phoebus: &str, name: &str) -> Result<Self> {
        let wrong = |why: &str| Exit::usage(format!("{name}: {why}"));
        if far.password.is_some() {
            return Err(wrong("ssh asks for passwords by itself, and none was expected in the URL"));
        }
        let host = match &far.server.host {
            Host::Addr(addr) => addr.to_string(),
            Host::Name(name) => name.clone(),
        };
        // An option is what begins so, and the rest means something to shells, which ssh_config may have ssh start.
        let odd = |text: &str| {
            text.starts_with('-') || text.contains(|c: char| c.is_control() || "'`\"$\\;&<>|(){} ".contains(c))
        };
        if odd(&host) || far.user.as_deref().is_some_and(odd) {
            return Err(wrong("a host and a user were expected whose names ssh takes"));
        }
        if args.jump.as_deref().is_some_and(|jump| jump.is_empty() || odd(jump)) {
            return Err(Exit::usage("-J: [USER@]HOST[:PORT], or several with commas between, was expected"));
        }
        let options = ["-T", "-x", "-a", "-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no"];
        let mut arguments: Vec<OsString> = options.map(OsString::from).into();
        let named = Some(far.server.port).filter(|port| *port != far.scheme.port());
        if let Some(port) = named.or(args.port) {
            arguments.extend(["-p".into(), port.to_string().into()]);
        }
        for file in &args.identity {
            arguments.extend(["-i".into(), file.into()]);
        }
        if let Some(jump) = &args.jump {
            arguments.extend(["-J".into(), jump.into()]);
        }
        if let Some(user) = &far.user {
            arguments.extend(["-l".into(), user.into()]);
        }
        let command = match far.scheme {
            Scheme::Ssh => format!("{phoebus} {SERVE}"),
            _ => std::env::var(REMOTE_SSHFTP).ok().filter(|said| !said.is_empty()).unwrap_or_else(|| SSHFTP.to_owned()),
        };
        arguments.extend(["--".into(), host.into(), command.into()]);
        let ssh = std::env::var_os(SSH).filter(|said| !said.is_empty()).unwrap_or_else(|| "ssh".into());
        let words = ssh.to_str().and_then(shlex::split).filter(|words| !words.is_empty());
        let program = words.ok_or_else(|| {
            Exit::usage(format!("{SSH}: a command was expected, in quotes what of it has blanks or quotes"))
        })?;
        let relay = format!("{phoebus} {RELAY}").into();
        let (scheme, logins, host) = (far.scheme, Semaphore::new(LOGINS), OnceCell::new());
        Ok(Self { program, arguments, relay, scheme, logins, host })
    }

    /// The command that is `ssh`, with the arguments that it always has.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]);
        command
    }

    /// What host `ssh` goes to, by its own configuration.
    async fn asked_of_ssh(&self, limit: Duration) -> Option<Host> {
        let mut command = self.command();
        let (_, but_the_command) = self.arguments.split_last()?;
        command.arg("-G").args(but_the_command).stdin(Stdio::null()).stderr(Stdio::null());
        let asked = tokio::task::spawn_blocking(move || command.output());
        let said = timeout(limit, asked).await.ok()?.ok()?.ok()?.stdout;
        let said = String::from_utf8(said).ok()?;
        let host = said.lines().find_map(|line| line.strip_prefix("hostname "))?;
        Some(host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Addr))
    }

    /// Starts `ssh` and waits until something has come from the far side, where it runs `instead` or else the server.
    async fn start(&self, instead: Option<&OsStr>, limit: Duration) -> Result<(Pair, Process), Error> {
        let failed = |error: &io::Error| {
            let why = phoebus_net::reason(error);
            Self::error(Code::Requirement, format!("{} cannot be started: {why}", self.program[0]))
        };
        let (pair, other) = Pair::new().map_err(|error| failed(&error))?;
        let input = other.try_clone().map_err(|error| failed(&error))?;
        let mut command = self.command();
        let (last, but_the_last) =
            self.arguments.split_last().ok_or_else(|| failed(&io::ErrorKind::InvalidInput.into()))?;
        command.args(but_the_last).arg(instead.unwrap_or(last));
        command.stdin(Stdio::from(input)).stdout(Stdio::from(other)).stderr(Stdio::piped());
        let mut process = Process::new(command.spawn().map_err(|error| failed(&error))?);
        // What it holds of the other end would keep that open.
        drop(command);
        // Who waits for less than usual (`--timeout`) does so here, too.
        let limit = if limit < USUAL { limit } else { LOGIN };
        let late = || Self::error(Code::TimedOut, format!("nothing came within {} s", limit.as_secs_f32().ceil()));
        match timeout(limit, pair.has_come()).await.map_err(|_| late())? {
            Ok(true) => {}
            Ok(false) => return Err(self.why(process.ended().await, &process.words())),
            Err(error) => return Err(failed(&error)),
        }
        Ok((pair, process))
    }

    /// Why there is no server, by how `ssh` ended and what was said.
    fn why(&self, status: Option<ExitStatus>, words: &str) -> Error {
        let lower = words.to_lowercase();
        let distrust = ["host key verification failed", "permission denied", "too many authentication failures"];
        let said = if words.is_empty() { String::new() } else { format!(": {words}") };
        match status.and_then(|status| status.code()) {
            Some(255) if distrust.iter().any(|words| lower.contains(words)) => {
                Self::error(Code::AuthFailed, format!("ssh does not log in{said}"))
            }
            Some(255) | None => Self::error(Code::ConnectFailed, format!("ssh does not get there{said}")),
            Some(126 | 127) => {
                let missing = match self.scheme {
                    Scheme::Ssh => {
                        "the far side has no phoebus where its shell looks for it (--remote-command says where it is)"
                    }
                    _ => {
                        "the far side has no sshftp for its users (~/.globus/sshftp or /etc/grid-security/sshftp) and no phoebus"
                    }
                };
                Self::error(Code::Requirement, format!("{missing}{said}"))
            }
            Some(code) => {
                Self::error(Code::Requirement, format!("the far side's server ended at once, with code {code}{said}"))
            }
        }
    }

    fn error(code: Code, reason: String) -> Error {
        Error::Carrier { code, reason }
    }
}

impl Way for Ssh {
    fn reach<'a>(&'a self, _: &'a Endpoint, limit: Duration) -> Boxed<'a, Result<Reached, Error>> {
        Box::pin(async move {
            let (pair, process) = self.start(None, limit).await?;
            let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            let stream = pair.into_stream((unknown, unknown), process);
            Ok(Reached { stream, server: unknown, data: None })
        })
    }

    fn beside(&self, limit: Duration) -> Boxed<'_, Result<Beside, Error>> {
        Box::pin(async move {
            // It is never closed.
            let _login = self.logins.acquire().await;
            let (pair, process) = self.start(Some(&self.relay), limit).await?;
            Ok(Beside { io: pair.into_inner(), held: Box::new(process) })
        })
    }

    fn host<'a>(&'a self, _: &'a Endpoint, limit: Duration) -> Boxed<'a, Option<Host>> {
        Box::pin(async move { self.host.get_or_init(|| self.asked_of_ssh(limit)).await.clone() })
    }

    fn carries_data(&self) -> bool {
        false
    }

    /// Data connections are the network's own.
    fn data(&self) -> Arc<dyn Transport> {
        Arc::new(Tcp)
    }
}

/// A running `ssh`. Dropped, it is given a moment to end, since its input has, and then killed.
#[derive(Debug)]
struct Process {
    child: Option<Child>,
    words: Option<Arc<Words>>,
}

/// What comes on its standard error, the end of it.
#[derive(Debug)]
struct Words {
    from: ChildStderr,
    /// Locked while it is read.
    heard: Mutex<Vec<u8>>,
}

impl Words {
    fn of(from: ChildStderr) -> Arc<Self> {
        let words = Arc::new(Self { from, heard: Mutex::default() });
        let all = words.clone();
        // Somebody has to read, and a master that stays for other connections may keep it open for hours.
        thread::spawn(move || while all.is_there(None) && all.hear() {});
        words
    }

    /// Whether there is something to read, an end included, within `limit`.
    fn is_there(&self, limit: Option<&Timespec>) -> bool {
        loop {
            match poll(&mut [PollFd::new(&self.from, PollFlags::IN)], limit) {
                Err(Errno::INTR) => {}
                ready => return ready.is_ok_and(|ready| ready > 0),
            }
        }
    }

    /// Reads some of what is there; false at the end.
    fn hear(&self) -> bool {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        // Another may have read it meanwhile.
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

    /// Reads what has been written by now, as far as a pipe holds so much.
    fn hear_all(&self) {
        (0..256).all(|_| self.is_there(Some(&NOW)) && self.hear());
    }
}

impl Process {
    fn new(mut child: Child) -> Self {
        let words = child.stderr.take().map(Words::of);
        Self { child: Some(child), words }
    }

    /// Waits for its end, and for what it says last.
    async fn ended(&mut self) -> Option<ExitStatus> {
        let until = Instant::now() + FAREWELL;
        while let Some(child) = self.child.as_mut().filter(|_| Instant::now() < until) {
            if let Ok(Some(status)) = child.try_wait() {
                self.words.iter().for_each(|words| words.hear_all());
                return Some(status);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        None
    }

    /// What was said on standard error, as part of a sentence.
    fn words(&self) -> String {
        let Some(words) = &self.words else { return String::new() };
        let words = words.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&words);
        let noise =
            |line: &&str| line.is_empty() || line.starts_with("Warning: Permanently added") || line.starts_with('@');
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !noise(line)).collect();
        lines
            .join(" ")
            .chars()
            .flat_map(char::escape_debug)
            .collect::<String>()
            .replace("\\'", "'")
            .replace("\\\"", "\"")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
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
    use super::super::url::Url;
    use super::*;

    #[tokio::test]
    async fn what_was_said_last_is_heard() {
        for _ in 0..20 {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 1 & printf '%3000d\\n' 7 >&2; echo why >&2; exit 255"]).stderr(Stdio::piped());
            let mut process = Process::new(command.spawn().unwrap());
            assert_eq!(process.ended().await.and_then(|status| status.code()), Some(255));
            assert!(process.words().ends_with("7 why"), "{}", process.words());
        }
    }

    fn arguments_with(args: &SshArgs, text: &str) -> Result<Vec<String>> {
        let Ok(Url::Far(far)) = Url::parse(OsStr::new(text)) else {
            return Err(Exit::usage("it is no place of a server"));
        };
        let all = Ssh::to(&far, args, "phoebus", "x")?.arguments.split_off(7);
        Ok(all.into_iter().map(|argument| argument.into_string().unwrap()).collect())
    }

    fn arguments(text: &str) -> Result<Vec<String>> {
        arguments_with(&SshArgs::default(), text)
    }

    #[test]
    fn the_port_of_a_url_counts_before_that_of_an_option() {
        let args =
            SshArgs { port: Some(2222), identity: vec!["k 1".into(), "-k".into()], jump: Some("a,me@b:7".into()) };
        let serve = "phoebus serve --inetd";
        let rest = ["-i", "k 1", "-i", "-k", "-J", "a,me@b:7", "--", "host"];
        assert_eq!(arguments_with(&args, "host:a").unwrap(), [&["-p", "2222"], &rest[..], &[serve]].concat());
        assert_eq!(arguments_with(&args, "sshftp://host:2223/a").unwrap()[..10], [&["-p", "2223"], &rest[..]].concat());
        for jump in ["", "-oProxyCommand=x", "$(x)", "a b"] {
            let args = SshArgs { jump: Some(jump.into()), ..SshArgs::default() };
            assert!(arguments_with(&args, "host:a").is_err(), "{jump}");
        }
    }

    #[test]
    fn nothing_that_is_said_of_a_host_is_taken_for_anything_else() {
        let serve = "phoebus serve --inetd";
        assert_eq!(arguments("me@host:a;b").unwrap(), ["-l", "me", "--", "host", serve]);
        assert_eq!(arguments("[2001:db8::1]:a").unwrap(), ["--", "2001:db8::1", serve]);
        assert_eq!(arguments("sshftp://host:2222/a").unwrap()[..4], ["-p", "2222", "--", "host"]);
        for text in [
            "-oProxyCommand=x:a",
            "me@-host:a",
            "-l@host:a",
            "$(x)@host:a",
            "sshftp://%2Dl@host/",
            "sshftp://a%20b@host/",
            "sshftp://me:pw@host/",
        ] {
            assert!(arguments(text).is_err(), "{text}");
        }
    }
}
