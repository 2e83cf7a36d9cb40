//! Bounded reading of text files that people write: settings, configurations, scenarios; and what of a text can be shown.

use std::fmt;
use std::io::{self, Read};

/// Whether a letter may change how a terminal shows others: control characters, and those that change the direction of writing.
pub fn is_unprintable(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Why a file could not be read as text within its size limit.
#[derive(Debug)]
pub enum TextError {
    /// Reading failed.
    Read(io::Error),
    /// The file is longer than this many bytes.
    TooLong(u64),
    /// The first byte that is not UTF-8 is at this line and column, both counted from 1.
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

/// Reads all of `source`, which must be at most `most` bytes of UTF-8.
///
/// # Errors
/// [`TextError`]. From a source that is too long, at most `most + 1` bytes are read.
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

/// Returns the line and column, counted from 1, of the position right after `before`.
pub fn place(before: &str) -> (usize, usize) {
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    (line, before.rsplit('\n').next().unwrap_or_default().chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_gives_line_and_column_of_the_first_invalid_byte() {
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
    fn read_errors_are_phrased_as_part_of_a_sentence() {
        let said = |error| TextError::Read(error).to_string();
        assert_eq!(said(io::Error::from_raw_os_error(2)), "cannot be read: no such file or directory");
        assert_eq!(said(io::Error::other("it is a pipe")), "cannot be read: it is a pipe");
        assert_eq!(said(io::Error::other("")), "cannot be read: ");
    }
}
