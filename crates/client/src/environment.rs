//! Settings from where they live: the process's environment, the user's file, the administrator's file (P30).

use phoebus_proto::settings::{self, ADMINISTRATOR_FILE, FILE_MAX, File, Settings, user_file};
use phoebus_proto::text::{self, TextError};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The settings of this process. `lookup` is usually [`variable`].
///
/// # Errors
/// One sentence that names the variable, or the file and line, and what was expected.
pub fn load(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, String> {
    let user = user_file(&lookup);
    let mut texts = Vec::new();
    for path in [Some(Path::new(ADMINISTRATOR_FILE)), user.as_deref()].into_iter().flatten() {
        if let Some(text) = read(path)? {
            texts.push((path.display().to_string(), text));
        }
    }
    let files: Vec<_> = texts.iter().map(|(name, text)| File { name, text }).collect();
    Settings::load(lookup, &files).map_err(|error| error.to_string())
}

/// A variable of this process's environment. One that is not UTF-8 reads as text that no setting takes.
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn read(path: &Path) -> Result<Option<String>, String> {
    let open = || match std::fs::metadata(path)?.file_type() {
        // It would be waited for.
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
    fn names_the_file_that_is_wrong() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("phoebus/client.conf");
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        let lookup = |name: &str| (name == "XDG_CONFIG_HOME").then(|| home.path().to_str().unwrap().to_owned());
        assert!(load(lookup).unwrap().path.is_empty());
        std::fs::write(&file, "PHOEBUS_GW=pg1\n").unwrap();
        assert_eq!(load(lookup).unwrap().path, ["pg1/5006".parse().unwrap()]);
        std::fs::write(&file, "\nPHOEBUS_GATEWAY=pg1\n").unwrap();
        let expected = format!("{}, line 2: \"PHOEBUS_GATEWAY\" is no setting", file.display());
        let error = load(lookup).unwrap_err();
        assert!(error.starts_with(&expected), "{error}");
        std::fs::write(&file, vec![b'#'; FILE_MAX as usize + 1]).unwrap();
        assert!(load(lookup).unwrap_err().contains(": is longer than 1048576 bytes; expected"));
        std::fs::write(&file, [0xff]).unwrap();
        assert!(load(lookup).unwrap_err().contains(", line 1: is no text in UTF-8; expected a few lines"));
    }
}
