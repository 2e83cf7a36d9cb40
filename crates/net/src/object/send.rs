//! The sending end: a thread that seals and sends what [`Sender`] says, and processes acknowledgements.

mod batch;
mod state;
mod thread;

use super::path::{Failure, Path};
use super::port::Port;
use super::seal::{End, Sealer, Secret};
use bytes::Bytes;
use phoebus_proto::control::{Factory, KnownPath, SharedControl};
use phoebus_proto::object::{ANNOUNCED_AHEAD, ReplayWindow, Seal, SendConfig, SendCounters, Sender, Shape};
use state::{Shared, State};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use thread::Thread;
use tokio::sync::Notify;

/// How to send.
#[derive(Debug)]
pub struct SendingOptions {
    /// The settings of the protocol.
    pub config: SendConfig,
    /// The control of other transfers to the same host.
    pub shared_control: SharedControl,
    /// Chunks that may be in flight: as many are held in memory.
    pub chunks: u64,
    /// Most datagrams that the kernel is given at once; at most 64, which it segments.
    pub batch: u32,
    /// A peer that acknowledges nothing for this long is lost.
    pub silence: Duration,
}

/// The sending end of a transfer. Dropping it ends the thread; the peer hears of that over the control stream.
#[derive(Debug)]
pub struct Sending {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Sending {
    /// Starts to send over `port` and `path`, once that is known to be open.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        port: Port,
        mut path: Path,
        (shape, seal, secret): (Shape, Seal, &Secret),
        control: &dyn Factory,
        options: SendingOptions,
    ) -> io::Result<Self> {
        let SendingOptions { config, shared_control, chunks, batch, silence } = options;
        port.begin()?;
        path.begin(&port);
        let now = port.now();
        let state = State {
            sender: Sender::sharing(now, shape, config, control, &shared_control),
            chunks: VecDeque::new(),
            first: 0,
            parity: None,
            heard_at: now,
            starved_since: None,
            is_open: false,
            failure: None,
            stop: false,
        };
        let shared =
            Arc::new(Shared { port, state: Mutex::new(state), progress: Notify::new(), chunks: chunks.max(1) });
        let (out_seal, in_seal) = (Sealer::new(seal, secret, End::Sender), Sealer::new(seal, secret, End::Receiver));
        let replay = ReplayWindow::new();
        let mut thread = Thread {
            shared: shared.clone(),
            path,
            shape,
            out_seal,
            in_seal,
            replay,
            silence,
            batch,
            asked_at: 0,
            held: None,
        };
        let run = move || {
            if catch_unwind(AssertUnwindSafe(|| thread.run())).is_err() {
                thread.fail("the thread that sends objects has panicked".to_owned().into());
            }
        };
        let thread = std::thread::Builder::new().name("object-send".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Waits until datagrams are known to get through. Before that, nothing is sent. Cancel safe.
    ///
    /// # Errors
    /// [`Failure::Closed`] if they do not.
    pub async fn opened(&self) -> Result<(), Failure> {
        self.wait_for(|state| state.is_open.then_some(())).await
    }

    /// Adds a chunk, once there is room, and returns its number. Cancel safe.
    ///
    /// # Errors
    /// The transfer has failed.
    pub async fn push(&self, bytes: Bytes) -> Result<u64, Failure> {
        let number = self.wait_for(|state| {
            let is_announceable = state.sender.chunks_end() < state.sender.credit().saturating_add(ANNOUNCED_AHEAD);
            (is_announceable && state.sender.chunks_in_flight() < self.shared.chunks).then(|| {
                state.chunks.push_back(bytes.clone());
                state.sender.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX))
            })
        });
        let number = number.await?;
        self.shared.port.wake();
        Ok(number)
    }

    /// Says that there are no more chunks.
    pub fn finish(&self) {
        self.shared.state().sender.finish();
        self.shared.port.wake();
    }

    /// Raises the number of chunks that may be sent, as the peer has said over the control stream.
    pub fn raise_credit(&self, credit: u64) {
        self.shared.state().raise_credit(credit);
        // More chunks may be announced.
        self.shared.progress.notify_waiters();
        self.shared.port.wake();
    }

    /// Waits until all chunks have arrived.
    ///
    /// # Errors
    /// The transfer has failed.
    pub async fn arrived(&self) -> Result<(), Failure> {
        self.wait_for(|state| state.sender.is_done().then_some(())).await
    }

    /// Waits until there is what `look` looks for. Cancel safe.
    async fn wait_for<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> Result<T, Failure> {
        loop {
            let mut progress = std::pin::pin!(self.shared.progress.notified());
            progress.as_mut().enable();
            {
                let mut state = self.shared.state();
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
                if let Some(found) = look(&mut state) {
                    return Ok(found);
                }
            }
            progress.await;
        }
    }

    /// Whether every packet was sent at least once: before that, not everything can have arrived.
    pub fn has_sent_all(&self) -> bool {
        self.shared.state().sender.has_sent_all()
    }

    /// Counters.
    pub fn counters(&self) -> SendCounters {
        self.shared.state().sender.counters()
    }

    /// What the transfer has found out about the path, if it was long enough for that.
    pub fn known_path(&self) -> Option<KnownPath> {
        self.shared.state().sender.known_path()
    }

    /// The round-trip time, if it was measured, and the rate in force, in bits per second.
    pub fn pace(&self) -> (Option<Duration>, f64) {
        let state = self.shared.state();
        (state.sender.rtt(), state.sender.rate())
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.port.wake();
        // Another transfer may use the port next. The thread stops after a few batches.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.port.end();
    }
}
