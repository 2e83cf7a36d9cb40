//! The threads that run QUIC.
//!
//! In TCP the kernel receives, acknowledges, times and sends; in QUIC this process does, and decrypts too.
//! That work has threads of its own, separate from the relay's runtime, for three reasons. Acknowledgements
//! and pacing do not wait while a relay copies. On more than one processor, encryption and copying run in
//! parallel. And a connection that many sessions share does not end with the runtime of the first of them.
//! The price is a wake-up across threads, one for many packets under load. While a bulk flow arrives, the threads sleep
//! between batches ([`super::receive_pause`]), and both wait for up to a millisecond.

use super::receive_pause::ReceivePause;
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

/// Most threads: enough for the links of one gateway, at some gigabits per second each.
const THREADS_MAX: usize = 8;
/// How long a thread keeps running after its last user is gone, so that the last packets are sent.
const PARTING: Duration = Duration::from_millis(50);

/// A task in the form in which quinn passes it.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The pool of threads; they end when it is dropped.
#[derive(Debug)]
pub(super) struct IoThreads {
    threads: Vec<Handle>,
    next: AtomicUsize,
    receive_pause: Arc<ReceivePause>,
    /// Dropping these ends the threads.
    _running: Vec<oneshot::Sender<()>>,
}

impl IoThreads {
    /// Starts one thread for every two processors; the other half is for the relay.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(super) fn start() -> io::Result<Arc<Self>> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let (mut threads, mut running) = (Vec::new(), Vec::new());
        let receive_pause = Arc::<ReceivePause>::default();
        for index in 0..(processors / 2).clamp(1, THREADS_MAX) {
            let (handle, stop) = thread(index, receive_pause.clone())?;
            threads.push(handle);
            running.push(stop);
        }
        Ok(Arc::new(Self { threads, next: AtomicUsize::new(0), receive_pause, _running: running }))
    }

    /// Whether and how long packets may gather in the kernel.
    pub(super) fn receive_pause(&self) -> &Arc<ReceivePause> {
        &self.receive_pause
    }

    /// The next thread in turn.
    pub(super) fn handle(&self) -> &Handle {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        &self.threads[next % self.threads.len()]
    }

    /// The runtime to pass to quinn for an endpoint: the endpoint and each of its connections are assigned to
    /// the threads in turn.
    pub(super) fn runtime(self: &Arc<Self>) -> Arc<dyn Runtime> {
        Arc::new(OnDrivers { threads: self.threads.clone(), next: AtomicUsize::new(0) })
    }
}

/// Owns only handles and not the threads, because tasks on the threads own it.
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
        // quinn does not call this: endpoints are created with a socket of `super::socket`.
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Starts a thread that runs tasks until it is told to stop.
fn thread(index: usize, receive_pause: Arc<ReceivePause>) -> io::Result<(Handle, oneshot::Sender<()>)> {
    let before_wait = move || receive_pause.before_wait();
    let runtime = Builder::new_current_thread().enable_all().on_thread_park(before_wait).build()?;
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
