//! IP packets as a TUN device with offload delivers them: a virtio-net header, then one packet that may stand
//! for many segments on the wire.
//!
//! A host with bulk data passes up to 64 KiB to its interface as one *super-packet* and leaves segmentation
//! to the device (TSO for TCP, USO for UDP). An emulated wire must lose, queue and count these segments
//! without the cost of splitting those that stay together. So a [`Frame`] counts as its segments and can be
//! split between any two of them. Both parts are again super-packets, and the receiver of the segments cannot
//! distinguish them from the original.
//!
//! All input is untrusted: a packet that does not match its virtio-net header is treated as one opaque
//! segment.

mod checksum;
mod frame;
mod headers;
mod vnet;

pub use checksum::internet_checksum;
pub use frame::Frame;
pub use headers::{Headers, Transport};
pub use vnet::{GsoType, VnetHeader};

#[cfg(test)]
mod tests;
