//! Why a gateway does not start.

use phoebus_net::{Error, reason};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a gateway cannot start, or cannot adopt another configuration.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener's address cannot be bound.
    #[error("{place}: {source}; expected an address of this host and a port that is free")]
    Listen {
        /// `FILE:LINE:COLUMN` of the address.
        place: String,
        /// Why.
        source: phoebus_net::Error,
    },
    /// An address for datagrams cannot be bound.
    #[error(
        "{place}: cannot use {address} for datagrams (UDP): {}; expected an address of this host and a port that no [[listen]] with \
         udt or quic has",
        reason(source)
    )]
    Datagrams {
        /// `FILE:LINE:COLUMN` of the addresses.
        place: String,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The administration socket cannot be created.
    #[error("{place}: cannot listen on the administration socket {}: {}", path.display(), socket_reason(source))]
    Admin {
        /// `FILE:LINE:COLUMN` of its name.
        place: String,
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file of the audit cannot be opened.
    #[error("{place}: cannot write the audit to {}: {}; expected a file that this gateway can make or append to", path.display(), reason(source))]
    Audit {
        /// `FILE:LINE:COLUMN` of its name.
        place: String,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Connections cannot come from the addresses of clients.
    #[error(
        "{place}: connections from the addresses of clients are not possible: {}; expected CAP_NET_RAW or CAP_NET_ADMIN",
        reason(source)
    )]
    ClientAddress {
        /// `FILE:LINE:COLUMN` of the setting.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// The secret of QUIC's stateless resets cannot be read or created.
    #[error("cannot use the file for tls.reset_key: {}; expected one that this gateway can make", reason(.0))]
    ResetKey(io::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {}", reason(.0))]
    Threads(io::Error),
    /// The limits do not fit the process.
    #[error(
        "{place}{}limits.sessions is {sessions}, which with pipes, pools and handshakes takes {needed} descriptors; this \
         process may have {available} (ulimit -n)",
        if place.is_empty() { "" } else { ": " }
    )]
    Descriptors {
        /// `FILE:LINE:COLUMN` of that limit; only the file if it has no such key; empty without a file.
        place: String,
        /// The configured number of sessions.
        sessions: u32,
        /// The descriptors that they need.
        needed: u64,
        /// The descriptors that the process may open.
        available: u64,
    },
}

impl StartError {
    /// Whether another socket uses a listener's address.
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(self, Self::Listen { source: Error::Listen { source, .. }, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }
}

/// Explains an error of the administration socket to the administrator who chose its name.
fn socket_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists => "something that is no socket has this name; expected a free one".to_owned(),
        io::ErrorKind::AddrInUse => "another process is listening on it".to_owned(),
        io::ErrorKind::NotFound => "there is no such directory".to_owned(),
        _ => reason(error),
    }
}
