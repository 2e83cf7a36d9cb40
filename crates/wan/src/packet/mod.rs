//! IP packets as a TUN device with offloading hands them over: a virtio-net header, then one packet that may stand for
//! many of the wire's segments.
//!
//! A host that sends bulk data hands up to 64 KiB to its interface as one *super-packet* and leaves it to the device to cut
//! it into segments (TSO for TCP, USO for UDP). An emulated wire must lose, queue and count those segments, and yet never
//! pay for cutting what stays together. So a [`Frame`] counts as its segments and splits between any two of them, and both
//! parts are again super-packets that the segments' receiver could not tell from the originals.
//!
//! All input is untrusted: whatever does not parse as what its virtio-net header promises travels as one opaque segment.

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
