//! Data channels: `DCAU` (authentication of the peer) and `PROT` (protection of the bytes), GFD.20 §3.
//!
//! The connecting side is the TLS client, whichever way the data flows. Under `PROT S` and `PROT P` the
//! channel is plain TLS. Under `PROT C` it is a security context without delegation, but with the delegation
//! flag; after the last record of the context, the connection continues with raw bytes. One read may return
//! that record and raw bytes, so [`Channel`] reports how many bytes it used and leaves the rest to the
//! caller.

use crate::context::records::record;
use crate::context::{Context, Delegation, Endpoint, Expect, HandshakeError, Step};

/// Smallest buffer for received bytes: a whole TLS record.
pub const MAX_RECORD: usize = 5 + (1 << 14) + 2048;

/// `DCAU`: the expected peer of a data channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataAuth {
    /// `DCAU N`: no authentication, and no TLS.
    None,
    /// `DCAU A`: the identity of the control channel. The default.
    Own,
    /// `DCAU S SUBJECT`: the holder of this subject.
    Subject(String),
}

/// `PROT`: the protection of a data channel's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// `PROT C`: none.
    Clear,
    /// `PROT S`: integrity. TLS provides confidentiality with it.
    Safe,
    /// `PROT P`: integrity and confidentiality.
    Private,
}

/// An invalid argument of `DCAU` or `PROT`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// An unknown argument of `DCAU`.
    #[error("DCAU {0:?} is not known; expected N, A, or S with a subject")]
    DataAuth(String),
    /// An unknown argument of `PROT`.
    #[error("PROT {0:?} is not known; expected C, S or P")]
    Protection(String),
    /// `PROT E`, which is not supported with GSSAPI.
    #[error("PROT E is not available with GSSAPI; expected C, S or P")]
    Confidential,
}

impl DataAuth {
    /// Parses the argument of `DCAU`.
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

    /// The argument of the command.
    pub fn argument(&self) -> String {
        match self {
            Self::None => "N".to_owned(),
            Self::Own => "A".to_owned(),
            Self::Subject(subject) => format!("S {subject}"),
        }
    }

    /// The expected peer, if the control channel belongs to `own`; `None` for a channel without TLS.
    pub fn expect(&self, own: &str) -> Option<Expect> {
        match self {
            Self::None => None,
            Self::Own => Some(Expect::Subject(own.to_owned())),
            Self::Subject(subject) => Some(Expect::Subject(subject.clone())),
        }
    }
}

impl Protection {
    /// Parses the argument of `PROT`.
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

    /// The argument of the command.
    pub fn argument(self) -> char {
        match self {
            Self::Clear => 'C',
            Self::Safe => 'S',
            Self::Private => 'P',
        }
    }
}

/// An authenticated data channel, protected unless under `PROT C`.
#[derive(Debug)]
pub struct Channel {
    context: Context,
    protection: Protection,
}

/// The progress of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Number of bytes used; the caller must pass the rest again.
    pub used: usize,
    /// Whether the channel is open: unused bytes are then data, raw under `PROT C`.
    pub open: bool,
}

impl Channel {
    /// Starts as the connecting side, and appends the bytes to send. `now` is in seconds since 1970.
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

    /// Starts as the accepting side. `now` is in seconds since 1970.
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

    /// Consumes received bytes, which must start at the first unused one; appends the bytes to send. It uses
    /// whole records, up to the last one of the handshake.
    ///
    /// # Errors
    /// [`HandshakeError`]; `out` then contains the alert for the peer.
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

    /// The protection of the bytes.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// The security context, which knows the peer.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Appends the bytes in the form in which they are sent: in records, or raw under `PROT C`.
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

    /// Decrypts received bytes and appends the data; returns the number of bytes used, always whole records.
    ///
    /// The channel does not authenticate the end of the data: GCT closes TCP without close_notify.
    /// Completeness follows from the end-of-data count of `MODE E`, or from the length and the 226 on the
    /// control channel.
    ///
    /// # Errors
    /// [`HandshakeError`] if records were altered, omitted or reordered.
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
    fn arguments_parse_and_print() {
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
