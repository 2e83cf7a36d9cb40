//! Checksums: of whole objects in one pass, and of blocks in any order, combined at the end.
//!
//! - [`Algorithm`]: names as in `CKSM` (GFD.20 leaves them to the server; these are GCT's, and CRC32C).
//! - [`Sum`]: a value, for printing and comparison.
//! - [`Hasher`]: hashes an object from its first byte to its last.
//! - [`Tally`]: combines checksums of blocks that were computed when they were read or received, without another pass.

mod tally;

pub use tally::{Combining, Overlap, Tally};

use phoebus_proto::hex::{hex, unhex};
use std::fmt;
use std::str::FromStr;

/// A checksum algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// CRC-32C (Castagnoli, RFC 3720), which processors compute in hardware.
    Crc32c,
    /// Adler-32 (RFC 1950), which GridFTP servers have in common.
    Adler32,
    /// MD5 (RFC 1321): against accidents, not attackers.
    Md5,
    /// SHA-1: against accidents, not attackers.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    /// All, the cheapest first.
    pub const ALL: [Self; 6] = [Self::Crc32c, Self::Adler32, Self::Md5, Self::Sha1, Self::Sha256, Self::Sha512];

    /// Its name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "CRC32C",
            Self::Adler32 => "ADLER32",
            Self::Md5 => "MD5",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
            Self::Sha512 => "SHA512",
        }
    }

    /// Length of its values in bytes.
    pub fn width(self) -> usize {
        match self {
            Self::Crc32c | Self::Adler32 => 4,
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// The same as a combinable algorithm, if it is one.
    pub fn combining(self) -> Option<Combining> {
        match self {
            Self::Crc32c => Some(Combining::Crc32c),
            Self::Adler32 => Some(Combining::Adler32),
            _ => None,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An invalid checksum or algorithm name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SumError {
    /// An unknown algorithm.
    #[error("\"{0}\" is not a checksum that is known here: CRC32C, ADLER32, MD5, SHA1, SHA256 or SHA512")]
    Algorithm(String),
    /// A value with other than hexadecimal digits, or of the wrong length.
    #[error("\"{text}\" is not a value of {algorithm}: {digits} hexadecimal digits")]
    Value {
        /// The text.
        text: String,
        /// The algorithm.
        algorithm: Algorithm,
        /// The required number of digits.
        digits: usize,
    },
}

/// Case does not matter, and common hyphens are accepted: `adler32`, `SHA-256`.
impl FromStr for Algorithm {
    type Err = SumError;

    fn from_str(text: &str) -> Result<Self, SumError> {
        let bare = text.replace('-', "");
        let found = Self::ALL.into_iter().find(|a| a.name().eq_ignore_ascii_case(&bare));
        found.ok_or_else(|| SumError::Algorithm(text.chars().take(32).collect()))
    }
}

/// A checksum: algorithm and value.
#[derive(Clone, PartialEq, Eq)]
pub struct Sum {
    algorithm: Algorithm,
    value: Vec<u8>,
}

impl Sum {
    /// The value of a combinable algorithm.
    pub fn combined(how: Combining, value: u32) -> Self {
        Self { algorithm: how.algorithm(), value: value.to_be_bytes().to_vec() }
    }

    /// Parses hexadecimal digits. 32-bit values may lack leading zeros, which some servers omit.
    ///
    /// # Errors
    /// [`SumError::Value`].
    pub fn parse(algorithm: Algorithm, text: &str) -> Result<Self, SumError> {
        let digits = algorithm.width() * 2;
        let error = || SumError::Value { text: text.chars().take(140).collect(), algorithm, digits };
        let short = algorithm.width() == 4 && (1..=digits).contains(&text.len());
        if !(text.len() == digits || short) || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(error());
        }
        let text = format!("{text:0>digits$}");
        Ok(Self { algorithm, value: unhex(&text).ok_or_else(error)? })
    }

    /// The value as a number, if its algorithm is combinable.
    pub fn combined_value(&self) -> Option<u32> {
        self.algorithm.combining()?;
        Some(u32::from_be_bytes(self.value[..].try_into().ok()?))
    }

    /// Its algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// Lower-case hexadecimal digits, as from `md5sum`.
impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.value))
    }
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{self}", self.algorithm)
    }
}

/// Zeros that are hashed at a time.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Hashes from the first byte to the last.
pub struct Hasher(State);

enum State {
    Combining(Combining, u32),
    Md5(Box<md5::Md5>),
    Ring(Algorithm, Box<ring::digest::Context>),
}

