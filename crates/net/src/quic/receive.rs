//! The receiving half of a stream, in order whatever was lost.
//!
//! quinn puts a stream in order, but ends the *connection*, and all sessions on it, when there are more than 1024 gaps in one
//! stream. It has no setting for that, and a long fast path that loses some percent, or a short queue that overflows, makes
//! more of them within one round trip. So a stream that has gaps is read as it comes, and put in order here
//! ([`Assembly`]): quinn then holds nothing, and too many gaps for that are the end of one stream.
//!
//! Without gaps quinn's order is as good, and costs less: it gives many datagrams at a time. The way back there is none.

use super::assembly::{Assembly, Scattered};
use super::failure::Failure;
use bytes::{Buf, Bytes};
use phoebus_proto::session::Code;
use quinn::{ReadError, RecvStream, ResetError, VarInt};
use std::pin::pin;
use std::task::{Context, Poll};

/// What the peer may have sent past a gap before the order is taken over: fewer datagrams than quinn takes gaps.
const PAST_A_GAP: u64 = 1 << 20;
/// Gaps in one stream: what a window of a gigabyte has when one packet in six is lost.
const GAPS_MAX: usize = 1 << 17;

/// See the module.
#[derive(Debug)]
pub(super) struct Receive {
    stream: RecvStream,
    order: Order,
    /// The end of the peer's stream was read.
    ended: bool,
    failure: Option<Failure>,
    /// Bytes that are held besides quinn's window, at most.
    limit: u64,
}

#[derive(Debug)]
enum Order {
    /// quinn's.
    Theirs {
        /// Bytes read.
        read: u64,
        /// What was taken to see whether anything is there.
        held: Bytes,
        /// Bytes that the connection had received when there was last nothing to read.
        blocked_at: Option<u64>,
    },
    Ours {
        assembly: Assembly,
        /// quinn has given all there is.
        is_all: bool,
    },
}

impl Receive {
    /// Holds at most `limit` bytes, besides those in the window.
    pub(super) fn new(stream: RecvStream, limit: u64) -> Self {
        let order = Order::Theirs { read: 0, held: Bytes::new(), blocked_at: None };
        Self { stream, order, ended: false, failure: None, limit }
    }

