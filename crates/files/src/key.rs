//! Names of objects in a store: paths that cannot lead upwards.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest path in bytes: PATH_MAX without its NUL.
pub const MAX_PATH: usize = 4095;

/// Longest component in bytes: NAME_MAX.
pub const MAX_NAME: usize = 255;

/// A text that is no valid path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{path}\" is no path here: {reason}")]
pub struct KeyError {
    path: String,
    reason: &'static str,
}

/// A path below the root of a store: components separated by slashes, none of them empty, `.` or `..`, without NUL. The
/// root has no components. Paths are bytes, because file systems do not guarantee UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key(Vec<u8>);

impl Key {
    /// The root.
    pub const ROOT: Self = Self(Vec::new());

    /// Parses a path. Extra slashes and `.` are dropped; `..` removes the component before it.
    ///
    /// # Errors
    /// It leads above the root, has a NUL, or is too long.
    pub fn parse(path: impl AsRef<[u8]>) -> Result<Self, KeyError> {
        let path = path.as_ref();
        let error = |reason| KeyError { path: shown(path, 200), reason };
        if path.contains(&0) {
            return Err(error("it contains a NUL byte"));
        }
        if path.len() > MAX_PATH {
            return Err(error("it is longer than 4095 bytes"));
        }
        let mut parts = Vec::new();
        for part in path.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".") {
            match part {
                b".." => drop(parts.pop().ok_or_else(|| error("it leads above the root"))?),
                _ if part.len() > MAX_NAME => return Err(error("it has a component of more than 255 bytes")),
                _ => parts.push(part),
            }
        }
        Ok(Self(parts.join(&b'/')))
    }

    /// The key of `name` in this directory.
    ///
    /// # Errors
    /// `name` is not one component, or the path is too long.
    pub fn join(&self, name: impl AsRef<[u8]>) -> Result<Self, KeyError> {
        let name = name.as_ref();
        let joined = [&self.0[..], name].join(if self.is_root() { &b""[..] } else { b"/" });
        let error = |reason| KeyError { path: shown(&joined, 200), reason };
        match name {
            b"" | b"." | b".." => Err(error("its last component is not a name")),
            _ if name.contains(&b'/') || name.contains(&0) => {
                Err(error("its last component has a slash or a NUL byte"))
            }
            _ if name.len() > MAX_NAME => Err(error("it has a component of more than 255 bytes")),
            _ if joined.len() > MAX_PATH => Err(error("it is longer than 4095 bytes")),
            _ => Ok(Self(joined)),
        }
    }

    /// The key at the path `below` under this one.
    ///
    /// # Errors
    /// The path is too long.
    pub fn beneath(&self, below: &Self) -> Result<Self, KeyError> {
        Self::parse([&self.0[..], &below.0[..]].join(&b'/'))
    }

    /// The path relative to `above`, if this key is below it.
    pub fn below(&self, above: &Self) -> Option<Self> {
        match self.0.strip_prefix(&above.0[..])? {
            rest if above.is_root() || rest.is_empty() => Some(Self(rest.to_vec())),
            [b'/', rest @ ..] => Some(Self(rest.to_vec())),
            _ => None,
        }
    }

    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Parent directory and last component. `None` for the root.
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.is_root() {
            return None;
        }
        Some(match self.0.iter().rposition(|&b| b == b'/') {
            Some(slash) => (Self(self.0[..slash].to_vec()), &self.0[slash + 1..]),
            None => (Self::ROOT, &self.0[..]),
        })
    }

    /// The parent directory. The root is its own.
    pub fn parent(&self) -> Self {
        self.split().map(|(parent, _)| parent).unwrap_or_default()
    }

    /// The last component; empty for the root.
    pub fn name(&self) -> &[u8] {
        self.split().map_or(&[], |(_, name)| name)
    }

    /// The components.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/').filter(|part| !part.is_empty())
    }

    /// The whole path without outer slashes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same for system calls, where the root is `.`.
    pub fn as_path(&self) -> &Path {
        if self.is_root() { Path::new(".") } else { Path::new(OsStr::from_bytes(&self.0)) }
    }
}

/// Invalid UTF-8 and terminal control characters appear as `\x1b`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.0, MAX_PATH))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

fn shown(bytes: &[u8], most: usize) -> String {
    let mut text = String::new();
    for chunk in bytes[..bytes.len().min(most)].utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if c.is_control() => text.extend(c.escape_unicode()),
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_lead_down_or_nowhere() {
        for (text, key) in [("a/b", "a/b"), ("/a//b/", "a/b"), ("./a/./b", "a/b"), ("a/../b", "b"), ("/", ""), ("", "")]
        {
            assert_eq!(Key::parse(text).unwrap().to_string(), key);
        }
        for text in ["..", "a/../../b", "/..", "a\0b", &"x".repeat(256), &"x/".repeat(2100)] {
            assert!(Key::parse(text).unwrap_err().to_string().contains(" is no path here: "), "{text}");
        }
        let key = Key::parse("a/b").unwrap();
        for name in ["", ".", "..", "c/d", "c\0", &"x".repeat(256)] {
            assert!(key.join(name).is_err(), "{name}");
        }
        assert_eq!(key.join("c").unwrap().split().unwrap(), (key.clone(), &b"c"[..]));
        assert_eq!(Key::parse("a/bc").unwrap().below(&key), None);
        assert_eq!(Key::parse("a/b/c").unwrap().below(&key), Some(Key::parse("c").unwrap()));
        assert_eq!(key.below(&Key::ROOT), Some(key.clone()));
        assert_eq!(Key::parse(b"\xff\x1b[2J\\").unwrap().to_string(), "\\xff\\u{1b}[2J\\\\");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_path_that_reads_back_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..50)) {
            if let Ok(key) = Key::parse(&bytes) {
                prop_assert_eq!(Key::parse(key.as_bytes()).unwrap(), key.clone());
                prop_assert!(key.parts().all(|p| p != b".." && p != b"." && !p.contains(&0)));
                prop_assert!(!key.as_path().is_absolute());
            }
        }
    }
}
