//! A connection to a peer, past its greeting and free for a session.

use super::demand::InUse;
use super::own_login::OwnLogin;
use super::selection::Selection;
use crate::handshake::{Asking, HandshakeError};
use crate::request::HopOptions;
use phoebus_net::{Stream, code_of};
use phoebus_proto::session::message::{Open, Opened};
use phoebus_proto::session::{Code, Mode};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};

/// A connection that was idle for longer pads its next request.
const FRESH: Duration = Duration::from_secs(1);

/// A greeted connection: idle, or lent to a session.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    pub(crate) stream: Arc<Stream>,
    pub(super) asking: Asking,
    /// The mode of the session that was requested last.
    mode: Mode,
    /// The settings with which it was made.
    pub(super) selection: Arc<Selection>,
    /// How many sessions it has carried.
    pub(crate) sessions: u32,
    pub(super) since: Instant,
    /// The runtime that polls it.
    home: Id,
    /// The use by a session that it was lent to.
    in_use: Option<InUse>,
    /// How often the user's login had changed when it was made.
    pub(super) logins: u64,
    /// The authentication that has begun with its first request.
    pub(super) login: Option<Box<OwnLogin>>,
}

impl PooledConnection {
    /// A new connection, on the caller's runtime.
    pub(super) fn new(stream: Stream, asking: Asking, mode: Mode, selection: Arc<Selection>) -> Self {
        let home = Handle::current().id();
        Self {
            stream: Arc::new(stream),
            asking,
            mode,
            selection,
            sessions: 0,
            since: Instant::now(),
            home,
            in_use: None,
            logins: 0,
            login: None,
        }
    }

    /// The same, whose first request authenticates.
    pub(super) fn with_login(self, login: OwnLogin) -> Self {
        Self { login: Some(Box::new(login)), ..self }
    }

    /// The same, lent to a session.
    pub(super) fn lent(self, in_use: InUse) -> Self {
        Self { in_use: Some(in_use), ..self }
    }

    /// The same, free for the next session.
    pub(super) fn returned(self) -> Self {
        Self { in_use: None, since: Instant::now(), ..self }
    }

    /// Whether its transport gives every session a stream of its own. Then this stream carries one session at most.
    pub(super) fn is_multiplexed(&self) -> bool {
        self.stream.has_authenticated_close()
    }

    /// Handles a failed handshake. A peer that ends a stream without reading it for want of authentication accepts no
    /// more streams on the same connection, because certificates were replaced or have expired
    /// (`docs/protocol/session.md` §6.5).
    pub(super) fn retire_if_unauthenticated(&self, error: &HandshakeError) {
        if let HandshakeError::Io(error) = error
            && code_of(error) == Code::AuthRequired
        {
            self.stream.retire();
        }
    }

    /// How long the peer may leave sent data unacknowledged.
    pub(crate) fn user_timeout(&self) -> Duration {
        self.selection.profile.user_timeout.0
    }

    /// The mode of its session.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Prepares the options of the next session, which uses `streams` connections of this kind.
    pub(super) fn manner(&mut self, streams: u16) -> HopOptions {
        self.mode = mode_on(&self.stream, streams);
        HopOptions { mode: self.mode, streams, padding: self.padding() }
    }

    /// Moves it to the caller's runtime, whose thread will relay it.
    pub(super) fn rehomed(mut self) -> Option<Self> {
        let here = Handle::current().id();
        if self.home == here {
            return Some(self);
        }
        // A status query may hold it; then it is served across threads, which is only slower.
        match Arc::try_unwrap(self.stream).map(Stream::move_to_runtime) {
            Ok(Ok(stream)) => (self.stream, self.home) = (Arc::new(stream), here),
            Ok(Err(_)) => return None,
            Err(shared) => self.stream = shared,
        }
        Some(self)
    }

    /// The padding, in bytes, that makes a request fill a segment on a connection that has been idle.
    ///
    /// After 10 s without a good round-trip sample, bbr measures the round trip anew, and sends next to nothing for 200
    /// ms or more. At full speed, the rest of a transfer does not make up for that gap. bbr takes a sample from the
    /// first acknowledgement after idleness instead, unless that may have been delayed, as for less than a segment.
    pub(super) fn padding(&self) -> u16 {
        if self.since.elapsed() < FRESH {
            return 0;
        }
        // Shorter padding would not fill the segment.
        let segment = self.stream.stats().map_or(0, |stats| stats.segment_size);
        u16::try_from(segment).ok().filter(|segment| *segment <= Open::PADDING_MAX).unwrap_or(0)
    }

    /// Closes the connection in order: waits until the peer has closed it as well.
    pub(super) async fn leave(self) {
        if self.stream.shutdown_write().is_err() {
            return;
        }
        while self.stream.readable().await.is_ok() {
            match self.stream.try_read(&mut [0; 64]) {
                Ok(0) => return self.stream.disarm(),
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
                _ => {}
            }
        }
    }

    /// Everything but the stream, which another owner will hold alone.
    pub(crate) fn detached(self) -> DetachedState {
        self.parts().1
    }

    /// The stream, and everything else.
    pub(super) fn parts(self) -> (Arc<Stream>, DetachedState) {
        let Self { stream, asking, mode, selection, sessions, home, in_use, logins, .. } = self;
        (stream, DetachedState { asking, mode, selection, sessions, home, in_use, logins })
    }

    /// The peer's OPENED.
    pub(crate) fn opened(&self) -> Option<Opened<'_>> {
        self.asking.opened()
    }

    /// The number of connections that the peer grants for the session, including this one.
    pub(crate) fn granted(&self) -> u16 {
        self.opened().map_or(1, |opened| opened.streams)
    }
}

/// A [`PooledConnection`] without its stream.
#[derive(Debug)]
pub(crate) struct DetachedState {
    asking: Asking,
    mode: Mode,
    selection: Arc<Selection>,
    sessions: u32,
    home: Id,
    in_use: Option<InUse>,
    logins: u64,
}

impl DetachedState {
    /// Adds the stream again.
    pub(crate) fn plug(self, stream: Arc<Stream>) -> PooledConnection {
        let Self { asking, mode, selection, sessions, home, in_use, logins } = self;
        PooledConnection {
            stream,
            asking,
            mode,
            selection,
            sessions,
            since: Instant::now(),
            home,
            in_use,
            logins,
            login: None,
        }
    }
}

/// The mode of a session over `streams` connections of this kind: raw where it has a single stream to itself whose end
/// and reset are authenticated and distinct; framed otherwise.
pub(super) fn mode_on(stream: &Stream, streams: u16) -> Mode {
    if stream.has_authenticated_close() && streams == 1 { Mode::Raw } else { Mode::Framed }
}
