//! One framed connection as a relay sees it. Headers are read and written here; payloads are spliced around it (S22).
//!
//! One frame is sent at a time: a header, then the payload that it announced. Acknowledgements and answers to PING wait
//! for the end of the current frame. Receiving stops at the last acknowledgement of the session, or at RESET: what
//! follows belongs to the next session.

use super::allowance::Allowance;
use crate::failure::Failure;
use phoebus_net::Stream;
use phoebus_proto::session::bundle::Scatter;
use phoebus_proto::session::frame::{Frame, FrameState, HEADER_LEN, Role};
use phoebus_proto::session::message::Message;
use phoebus_proto::session::{Code, ProtocolError};
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// The framed state of one connection for one session.
#[derive(Debug)]
pub(crate) struct Framing {
    exchange: FrameState,
    /// Control frames that the peer may still send.
    allowance: Allowance,
    /// How far the peer has acknowledged this end's stream, in bytes.
    acknowledged: u64,
    /// The incoming header, and how many of its bytes have arrived.
    header: [u8; HEADER_LEN],
    have: usize,
    /// Bytes of the incoming DATA frame that have not been taken yet.
    payload: usize,
    /// The incomplete reason of an incoming RESET, and its full length.
    reset: Option<(Vec<u8>, usize)>,
    /// The outgoing header, and how many of its bytes were sent.
    out: [u8; HEADER_LEN],
    out_sent: usize,
    /// Bytes of the outgoing DATA frame that have yet to follow its header.
    owed: usize,
    ack_due: bool,
    ping_due: bool,
    pong_due: Option<u64>,
    /// Whether any frame was received, and whether bytes of the stream were sent.
    heard: bool,
    sent: bool,
    /// The RESET with which this side abandons the session, and how many of its bytes were sent.
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
    /// For a peer that may send `control_frames` control frames per second (`limits.control_frames`).
    pub(crate) fn new(role: Role, control_frames: u32) -> Self {
        Self::of(FrameState::new(role), control_frames)
    }

    /// For one connection of a bundle.
    pub(crate) fn striped(role: Role, control_frames: u32) -> Self {
        Self::of(FrameState::striped(role), control_frames)
    }

    fn of(exchange: FrameState, control_frames: u32) -> Self {
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

    /// Reads headers until one concerns the stream.
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

    /// Records that `n` bytes of the incoming payload were taken.
    pub(crate) fn took(&mut self, n: usize) {
        self.payload -= n.min(self.payload);
    }

    /// Whether a header was sent whose payload is incomplete.
    pub(crate) fn payload_is_incomplete(&self) -> bool {
        self.owed > 0
    }

    /// Begins a DATA frame of `len` bytes. Call only after [`Framing::try_flush`] has left nothing to send.
    pub(crate) fn begin_data(&mut self, len: usize) -> Result<(), Failure> {
        let announced = u32::try_from(len).map_err(|_| Failure::internal("a carrier held more than a frame can"))?;
        let header = self.exchange.data(announced)?;
        self.send(header);
        self.owed = len;
        Ok(())
    }

    /// Like [`Framing::begin_data`], for the next bytes that `scatter` spreads over a bundle.
    pub(crate) fn begin_part(&mut self, scatter: &mut Scatter, len: usize) -> Result<(), Failure> {
        let announced = u32::try_from(len).map_err(|_| Failure::internal("a carrier held more than a frame can"))?;
        let header = scatter.data(&mut self.exchange, announced)?;
        self.send(header);
        self.sent = true;
        self.owed = len;
        Ok(())
    }

    /// Like [`Framing::begin_shutdown`], after all bytes were spread over a bundle.
    pub(crate) fn begin_end(&mut self, scatter: &Scatter) -> Result<(), Failure> {
        let header = scatter.shutdown(&mut self.exchange)?;
        self.send(header);
        Ok(())
    }

    /// The position in the peer's stream behind the frame whose header was read last.
    pub(crate) fn position(&self) -> u64 {
        self.exchange.bytes().1
    }

    /// Schedules a PING. Any frame tells the peer that this end knows of the connection; the answer does not matter.
    pub(crate) fn begin_ping(&mut self) {
        self.ping_due = true;
    }

    /// Whether the peer has sent any frame.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard
    }

    /// Whether this end has sent any bytes of the stream on this connection.
    pub(crate) fn has_sent(&self) -> bool {
        self.sent
    }

    /// Whether the end of the peer's stream was received here.
    pub(crate) fn has_ended(&self) -> bool {
        self.exchange.shutdown_received()
    }

