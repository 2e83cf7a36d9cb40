//! GridFTP (GFD.20, U1–U7) and the FTP underneath it (RFC 959), over the transports of `phoebus-net` and the stores of
//! `phoebus-files`; what is said on the wire is `phoebus_proto::gridftp`.
//!
//! ```text
//!   control   lines over a connection ── commands, answers, markers ──────────────┐
//!                                                                                 │ the same two ends
//!   data      a set of connections ── MODE S: one; MODE E: any number of blocks ──┘
//!
//!   a store's flow ──► data::Channel::send      data::Channel::receive ──► a flow ──► a store's draft
//! ```
//!
//! - [`data`]: the data channel, the same for client and server: [`data::Channel`] listens or connects, sends a flow
//!   and receives one. What was cut is an error, and never the end of a flow.
//! - [`control`]: the control channel's connection.
//! - [`server`]: `phoebus serve`. The process around it, with its signals, is `crates/phoebus/src/serve`. A new command
//!   needs its syntax in `phoebus_proto::gridftp::command`, a line in `server::session::commands`, an arm in
//!   `server::session`, and, if it needs a file or a socket, a task that `server::work` or `server::transfer` carries
//!   out.
//! - [`client`]: servers as stores, for `phoebus cp` and its like.

mod block_channel;
pub mod client;
pub mod control;
pub mod data;
mod room;
pub mod server;
mod tls;
