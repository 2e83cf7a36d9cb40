//! One end of a TLS connection without a socket: bytes in, bytes out (RFC 8446).
//!
//! rustls is given one record at a time, whose length its header tells. So it never holds bytes behind the
//! record with the peer's close_notify: those belong to the caller, who may continue without TLS there
//! ([`Intake::Exact`]).
//!
//! Memory is bounded: one buffer of received records and one of records to send, both lent by a pool and held
//! only while they contain bytes, and the content of one record.

use super::Mode;
use super::buffer::{Buffer, CAPACITY};
use super::exporter::Exported;
use super::fault::Fault;
use phoebus_proto::session::auth::scram::Binding;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, Error, ServerConfig};
use std::sync::Arc;

/// Length of a record's header, in bytes: type, version and length.
const HEADER: usize = 5;
/// Greatest length of a record behind its header (RFC 8446, section 5.2).
const RECORD_MAX: usize = (1 << 14) + 256;
/// Greatest plaintext of one record, in bytes.
const PLAIN_MAX: usize = 1 << 14;
/// Bytes that a record adds to its plaintext: header, content type and tag.
const OVERHEAD: usize = HEADER + 1 + 16;
/// Space kept free for what rustls sends by itself: an alert or a key update.
const RESERVE: usize = 256;
/// Most plaintext that is encrypted at a time, in bytes.
const BATCH: usize = (CAPACITY - RESERVE) / (PLAIN_MAX + OVERHEAD) * PLAIN_MAX;

/// How much is read from the underlying connection at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intake {
    /// As much as fits.
    Bulk,
    /// No byte behind the current record.
    Exact,
}

