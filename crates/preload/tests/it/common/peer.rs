//! A gateway whose behaviour a test controls: it depends on the destination port of the session. Each session that it
//! opens leads to an echo.

use super::{preloaded, run};
use phoebus_proto::endpoint::{Endpoint, EndpointRef};
use phoebus_proto::session::acceptor::{Request, State};
use phoebus_proto::session::message::{HopReport, Opened, Refused, Requirements};
use phoebus_proto::session::{Acceptor, Code, List, Mode, SessionId};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Opens at once.
pub const ECHO: u16 = 7;
/// Opens when the test releases it.
pub const HELD: u16 = 9;
/// Refuses with a refused connection.
pub const REFUSED: u16 = 11;
/// The same, when the test releases it.
pub const HELD_REFUSED: u16 = 12;
/// Opens in single bytes, directly followed by bytes of the stream.
pub const TRICKLE: u16 = 13;
/// Closes the connection.
pub const HANG_UP: u16 = 14;
/// Speaks another protocol.
pub const GARBAGE: u16 = 15;
/// Asks for authentication.
pub const CHALLENGE: u16 = 16;
/// Refuses by policy.
pub const NOT_ALLOWED: u16 = 17;
/// Opens, immediately sends as much as fits, and closes its direction.
pub const GREETING: u16 = 18;
/// Opens, and resets after the client has sent something.
pub const RESET: u16 = 19;

/// Like [`HELD`] and [`HELD_REFUSED`], at ports where a program without privileges can listen.
pub const HELD_HERE: u16 = 10_009;
pub const HELD_REFUSED_HERE: u16 = 10_012;

/// The request of a client.
#[derive(Debug, Clone)]
pub struct Asked {
    pub session: SessionId,
    pub destination: Endpoint,
    pub path: Vec<Endpoint>,
    pub mode: Mode,
    pub user: Option<String>,
    /// The client's address.
    pub from: SocketAddr,
}

