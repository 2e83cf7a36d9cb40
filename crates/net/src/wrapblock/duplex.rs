//! A connection of a blocking library, with its two threads and two buffers.

use super::fault::Fault;
use super::incoming::Incoming;
use super::outgoing::{Job, Outgoing};
use super::permits::Permit;
use super::{Abilities, Connection, Setting};
use crate::stats::Stats;
use crate::transport::{Boxed, Change, Duplex, DuplexControl, DuplexIo, DuplexTelemetry};
use crate::waiting::cooperative;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;
use tokio::sync::watch;

/// How often a connection whose receive buffer is full is checked for failure.
const CHECK: Duration = Duration::from_secs(1);
/// How long the bytes before an unauthenticated end may stay unread before the end counts as a failure, which reaches even
/// a user that does not read. A peer that closes in order does so after everything was read.
const GRACE: Duration = Duration::from_secs(2);
/// Stack size of a thread, in bytes: a library may keep buffers on it. Unused pages cost nothing.
pub(super) const STACK: usize = 512 << 10;
/// Size of a chunk, in bytes: large enough that handing it to another thread costs little; several make up a
/// buffer.
const CHUNK: usize = 256 << 10;
/// Size of a chunk of a small buffer: below this, the threads would spend most of their time on hand-overs.
const CHUNK_MIN: usize = 16 << 10;

/// The settings that all connections of a transport under one profile share.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) name: &'static str,
    pub(super) abilities: Abilities,
    pub(super) send_buffer: usize,
    pub(super) receive_buffer: usize,
    /// How long a connection may keep delivering after it was dropped.
    pub(super) linger: Duration,
    /// Which of the driver's options can be changed on an open connection.
    pub(super) live: ChangeableOptions,
    pub(super) congestion_control: String,
    pub(super) note: Option<String>,
}

/// The options that the driver can change on an open connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChangeableOptions {
    pub(super) rate: bool,
    pub(super) send_buffer: bool,
    pub(super) receive_buffer: bool,
    pub(super) congestion_control: bool,
}

/// An open connection of a blocking library.
#[derive(Debug)]
pub(super) struct Wrapped {
    /// Released before the writing thread is told to leave, so that the writing thread holds the last
    /// reference and closes the connection.
    connection: Option<Arc<dyn Connection>>,
    shared: Arc<Shared>,
    disarmed: AtomicBool,
    setup: Setup,
}

/// The state that the threads and the user of a connection share.
#[derive(Debug)]
struct Shared {
    incoming: Incoming,
    outgoing: Outgoing,
    failure: watch::Sender<Option<Fault>>,
}

impl Shared {
    fn fail(&self, fault: &Fault) {
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert_with(|| fault.clone());
            first
        });
        self.incoming.end(Err(fault.clone()));
        self.outgoing.fail(fault);
    }
}

/// Starts the reading thread of a connected connection, and returns the work of its writing thread, for any
/// thread to run.
pub(super) fn start(
    connection: Arc<dyn Connection>,
    setup: Setup,
    place: Permit,
) -> io::Result<(Wrapped, impl FnOnce() + Send + 'static)> {
    let (receive, send) = (chunks(setup.receive_buffer), chunks(setup.send_buffer));
    let shared = Arc::new(Shared {
        incoming: Incoming::new(receive.0, receive.1),
        outgoing: Outgoing::new(send.0, send.1),
        failure: watch::Sender::new(None),
    });
    let authenticated_close = setup.abilities.authenticated_close;
    let reader = thread::Builder::new().name(format!("{}-r", setup.name)).stack_size(STACK).spawn({
        let (connection, shared) = (connection.clone(), shared.clone());
        move || read(&*connection, &shared, authenticated_close)
    })?;
    let writer = {
        let (connection, shared) = (connection.clone(), shared.clone());
        move || {
            write(&*connection, &shared);
            shared.incoming.close();
            connection.interrupt();
            // A panic of the reader needs no other treatment than its return.
            let _ = reader.join();
            drop(connection);
            drop(place);
        }
    };
    Ok((Wrapped { connection: Some(connection), shared, disarmed: AtomicBool::new(false), setup }, writer))
}