enum Role {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// A TLS engine; see the module documentation.
pub(super) struct Engine {
    role: Role,
    intake: Intake,
    /// Received records. Those up to `fed` were shown to rustls, which may need to see some of them again.
    incoming: Buffer,
    fed: usize,
    /// Content of a record that did not fit into the reader's buffer.
    plain: Vec<u8>,
    plain_read: usize,
    outgoing: Buffer,
    closed: bool,
    peer_closed: bool,
    /// A fault that is reported only after everything received before it was read.
    fault: Option<Fault>,
    exported: Arc<Exported>,
}

/// The operation to perform with rustls.
enum Wish<'a> {
    /// Decrypt the record that was fed into this buffer.
    Read(&'a mut [u8]),
    Write(&'a [u8]),
    Close,
}

impl Engine {
    /// Creates the client end of a connection to the server `name`.
    pub(super) fn client(config: Arc<ClientConfig>, name: ServerName<'static>, intake: Intake) -> Result<Self, Fault> {
        let exported = Arc::new(Exported::default());
        let mut config = Arc::unwrap_or_clone(config);
        config.key_log = exported.clone();
        let role = Role::Client(UnbufferedClientConnection::new(Arc::new(config), name)?);
        let mut engine = Self::new(role, intake, exported);
        engine.turn(&mut Wish::Read(&mut []))?;
        Ok(engine)
    }

    /// Creates the server end.
    pub(super) fn server(config: Arc<ServerConfig>, intake: Intake) -> Result<Self, Fault> {
        let exported = Arc::new(Exported::default());
        let mut config = Arc::unwrap_or_clone(config);
        config.key_log = exported.clone();
        Ok(Self::new(Role::Server(UnbufferedServerConnection::new(Arc::new(config))?), intake, exported))
    }

    fn new(role: Role, intake: Intake, exported: Arc<Exported>) -> Self {
        Self {
            role,
            intake,
            exported,
            incoming: Buffer::default(),
            fed: 0,
            plain: Vec::new(),
            plain_read: 0,
            outgoing: Buffer::default(),
            closed: false,
            peer_closed: false,
            fault: None,
        }
    }

    fn common(&self) -> &CommonState {
        match &self.role {
            Role::Client(connection) => connection,
            Role::Server(connection) => connection,
        }
    }

    /// Changes how much is read at a time. Must be called before the first byte of application data is read.
    pub(super) fn set_intake(&mut self, intake: Intake) {
        self.intake = intake;
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.common().is_handshaking()
    }

    /// See [`Stream::channel_binding`](crate::Stream::channel_binding). `None` during the handshake.
    pub(super) fn channel_binding(&self) -> Option<Binding> {
        self.exported.binding().filter(|_| !self.is_handshaking())
    }

    /// The application protocol that was negotiated (ALPN, RFC 7301).
    pub(super) fn protocol(&self) -> Option<&[u8]> {
        self.common().alpn_protocol()
    }

    /// The peer's certificate chain, verified once the handshake is complete; empty if the peer presented
    /// none.
    pub(super) fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        self.common().peer_certificates().unwrap_or_default()
    }

    /// The buffer for received bytes. Empty when none are wanted: a complete record must be read first, or
    /// the peer has sent close_notify and what follows is not TLS.
    pub(super) fn space(&mut self) -> &mut [u8] {
        let wanted = match self.intake {
            _ if self.peer_closed => 0,
            Intake::Bulk => usize::MAX,
            Intake::Exact => self.missing(),
        };
        if wanted == 0 {
            return &mut [];
        }
        self.incoming.make_room(HEADER + RECORD_MAX);
        let space = self.incoming.space();
        let wanted = wanted.min(space.len());
        &mut space[..wanted]
    }

    /// How many bytes are missing of the current record, or of its header.
    fn missing(&self) -> usize {
        let begun = &self.incoming.filled()[self.fed..];
        match record_len(begun) {
            None => HEADER - begun.len(),
            Some(len) => len.saturating_sub(begun.len()),
        }
    }

    /// Consumes `n` bytes that were put into [`Engine::space`], and continues the handshake.
    pub(super) fn received(&mut self, n: usize) -> Result<(), Fault> {
        self.incoming.fill(n);
        while self.is_handshaking() && self.feed()? {
            self.turn(&mut Wish::Read(&mut []))?;
        }
        Ok(())
    }

    /// Reports the end of the underlying stream: a fault unless the peer has sent close_notify.
    pub(super) fn input_ended(&self) -> Result<(), Fault> {
        if self.peer_closed { Ok(()) } else { Err(Fault::Cut { handshaking: self.is_handshaking() }) }
    }

    /// Whether a read would return data, the end or a fault.
    pub(super) fn is_readable(&self) -> bool {
        let begun = &self.incoming.filled()[self.fed..];
        self.plain_read < self.plain.len()
            || self.peer_closed
            || self.fault.is_some()
            || record_len(begun).is_some_and(|len| len <= begun.len())
    }

    /// Whether nothing from the peer is buffered, not even part of a record.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_readable() && self.incoming.filled().is_empty()
    }

    /// Whether the peer has sent close_notify and everything before it was read.
    pub(super) fn is_at_end(&self) -> bool {
        self.peer_closed && self.plain_read == self.plain.len()
    }

