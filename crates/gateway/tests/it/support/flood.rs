//! Peers that repeat one message for ever and never read: how long they stay, what they cost, and whom they affect.
//!
//! A test of a server brings connections into the state in question, names the message to repeat there ([`Flood`]), and
//! tells how another user is served meanwhile. The server must run in this process, so that its memory can be measured.

use rustix::time::ClockId;
use std::collections::HashSet;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The sending half of a connection whose receiving half is never read.
pub(crate) trait Sender: Send {
    /// Sends some of `bytes` without waiting. Fails with `WouldBlock` if there is no room.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

impl Sender for TcpStream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.set_nonblocking(true)?;
        let sent = self.write(bytes);
        match &sent {
            Err(error) if error.kind() == ErrorKind::WouldBlock && peer_has_closed(self)? => {
                Err(ErrorKind::ConnectionReset.into())
            }
            _ => sent,
        }
    }
}

impl Sender for UnixStream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.set_nonblocking(true)?;
        self.write(bytes)
    }
}

impl Sender for phoebus_net::Stream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write(bytes, false)
    }
}

/// Whether the server has closed its end of an IPv4 connection within this network namespace.
///
/// The sender itself may notice a minute later. A receiver that never reads ignores a reset without the next sequence
/// number (RFC 5961, 3.2). Only the next probe of the closed window then draws a valid reset, and by then probes are
/// rare.
fn peer_has_closed(stream: &TcpStream) -> io::Result<bool> {
    static KERNEL: Mutex<Option<Connections>> = Mutex::new(None);
    let (SocketAddr::V4(here), SocketAddr::V4(there)) = (stream.local_addr()?, stream.peer_addr()?) else {
        return Ok(false);
    };
    let mut kernel = KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
    let kernel = kernel.get_or_insert_with(Connections::default);
    kernel.refresh()?;
    let of_server = [there, here].map(|end| {
        let address = u32::from_ne_bytes(end.ip().octets());
        format!("{address:08X}:{:04X}", end.port())
    });
    Ok(kernel.seen.contains(&of_server) && !kernel.held.contains(&of_server))
}

/// The kernel's table of TCP connections over IPv4 (proc_pid_net(5), tcp): the two ends of each, in the kernel's
/// notation.
#[derive(Default)]
struct Connections {
    read: Option<Instant>,
    /// Connections that a process holds.
    held: HashSet<[String; 2]>,
    /// Connections that a process has held. One that waits to be accepted belongs to no process yet.
    seen: HashSet<[String; 2]>,
}

impl Connections {
    /// Reads the table, unless it was read within `AGE`.
    fn refresh(&mut self) -> io::Result<()> {
        const AGE: Duration = Duration::from_millis(500);
        if self.read.is_some_and(|read| read.elapsed() < AGE) {
            return Ok(());
        }
        let table = std::fs::read_to_string("/proc/self/net/tcp")?;
        let held = table.lines().skip(1).filter_map(|line| {
            let field = |at| line.split_whitespace().nth(at);
            (field(9)? != "0").then_some([field(1)?.to_owned(), field(2)?.to_owned()])
        });
        self.held = held.collect();
        self.seen.extend(self.held.iter().cloned());
        self.read = Some(Instant::now());
        Ok(())
    }
}

/// One peer.
pub(crate) struct Flood {
    /// Its state, and what it sends there.
    pub(crate) what: String,
    pub(crate) connection: Box<dyn Sender>,
    pub(crate) message: Vec<u8>,
}

/// One flood for each of `messages` in the same `state`, each on a connection of its own made by `connect`.
pub(crate) fn each<S: Sender + 'static>(
    state: &str,
    messages: Vec<(&'static str, Vec<u8>)>,
    connect: impl Fn() -> S,
) -> Vec<Flood> {
    let one = |(what, message)| Flood {
        what: format!("{what:?} {state}"),
        connection: Box::new(connect()) as Box<dyn Sender>,
        message,
    };
    messages.into_iter().map(one).collect()
}