/// Divides a buffer of `size` bytes into chunks: their size and number.
fn chunks(size: usize) -> (usize, usize) {
    let chunk = (size / 4).clamp(CHUNK_MIN, CHUNK);
    (chunk, size.div_ceil(chunk))
}

fn read(connection: &dyn Connection, shared: &Shared, authenticated_close: bool) {
    let incoming = &shared.incoming;
    loop {
        let mut chunk = match incoming.blank(CHECK, || connection.check()) {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return,
            Err(fault) => return shared.fail(&fault),
        };
        loop {
            match connection.read(&mut chunk) {
                Ok(0) if authenticated_close => return incoming.end(Ok(())),
                Ok(0) => {
                    incoming.end(Err(Fault::unfinished()));
                    incoming.is_taken_within(GRACE);
                    return shared.fail(&Fault::unfinished());
                }
                Ok(len) => break incoming.push(chunk, len),
                Err(_) if incoming.is_closed() => return,
                Err(fault) if fault.is_again() => {}
                Err(fault) => return shared.fail(&fault),
            }
        }
    }
}

fn write(connection: &dyn Connection, shared: &Shared) {
    let outgoing = &shared.outgoing;
    loop {
        match outgoing.next() {
            Job::Write(chunk) => match write_all(connection, &chunk, outgoing) {
                Ok(()) => outgoing.written(chunk),
                Err(fault) => shared.fail(&fault),
            },
            Job::ShutDown => match until_done(outgoing, || connection.shutdown_write()) {
                Ok(()) => outgoing.ended(),
                Err(fault) => shared.fail(&fault),
            },
            // The user is gone: only the peer can still learn of a failure, and does so from the close.
            Job::Finish(limit) => return drop(connection.finish(limit)),
            Job::Abort => return,
        }
    }
}

fn write_all(connection: &dyn Connection, mut bytes: &[u8], outgoing: &Outgoing) -> Result<(), Fault> {
    while !bytes.is_empty() {
        let n = until_done(outgoing, || connection.write(bytes))?;
        if n == 0 || n > bytes.len() {
            return Err(Fault::new(libc::EIO, format!("the driver wrote {n} of {} bytes", bytes.len())));
        }
        bytes = &bytes[n..];
    }
    Ok(())
}

/// Repeats a call while it asks for that, unless the connection was aborted.
fn until_done<T>(outgoing: &Outgoing, mut call: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
    loop {
        match call() {
            Err(fault) if fault.is_again() && outgoing.is_aborted() => return Err(Fault::canceled()),
            Err(fault) if fault.is_again() => {}
            done => return done,
        }
    }
}

impl Wrapped {
    fn connection(&self) -> io::Result<&dyn Connection> {
        self.connection.as_deref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn failure(&self) -> Option<Fault> {
        self.shared.failure.borrow().clone()
    }

    fn change(&self, is_live: bool, name: &str, value: String) -> io::Result<()> {
        if !is_live {
            let text =
                format!("{} has no option {name} that can be changed while a connection is open", self.setup.name);
            return Err(Fault::new(libc::EOPNOTSUPP, text).into());
        }
        Ok(self.connection()?.set(&Setting { name: name.into(), value })?)
    }
}

impl DuplexIo for Wrapped {
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.shared.incoming.try_read(buffer)
    }

    fn try_write(&self, bytes: &[u8], _more: bool) -> io::Result<usize> {
        self.shared.outgoing.try_write(bytes)
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        cooperative(cx, |cx| self.shared.incoming.poll_ready(cx)).map(Ok)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        cooperative(cx, |cx| self.shared.outgoing.poll_ready(cx)).map(Ok)
    }

    fn is_quiet(&self) -> io::Result<bool> {
        match self.failure() {
            Some(fault) => Err(fault.into()),
            None => Ok(self.shared.incoming.is_quiet()),
        }
    }

