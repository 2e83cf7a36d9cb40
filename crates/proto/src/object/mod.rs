//! Object-based transfer (L2–L7, L10; S17): numbered packets over UDP that need no order, and a reliable stream of control
//! messages beside them. State machines without sockets, clocks, keys or files. `docs/protocol/object.md` is their
//! specification.
//!
//! - [`packet`]: headers of datagrams.
//! - [`Checking`], [`Answering`]: whether datagrams get through.
//! - [`parity`]: packets from which missing ones are computed.
//! - [`Sender`]: what to send and when, by acknowledgements, credit and a [controller](crate::control).
//! - [`Receiver`]: where packets belong, which chunks are complete, and when to acknowledge.
//! - [`Ack`]: acknowledgements, and their statements about the packets in flight.
//! - [`Message`]: the control stream.
//! - [`Shape`]: what both ends have agreed on.

mod ack;
mod bitmap;
mod check;
mod config;
mod message;
pub mod packet;
pub mod parity;
mod receiver;
mod replay;
mod rtt;
mod sender;
mod varint;

pub use ack::{ACK_LEN_MIN, Ack, Sections};
pub use check::{Answering, Checking};
pub use config::{Shape, ShapeError};
pub use message::{Inbox, MESSAGE_MAX, Message, MessageError, Seal, VERSION};
pub use receiver::{ANNOUNCED_AHEAD, AnnouncementError, Place, ReceiveCounters, Receiver, Unplaced};
pub use replay::ReplayWindow;
pub use sender::{
    AckError, Choice, Chunks, Circular, NewestFirst, OldestFirst, SendConfig, SendCounters, Sender, Transmit,
};
