//! Servers behind SSH (U1): `sshftp://host/path` as in GCT, and `host:path`. The control connection is standard input
//! and output of a server that `ssh` starts at the far side, for the user who has authenticated to SSH:
//!
//! - `sshftp://`: what the far side provides, `~/.globus/sshftp` or `/etc/grid-security/sshftp`, which start
//!   `globus-gridftp-server -ssh`; or else Phoebus.
//! - `host:path`: `phoebus serve --inetd`.
//!
//! The user's own OpenSSH runs, with its configuration, keys and agent. It asks for passwords on the terminal, so they
//! do not pass through here. Nothing about a host reaches a shell: the far side's shell gets a constant text. `-P`,
//! `-i` and `-J` are scp's options; `PHOEBUS_SSH` replaces `ssh`, as `RSYNC_RSH` does for rsync ([`SshOptions`]).

mod process;

use self::process::{Process, as_words};
use crate::error::{self, Result};
use crate::options::SshOptions;
use crate::url::{Far, Scheme};
use phoebus_gridftp::client::{ControlStream, RelayStream, Route};
use phoebus_net::Error;
use phoebus_net::pair::Pair;
use phoebus_net::tcp::Tcp;
use phoebus_net::transport::{Boxed, Transport};
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_proto::session::Code;
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;

/// Longest first output that is examined.
const FIRST_WORDS: usize = 256;

/// Command at the far side for `sshftp://`, for any shell. [`SshOptions::remote_sshftp`] replaces it.
const SSHFTP: &str = "test -x .globus/sshftp && exec .globus/sshftp; \
                      test -x /etc/grid-security/sshftp && exec /etc/grid-security/sshftp; exec phoebus serve --inetd";

/// Environment variable that replaces `ssh` ([`SshOptions::command`]).
const SSH: &str = "PHOEBUS_SSH";

/// Arguments that start Phoebus's server.
const SERVE: &str = "serve --inetd";

/// Arguments that start its data relay.
const RELAY: &str = "serve --inetd --data";

/// Logins at a time besides those of control connections: with 10 in all, sshd begins to refuse (MaxStartups).
const LOGINS: usize = 2;

/// Longest login, during which a user may look for a password: sshd's own limit.
const LOGIN: Duration = Duration::from_secs(120);

/// Default limit of anything else.
const USUAL: Duration = Duration::from_secs(60);

/// Connections to a server at the far side.
#[derive(Debug)]
pub(super) struct Ssh {
    /// The program, and its arguments before those of the host.
    program: Vec<String>,
    arguments: Vec<OsString>,
    /// Last argument of a login that carries data.
    relay: OsString,
    scheme: Scheme,
    /// Advice on a host that SSH does not reach, where HOST:PATH may be HOST:PORT/PATH without its scheme.
    if_not_reached: String,
    /// Limit of data logins in progress.
    logins: Semaphore,
    /// The real host name, once asked.
    host: OnceCell<Option<Host>>,
}

