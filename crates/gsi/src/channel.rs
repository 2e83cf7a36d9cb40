//! Data channels: `DCAU` (who is at the other end) and `PROT` (what protects the bytes), GFD.20 §3.
//!
//! The side that connects is the TLS client, whichever way the data goes. Under `PROT S` and `PROT P` the channel is plain
//! TLS. Under `PROT C` it is a security context without delegation, its flag included, after whose last record the
//! connection returns to raw bytes; the record and what follows it may come in one read, so that [`Channel`] says how many
//! bytes it used and leaves the rest to the caller.

use crate::context::records::record;
use crate::context::{Context, Delegation, Endpoint, Expect, HandshakeError, Step};

/// What a buffer has to hold for a channel to get on: a whole TLS record.
pub const MAX_RECORD: usize = 5 + (1 << 14) + 2048;

/// `DCAU`: who has to be at the other end of a data channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataAuth {
    /// `DCAU N`: nobody looks, and no TLS is spoken.
    None,
    /// `DCAU A`: the one whom the control channel belongs to. The default.
    Own,
    /// `DCAU S SUBJECT`: the holder of this subject.
    Subject(String),
}

/// `PROT`: what protects the bytes of a data channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// `PROT C`: nothing.
    Clear,
    /// `PROT S`: integrity. TLS gives secrecy with it.
    Safe,
    /// `PROT P`: secrecy too.
    Private,
}

/// Why the argument of `DCAU` or `PROT` is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// `DCAU`.
    #[error("DCAU {0:?} is not known; N, A or S with a subject are")]
    DataAuth(String),
    /// `PROT`.
    #[error("PROT {0:?} is not known; C, S and P are")]
    Protection(String),
    /// `PROT E`.
    #[error("PROT E is not to be had with GSSAPI; C, S and P are")]
    Confidential,
}

impl DataAuth {
    /// The argument of `DCAU`.
    ///
    /// # Errors
    /// [`ArgumentError::DataAuth`].
    pub fn parse(argument: &str) -> Result<Self, ArgumentError> {
        let argument = argument.trim();
        let (letter, subject) = argument.split_once(char::is_whitespace).unwrap_or((argument, ""));
        match (letter.to_ascii_uppercase().as_str(), subject.trim()) {
            ("N", "") => Ok(Self::None),
            ("A", "") => Ok(Self::Own),
            ("S", subject) if !subject.is_empty() => Ok(Self::Subject(subject.to_owned())),
            _ => Err(ArgumentError::DataAuth(argument.to_owned())),
        }
    }

    /// The command's argument.
    pub fn argument(&self) -> String {
        match self {
            Self::None => "N".to_owned(),
            Self::Own => "A".to_owned(),
            Self::Subject(subject) => format!("S {subject}"),
        }
    }

    /// Who is expected, where the control channel belongs to `own`; `None` where no TLS is spoken.
    pub fn expect(&self, own: &str) -> Option<Expect> {
        match self {
            Self::None => None,
            Self::Own => Some(Expect::Subject(own.to_owned())),
            Self::Subject(subject) => Some(Expect::Subject(subject.clone())),
        }
    }
}

impl Protection {
    /// The argument of `PROT`.
    ///
    /// # Errors
    /// [`ArgumentError`].
    pub fn parse(argument: &str) -> Result<Self, ArgumentError> {
        match argument.trim().to_ascii_uppercase().as_str() {
            "C" => Ok(Self::Clear),
            "S" => Ok(Self::Safe),
            "P" => Ok(Self::Private),
            "E" => Err(ArgumentError::Confidential),
            other => Err(ArgumentError::Protection(other.to_owned())),
        }
    }

    /// The command's argument.
    pub fn argument(self) -> char {
        match self {
            Self::Clear => 'C',
            Self::Safe => 'S',
            Self::Private => 'P',
        }
    }
}

/// A data channel that is authenticated, and protected unless `PROT C`.
#[derive(Debug)]
pub struct Channel {
    context: Context,
    protection: Protection,
}