    fn shutdown_write(&self) -> io::Result<()> {
        if !self.setup.abilities.half_close {
            let text = format!("{} cannot end one side of a connection alone", self.setup.name);
            return Err(Fault::new(libc::EOPNOTSUPP, text).into());
        }
        self.shared.outgoing.shut_down()
    }

    fn unacknowledged(&self) -> io::Result<usize> {
        if let Some(fault) = self.failure() {
            return Err(fault.into());
        }
        // In this order, bytes that move from one count to the other meanwhile are counted twice instead of
        // missed.
        let waiting = self.shared.outgoing.waiting();
        let pending = self.connection()?.pending()?;
        Ok(waiting.saturating_add(usize::try_from(pending).unwrap_or(usize::MAX)))
    }
}

impl DuplexControl for Wrapped {
    fn failed(&self) -> Boxed<'_, io::Error> {
        let mut failure = self.shared.failure.subscribe();
        Box::pin(async move {
            match failure.wait_for(Option::is_some).await.map(|fault| fault.clone()) {
                Ok(Some(fault)) => fault.into(),
                // The sender lives as long as `self`, so it cannot close.
                Ok(None) | Err(_) => io::ErrorKind::NotConnected.into(),
            }
        })
    }

    fn disarm(&self) {
        self.disarmed.store(true, Ordering::Relaxed);
    }

    fn set(&self, change: Change) -> io::Result<()> {
        let live = self.setup.live;
        match change {
            Change::Rate(rate) => self.change(live.rate, "rate", rate.map_or(0, |rate| rate.0).to_string()),
            Change::SendBuffer(size) => self.change(live.send_buffer, "send_buffer", size.to_string()),
            Change::ReceiveBuffer(size) => self.change(live.receive_buffer, "receive_buffer", size.to_string()),
            Change::CongestionControl(asked) => {
                self.change(live.congestion_control, "congestion_control", asked.to_string())
            }
            Change::Unsent(_) | Change::ReadThreshold(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn has_end_of_stream(&self) -> bool {
        self.setup.abilities.authenticated_close
    }

    fn has_authenticated_close(&self) -> bool {
        self.setup.abilities.authenticated_close && self.setup.abilities.half_close
    }

    /// The threads signal readiness to any runtime, so nothing moves.
    fn move_to_runtime(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        Ok(self)
    }
}

impl DuplexTelemetry for Wrapped {
    fn stats(&self) -> io::Result<Stats> {
        let mut stats = self.connection()?.stats()?;
        let waiting = u32::try_from(self.shared.outgoing.waiting()).unwrap_or(u32::MAX);
        stats.unsent = stats.unsent.saturating_add(waiting);
        stats.send_buffer += self.shared.outgoing.size() as u64;
        stats.receive_buffer += self.shared.incoming.size() as u64;
        stats.congestion_control.clone_from(&self.setup.congestion_control);
        stats.closed = self.failure().is_some();
        Ok(stats)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.connection()?.local_addr()?)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.connection()?.peer_addr()?)
    }

    fn note(&self) -> Option<&str> {
        self.setup.note.as_deref()
    }
}

impl Drop for Wrapped {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let Shared { incoming, outgoing, .. } = &*self.shared;
        incoming.close();
        // In every case, this thread first releases its reference to the connection and then tells the
        // writing thread.
        let abort = |connection: Arc<dyn Connection>| {
            connection.interrupt();
            drop(connection);
            outgoing.close(None);
        };
        if !*self.disarmed.get_mut() {
            return abort(connection);
        }
        let linger = self.setup.linger;
        if outgoing.waiting() == 0 {
            drop(connection);
            return outgoing.close(Some(linger));
        }
        // The library may block the writing thread because the peer does not read, so another thread watches
        // the time.
        let (shared, late) = (self.shared.clone(), connection.clone());
        let watch = move || {
            if !shared.outgoing.is_left_within(linger) {
                late.interrupt();
                shared.outgoing.close(None);
            }
        };
        match thread::Builder::new().name(format!("{}-l", self.setup.name)).stack_size(STACK).spawn(watch) {
            Ok(_) => {
                drop(connection);
                outgoing.close(Some(linger));
            }
            Err(_) => abort(connection),
        }
    }
}
