//! The locations of settings files, and the result of reading one.

use phoebus_proto::text::TextError;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The administrator's file.
pub const ADMINISTRATOR_FILE: &str = "/etc/phoebus/client.conf";
/// Largest settings file: a thousand times what anyone writes by hand.
pub const FILE_MAX: u64 = 1 << 20;

/// The content of the file called `name`, given the result of reading it; `None` if there is no such file.
///
/// # Errors
/// One sentence that names the file, the line if known, and what was expected.
pub fn contents(name: &str, read: Result<String, TextError>) -> Result<Option<String>, String> {
    const EXPECTED: &str = "expected a few lines of NAME=value";
    match read {
        Ok(text) => Ok(Some(text)),
        Err(TextError::Read(error)) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error @ TextError::NotUtf8 { line, .. }) => Err(format!("{name}, line {line}: {error}; {EXPECTED}")),
        // sudo and su may leave HOME unchanged.
        Err(TextError::Read(error)) if error.kind() == ErrorKind::PermissionDenied && name != ADMINISTRATOR_FILE => {
            let error = TextError::Read(error);
            Err(format!("{name}: {error}; if this is another user's file, set HOME to your own home directory"))
        }
        Err(error) => Err(format!("{name}: {error}; {EXPECTED}")),
    }
}

/// The user's file, from the variables `XDG_CONFIG_HOME` and `HOME`.
pub fn user_file(lookup: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    in_home(&lookup, "XDG_CONFIG_HOME", ".config").map(|dir| dir.join("phoebus/client.conf"))
}

/// The file that remembers round trips, from the variables `XDG_CACHE_HOME` and `HOME`.
pub(super) fn cache_file(lookup: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    in_home(lookup, "XDG_CACHE_HOME", ".cache").map(|dir| dir.join("phoebus/bypass"))
}

/// A base directory by the XDG specification: relative ones count as unset.
fn in_home(lookup: &impl Fn(&str) -> Option<String>, variable: &str, default: &str) -> Option<PathBuf> {
    let absolute = |name| lookup(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(default)))
}
