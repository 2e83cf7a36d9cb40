//! The control channel's connection, the same for client and server: lines and answers go over it, in clear or under
//! protection.

mod link;

pub use link::Link;
