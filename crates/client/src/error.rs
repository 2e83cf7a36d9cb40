//! Why there is no session: a code and an `errno` for programs, the failed hop, a sentence for people (P10, P18).

use phoebus_config::first_hop::FirstHop;
use phoebus_config::logins::LoginsError;
use phoebus_proto::endpoint::{DEFAULT_PORT, Endpoint};
use phoebus_proto::session::auth::AuthError;
use phoebus_proto::session::plan::{self, RedirectEnd};
use phoebus_proto::session::{Code, ProtocolError};
use phoebus_proto::units::Span;
use std::fmt::Display;
use std::io;

/// A session that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The first gateway cannot be reached.
    #[error("gateway {gateway}: {source}")]
    Gateway {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// The reason.
        source: phoebus_net::Error,
    },
    /// The first gateway cannot be reached, where the caller made the connection.
    #[error("gateway {gateway}: cannot connect: {}", phoebus_net::reason(source))]
    Unreachable {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// The reason.
        source: io::Error,
    },
    /// Authentication between this end and the first gateway failed, or they disagree on the protection of the
    /// connection.
    #[error("gateway {gateway}: cannot trust it: {}", phoebus_net::reason(source))]
    Untrusted {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// What it presented or said, and what was expected.
        source: io::Error,
    },
    /// The session lacks a demanded property.
    #[error("{reason}")]
    Requirement {
        /// The gateway whose hop lacks it, or the first one of the path.
        hop: String,
        /// What was demanded, and what the session has.
        reason: String,
    },
    /// The agent that must carry the first hop is not running.
    #[error(
        "no agent carries the first hop to gateway {gateway} by {first_hop} any more; phoebus run --first-hop {first_hop} \
         and phoebus connect --first-hop {first_hop} start one"
    )]
    NoAgent {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// The demanded first hop.
        first_hop: FirstHop,
    },
    /// A gateway refused, or could not reach the next hop.
    #[error("{}", refusal(.gateway, hop, *code, reason, redirect.as_ref()))]
    Refused {
        /// The first gateway of the path, which passed the refusal on.
        gateway: Endpoint,
        /// The hop that refused: a gateway's name, or an address that did not answer.
        hop: String,
        /// The reason, as a code.
        code: Code,
        /// The reason, in that hop's words.
        reason: String,
        /// A better gateway that it names (P10).
        redirect: Option<Endpoint>,
    },
    /// The first gateway named a better one, which led to no session either.
    #[error("{last}; {}", trail(.asked, *.end, last))]
    Redirected {
        /// The error of the gateway that was asked last.
        last: Box<Self>,
        /// The gateways that were asked, in order.
        asked: Vec<Endpoint>,
        /// Why no further gateway was asked.
        end: RedirectEnd,
    },
    /// The gateway requires authentication.
    #[error("gateway {gateway} asks for authentication ({mechanisms}); {advice}")]
    Authentication {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// The methods that it accepts.
        mechanisms: String,
        /// What the user can do about it.
        advice: String,
    },
    /// Authentication with the user's password failed: the gateway has not proved itself, or the kept keys do not fit.
    #[error("gateway {gateway}: {source}")]
    Login {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// What failed.
        source: AuthError,
    },
    /// The file of the user's logins cannot be used.
    #[error(transparent)]
    Logins(LoginsError),
    /// The first gateway broke the protocol, or speaks another one.
    #[error("gateway {gateway}: {source}{}", hint(source))]
    Protocol {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// What it did.
        source: ProtocolError,
    },
    /// The connection to the first gateway failed during the handshake.
    #[error("gateway {gateway}: the connection failed before the session was open: {}", phoebus_net::reason(source))]
    Lost {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// How the connection failed.
        source: io::Error,
    },
    /// No answer from the path in time.
    #[error("gateway {gateway} did not say within {limit} whether {destination} has connected")]
    Timeout {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// The session's destination.
        destination: Endpoint,
        /// How long this end waited.
        limit: Span,
    },
    /// A direct connection failed.
    #[error("{0}")]
    Direct(#[from] phoebus_net::Error),
    /// The system provided no random bytes for the session's identifier.
    #[error("the system gave no random bytes: {0}")]
    Random(getrandom::Error),
}

