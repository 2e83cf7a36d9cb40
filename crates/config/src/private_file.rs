//! Files that are replaced whole, and closed to others.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;

/// Writes a file whole or not at all. A file that is there keeps its permissions and owner; a new one has `mode`.
///
/// # Errors
/// The system's.
pub(crate) fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let before = fs::metadata(path).ok();
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(bytes)?;
        if let Some(before) = &before {
            chown(&draft, Some(before.uid()), Some(before.gid()))?;
        }
        let mode = before.as_ref().map_or(mode, |before| before.permissions().mode() & 0o777);
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&draft, path)
    })();
    written.inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}
