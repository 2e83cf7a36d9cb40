//! The grid-mapfile, which maps subjects to local users.
//!
//! ```text
//! "/DC=org/DC=example/CN=Jane Doe" jane,ops
//! ```
//!
//! The first user applies unless the subject requests another one. In names, `\` quotes the next character
//! and `\xHH` stands for a byte, as in GCT.

use crate::name;
use std::collections::BTreeMap;

/// Largest grid-mapfile that is read, in bytes.
pub const MAX_FILE: usize = 64 * 1024 * 1024;
/// Longest line, in characters.
pub const MAX_LINE: usize = 8 * 1024;

/// A parsed grid-mapfile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GridMap {
    /// The users of each subject, which is in canonical form, in the file's order.
    subjects: BTreeMap<String, Vec<String>>,
}

/// The reason why a text is no grid-mapfile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{source_name}, line {line}: {problem}")]
pub struct GridMapError {
    /// The file's name.
    pub source_name: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The problem, and what was expected.
    pub problem: &'static str,
}

impl GridMap {
    /// Parses a file; `source` names it in errors.
    ///
    /// # Errors
    /// [`GridMapError`] at the first malformed line: skipping it could hide a mistyped user.
    pub fn parse(text: &str, source: &str) -> Result<Self, GridMapError> {
        let fail = |line, problem| GridMapError { source_name: source.to_owned(), line, problem };
        if text.len() > MAX_FILE {
            return Err(fail(1, "the file is too long"));
        }
        let mut subjects: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (subject, users) = entry(line).map_err(|problem| fail(at + 1, problem))?;
            subjects.entry(subject).or_default().extend(users);
        }
        Ok(Self { subjects })
    }

    /// The user for a subject that requests none.
    pub fn default_user(&self, subject: &str) -> Option<&str> {
        self.users(subject).next()
    }

    /// Whether the subject may act as that user.
    pub fn allows(&self, subject: &str, user: &str) -> bool {
        self.users(subject).any(|one| one == user)
    }

    /// All users of the subject, in the file's order.
    pub fn users(&self, subject: &str) -> impl Iterator<Item = &str> {
        self.subjects.get(&name::canonical(subject)).into_iter().flatten().map(String::as_str)
    }

    /// The users of subjects that request none.
    pub fn default_users(&self) -> impl Iterator<Item = &str> {
        self.subjects.values().filter_map(|users| users.first()).map(String::as_str)
    }

    /// The number of subjects.
    pub fn len(&self) -> usize {
        self.subjects.len()
    }

    /// Whether there are no subjects.
    pub fn is_empty(&self) -> bool {
        self.subjects.is_empty()
    }
}

fn entry(line: &str) -> Result<(String, Vec<String>), &'static str> {
    if line.len() > MAX_LINE {
        return Err("the line is too long");
    }
    let (subject, rest) = match line.strip_prefix('"') {
        Some(quoted) => {
            let end = closing(quoted).ok_or("the quotation mark before the subject is not closed")?;
            (&quoted[..end], &quoted[end + 1..])
        }
        None => line.split_once(char::is_whitespace).unwrap_or((line, "")),
    };
    let subject = unescape(subject)?;
    if !subject.starts_with('/') {
        return Err("a subject was expected, which begins with /");
    }
    let users: Vec<String> = rest
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|user| !user.is_empty())
        .map(str::to_owned)
        .collect();
    if users.is_empty() {
        return Err("a local user was expected after the subject");
    }
    Ok((name::canonical(&subject), users))
}

/// The position of the closing quotation mark.
fn closing(quoted: &str) -> Option<usize> {
    let mut escaped = false;
    quoted.char_indices().find_map(|(at, c)| {
        let closes = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        closes.then_some(at)
    })
}

/// Removes the escapes. Bytes beyond printable ASCII stay written as `\xHH`, the form in which certificate
/// subjects are printed.
fn unescape(text: &str) -> Result<String, &'static str> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        if let Some(hex) = after.strip_prefix(['x', 'X']) {
            let byte = hex.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            let byte = byte.ok_or("two hexadecimal digits were expected after \\x")?;
            match byte {
                b' '..=b'~' => plain.push(byte as char),
                _ => plain.push_str(&format!("\\x{byte:02X}")),
            }
            rest = &hex[2..];
        } else {
            let next = after.chars().next().ok_or("a character was expected after \\")?;
            plain.push(next);
            rest = &after[next.len_utf8()..];
        }
    }
    plain.push_str(rest);
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_maps_to_the_users_of_its_line() {
        let map = GridMap::parse(
            "# people\n\n\"/O=Grid/CN=Jane Doe\" jane,ops\n/O=Grid/CN=host1 daemon\n\
             \"/O=Grid/CN=Jane \\\"J\\\" Doe\"\tjj, x\n\"/O=Grid/CN=J\\xc3\\xa9r\\x6fme\" jerome\n",
            "grid-mapfile",
        )
        .unwrap();
        assert_eq!(map.len(), 4);
        assert_eq!(map.default_user("/O=Grid/CN=Jane Doe"), Some("jane"));
        assert!(map.allows("/o=grid/cn=jane doe", "ops"));
        assert!(!map.allows("/O=Grid/CN=Jane Doe", "root"));
        assert_eq!(map.default_user("/O=Grid/CN=host1"), Some("daemon"));
        assert_eq!(map.users("/O=Grid/CN=Jane \"J\" Doe").collect::<Vec<_>>(), ["jj", "x"]);
        assert_eq!(map.default_user("/O=Grid/CN=J\\xC3\\xA9rome"), Some("jerome"));
        assert_eq!(map.default_user("/O=Grid/CN=nobody"), None);
    }

    #[test]
    fn error_names_the_malformed_line() {
        for (text, line, says) in [
            ("\n\"/O=Grid/CN=x jane", 2, "not closed"),
            ("/O=Grid/CN=x", 1, "local user"),
            ("\"/O=Grid/CN=x\"", 1, "local user"),
            ("jane /O=Grid", 1, "subject"),
            ("\"/O=Grid/CN=\\xg0\" jane", 1, "hexadecimal"),
            ("\"/O=Grid/CN=\\x4\" jane", 1, "hexadecimal"),
        ] {
            let error = GridMap::parse(text, "file").unwrap_err();
            assert_eq!((error.line, error.to_string().contains(says)), (line, true), "{text:?}: {error}");
        }
    }
}
