//! Relays datagrams beside sessions (`docs/protocol/session.md` §6.8): a gateway passes each on as it comes, and repairs nothing.
//!
//! ```text
//!   neighbour towards the client ──► listener ──► thread ──► socket of the flow ──► next hop
//!                                ◄── listener ◄── thread ◄── socket of the flow ◄──
//! ```
//!
//! The neighbours towards clients send to a few common ports; each flow has a socket of its own towards its destination, so that the
//! destination and other gateways can tell flows apart by their ports. One thread moves all of them, in batches (UDP_GRO,
//! UDP_SEGMENT).

mod batch;
mod flow;
mod gather;

pub use flow::{Onward, Relayed};

use crate::datagram::{Inbox, RECEIVED_MAX, Socket};
use crate::stream::DatagramRoute;
use crate::sys::{self, TooLong};
use batch::{Batch, Direction};
use flow::Flow;
use gather::Gather;
use phoebus_proto::session::datagrams::{DatagramGrant, KEY_LEN, PREFIX_LEN, flow_of};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Marks the eventfd among what the thread waits for.
const WAKE: u64 = u64::MAX;
/// Numbers below it are those of listeners.
const FLOWS_FROM: u64 = 1 << 16;
/// Bytes of datagrams that the kernel holds for a flow until the thread reads them: 1 ms, for which they gather, at 30 Gbit/s.
const FLOW_BUFFER: usize = 4 << 20;
/// Most receive calls of a turn of one socket, after which the others have theirs. Where nothing is coalesced, each brings 16
/// datagrams.
const RECEIVES: usize = 64;
/// Bytes after which a turn ends.
const TURN: usize = 2 << 20;
/// Bytes of the headers of IPv4 and UDP, and of IPv6 and UDP.
const HEADERS: [u32; 2] = [28, 48];

/// Relays datagrams. Dropping it stops its thread, and its flows carry nothing more.
#[derive(Debug)]
pub struct DatagramRelay {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    listeners: Vec<Socket>,
    flows: RwLock<HashMap<u64, Arc<Flow>>>,
    epoll: OwnedFd,
    wake_fd: OwnedFd,
    stop: AtomicBool,
}

/// The datagrams of one session, relayed until this is dropped.
#[derive(Debug)]
pub struct RelayedFlow {
    shared: Arc<Shared>,
    flow: Arc<Flow>,
}

impl DatagramRelay {
    /// Binds a listener to each of `addresses`, and starts the thread.
    ///
    /// # Errors
    /// The address that cannot be bound, and why; or the system's errors about the thread, without an address.
    pub fn start(addresses: &[SocketAddr]) -> Result<Self, (Option<SocketAddr>, io::Error)> {
        let bind =
            |address: &SocketAddr| Socket::bind(*address, TooLong::SentWhole).map_err(|error| (Some(*address), error));
        let listeners = addresses.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        Self::over(listeners).map_err(|error| (None, error))
    }

