//! A connection for a [flow](super::flow), over any carrier: a plain socket, on which the preload shim works as in
//! any program, or bare UDT, QUIC or a loadable driver through the transport interface of `phoebus_net` (U9).

use anyhow::{Context, anyhow, bail};
use phoebus_net::credentials::{Authority, CredentialFiles, Credentials};
use phoebus_net::driver::Library;
use phoebus_net::quic::{Options, Quic};
use phoebus_net::transport::{Listener, Target, Transport};
use phoebus_net::wrapblock::{Limits, WrapBlock};
use phoebus_net::{CongestionControl, Profile, Stats, Stream, tcp, udt};
use phoebus_proto::units::BitRate;
use socket2::{Domain, Socket, Type};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};
use tokio::runtime::{Handle, Runtime};

/// What carries a flow.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Carrier {
    /// tcp, udt, quic, or the file of a loadable driver.
    name: String,
    /// Congestion control of what this end sends; for TCP the system's if absent, otherwise the transport's own choice.
    #[arg(long)]
    cc: Option<CongestionControl>,
    /// The most that this end sends per second, headers included.
    #[arg(long)]
    rate: Option<BitRate>,
    /// For quic: the directory that [`credentials`] has filled.
    #[arg(long)]
    credentials: Option<PathBuf>,
}

/// A blocking connection.
#[derive(Debug)]
pub(super) enum Connection {
    /// A socket of the system.
    Plain(TcpStream),
    /// A stream of a transport, with its runtime.
    ByTransport(Stream, Handle),
}

/// A listener, with its runtime if it needs one.
enum ListenerKind {
    Plain(TcpListener),
    ByTransport(Box<dyn Listener>, Runtime),
}

/// The accepting end.
pub(super) struct FlowListener {
    coming: ListenerKind,
    /// Must live as long as the listener.
    _transport: Option<Arc<dyn Transport>>,
}

/// The runtime of a connection, and its orderly end.
pub(super) struct ConnectionCloser {
    runtime: Option<Runtime>,
    ends: CloseNotice,
}

/// How the peer learns of the end of the connection, before the process ends.
enum CloseNotice {
    ByTheKernel,
    Udt(udt::Port),
    Quic(Box<Quic>),
    Driver(WrapBlock),
}

/// Whether this end connects or accepts.
#[derive(Debug, Clone, Copy)]
enum Side {
    Sender,
    Sink,
}

/// Time limit to connect, over the longest path of the experiments, with lost packets.
const CONNECT: Duration = Duration::from_secs(10);
/// How long to try to tell the peer of the end; everything has been confirmed before.
const FAREWELL: Duration = Duration::from_secs(1);
/// The name in the sink's certificate.
const SINK: &str = "sink.test";
const SENDER: &str = "sender.test";
/// Validity of certificates: longer than any experiment.
const LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

impl Carrier {
    /// The settings for sending.
    fn profile(&self) -> Profile {
        Profile { congestion_control: self.cc.unwrap_or_default(), rate: self.rate, ..Profile::default() }
    }

    /// Connects to a sink.
    pub(super) fn connect(&self, to: SocketAddr) -> anyhow::Result<(Connection, ConnectionCloser)> {
        let cannot = || format!("cannot connect to {to} by {}", self.name);
        if self.is_plain() {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            control(&socket, self.cc)?;
            socket.connect(&to.into()).with_context(cannot)?;
            return Ok((
                Connection::Plain(socket.into()),
                ConnectionCloser { runtime: None, ends: CloseNotice::ByTheKernel },
            ));
        }
        let (runtime, profile) = (runtime()?, self.profile());
        let target = Target { addr: to, name: SINK.into(), early: false };
        let opened = runtime.block_on(async {
            Ok::<_, anyhow::Error>(match self.name.as_str() {
                "tcp" => (tcp::Tcp.connect(&target, &profile, CONNECT).await?, CloseNotice::ByTheKernel),
                "udt" => {
                    let port = udt::Port::bind(any(to))?;
                    (port.connect(to, &profile, CONNECT).await?, CloseNotice::Udt(port))
                }
                "quic" => {
                    let quic = self.quic(Side::Sender)?;
                    (quic.connect(&target, &profile, CONNECT).await?, CloseNotice::Quic(Box::new(quic)))
                }
                file => {
                    let driver = driver(file)?;
                    (driver.connect(&target, &profile, CONNECT).await?, CloseNotice::Driver(driver))
                }
            })
        });
        let (stream, ends) = opened.with_context(cannot)?;
        note(stream.note());
        Ok((
            Connection::ByTransport(stream, runtime.handle().clone()),
            ConnectionCloser { runtime: Some(runtime), ends },
        ))
    }

    /// Listens at `at`.
    pub(super) fn listen(&self, at: SocketAddr) -> anyhow::Result<FlowListener> {
        if self.is_plain() {
            let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
            return Ok(FlowListener { coming: ListenerKind::Plain(listener), _transport: None });
        }
        let runtime = runtime()?;
        let transport: Arc<dyn Transport> = match self.name.as_str() {
            "tcp" => Arc::new(tcp::Tcp),
            "udt" => Arc::new(udt::Udt::default()),
            "quic" => Arc::new(self.quic(Side::Sink)?),
            file => Arc::new(driver(file)?),
        };
        let listener = runtime.block_on(async { transport.listen(at, &self.profile()) })?;
        note(listener.note());
        Ok(FlowListener { coming: ListenerKind::ByTransport(listener, runtime), _transport: Some(transport) })
    }

    /// TCP uses plain kernel sockets, unless the transport must enforce a rate.
    fn is_plain(&self) -> bool {
        self.name == "tcp" && self.rate.is_none()
    }

