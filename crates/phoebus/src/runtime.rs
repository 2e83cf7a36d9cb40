//! The runtime of commands that write files.

use rustix::process::Signal;
use std::io;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

/// Stack of a thread, in bytes: as the main thread has it. The futures of transfers take more than the usual 2 MiB if they
/// are not optimized. Pages that are not touched cost nothing.
const STACK: usize = 8 << 20;

/// A runtime with a thread for each processor.
///
/// With it, a write beyond the limit of the process on the size of files (`ulimit -f`) is an error of that file alone.
/// Without a handler of SIGXFSZ, the write would end the process, and with it the transfers of all others.
///
/// # Errors
/// The system starts no threads.
pub(crate) fn multi_thread() -> io::Result<Runtime> {
    let runtime = Builder::new_multi_thread().thread_stack_size(STACK).enable_all().build()?;
    // The handler stays after the receiver is dropped. Programs that this one starts have the default again.
    runtime.block_on(async { signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop) })?;
    Ok(runtime)
}
