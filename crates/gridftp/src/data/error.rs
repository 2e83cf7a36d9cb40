//! What can go wrong with a data channel.

use phoebus_files::Sort;
use phoebus_net::reason;
use phoebus_proto::gridftp::block::BlockError;
use phoebus_proto::gridftp::xblock::XError;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// A failure of a data channel, or of what it carries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A connection could not be made, or an address not be listened on.
    #[error(transparent)]
    Net(#[from] phoebus_net::Error),
    /// No port of the range is free.
    #[error("no port from {0} to {1} is free for data connections")]
    Ports(u16, u16),
    /// Nobody connected.
    #[error("no data connection came within {} seconds", .0.as_secs())]
    Nobody(Duration),
    /// Only others connected, who may not.
    #[error("no data connection came within {} seconds but from {from}, and only those of the control connection's peer are taken", waited.as_secs())]
    Stranger {
        /// Who.
        from: IpAddr,
        /// How long was waited.
        waited: Duration,
    },
    /// Some connected where anybody may, and none of them was the other end.
    #[error("no data connection came but {count} that were not the other end's, the last of which failed: {last}")]
    Strangers {
        /// How many.
        count: u32,
        /// How the last of them failed.
        last: Box<Error>,
    },
    /// A connection came, and nothing over it.
    #[error("the other end of the data connection did not agree on anything within {} seconds", .0.as_secs())]
    Silent(Duration),
    /// A connection broke.
    #[error("the data connection broke: {}", reason(.0))]
    Broken(#[from] io::Error),
    /// The other end did not prove who it has to be.
    #[error("the data connection is not authenticated: {0}")]
    Guard(phoebus_gsi::context::HandshakeError),
    /// The ends did not agree on how to protect the connection.
    #[error("the data connection is not protected: {}", reason(.0))]
    Tls(io::Error),
    /// The other end showed another key than the one that was named for it.
    #[error(
        "the data connection is not protected: the other end showed another key than the one that was named for it"
    )]
    Key,
    /// The other end began a session of its own.
    #[error(
        "the data connection does not resume the TLS session of the control connection, and may be another's; the server's setting \
         tls.data_must_resume = false takes it from clients that cannot"
    )]
    NotResumed,
    /// What came is not extended block mode, or ended amid it.
    #[error("extended block mode: {0}")]
    Block(#[from] BlockError),
    /// What came is not that of MODE X, or ended amid it.
    #[error("MODE X: {0}")]
    Both(#[from] XError),
    /// The stream ended before all was there.
    #[error("the data connection ended after {came} of {expected} bytes")]
    Short {
        /// What came.
        came: u64,
        /// What was announced.
        expected: u64,
    },
    /// The stream went on when all was there.
    #[error("the data connection brought more than the {0} bytes that were announced")]
    Long(u64),
    /// The connection is gone, and nothing tells whether all was there.
    #[error(
        "the data connection ended in a way that does not tell whether all of the file has come; its size has to be announced (ALLO)"
    )]
    Doubtful,
    /// Bytes came beyond what 64 bits can count.
    #[error("a stream beyond 64 bits")]
    Endless,
    /// The other end took nothing for too long.
    #[error("the data connection stalled: nothing could be sent for {} seconds", .0.as_secs())]
    Stalled(Duration),
    /// More connections than are taken.
    #[error("more than {0} data connections came for one transfer")]
    TooMany(usize),
    /// In extended block mode the sender has to be the one that connects.
    #[error("in extended block mode the sender connects: {0}")]
    Direction(&'static str),
    /// Blocks that cannot be a stream.
    #[error("blocks out of order cannot be sent in stream mode")]
    Order,
    /// A task of the transfer ended without a word.
    #[error("the transfer was given up")]
    GivenUp,
    /// The store whose bytes are carried failed.
    #[error(transparent)]
    Store(#[from] phoebus_files::Error),
}

impl From<Error> for phoebus_files::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) => error,
            Error::NotResumed => Self::Store {
                name: "data channel".to_owned(),
                reason: Error::NotResumed.to_string(),
                sort: Sort::Denied,
            },
            other => Self::Store { name: "data channel".to_owned(), reason: other.to_string(), sort: Sort::Passing },
        }
    }
}
