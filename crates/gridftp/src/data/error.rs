//! Errors of a data channel.

use phoebus_files::ErrorKind;
use phoebus_net::object::Failure;
use phoebus_net::reason;
use phoebus_proto::gridftp::block::BlockError;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// A failure of a data channel, or of what it carries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Connecting or listening failed.
    #[error(transparent)]
    Net(#[from] phoebus_net::Error),
    /// No port of the range is free.
    #[error("no port from {0} to {1} is free for data connections")]
    Ports(u16, u16),
    /// Nobody connected in time.
    #[error("no data connection came within {} seconds", .0.as_secs())]
    Nobody(Duration),
    /// Only peers that are not permitted connected.
    #[error(
        "no data connection came from the control connection's peer within {} seconds, only one from {from}",
        waited.as_secs()
    )]
    Stranger {
        /// One of them.
        from: IpAddr,
        /// Length of the wait.
        waited: Duration,
    },
    /// Some connected where anybody may, but none was the peer.
    #[error("the peer opened no data connection; {count} strangers did, and the last one failed: {last}")]
    Strangers {
        /// Their number.
        count: u32,
        /// The failure of the last one.
        last: Box<Error>,
    },
    /// A connection came without data.
    #[error("the peer did not complete the handshake of the data connection within {} seconds", .0.as_secs())]
    Silent(Duration),
    /// A connection broke.
    #[error("the data connection broke: {}", reason(.0))]
    Broken(#[from] io::Error),
    /// The peer failed to authenticate.
    #[error("the data connection is not authenticated: {0}")]
    ChannelSecurity(phoebus_gsi::context::HandshakeError),
    /// The handshake failed.
    #[error("the data connection is not protected: {}", reason(.0))]
    Tls(io::Error),
    /// The peer has another key than the pinned one.
    #[error(
        "the data connection is not protected: the other end showed another key than the one that was named for it"
    )]
    Key,
    /// The peer did not resume the TLS session.
    #[error(
        "the data connection does not resume the TLS session of the control connection, and may be another's; the server's setting \
         tls.data_must_resume = false takes it from clients that cannot"
    )]
    NotResumed,
    /// The data is not in extended block mode, or ends within a block.
    #[error("extended block mode: {0}")]
    Block(#[from] BlockError),
    /// The stream is too short.
    #[error("the data connection ended after {came} of {expected} bytes")]
    Short {
        /// Received bytes.
        came: u64,
        /// Announced bytes.
        expected: u64,
    },
    /// The stream is too long.
    #[error("the data connection brought more than the {0} bytes that were expected")]
    Long(u64),
    /// The connection is gone, and nothing shows whether it was complete.
    #[error(
        "the data connection ended in a way that does not tell whether all of the file has come; its size has to be announced (ALLO)"
    )]
    Doubtful,
    /// An offset exceeds 64 bits.
    #[error("a stream beyond 64 bits")]
    Endless,
    /// The peer accepted nothing for too long.
    #[error("the data connection stalled: nothing could be sent for {} seconds", .0.as_secs())]
    Stalled(Duration),
    /// Too many connections.
    #[error("more than {0} data connections came for one transfer")]
    TooMany(usize),
    /// In extended block mode the sender has to connect.
    #[error("in extended block mode the sender connects: {0}")]
    Direction(&'static str),
    /// The blocks do not form a stream.
    #[error("blocks out of order cannot be sent in stream mode")]
    Order,
    /// An object transfer failed.
    #[error("{0}")]
    Object(String),
    /// No datagrams get through, so nothing was sent. Files may go over connections.
    #[error("{0}")]
    NoDatagrams(String),
    /// The gateways relay no datagrams.
    #[error("{0}")]
    NotRelayed(String),
    /// A task of the transfer ended without a word.
    #[error("the transfer was given up")]
    GivenUp,
    /// The source or destination failed.
    #[error(transparent)]
    Store(#[from] phoebus_files::Error),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Closed(why) => Self::NoDatagrams(why),
            Failure::Other(why) => Self::Object(why),
        }
    }
}

impl From<Error> for phoebus_files::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) => error,
            Error::NotResumed => Self::Store {
                name: "data channel".to_owned(),
                reason: Error::NotResumed.to_string(),
                kind: ErrorKind::Denied,
            },
            // It takes another configuration of the gateways.
            Error::NotRelayed(reason) => {
                Self::Store { name: "data channel".to_owned(), reason, kind: ErrorKind::Request }
            }
            other => {
                Self::Store { name: "data channel".to_owned(), reason: other.to_string(), kind: ErrorKind::Passing }
            }
        }
    }
}