    /// Reads decrypted bytes; `None` when more bytes must arrive first, 0 after the peer's close_notify.
    pub(super) fn read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        let mut n = self.take_plain(out);
        while n < out.len() && !self.peer_closed && self.fault.is_none() {
            let result = match self.feed() {
                Ok(false) => break,
                Ok(true) => self.turn(&mut Wish::Read(&mut out[n..])).and_then(|read| self.expected(read)),
                Err(fault) => Err(fault),
            };
            match result {
                Ok(read) => n += read,
                Err(fault) => self.fault = Some(fault),
            }
        }
        match &self.fault {
            _ if n > 0 => Ok(Some(n)),
            Some(fault) => Err(fault.clone()),
            None if self.peer_closed => Ok(Some(0)),
            None => Ok(None),
        }
    }

    /// Checks that a record of `read` plaintext bytes is permitted. With `auth`, only data and close_notify
    /// are: post-handshake messages (key update, session ticket) make sense only on a connection whose TLS
    /// goes on.
    fn expected(&self, read: usize) -> Result<usize, Fault> {
        let is_data = read > 0 || self.peer_closed;
        if is_data || self.protocol() != Some(Mode::Auth.protocol()) { Ok(read) } else { Err(Fault::Unexpected) }
    }

    fn take_plain(&mut self, out: &mut [u8]) -> usize {
        let rest = &self.plain[self.plain_read..];
        let n = rest.len().min(out.len());
        out[..n].copy_from_slice(&rest[..n]);
        self.plain_read += n;
        if self.plain_read == self.plain.len() {
            (self.plain, self.plain_read) = (Vec::new(), 0);
        }
        n
    }

    /// Encrypts as much as fits, and returns the number of plaintext bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        self.outgoing.make_room(CAPACITY);
        let room = self.outgoing.space().len().saturating_sub(RESERVE);
        let records = room / (PLAIN_MAX + OVERHEAD);
        let n = match records {
            // The remaining space suffices for a short record.
            0 => room.saturating_sub(OVERHEAD).min(PLAIN_MAX),
            _ => records * PLAIN_MAX,
        };
        let n = bytes.len().min(n).min(BATCH);
        if n > 0 {
            self.turn(&mut Wish::Write(&bytes[..n]))?;
        }
        Ok(n)
    }

    /// Sends close_notify.
    pub(super) fn close(&mut self) -> Result<(), Fault> {
        if !std::mem::replace(&mut self.closed, true) {
            self.turn(&mut Wish::Close)?;
        }
        Ok(())
    }

    /// Whether this end has sent close_notify.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The bytes to send.
    pub(super) fn outgoing(&self) -> &[u8] {
        self.outgoing.filled()
    }

    /// Removes the first `n` bytes of [`Engine::outgoing`], which were sent.
    pub(super) fn sent(&mut self, n: usize) {
        self.outgoing.discard(n);
    }

    /// Makes the next record available to rustls, and returns whether it has arrived completely.
    fn feed(&mut self) -> Result<bool, Fault> {
        let begun = &self.incoming.filled()[self.fed..];
        // Content types from change_cipher_spec (20) to application_data (23).
        if self.is_handshaking() && begun.first().is_some_and(|kind| !(20..=23).contains(kind)) {
            return Err(Fault::NotTls);
        }
        let len = record_len(begun);
        if len.is_some_and(|len| len > HEADER + RECORD_MAX) {
            return Err(if self.is_handshaking() { Fault::NotTls } else { Fault::Tls(Error::PeerSentOversizedRecord) });
        }
        match len.filter(|len| *len <= begun.len()) {
            Some(len) => {
                self.fed += len;
                Ok(true)
            }
            // A handshake message in more and smaller records than any implementation sends.
            None if self.incoming.filled().len() == CAPACITY => Err(Fault::Tls(Error::PeerSentOversizedRecord)),
            None => Ok(false),
        }
    }

    /// Runs rustls until `wish` is done, and returns the number of bytes read.
    fn turn(&mut self, wish: &mut Wish<'_>) -> Result<usize, Fault> {
        self.outgoing.make_room(RESERVE);
        let mut read = 0;
        loop {
            let mut hands = Parts {
                plain: &mut self.plain,
                outgoing: &mut self.outgoing,
                peer_closed: &mut self.peer_closed,
                read: &mut read,
            };
            let shown = &mut self.incoming.filled_mut()[..self.fed];
            let (discard, next) = match &mut self.role {
                Role::Client(connection) => hands.handle(connection.process_tls_records(shown), wish),
                Role::Server(connection) => hands.handle(connection.process_tls_records(shown), wish),
            };
            self.incoming.discard(discard);
            self.fed -= discard;
            match next {
                Ok(true) => {}
                Ok(false) => return Ok(read),
                Err(fault) => {
                    self.encode_alert();
                    return Err(fault);
                }
            }
        }
    }

    /// After a fault: lets rustls encode pending messages and its alert.
    fn encode_alert(&mut self) {
        let (mut plain, mut peer_closed, mut read) = (Vec::new(), false, 0);
        let mut again = true;
        while again {
            let mut hands = Parts {
                plain: &mut plain,
                outgoing: &mut self.outgoing,
                peer_closed: &mut peer_closed,
                read: &mut read,
            };
            let shown = &mut self.incoming.filled_mut()[..self.fed];
            let (discard, next) = match &mut self.role {
                Role::Client(connection) => {
                    hands.handle(connection.process_tls_records(shown), &mut Wish::Read(&mut []))
                }
                Role::Server(connection) => {
                    hands.handle(connection.process_tls_records(shown), &mut Wish::Read(&mut []))
                }
            };
            self.incoming.discard(discard);
            self.fed -= discard;
            again = next == Ok(true);
        }
    }

    /// Releases the memory of empty buffers.
    pub(super) fn relax(&mut self) {
        self.incoming.relax();
        self.outgoing.relax();
    }

    /// Memory used by the buffers, in bytes.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn memory(&self) -> usize {
        self.incoming.memory() + self.outgoing.memory() + self.plain.capacity()
    }
}

