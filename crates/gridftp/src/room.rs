//! Waiting for a connection to take more.

use phoebus_net::Stream;
use std::io;
use std::time::Duration;
use tokio::time::timeout;

/// Waits until there is room for something to be written, as long as the other end acknowledges more of what was within each `stall`. Cancel
/// safe.
///
/// Room alone says too little: a kernel tells of it when a good part of its buffer is free, and a reader that is slow and steady may
/// take minutes for as much.
///
/// # Errors
/// `TimedOut`, or how the connection failed.
pub(crate) async fn room(stream: &Stream, stall: Duration) -> io::Result<()> {
    // One that cannot tell is one that does not get on.
    let left = || stream.unacknowledged().unwrap_or(0);
    let mut least = left();
    loop {
        if let Ok(ready) = timeout(stall, stream.writable()).await {
            return ready;
        }
        let now = left();
        if now >= least {
            return Err(io::ErrorKind::TimedOut.into());
        }
        least = now;
    }
}
