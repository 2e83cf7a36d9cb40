//! Descriptors that this process got for the program. A process that stands beside the program lets go of them, so that
//! whoever is at the other end waits for the program alone.

use crate::sys;

/// Their numbers.
#[derive(Debug)]
pub struct Inherited(Vec<i32>);

impl Inherited {
    /// Those above the standard streams that a program gets: they are not close-on-exec, as this process's own are.
    pub fn now() -> Self {
        let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(numbers.filter(|number| *number > 2 && sys::is_passed_on(*number)).collect())
    }

    /// Closes them in this process.
    pub fn close(self) {
        self.0.into_iter().for_each(sys::close_passed_on);
    }
}
