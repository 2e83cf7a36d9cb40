//! One framed connection as a relay sees it: headers are read and written here, payloads are spliced past it (S22).
//!
//! Sending is one frame at a time: a header, then the payload that it announced. Acknowledgements and answers to PING wait
//! for the end of the frame under way. Receiving stops at the last acknowledgement of the session, or at RESET: what comes
//! after it belongs to the next.

use super::allowance::Allowance;
use super::failure::Failure;
use phoebus_net::Stream;
use phoebus_proto::session::bundle::Scatter;
use phoebus_proto::session::frame::{Exchange, Frame, HEADER_LEN, Role};
use phoebus_proto::session::message::Message;
use phoebus_proto::session::{Code, ProtocolError};
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// The framed state of one connection for one session.
#[derive(Debug)]
pub(crate) struct Framing {
    exchange: Exchange,
    /// Control frames that the peer may still send, and how far it has acknowledged.
    allowance: Allowance,
    acknowledged: u64,
    /// The header that is arriving, and how much of it is there.
    header: [u8; HEADER_LEN],
    have: usize,
    /// Bytes of an incoming DATA frame that were not taken yet.
    payload: usize,
    /// The reason of an incoming RESET that is arriving, and its full length.
    reset: Option<(Vec<u8>, usize)>,
    /// The header that is being sent, and how much of it was.
    out: [u8; HEADER_LEN],
    out_sent: usize,
    /// Bytes of the outgoing DATA frame that are still to follow its header.
    owed: usize,
    ack_due: bool,
    ping_due: bool,
    pong_due: Option<u64>,
    /// Whether any frame has come, and whether bytes of the stream have gone.
    heard: bool,
    sent: bool,
    /// The RESET with which this side gives the session up, and how much of it was sent.
    parting: Vec<u8>,
    parting_sent: usize,
}

/// What a framed connection brings next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// This many bytes of the stream.
    Payload(usize),
    /// The end of the peer's stream.
    End,
    /// Nothing more that belongs to this session.
    Over,
}

impl Framing {
    /// For a peer that may send so many control frames a second (`limits.control_frames`).
    pub(crate) fn new(role: Role, control_frames: u32) -> Self {
        Self::of(Exchange::new(role), control_frames)
    }

    /// On one connection of a bundle.
    pub(crate) fn striped(role: Role, control_frames: u32) -> Self {
        Self::of(Exchange::striped(role), control_frames)
    }

    fn of(exchange: Exchange, control_frames: u32) -> Self {
        Self {
            exchange,
            allowance: Allowance::new(control_frames, Instant::now()),
            acknowledged: 0,
            header: [0; HEADER_LEN],
            have: 0,
            payload: 0,
            reset: None,
            out: [0; HEADER_LEN],
            out_sent: HEADER_LEN,
            owed: 0,
            ack_due: false,
            ping_due: false,
            pong_due: None,
            heard: false,
            sent: false,
            parting: Vec::new(),
            parting_sent: 0,
        }
    }

    /// Reads headers until one says something about the stream.
    pub(crate) fn poll_incoming(&mut self, stream: &Stream, cx: &mut Context<'_>) -> Poll<Result<Incoming, Failure>> {
        loop {
            if self.payload > 0 {
                return Poll::Ready(Ok(Incoming::Payload(self.payload)));
            }
            if self.exchange.shutdown_received() && self.exchange.delivered() {
                return Poll::Ready(Ok(Incoming::Over));
            }
            ready!(stream.poll_read_ready(cx))?;
            match self.read(stream) {
                Ok(Some(Incoming::End)) => return Poll::Ready(Ok(Incoming::End)),
                Ok(_) => {}
                Err(Failure::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(failure) => return Poll::Ready(Err(failure)),
            }
        }
    }

    /// Says that `n` bytes of the payload were taken.
    pub(crate) fn took(&mut self, n: usize) {
        self.payload -= n.min(self.payload);
    }

    /// Whether the peer was told of a frame whose payload is still to come.
    pub(crate) fn owes(&self) -> bool {
        self.owed > 0
    }

    /// Begins a DATA frame of `len` bytes; only where [`Framing::try_flush`] has left nothing.
    pub(crate) fn begin_data(&mut self, len: usize) -> Result<(), Failure> {
        let announced = u32::try_from(len).map_err(|_| Failure::internal("a carrier held more than a frame can"))?;
        let header = self.exchange.data(announced)?;
        self.send(header);
        self.owed = len;
        Ok(())
    }

    /// The same with the next bytes that are scattered over a bundle.
    pub(crate) fn begin_part(&mut self, scatter: &mut Scatter, len: usize) -> Result<(), Failure> {
        let announced = u32::try_from(len).map_err(|_| Failure::internal("a carrier held more than a frame can"))?;
        let header = scatter.data(&mut self.exchange, announced)?;
        self.send(header);
        self.sent = true;
        self.owed = len;
        Ok(())
    }

    /// As [`Framing::begin_shutdown`], where all bytes have been scattered over a bundle.
    pub(crate) fn begin_end(&mut self, scatter: &Scatter) -> Result<(), Failure> {
        let header = scatter.shutdown(&mut self.exchange)?;
        self.send(header);
        Ok(())
    }

    /// Where the peer's stream stands, as far as it came here: behind the frame whose header was read last.
    pub(crate) fn position(&self) -> u64 {
        self.exchange.bytes().1
    }

    /// Has PING sent as soon as there is room: whatever the answer, the peer has heard of this connection.
    pub(crate) fn begin_ping(&mut self) {
        self.ping_due = true;
    }

    /// Whether the peer has sent any frame.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard
    }

