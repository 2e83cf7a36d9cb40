//! The emulated WAN: link models, a virtual-time simulator, live links between namespaces, testbeds.
//!
//! - [`model`] is a link as a state machine: a packet in at a time, packets out, the next wake-up.
//! - [`packet`] is what flows: packets with offloading headers, counted and cut as the segments that they stand for.
//! - [`sim`] drives the model in virtual time, for tests of protocols.
//! - [`live`] drives the model between two TUN devices, for real programs.
//! - [`testbed`] builds hosts, links, names and routes out of a scenario, and takes them down again.
//! - [`measure`] holds the emulator against its own settings.
pub mod live;
pub mod measure;
pub mod model;
pub mod packet;
pub mod sim;
pub mod testbed;