impl Ssh {
    /// Connections to `far`, where Phoebus is called `phoebus`.
    ///
    /// # Errors
    /// Invalid user or host names, a password, or an invalid command ([`error::Error::Request`]).
    pub(super) fn to(far: &Far, options: &SshOptions, phoebus: &str, name: &str) -> Result<Self> {
        let wrong = |why: &str| error::Error::request(format!("{name}: {why}"));
        if far.password.is_some() {
            return Err(wrong("ssh asks for passwords by itself, and none was expected in the URL"));
        }
        let host = match &far.server.host {
            Host::Addr(addr) => addr.to_string(),
            Host::Name(name) => name.clone(),
        };
        // A leading hyphen makes an option, and the other characters have a meaning to shells, which ssh_config may
        // start.
        let odd = |text: &str| {
            text.starts_with('-') || text.contains(|c: char| c.is_control() || "'`\"$\\;&<>|(){} ".contains(c))
        };
        if odd(&host) || far.user.as_deref().is_some_and(odd) {
            return Err(wrong("a host and a user with names that ssh accepts were expected"));
        }
        if options.jump.as_deref().is_some_and(|jump| jump.is_empty() || odd(jump)) {
            return Err(error::Error::request("-J: [USER@]HOST[:PORT], or several with commas between, was expected"));
        }
        let usual = ["-T", "-x", "-a", "-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no"];
        let mut arguments: Vec<OsString> = usual.map(OsString::from).into();
        let named = Some(far.server.port).filter(|port| *port != far.scheme.port());
        if let Some(port) = named.or(options.port) {
            arguments.extend(["-p".into(), port.to_string().into()]);
        }
        for file in &options.identity {
            arguments.extend(["-i".into(), file.into()]);
        }
        if let Some(jump) = &options.jump {
            arguments.extend(["-J".into(), jump.into()]);
        }
        if let Some(user) = &far.user {
            arguments.extend(["-l".into(), user.into()]);
        }
        let command = match far.scheme {
            Scheme::Ssh => format!("{phoebus} {SERVE}"),
            _ => options.remote_sshftp.clone().unwrap_or_else(|| SSHFTP.to_owned()),
        };
        arguments.extend(["--".into(), host.into(), command.into()]);
        let ssh = options.command.as_deref().unwrap_or("ssh".as_ref());
        let words = ssh.to_str().and_then(shlex::split).filter(|words| !words.is_empty());
        let program = words.ok_or_else(|| {
            error::Error::request(format!(
                "{SSH}: a command was expected, with quotes around words that have blanks or quotes"
            ))
        })?;
        let relay = format!("{phoebus} {RELAY}").into();
        let (scheme, logins, host) = (far.scheme, Semaphore::new(LOGINS), OnceCell::new());
        let if_not_reached = port_in_path(&far.path).map_or_else(String::new, |port| {
            format!("; \"HOST:PATH\" goes by SSH, and if {port} is the port of a server, a scheme is missing, as in ftp://{}:{port}/", far.server.host)
        });
        Ok(Self { program, arguments, relay, scheme, if_not_reached, logins, host })
    }

