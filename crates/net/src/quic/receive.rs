//! The receiving half of a stream, which delivers in order however many packets were lost.
//!
//! quinn reorders a stream, but ends the *connection* with all its sessions when one stream has more than
//! 1024 gaps. This limit is not configurable, and a long fast path that loses some percent, or a short queue
//! that overflows, makes more gaps within one round trip. So a stream with gaps is read from quinn out of
//! order and reassembled here ([`Assembly`]). quinn then holds nothing, and too many gaps end only one
//! stream.
//!
//! Without gaps, quinn's ordered read is as good and costs less: it returns many datagrams at a time. quinn
//! offers no way back from unordered to ordered reads.

use super::assembly::{Assembly, Scattered};
use super::failure::Failure;
use bytes::{Buf, Bytes};
use phoebus_proto::session::Code;
use quinn::{ReadError, RecvStream, ResetError, VarInt};
use std::pin::pin;
use std::task::{Context, Poll};

/// Number of unread bytes past a gap from which on this module reassembles: fewer datagrams than quinn
/// accepts gaps.
const PAST_A_GAP: i64 = 512 << 10;
/// Most gaps in one stream: those of a window of a gigabyte when one packet in six is lost.
const GAPS_MAX: usize = 1 << 17;

/// The receiving half; see the module documentation.
#[derive(Debug)]
pub(super) struct Receive {
    stream: RecvStream,
    order: Order,
    /// Whether the end of the peer's stream was read.
    ended: bool,
    failure: Option<Failure>,
    /// Most bytes held besides quinn's window.
    limit: u64,
    /// Most of these that may wait only for the reader.
    limit_ready: u64,
}

#[derive(Debug)]
enum Order {
    /// quinn reorders.
    Theirs {
        /// Number of bytes read.
        read: u64,
        /// A chunk read while checking for readability, not yet delivered.
        held: Bytes,
        /// The smallest number of unread bytes on the connection while nothing was readable here.
        least: Option<i64>,
    },
    /// This module reassembles.
    Ours {
        assembly: Assembly,
        /// Whether quinn has returned everything up to the end of the stream.
        is_all: bool,
    },
}

impl Receive {
    /// Holds at most `limit` bytes besides quinn's window. The limit must be several windows: data past a gap
    /// is held until the repair arrives, and a packet may be lost repeatedly. A sixth of it may wait for a
    /// reader that has stopped.
    pub(super) fn new(stream: RecvStream, limit: u64) -> Self {
        let order = Order::Theirs { read: 0, held: Bytes::new(), least: None };
        Self { stream, order, ended: false, failure: None, limit, limit_ready: limit / 6 }
    }

