//! The limit of open descriptors, which a relay of thousands of sessions reaches first.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns the soft limit of open descriptors without raising it: for a library in a program that may use
/// `select`.
pub fn descriptors() -> u64 {
    // `RLIM_INFINITY` reads as `None`; the kernel's own maximum (`fs.nr_open`) is finite.
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

/// Raises the soft limit of open descriptors to the hard limit and returns the limit in force. The soft limit
/// is low only for programs that use `select`, which this one does not.
pub fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let in_force = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    // `RLIM_INFINITY` reads as `None`; the kernel's own maximum (`fs.nr_open`) is finite.
    in_force.unwrap_or(1 << 20)
}
