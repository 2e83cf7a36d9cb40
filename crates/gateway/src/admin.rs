//! The administration socket: a Unix socket with one JSON request per line, and one line of JSON as the answer.
//!
//! ```text
//! {"command":"status"}                                          → {"name":"pg1", … }
//! {"command":"explain","session":"from=192.0.2.7 to=host:22"}   → {"decision":"allow", … }
//! ```

use crate::explain::explain_by;
use crate::shared::Shared;
use crate::slots::SlotCounter;
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
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};

/// Longest request in bytes: a command, and a session to explain.
const REQUEST_MAX: usize = 4096;

/// Longest wait for the first request of a connection. Programs send it at once.
const FIRST_LINE: Duration = Duration::from_secs(5);

/// Longest wait for the addresses of a name, so that the answer comes before the asker has given up.
const LOOKUP: Duration = Duration::from_secs(3);

#[derive(Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
enum Command {
    Status,
    /// What would become of a session, described as for [`explain`](crate::explain).
    Explain {
        session: String,
    },
}

/// Listens on a socket at `path`, for the gateway's own user and group. Replaces a socket that a dead gateway left
/// behind, but not one that is in use.
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

/// A connection without a request so far, as far as known.
struct Silent {
    task: AbortHandle,
    /// Set at the first request.
    asked: Arc<AtomicBool>,
    stream: Weak<UnixStream>,
}

impl Silent {
    /// Whether received bytes wait to be read.
    fn speaks(&self) -> bool {
        self.stream.upgrade().is_some_and(|stream| rustix::io::ioctl_fionread(&*stream).is_ok_and(|n| n > 0))
    }
}

/// Serves until dropped: `limits.admin_connections` connections at a time, each for at most the handshake time-out.
/// When all are in use, one more is accepted. The oldest connection without a request makes room for it, or else it
/// waits until one ends. Connections beyond that cost no descriptor.
pub(crate) async fn serve(shared: Arc<Shared>, listener: UnixListener) {
    let served: Arc<SlotCounter> = Arc::default();
    let mut tasks = JoinSet::new();
    let mut silent: VecDeque<Silent> = VecDeque::new();
    loop {
        while tasks.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let (slot, limit) = loop {
                    let limits = shared.setup().config.limits;
                    silent.retain(|one| !one.asked.load(Relaxed) && !one.task.is_finished());
                    // All clients are this user or its group, so they count as one source.
                    match served.take(Ipv4Addr::LOCALHOST.into(), limits.admin_connections.get(), u32::MAX) {
                        Ok(slot) => break (slot, limits.handshake_timeout.0),
                        Err(_) => {
                            let oldest = silent.iter().position(|one| !one.speaks());
                            let cut = oldest.and_then(|at| silent.remove(at)).map(|oldest| {
                                oldest.task.abort();
                                oldest.task.id()
                            });
                            // A connection that ended earlier has freed its slot already; the one just aborted has not.
                            while let Some(ended) = tasks.join_next_with_id().await {
                                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                                if cut.is_none_or(|cut| cut == id) {
                                    break;
                                }
                            }
                        }
                    }
                };
                let (shared, asked) = (shared.clone(), Arc::<AtomicBool>::default());
                let (has_asked, stream) = (asked.clone(), Arc::new(stream));
                let watched = Arc::downgrade(&stream);
                let task = tasks.spawn(async move {
                    let _slot = slot;
                    let _ = timeout(limit, answer(&shared, &stream, &has_asked)).await;
                });
                silent.push_back(Silent { task, asked, stream: watched });
            }
            Err(error) => {
                tracing::warn!("the administration socket: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Answers each line. Sets `asked` at the first one, which must arrive within `FIRST_LINE`.
async fn answer(shared: &Shared, stream: &UnixStream, asked: &AtomicBool) -> io::Result<()> {
    let (mut input, mut room, first) = (Vec::new(), [0; REQUEST_MAX], Instant::now() + FIRST_LINE);
    let mut left = REQUEST_MAX;
    loop {
        while let Some(end) = input.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = input.drain(..=end).collect();
            asked.store(true, Relaxed);
            let mut reply = match serde_json::from_slice(&line) {
                Ok(Command::Status) => serde_json::to_vec(&Status::of(shared))?,
                Ok(Command::Explain { session }) => {
                    let setup = shared.setup();
                    let limit = setup.config.limits.resolve_timeout.0.min(LOOKUP);
                    match explain_by(&setup.config, (&setup.names, limit), &session).await {
                        Ok(explanation) => serde_json::to_vec(&explanation)?,
                        Err(error) => complaint(&error)?,
                    }
                }
                Err(error) => complaint(&error.to_string())?,
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
            // The last line needs no newline.
            Ok(0) if !input.is_empty() => {
                input.push(b'\n');
                left = 0;
            }
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

/// The answer to a request that cannot be answered.
fn complaint(error: &str) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&serde_json::json!({ "error": error }))
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
