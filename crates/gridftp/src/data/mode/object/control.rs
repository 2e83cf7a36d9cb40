//! The control stream of an object transfer: messages over a data connection.

use super::super::super::connection::Connection;
use super::super::super::error::Error;
use phoebus_net::object::Secret;
use phoebus_proto::object::{Inbox, Message};
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::timeout;

/// Label of the secret that the TLS of the control stream exports (RFC 8446, section 7.5).
const LABEL: &[u8] = b"EXPORTER-phoebus-object";

/// Bytes that are read at once.
const READ: usize = 4096;

/// The control stream.
#[derive(Debug)]
pub(super) struct Control {
    connection: Connection,
    inbox: Inbox,
    stall_timeout: Duration,
}

impl Control {
    pub(super) fn new(connection: Connection, stall_timeout: Duration) -> Self {
        Self { connection, inbox: Inbox::default(), stall_timeout }
    }

    /// The secret for the datagrams of a transfer. `None` if the control stream is not protected by TLS.
    pub(super) fn secret(&self, transfer: u32) -> Option<Secret> {
        self.connection.exported(LABEL, &transfer.to_be_bytes()).map(Secret)
    }

    /// The host at the other end.
    pub(super) fn peer(&self) -> Result<IpAddr, Error> {
        Ok(self.connection.peer_addr()?.ip())
    }

    /// Sends a message. Not cancel safe.
    ///
    /// # Errors
    /// The connection has failed, or the peer reads nothing.
    pub(super) async fn send(&mut self, message: &Message) -> Result<(), Error> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.connection.write(&bytes, false, self.stall_timeout).await
    }

    /// The next message. Cancel safe.
    ///
    /// # Errors
    /// The connection has failed or ended, the peer breaks the protocol, or it has given up.
    pub(super) async fn next(&mut self) -> Result<Message, Error> {
        loop {
            match self.inbox.pop().map_err(|error| Error::Object(error.to_string()))? {
                Some(Message::Failed { reason }) => return Err(Error::Object(format!("the peer gives up: {reason}"))),
                Some(message) => return Ok(message),
                None => {}
            }
            let mut bytes = [0; READ];
            match self.connection.read(&mut bytes).await? {
                0 => return Err(Error::Object("the control stream ended before the transfer did".to_owned())),
                len => self.inbox.push(&bytes[..len]),
            }
        }
    }

    /// The same within `limit`.
    ///
    /// # Errors
    /// The same, or nothing came.
    pub(super) async fn next_within(&mut self, limit: Duration) -> Result<Message, Error> {
        timeout(limit, self.next()).await.map_err(|_| Error::Silent(limit))?
    }

    /// Tells the peer why this end gives up, as far as possible without waiting long, and returns the error.
    pub(super) async fn fail(&mut self, error: Error) -> Error {
        const LAST: Duration = Duration::from_secs(1);
        let _ = timeout(LAST, self.send(&Message::Failed { reason: error.to_string() })).await;
        error
    }

    /// The connection.
    pub(super) fn into_connection(self) -> Connection {
        self.connection
    }
}

/// The error for a message that is not allowed now.
pub(super) fn unexpected(message: &Message, expected: &str) -> Error {
    Error::Object(format!("the peer sent {}; {expected} was expected", message.name()))
}
