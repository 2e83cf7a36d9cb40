//! Where a configuration comes from, for errors in its values.

use super::ConfigError;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file of a configuration, and the lines of its keys. Not their values: these may be passwords.
#[derive(Debug, Clone, Default)]
pub struct Origin(Option<Arc<File>>);

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// Lines, from 1, by keys such as `limits.batches`, and by headers such as `[gsi]`.
    lines: HashMap<String, usize>,
}

impl Origin {
    /// The file at `path`, which contains `text`.
    pub(super) fn new(path: &Path, text: &str) -> Self {
        let (mut lines, mut table) = (HashMap::new(), String::new());
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            let key = match line.strip_prefix('[') {
                Some(rest) => {
                    table = rest.split(']').next().unwrap_or_default().trim_start_matches('[').trim().to_owned();
                    format!("[{table}]")
                }
                None => match line.split_once('=') {
                    Some((key, _)) if table.is_empty() => key.trim().to_owned(),
                    Some((key, _)) => format!("{table}.{}", key.trim()),
                    None => continue,
                },
            };
            lines.entry(key).or_insert(number);
        }
        Self(Some(Arc::new(File { path: path.to_owned(), lines })))
    }

    /// The error with the file, and with the line if it begins with a key.
    pub(in super::super) fn locate(&self, error: ConfigError) -> ConfigError {
        match (error, &self.0) {
            (ConfigError::Value(text), Some(file)) => {
                let key = text.split_once(": ").map_or("", |(key, _)| key);
                let line = file.lines.get(key).map_or_else(String::new, |line| format!(":{line}"));
                ConfigError::Value(format!("{}{line}: {text}", file.path.display()))
            }
            (error, _) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_line_of_their_key() {
        let text = "name = \"x\"\n\n[limits]\nbatches = 0 # few\n[gsi]\nkey = \"k\"\ndata.block = \"1B\"\n";
        let origin = Origin::new(Path::new("s.toml"), text);
        let told = |text: &str| origin.locate(ConfigError::Value(text.to_owned())).to_string();
        assert_eq!(told("limits.batches: 1 to 64 were expected"), "s.toml:4: limits.batches: 1 to 64 were expected");
        assert_eq!(told("[gsi]: no key"), "s.toml:5: [gsi]: no key");
        assert_eq!(told("name: too long"), "s.toml:1: name: too long");
        assert_eq!(told("nobody may log in: at all"), "s.toml: nobody may log in: at all");
        let none = Origin::default().locate(ConfigError::Value("limits.batches: x".to_owned()));
        assert_eq!(none.to_string(), "limits.batches: x");
    }
}
