//! Memory that was freed goes back to the system.

use crate::sys;

/// Gives freed memory back to the system. glibc keeps what threads have freed, a gigabyte after a thousand large buffers, for the
/// next allocations of the same threads. Takes some milliseconds for each hundred megabytes; does nothing with other C libraries.
pub fn release_freed() {
    sys::trim_heap();
}
