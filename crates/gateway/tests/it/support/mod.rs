//! Gateways in this process, and clients and destinations on ordinary sockets. All use loopback addresses of their own.

#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod flood;

use phoebus_gateway::config::Config;
use phoebus_gateway::{Gateway, StartError, Status};
use phoebus_net::credentials::Authority;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::auth::scram::{Keys, Login};
use phoebus_proto::session::datagrams::DatagramGrant;
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::login::{self, Random};
use phoebus_proto::session::message::{Hello, Open, Requirements};
use phoebus_proto::session::{Code, List, Principal, SessionId, plan, principal};
use std::fs::Permissions;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Runtime;

/// Time limit against hanging, far longer than any step takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A loopback address and port that no other test uses. Every address of 127.0.0.0/8 belongs to this host.
pub(crate) fn address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    SocketAddr::from((Ipv4Addr::new(127, 64 + (pid >> 8) as u8 % 128, pid as u8, n as u8), 5006 + (n >> 8) as u16))
}

/// Rules that allow everything on loopback.
pub(crate) const ALLOW_ALL: &str = "[[allow]]\nfrom = [\"127.0.0.0/8\"]\nto = [\"127.0.0.0/8\", \"*\"]\n";

/// A gateway with a runtime of its own, as in a separate process.
pub(crate) struct Pg {
    pub(crate) addr: SocketAddr,
    pub(crate) gateway: Option<Gateway>,
    pub(crate) runtime: Runtime,
}

impl Pg {
    /// Starts a gateway called `name`, with `more` in its configuration.
    pub(crate) fn start(name: &str, more: &str) -> Self {
        Self::start_at(address(), name, more)
    }

    pub(crate) fn start_at(addr: SocketAddr, name: &str, more: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let guard = runtime.enter();
        let gateway = Gateway::start(config(addr, name, more)).unwrap_or_else(|error| panic!("{error}"));
        drop(guard);
        Self { addr, gateway: Some(gateway), runtime }
    }

    /// Starts two gateways that are peers. The first routes everything through the second.
    pub(crate) fn chain(more: &str) -> (Self, Self) {
        let (first, second) = (address(), address());
        let second = Self::start_at(second, "pg2", &format!("{}{}{more}", peer("pg1", first, 0), ALLOW_ALL));
        let route = "[[route]]\nto = \"*\"\nvia = \"pg2\"\n";
        let text = format!("{}{route}{}{more}", peer("pg2", second.addr, 1), ALLOW_ALL);
        let first = Self::start_at(first, "pg1", &text);
        first.until(|status| status.pools[0].idle > 0, "a connection is ready");
        (first, second)
    }

    pub(crate) fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        self.gateway().status()
    }

    pub(crate) fn reload(&self, name: &str, more: &str) {
        self.try_reload(name, more).unwrap_or_else(|error| panic!("{error}"));
    }

    pub(crate) fn try_reload(&self, name: &str, more: &str) -> Result<(), StartError> {
        self.runtime.block_on(self.gateway().reload(config(self.addr, name, more)))
    }

    /// Waits until the gateway's status satisfies `wanted`.
    pub(crate) fn until(&self, wanted: impl Fn(&Status) -> bool, what: &str) -> Status {
        let start = Instant::now();
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "never came true: {what}\n{status:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until no session is open. Returns how many sessions ended well, and how many failed.
    pub(crate) fn quiet(&self) -> (u64, u64) {
        let status = self.until(|status| status.sessions.is_empty(), "no session is open");
        (status.totals.sessions_clean, status.totals.sessions_failed)
    }
}

impl Drop for Pg {
    fn drop(&mut self) {
        let _guard = self.runtime.enter();
        drop(self.gateway.take());
    }
}

