//! Experiments: testbeds on one machine, benchmarks beside the peers, and the demonstration, as commands of `phoebus`.
//!
//! - [`testbed`]: hosts and an emulated WAN (`S30`).
//! - [`mod@bench`]: Phoebus and its peers, measured in the same run.
//! - [`demo`]: what sessions are good for, shown with programs that know nothing of them.

pub mod bench;
pub mod demo;
pub mod testbed;

use phoebus_terminal::{exit, program, standard};
