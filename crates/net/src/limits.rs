//! Descriptors: what a relay of thousands of sessions runs out of first.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The soft limit of open descriptors, left as it is: for a library in a program that may use `select`.
pub fn descriptors() -> u64 {
    // No limit at all is written as one that the kernel's own maximum (`fs.nr_open`) is below.
    getrlimit(Resource::Nofile).current.unwrap_or(1 << 20)
}

/// Raises the soft limit of open descriptors to the hard one and returns it. The soft limit is low for the sake of
/// programs that use `select`, which this one does not.
pub fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let in_force = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    // No limit at all is written as one that the kernel's own maximum (`fs.nr_open`) is below.
    in_force.unwrap_or(1 << 20)
}
