//! Gateways as processes, and programs that use them, on loopback addresses of their own.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod ftp;
pub mod grid;
pub mod gridftp;
pub mod here;
pub mod path;
pub mod peers;
pub mod place;
#[path = "../../../../gridftp/tests/it/support/port.rs"]
pub mod port;
pub mod serve;
pub mod site;
#[path = "../../../../gridftp/tests/it/support/works.rs"]
pub mod works;

use phoebus_net::credentials::Authority;
use phoebus_proto::endpoint::{Endpoint, EndpointRef};
use phoebus_proto::session::initiator::{Initiator, State};
use phoebus_proto::session::message::{Hello, Open};
use phoebus_proto::session::{Code, List, SessionId};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// Time limit against hanging, far longer than any step takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A loopback address that no other test uses: every address of 127.0.0.0/8 is this host's.
pub fn address() -> Ipv4Addr {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    Ipv4Addr::new(127, 1 + (pid >> 8) as u8 % 250, pid as u8, n as u8)
}

/// A running gateway.
pub struct Gateway {
    /// Where it listens.
    pub addr: SocketAddr,
    child: Child,
    dir: TempDir,
}

impl Gateway {
    /// Starts a gateway called `name` that allows everything on loopback; `more` is added to its configuration.
    pub fn start(name: &str, more: &str) -> Self {
        Self::start_at(SocketAddr::from((address(), 5006)), name, more)
    }

    /// The same, at this address.
    pub fn start_at(addr: SocketAddr, name: &str, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let gateway = Self { addr, child: spawn(&dir, addr, name, more), dir };
        gateway.wait_until_up()
    }

    /// A gateway whose host has this file instead of `/etc/resolv.conf`, in a mount namespace of its own. Needs root.
    pub fn start_with_resolver(resolv_conf: &str, name: &str, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let addr = SocketAddr::from((address(), 5006));
        let file = dir.path().join("resolv.conf");
        std::fs::write(&file, resolv_conf).unwrap();
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\""]).arg(file);
        command.arg(phoebus().get_program());
        let gateway = Self { addr, child: spawn_by(command, &dir, addr, name, more), dir };
        gateway.wait_until_up()
    }

    /// A gateway that knows `next` as its peer "next".
    pub fn before(next: &Self, name: &str, next_name: &str, more: &str) -> Self {
        let peer =
            format!("[[peer]]\nname = \"{next_name}\"\naddress = \"{}\"\nsecurity = \"none\"\n{more}", next.addr);
        Self::start(name, &peer)
    }

    fn wait_until_up(mut self) -> Self {
        let start = Instant::now();
        while TcpStream::connect(self.addr).is_err() {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the gateway ended with {status}:\n{}", self.log());
            }
            assert!(start.elapsed() < PATIENCE, "the gateway does not listen:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        self
    }

    /// Replaces what was added to the configuration and sends SIGHUP.
    pub fn reload(&self, name: &str, more: &str) {
        std::fs::write(self.file("gateway.toml"), config(self.addr, name, more)).unwrap();
        self.signal(libc::SIGHUP);
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    /// Waits until the log contains `text`.
    pub fn wait_for_log(&self, text: &str) {
        wait_until(|| self.log().contains(text), || format!("no \"{text}\" in the log:\n{}", self.log()));
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the gateway does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The number of its sockets. (Pipes are kept, as many as sessions have needed at once.)
    pub fn sockets(&self) -> usize {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let links = descriptors.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        links.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    }

    /// Its private resident memory, in bytes. The pages of its program can be resident for other reasons.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// The command that asks this gateway for its state.
    pub fn status(&self) -> serde_json::Value {
        let output = phoebus().args(["status", "--json", "--gateway"]).arg(self.file("admin.sock")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "phoebus status: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let status = self.child.wait();
        let signalled = status.is_ok_and(|status| status.signal().is_some());
        if std::thread::panicking() && signalled {
            eprintln!("log of the gateway at {}:\n{}", self.addr, self.log());
        }
    }
}

/// The lines of a gateway's configuration that have it relay datagrams.
pub const RELAY: &str = "[datagrams]\naddresses = [\"0.0.0.0:0\"]\n";

/// The command under test.
pub fn phoebus() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phoebus"));
    command.stdin(Stdio::null());
    command
}

fn config(addr: SocketAddr, name: &str, more: &str) -> String {
    let mut text = format!("name = \"{name}\"\n[[listen]]\naddress = \"{addr}\"\n");
    if !more.contains("[[allow]]") {
        text.push_str("[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"127.0.0.0/8\", \"localhost\"]\n");
    }
    writeln!(text, "[admin]\nsocket = \"admin.sock\"\n{more}").unwrap();
    text
}

fn spawn(dir: &TempDir, addr: SocketAddr, name: &str, more: &str) -> Child {
    spawn_by(phoebus(), dir, addr, name, more)
}

fn spawn_by(mut command: Command, dir: &TempDir, addr: SocketAddr, name: &str, more: &str) -> Child {
    let file = dir.path().join("gateway.toml");
    std::fs::write(&file, config(addr, name, more)).unwrap();
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    command.arg("gateway").arg("--config").arg(file).current_dir(dir.path());
    command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

/// The refusal that a gateway sent instead of OPENED.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    pub reason: String,
    pub hop: String,
}

/// The usual two gateways. The first knows the second.
pub fn pair(more_first: &str, more_second: &str) -> (Gateway, Gateway) {
    let second = Gateway::start("pg2", more_second);
    let first = Gateway::before(&second, "pg1", "pg2", more_first);
    (first, second)
}

/// A random session identifier. It need not be secret, only distinct.
pub fn session() -> SessionId {
    let mut id = [0; 16];
    std::fs::File::open("/dev/urandom").unwrap().read_exact(&mut id).unwrap();
    SessionId(id)
}

/// A request for a session to `destination` over the gateways after the first.
pub fn open<'a>(session: SessionId, destination: EndpointRef<'a>, path: &'a [EndpointRef<'a>]) -> Open<'a> {
    Open { path: List::new(path), ..Open::new(session, destination) }
}