    /// Whether this end has given any bytes of the stream to this connection.
    pub(crate) fn has_sent(&self) -> bool {
        self.sent
    }

    /// Whether the peer's stream has ended here.
    pub(crate) fn has_ended(&self) -> bool {
        self.exchange.shutdown_received()
    }

    /// Says that `n` bytes of the payload were sent.
    pub(crate) fn paid(&mut self, n: usize) {
        self.owed -= n.min(self.owed);
    }

    /// Begins SHUTDOWN; only where [`Framing::try_flush`] has left nothing.
    pub(crate) fn begin_shutdown(&mut self) -> Result<(), Failure> {
        let header = self.exchange.shutdown()?;
        self.send(header);
        Ok(())
    }

    pub(crate) fn shutdown_begun(&self) -> bool {
        self.exchange.shutdown_sent()
    }

    /// Everything that was received went on to the next hop: say so when there is room.
    pub(crate) fn acknowledge(&mut self) {
        self.ack_due = true;
    }

    /// Sends what is due, up to the payload of a frame under way.
    pub(crate) fn try_flush(&mut self, stream: &Stream) -> io::Result<()> {
        loop {
            while self.out_sent < HEADER_LEN {
                self.out_sent += stream.try_write(&self.out[self.out_sent..], self.owed > 0)?;
            }
            if self.owed > 0 {
                return Ok(());
            }
            if !self.parting.is_empty() {
                while self.parting_sent < self.parting.len() {
                    self.parting_sent += stream.try_write(&self.parting[self.parting_sent..], false)?;
                }
                return Ok(());
            }
            if std::mem::take(&mut self.ping_due) {
                self.send(self.exchange.ping(0));
            } else if let Some(token) = self.pong_due.take() {
                self.send(self.exchange.pong(token));
            } else if std::mem::take(&mut self.ack_due) {
                let header = self.exchange.ack();
                self.send(header);
            } else {
                return Ok(());
            }
        }
    }

    /// Whether the session is over on this connection, all that was due was sent, and another session may follow.
    pub(crate) fn is_over(&self) -> bool {
        self.exchange.reusable()
            && self.reset.is_none()
            && self.out_sent == HEADER_LEN
            && self.owed == 0
            && self.parting_sent == self.parting.len()
    }

    pub(crate) fn role(&self) -> Role {
        self.exchange.role()
    }

    /// Gives the session up for `reason`: a RESET frame is due behind the frame under way, and nothing after it. Where all has
    /// been said, that waits until the peer gives it up.
    pub(crate) fn begin_reset(&mut self, reason: &[u8]) {
        let len = u32::try_from(reason.len()).unwrap_or(u32::MAX);
        if let Ok(header) = self.exchange.reset(len) {
            self.parting = [&header[..], reason].concat();
        }
    }

