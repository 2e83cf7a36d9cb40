//! Reads the settings from the process's environment, the user's file and the administrator's file (P30).

use crate::settings::{self, ADMINISTRATOR_FILE, FILE_MAX, File, Key, Settings, user_file};
use phoebus_proto::text::{self, TextError};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Unusable settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{sentence}")]
pub struct LoadError {
    /// The variable, or the file and line, and what was expected.
    pub sentence: String,
    /// Whether the settings tell, or may tell, that only certain destinations use gateways. This host's own addresses may be
    /// among them.
    pub may_say_only: bool,
}

/// The settings of this process. `lookup` is usually [`variable`].
///
/// # Errors
/// [`LoadError`]: one sentence that names the variable, or the file and line, and what was expected.
pub fn load(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, LoadError> {
    let user = user_file(&lookup);
    let mut texts = Vec::new();
    for path in [Some(Path::new(ADMINISTRATOR_FILE)), user.as_deref()].into_iter().flatten() {
        // A file that cannot be read may say anything.
        let text = read(path).map_err(|sentence| LoadError { sentence, may_say_only: true })?;
        texts.extend(text.map(|text| (path.display().to_string(), text)));
    }
    let files: Vec<_> = texts.iter().map(|(name, text)| File { name, text }).collect();
    Settings::load(&lookup, &files)
        .map_err(|error| LoadError { sentence: error.to_string(), may_say_only: may_say_only(&lookup, &files) })
}

/// Whether the environment sets `PHOEBUS_ONLY`, or a file has a line that begins with it, whatever the value.
fn may_say_only(lookup: impl Fn(&str) -> Option<String>, files: &[File]) -> bool {
    let only = Key::Only.name();
    let in_files = || files.iter().flat_map(|file| file.text.lines()).any(|line| line.trim_start().starts_with(only));
    lookup(only).is_some_and(|value| !value.trim().is_empty()) || in_files()
}

/// A variable of this process's environment. If it is not UTF-8, the result is a text that no setting accepts.
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn read(path: &Path) -> Result<Option<String>, String> {
    let open = || match std::fs::metadata(path)?.file_type() {
        // Opening a pipe blocks until somebody writes to it.
        kind if kind.is_fifo() => Err(io::Error::other("it is a pipe")),
        _ => std::fs::File::open(path),
    };
    let read = open().map_err(TextError::Read).and_then(|file| text::read(file, FILE_MAX));
    settings::contents(&path.display().to_string(), read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_faulty_file() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("phoebus/client.conf");
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        let lookup = |name: &str| (name == "XDG_CONFIG_HOME").then(|| home.path().to_str().unwrap().to_owned());
        assert!(load(lookup).unwrap().path.is_empty());
        std::fs::write(&file, "PHOEBUS_GW=pg1\n").unwrap();
        assert_eq!(load(lookup).unwrap().path, ["pg1/5006".parse().unwrap()]);
        std::fs::write(&file, "\nPHOEBUS_GATEWAY=pg1\n").unwrap();
        let expected = format!("{}, line 2: \"PHOEBUS_GATEWAY\" is no setting", file.display());
        let error = load(lookup).unwrap_err().to_string();
        assert!(error.starts_with(&expected), "{error}");
        std::fs::write(&file, vec![b'#'; FILE_MAX as usize + 1]).unwrap();
        assert!(load(lookup).unwrap_err().to_string().contains(": is longer than 1048576 bytes; expected"));
        std::fs::write(&file, [0xff]).unwrap();
        assert!(load(lookup).unwrap_err().to_string().contains(", line 1: is no text in UTF-8; expected a few lines"));
    }
}