    fn quic(&self, side: Side) -> anyhow::Result<Quic> {
        let Some(directory) = &self.credentials else { bail!("quic needs --credentials") };
        let name = match side {
            Side::Sender => SENDER,
            Side::Sink => SINK,
        };
        Ok(Quic::new(Credentials::load(files(directory, name))?, Options::default())?)
    }
}

impl FlowListener {
    /// The listening address, with the chosen port instead of 0.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        match &self.coming {
            ListenerKind::Plain(listener) => listener.local_addr(),
            ListenerKind::ByTransport(listener, _) => listener.local_addr(),
        }
    }

    /// Passes each connection to `serve`, on its own thread. Returns when it can no longer accept.
    pub(super) fn serve(&self, serve: fn(&mut Connection) -> anyhow::Result<()>) -> anyhow::Result<()> {
        loop {
            let mut connection = match &self.coming {
                ListenerKind::Plain(listener) => Connection::Plain(listener.accept().context("cannot accept")?.0),
                ListenerKind::ByTransport(listener, runtime) => {
                    let (pending, _) = runtime.block_on(listener.accept()).context("cannot accept")?;
                    match runtime.block_on(pending.handshake()) {
                        Ok(stream) => {
                            stream.widen();
                            Connection::ByTransport(stream, runtime.handle().clone())
                        }
                        Err(error) => {
                            eprintln!("a connection failed before it began: {error}");
                            continue;
                        }
                    }
                }
            };
            // The client reports why a flow failed; this is only a note.
            thread::spawn(move || match serve(&mut connection) {
                Ok(()) => connection.disarm(),
                Err(error) => eprintln!("a flow failed: {error:#}"),
            });
        }
    }
}

impl Connection {
    /// Sets the congestion control of this end's sending direction.
    pub(super) fn control(&self, cc: CongestionControl) -> anyhow::Result<()> {
        match self {
            Self::Plain(stream) => control(&socket2::SockRef::from(stream), Some(cc)),
            Self::ByTransport(stream, _) => Ok(stream.set(phoebus_net::transport::Change::CongestionControl(cc))?),
        }
    }

    /// The transport's statistics, if this program can read them.
    pub(super) fn stats(&self) -> Option<Stats> {
        match self {
            Self::Plain(_) => None,
            Self::ByTransport(stream, _) => stream.stats().ok(),
        }
    }

    /// Waits until the peer has closed, for a limited time.
    pub(super) fn part(&mut self) {
        if let Self::ByTransport(stream, runtime) = self {
            // Whether it has closed or not, there is nothing left to do.
            let _ = runtime.block_on(async { tokio::time::timeout(FAREWELL, stream.failed()).await });
        }
    }

    /// From now on, dropping the connection is no failure.
    fn disarm(&self) {
        if let Self::ByTransport(stream, _) = self {
            stream.disarm();
        }
    }
}

impl ConnectionCloser {
    /// Closes `connection`, and waits until its peer has been told.
    pub(super) fn leave(self, connection: Connection) {
        connection.disarm();
        drop(connection);
        let Some(runtime) = self.runtime else { return };
        // Everything has been confirmed: it does no harm if the peer is not reached.
        runtime.block_on(async {
            let _ = match &self.ends {
                CloseNotice::ByTheKernel => Ok(()),
                CloseNotice::Udt(port) => tokio::time::timeout(FAREWELL, port.settled()).await,
                CloseNotice::Quic(quic) => tokio::time::timeout(FAREWELL, quic.close()).await,
                CloseNotice::Driver(driver) => {
                    let over = async {
                        while driver.connections() > 0 {
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    };
                    tokio::time::timeout(FAREWELL, over).await
                }
            };
        });
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::ByTransport(stream, runtime) => loop {
                match stream.try_read(buffer) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => runtime.block_on(stream.readable())?,
                    done => return done,
                }
            },
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::ByTransport(stream, runtime) => loop {
                match stream.try_write(bytes, false) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => runtime.block_on(stream.writable())?,
                    done => return done,
                }
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Fills `directory` with the credentials of both ends of QUIC flows, from a temporary authority.
pub(crate) fn credentials(directory: &Path) -> anyhow::Result<()> {
    let now = SystemTime::now();
    let (authority, own) = Authority::create("bench", now)?;
    for name in [SINK, SENDER] {
        let (files, issued) = (files(directory, name), authority.issue(name, &[], now, LIFE)?);
        fs::write(&files.authorities, &own.certificate)?;
        fs::write(&files.certificate, &issued.certificate)?;
        fs::write(&files.key, "")?;
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600))?;
        fs::write(&files.key, &issued.key)?;
    }
    Ok(())
}

fn files(directory: &Path, name: &str) -> CredentialFiles {
    CredentialFiles {
        certificate: directory.join(format!("{name}.pem")),
        key: directory.join(format!("{name}-key.pem")),
        authorities: directory.join("ca.pem"),
    }
}

fn driver(file: &str) -> anyhow::Result<WrapBlock> {
    Ok(Library::load(Path::new(file))?.transport("driver", &BTreeMap::new(), Limits::default())?)
}

fn control(socket: &Socket, cc: Option<CongestionControl>) -> anyhow::Result<()> {
    let Some(cc) = cc else { return Ok(()) };
    let name = cc.kernel_name().ok_or_else(|| anyhow!("TCP has no congestion control {cc}"))?;
    socket.set_tcp_congestion(name.as_bytes()).with_context(|| format!("cannot use congestion control {name}"))
}

/// A worker that waits for the sockets' readiness; the flow's own thread moves the bytes.
fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

fn any(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    }
}

fn note(note: Option<&str>) {
    if let Some(note) = note {
        eprintln!("{note}");
    }
}