/// The gateway; it ends with the test process.
pub struct Peer {
    pub address: SocketAddr,
    /// A datagram to this port releases the session that was held first.
    pub control: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Peer {
    pub fn start(ip: &str) -> Self {
        let listener = TcpListener::bind(SocketAddr::new(ip.parse().unwrap(), 0)).unwrap();
        Self::on(listener)
    }

    /// A gateway that refuses every session and names `better`.
    pub fn naming(better: Endpoint) -> Self {
        Self::with(TcpListener::bind("127.0.0.1:0").unwrap(), Some(better))
    }

    pub fn on(listener: TcpListener) -> Self {
        Self::with(listener, None)
    }

    /// On `listener`; it refuses every session if it names a better gateway.
    pub fn with(listener: TcpListener, better: Option<Endpoint>) -> Self {
        let better = better.map(Arc::new);
        let control = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let peer = Self {
            address: listener.local_addr().unwrap(),
            control: control.local_addr().unwrap().port(),
            asked: Arc::default(),
        };
        let asked = Arc::clone(&peer.asked);
        thread::spawn(move || {
            loop {
                let Ok((stream, from)) = listener.accept() else { continue };
                let (control, asked, better) = (Arc::clone(&control), Arc::clone(&asked), better.clone());
                // A client that closes its connection does not matter.
                thread::spawn(move || drop(serve(stream, from, &control, &asked, better.as_deref())));
            }
        });
        peer
    }

    /// Waits until a request was received. A client that gives up may have ended before its request is read.
    pub fn wait_until_asked(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.asked().is_empty() {
            assert!(Instant::now() < end, "nothing was asked for");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

fn serve(
    mut stream: TcpStream,
    from: SocketAddr,
    control: &UdpSocket,
    asked: &Mutex<Vec<Asked>>,
    better: Option<&Endpoint>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut acceptor = Acceptor::new("peer");
    let mut user = None;
    loop {
        while acceptor.state() != State::Asked {
            // A client that gave up has reset its connection, and cannot be greeted. What it asked for can still be read.
            let sent = send(&mut stream, &mut acceptor, usize::MAX);
            let n = stream.read(acceptor.space().map_err(invalid)?)?;
            if n == 0 {
                return Ok(());
            }
            acceptor.received(n).map_err(invalid)?;
            if acceptor.state() != State::Asked {
                sent?;
            }
        }
        match acceptor.request() {
            Some(Request::Auth(auth)) => user = Some(String::from_utf8_lossy(auth.data).into_owned()),
            Some(Request::Open(open)) => {
                let request = Asked {
                    session: open.session,
                    destination: open.destination.to_owned(),
                    path: open.path.iter().map(EndpointRef::to_owned).collect(),
                    mode: open.mode,
                    user,
                    from,
                };
                asked.lock().unwrap().push(request.clone());
                return match better {
                    Some(better) => redirect(stream, acceptor, better),
                    None => answer(stream, acceptor, &request, control),
                };
            }
            _ => return Ok(()),
        }
        acceptor.accept_auth(None).unwrap();
    }
}

fn redirect(mut stream: TcpStream, mut acceptor: Acceptor, better: &Endpoint) -> io::Result<()> {
    let (limits, redirect) = (Requirements::default(), Some(better.as_ref()));
    acceptor
        .refuse(&Refused { code: Code::Limit, reason: "it is full", hop: "pg", limits, redirect })
        .map_err(invalid)?;
    send(&mut stream, &mut acceptor, usize::MAX)?;
    // The client must close the connection.
    stream.read(&mut [0; 16]).map(|_| ())
}

fn answer(mut stream: TcpStream, mut acceptor: Acceptor, asked: &Asked, control: &UdpSocket) -> io::Result<()> {
    let port = asked.destination.port;
    if matches!(port, HELD | HELD_REFUSED | HELD_HERE | HELD_REFUSED_HERE) {
        // HELLO is sent at once, however long the answer takes.
        send(&mut stream, &mut acceptor, usize::MAX)?;
        control.recv(&mut [0; 16])?;
    }
    let refuse = |code| Refused {
        code,
        reason: "it is \"closed\"",
        hop: "peer",
        limits: Requirements::default(),
        redirect: None,
    };
    let hops = [HopReport { from: "peer", to: "echo", transport: "tcp", rtt_us: 250, ..HopReport::default() }];
    let opened = Opened::new(asked.session, asked.mode, List::new(&hops));
    match port {
        REFUSED | HELD_REFUSED | HELD_REFUSED_HERE => acceptor.refuse(&refuse(Code::Refused)).map_err(invalid)?,
        NOT_ALLOWED => acceptor.refuse(&refuse(Code::NotAllowed)).map_err(invalid)?,
        HANG_UP => return Ok(()),
        GARBAGE => return stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        CHALLENGE => {
            let challenge =
                phoebus_proto::session::message::Challenge { mechanisms: List::new(&["scram"]), data: b"x" };
            acceptor.challenge(&challenge).map_err(invalid)?;
        }
        _ => acceptor.opened(&opened).map_err(invalid)?,
    }
    match port {
        TRICKLE => {
            while acceptor.outgoing().len() > 1 {
                send(&mut stream, &mut acceptor, 1)?;
                thread::yield_now();
            }
            let mut last = acceptor.outgoing().to_vec();
            last.extend_from_slice(b"hello");
            stream.write_all(&last)?;
        }
        GREETING => {
            let mut all = acceptor.outgoing().to_vec();
            all.extend_from_slice(b"220 ready\r\n");
            stream.write_all(&all)?;
            return stream.shutdown(Shutdown::Write);
        }
        _ => send(&mut stream, &mut acceptor, usize::MAX)?,
    }
    if !matches!(acceptor.state(), State::Opened(_)) {
        // The client must close the connection.
        return stream.read(&mut [0; 16]).map(|_| ());
    }
    if port == RESET {
        // The kernel resets a connection that is closed while bytes are unread.
        return stream.peek(&mut [0]).map(|_| ());
    }
    let mut from = stream.try_clone()?;
    io::copy(&mut from, &mut stream)?;
    stream.shutdown(Shutdown::Write)
}

fn send(stream: &mut TcpStream, acceptor: &mut Acceptor, most: usize) -> io::Result<()> {
    let len = acceptor.outgoing().len().min(most);
    stream.write_all(&acceptor.outgoing()[..len])?;
    acceptor.sent(len);
    Ok(())
}

/// An echo server that is reached directly.
pub fn echo(ip: IpAddr) -> SocketAddr {
    let listener = TcpListener::bind(SocketAddr::new(ip, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut from = stream.try_clone()?;
                io::copy(&mut from, &mut stream)?;
                stream.shutdown(Shutdown::Write)
            });
        }
    });
    address
}

/// Runs a rule of `program` with the shim and a gateway of this kind at `ip`. Returns the gateway.
#[track_caller]
pub fn check(program: &Path, rule: &str, ip: &str) -> Peer {
    let peer = Peer::start(ip);
    let direct = echo([127, 0, 0, 1].into());
    let mut command = preloaded(program, peer.address);
    command.env("CONTROL", peer.control.to_string()).env("DIRECT", direct.port().to_string());
    run(command.arg(rule)).ok();
    peer
}