/// Limits on what all peers of one run may cost.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// How long a peer may stay: far longer than the server's time-outs, a limit against hanging.
    pub(crate) time: Duration,
    /// Bytes that the server may take from one peer, including those in the kernel's buffers.
    pub(crate) taken: u64,
    /// Bytes by which the memory of this process may grow.
    pub(crate) memory: u64,
    /// Whether the server's processor time is limited as well: only where it does nothing for a peer but read and
    /// refuse.
    pub(crate) processor: bool,
}

/// Processor time that the server may take regardless of traffic, and the bytes that it must process per microsecond: a
/// fraction of what it achieves.
const AT_ONCE: Duration = Duration::from_millis(300);
const BYTES_A_MICROSECOND: u64 = 200;

/// Lets all peers send concurrently until the server has closed every one of them, and calls `serve` repeatedly
/// meanwhile. The usual processor time of `serve` is not charged to the peers.
pub(crate) fn flood(floods: Vec<Flood>, bounds: Bounds, serve: impl Fn()) {
    const USUAL: u32 = 20;
    let used = || processor_time(ClockId::ProcessCPUTime).saturating_sub(processor_time(ClockId::ThreadCPUTime));
    let idle = used();
    (0..USUAL).for_each(|_| serve());
    let usual_cost = (used() - idle) / USUAL;
    let (start, before, used_before) = (Instant::now(), resident(), used());
    let (clients, taken_in_all, mut served) = (AtomicU64::new(0), AtomicU64::new(0), 0);
    let left = AtomicUsize::new(floods.len());
    std::thread::scope(|scope| {
        for Flood { what, mut connection, message } in floods {
            let (left, clients, taken_in_all) = (&left, &clients, &taken_in_all);
            scope.spawn(move || {
                // Counts down even on a panic; otherwise the run would wait for ever.
                let _gone = Gone { left, clients };
                let block = message.repeat((16 * 1024 / message.len().max(1)).max(1));
                let (mut taken, mut at) = (0u64, 0);
                loop {
                    match connection.send(&block[at..]) {
                        Ok(n) => {
                            taken += n as u64;
                            taken_in_all.fetch_add(n as u64, Ordering::Relaxed);
                            at = (at + n) % block.len();
                            assert!(taken <= bounds.taken, "{what}: {taken} bytes were taken");
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        Err(_) => return,
                    }
                    assert!(start.elapsed() < bounds.time, "{what}: still there after {:?}", start.elapsed());
                }
            });
        }
        while left.load(Ordering::Acquire) > 0 {
            let begun = Instant::now();
            serve();
            served += 1;
            assert!(begun.elapsed() < bounds.time, "another user has waited {:?}", begun.elapsed());
            let grown = resident().saturating_sub(before);
            assert!(grown <= bounds.memory, "memory has grown by {grown} bytes");
        }
    });
    let taken = taken_in_all.load(Ordering::Relaxed);
    let used_by_clients = Duration::from_micros(clients.load(Ordering::Relaxed));
    let server = used().saturating_sub(used_before).saturating_sub(used_by_clients);
    let server = server.saturating_sub(usual_cost * served);
    // A server that waits takes next to no processor time, and one that spins takes all of it.
    let most = AT_ONCE + start.elapsed() / 4 + Duration::from_micros(taken / BYTES_A_MICROSECOND);
    assert!(
        !bounds.processor || server <= most,
        "the server has used {server:?} of a processor for {taken} bytes; expected {most:?} at most"
    );
    serve();
}

/// Reads a clock of processor time.
fn processor_time(clock: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

struct Gone<'a> {
    left: &'a AtomicUsize,
    /// Processor time of the finished clients, in microseconds.
    clients: &'a AtomicU64,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        let used = processor_time(ClockId::ThreadCPUTime).as_micros() as u64;
        self.clients.fetch_add(used, Ordering::Relaxed);
        self.left.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Bytes of memory that this process has in use (proc(5), statm).
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
