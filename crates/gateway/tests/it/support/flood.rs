//! Peers that send one message again and again and never read: how long they are there, what they cost, and whom they hurt.
//!
//! Whoever tests a server brings connections to the state in question, with the message that is to be repeated there ([`Flood`]),
//! and says how another user is served meanwhile. The server has to run in this process for its memory to be seen.

use rustix::time::ClockId;
use std::io::{self, ErrorKind, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The sending half of a connection that nobody reads.
pub(crate) trait Sender: Send {
    /// Takes some of `bytes`, without waiting. `WouldBlock` when there is no room.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

impl Sender for TcpStream {
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.set_nonblocking(true)?;
        self.write(bytes)
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

/// One peer.
pub(crate) struct Flood {
    /// The state that it is in, and what it sends there.
    pub(crate) what: String,
    pub(crate) connection: Box<dyn Sender>,
    pub(crate) message: Vec<u8>,
}

/// Each of `messages` in the same `state`, on a connection of its own, made by `connect`.
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

/// What all peers of one run may cost at most.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// How long a peer may be there: far beyond the server's time-outs, against hanging.
    pub(crate) time: Duration,
    /// Bytes that the server may take from one peer, those in the kernel's buffers included.
    pub(crate) taken: u64,
    /// Bytes by which the memory of this process may grow.
    pub(crate) memory: u64,
    /// Whether the server's processor time is bounded as well: where all that it does for a peer is to read and to refuse.
    pub(crate) processor: bool,
}

/// Processor time that the server may take however little was sent, and bytes that it has to get through in a microsecond: a part of
/// what it does.
const AT_ONCE: Duration = Duration::from_millis(300);
const BYTES_A_MICROSECOND: u64 = 200;

/// Has all peers send at once until the server has ended every one of them, and calls `serve` again and again meanwhile. What `serve`
/// usually takes of a processor is not counted as the peers'.
pub(crate) fn flood(floods: Vec<Flood>, bounds: Bounds, serve: impl Fn()) {
    const USUAL: u32 = 20;
    let used = || processor_time(ClockId::ProcessCPUTime).saturating_sub(processor_time(ClockId::ThreadCPUTime));
    let idle = used();
    (0..USUAL).for_each(|_| serve());
    let for_others = (used() - idle) / USUAL;
    let (start, before, used_before) = (Instant::now(), resident(), used());
    let (clients, taken_in_all, mut served) = (AtomicU64::new(0), AtomicU64::new(0), 0);
    let left = AtomicUsize::new(floods.len());
    std::thread::scope(|scope| {
        for Flood { what, mut connection, message } in floods {
            let (left, clients, taken_in_all) = (&left, &clients, &taken_in_all);
            scope.spawn(move || {
                // Counts down whatever happens, or a failure would be waited for.
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
    let of_clients = Duration::from_micros(clients.load(Ordering::Relaxed));
    let server = used().saturating_sub(used_before).saturating_sub(of_clients);
    let server = server.saturating_sub(for_others * served);
    // A server that waits takes next to nothing, and one that does not takes all that there is.
    let most = AT_ONCE + start.elapsed() / 4 + Duration::from_micros(taken / BYTES_A_MICROSECOND);
    assert!(
        !bounds.processor || server <= most,
        "the server has used {server:?} of a processor for {taken} bytes; expected {most:?} at most"
    );
    serve();
}

/// What a clock of processor time says.
fn processor_time(clock: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

struct Gone<'a> {
    left: &'a AtomicUsize,
    /// Microseconds of processor time that those who have gone have used.
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