impl Error {
    /// The reason, as a code.
    pub fn code(&self) -> Code {
        match self {
            Self::Gateway { source, .. } | Self::Direct(source) => source.code(),
            Self::Refused { code, .. } => *code,
            Self::Redirected { last, .. } => last.code(),
            Self::Authentication { .. } => Code::AuthRequired,
            Self::Protocol { .. } => Code::Protocol,
            Self::Lost { source, .. } => phoebus_net::code_of(source),
            Self::Timeout { .. } => Code::TimedOut,
            Self::Unreachable { source, .. } => phoebus_net::code_of(source),
            Self::Untrusted { .. } | Self::Login { .. } => Code::AuthFailed,
            Self::Requirement { .. } => Code::Requirement,
            Self::NoAgent { .. } => Code::Refused,
            Self::Random(_) | Self::Logins(_) => Code::Internal,
        }
    }

    /// The Linux `errno` that a direct connection would give.
    pub fn errno(&self) -> i32 {
        self.code().errno()
    }

    /// The failed hop: a gateway or an address; `None` for this host.
    pub fn hop(&self) -> Option<String> {
        match self {
            Self::Gateway { gateway, .. }
            | Self::Unreachable { gateway, .. }
            | Self::Untrusted { gateway, .. }
            | Self::Authentication { gateway, .. }
            | Self::Login { gateway, .. }
            | Self::Protocol { gateway, .. }
            | Self::Lost { gateway, .. }
            | Self::Timeout { gateway, .. } => Some(gateway.to_string()),
            Self::Refused { hop, gateway, .. } if hop.is_empty() => Some(gateway.to_string()),
            Self::Refused { hop, .. } | Self::Requirement { hop, .. } => Some(hop.clone()),
            Self::Redirected { last, .. } => last.hop(),
            Self::NoAgent { .. } | Self::Direct(_) | Self::Random(_) | Self::Logins(_) => None,
        }
    }

    /// Whether the first gateway refused over a connection that works.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Redirected { last, .. } => last.is_refusal(),
            error => matches!(error, Self::Refused { .. } | Self::Authentication { .. }),
        }
    }

    /// Whether no gateway could be reached. Only then is a direct connection a legitimate fallback: a gateway that
    /// refuses has its reasons.
    pub(crate) fn without_gateway(&self) -> bool {
        matches!(self, Self::Gateway { .. } | Self::Unreachable { .. })
    }
}

/// The question for someone who has named another server's port.
fn hint(error: &ProtocolError) -> String {
    match error {
        ProtocolError::Preface(_) => format!("; is this the gateway's port? {DEFAULT_PORT} is the default"),
        _ => String::new(),
    }
}

fn trail<'a>(asked: &'a [Endpoint], end: RedirectEnd, last: &'a Error) -> impl Display + 'a {
    let named = if let Error::Refused { redirect, .. } = last { redirect.as_ref() } else { None };
    plan::trail(asked.iter().map(Endpoint::as_ref), named.map(Endpoint::as_ref), end)
}

fn refusal(gateway: &Endpoint, hop: &str, code: Code, reason: &str, redirect: Option<&Endpoint>) -> String {
    let reason = if reason.is_empty() { code.to_string() } else { reason.to_owned() };
    let hop = if hop.is_empty() { gateway.to_string() } else { hop.to_owned() };
    let mut text = if reason.contains(&hop) { reason } else { format!("{hop}: {reason}") };
    if let Some(better) = redirect {
        text.push_str(&format!(" (it names a better gateway: {better})"));
    }
    text
}
