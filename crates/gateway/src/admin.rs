//! The administration socket: a Unix socket on which a request is a line of JSON, and so is the answer.
//!
//! ```text
//! {"command":"status"}      → {"name":"pg1", … }
//! ```

use crate::shared::Shared;
use crate::status::Status;
use serde::Deserialize;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

/// Longest request; a command is a word.
const REQUEST_MAX: u64 = 4096;
/// How long one request may take.
const PATIENCE: Duration = Duration::from_secs(10);

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
    if std::fs::symlink_metadata(path).is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type())) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Answers until dropped.
pub(crate) async fn serve(shared: Arc<Shared>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = shared.clone();
                tokio::spawn(async move { timeout(PATIENCE, answer(&shared, stream)).await });
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
