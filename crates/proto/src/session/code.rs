//! Why a session was refused or reset (P10, P18): a number for machines, an `errno` for programs, a phrase for people.

use std::fmt;

/// Declares the codes once: number, name, errno, phrase.
macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $errno:literal, $phrase:literal;)+) => {
        /// Why a session was refused or reset. The numbers are part of the protocol and never change.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[doc = $doc])+ $name,)+
            /// A code of a later version of the protocol.
            Unknown(u16),
        }

        impl Code {
            /// Every code that this version knows.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The number on the wire.
            pub const fn number(self) -> u16 {
                match self {
                    $(Self::$name => $number,)+
                    Self::Unknown(number) => number,
                }
            }

            /// The code with this number.
            pub const fn from_number(number: u16) -> Self {
                match number {
                    $($number => Self::$name,)+
                    number => Self::Unknown(number),
                }
            }

            /// The Linux `errno` reported to a program that does not know of Phoebus (P18): the one that a direct
            /// connection would have returned, if there is one.
            pub const fn errno(self) -> i32 {
                match self {
                    $(Self::$name => $errno,)+
                    Self::Unknown(_) => 71,
                }
            }

            const fn phrase(self) -> &'static str {
                match self {
                    $(Self::$name => $phrase,)+
                    Self::Unknown(_) => "a reason that this version does not know",
                }
            }
        }
    };
}

// errno: EACCES 13, EPROTO 71, ENETUNREACH 101, ECONNABORTED 103, ECONNRESET 104, ENOBUFS 105, ETIMEDOUT 110,
// ECONNREFUSED 111, EHOSTUNREACH 113. Policy is EACCES, as connect(2) returns it if a local firewall rule forbids.
codes! {
    /// The peer broke the protocol.
    Protocol = 1, 71, "the session protocol was violated";
    /// No common version.
    Version = 2, 71, "no common protocol version";
    /// A mandatory feature is not known here.
    Feature = 3, 71, "a required feature is not supported";
    /// The gateway wants authentication.
    AuthRequired = 4, 13, "authentication is required";
    /// Authentication failed.
    AuthFailed = 5, 13, "authentication failed";
    /// The configuration does not allow this source, peer or destination.
    NotAllowed = 6, 13, "not allowed by the gateway's configuration";
    /// A limit of the gateway is reached.
    Limit = 7, 105, "a limit of the gateway is reached";
    /// The path visits a gateway twice.
    Loop = 8, 113, "the path leads through a gateway twice";
    /// A session with this identifier was seen before.
    Duplicate = 9, 71, "a session with this identifier was seen before";
    /// No route to the next hop, or the next hop is not a known peer.
    NoRoute = 10, 113, "no route to the next hop";
    /// A requirement of OPEN cannot be met.
    Requirement = 11, 71, "a requirement of the session cannot be met";
    /// The gateway is shutting down and takes no new sessions.
    Draining = 12, 111, "the gateway is shutting down";
    /// The handshake took longer than the limit.
    HandshakeTimeout = 13, 110, "the handshake took too long";
    /// A failure inside the gateway.
    Internal = 14, 103, "the gateway failed";
    /// The session was ended by an administrator or because the gateway shut down.
    Terminated = 15, 104, "the session was ended by the gateway";
    /// No byte passed for longer than the idle limit.
    Idle = 16, 110, "the session was idle for too long";
    /// The connection may join no session: the session has ended, the token is wrong, or the index is taken.
    NoSession = 17, 71, "no session that this connection may join";
    /// OPEN demanded datagrams beside the session, and there are none.
    NoDatagrams = 18, 71, "no datagrams beside the session";
    /// The next hop refused the connection.
    Refused = 32, 111, "connection refused";
    /// The network of the next hop is unreachable.
    NetworkUnreachable = 33, 101, "network unreachable";
    /// The next hop is unreachable.
    HostUnreachable = 34, 113, "no route to host";
    /// The next hop did not answer.
    TimedOut = 35, 110, "connection timed out";
    /// The destination's name could not be resolved.
    NameNotFound = 36, 113, "the name does not resolve";
    /// The connection was reset by the other side.
    Reset = 37, 104, "connection reset";
    /// Another failure to connect.
    ConnectFailed = 38, 111, "the connection failed";
}

impl Code {
    /// The code for a connect or transfer error with this Linux `errno`. ENETDOWN (100) counts as ENETUNREACH,
    /// EHOSTDOWN (112) as EHOSTUNREACH, and EPIPE (32) as ECONNRESET.
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            111 => Self::Refused,
            101 | 100 => Self::NetworkUnreachable,
            113 | 112 => Self::HostUnreachable,
            110 => Self::TimedOut,
            104 | 32 => Self::Reset,
            _ => Self::ConnectFailed,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(number) => write!(f, "{} (code {number})", self.phrase()),
            known => f.write_str(known.phrase()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinct_and_map_back_to_their_codes() {
        for (i, code) in Code::ALL.iter().enumerate() {
            assert_eq!(Code::from_number(code.number()), *code);
            assert!(Code::ALL[..i].iter().all(|other| other.number() != code.number()), "{code:?}");
        }
        assert_eq!(Code::from_number(9999), Code::Unknown(9999));
    }

    #[test]
    fn connect_errors_keep_their_errno() {
        for errno in [111, 101, 113, 110, 104] {
            assert_eq!(Code::from_errno(errno).errno(), errno);
        }
    }
}
