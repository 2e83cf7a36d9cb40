//! Codecs of GridFTP, without I/O: RFC 959, 2228, 2389, 2428, 3659, GFD.20 and GFD.21, as the Grid Community Toolkit
//! (GCT) implements them.
//!
//! - [`mod@line`]: splits the control channel's bytes into lines.
//! - [`command`] and [`site`]: commands of clients. [`options`]: the options of `OPTS RETR`.
//! - [`reply`]: replies of servers. Parts of replies: [`address`]es of data connections, [`features`], [`facts`] of
//!   files, restart and performance [`marker`]s, [`time`]s. [`pin`]: the key of a data connection, which both ends
//!   exchange.
//! - [`inside`]: data connections inside another byte stream.
//! - [`block`]: the data channel in extended block mode, and the end of a transfer over several connections.
//! - [`batch`]: many short files on one data connection.
//!
//! All input is untrusted. Its size is bounded, and errors are phrased so that they can be sent back to the peer.
//! Everything printed here parses back to the same value, and no name can contain a line end.

pub mod address;
pub mod batch;
pub mod block;
pub mod command;
pub mod facts;
pub mod features;
pub mod inside;
pub mod line;
pub mod marker;
pub mod options;
mod parameter;
pub mod pin;
pub mod reply;
pub mod site;
pub mod time;
