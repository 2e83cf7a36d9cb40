//! Pure state machines and codecs of Phoebus: no socket, no clock, no file.
//!
//! Time, randomness and bytes are arguments, so the same code runs in production and in virtual-time simulation.
//!
//! - [`agent`]: how a client-side agent is asked for and found.
//! - [`bypass`]: what clients remember of paths that turned out short.
//! - [`endpoint`]: a host and a port, and paths of them.
//! - [`first_hop`]: what carries the hop to the first gateway.
//! - [`gridftp`]: control and data channels of GridFTP.
//! - [`range`]: ranges of bytes, and sets of them.
//! - [`select`]: which destinations go through gateways.
//! - [`session`]: the handshake and the framed mode of sessions.
//! - [`settings`]: what a client is told by variables and files.
//! - [`text`]: files that people write, within bounds.
//! - [`udt`]: the UDT4 transport.
//! - [`units`]: durations, sizes, rates and probabilities as people write them.

pub mod agent;
pub mod bypass;
pub mod endpoint;
pub mod first_hop;
pub mod gridftp;
pub mod range;
pub mod select;
pub mod session;
pub mod settings;
pub mod text;
pub mod udt;
pub mod units;
