//! A connection under TLS: reads and writes pass through an [`Engine`], under a lock that is never held
//! across an await.

use super::Mode;
use super::engine::Engine;
use super::fault::Fault;
use crate::stats::Stats;
use crate::stream::Stream;
use crate::transport::{Boxed, Change, Duplex, DuplexControl, DuplexIo, DuplexTelemetry, Identity, Pulse, Security};
use crate::waiting::cooperative;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Longest time for which a [disarmed](Stream::disarm) connection tries to send its last records after it was
/// dropped. An owner that must know that they arrived waits for [`Stream::delivered`] instead.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);

/// Longest wait for a refused peer to read the alert.
const ALERT_LIMIT: Duration = Duration::from_secs(1);
/// Most reads, during that wait, of what the peer keeps sending.
const ALERT_READS: usize = 64;

/// A TLS connection; see the module documentation. The task that sends the backlog holds a clone of `shared`.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    runtime: Handle,
}

#[derive(Debug)]
struct Shared {
    io: Stream,
    mode: Mode,
    identity: Identity,
    state: Mutex<State>,
    /// Notified when a fault was found.
    broken: Notify,
}

#[derive(Debug)]
struct State {
    engine: Engine,
    fault: Option<Fault>,
    /// The task that sends the backlog.
    flusher: Option<AbortHandle>,
    /// The task that waits for the backlog to be sent.
    writer: Option<Waker>,
    /// Whether this end's stream has ended.
    ending: bool,
    /// Whether the underlying stream was shut down, where that is what ends this end's stream.
    ended: bool,
    disarmed: bool,
}

impl Connection {
    /// Wraps `io` after `engine` has completed the handshake.
    pub(super) fn new(io: Stream, engine: Engine, mode: Mode, identity: Identity) -> Self {
        let state =
            State { engine, fault: None, flusher: None, writer: None, ending: false, ended: false, disarmed: false };
        let shared = Shared { io, mode, identity, state: Mutex::new(state), broken: Notify::new() };
        Self { shared: Arc::new(shared), runtime: Handle::current() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// Sends pending records, and leaves those that do not fit to a task.
    fn send(&self, state: &mut State, more: bool) -> io::Result<()> {
        match self.shared.flush(state, more) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if state.flusher.is_none() {
                    let shared = self.shared.clone();
                    let task = self.runtime.spawn(async move {
                        // The next read or write finds a failure by itself.
                        let _ = shared.drained().await;
                        let mut state = shared.lock();
                        state.flusher = None;
                        if let Some(writer) = state.writer.take() {
                            writer.wake();
                        }
                    });
                    state.flusher = Some(task.abort_handle());
                }
                Ok(())
            }
            other => other,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends pending records; `WouldBlock` when some remain.
    fn flush(&self, state: &mut State, more: bool) -> io::Result<()> {
        while !state.engine.outgoing().is_empty() {
            let n = self.io.try_write(state.engine.outgoing(), more)?;
            state.engine.sent(n);
        }
        // With `encrypt`, close_notify ends the stream, even over a transport without half-close.
        if state.ending && !state.ended && self.mode == Mode::Auth {
            self.io.shutdown_write()?;
            state.ended = true;
        }
        Ok(())
    }

    /// Waits until all records are sent.
    async fn drained(&self) -> io::Result<()> {
        loop {
            self.io.writable().await?;
            let mut state = self.lock();
            match self.flush(&mut state, false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => {
                    state.engine.relax();
                    return outcome;
                }
            }
        }
    }

    fn fail(&self, state: &mut State, fault: Fault) -> io::Error {
        let fault = state.fault.get_or_insert(fault).clone();
        self.broken.notify_waiters();
        fault.into_io()
    }

    /// Whether the peer's TLS has ended, so that its further bytes are raw.
    fn reads_raw(&self, state: &State) -> bool {
        self.mode == Mode::Auth && state.engine.is_at_end()
    }

    /// Whether this end's TLS has ended, so that its further bytes are raw.
    fn writes_raw(&self, state: &State) -> bool {
        self.mode == Mode::Auth && state.engine.is_closed()
    }
}

impl State {
    fn check(&self) -> io::Result<()> {
        self.fault.clone().map_or(Ok(()), |fault| Err(fault.into_io()))
    }
}

const WOULD_BLOCK: io::ErrorKind = io::ErrorKind::WouldBlock;

impl DuplexIo for Connection {
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let shared = &*self.shared;
        let state = &mut *self.lock();
        state.check()?;
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if shared.reads_raw(state) {
                state.engine.relax();
                return shared.io.try_read(buffer);
            }
            let answers = state.engine.outgoing().len();
            let read = state.engine.read(buffer);
            if state.engine.outgoing().len() > answers {
                self.send(state, false)?;
            }
            match read {
                // The peer has ended TLS, but not the connection.
                Ok(Some(0)) if shared.mode == Mode::Auth => continue,
                Ok(Some(n)) => return Ok(n),
                Ok(None) => {}
                Err(fault) => return Err(shared.fail(state, fault)),
            }
            let result = match shared.io.try_read(state.engine.space()) {
                Ok(0) => state.engine.input_ended(),
                Ok(n) => state.engine.received(n),
                Err(error) => {
                    state.engine.relax();
                    return Err(error);
                }
            };
            if let Err(fault) = result {
                return Err(shared.fail(state, fault));
            }
        }
    }