    /// The `ssh` command with its constant arguments.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]);
        command
    }

    /// The host that `ssh` connects to, by its own configuration.
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

    /// Starts `ssh`, and waits for the first output of the far side, where it runs `instead` or the server.
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
        // A copy of the other end's descriptor would keep it open.
        drop(command);
        // A shorter `--timeout` holds here too.
        let limit = if limit < USUAL { limit } else { LOGIN };
        let mut first = [0; FIRST_WORDS];
        let problem = match timeout(limit, pair.peek(&mut first)).await {
            Ok(Ok(0)) => {
                let status = process.ended().await;
                self.why(status, &process.words())
            }
            Ok(Ok(len)) if instead.is_some() || is_of_a_server(&first[..len]) => {
                process.mark_answered();
                return Ok((pair, process));
            }
            Ok(Ok(len)) => {
                let line = first[..len].split(|&byte| byte == b'\n').next().unwrap_or_default();
                let said = format!(
                    "the far side said \"{}\" where a server's greeting was expected; what is not for a terminal has to run \
                     without a word (a line of ~/.bashrc or another script of its shell may print this)",
                    as_words(line)
                );
                Self::error(Code::Requirement, said)
            }
            Ok(Err(error)) => failed(&error),
            Err(_) => Self::error(Code::TimedOut, format!("nothing came within {} s", limit.as_secs_f32().ceil())),
        };
        process.end().await;
        Err(problem)
    }

    /// Why there is no server, by the end of `ssh` and its output.
    fn why(&self, status: Option<ExitStatus>, words: &str) -> Error {
        let lower = words.to_lowercase();
        let distrust = ["host key verification failed", "permission denied", "too many authentication failures"];
        let said = if words.is_empty() { String::new() } else { format!(": {words}") };
        match status.and_then(|status| status.code()) {
            Some(255) if distrust.iter().any(|words| lower.contains(words)) => {
                Self::error(Code::AuthFailed, format!("ssh does not log in{said}"))
            }
            Some(255) if lower.contains("could not resolve hostname") => {
                Self::error(Code::NameNotFound, format!("ssh does not get there{said}"))
            }
            Some(255) | None => {
                let advice = &self.if_not_reached;
                Self::error(Code::ConnectFailed, format!("ssh does not get there{said}{advice}"))
            }
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

/// The first part of `path`, if it reads as a port.
fn port_in_path(path: &[u8]) -> Option<u16> {
    let first = path.split(|&byte| byte == b'/').next()?;
    str::from_utf8(first).ok()?.parse().ok().filter(|port| *port != 0)
}

/// Whether the first output may be the start of a greeting: three digits.
fn is_of_a_server(first: &[u8]) -> bool {
    first.iter().take(3).all(u8::is_ascii_digit)
}

impl Route for Ssh {
    fn reach<'a>(&'a self, _: &'a Endpoint, limit: Duration) -> Boxed<'a, Result<ControlStream, Error>> {
        Box::pin(async move {
            let (pair, process) = self.start(None, limit).await?;
            let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            let stream = pair.into_stream((unknown, unknown), process);
            Ok(ControlStream { stream, server: unknown, data: None })
        })
    }

    fn beside(&self, limit: Duration) -> Boxed<'_, Result<RelayStream, Error>> {
        Box::pin(async move {
            // The semaphore is never closed.
            let _login = self.logins.acquire().await;
            let (pair, process) = self.start(Some(&self.relay), limit).await?;
            Ok(RelayStream { io: pair.into_inner(), held: Box::new(process) })
        })
    }

    fn host<'a>(&'a self, _: &'a Endpoint, limit: Duration) -> Boxed<'a, Option<Host>> {
        Box::pin(async move { self.host.get_or_init(|| self.asked_of_ssh(limit)).await.clone() })
    }

    fn carries_data(&self) -> bool {
        false
    }

    /// Data connections use the network.
    fn data(&self) -> Arc<dyn Transport> {
        Arc::new(Tcp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::Url;
    use std::os::unix::process::ExitStatusExt;

    fn arguments_with(options: &SshOptions, text: &str) -> Result<Vec<String>> {
        let Ok(Url::Far(far)) = Url::parse(OsStr::new(text)) else {
            return Err(error::Error::request("it is no place of a server"));
        };
        let all = Ssh::to(&far, options, "phoebus", "x")?.arguments.split_off(7);
        Ok(all.into_iter().map(|argument| argument.into_string().unwrap()).collect())
    }

    fn arguments(text: &str) -> Result<Vec<String>> {
        arguments_with(&SshOptions::default(), text)
    }

    #[test]
    fn port_of_a_url_precedes_the_option() {
        let args = SshOptions {
            port: Some(2222),
            identity: vec!["k 1".into(), "-k".into()],
            jump: Some("a,me@b:7".into()),
            ..SshOptions::default()
        };
        let serve = "phoebus serve --inetd";
        let rest = ["-i", "k 1", "-i", "-k", "-J", "a,me@b:7", "--", "host"];
        assert_eq!(arguments_with(&args, "host:a").unwrap(), [&["-p", "2222"], &rest[..], &[serve]].concat());
        assert_eq!(arguments_with(&args, "sshftp://host:2223/a").unwrap()[..10], [&["-p", "2223"], &rest[..]].concat());
        for jump in ["", "-oProxyCommand=x", "$(x)", "a b"] {
            let args = SshOptions { jump: Some(jump.into()), ..SshOptions::default() };
            assert!(arguments_with(&args, "host:a").is_err(), "{jump}");
        }
    }

    #[test]
    fn unknown_name_is_told_from_a_failed_lookup() {
        let Ok(Url::Far(far)) = Url::parse(OsStr::new("host:a")) else { panic!("it is a place of a server") };
        let ssh = Ssh::to(&far, &SshOptions::default(), "phoebus", "x").unwrap();
        let why = |words: &str| ssh.why(Some(ExitStatus::from_raw(255 << 8)), words);
        assert!(why("ssh: Could not resolve hostname host: Name or service not known").is_unknown_name());
        assert!(!why("ssh: Could not resolve hostname host: Temporary failure in name resolution").is_unknown_name());
        assert!(!why("ssh: connect to host host port 22: Connection refused").is_unknown_name());
    }

    #[test]
    fn host_options_are_matched_exactly() {
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