    /// Reads the next bytes; 0 is the end of the stream. `unread` returns the approximate number of stream
    /// bytes that the connection has received and no stream has read: only its changes matter.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        unread: impl FnOnce() -> i64,
    ) -> Poll<Result<usize, Failure>> {
        if self.ended || buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if let Order::Theirs { read, held, least } = &mut self.order {
            let result = if held.is_empty() {
                self.stream.poll_read(cx, buffer)
            } else {
                let n = held.len().min(buffer.len());
                held.copy_to_slice(&mut buffer[..n]);
                Poll::Ready(Ok(n))
            };
            match result {
                Poll::Ready(Ok(n)) => {
                    self.ended = n == 0;
                    *read += n as u64;
                    return Poll::Ready(Ok(n));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(failed(error))),
                Poll::Pending if !is_past_a_gap(least, unread()) => return Poll::Pending,
                Poll::Pending => self.order = Order::Ours { assembly: Assembly::new(*read, GAPS_MAX), is_all: false },
            }
        }
        self.poll_ours(cx, buffer)
    }

    /// Ready when a read would return data, the end or a failure.
    pub(super) fn poll_readable(
        &mut self,
        cx: &mut Context<'_>,
        unread: impl FnOnce() -> i64,
    ) -> Poll<Result<(), Failure>> {
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        if let Order::Theirs { held, least, .. } = &mut self.order {
            if !held.is_empty() {
                return Poll::Ready(Ok(()));
            }
            match pin!(self.stream.read_chunk(1 << 16, true)).poll(cx) {
                Poll::Ready(Ok(chunk)) => {
                    self.ended = chunk.is_none();
                    *held = chunk.map(|chunk| chunk.bytes).unwrap_or_default();
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(failed(error))),
                Poll::Pending => {
                    is_past_a_gap(least, unread());
                    return Poll::Pending;
                }
            }
        }
        match self.poll_ours(cx, &mut []) {
            Poll::Ready(result) => Poll::Ready(result.map(drop)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Tells the peer to stop sending (STOP_SENDING).
    pub(super) fn stop(&mut self, code: Code) {
        if !self.ended {
            // An error means that the stream has already ended.
            let _ = self.stream.stop(VarInt::from_u32(code.number().into()));
        }
    }

    /// Ready when the peer has reset the stream; ready without a code once everything was read.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<VarInt>, ResetError>> {
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        pin!(self.stream.received_reset()).poll(cx)
    }

    /// Takes everything from quinn and returns what is in order. With an empty buffer, it only tells whether
    /// there is anything.
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
            // The peer has ended its stream, and quinn guarantees that nothing before the end is missing.
            Poll::Ready(Ok(())) if *is_all => self.ended = assembly.is_whole(),
            Poll::Ready(Ok(())) | Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
        }
        Poll::Ready(Ok(0))
    }

    /// Takes data from quinn until it has no more, or the limit is reached. Bytes that are next in order go
    /// directly to `buffer` from `given` on.
    fn poll_take(&mut self, cx: &mut Context<'_>, buffer: &mut [u8], given: &mut usize) -> Poll<Result<(), Failure>> {
        let Order::Ours { assembly, is_all } = &mut self.order else { return Poll::Pending };
        // While the limit is reached, only the chunk that fills the first gap is accepted.
        let mut fits = false;
        loop {
            if let Some(failure) = &self.failure {
                return Poll::Ready(Err(failure.clone()));
            }
            if *is_all {
                return Poll::Ready(Ok(()));
            }
            let is_full = assembly.held() >= self.limit || assembly.ready_len() >= self.limit_ready;
            let is_full = is_full && !fits;
            if is_full && (assembly.is_ready() || *given > 0) {
                // The reader will come again and find this data.
                return Poll::Ready(Ok(()));
            }
            if is_full {
                // Only the next byte in order may be taken. Reading a single byte, quinn's first, shows
                // whether it is that one. The reset is polled so that the waker stays registered.
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

/// Whether the connection's unread bytes exceed the usual amount that other streams leave while this one has
/// nothing to read. The comparison is with the smallest value ever seen, and not with that at the last read:
/// repairs advance a stream by little at a time while far more waits behind the next gap.
fn is_past_a_gap(least: &mut Option<i64>, unread: i64) -> bool {
    let before = least.get_or_insert(unread);
    *before = unread.min(*before);
    unread - *before > PAST_A_GAP
}

fn failed(error: ReadError) -> Failure {
    match error {
        ReadError::Reset(code) => Failure::reset(code),
        ReadError::ConnectionLost(error) => Failure::Lost(error),
        ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => Failure::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_progress_between_gaps_is_detected() {
        // Whatever is read in between, each check finds 1000 more bytes unread.
        let mut least = None;
        let found = (0..1000).find(|look| is_past_a_gap(&mut least, look * 1000));
        assert_eq!(found, Some(PAST_A_GAP / 1000 + 1));
        // Without a gap, the unread count fluctuates by bytes that belong to no stream.
        let mut least = None;
        assert!((0..1000).all(|look| !is_past_a_gap(&mut least, 5_000_000 - look * 100 + look % 7 * 10_000)));
    }
}
