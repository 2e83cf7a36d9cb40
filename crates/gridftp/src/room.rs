//! Waits for room in a connection's send buffer.

use phoebus_net::Stream;
use std::io;
use std::time::Duration;
use tokio::time::timeout;

/// Waits until something can be written, as long as the peer acknowledges data within each `stall_timeout`. Cancel safe.
///
/// Writability alone shows too little: the kernel reports it once a good part of the buffer is free, for which a slow
/// and steady reader may need minutes.
///
/// # Errors
/// `TimedOut`, or the connection's error.
pub(crate) async fn room(stream: &Stream, stall_timeout: Duration) -> io::Result<()> {
    // A connection that cannot report progress counts as stalled.
    let left = || stream.unacknowledged().unwrap_or(0);
    let mut least = left();
    loop {
        if let Ok(ready) = timeout(stall_timeout, stream.writable()).await {
            return ready;
        }
        let now = left();
        if now >= least {
            return Err(io::ErrorKind::TimedOut.into());
        }
        least = now;
    }
}
