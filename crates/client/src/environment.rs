//! Settings from where they live: the process's environment, the user's file, the administrator's file (P30).

use phoebus_proto::settings::{ADMINISTRATOR_FILE, File, Settings, user_file};
use phoebus_proto::text::{self, TextError};
use std::io::ErrorKind;
use std::path::Path;

/// Largest settings file that is read: a thousand times what anyone writes by hand.
const FILE_MAX: u64 = 1 << 20;

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
    let read = std::fs::File::open(path).map_err(TextError::Read).and_then(|file| text::read(file, FILE_MAX));
    let why = match read {
        Ok(text) => return Ok(Some(text)),
        Err(TextError::Read(error)) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(TextError::Read(error)) => format!(": cannot be read: {}", phoebus_net::reason(&error)),
        Err(TextError::TooLong(_)) => ": is larger than 1 MiB; expected a few lines of NAME=value".to_owned(),
        Err(error @ TextError::NotUtf8 { line, .. }) => {
            format!(", line {line}: {error}; expected a few lines of NAME=value")
        }
    };
    Err(format!("{}{why}", path.display()))
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
        assert!(load(lookup).unwrap_err().contains("larger than 1 MiB"));
        std::fs::write(&file, [0xff]).unwrap();
        assert!(load(lookup).unwrap_err().contains(", line 1: is no text in UTF-8; expected a few lines"));
    }
}
