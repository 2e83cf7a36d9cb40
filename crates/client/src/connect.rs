//! Opens a session: carries out what an [`Opening`] asks for (P8, P18, P38).

use crate::error::Error;
use crate::opening::{FirstHop, Opening, Step};
use crate::options::Options;
use crate::report::Hop;
use crate::session::Session;
use phoebus_net::{CongestionControl, DatagramRoute, Profile, Stream, dial, tcp};
use phoebus_proto::endpoint::{Endpoint, Host};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Bytes per read, at most. Handshake messages of gateways are hardly longer.
const CHUNK: usize = 4096;

/// Opens a session to `destination`. The last gateway resolves a name. When this returns, the last gateway has
/// connected to the destination.
///
/// # Errors
/// [`Error`], which says which hop failed.
pub async fn connect(options: &Options, destination: &Endpoint) -> Result<Session, Error> {
    open(Opening::new(options.clone(), destination.clone())).await
}

/// Carries out an opening.
///
/// # Errors
/// As for [`connect`].
pub async fn open(mut opening: Opening) -> Result<Session, Error> {
    let clock = Clock(Instant::now());
    loop {
        if let Some(stream) = attempt(&mut opening, clock).await
            && let Some(mut report) = opening.report().map(std::mem::take)
        {
            report.describe(measured(&stream));
            opening.remember(report.rtt_us);
            let route = opening
                .datagrams()
                .zip(stream.peer_addr().ok())
                .map(|(grant, gateway)| DatagramRoute { to: SocketAddr::new(gateway.ip(), grant.port), grant });
            let stream = stream.with_datagrams(route);
            return Ok(Session::new(stream, report, opening.options().finish_limit));
        }
        if !opening.again() {
            return Err(opening.into_error());
        }
    }
}

/// Time since the opening began.
#[derive(Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn now(self) -> Duration {
        self.0.elapsed()
    }
}

/// Tries one connection; `None` if the opening failed on it.
async fn attempt(opening: &mut Opening, clock: Clock) -> Option<Stream> {
    let first_hop = opening.first_hop(clock.now())?;
    let stream = match dial(opening.options(), &first_hop, opening.time_limit()).await {
        Ok(stream) => stream,
        Err(source) => {
            opening.failed(match first_hop {
                FirstHop::Destination(_) => Error::Direct(source),
                FirstHop::Gateway(gateway) => Error::Gateway { gateway, source },
                FirstHop::Agent(_) => Error::Gateway { gateway: opening.options().path.first()?.clone(), source },
            });
            return None;
        }
    };
    if exchange(&stream, opening, clock).await {
        return Some(stream);
    }
    // An orderly refusal gets an orderly close.
    if opening.error().is_some_and(Error::is_refusal) {
        stream.close();
    }
    None
}

async fn dial(options: &Options, to: &FirstHop, limit: Duration) -> Result<Stream, phoebus_net::Error> {
    let untuned = Profile { congestion_control: CongestionControl::System, ..options.profile.clone() };
    match to {
        FirstHop::Agent(addresses) => dial::connect(addresses, &untuned, limit).await,
        FirstHop::Destination(destination) => {
            let addresses = resolve(destination, options.connect_limit).await?;
            dial::connect(&addresses, &untuned, limit).await
        }
        FirstHop::Gateway(gateway) => match resolve(gateway, limit).await?[..] {
            // With one address, HELLO and OPEN may ride in the SYN. With several, HELLO goes only to the one that
            // answers.
            [only] => tcp::connect_with_data(only, &options.profile, limit).await,
            ref addresses => dial::connect(addresses, &options.profile, limit).await,
        },
    }
}

/// Moves the opening's bytes until it ends. Returns whether there is a session.
async fn exchange(stream: &Stream, opening: &mut Opening, clock: Clock) -> bool {
    let (mut input, mut received) = ([0; CHUNK], 0);
    let mut out = [0; CHUNK];
    loop {
        let (_, step) = opening.step(clock.now(), &input[..received], &mut out);
        received = 0;
        let left = opening.deadline().map_or(Duration::MAX, |deadline| deadline.saturating_sub(clock.now()));
        let result = match step {
            Step::Done => return true,
            Step::Failed => return false,
            Step::Write(n) => timeout(left, write(stream, &out[..n])).await,
            Step::Read(want) => {
                let space = &mut input[..want.min(CHUNK)];
                timeout(left, read(stream, space)).await.map(|read| read.map(|n| received = n))
            }
        };
        match result {
            Ok(Ok(())) => {}
            Ok(Err(source)) => opening.lost(stream.peer_addr().ok(), source),
            // The deadline passed during the read or write; the next step returns `Failed`.
            Err(_) => opening.expire(),
        }
    }
}

async fn write(stream: &Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(bytes, false) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn read(stream: &Stream, space: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.try_read(space) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            result => return result,
        }
    }
}

/// The first hop's measurements, from its connection.
fn measured(stream: &Stream) -> Hop {
    let stats = stream.stats().unwrap_or_default();
    Hop {
        congestion_control: stats.congestion_control,
        rtt_us: stats.rtt_us,
        send_buffer: stats.send_buffer,
        receive_buffer: stats.receive_buffer,
        note: stream.note().unwrap_or_default().to_owned(),
        ..Hop::default()
    }
}

async fn resolve(endpoint: &Endpoint, limit: Duration) -> Result<Vec<SocketAddr>, phoebus_net::Error> {
    match &endpoint.host {
        Host::Addr(addr) => Ok(vec![SocketAddr::new(*addr, endpoint.port)]),
        Host::Name(name) => dial::resolve(name, endpoint.port, limit).await,
    }
}
