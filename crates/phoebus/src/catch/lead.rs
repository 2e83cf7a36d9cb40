//! Opens a session on a caller's socket: carries out what an [`Opening`] asks for, as `phoebus_client::open` does on
//! sockets of its own.

use super::attempts::Outcome;
use super::dial::{Borrowed, Watched};
use super::report;
use super::shared::Shared;
use phoebus_client::{Error, FirstHop, Hop, Opening, Step};
use phoebus_net::{dial::resolve, tcp, watch};
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_seccomp::{Caller, socket};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, recv, send};
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::time::{Instant, timeout};

/// Bytes per read, at most. Handshake messages of gateways are hardly longer.
const CHUNK: usize = 4096;

/// Opens a session to `destination` on the caller's socket. Gives up when the caller's process ends.
pub(super) async fn open(
    shared: &Shared,
    socket: &Arc<OwnedFd>,
    domain: AddressFamily,
    caller: Caller,
    destination: SocketAddr,
) -> Outcome {
    let process = caller.process();
    let borrowed = Borrowed::new(socket.clone(), domain);
    tokio::select! {
        outcome = lead(shared, borrowed, process, destination) => outcome,
        () = ended(&caller) => Outcome::Failed(Errno::CONNABORTED.raw_os_error()),
    }
}

/// Waits until the caller has ended.
async fn ended(caller: &Caller) {
    match watch(caller.end(), Interest::READABLE) {
        Ok(process) => drop(process.readable().await),
        Err(_) => pending().await,
    }
}

async fn lead(shared: &Shared, mut socket: Borrowed, process: i32, destination: SocketAddr) -> Outcome {
    let canonical = SocketAddr::new(destination.ip().to_canonical(), destination.port());
    let mut options = shared.options.clone();
    if let Some(agents) = &options.agents
        && !socket::is_of_own_network(socket.socket()).unwrap_or(false)
    {
        let demanded = agents.demanded();
        if demanded.is_some() || agents.find().is_some() {
            report::beyond_agents(shared, process, destination, demanded);
        }
        if demanded.is_some() {
            return Outcome::Failed(Errno::NETUNREACH.raw_os_error());
        }
        options.agents = None;
    }
    let mut opening = Opening::new(options, Endpoint::from(canonical));
    let clock = Instant::now();
    loop {
        match opening.first_hop(clock.elapsed()) {
            Some(FirstHop::Destination(_)) => {
                // The kernel connects; here it is only told.
                opening.step(clock.elapsed(), &[], &mut [0]);
                report::direct(shared, process, opening.report());
                return Outcome::Direct;
            }
            Some(hop) => {
                let is_gateway = matches!(hop, FirstHop::Gateway(_));
                match connect(&mut socket, &hop, opening.time_limit()).await {
                    Ok((watched, at)) => {
                        let wanted = shared.settings.congestion_control.as_deref().filter(|_| is_gateway);
                        let note = socket.tune(wanted);
                        if exchange(&watched, at, &mut opening, clock).await
                            && let Some(report) = opening.report()
                        {
                            report.describe(measured(socket.socket(), note));
                            report::opened(shared, process, report);
                            let rtt = report.rtt_us;
                            opening.remember(rtt);
                            socket.keep();
                            return Outcome::Open;
                        }
                    }
                    Err(source) => {
                        let gateway = match (hop, shared.settings.path.first()) {
                            (FirstHop::Gateway(gateway), _) => gateway,
                            // The agent leads to the first one.
                            (_, Some(gateway)) => gateway.clone(),
                            (_, None) => Endpoint::from(canonical),
                        };
                        opening.failed(Error::Gateway { gateway, source });
                    }
                }
                socket.take_back();
            }
            None => {}
        }
        if !opening.again() {
            let error = opening.into_error();
            report::failed(shared, process, destination, &error);
            return Outcome::Failed(error.errno());
        }
    }
}

async fn connect(
    socket: &mut Borrowed,
    to: &FirstHop,
    limit: Duration,
) -> Result<(Watched, SocketAddr), phoebus_net::Error> {
    let addresses = match to {
        FirstHop::Agent(addresses) => addresses.clone(),
        FirstHop::Gateway(endpoint) | FirstHop::Destination(endpoint) => match &endpoint.host {
            Host::Addr(addr) => vec![SocketAddr::new(*addr, endpoint.port)],
            Host::Name(name) => resolve(name, endpoint.port, limit).await?,
        },
    };
    socket.dial(&addresses, limit).await
}

/// Moves the opening's bytes until it ends. Returns whether there is a session.
async fn exchange(socket: &Watched, at: SocketAddr, opening: &mut Opening, clock: Instant) -> bool {
    let (mut input, mut received) = (vec![0; CHUNK], 0);
    let mut out = vec![0; CHUNK];
    loop {
        let (_, step) = opening.step(clock.elapsed(), &input[..received], &mut out);
        received = 0;
        let left = opening.deadline().map_or(Duration::MAX, |deadline| deadline.saturating_sub(clock.elapsed()));
        let result = match step {
            Step::Done => return true,
            Step::Failed => return false,
            Step::Write(n) => timeout(left, write(socket, &out[..n])).await,
            Step::Read(want) => {
                let space = &mut input[..want.min(CHUNK)];
                timeout(left, read(socket, space)).await.map(|read| read.map(|n| received = n))
            }
        };
        match result {
            Ok(Ok(())) => {}
            Ok(Err(source)) => opening.lost(Some(at), source),
            Err(_) => opening.expire(),
        }
    }
}

/// O_NONBLOCK is the program's to choose, so each call says that it does not wait.
async fn write(socket: &Watched, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let n = socket.async_io(Interest::WRITABLE, |socket| Ok(send(socket, bytes, flags)?)).await?;
        bytes = &bytes[n..];
    }
    Ok(())
}

async fn read(socket: &Watched, space: &mut [u8]) -> io::Result<usize> {
    let read = socket.async_io(Interest::READABLE, |socket| Ok(recv(socket, &mut *space, RecvFlags::DONTWAIT)?.0));
    match read.await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n => Ok(n),
    }
}

/// The first hop's measurements, from its connection.
fn measured(socket: &OwnedFd, note: String) -> Hop {
    let stats = tcp::stats(&socket).unwrap_or_default();
    Hop {
        congestion_control: stats.congestion_control,
        rtt_us: stats.rtt_us,
        send_buffer: stats.send_buffer,
        receive_buffer: stats.receive_buffer,
        note,
        ..Hop::default()
    }
}