fn config(addr: SocketAddr, name: &str, more: &str) -> Config {
    let text = format!("name = \"{name}\"\n[[listen]]\naddress = \"{addr}\"\n{more}");
    Config::parse(&text, Path::new(name)).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A peer on loopback.
pub(crate) fn peer(name: &str, addr: SocketAddr, min: u32) -> String {
    format!(
        "[[peer]]\nname = \"{name}\"\naddress = \"{addr}\"\nsecurity = \"none\"\nfrom = [\"127.0.0.0/8\"]\n\
         pool = {{ min = {min} }}\n"
    )
}

/// An authority in a directory of its own, with the certificates that it has issued.
pub(crate) struct Certificates {
    dir: tempfile::TempDir,
    authority: Authority,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Self::authority(dir.path());
        Self { dir, authority }
    }

    fn authority(dir: &Path) -> Authority {
        let (authority, own) = Authority::create("the authority of a test", SystemTime::now()).unwrap();
        std::fs::write(dir.join("authority.pem"), own.certificate).unwrap();
        authority
    }

    /// Replaces the authority, in the same file.
    pub(crate) fn replace_authority(&mut self) {
        self.authority = Self::authority(self.dir.path());
    }

    /// A `[tls]` section with a certificate for `name` that is valid for `days`. Replaces an earlier certificate in
    /// `file`.
    pub(crate) fn issue_as(&self, file: &str, name: &str, days: u32) -> String {
        self.write(file, name, &[], DAY * days)
    }

    /// The same for `name` and the names in `also`, valid for a year.
    pub(crate) fn issue_for(&self, name: &str, also: &[String]) -> String {
        self.write(name, name, also, DAY * 365)
    }

    /// The same, valid for `life`.
    pub(crate) fn issue_until(&self, name: &str, life: Duration) -> String {
        self.write(name, name, &[], life)
    }

    fn write(&self, file: &str, name: &str, also: &[String], life: Duration) -> String {
        let issued = self.authority.issue(name, also, SystemTime::now(), life).unwrap();
        let path = |end: &str| self.dir.path().join(format!("{file}.{end}"));
        std::fs::write(path("pem"), issued.certificate).unwrap();
        std::fs::write(path("key"), issued.key).unwrap();
        std::fs::set_permissions(path("key"), Permissions::from_mode(0o600)).unwrap();
        let authority = self.dir.path().join("authority.pem");
        format!("[tls]\ncertificate = {:?}\nkey = {:?}\nauthorities = {authority:?}\n", path("pem"), path("key"))
    }

    pub(crate) fn issue(&self, name: &str) -> String {
        self.issue_as(name, name, 365)
    }
}

/// A client's request.
#[derive(Clone)]
pub(crate) struct Ask {
    pub(crate) session: SessionId,
    pub(crate) destination: Endpoint,
    pub(crate) path: Vec<Endpoint>,
    pub(crate) visited: Vec<String>,
    pub(crate) requirements: Requirements,
    pub(crate) resumable: bool,
    /// The e-mail address of AUTH.
    pub(crate) email: Option<String>,
    /// The secret of an agent.
    pub(crate) secret: Option<Vec<u8>>,
    /// A user, and the keys of a password.
    pub(crate) login: Option<(String, Keys)>,
    /// Bytes sent right behind OPEN.
    pub(crate) early: Vec<u8>,
    /// Whether datagrams are wanted.
    pub(crate) datagrams: bool,
    /// Features that the session requires.
    pub(crate) required: u64,
    /// On whose behalf the client claims to come.
    pub(crate) claims: Principal,
}

/// The contents of OPENED: the hops as (from, to, warm), and the sum of the round-trip times.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) hops: Vec<(String, String, bool)>,
    pub(crate) congestion_controls: Vec<String>,
    /// Transport and security of each hop.
    pub(crate) carried: Vec<(String, String)>,
    pub(crate) notes: Vec<String>,
    /// The rate of each hop in bits per second; 0 for none.
    pub(crate) rates: Vec<u64>,
    pub(crate) rtt_us: u64,
    /// The number of connections of each hop, and the note about it.
    pub(crate) streams: Vec<(u16, String)>,
    pub(crate) datagrams: Option<DatagramGrant>,
}

/// REFUSED.
#[derive(Debug)]
pub(crate) struct No {
    pub(crate) code: Code,
    pub(crate) hop: String,
    pub(crate) reason: String,
    pub(crate) limits: Requirements,
    pub(crate) redirect: Option<Box<Endpoint>>,
}

