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

/// What may have come past a gap before the order is taken over: fewer datagrams than quinn takes gaps.
const PAST_A_GAP: i64 = 512 << 10;
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
    /// The same of those that only wait for the reader.
    limit_ready: u64,
}

#[derive(Debug)]
enum Order {
    /// quinn's.
    Theirs {
        /// Bytes read.
        read: u64,
        /// What was taken to see whether anything is there.
        held: Bytes,
        /// The least that the connection had unread when there was nothing to read here.
        least: Option<i64>,
    },
    Ours {
        assembly: Assembly,
        /// quinn has given all there is.
        is_all: bool,
    },
}

impl Receive {
    /// Holds at most `limit` bytes, besides those in the window. That has to be some windows, since what lies past a gap is
    /// held until a repair gets through, and a packet may be lost again and again; a reader that has stopped gets the sixth
    /// part of it.
    pub(super) fn new(stream: RecvStream, limit: u64) -> Self {
        let order = Order::Theirs { read: 0, held: Bytes::new(), least: None };
        Self { stream, order, ended: false, failure: None, limit, limit_ready: limit / 6 }
    }

    /// Reads what comes next; 0 is the end. `unread` tells how many bytes of streams the connection has received that none of
    /// them has read, as far as that is known: only its changes count.
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

    /// Ready when something is there to be read, or the end.
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
            let is_full = assembly.held() >= self.limit || assembly.ready_len() >= self.limit_ready;
            let is_full = is_full && !fits;
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

/// Whether more is unread than a stream without gaps leaves when there is nothing to read. Not what has come since the last
/// byte was read: repairs let a stream go on by a little at a time, while far more waits behind the next gap.
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
    fn a_stream_that_goes_on_by_little_is_past_a_gap_all_the_same() {
        // Whatever is read between, 1000 bytes more are unread at each look.
        let mut least = None;
        let found = (0..1000).find(|look| is_past_a_gap(&mut least, look * 1000));
        assert_eq!(found, Some(PAST_A_GAP / 1000 + 1));
        // Without a gap, what counts as unread goes up and down by what is no stream.
        let mut least = None;
        assert!((0..1000).all(|look| !is_past_a_gap(&mut least, 5_000_000 - look * 100 + look % 7 * 10_000)));
    }
}
