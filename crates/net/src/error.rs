//! Errors of connections, and how they are reported to a client (P18).

use phoebus_proto::session::Code;
use phoebus_proto::units::Span;
use std::io;
use std::net::SocketAddr;

/// A failure to listen, resolve or connect. Each message is one sentence that names the address.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Listening on the address failed.
    #[error("cannot listen on {addr}: {}", reason(source))]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Connecting failed.
    #[error("cannot connect to {to}: {}", reason(source))]
    Connect {
        /// The address.
        to: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The peer did not answer in time.
    #[error("cannot connect to {to}: no answer within {limit}")]
    Timeout {
        /// The peer or resolver.
        to: String,
        /// The time limit.
        limit: Span,
    },
    /// The peer has not proved the expected identity.
    #[error("cannot trust {to}: {reason}")]
    Untrusted {
        /// The peer.
        to: String,
        /// What it presented, and what was expected.
        reason: String,
    },
    /// The peer rejects this end's certificate, or requires one.
    #[error("{to} does not trust this end: {reason}")]
    Rejected {
        /// The peer.
        to: String,
        /// What the peer has said.
        reason: String,
    },
    /// The name does not resolve.
    #[error("cannot resolve {name}: {}", reason(source))]
    Resolve {
        /// The name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// None of several addresses could be reached.
    #[error("{most_informative}{}", others.iter().map(|other| format!("; {other}")).collect::<String>())]
    Several {
        /// The error that says most about the destination.
        most_informative: Box<Error>,
        /// The errors of the other addresses, in the order in which the attempts failed.
        others: Vec<Error>,
    },
    /// The transport that carries this connection over other connections failed.
    #[error("{reason}")]
    Carrier {
        /// The reason, as a code.
        code: Code,
        /// A sentence that names the party that failed.
        reason: String,
    },
}

impl Error {
    /// The reason as it is sent back to the client, which sees the error that a direct connection would have
    /// given.
    pub fn code(&self) -> Code {
        match self {
            Self::Listen { .. } => Code::Internal,
            Self::Connect { source, .. } => code_of(source),
            Self::Timeout { .. } => Code::TimedOut,
            Self::Untrusted { .. } | Self::Rejected { .. } => Code::AuthFailed,
            Self::Resolve { .. } => Code::NameNotFound,
            Self::Carrier { code, .. } => *code,
            Self::Several { most_informative, .. } => most_informative.code(),
        }
    }

    /// Whether the host at every address has refused the connection.
    pub fn is_refused(&self) -> bool {
        match self {
            Self::Several { most_informative, others } => {
                most_informative.is_refused() && others.iter().all(Self::is_refused)
            }
            one => one.code() == Code::Refused,
        }
    }

    /// Whether the resolver has answered that the name does not exist. If the resolver did not answer, the
    /// name may exist.
    pub fn is_unknown_name(&self) -> bool {
        // The messages of EAI_NONAME and EAI_NODATA in glibc and in musl: the standard library does not keep
        // the numbers.
        const WORDS: [&str; 4] = [
            "Name or service not known",
            "No address associated with hostname",
            "Name does not resolve",
            "Name has no usable address",
        ];
        let text = match self {
            Self::Resolve { source, .. } => source.to_string(),
            Self::Carrier { code: Code::NameNotFound, reason } => reason.clone(),
            _ => return false,
        };
        // Sentences begin in lower case.
        let text = text.to_lowercase();
        WORDS.iter().any(|words| text.contains(&words.to_lowercase()))
    }

    /// The error of one address: of several, the most informative.
    pub fn most_informative(&self) -> &Self {
        match self {
            Self::Several { most_informative, .. } => most_informative.most_informative(),
            one => one,
        }
    }

    /// Puts the most informative error first and keeps the order of the others. `None` if there are no
    /// errors.
    pub(crate) fn of_several(mut errors: Vec<Self>) -> Option<Self> {
        // `rev` makes the first of equally informative errors win: `max_by_key` returns the last maximum.
        let most = errors.iter().enumerate().rev().max_by_key(|(_, error)| error.weight()).map(|(at, _)| at)?;
        let first = errors.remove(most);
        Some(if errors.is_empty() {
            first
        } else {
            Self::Several { most_informative: Box::new(first), others: errors }
        })
    }

    /// How much this error says about the destination, to choose among the errors of several addresses. A
    /// peer that is not trusted, or that refused in words, runs there; a host that refused the connection is
    /// there; a missing route may be a fault of this end.
    fn weight(&self) -> u8 {
        match self.code() {
            _ if matches!(self, Self::Untrusted { .. } | Self::Rejected { .. } | Self::Carrier { .. }) => 6,
            Code::Refused => 5,
            Code::Reset => 4,
            Code::TimedOut => 3,
            Code::HostUnreachable => 2,
            Code::NetworkUnreachable => 1,
            _ => 0,
        }
    }
}

/// The code for a failed connect, read or write.
pub fn code_of(error: &io::Error) -> Code {
    if let Some(coded) = error.get_ref().and_then(|inner| inner.downcast_ref::<Coded>()) {
        return coded.code;
    }
    match error.raw_os_error() {
        Some(errno) => Code::from_errno(errno),
        None => match error.kind() {
            // A truncated stream, or bytes that no holder of the keys can have sent.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Code::Reset,
            // Errors that libraries create from an `ErrorKind` alone, without an errno.
            io::ErrorKind::ConnectionReset => Code::Reset,
            io::ErrorKind::ConnectionRefused => Code::Refused,
            io::ErrorKind::HostUnreachable => Code::HostUnreachable,
            io::ErrorKind::NetworkUnreachable => Code::NetworkUnreachable,
            io::ErrorKind::TimedOut => Code::TimedOut,
            io::ErrorKind::PermissionDenied => Code::AuthFailed,
            _ => Code::ConnectFailed,
        },
    }
}

/// A failure for which the underlying protocol gave a code and a message, wrapped in an `io::Error`.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Coded {
    pub(crate) code: Code,
    pub(crate) reason: String,
}

