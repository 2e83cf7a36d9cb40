//! SCRAM's messages: attributes with commas between (RFC 5802 §7), read in place and written without allocation.

use crate::session::auth::AuthError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt::{self, Write};

/// Bytes of a message that is being written.
pub(super) struct Text<'r> {
    room: &'r mut [u8],
    len: usize,
}

impl<'r> Text<'r> {
    pub(super) fn new(room: &'r mut [u8]) -> Self {
        Self { room, len: 0 }
    }

    /// Adds `bytes` in base64.
    pub(super) fn base64(&mut self, bytes: &[u8]) -> Result<(), AuthError> {
        let written = STANDARD.encode_slice(bytes, &mut self.room[self.len..]).map_err(|_| AuthError::NoRoom)?;
        self.len += written;
        Ok(())
    }

    /// Adds a name, in which commas and equals signs are escaped.
    pub(super) fn name(&mut self, name: &str) -> Result<(), AuthError> {
        for letter in name.chars() {
            match letter {
                ',' => self.write_str("=2C"),
                '=' => self.write_str("=3D"),
                letter => self.write_char(letter),
            }
            .map_err(|_| AuthError::NoRoom)?;
        }
        Ok(())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }

    pub(super) fn into_bytes(self) -> &'r [u8] {
        &self.room[..self.len]
    }
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        self.room.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// The next attribute of a message, which must have this letter. Removes it and its comma from `rest`.
pub(super) fn attribute<'a>(rest: &mut &'a str, letter: &str) -> Result<&'a str, AuthError> {
    let (first, after) = rest.split_once(',').unwrap_or((rest, ""));
    *rest = after;
    first.strip_prefix(letter).and_then(|value| value.strip_prefix('=')).ok_or(AuthError::Malformed)
}

/// A name as [`Text::name`] writes it.
pub(super) fn name(escaped: &str) -> Result<String, AuthError> {
    let mut name = String::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((before, after)) = rest.split_once('=') {
        name.push_str(before);
        let (letter, left) = match after.as_bytes() {
            [b'2', b'C', ..] => (',', &after[2..]),
            [b'3', b'D', ..] => ('=', &after[2..]),
            _ => return Err(AuthError::Malformed),
        };
        name.push(letter);
        rest = left;
    }
    name.push_str(rest);
    Ok(name)
}

/// Bytes in base64.
pub(super) fn bytes<'o>(text: &str, out: &'o mut [u8]) -> Result<&'o [u8], AuthError> {
    let len = STANDARD.decode_slice(text, out).map_err(|_| AuthError::Malformed)?;
    Ok(&out[..len])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_and_read_again() {
        let mut room = [0; 64];
        let mut text = Text::new(&mut room);
        text.name("a,b=c,=ä").unwrap();
        let escaped = std::str::from_utf8(text.as_bytes()).unwrap();
        assert_eq!(escaped, "a=2Cb=3Dc=2C=3Dä");
        assert_eq!(name(escaped).unwrap(), "a,b=c,=ä");
        for wrong in ["=", "a=2c", "a=4A", "=2"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Text::new(&mut [0; 4]).name("a,b"), Err(AuthError::NoRoom));
    }
}