    /// Records that `n` bytes of the outgoing payload were sent.
    pub(crate) fn payload_sent(&mut self, n: usize) {
        self.owed -= n.min(self.owed);
    }

    /// Begins SHUTDOWN. Call only after [`Framing::try_flush`] has left nothing to send.
    pub(crate) fn begin_shutdown(&mut self) -> Result<(), Failure> {
        let header = self.exchange.shutdown()?;
        self.send(header);
        Ok(())
    }

    pub(crate) fn shutdown_begun(&self) -> bool {
        self.exchange.shutdown_sent()
    }

    /// Schedules an acknowledgement: everything that was received was forwarded to the next hop.
    pub(crate) fn acknowledge(&mut self) {
        self.ack_due = true;
    }

    /// Sends headers and control frames that are due, up to the payload of an incomplete frame.
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

    /// Whether the session is over on this connection, everything due was sent, and another session may follow.
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

    /// Abandons the session for `reason`: a RESET frame follows the current frame, and nothing follows it. If this end
    /// has sent everything already, RESET waits until the peer abandons the session.
    pub(crate) fn begin_reset(&mut self, reason: &[u8]) {
        let len = u32::try_from(reason.len()).unwrap_or(u32::MAX);
        if let Ok(header) = self.exchange.reset(len) {
            self.parting = [&header[..], reason].concat();
        }
    }

    /// Reads and discards unwanted bytes until none are available, the session is over for the peer, or `MOST` bytes
    /// were read. Returns the number of bytes read.
    pub(crate) fn discard(&mut self, stream: &Stream, scratch: &mut [u8]) -> Result<usize, Failure> {
        /// The most bytes to read before other sessions of the thread get their turn.
        const MOST: usize = 4 << 20;
        let mut total = 0;
        while total < MOST && !self.peer_is_done() {
            match self.read_past(stream, scratch) {
                Ok(n) => total += n,
                Err(Failure::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(Failure::Reported { .. }) if self.peer_has_reset() => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(total)
    }

    /// Reads what arrived on a connection that has failed, up to the next header that concerns the stream.
    pub(crate) fn read_on(&mut self, stream: &Stream) -> Result<Option<Incoming>, Failure> {
        while self.payload == 0 {
            match self.read(stream) {
                Ok(Some(incoming)) => return Ok(Some(incoming)),
                Ok(None) => {}
                // The failure that is already known, perhaps as another error.
                Err(Failure::Io(_)) => return Ok(None),
                Err(failure) => return Err(failure),
            }
        }
        Ok(Some(Incoming::Payload(self.payload)))
    }

    /// Whether a header has arrived in part.
    pub(crate) fn is_midway(&self) -> bool {
        self.have > 0
    }

    /// Looks for the RESET of a peer that has closed: the last bytes that it sent may still wait to be read, behind
    /// unwanted data.
    pub(crate) fn reported_reason(&mut self, stream: &Stream) -> Option<Failure> {
        /// The most bytes that one read discards.
        const SCRATCH: usize = 64 * 1024;
        let mut scratch = vec![0; SCRATCH];
        (0..SCRATCH)
            .find_map(|_| self.read_past(stream, &mut scratch).err())
            .filter(|f| matches!(f, Failure::Reported { .. }))
    }

    /// Reads once, and discards payload.
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

    /// Whether everything that the peer sends for the session was read.
    fn peer_is_done(&self) -> bool {
        self.peer_has_reset() || (self.exchange.reusable() && !self.exchange.reset_received())
    }

    /// Whether the peer has abandoned the session and its whole reason was read.
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
            // Only the latest PING is answered, so a peer that sends them faster than it reads adds no memory.
            Frame::Ping { token } => self.pong_due = Some(token),
            Frame::Ack { .. } | Frame::Pong { .. } => {}
        }
        Ok(None)
    }
}

/// The failure that a RESET frame reports.
fn told(reason: &[u8]) -> Failure {
    match Message::decode(reason) {
        Ok(Message::Refused(refused)) => {
            Failure::Reported { code: refused.code, hop: refused.hop.to_owned(), reason: refused.reason.to_owned() }
        }
        Ok(other) => ProtocolError::Unexpected { got: other.name(), expected: "REFUSED in a RESET frame" }.into(),
        // The peer died while it sent the reason: report a reset without one.
        Err(_) => Failure::Reported { code: Code::Reset, hop: String::new(), reason: String::new() },
    }
}