    fn over(listeners: Vec<Socket>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        for (number, listener) in (0..).zip(&listeners) {
            epoll::add(&epoll, listener, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        }
        epoll::add(&epoll, &wake_fd, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let (flows, stop) = (RwLock::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { listeners, flows, epoll, wake_fd, stop });
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("datagrams".to_owned()).spawn(move || own.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The addresses of its listeners.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.listeners.iter().map(Socket::local_addr).collect()
    }

    /// Relays datagrams between `neighbour`, whose connection has the address `own` here, and the next hop, which knows this host
    /// as `towards`. `rtt` is the round trip of the session's whole path, as far as it is known. Returns what the neighbour is told.
    /// `None` if no listener has an address that the neighbour can reach.
    ///
    /// # Errors
    /// There is no socket, or no random numbers.
    pub fn relay(
        &self,
        (neighbour, own): (IpAddr, IpAddr),
        towards: IpAddr,
        (onward, rtt): (Onward, Duration),
    ) -> io::Result<Option<(DatagramGrant, RelayedFlow)>> {
        let (own, onward) = (own.to_canonical(), onward.canonical());
        let reaches = |listener: &&Socket| {
            let ip = listener.local_addr().ip();
            // The connection's transport may not tell its address.
            ip.is_ipv4() == own.is_ipv4() && (ip.is_unspecified() || own.is_unspecified() || ip == own)
        };
        let Some(at) = self.shared.listeners.iter().position(|listener| reaches(&listener)) else { return Ok(None) };
        let port = self.shared.listeners[at].local_addr().port();
        let (mut flow, mut key) = ([0; 8], [0; KEY_LEN]);
        fill(&mut flow)?;
        fill(&mut key)?;
        let flow = u64::from_be_bytes(flow).clamp(FLOWS_FROM, WAKE - 1);
        let grant = DatagramGrant { port, flow, key, longest: longest(neighbour, &onward) };
        let socket = Socket::bind(SocketAddr::new(towards.to_canonical(), 0), TooLong::SentWhole)?;
        socket.hold(FLOW_BUFFER)?;
        let flow = Arc::new(Flow::new(grant, (neighbour, at), socket, (onward, rtt)));
        let number = epoll::EventData::new_u64(grant.flow);
        // Whoever is told of the flow finds it there.
        self.shared.flows.write().unwrap_or_else(PoisonError::into_inner).insert(grant.flow, flow.clone());
        let relayed = RelayedFlow { shared: self.shared.clone(), flow };
        epoll::add(&self.shared.epoll, &relayed.flow.socket, number, epoll::EventFlags::IN)?;
        Ok(Some((grant, relayed)))
    }
}

impl RelayedFlow {
    /// What was relayed to the destination, and from it.
    pub fn relayed(&self) -> [Relayed; 2] {
        self.flow.relayed()
    }
}

impl Drop for RelayedFlow {
    fn drop(&mut self) {
        let _ = epoll::delete(&self.shared.epoll, &self.flow.socket);
        self.shared.flows.write().unwrap_or_else(PoisonError::into_inner).remove(&self.flow.grant.flow);
    }
}

impl Drop for DatagramRelay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        // The counter cannot overflow: the thread resets it.
        let _ = rustix::io::write(&self.shared.wake_fd, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Fills `bytes` with random numbers.
fn fill(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes).map_err(|error| io::Error::other(error.to_string()))
}

/// The longest datagram between the neighbour and the next hop, as far as this host knows.
fn longest(neighbour: IpAddr, onward: &Onward) -> u16 {
    let most = |to: SocketAddr, prefix: usize| {
        let headers = HEADERS[usize::from(to.ip().to_canonical().is_ipv6())] + prefix as u32;
        sys::path_mtu(to).map_or(u32::from(u16::MAX), |mtu| mtu.saturating_sub(headers))
    };
    let (next, further) = match onward {
        Onward::Destination(to) => (most(*to, 0), u16::MAX),
        Onward::Gateway(DatagramRoute { to, grant }) => (most(*to, PREFIX_LEN), grant.longest),
    };
    // Any port will do.
    let back = most(SocketAddr::new(neighbour, 9), PREFIX_LEN);
    u16::try_from(next.min(back)).unwrap_or(u16::MAX).min(further)
}

impl Shared {
    fn run(&self) {
        let (mut inbox, mut batch) = (Inbox::new(RECEIVED_MAX), Batch::default());
        let (mut events, mut gather) = (Vec::with_capacity(64), Gather::new(Instant::now()));
        while !self.stop.load(Relaxed) {
            events.clear();
            // After an interruption, the next round waits again.
            let _ = epoll::wait(&self.epoll, spare_capacity(&mut events), None);
            let (mut moved, mut more) = (0, false);
            for event in &events {
                let (bytes, is_full) = self.ready(event, &mut inbox, (&mut batch, &mut gather));
                (moved, more) = (moved + bytes, more || is_full);
            }
            let wait = gather.relayed(moved, Instant::now());
            // Nothing needs to gather while there is more than one turn takes.
            if !more && !wait.is_zero() {
                std::thread::sleep(wait);
            }
        }
    }

    /// Relays what one of the sockets has, as much as one turn takes. Returns the number of bytes that neighbours have sent, and
    /// whether there may be more.
    fn ready(
        &self,
        event: &epoll::Event,
        inbox: &mut Inbox,
        (batch, gather): (&mut Batch, &mut Gather),
    ) -> (usize, bool) {
        let (number, flags) = (event.data.u64(), event.flags);
        if number == WAKE {
            let _ = rustix::io::read(&self.wake_fd, &mut [0; 8]);
            return (0, false);
        }
        let listener = usize::try_from(number).ok().and_then(|number| self.listeners.get(number));
        let flow = if listener.is_none() { self.flow(number) } else { None };
        let Some(socket) = listener.or(flow.as_ref().map(|flow| &flow.socket)) else { return (0, false) };
        if flags.contains(epoll::EventFlags::ERR) {
            socket.clear_error();
        }
        let (mut moved, mut more) = (0, true);
        let mut latest: Option<Arc<Flow>> = None;
        for _ in 0..RECEIVES {
            more = match &flow {
                Some(flow) => inbox.receive(socket, |bytes, meta| {
                    if let Some((prefix, datagram)) = flow.downwards(bytes, meta.addr) {
                        gather.has_flow(flow.rtt);
                        moved += bytes.len();
                        batch.push((flow, Direction::Down), &prefix, datagram, &self.listeners);
                    }
                }),
                None => inbox.receive(socket, |bytes, meta| {
                    let Some(number) = flow_of(bytes) else { return };
                    if latest.as_ref().is_none_or(|flow| flow.grant.flow != number) {
                        latest = self.flow(number);
                    }
                    let Some(flow) = &latest else { return };
                    if let Some((prefix, datagram)) = flow.upwards(bytes, meta.addr, meta.dst_ip) {
                        gather.has_flow(flow.rtt);
                        moved += bytes.len();
                        let prefix = prefix.as_ref().map_or(&[][..], |prefix| prefix);
                        batch.push((flow, Direction::Up), prefix, datagram, &self.listeners);
                    }
                }),
            };
            if !more || moved >= TURN {
                break;
            }
        }
        batch.send(&self.listeners);
        (moved, more)
    }

    fn flow(&self, number: u64) -> Option<Arc<Flow>> {
        self.flows.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }
}
