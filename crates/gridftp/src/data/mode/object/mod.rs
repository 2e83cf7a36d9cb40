//! The driver `object` (`fobs`) of data channels: files as objects over UDP (L1–L10, S17; `docs/protocol/object.md`).
//!
//! A data connection is the control stream of a transfer. Datagrams go to the same port number, and carry the bytes. A block
//! of the flow is a chunk: its bytes stay in memory until all of its packets have arrived. At the receiver, complete chunks
//! become blocks again, in the order in which they complete.

mod control;
mod receive;
mod send;

use super::super::blocks::Sender;
use super::super::channel::Inner;
use super::super::error::Error;
use super::super::intake::Intake;
use super::{Sending, TransferMode, Transferred};
use std::sync::Arc;
use std::time::Duration;

/// The receiver acknowledges a packet after this time at the latest.
const ACK_INTERVAL: Duration = Duration::from_millis(10);

/// Transfers as objects, in place of extended block mode.
#[derive(Debug)]
pub(super) struct ObjectMode;

impl TransferMode for ObjectMode {
    fn send(&self, inner: Arc<Inner>, sending: Sending) -> Transferred<u64> {
        Box::pin(async move { send::send(&inner, sending).await })
    }

    fn receive(&self, inner: Arc<Inner>, intake: Intake, blocks: Sender) -> Transferred<()> {
        Box::pin(async move { receive::receive(&inner, intake, &blocks).await })
    }
}

/// Stream mode, which objects cannot carry.
#[derive(Debug)]
pub(super) struct NoStreams;

const NO_STREAMS: &str = "driver object carries files in extended block mode (MODE E) only";

impl TransferMode for NoStreams {
    fn send(&self, _: Arc<Inner>, _: Sending) -> Transferred<u64> {
        Box::pin(async { Err(Error::Direction(NO_STREAMS)) })
    }

    fn receive(&self, _: Arc<Inner>, _: Intake, _: Sender) -> Transferred<()> {
        Box::pin(async { Err(Error::Direction(NO_STREAMS)) })
    }
}