/// Opens a session over these gateways.
pub fn connect(gateways: &[SocketAddr], destination: impl Into<Endpoint>) -> Result<TcpStream, Refusal> {
    connect_as(session(), gateways, &destination.into())
}

/// The same, with this identifier.
pub fn connect_as(id: SessionId, gateways: &[SocketAddr], destination: &Endpoint) -> Result<TcpStream, Refusal> {
    try_connect(id, gateways, destination).unwrap()
}

/// The same over a gateway that may be about to end.
pub fn try_connect(
    id: SessionId,
    gateways: &[SocketAddr],
    destination: &Endpoint,
) -> io::Result<Result<TcpStream, Refusal>> {
    Ok(connect_reported(id, gateways, destination)?.map(|(stream, _)| stream))
}

/// What a gateway reports about a hop of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    pub to: String,
    pub transport: String,
    pub note: String,
}

/// The same, with the gateways' reports about their hops, the first gateway's first.
pub fn connect_reported(
    id: SessionId,
    gateways: &[SocketAddr],
    destination: &Endpoint,
) -> io::Result<Result<(TcpStream, Vec<Hop>), Refusal>> {
    connect_on(TcpStream::connect(gateways[0])?, id, gateways, destination)
}

/// The same on a connection to the first of the gateways.
pub fn connect_on(
    mut stream: TcpStream,
    id: SessionId,
    gateways: &[SocketAddr],
    destination: &Endpoint,
) -> io::Result<Result<(TcpStream, Vec<Hop>), Refusal>> {
    let path: Vec<EndpointRef> = gateways[1..].iter().map(|addr| EndpointRef::from(*addr)).collect();
    let open = open(id, destination.as_ref(), &path);
    let mut client = Initiator::connect(vec![0; 4096], Vec::new(), &Hello::of(""), None, &open).unwrap();
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(client.outgoing())?;
    client.sent(usize::MAX);
    while client.state() == State::Opening {
        let n = stream.read(client.space().unwrap())?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        client.received(n).unwrap();
    }
    if let Some(refused) = client.refused() {
        let (reason, hop) = (refused.reason.to_owned(), refused.hop.to_owned());
        return Ok(Err(Refusal { code: refused.code, reason, hop }));
    }
    let opened = client.opened().unwrap();
    let hops = opened.hops.iter().map(|hop| Hop {
        to: hop.to.to_owned(),
        transport: hop.transport.to_owned(),
        note: hop.note.to_owned(),
    });
    Ok(Ok((stream, hops.collect())))
}

/// A destination, and a session to it that is open at both ends.
pub fn session_over(gateways: &[SocketAddr]) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut client = connect(gateways, listener.local_addr().unwrap()).unwrap();
    let (mut destination, _) = listener.accept().unwrap();
    destination.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut byte = [0];
    client.write_all(b"c").unwrap();
    destination.read_exact(&mut byte).unwrap();
    destination.write_all(b"d").unwrap();
    client.read_exact(&mut byte).unwrap();
    (client, destination)
}

/// Reads until the connection has failed. A clean end fails the test.
pub fn assert_reset(stream: &mut TcpStream, who: &str) {
    let mut rest = vec![0; 1 << 16];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => panic!("{who}: a cut session must not end cleanly"),
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{who}: {error}");
                return;
            }
        }
    }
}

/// Certificates for gateways, by an authority that exists for one test.
pub struct Certificates {
    dir: TempDir,
    authority: Authority,
}

impl Certificates {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (authority, own) = Authority::create("the authority of a test", SystemTime::now()).unwrap();
        std::fs::write(dir.path().join("ca.pem"), own.certificate).unwrap();
        Self { dir, authority }
    }

    /// The section `[tls]` of a gateway of this name.
    pub fn issue(&self, name: &str) -> String {
        self.issue_for(name, Duration::from_secs(3600))
    }

    /// A file of these certificates.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The same with a certificate that is valid for `life`. Replaces an earlier one for that name.
    pub fn issue_for(&self, name: &str, life: Duration) -> String {
        let issued = self.authority.issue(name, &[], SystemTime::now(), life).unwrap();
        let path = |file: String| self.file(&file);
        let [certificate, key] = [path(format!("{name}.pem")), path(format!("{name}.key"))];
        std::fs::write(&certificate, issued.certificate).unwrap();
        std::fs::write(&key, issued.key).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let authorities = path("ca.pem".to_owned());
        format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\nauthorities = {authorities:?}\n")
    }
}

/// Polls until `done`. `why` explains a failure.
pub fn wait_until(mut done: impl FnMut() -> bool, why: impl Fn() -> String) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{}", why());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// SIGINT.
pub fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

/// Makes the next drop send a reset.
pub fn arm(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}