    /// Reads on past what nobody wants any more, until nothing is there, the session is over for the peer, or a good deal was
    /// read. Returns how many bytes that were.
    pub(crate) fn discard(&mut self, stream: &Stream, scratch: &mut [u8]) -> Result<usize, Failure> {
        /// Before other sessions of the thread get their turn.
        const MOST: usize = 4 << 20;
        let mut total = 0;
        while total < MOST && !self.peer_is_done() {
            match self.read_past(stream, scratch) {
                Ok(n) => total += n,
                Err(Failure::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(Failure::Told { .. }) if self.peer_has_reset() => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(total)
    }

    /// Reads what has come of a connection that has failed, up to the next header that says something about the stream.
    pub(crate) fn read_on(&mut self, stream: &Stream) -> Result<Option<Incoming>, Failure> {
        while self.payload == 0 {
            match self.read(stream) {
                Ok(Some(incoming)) => return Ok(Some(incoming)),
                Ok(None) => {}
                // The failure that is known already, in whatever words.
                Err(Failure::Io(_)) => return Ok(None),
                Err(failure) => return Err(failure),
            }
        }
        Ok(Some(Incoming::Payload(self.payload)))
    }

    /// Whether a part of a header has come, and not all of it.
    pub(crate) fn is_midway(&self) -> bool {
        self.have > 0
    }

    /// Looks for the RESET of a peer that has gone: what it sent last may still wait to be read, behind data that nobody
    /// wants any more.
    pub(crate) fn last_words(&mut self, stream: &Stream) -> Option<Failure> {
        /// What is read at most: the rest of the kernel's buffer is as good as lost.
        const SCRATCH: usize = 64 * 1024;
        let mut scratch = vec![0; SCRATCH];
        (0..SCRATCH)
            .find_map(|_| self.read_past(stream, &mut scratch).err())
            .filter(|f| matches!(f, Failure::Told { .. }))
    }

    /// Reads once, and forgets it if it is payload.
    fn read_past(&mut self, stream: &Stream, scratch: &mut [u8]) -> Result<usize, Failure> {
        if self.payload == 0 {
            return self.read(stream).map(|_| HEADER_LEN);
        }
        let max = self.payload.min(scratch.len());
        match stream.try_read(&mut scratch[..max])? {
            0 => Err(Failure::Io(io::ErrorKind::UnexpectedEof.into())),
            n => {
                self.took(n);
                Ok(n)
            }
        }
    }

    /// Whether all that the peer has to say about the session was read.
    fn peer_is_done(&self) -> bool {
        self.peer_has_reset() || (self.exchange.reusable() && !self.exchange.reset_received())
    }

    /// Whether the peer has given the session up and all of what it said about it was read.
    fn peer_has_reset(&self) -> bool {
        self.exchange.reset_received() && self.reset.is_none()
    }

    fn send(&mut self, header: [u8; HEADER_LEN]) {
        self.out = header;
        self.out_sent = 0;
    }

    /// Reads once.
    fn read(&mut self, stream: &Stream) -> Result<Option<Incoming>, Failure> {
        if let Some((reason, len)) = &mut self.reset {
            let start = reason.len();
            reason.resize(*len, 0);
            let read = stream.try_read(&mut reason[start..]);
            reason.truncate(start + *read.as_ref().unwrap_or(&0));
            let gone = read? == 0;
            if !gone && reason.len() < *len {
                return Ok(None);
            }
            let failure = told(reason);
            if !gone {
                self.reset = None;
            }
            return Err(failure);
        }
        let n = stream.try_read(&mut self.header[self.have..])?;
        if n == 0 {
            return Err(Failure::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        self.have += n;
        if self.have < HEADER_LEN {
            return Ok(None);
        }
        self.have = 0;
        let frame = self.exchange.receive(&self.header)?;
        self.heard = true;
        if let Frame::Ack { offset } = frame {
            self.allowance.earn(offset - std::mem::replace(&mut self.acknowledged, offset));
        }
        if matches!(frame, Frame::Ack { .. } | Frame::Ping { .. } | Frame::Pong { .. })
            && !self.allowance.take(Instant::now())
        {
            return Err(Failure::Control(self.allowance.per_second()));
        }
        match frame {
            Frame::Data { len } => {
                self.payload = len as usize;
                self.allowance.earn(len.into());
            }
            Frame::Shutdown => return Ok(Some(Incoming::End)),
            Frame::Reset { len: 0 } => return Err(told(&[])),
            Frame::Reset { len } => self.reset = Some((Vec::new(), len as usize)),
            // A peer that asks faster than it listens is answered once.
            Frame::Ping { token } => self.pong_due = Some(token),
            Frame::Ack { .. } | Frame::Pong { .. } => {}
        }
        Ok(None)
    }
}

/// What a RESET frame says.
fn told(reason: &[u8]) -> Failure {
    match Message::decode(reason) {
        Ok(Message::Refused(refused)) => {
            Failure::Told { code: refused.code, hop: refused.hop.to_owned(), reason: refused.reason.to_owned() }
        }
        Ok(other) => ProtocolError::Unexpected { got: other.name(), expected: "REFUSED in a RESET frame" }.into(),
        // A peer that died while it said why has failed all the same.
        Err(_) => Failure::Told { code: Code::Reset, hop: String::new(), reason: String::new() },
    }
}
