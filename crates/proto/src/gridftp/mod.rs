//! What GridFTP says, without anything that says it: RFC 959, 2228, 2389, 2428, 3659, GFD.20 and GFD.21, as the Grid
//! Community Toolkit (GCT) speaks them.
//!
//! - [`mod@line`]: the control channel's lines, out of whatever the network gives.
//! - [`command`] and [`site`]: what clients ask. [`options`] are what `OPTS RETR` changes.
//! - [`reply`]: what servers answer. Of what is in answers: [`address`]es of data connections, [`features`], [`facts`] of
//!   files, [`marker`]s of what has been transferred, [`time`]s. [`pin`]s are keys of data connections, which both say.
//! - [`inside`]: data connections that another byte stream carries.
//! - [`block`] and [`xblock`]: the data channel in extended block modes (E and X), block by block and, over all connections of a transfer,
//!   to its end.
//!
//! Everything that is read here was written by somebody else: it is bounded, and refused in words that can be sent back.
//! What is printed here reads back as the same, and no name can break a line in two.

pub mod address;
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
pub mod xblock;
