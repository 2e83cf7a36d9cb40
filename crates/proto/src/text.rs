//! Files that people write, read within bounds: settings, configurations, scenarios.

use std::fmt;
use std::io::{self, Read};

/// Why something is no text file of a sensible size.
#[derive(Debug)]
pub enum TextError {
    /// It cannot be read.
    Read(io::Error),
    /// It is longer than this many bytes.
    TooLong(u64),
    /// It stops being UTF-8 at this line and column, counted from 1.
    NotUtf8 {
        /// The line.
        line: usize,
        /// The column, in characters.
        column: usize,
    },
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => {
                let reason = error.to_string();
                let mut reason = reason.split(" (os error").next().unwrap_or_default().chars();
                let first: String = reason.next().into_iter().flat_map(char::to_lowercase).collect();
                write!(f, "cannot be read: {first}{}", reason.as_str())
            }
            Self::TooLong(most) => write!(f, "is longer than {most} bytes"),
            Self::NotUtf8 { .. } => f.write_str("is no text in UTF-8"),
        }
    }
}

impl std::error::Error for TextError {}

/// All of `source`, which must be at most `most` bytes of UTF-8.
///
/// # Errors
/// [`TextError`]; of what is too long, no more than `most` bytes were read.
pub fn read(source: impl Read, most: u64) -> Result<String, TextError> {
    let mut bytes = Vec::new();
    source.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(TextError::Read)?;
    if bytes.len() as u64 > most {
        return Err(TextError::TooLong(most));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = error.utf8_error().valid_up_to();
        let before = String::from_utf8_lossy(&error.as_bytes()[..before]);
        let (line, column) = place(&before);
        TextError::NotUtf8 { line, column }
    })
}

/// The line and column, from 1, of what follows `before`.
pub fn place(before: &str) -> (usize, usize) {
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line, before.rsplit('\n').next().unwrap_or_default().chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_text_ends() {
        let at = |bytes: &[u8]| match read(bytes, 20) {
            Err(TextError::NotUtf8 { line, column }) => (line, column),
            other => panic!("{other:?}"),
        };
        assert_eq!(at(b"\xff\xfe"), (1, 1));
        assert_eq!(at(b"a\n\n\xc3"), (3, 1));
        assert_eq!(at(b"a\n\xc3\xbcb\x80"), (2, 3));
        assert_eq!(read(&b"whole"[..], 5).unwrap(), "whole");
        assert!(matches!(read(&b"longer"[..], 5), Err(TextError::TooLong(5))));
        assert!(matches!(read(io::repeat(0), 5), Err(TextError::TooLong(5))));
    }

    #[test]
    fn says_why_a_file_cannot_be_read_as_part_of_a_sentence() {
        let said = |error| TextError::Read(error).to_string();
        assert_eq!(said(io::Error::from_raw_os_error(2)), "cannot be read: no such file or directory");
        assert_eq!(said(io::Error::other("it is a pipe")), "cannot be read: it is a pipe");
        assert_eq!(said(io::Error::other("")), "cannot be read: ");
    }
}