/// The parts of an engine that the handling of rustls's states changes.
struct Parts<'a> {
    plain: &'a mut Vec<u8>,
    outgoing: &'a mut Buffer,
    peer_closed: &'a mut bool,
    read: &'a mut usize,
}

impl Parts<'_> {
    /// Handles one state of rustls; returns how many incoming bytes are done with, and whether to continue.
    fn handle<D>(&mut self, status: UnbufferedStatus<'_, '_, D>, wish: &mut Wish<'_>) -> (usize, Result<bool, Fault>) {
        let mut discard = status.discard;
        let again = match status.state {
            Err(error) => Err(error.into()),
            Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                match traffic.next_record() {
                    None => break Ok(true),
                    Some(Err(error)) => break Err(error.into()),
                    Some(Ok(record)) => {
                        discard += record.discard;
                        self.deliver(record.payload, wish);
                    }
                }
            },
            Ok(ConnectionState::EncodeTlsData(mut data)) => self.encode(|space| data.encode(space)),
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Ok(true)
            }
            Ok(ConnectionState::PeerClosed) => {
                *self.peer_closed = true;
                Ok(true)
            }
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                let result = match wish {
                    Wish::Read(_) => return (discard, Ok(false)),
                    Wish::Write(bytes) => traffic.encrypt(bytes, self.outgoing.space()),
                    Wish::Close => traffic.queue_close_notify(self.outgoing.space()),
                };
                match result {
                    Ok(n) => {
                        self.outgoing.fill(n);
                        Ok(false)
                    }
                    Err(EncryptError::InsufficientSize(_)) => {
                        Err(Fault::Tls(Error::General("no room to encrypt".into())))
                    }
                    Err(EncryptError::EncryptExhausted) => Err(Fault::Tls(Error::EncryptError)),
                }
            }
            Ok(ConnectionState::Closed | ConnectionState::BlockedHandshake) => match wish {
                Wish::Read(_) | Wish::Close => Ok(false),
                Wish::Write(_) => Err(Fault::Tls(Error::General("this end cannot send now".into()))),
            },
            Ok(_) => Err(Fault::Tls(Error::General("early data, which was not offered".into()))),
        };
        (discard, again)
    }

    fn deliver(&mut self, payload: &[u8], wish: &mut Wish<'_>) {
        let room = match wish {
            Wish::Read(out) => &mut out[*self.read..],
            _ => &mut [],
        };
        let (now, later) = payload.split_at(payload.len().min(room.len()));
        room[..now.len()].copy_from_slice(now);
        *self.read += now.len();
        self.plain.extend_from_slice(later);
    }

    fn encode(&mut self, mut into: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>) -> Result<bool, Fault> {
        match into(self.outgoing.space()) {
            Ok(n) => self.outgoing.fill(n),
            // Only a certificate chain of absurd length gets here.
            Err(EncodeError::InsufficientSize(_)) => {
                return Err(Fault::Tls(Error::General("no room for a message".into())));
            }
            Err(EncodeError::AlreadyEncoded) => {}
        }
        Ok(true)
    }
}

/// The length of the record at the start of `begun`, with its header; `None` while the header is incomplete.
fn record_len(begun: &[u8]) -> Option<usize> {
    match begun {
        [_, _, _, high, low, ..] => Some(HEADER + usize::from(u16::from_be_bytes([*high, *low]))),
        _ => None,
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("intake", &self.intake)
            .field("incoming", &self.incoming.filled().len())
            .field("outgoing", &self.outgoing.filled().len())
            .field("closed", &self.closed)
            .field("peer_closed", &self.peer_closed)
            .finish_non_exhaustive()
    }
}
