//! Copies both directions, each on its own thread, because standard streams block.

use crate::Failure;
use crate::options::Options;
use phoebus_net::{Stream, reason};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Bytes per read or write.
const PIECE: usize = 256 << 10;
/// How long a receiver that has everything waits for the peer to shut down, which means that the peer knows.
const PARTING: Duration = Duration::from_secs(1);

/// Moves the directions that the options select.
pub(crate) async fn run(stream: &Arc<Stream>, options: &Options) -> Result<(), Failure> {
    let length = options.length.map(|length| length.0);
    let sends = !options.receive;
    let sending = sends.then(|| {
        let stream = Arc::downgrade(stream);
        on_thread(move |runtime| send(&stream, &runtime))
    });
    let receiving = (!options.send).then(|| {
        let stream = stream.clone();
        on_thread(move |runtime| receive(&stream, &runtime, length))
    });
    let sent = async {
        match sending {
            Some(sending) => sending.await.unwrap_or_else(|_| Err(lost("send")))?,
            None => return Ok(()),
        }
        delivered(stream).await
    };
    let received = async {
        match receiving {
            Some(receiving) => receiving.await.unwrap_or_else(|_| Err(lost("receive"))),
            None => Ok(()),
        }
    };
    tokio::try_join!(sent, received)?;
    if length.is_some() {
        let _ = tokio::time::timeout(PARTING, stream.failed()).await;
    }
    Ok(())
}

fn on_thread(
    work: impl FnOnce(Handle) -> Result<(), Failure> + Send + 'static,
) -> oneshot::Receiver<Result<(), Failure>> {
    let (sender, receiver) = oneshot::channel();
    let runtime = Handle::current();
    std::thread::spawn(move || sender.send(work(runtime)));
    receiver
}

/// The error for a thread that ended without a result.
fn lost(what: &'static str) -> Failure {
    Failure::Local { what, why: "its thread died".to_owned() }
}

/// Sends standard input to the peer. Does not keep the stream alive while it waits for standard input.
fn send(stream: &Weak<Stream>, runtime: &Handle) -> Result<(), Failure> {
    let (mut input, mut buffer) = (file(io::stdin().as_fd(), "read standard input")?, vec![0; PIECE]);
    loop {
        let n = match input.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failure::Local { what: "read standard input", why: reason(&error) }),
        };
        let Some(stream) = stream.upgrade() else { return Ok(()) };
        let mut rest = &buffer[..n];
        while !rest.is_empty() {
            match stream.try_write(rest, false) {
                Ok(n) => rest = &rest[n..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // The next write returns the error.
                    let _ = runtime.block_on(stream.writable());
                }
                Err(error) => return Err(undelivered(&stream, rest.len(), &error)),
            }
        }
    }
}

/// Waits until the peer has acknowledged everything.
async fn delivered(stream: &Stream) -> Result<(), Failure> {
    stream.delivered(Duration::MAX).await.map_err(|error| undelivered(stream, 0, &error))
}

fn undelivered(stream: &Stream, rest: usize, error: &io::Error) -> Failure {
    let unsent = stream
        .stats()
        .map_or(0, |stats| u64::from(stats.unsent) + u64::from(stats.in_flight) * u64::from(stats.segment_size));
    Failure::Undelivered { unsent: unsent + rest as u64, why: reason(error) }
}

/// Copies the peer's stream to standard output.
fn receive(stream: &Stream, runtime: &Handle, length: Option<u64>) -> Result<(), Failure> {
    let mut output = file(io::stdout().as_fd(), "write standard output")?;
    let (mut buffer, mut received) = (vec![0; PIECE], 0u64);
    let wrong = |received, why: String| match length {
        None => Failure::Unknown { received },
        Some(expected) => Failure::Length { received, expected, why },
    };
    while length.is_none_or(|length| received < length) {
        match stream.try_read(&mut buffer) {
            Ok(n) => {
                received += n as u64;
                let fits = n - length.map_or(0, |length| received.saturating_sub(length)) as usize;
                output.write_all(&buffer[..fits]).map_err(|error| local(&error))?;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let _ = runtime.block_on(stream.readable());
            }
            Err(error) => {
                // A silent peer is an error of its own, never an end of stream.
                return Err(match wrong(received, reason(&error)) {
                    Failure::Unknown { .. } if error.kind() != ErrorKind::ConnectionReset => {
                        Failure::Local { what: "receive", why: reason(&error) }
                    }
                    failure => failure,
                });
            }
        }
    }
    match length {
        Some(length) if received > length => Err(wrong(received, "the peer sends more".to_owned())),
        _ => Ok(()),
    }
}

/// A standard stream without the standard library's buffer.
fn file(stream: BorrowedFd<'_>, what: &'static str) -> Result<File, Failure> {
    let owned = stream.try_clone_to_owned().map_err(|error| Failure::Local { what, why: reason(&error) })?;
    Ok(owned.into())
}

fn local(error: &io::Error) -> Failure {
    Failure::Local { what: "write standard output", why: reason(error) }
}