impl Hasher {
    /// A hasher of no bytes.
    pub fn new(algorithm: Algorithm) -> Self {
        let ring = |which| State::Ring(algorithm, Box::new(ring::digest::Context::new(which)));
        Self(match algorithm {
            Algorithm::Crc32c => State::Combining(Combining::Crc32c, Combining::Crc32c.of(&[])),
            Algorithm::Adler32 => State::Combining(Combining::Adler32, Combining::Adler32.of(&[])),
            Algorithm::Md5 => State::Md5(Box::default()),
            Algorithm::Sha1 => ring(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY),
            Algorithm::Sha256 => ring(&ring::digest::SHA256),
            Algorithm::Sha512 => ring(&ring::digest::SHA512),
        })
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Combining(how, value) => *value = how.extend(*value, bytes),
            State::Md5(md5) => md5::Digest::update(&mut **md5, bytes),
            State::Ring(_, context) => context.update(bytes),
        }
    }

    /// Adds `len` zeros: at once for combinable algorithms, otherwise by hashing them.
    pub fn update_zeros(&mut self, len: u64) {
        if let State::Combining(how, value) = &mut self.0 {
            *value = how.join(*value, how.of_zeros(len), len);
            return;
        }
        let mut left = len;
        while left > 0 {
            let some = left.min(ZEROS.len() as u64);
            // At most their length.
            self.update(&ZEROS[..some as usize]);
            left -= some;
        }
    }

    /// Whether zeros cost as much as other bytes.
    pub(crate) fn computes_zeros(&self) -> bool {
        !matches!(self.0, State::Combining(..))
    }

    /// The checksum of all bytes.
    pub fn finish(self) -> Sum {
        match self.0 {
            State::Combining(how, value) => Sum::combined(how, value),
            State::Md5(md5) => Sum { algorithm: Algorithm::Md5, value: md5::Digest::finalize(*md5).to_vec() },
            State::Ring(algorithm, context) => Sum { algorithm, value: context.finish().as_ref().to_vec() },
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_that_everybody_computes() {
        // Of `printf 'The quick brown fox jumps over the lazy dog'`, by zlib, coreutils and RFC 3720's polynomial.
        for (algorithm, value) in [
            ("crc32c", "22620404"),
            ("Adler-32", "5bdc0fda"),
            ("MD5", "9e107d9d372bb6826bd81d3542a419d6"),
            ("sha1", "2fd4e1c67a2d28fced849ee1bb76e7391b93eb12"),
            ("SHA-256", "d7a8fbb307d7809469ca9abcb0082e4f8d5651e46d3cdb762d02d0bf37c9e592"),
            (
                "SHA512",
                "07e547d9586f6a73f73fbac0435ed76951218fb7d0c8d788a309d785436bbb64\
                 2e93a252a954f23912547d1e8a3b5ed6e1bfd7097821233fa0538f3db854fee6",
            ),
        ] {
            let algorithm: Algorithm = algorithm.parse().unwrap();
            let mut hasher = Hasher::new(algorithm);
            hasher.update(b"The quick brown ");
            hasher.update(b"");
            hasher.update(b"fox jumps over the lazy dog");
            let sum = hasher.finish();
            assert_eq!(sum.to_string(), value, "{algorithm}");
            assert_eq!(Sum::parse(algorithm, &value.to_uppercase()), Ok(sum));
        }
    }

    #[test]
    fn zeros_count_as_if_they_had_been_there() {
        for algorithm in Algorithm::ALL {
            let (mut told, mut given) = (Hasher::new(algorithm), Hasher::new(algorithm));
            for hasher in [&mut told, &mut given] {
                hasher.update(b"before");
            }
            told.update_zeros(100_000);
            given.update(&[0; 100_000]);
            for hasher in [&mut told, &mut given] {
                hasher.update(b"after");
            }
            assert_eq!(told.finish(), given.finish(), "{algorithm}");
        }
    }

    #[test]
    fn says_what_is_no_checksum() {
        assert_eq!(Sum::parse(Algorithm::Adler32, "1").unwrap().to_string(), "00000001");
        for text in ["", "123456789", "xyz", "+1", "é"] {
            let error = Sum::parse(Algorithm::Adler32, text).unwrap_err().to_string();
            assert!(error.ends_with("8 hexadecimal digits"), "{error}");
        }
        assert!(Sum::parse(Algorithm::Md5, "00").is_err());
        assert!("CRC32".parse::<Algorithm>().is_err(), "another polynomial than CRC32C");
    }
}
