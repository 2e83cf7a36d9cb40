//! What can go wrong with a connection, and how it is told to a client (P18).

use phoebus_proto::session::Code;
use phoebus_proto::units::Span;
use std::io;
use std::net::SocketAddr;

/// A failure to listen, resolve or connect. Each is one sentence that names the address.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {}", reason(source))]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The connection failed.
    #[error("cannot connect to {to}: {}", reason(source))]
    Connect {
        /// The address.
        to: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Nobody answered in time.
    #[error("cannot connect to {to}: no answer within {limit}")]
    Timeout {
        /// Whom.
        to: String,
        /// How long was waited.
        limit: Span,
    },
    /// The other end does not prove to be who it should be.
    #[error("cannot trust {to}: {reason}")]
    Untrusted {
        /// Whom.
        to: String,
        /// What it showed, and what was expected.
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
    #[error("{telling}{}", others.iter().map(|other| format!("; {other}")).collect::<String>())]
    Several {
        /// What says most about the destination.
        telling: Box<Error>,
        /// What the other addresses said, in the order in which they failed.
        others: Vec<Error>,
    },
    /// What carries the connection over other connections failed, in its own words.
    #[error("{reason}")]
    Carrier {
        /// The reason, for programs.
        code: Code,
        /// A sentence that names who failed.
        reason: String,
    },
}

impl Error {
    /// The reason as it travels back to the client, which sees the error that a direct connection would have given.
    pub fn code(&self) -> Code {
        match self {
            Self::Listen { .. } => Code::Internal,
            Self::Connect { source, .. } => code_of(source),
            Self::Timeout { .. } => Code::TimedOut,
            Self::Untrusted { .. } => Code::AuthFailed,
            Self::Resolve { .. } => Code::NameNotFound,
            Self::Carrier { code, .. } => *code,
            Self::Several { telling, .. } => telling.code(),
        }
    }

    /// Whether a host has answered at each address that nobody listens there.
    pub fn is_refused(&self) -> bool {
        match self {
            Self::Several { telling, others } => telling.is_refused() && others.iter().all(Self::is_refused),
            one => one.code() == Code::Refused,
        }
    }

    /// Whether the resolver has answered that the name is none of a host. Where it has not answered, the name may be one later.
    pub fn is_no_name(&self) -> bool {
        // EAI_NONAME and EAI_NODATA in the words of glibc and of musl: the standard library keeps no numbers.
        const WORDS: [&str; 4] = [
            "Name or service not known",
            "No address associated with hostname",
            "Name does not resolve",
            "Name has no usable address",
        ];
        match self {
            Self::Resolve { source, .. } => {
                let text = source.to_string();
                WORDS.iter().any(|words| text.contains(words))
            }
            _ => false,
        }
    }

    /// The error of one address: of several the one that says most.
    pub fn telling(&self) -> &Self {
        match self {
            Self::Several { telling, .. } => telling.telling(),
            one => one,
        }
    }

    /// Of the errors of several addresses the one that says most first, and the others after it. `None` if there is none.
    pub(crate) fn of_several(mut errors: Vec<Self>) -> Option<Self> {
        // Of those that say as much the first.
        let most = errors.iter().enumerate().rev().max_by_key(|(_, error)| error.weight()).map(|(at, _)| at)?;
        let telling = errors.remove(most);
        Some(if errors.is_empty() { telling } else { Self::Several { telling: Box::new(telling), others: errors } })
    }

    /// How much this error says about the destination, to choose among those of several addresses: who answered and is not
    /// trusted, or refused in words, runs there; one that refused the connection is there; one without a route may be a fault
    /// of this end.
    fn weight(&self) -> u8 {
        match self.code() {
            _ if matches!(self, Self::Untrusted { .. } | Self::Carrier { .. }) => 6,
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
            // A cut, or what no end that knows the keys has sent.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Code::Reset,
            // What a library says in its own words, by the kind that it gave.
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

/// A failure that the protocol underneath gave a code and words, inside an `io::Error`.
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

/// The error without "(os error N)" and without a capital at its beginning, to stand at the end of a sentence. Names such as UDT
/// stay as they are.
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
    fn a_reason_begins_with_no_capital_but_a_name_s() {
        let refused = io::Error::from_raw_os_error(libc::ECONNREFUSED);
        assert_eq!(reason(&refused), "connection refused");
        assert_eq!(reason(&io::Error::other("UDT has no \"bbr\"")), "UDT has no \"bbr\"");
        assert_eq!(reason(&io::Error::other("")), "");
    }

    #[test]
    fn a_resolver_that_does_not_answer_knows_of_no_name() {
        let failed = |words: &str| {
            let source = io::Error::other(format!("failed to lookup address information: {words}"));
            Error::Resolve { name: "host.example".to_owned(), source }
        };
        assert!(failed("Name or service not known").is_no_name());
        assert!(failed("No address associated with hostname").is_no_name());
        assert!(!failed("Temporary failure in name resolution").is_no_name());
        assert!(!failed("Device or resource busy (os error 16)").is_no_name());
    }

    #[test]
    fn several_addresses_refuse_only_if_each_does() {
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
