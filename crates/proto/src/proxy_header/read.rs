//! Reads a header from a connection, and no byte more.

use super::{HEADER_MAX, HeaderError, Origin, v1, v2};

/// The shortest header of either version: `PROXY UNKNOWN` and the end of its line.
const LEAST: usize = 15;

/// Reads a header whose bytes come in any parts.
#[derive(Debug)]
pub struct HeaderReader {
    bytes: Vec<u8>,
    filled: usize,
}

impl Default for HeaderReader {
    fn default() -> Self {
        Self { bytes: vec![0; LEAST], filled: 0 }
    }
}

impl HeaderReader {
    /// Room for bytes that certainly belong to the header.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Records that `n` bytes were read into [`HeaderReader::space`]. Returns what the header says, once it is complete.
    ///
    /// # Errors
    /// The bytes are no header, or none that counts. It is reported as soon as they cannot become one.
    pub fn received(&mut self, n: usize) -> Result<Option<Origin>, HeaderError> {
        self.filled = (self.filled + n).min(self.bytes.len());
        let header = &self.bytes[..self.filled];
        let missing = if begins_like(header, v2::SIGNATURE) {
            v2::missing(header)?
        } else if begins_like(header, v1::BEGINNING) {
            v1::missing(header)?
        } else {
            return Err(HeaderError::NoHeader);
        };
        match missing.max(LEAST.saturating_sub(self.filled)) {
            0 if header.starts_with(v1::BEGINNING) => v1::decode(header).map(Some),
            0 => v2::decode(header).map(Some),
            missing if self.filled + missing > HEADER_MAX => Err(HeaderError::TooLong),
            missing => {
                self.bytes.resize(self.filled + missing, 0);
                Ok(None)
            }
        }
    }
}

/// Whether one of the two is the beginning of the other.
fn begins_like(header: &[u8], beginning: &[u8]) -> bool {
    header.iter().zip(beginning).all(|(one, other)| one == other)
}