impl From<Coded> for io::Error {
    fn from(coded: Coded) -> Self {
        let kind = Self::from_raw_os_error(coded.code.errno()).kind();
        Self::new(kind, coded)
    }
}

/// The error's message without "(os error N)" and with a lower-case first letter, to stand at the end of a
/// sentence. Acronyms such as UDT keep their capitals.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(text);
    let mut chars = text.chars();
    if text.split(' ').next().is_some_and(|word| word.chars().skip(1).any(char::is_uppercase)) {
        return text.to_owned();
    }
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_starts_in_lower_case_unless_it_is_an_acronym() {
        let refused = io::Error::from_raw_os_error(libc::ECONNREFUSED);
        assert_eq!(reason(&refused), "connection refused");
        assert_eq!(reason(&io::Error::other("UDT has no \"bbr\"")), "UDT has no \"bbr\"");
        assert_eq!(reason(&io::Error::other("")), "");
    }

    #[test]
    fn only_an_answer_of_the_resolver_counts_as_an_unknown_name() {
        let failed = |words: &str| {
            let source = io::Error::other(format!("failed to lookup address information: {words}"));
            Error::Resolve { name: "host.example".to_owned(), source }
        };
        assert!(failed("Name or service not known").is_unknown_name());
        assert!(failed("No address associated with hostname").is_unknown_name());
        assert!(!failed("Temporary failure in name resolution").is_unknown_name());
        assert!(!failed("Device or resource busy (os error 16)").is_unknown_name());
        let carried =
            |words: &str| Error::Carrier { code: Code::NameNotFound, reason: format!("gateway gw/5006: {words}") };
        assert!(carried("cannot resolve gw: name or service not known").is_unknown_name());
        assert!(!carried("cannot resolve gw: temporary failure in name resolution").is_unknown_name());
        let reason = "Name or service not known".to_owned();
        assert!(!Error::Carrier { code: Code::ConnectFailed, reason }.is_unknown_name());
    }

    #[test]
    fn error_of_several_addresses_is_a_refusal_only_if_all_refused() {
        let error = |errno| Error::Connect {
            to: SocketAddr::from(([192, 0, 2, 1], 5006)),
            source: io::Error::from_raw_os_error(errno),
        };
        let all = |errors: &[i32]| Error::of_several(errors.iter().map(|errno| error(*errno)).collect()).unwrap();
        assert!(all(&[libc::ECONNREFUSED]).is_refused());
        assert!(all(&[libc::ECONNREFUSED, libc::ECONNREFUSED]).is_refused());
        let mixed = all(&[libc::EHOSTUNREACH, libc::ECONNREFUSED]);
        assert_eq!((mixed.code(), mixed.is_refused()), (Code::Refused, false));
    }
}
