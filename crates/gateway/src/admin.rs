//! The administration socket: a Unix socket on which a request is a line of JSON, and so is the answer.
//!
//! ```text
//! {"command":"status"}      → {"name":"pg1", … }
//! ```

use crate::quota::{Quota, Slot};
use crate::shared::Shared;
use crate::status::Status;
use serde::Deserialize;
use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

/// Longest request; a command is a word.
const REQUEST_MAX: usize = 4096;

/// How long nothing may be asked on a connection: programs ask as soon as they have it.
const FIRST_LINE: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
enum Command {
    Status,
}

/// A socket at `path`, for the gateway's own user and group. One that a dead gateway left behind is replaced; one that is
/// in use is not.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// What the errors of [`listen`] mean for whoever chose the name.
pub(crate) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists => "something that is no socket has this name; expected a free one".to_owned(),
        io::ErrorKind::AddrInUse => "another process is listening on it".to_owned(),
        io::ErrorKind::NotFound => "there is no such directory".to_owned(),
        _ => phoebus_net::reason(error),
    }
}

/// A place among those that are served, and who is told when it is free.
struct Served {
    slot: Option<Slot>,
    left: Arc<Notify>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.slot = None;
        self.left.notify_one();
    }
}

/// A connection on which nothing was asked yet, as far as is known.
struct Silent {
    task: AbortHandle,
    /// Something was.
    asked: Arc<AtomicBool>,
    stream: Weak<UnixStream>,
}

impl Silent {
    /// Whether something has come that was not read yet.
    fn speaks(&self) -> bool {
        self.stream.upgrade().is_some_and(|stream| rustix::io::ioctl_fionread(&*stream).is_ok_and(|n| n > 0))
    }
}

/// Answers until dropped: so many at a time (`limits.admin_connections`), each for as long as a handshake may take. One more is
/// accepted, for which the oldest one makes room that has asked nothing, or which waits until one ends. Others cost no descriptor.
pub(crate) async fn serve(shared: Arc<Shared>, listener: UnixListener) {
    let served: Arc<Quota> = Arc::default();
    let left = Arc::new(Notify::new());
    let mut silent: VecDeque<Silent> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (slot, limit) = loop {
                    let limits = shared.setup().config.limits;
                    silent.retain(|one| !one.asked.load(Relaxed) && !one.task.is_finished());
                    // All who can connect are this user or its group: one source.
                    match served.take(Ipv4Addr::LOCALHOST.into(), limits.admin_connections.get(), u32::MAX) {
                        Ok(slot) => break (slot, limits.handshake_timeout.0),
                        Err(_) => {
                            let oldest = silent.iter().position(|one| !one.speaks());
                            if let Some(oldest) = oldest.and_then(|at| silent.remove(at)) {
                                oldest.task.abort();
                            }
                            left.notified().await;
                        }
                    }
                };
                let place = Served { slot: Some(slot), left: left.clone() };
                let (shared, asked) = (shared.clone(), Arc::<AtomicBool>::default());
                let (has_asked, stream) = (asked.clone(), Arc::new(stream));
                let watched = Arc::downgrade(&stream);
                let task = tokio::spawn(async move {
                    let _place = place;
                    let _ = timeout(limit, answer(&shared, &stream, &has_asked)).await;
                });
                silent.push_back(Silent { task: task.abort_handle(), asked, stream: watched });
            }
            Err(error) => {
                tracing::warn!("the administration socket: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Answers each line; `asked` is set at the first, which has to come soon.
async fn answer(shared: &Shared, stream: &UnixStream, asked: &AtomicBool) -> io::Result<()> {
    let (mut input, mut room, first) = (Vec::new(), [0; REQUEST_MAX], Instant::now() + FIRST_LINE);
    let mut left = REQUEST_MAX;
    loop {
        while let Some(end) = input.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = input.drain(..=end).collect();
            asked.store(true, Relaxed);
            let mut reply = match serde_json::from_slice(&line) {
                Ok(Command::Status) => serde_json::to_vec(&Status::of(shared))?,
                Err(error) => serde_json::to_vec(&serde_json::json!({ "error": error.to_string() }))?,
            };
            reply.push(b'\n');
            write_all(stream, &reply).await?;
        }
        if left == 0 {
            return Ok(());
        }
        if asked.load(Relaxed) {
            stream.readable().await?;
        } else {
            timeout_at(first, stream.readable()).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        }
        match stream.try_read(&mut room[..left]) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                input.extend_from_slice(&room[..n]);
                left -= n;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn write_all(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
