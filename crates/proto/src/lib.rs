//! Pure state machines and codecs of Phoebus: no socket, no clock, no file.
//!
//! Time, randomness and bytes are arguments, so the same code runs in production and in virtual-time simulation.
//!
//! - [`control`]: congestion control of transports over UDP.
//! - [`endpoint`]: host and port, and lists of gateways.
//! - [`entry`]: SOCKS5 and HTTP CONNECT, by which other programs come to a gateway.
//! - [`gridftp`]: control and data channels of GridFTP.
//! - [`hex`]: bytes as hexadecimal digits.
//! - [`object`]: object-based transfer over UDP.
//! - [`proxy_header`]: the PROXY protocol, which says for whom a connection is made.
//! - [`range`]: byte ranges and sets of byte ranges.
//! - [`session`]: the handshake and the framed mode of sessions.
//! - [`text`]: bounded reading of text files that people write.
//! - [`udt`]: the UDT4 transport.
//! - [`units`]: durations, sizes, rates and probabilities as people write them.

pub mod control;
pub mod endpoint;
pub mod entry;
pub mod gridftp;
pub mod hex;
pub mod object;
pub mod proxy_header;
pub mod range;
pub mod session;
pub mod text;
pub mod udt;
pub mod units;