    fn try_write(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        let shared = &*self.shared;
        let state = &mut *self.lock();
        state.check()?;
        if state.ending {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if state.flusher.is_some() {
            return Err(WOULD_BLOCK.into());
        }
        if shared.writes_raw(state) {
            return shared.io.try_write(bytes, more);
        }
        let n = state.engine.write(bytes).map_err(|fault| shared.fail(state, fault))?;
        self.send(state, more)?;
        if state.flusher.is_none() {
            state.engine.relax();
        }
        Ok(n)
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = self.lock();
        if state.fault.is_some() || (!self.shared.reads_raw(&state) && state.engine.is_readable()) {
            return cooperative(cx, |_| Poll::Ready(Ok(())));
        }
        self.shared.io.poll_read_ready(cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if state.fault.is_some() {
            return Poll::Ready(Ok(()));
        }
        if state.flusher.is_some() {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.shared.io.poll_write_ready(cx)
    }

    fn is_quiet(&self) -> io::Result<bool> {
        let state = self.lock();
        state.check()?;
        Ok((self.shared.reads_raw(&state) || state.engine.is_quiet()) && self.shared.io.is_quiet()?)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        let state = &mut *self.lock();
        state.check()?;
        state.engine.close().map_err(|fault| self.shared.fail(state, fault))?;
        state.ending = true;
        self.send(state, false)
    }

    /// Includes records that are not sent yet.
    fn unacknowledged(&self) -> io::Result<usize> {
        let state = self.lock();
        Ok(self.shared.io.unacknowledged()? + state.engine.outgoing().len())
    }

    /// The socket, once both ends have ended TLS and no TLS bytes remain here.
    fn socket(&self) -> Option<&TcpStream> {
        let state = self.lock();
        let raw = self.shared.reads_raw(&state) && self.shared.writes_raw(&state);
        if raw && state.engine.outgoing().is_empty() && state.flusher.is_none() {
            self.shared.io.socket()
        } else {
            None
        }
    }

    fn room(&self, wanted: usize) -> io::Result<usize> {
        self.shared.io.room(wanted)
    }
}

impl DuplexControl for Connection {
    fn failed(&self) -> Boxed<'_, io::Error> {
        Box::pin(async {
            let broken = self.shared.broken.notified();
            if let Some(fault) = &self.lock().fault {
                return fault.clone().into_io();
            }
            tokio::select! {
                error = self.shared.io.failed() => error,
                () = broken => match &self.lock().fault {
                    Some(fault) => fault.clone().into_io(),
                    None => io::ErrorKind::ConnectionReset.into(),
                },
            }
        })
    }

    fn disarm(&self) {
        self.lock().disarmed = true;
        self.shared.io.disarm();
    }

    fn unprotect(&self) -> io::Result<()> {
        let state = &mut *self.lock();
        state.check()?;
        if self.shared.mode == Mode::Encrypt {
            return Ok(());
        }
        state.engine.close().map_err(|fault| self.shared.fail(state, fault))?;
        self.send(state, false)
    }

    fn widen(&self) {
        self.shared.io.widen();
    }

    fn set(&self, change: Change) -> io::Result<()> {
        self.shared.io.set(change)
    }

    /// If records wait to be sent, which is rare, the connection stays on its runtime, and is only slower.
    fn move_to_runtime(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        if self.lock().flusher.is_some() {
            return Ok(self);
        }
        let shared = self.shared.clone();
        drop(self);
        let shared = match Arc::try_unwrap(shared) {
            Ok(shared) => Arc::new(Shared { io: shared.io.move_to_runtime()?, ..shared }),
            Err(shared) => shared,
        };
        Ok(Box::new(Self { shared, runtime }))
    }
}

impl DuplexTelemetry for Connection {
    /// The statistics of the underlying connection: bytes and segments as on the wire.
    fn stats(&self) -> io::Result<Stats> {
        self.shared.io.stats()
    }

    fn pulse(&self) -> Option<Box<dyn Pulse>> {
        self.shared.io.pulse()
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.io.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.shared.io.peer_addr()
    }

    fn note(&self) -> Option<&str> {
        self.shared.io.note()
    }

    fn security(&self) -> Security {
        match self.shared.mode {
            Mode::Encrypt => Security::Encrypt,
            Mode::Auth => Security::Auth,
        }
    }

    fn identity(&self) -> Option<&Identity> {
        Some(&self.shared.identity)
    }

    fn channel_binding(&self) -> Option<[u8; 32]> {
        self.lock().engine.channel_binding()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.lock();
        if let Some(flusher) = state.flusher.take() {
            flusher.abort();
            if state.disarmed {
                let shared = self.shared.clone();
                self.runtime.spawn(async move { tokio::time::timeout(FLUSH_LIMIT, shared.drained()).await });
            }
        }
    }
}

/// Runs the handshake of `engine` over `io` to its end.
pub(super) async fn settle(io: &Stream, engine: &mut Engine) -> Result<(), Settling> {
    loop {
        send_all(io, engine).await?;
        if !engine.is_handshaking() {
            engine.relax();
            return Ok(());
        }
        io.readable().await?;
        let outcome = match io.try_read(engine.space()) {
            Err(error) if error.kind() == WOULD_BLOCK => continue,
            Err(error) => return Err(error.into()),
            Ok(0) => engine.input_ended(),
            Ok(n) => engine.received(n),
        };
        if let Err(fault) = outcome {
            let _ = tokio::time::timeout(ALERT_LIMIT, send_alert(io, engine)).await;
            return Err(fault.into());
        }
    }
}

/// Sends the alert that explains the refusal, and waits for the peer to close: unread bytes from the peer
/// would make the kernel reset the connection before the peer has read the alert.
async fn send_alert(io: &Stream, engine: &mut Engine) -> io::Result<()> {
    send_all(io, engine).await?;
    io.disarm();
    // On a transport without half-close, the alert has to suffice.
    let _ = io.shutdown_write();
    let mut rest = [0; 1024];
    for _ in 0..ALERT_READS {
        io.readable().await?;
        match io.try_read(&mut rest) {
            Ok(0) => break,
            Err(error) if error.kind() != WOULD_BLOCK => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

async fn send_all(io: &Stream, engine: &mut Engine) -> io::Result<()> {
    while !engine.outgoing().is_empty() {
        match io.try_write(engine.outgoing(), false) {
            Ok(n) => engine.sent(n),
            Err(error) if error.kind() == WOULD_BLOCK => io.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The reason for a failed handshake.
#[derive(Debug)]
pub(super) enum Settling {
    /// The underlying connection failed.
    Io(io::Error),
    /// TLS failed.
    Fault(Fault),
}

impl From<io::Error> for Settling {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Fault> for Settling {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}
