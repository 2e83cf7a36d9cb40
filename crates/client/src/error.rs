//! Why there is no session: a code and an `errno` for programs, the hop at fault, a sentence for people (P10, P18).

use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::first_hop::FirstHop;
use phoebus_proto::session::{Code, ProtocolError};
use phoebus_proto::units::Span;
use std::io;

/// A session that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The first gateway cannot be reached.
    #[error("gateway {gateway}: {source}")]
    Gateway {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// Why.
        source: phoebus_net::Error,
    },
    /// The same, where somebody else made the connection.
    #[error("gateway {gateway}: cannot connect: {}", phoebus_net::reason(source))]
    Unreachable {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// Why.
        source: io::Error,
    },
    /// The first gateway and this end do not trust each other, or differ on how to protect the connection.
    #[error("gateway {gateway}: cannot trust it: {}", phoebus_net::reason(source))]
    Untrusted {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// What it showed or said, and what was expected.
        source: io::Error,
    },
    /// The session does not have what was asked for.
    #[error("{reason}")]
    Requirement {
        /// The gateway at whose hop that is, or the first one of the path.
        hop: String,
        /// What was asked for, and what there is.
        reason: String,
    },
    /// The agent that is to carry the first hop does not run.
    #[error(
        "no agent carries the first hop to gateway {gateway} by {first_hop} any more; phoebus run --first-hop {first_hop} \
         and phoebus connect --first-hop {first_hop} start one"
    )]
    NoAgent {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// What was demanded.
        first_hop: FirstHop,
    },
    /// A gateway refused, or could not reach what comes next.
    #[error("{}", refusal(.gateway, hop, *code, reason, redirect.as_ref()))]
    Refused {
        /// The first gateway of the path, which passed this on.
        gateway: Endpoint,
        /// Which hop refused: a gateway's name, or an address that did not answer.
        hop: String,
        /// Why, for programs.
        code: Code,
        /// Why, as that hop put it.
        reason: String,
        /// A gateway that it says is better (P10).
        redirect: Option<Endpoint>,
    },
    /// The first gateway named a better one, and that led to no session either.
    #[error("{last}; {}", trail(.asked, *.end, last))]
    Redirected {
        /// What the gateway asked last had to say.
        last: Box<Self>,
        /// The gateways that were asked, in order.
        asked: Vec<Endpoint>,
        /// Why it was the last.
        end: RedirectEnd,
    },
    /// The gateway wants to know who is there.
    #[error("gateway {gateway} asks for authentication ({mechanisms}); {advice}")]
    Authentication {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// What it would accept.
        mechanisms: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// The first gateway broke the protocol, or speaks another.
    #[error("gateway {gateway}: {source}")]
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
        /// How.
        source: io::Error,
    },
    /// The path did not answer in time.
    #[error("gateway {gateway} did not say within {limit} whether {destination} has connected")]
    Timeout {
        /// The first gateway of the path.
        gateway: Endpoint,
        /// Where the session was to end.
        destination: Endpoint,
        /// How long was waited.
        limit: Span,
    },
    /// A direct connection failed.
    #[error("{0}")]
    Direct(#[from] phoebus_net::Error),
    /// The system gave no random bytes for a session's identifier.
    #[error("the system gave no random bytes: {0}")]
    Random(getrandom::Error),
}

/// Why no further gateway was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedirectEnd {
    /// The last one named no other.
    Failed,
    /// It named one that was asked before.
    Circle,
    /// [`Options::redirects`](crate::Options::redirects) were followed.
    Limit,
}

impl Error {
    /// The reason, for programs.
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
            Self::Untrusted { .. } => Code::AuthFailed,
            Self::Requirement { .. } => Code::Requirement,
            Self::NoAgent { .. } => Code::Refused,
            Self::Random(_) => Code::Internal,
        }
    }

    /// The Linux `errno` that a direct connection would have given.
    pub fn errno(&self) -> i32 {
        self.code().errno()
    }

    /// The hop at fault: a gateway or an address; `None` when it is this host.
    pub fn hop(&self) -> Option<String> {
        match self {
            Self::Gateway { gateway, .. }
            | Self::Unreachable { gateway, .. }
            | Self::Untrusted { gateway, .. }
            | Self::Authentication { gateway, .. }
            | Self::Protocol { gateway, .. }
            | Self::Lost { gateway, .. }
            | Self::Timeout { gateway, .. } => Some(gateway.to_string()),
            Self::Refused { hop, gateway, .. } if hop.is_empty() => Some(gateway.to_string()),
            Self::Refused { hop, .. } | Self::Requirement { hop, .. } => Some(hop.clone()),
            Self::Redirected { last, .. } => last.hop(),
            Self::NoAgent { .. } | Self::Direct(_) | Self::Random(_) => None,
        }
    }

    /// Whether the first gateway has said no, and the connection has no fault.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Redirected { last, .. } => last.is_refusal(),
            error => matches!(error, Self::Refused { .. } | Self::Authentication { .. }),
        }
    }

    /// Whether no gateway was there to say anything, which is when a fallback to a direct connection is in order. A
    /// gateway that refuses has its reasons.
    pub(crate) fn without_gateway(&self) -> bool {
        matches!(self, Self::Gateway { .. } | Self::Unreachable { .. })
    }
}

/// The way from gateway to gateway, for people.
fn trail(asked: &[Endpoint], end: RedirectEnd, last: &Error) -> String {
    let named = if let Error::Refused { redirect, .. } = last { redirect.as_ref() } else { None };
    let way: Vec<_> = asked.iter().chain(named).map(Endpoint::to_string).collect();
    let way = way.join(" → ");
    match end {
        RedirectEnd::Failed => format!("redirected: {way}"),
        RedirectEnd::Circle => format!("gave up, for the redirects lead in a circle: {way}"),
        RedirectEnd::Limit => format!("gave up, for the limit of redirects, {}, is reached: {way}", asked.len() - 1),
    }
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