    /// Reads what comes next; 0 is the end. `received` tells how many bytes the connection has received so far.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        received: impl FnOnce() -> u64,
    ) -> Poll<Result<usize, Failure>> {
        if self.ended || buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if let Order::Theirs { read, held, blocked_at } = &mut self.order {
            let result = if held.is_empty() {
                self.stream.poll_read(cx, buffer)
            } else {
                let n = held.len().min(buffer.len());
                held.copy_to_slice(&mut buffer[..n]);
                Poll::Ready(Ok(n))
            };
            match result {
                Poll::Ready(Ok(n)) => {
                    (*blocked_at, self.ended) = (None, n == 0);
                    *read += n as u64;
                    return Poll::Ready(Ok(n));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(failed(error))),
                Poll::Pending if !is_past_a_gap(blocked_at, received()) => return Poll::Pending,
                Poll::Pending => self.order = Order::Ours { assembly: Assembly::new(*read, GAPS_MAX), is_all: false },
            }
        }
        self.poll_ours(cx, buffer)
    }

    /// Ready when something is there to be read, or the end.
    pub(super) fn poll_readable(
        &mut self,
        cx: &mut Context<'_>,
        received: impl FnOnce() -> u64,
    ) -> Poll<Result<(), Failure>> {
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        if let Order::Theirs { held, blocked_at, .. } = &mut self.order {
            if !held.is_empty() {
                return Poll::Ready(Ok(()));
            }
            match pin!(self.stream.read_chunk(1 << 16, true)).poll(cx) {
                Poll::Ready(Ok(chunk)) => {
                    self.ended = chunk.is_none();
                    *held = chunk.map(|chunk| chunk.bytes).unwrap_or_default();
                    *blocked_at = None;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(failed(error))),
                Poll::Pending => {
                    is_past_a_gap(blocked_at, received());
                    return Poll::Pending;
                }
            }
        }
        match self.poll_ours(cx, &mut []) {
            Poll::Ready(result) => Poll::Ready(result.map(drop)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Wants no more of it.
    pub(super) fn stop(&mut self, code: Code) {
        if !self.ended {
            // An error says that there is nothing left to stop.
            let _ = self.stream.stop(VarInt::from_u32(code.number().into()));
        }
    }

    /// Ready when the peer has reset it, and never when all was read before.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<VarInt>, ResetError>> {
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        pin!(self.stream.received_reset()).poll(cx)
    }

    /// Takes all that quinn has, and gives what is in order. With an empty buffer, it tells whether there is anything.
    fn poll_ours(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Result<usize, Failure>> {
        let Order::Ours { assembly, .. } = &mut self.order else { return Poll::Pending };
        let mut given = assembly.give(buffer);
        let taken = self.poll_take(cx, buffer, &mut given);
        let Order::Ours { assembly, is_all } = &mut self.order else { return Poll::Pending };
        given += assembly.give(&mut buffer[given..]);
        if given > 0 || assembly.is_ready() {
            return Poll::Ready(Ok(given));
        }
        match taken {
            // The peer ended its stream, and quinn has seen to it that nothing is missing before.
            Poll::Ready(Ok(())) if *is_all => self.ended = assembly.is_whole(),
            Poll::Ready(Ok(())) | Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
        }
        Poll::Ready(Ok(0))
    }

    /// Takes from quinn until there is no more, or enough. What is next goes to `buffer` from `given` on.
    fn poll_take(&mut self, cx: &mut Context<'_>, buffer: &mut [u8], given: &mut usize) -> Poll<Result<(), Failure>> {
        let Order::Ours { assembly, is_all } = &mut self.order else { return Poll::Pending };
        // What quinn gives next begins where something is missing, when there is no room for anything else.
        let mut fits = false;
        loop {
            if let Some(failure) = &self.failure {
                return Poll::Ready(Err(failure.clone()));
            }
            if *is_all {
                return Poll::Ready(Ok(()));
            }
            let is_full = assembly.held() >= self.limit && !fits;
            if is_full && (assembly.is_ready() || *given > 0) {
                // The reader comes again, and finds this.
                return Poll::Ready(Ok(()));
            }
            if is_full {
                // Only what is next may come in. Whether it is there is seen by a byte: the first that quinn has. The
                // waker stays there by this.
                match pin!(self.stream.received_reset()).poll(cx) {
                    Poll::Ready(Ok(Some(code))) => {
                        self.failure = Some(Failure::reset(code));
                        continue;
                    }
                    Poll::Ready(Err(ResetError::ConnectionLost(error))) => {
                        self.failure = Some(Failure::Lost(error));
                        continue;
                    }
                    _ => {}
                }
            }
            let most = if is_full { 1 } else { usize::MAX };
            let chunk = match pin!(self.stream.read_chunk(most, false)).poll(cx) {
                Poll::Ready(Ok(Some(chunk))) => chunk,
                Poll::Ready(Ok(None)) => {
                    *is_all = true;
                    continue;
                }
                Poll::Ready(Err(error)) => {
                    self.failure = Some(failed(error));
                    continue;
                }
                Poll::Pending => return Poll::Pending,
            };
            let is_next = chunk.offset == assembly.ready();
            fits = is_full && is_next;
            if is_next && !assembly.is_ready() && chunk.bytes.len() <= buffer.len() - *given {
                buffer[*given..*given + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                *given += chunk.bytes.len();
                assembly.pass(chunk.bytes.len() as u64);
                *given += assembly.give(&mut buffer[*given..]);
            } else if let Err(Scattered) = assembly.insert(chunk.offset, &chunk.bytes) {
                self.failure = Some(Failure::Scattered);
            }
            if is_full && !is_next {
                return Poll::Pending;
            }
        }
    }
}

/// Whether more has come than a stream without gaps would leave unread. The first call only notes what had come.
fn is_past_a_gap(blocked_at: &mut Option<u64>, received: u64) -> bool {
    received.saturating_sub(*blocked_at.get_or_insert(received)) > PAST_A_GAP
}

fn failed(error: ReadError) -> Failure {
    match error {
        ReadError::Reset(code) => Failure::reset(code),
        ReadError::ConnectionLost(error) => Failure::Lost(error),
        ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => Failure::Local,
    }
}