/// How far a handshake got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that were used; those after them are still to be given.
    pub used: usize,
    /// Whether the channel is open: bytes not used are data, raw under `PROT C`.
    pub open: bool,
}

impl Channel {
    /// Begins as the side that connected; appends what is to be sent. The time is in seconds since 1970.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn connect(
        endpoint: &Endpoint,
        peer: Expect,
        protection: Protection,
        now: i64,
        out: &mut Vec<u8>,
    ) -> Result<Self, HandshakeError> {
        let (context, first) = match protection {
            Protection::Clear => Context::initiate(endpoint, peer, Delegation::None, now),
            Protection::Safe | Protection::Private => Context::initiate_tls(endpoint, peer, now),
        }?;
        out.extend_from_slice(&first);
        Ok(Self { context, protection })
    }

    /// Begins as the side that was connected to, at a time in seconds since 1970.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn accept(endpoint: &Endpoint, peer: Expect, protection: Protection, now: i64) -> Result<Self, HandshakeError> {
        let context = match protection {
            Protection::Clear => Context::accept(endpoint, peer, now),
            Protection::Safe | Protection::Private => Context::accept_tls(endpoint, peer, now),
        }?;
        Ok(Self { context, protection })
    }

    /// Takes what has come, from the first byte not used so far; appends what is to be sent. Whole records are used, up to
    /// the last one of the handshake.
    ///
    /// # Errors
    /// [`HandshakeError`]; what `out` then holds tells the peer of it.
    pub fn handshake(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        let mut used = 0;
        while !self.context.is_open() {
            let Some(length) = record(&bytes[used..])? else { break };
            match self.context.step(&bytes[used..used + length]) {
                Ok(Step::Continue(token) | Step::Done(token)) => out.extend_from_slice(&token),
                Err(error) => {
                    out.extend_from_slice(&self.context.alert());
                    return Err(error);
                }
            }
            used += length;
        }
        Ok(Progress { used, open: self.context.is_open() })
    }

    /// What protects the bytes.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// The security context: who the peer is.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Appends these bytes as they go over the connection: in records, or under `PROT C` as they are.
    ///
    /// # Errors
    /// [`HandshakeError::Over`] before the channel is open.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        if self.protection == Protection::Clear && self.context.is_open() {
            out.extend_from_slice(plain);
            return Ok(());
        }
        self.context.seal(plain, out)
    }

    /// Appends the data in what has come; returns how many bytes were used, whole records.
    ///
    /// The end of the data is not in here: GCT closes TCP without a word of TLS, and what shows that nothing is missing is
    /// the count of `MODE E`, or the length and the 226 of the control channel.
    ///
    /// # Errors
    /// [`HandshakeError`] where records were altered, left out or put in another order.
    pub fn open(&mut self, bytes: &[u8], plain: &mut Vec<u8>) -> Result<usize, HandshakeError> {
        if self.protection == Protection::Clear && self.context.is_open() {
            plain.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        let mut used = 0;
        while let Some(length) = record(&bytes[used..])? {
            used += length;
        }
        plain.extend_from_slice(&self.context.open(&bytes[..used])?);
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_read_and_write() {
        for (text, auth) in [
            ("N", DataAuth::None),
            ("A", DataAuth::Own),
            ("S /O=Grid/CN=x y", DataAuth::Subject("/O=Grid/CN=x y".into())),
        ] {
            assert_eq!(DataAuth::parse(text), Ok(auth.clone()));
            assert_eq!(auth.argument(), text);
        }
        assert!(DataAuth::parse("S").is_err());
        assert!(DataAuth::parse("N x").is_err());
        assert_eq!(Protection::parse("p"), Ok(Protection::Private));
        assert_eq!(Protection::parse("E"), Err(ArgumentError::Confidential));
        assert!(Protection::parse("").is_err());
        assert_eq!(DataAuth::Own.expect("/CN=me"), Some(Expect::Subject("/CN=me".into())));
        assert_eq!(DataAuth::None.expect("/CN=me"), None);
    }
}
