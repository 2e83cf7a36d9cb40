//! The threads on which QUIC runs.
//!
//! What a kernel does for TCP has to be done by somebody for QUIC: read datagrams, decrypt, acknowledge, time, send. It is
//! done on threads of its own and not on the runtime of whoever relays, for three reasons. Acknowledgements and pacing do
//! not wait while a relay copies; on more than one processor, encryption and copying go on at the same time; and a
//! connection that many sessions share does not end with the runtime of the first of them. The price is a wake-up
//! between threads, of which there is one for many packets under load.

use super::timer::Timer;
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime};
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Most threads: what one gateway's links are likely to need, at some gigabits per second for each.
const THREADS_MAX: usize = 8;
/// How long a thread goes on after the last user has gone, so that the word of it gets out.
const PARTING: Duration = Duration::from_millis(50);

/// A task as quinn gives it.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The threads. Dropped, they end.
#[derive(Debug)]
pub(super) struct Drivers {
    threads: Vec<Handle>,
    next: AtomicUsize,
    /// Dropped, they end the threads.
    _running: Vec<oneshot::Sender<()>>,
}

impl Drivers {
    /// As many threads as half the processors, the other half being for those who relay.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let (mut threads, mut running) = (Vec::new(), Vec::new());
        for index in 0..(processors / 2).clamp(1, THREADS_MAX) {
            let (handle, stop) = thread(index)?;
            threads.push(handle);
            running.push(stop);
        }
        Ok(Arc::new(Self { threads, next: AtomicUsize::new(0), _running: running }))
    }

    /// The thread that has the next thing to do.
    pub(super) fn handle(&self) -> &Handle {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        &self.threads[next % self.threads.len()]
    }

    /// What quinn is to run an endpoint with: the endpoint and each of its connections go to the threads in turn.
    pub(super) fn runtime(self: &Arc<Self>) -> Arc<dyn Runtime> {
        Arc::new(OnDrivers { threads: self.threads.clone(), next: AtomicUsize::new(0) })
    }
}

/// Holds handles only, since its tasks hold it.
#[derive(Debug)]
struct OnDrivers {
    threads: Vec<Handle>,
    next: AtomicUsize,
}

impl Runtime for OnDrivers {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer::new(at))
    }

    fn spawn(&self, task: Task) {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.threads[next % self.threads.len()].spawn(task);
    }

    fn wrap_udp_socket(&self, _: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        // Endpoints are given a socket of `super::socket`, which is wrapped already.
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A thread that runs tasks until it is told to stop.
fn thread(index: usize) -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    std::thread::Builder::new().name(format!("quic-{index}")).spawn(move || {
        runtime.block_on(async {
            let _ = stopped.await;
            tokio::time::sleep(PARTING).await;
        });
    })?;
    Ok((handle, stop))
}
