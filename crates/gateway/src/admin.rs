//! The administration socket: a Unix socket on which a request is a line of JSON, and so is the answer.
//!
//! ```text
//! {"command":"status"}      → {"name":"pg1", … }
//! ```

use crate::quota::Quota;
use crate::shared::Shared;
use crate::status::Status;
use serde::Deserialize;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Longest request; a command is a word.
const REQUEST_MAX: u64 = 4096;

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

/// Answers until dropped: so many at a time (`limits.admin_connections`), each for as long as a handshake may take. Others wait until
/// they are accepted, and cost no descriptor before.
pub(crate) async fn serve(shared: Arc<Shared>, listener: UnixListener) {
    let served: Arc<Quota> = Arc::default();
    let left = Arc::new(Notify::new());
    loop {
        let limits = shared.setup().config.limits;
        // All who can connect are this user or its group: one source.
        let Ok(slot) = served.take(Ipv4Addr::LOCALHOST.into(), limits.admin_connections.get(), u32::MAX) else {
            left.notified().await;
            continue;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (shared, left) = (shared.clone(), left.clone());
                tokio::spawn(async move {
                    let _ = timeout(limits.handshake_timeout.0, answer(&shared, stream)).await;
                    drop(slot);
                    left.notify_one();
                });
            }
            Err(error) => {
                tracing::warn!("the administration socket: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn answer(shared: &Shared, stream: UnixStream) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader.take(REQUEST_MAX)).lines();
    while let Some(line) = lines.next_line().await? {
        let mut reply = match serde_json::from_str(&line) {
            Ok(Command::Status) => serde_json::to_vec(&Status::of(shared))?,
            Err(error) => serde_json::to_vec(&serde_json::json!({ "error": error.to_string() }))?,
        };
        reply.push(b'\n');
        writer.write_all(&reply).await?;
    }
    Ok(())
}
