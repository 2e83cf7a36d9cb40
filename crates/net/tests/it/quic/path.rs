//! A programmable path: a UDP relay that delays, loses and reorders datagrams, and whose outer address can
//! change like that of an address translator.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The fate of a datagram towards the server: an additional delay, or loss.
pub(crate) type Fate = Option<Duration>;

/// A programmable path; see the module documentation.
pub(crate) struct Path {
    /// The address that clients connect to.
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    cut: AtomicBool,
    lost: AtomicU64,
    datagrams: AtomicU64,
    bytes: AtomicU64,
    /// The socket that the server sees.
    outer: Mutex<Option<UdpSocket>>,
}

impl Path {
    /// Creates a path to `server` with `delay` each way. `fate` decides about every datagram towards the
    /// server, by its number.
    pub(crate) fn new(server: SocketAddr, delay: Duration, fate: impl FnMut(u64) -> Fate + Send + 'static) -> Self {
        let inner = socket();
        let addr = inner.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        *shared.outer.lock().unwrap() = Some(socket());
        let there = shared.clone();
        let thread = std::thread::spawn(move || carry(&inner, &there, server, delay, fate));
        Self { addr, shared, thread: Some(thread) }
    }

    /// Blocks both directions, or unblocks them.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.shared.cut.store(is_cut, SeqCst);
    }

    /// Changes the address that the server sees, and closes the old socket.
    pub(crate) fn change_address(&self) {
        *self.shared.outer.lock().unwrap() = Some(socket());
    }

    /// Number of datagrams received from the client so far, and of their bytes.
    pub(crate) fn carried(&self) -> [u64; 2] {
        [self.shared.datagrams.load(SeqCst), self.shared.bytes.load(SeqCst)]
    }

    /// Number of datagrams towards the server that were dropped so far.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(SeqCst)
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(8 << 20);
    let _ = socket2::SockRef::from(&socket).set_send_buffer_size(8 << 20);
    socket
}

fn carry(inner: &UdpSocket, shared: &Shared, server: SocketAddr, delay: Duration, mut fate: impl FnMut(u64) -> Fate) {
    // Datagrams under way by arrival time; the number keeps those of one instant in order.
    let mut under_way: BTreeMap<(Instant, u64), (bool, Vec<u8>)> = BTreeMap::new();
    let (mut client, mut sent, mut count, mut buffer) = (None, 0, 0, [0; 2048]);
    while !shared.stop.load(SeqCst) {
        let is_cut = shared.cut.load(SeqCst);
        let outer = shared.outer.lock().unwrap();
        let outer = outer.as_ref().unwrap();
        while let Ok((len, from)) = inner.recv_from(&mut buffer) {
            client = Some(from);
            shared.datagrams.fetch_add(1, SeqCst);
            shared.bytes.fetch_add(len as u64, SeqCst);
            match fate(sent).filter(|_| !is_cut) {
                Some(late) => {
                    let at = Instant::now() + delay + late;
                    under_way.insert((at, count), (true, buffer[..len].to_vec()));
                    count += 1;
                }
                None => {
                    shared.lost.fetch_add(1, SeqCst);
                }
            }
            sent += 1;
        }
        while let Ok((len, _)) = outer.recv_from(&mut buffer) {
            if !is_cut {
                under_way.insert((Instant::now() + delay, count), (false, buffer[..len].to_vec()));
                count += 1;
            }
        }
        let now = Instant::now();
        while let Some(first) = under_way.first_entry().filter(|first| first.key().0 <= now) {
            match (first.remove(), client) {
                ((true, bytes), _) => drop(outer.send_to(&bytes, server)),
                ((false, bytes), Some(client)) => drop(inner.send_to(&bytes, client)),
                ((false, _), None) => {}
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