impl Ask {
    pub(crate) fn to(destination: impl ToString) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let mut session = [0; 16];
        session[..4].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        Self {
            session: SessionId(session),
            destination: destination.to_string().parse().unwrap(),
            path: Vec::new(),
            visited: Vec::new(),
            requirements: Requirements::default(),
            resumable: false,
            email: None,
            secret: None,
            login: None,
            early: Vec::new(),
            datagrams: false,
            required: 0,
            claims: Principal::default(),
        }
    }

    pub(crate) fn path(mut self, path: &str) -> Self {
        self.path = Endpoint::parse_path(path).unwrap();
        self
    }

    /// Sends the request to the gateway at `gateway`.
    pub(crate) fn ask(&self, gateway: SocketAddr) -> Result<(TcpStream, Report), No> {
        let stream = TcpStream::connect(gateway).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        self.ask_on(stream)
    }

    pub(crate) fn ask_on(&self, stream: TcpStream) -> Result<(TcpStream, Report), No> {
        self.try_ask_on(stream).expect("there must be an answer")
    }

    /// The same, for a gateway that may not answer.
    pub(crate) fn try_ask_on(&self, mut stream: TcpStream) -> io::Result<Result<(TcpStream, Report), No>> {
        let path: Vec<_> = self.path.iter().map(Endpoint::as_ref).collect();
        let visited: Vec<_> = self.visited.iter().map(String::as_str).collect();
        let groups: Vec<_> = self.claims.groups.iter().map(String::as_str).collect();
        let Principal { method, subject, user, spoken_for_by, .. } = &self.claims;
        let open = Open {
            path: List::new(&path),
            visited: List::new(&visited),
            principal: principal::Of { method, subject, user, groups: List::new(&groups), spoken_for_by },
            requirements: self.requirements,
            resumable: self.resumable,
            datagrams: self.datagrams,
            required: self.required,
            ..Open::new(self.session, self.destination.as_ref())
        };
        let login = self.login.as_ref().map(|(user, keys)| Login { user, keys, binding: None });
        let credential = plan::credential(self.secret.as_deref(), login, self.email.as_deref());
        // Each request has an identifier of its own.
        let mut random: Random = [0; _];
        random[..16].copy_from_slice(&self.session.0);
        let begun = credential.as_ref().map(|credential| (credential, random));
        let (mut client, mut exchange) =
            login::connect((vec![0; 8192], Vec::new()), &Hello::of(""), begun, &open).unwrap();
        let invalid = |error: String| io::Error::new(ErrorKind::InvalidData, error);
        let mut early = &self.early[..];
        loop {
            let mut flight = client.outgoing().to_vec();
            client.sent(flight.len());
            flight.extend_from_slice(std::mem::take(&mut early));
            stream.write_all(&flight)?;
            while client.want() > 0 {
                let n = stream.read(client.space().unwrap())?;
                if n == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                client.received(n).map_err(|error| invalid(error.to_string()))?;
            }
            let goes_on = login::go_on(&mut client, exchange.as_mut(), credential.as_ref(), Some(&open));
            if !goes_on.map_err(|error| invalid(error.to_string()))? {
                break;
            }
        }
        Ok(match client.state() {
            State::Opened => {
                let opened = client.opened().unwrap();
                let names = |hop: phoebus_proto::session::message::HopReport| {
                    (hop.from.to_owned(), hop.to.to_owned(), hop.warm)
                };
                let report = Report {
                    hops: opened.hops.iter().map(names).collect(),
                    carried: opened
                        .hops
                        .iter()
                        .map(|hop| (hop.transport.to_owned(), hop.security.to_owned()))
                        .collect(),
                    notes: opened.hops.iter().map(|hop| hop.note.to_owned()).collect(),
                    rates: opened.hops.iter().map(|hop| hop.rate).collect(),
                    congestion_controls: opened.hops.iter().map(|hop| hop.congestion_control.to_owned()).collect(),
                    rtt_us: opened.rtt_us(),
                    datagrams: opened.datagrams,
                    streams: opened.hops.iter().map(|hop| (hop.streams.max(1), hop.note.to_owned())).collect(),
                };
                Ok((stream, report))
            }
            State::Challenged => Err(No {
                code: Code::AuthRequired,
                hop: String::new(),
                reason: client.challenge().unwrap().mechanisms.iter().collect(),
                limits: Requirements::default(),
                redirect: None,
            }),
            state => {
                let refused = client.refused().unwrap_or_else(|| panic!("{state:?}"));
                Err(No {
                    code: refused.code,
                    hop: refused.hop.to_owned(),
                    reason: refused.reason.to_owned(),
                    limits: refused.limits,
                    redirect: refused.redirect.map(|better| Box::new(better.to_owned())),
                })
            }
        })
    }
}

