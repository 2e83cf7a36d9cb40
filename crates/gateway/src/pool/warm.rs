//! A connection to a peer that has greeted, and is free for a session.

use super::way::Chosen;
use crate::handshake::{Asking, HandshakeError};
use crate::request::Manner;
use phoebus_net::{Stream, code_of};
use phoebus_proto::session::message::{Open, Opened};
use phoebus_proto::session::{Code, Mode};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id};

/// The longest that a connection is idle before its next request is padded.
const FRESH: Duration = Duration::from_secs(1);

/// A greeted connection without a session.
#[derive(Debug)]
pub(crate) struct Warm {
    pub(crate) stream: Arc<Stream>,
    pub(super) asking: Asking,
    /// How the session goes over it that was asked for last.
    mode: Mode,
    /// How it was made.
    pub(super) by: Arc<Chosen>,
    /// Sessions that it has carried.
    pub(crate) sessions: u32,
    pub(super) since: Instant,
    /// The runtime whose poller watches it.
    home: Id,
}

impl Warm {
    /// A connection that was just made, on the runtime of the caller.
    pub(super) fn new(stream: Stream, asking: Asking, mode: Mode, by: Arc<Chosen>) -> Self {
        let home = Handle::current().id();
        Self { stream: Arc::new(stream), asking, mode, by, sessions: 0, since: Instant::now(), home }
    }

    /// Whether its transport gives every session a stream of its own: then this one carries one session at most.
    pub(super) fn is_one_of_many(&self) -> bool {
        self.stream.has_true_ends()
    }

    /// The handshake on it has failed. A peer that ends a stream unheard for want of proof takes no more streams of the same
    /// connection: certificates were replaced, or have expired (`docs/protocol/session.md` §6.5).
    pub(super) fn turned_away(&self, error: &HandshakeError) {
        if let HandshakeError::Io(error) = error
            && code_of(error) == Code::AuthRequired
        {
            self.stream.retire();
        }
    }

    /// How long the peer may acknowledge nothing of what was sent.
    pub(crate) fn user_timeout(&self) -> Duration {
        self.by.profile.user_timeout.0
    }

    /// How its session goes over it.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// How a session goes over it that is to be asked for, on so many connections of its kind.
    pub(super) fn manner(&mut self, streams: u16) -> Manner {
        self.mode = mode_on(&self.stream, streams);
        Manner { mode: self.mode, streams, padding: self.padding() }
    }

    /// On the caller's runtime, whose thread will relay it.
    pub(super) fn rehomed(mut self) -> Option<Self> {
        let here = Handle::current().id();
        if self.home == here {
            return Some(self);
        }
        // Status may be looking at it; then it is served across threads, which is only slower.
        match Arc::try_unwrap(self.stream).map(Stream::rehome) {
            Ok(Ok(stream)) => (self.stream, self.home) = (Arc::new(stream), here),
            Ok(Err(_)) => return None,
            Err(shared) => self.stream = shared,
        }
        Some(self)
    }

    /// How much longer than need be a request must be to fill a segment, on a connection that has been idle.
    ///
    /// After 10 s without a good sample of the round trip, bbr measures it anew, for which it sends next to nothing for
    /// 200 ms and more: at full speed, that is a gap which the rest of a transfer does not make up. It takes a sample from
    /// the first acknowledgement after idleness instead, unless that may have been delayed, as for less than a segment.
    pub(super) fn padding(&self) -> u16 {
        if self.since.elapsed() < FRESH {
            return 0;
        }
        // What does not fit the room for requests is of no use.
        let segment = self.stream.stats().map_or(0, |stats| stats.segment_size);
        u16::try_from(segment).ok().filter(|segment| *segment <= Open::PADDING_MAX).unwrap_or(0)
    }

    /// Ends the connection in peace, once the peer has done so as well.
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

    /// All but the stream, which someone else is to hold alone.
    pub(crate) fn unplugged(self) -> Unplugged {
        self.parts().1
    }

    /// The stream, and all else.
    pub(super) fn parts(self) -> (Arc<Stream>, Unplugged) {
        let Self { stream, asking, mode, by, sessions, home, .. } = self;
        (stream, Unplugged { asking, mode, by, sessions, home })
    }

    /// The peer's OPENED.
    pub(crate) fn opened(&self) -> Option<Opened<'_>> {
        self.asking.opened()
    }

    /// Connections that the peer grants for the session, this one included.
    pub(crate) fn granted(&self) -> u16 {
        self.opened().map_or(1, |opened| opened.streams)
    }
}

/// A [`Warm`] without its stream.
#[derive(Debug)]
pub(crate) struct Unplugged {
    asking: Asking,
    mode: Mode,
    by: Arc<Chosen>,
    sessions: u32,
    home: Id,
}

impl Unplugged {
    /// With its stream again.
    pub(crate) fn plug(self, stream: Arc<Stream>) -> Warm {
        let Self { asking, mode, by, sessions, home } = self;
        Warm { stream, asking, mode, by, sessions, since: Instant::now(), home }
    }
}

/// How a session goes over this connection, or over so many of its kind: as it is where it has the connection for itself, and that
/// has an end and a reset of its own that can be told apart.
pub(super) fn mode_on(stream: &Stream, streams: u16) -> Mode {
    if stream.has_true_ends() && streams == 1 { Mode::Raw } else { Mode::Framed }
}
