//! TLS on byte buffers: converts between records and their content.

use std::io::{ErrorKind, Read, Write};

use rustls::Connection;

use super::HandshakeError;

/// Length of a record's header, in bytes: type, version, length.
const HEADER: usize = 5;
/// Greatest length of a record's body (RFC 5246, §6.2.3; TLS 1.3 permits less).
const MAX_RECORD_BODY: usize = (1 << 14) + 2048;

/// A TLS connection without a socket.
pub(super) struct Records {
    tls: Connection,
    /// Decrypted bytes that were not taken yet.
    plain: Vec<u8>,
}

impl Records {
    pub(super) fn new(mut tls: Connection) -> Self {
        // Each call drains rustls's buffers completely, so the size of the caller's input bounds them.
        tls.set_buffer_limit(None);
        Self { tls, plain: Vec::new() }
    }

    /// Decrypts records; [`take`](Self::take) then returns the content.
    pub(super) fn absorb(&mut self, mut records: &[u8]) -> Result<(), rustls::Error> {
        while !records.is_empty() {
            let read = self.tls.read_tls(&mut records).map_err(|error| rustls::Error::General(error.to_string()))?;
            let state = self.tls.process_new_packets()?;
            let before = self.plain.len();
            self.plain.resize(before + state.plaintext_bytes_to_read(), 0);
            let mut filled = before;
            while filled < self.plain.len() {
                match self.tls.reader().read(&mut self.plain[filled..]) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(rustls::Error::General(error.to_string())),
                }
            }
            self.plain.truncate(filled);
            if read == 0 {
                return Err(rustls::Error::General("bytes follow the end of the connection".into()));
            }
        }
        Ok(())
    }

    /// Encrypts bytes; [`emit`](Self::emit) then returns the records.
    pub(super) fn put(&mut self, plain: &[u8]) -> Result<(), rustls::Error> {
        self.tls.writer().write_all(plain).map_err(|error| rustls::Error::General(error.to_string()))
    }

    /// Appends all records that are ready to send.
    pub(super) fn emit(&mut self, out: &mut Vec<u8>) {
        while self.tls.wants_write() {
            // Writing to memory does not fail.
            if self.tls.write_tls(out).is_err() {
                break;
            }
        }
    }

    /// Returns and removes the decrypted bytes.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.plain)
    }

    /// Returns the decrypted bytes without removing them.
    pub(super) fn peek(&self) -> &[u8] {
        &self.plain
    }

    /// Whether the handshake is still in progress.
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether records are ready to send.
    pub(super) fn has_output(&self) -> bool {
        self.tls.wants_write()
    }

    pub(super) fn tls(&self) -> &Connection {
        &self.tls
    }
}

/// Length of the TLS record at the start of `bytes`; `None` while it is incomplete.
///
/// # Errors
/// [`HandshakeError::NotTls`] if the bytes cannot start a record.
pub(crate) fn record(bytes: &[u8]) -> Result<Option<usize>, HandshakeError> {
    let known = |(at, &byte): (usize, &u8)| match at {
        0 => (20..=24).contains(&byte),
        1 => byte == 3,
        2 => byte <= 4,
        _ => true,
    };
    if !bytes.iter().take(3).enumerate().all(known) {
        return Err(HandshakeError::NotTls);
    }
    let Some(header) = bytes.get(..HEADER) else { return Ok(None) };
    let body = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if body > MAX_RECORD_BODY {
        return Err(HandshakeError::NotTls);
    }
    Ok((bytes.len() >= HEADER + body).then_some(HEADER + body))
}
