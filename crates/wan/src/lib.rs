//! The emulated WAN: link models, a virtual-time simulator, live links between namespaces, testbeds.
//!
//! - [`model`]: a link as a state machine, with one packet in at a time, packets out, and the next wake-up.
//! - [`packet`]: packets with offload headers, which are counted and split as the segments that they stand for.
//! - [`sim`]: runs the model in virtual time, for tests of protocols.
//! - [`live`]: runs the model between two TUN devices, for real programs.
//! - [`testbed`]: builds hosts, links, names and routes from a scenario, and takes them down again.
//! - [`measure`]: measures the emulator against its own settings.
pub mod live;
pub mod measure;
pub mod model;
pub mod packet;
pub mod sim;
pub mod testbed;
