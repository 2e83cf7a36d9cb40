//! Warns if others can read a configuration with password hashes, from which passwords could be guessed.

use phoebus_gridftp::server::Config;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The permissions by which the group and others read a file.
const READABLE: u32 = 0o044;

/// The warning, if `config`, which was read from `file`, has passwords that others than the file's owner can read.
pub(super) fn warning(config: &Config, file: &Path) -> Option<String> {
    let has_passwords = config.users.iter().any(|user| user.password.is_some());
    let meta = fs::metadata(file).ok().filter(|meta| has_passwords && meta.is_file())?;
    let mode = meta.permissions().mode() & 0o777;
    let (file, who) = (file.display(), if mode & 0o004 == 0 { "its group" } else { "everybody on this host" });
    (mode & READABLE != 0).then(|| {
        format!("{file}: {who} can read the password hashes in it (mode {mode:04o}); only its owner was expected: chmod 600 {file}")
    })
}
