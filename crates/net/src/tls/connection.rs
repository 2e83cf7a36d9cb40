//! A connection under TLS: what it reads and writes passes through an [`Engine`], under a lock that is never held across a wait.

use super::Mode;
use super::engine::Engine;
use super::fault::Fault;
use crate::stats::Stats;
use crate::stream::Stream;
use crate::transport::{Boxed, Change, Duplex, Identity, Pulse, Security};
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

/// How long the last record of a connection that was [disarmed](Stream::disarm) may take to find room below. Whoever has to know
/// that it arrived waits for [`Stream::delivered`] instead.
const PARTING: Duration = Duration::from_secs(60);

/// How long an end that is refused may take to read why.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often what it goes on sending is read meanwhile.
const LAST_READS: usize = 64;

/// See the module. Clones of `shared` are held by the task that sends what found no room.
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
    /// A fault was found.
    broken: Notify,
}

#[derive(Debug)]
struct State {
    engine: Engine,
    fault: Option<Fault>,
    /// The task that sends what found no room.
    flusher: Option<AbortHandle>,
    /// Who waits for it.
    writer: Option<Waker>,
    /// This end's stream has ended.
    ending: bool,
    /// What is below was told so, where that is what ends the stream.
    ended: bool,
    disarmed: bool,
}

impl Connection {
    /// What `engine` has settled with the other end of `io`.
    pub(super) fn new(io: Stream, engine: Engine, mode: Mode, identity: Identity) -> Self {
        let state =
            State { engine, fault: None, flusher: None, writer: None, ending: false, ended: false, disarmed: false };
        let shared = Shared { io, mode, identity, state: Mutex::new(state), broken: Notify::new() };
        Self { shared: Arc::new(shared), runtime: Handle::current() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// Sends what is to be sent, and leaves what finds no room to a task.
    fn send(&self, state: &mut State, more: bool) -> io::Result<()> {
        match self.shared.flush(state, more) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if state.flusher.is_none() {
                    let shared = self.shared.clone();
                    let task = self.runtime.spawn(async move {
                        // How the connection failed, if it did, the next read or write finds out by itself.
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

    /// `WouldBlock` when something is left.
    fn flush(&self, state: &mut State, more: bool) -> io::Result<()> {
        while !state.engine.outgoing().is_empty() {
            let n = self.io.try_write(state.engine.outgoing(), more)?;
            state.engine.sent(n);
        }
        // Where all is encrypted, close_notify has said it, also over what has no half-close of its own.
        if state.ending && !state.ended && self.mode == Mode::Auth {
            self.io.shutdown_write()?;
            state.ended = true;
        }
        Ok(())
    }

    /// Waits until all is sent.
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

    /// Whether what the other end sends now is not TLS any more.
    fn reads_raw(&self, state: &State) -> bool {
        self.mode == Mode::Auth && state.engine.is_at_end()
    }

    /// Whether what this end sends now is not TLS any more.
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

impl Duplex for Connection {
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
                // The other end has ended TLS, and not the connection.
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

    fn shutdown_write(&self) -> io::Result<()> {
        let state = &mut *self.lock();
        state.check()?;
        state.engine.close().map_err(|fault| self.shared.fail(state, fault))?;
        state.ending = true;
        self.send(state, false)
    }

    /// What was not sent yet counts as well.
    fn unacknowledged(&self) -> io::Result<usize> {
        let state = self.lock();
        Ok(self.shared.io.unacknowledged()? + state.engine.outgoing().len())
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

    /// Of the connection below: bytes and segments as they are on the wire.
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

    /// Once both ends have ended TLS, and nothing of it is left here.
    fn socket(&self) -> Option<&TcpStream> {
        let state = self.lock();
        let raw = self.shared.reads_raw(&state) && self.shared.writes_raw(&state);
        if raw && state.engine.outgoing().is_empty() && state.flusher.is_none() {
            self.shared.io.socket()
        } else {
            None
        }
    }

    /// Stays where it is, only slower, in the rare case that something waits to be sent.
    fn rehome(self: Box<Self>) -> io::Result<Box<dyn Duplex>> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        if self.lock().flusher.is_some() {
            return Ok(self);
        }
        let shared = self.shared.clone();
        drop(self);
        let shared = match Arc::try_unwrap(shared) {
            Ok(shared) => Arc::new(Shared { io: shared.io.rehome()?, ..shared }),
            Err(shared) => shared,
        };
        Ok(Box::new(Self { shared, runtime }))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.lock();
        if let Some(flusher) = state.flusher.take() {
            flusher.abort();
            if state.disarmed {
                let shared = self.shared.clone();
                self.runtime.spawn(async move { tokio::time::timeout(PARTING, shared.drained()).await });
            }
        }
    }
}

/// Sends `engine`'s part of the handshake over `io` and hands it the other end's, until it is over.
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
            let _ = tokio::time::timeout(LAST_WORDS, part(io, engine)).await;
            return Err(fault.into());
        }
    }
}

/// Tells the other end why there is no connection, and waits for it to go: bytes of its that nobody reads would make the
/// kernel reset the connection before it has read the reason.
async fn part(io: &Stream, engine: &mut Engine) -> io::Result<()> {
    send_all(io, engine).await?;
    io.disarm();
    // Where there is no half-close, the alert has to do.
    let _ = io.shutdown_write();
    let mut rest = [0; 1024];
    for _ in 0..LAST_READS {
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

/// Why a handshake failed.
#[derive(Debug)]
pub(super) enum Settling {
    /// The connection below did.
    Io(io::Error),
    /// TLS did.
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
