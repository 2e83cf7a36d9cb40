//! Experiments as commands of `phoebus`: testbeds on one machine, benchmarks against peers, and the demonstration.
//!
//! - [`testbed`]: hosts and an emulated WAN (`S30`).
//! - [`mod@bench`]: Phoebus and its peers, measured in the same run.
//! - [`demo`]: the benefit of sessions, shown with unmodified programs.

pub mod bench;
pub mod demo;
pub mod testbed;

use phoebus_terminal::{exit, program, standard};