/// A destination: a listener on an address of its own.
pub(crate) fn destination() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((address().ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A session from a client through `gateway`, and its other end.
pub(crate) fn session(gateway: &Pg, ask: impl FnOnce(Ask) -> Ask) -> (TcpStream, TcpStream, Report) {
    let (listener, addr) = destination();
    let (client, report) = ask(Ask::to(addr)).ask(gateway.addr).unwrap_or_else(|no| panic!("{no:?}"));
    let (server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    (client, server, report)
}

/// Pseudo-random bytes, so that a shifted or repeated part is detected.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Sends `up` and `down` concurrently, closes both streams, and checks what arrives.
pub(crate) fn exchange(client: TcpStream, server: TcpStream, up: &[u8], down: &[u8]) {
    let send = |mut to: &TcpStream, bytes: &[u8]| {
        to.write_all(bytes).unwrap();
        to.shutdown(std::net::Shutdown::Write).unwrap();
    };
    let receive = |mut from: &TcpStream| {
        let mut got = Vec::new();
        from.read_to_end(&mut got).unwrap();
        got
    };
    std::thread::scope(|scope| {
        scope.spawn(|| send(&client, up));
        scope.spawn(|| send(&server, down));
        let got_up = scope.spawn(|| receive(&server));
        assert!(receive(&client) == down, "the downward stream was changed");
        assert!(got_up.join().unwrap() == up, "the upward stream was changed");
    });
}

/// Reads to the end, which must be a reset.
pub(crate) fn assert_reset(stream: &mut TcpStream) {
    let error = stream.read_to_end(&mut Vec::new()).expect_err("a session that was cut must not end cleanly");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Closes with a reset.
pub(crate) fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Reads as many bytes as expected, and compares them.
pub(crate) fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, bytes);
}

/// A destination that never answers: its accept queue is full, so that the kernel drops connection attempts.
pub(crate) struct Deaf {
    pub(crate) addr: SocketAddr,
    _listener: socket2::Socket,
    _queue: Vec<socket2::Socket>,
}

impl Deaf {
    pub(crate) fn new() -> Self {
        let stream = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let listener = stream();
        listener.bind(&SocketAddr::from((address().ip(), 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let addr = listener.local_addr().unwrap().as_socket().unwrap();
        let queue = (0..4)
            .map(|_| {
                let socket = stream();
                socket.set_nonblocking(true).unwrap();
                let _ = socket.connect(&addr.into());
                socket
            })
            .collect();
        Self { addr, _listener: listener, _queue: queue }
    }
}

impl Ask {
    /// Sends the request under a new session identifier. Returns the code of the refusal, or `None` if there was none.
    /// A listener that is being replaced counts as [`Code::Refused`].
    pub(crate) fn try_ask(&self, gateway: SocketAddr) -> Option<Code> {
        let Ok(stream) = TcpStream::connect(gateway) else { return Some(Code::Refused) };
        let fresh = Self { session: Self::to(&self.destination).session, ..self.clone() };
        match fresh.try_ask_on(stream) {
            Ok(Ok(_)) => None,
            Ok(Err(no)) => Some(no.code),
            Err(_) => Some(Code::Refused),
        }
    }
}
