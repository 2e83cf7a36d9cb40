//! What a line of the audit says. No field holds a secret.

use crate::config::RulePlace;
use crate::refusal::Refusal;
use crate::request::{Arrival, Request};
use phoebus_net::credentials::date;
use phoebus_proto::entry::Entry;
use serde::Serialize;
use std::net::IpAddr;
use std::time::SystemTime;

/// What was decided about a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Decision {
    Allow,
    Deny,
    Redirect,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Opened,
    /// It was refused, by this gateway or by what lies behind it.
    Refused,
    /// The requester left before the answer.
    Abandoned,
}

/// A decision.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    /// RFC 3339, in UTC.
    time: String,
    gateway: &'a str,
    decision: Decision,
    outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    /// The other end of the connection.
    from: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<&'a str>,
    /// The client, as the first gateway saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    principal: Option<Who<'a>>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    claim: Option<Claimed<'a>>,
    /// How it came in: `session`, `socks`, `http`.
    entry: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    listener: Option<String>,
    transport: &'a str,
    security: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<String>,
    /// The rule that has decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<RulePlace>,
    /// The code of a refusal (`docs/protocol/session.md` §7); 0 for none.
    code: u16,
    /// Who refuses.
    #[serde(skip_serializing_if = "str::is_empty")]
    hop: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    redirect: Option<String>,
}

/// Who somebody has said to be, without having proved it.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Claimed<'a> {
    /// The mechanism.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) method: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) user: &'a str,
}

impl<'a> Claimed<'a> {
    /// Of a name, no more is told than this many bytes.
    const USER_MAX: usize = 256;

    pub(crate) fn new(method: &'a str, user: &'a str) -> Self {
        Self { method, user: &user[..user.floor_char_boundary(Self::USER_MAX)] }
    }
}

#[derive(Debug, Serialize)]
struct Who<'a> {
    method: &'a str,
    subject: &'a str,
    user: &'a str,
    groups: &'a [String],
    spoken_for_by: &'a str,
}

impl<'a> Line<'a> {
    /// About a request for a session.
    pub(crate) fn session(
        gateway: &'a str,
        request: &'a Request,
        (decision, rule): (Decision, Option<RulePlace>),
        (outcome, refusal): (Outcome, Option<&'a Refusal>),
    ) -> Self {
        let principal = &request.principal;
        let who = Who {
            method: &principal.method,
            subject: &principal.subject,
            user: &principal.user,
            groups: &principal.groups,
            spoken_for_by: &principal.spoken_for_by,
        };
        Self {
            session: Some(request.session.to_string()),
            peer: request.peer.as_deref(),
            origin: Some(request.origin.to_string()),
            principal: Some(who).filter(|_| !principal.is_nobody()),
            destination: Some(request.destination.to_string()),
            rule,
            redirect: refusal.and_then(|refusal| refusal.redirect.as_ref()).map(ToString::to_string),
            ..Self::bare(gateway, (request.from.ip(), request.entry, &request.arrival), (decision, outcome), refusal)
        }
    }

    /// About a connection that may not ask for a session: it has not authenticated, or not well enough.
    pub(crate) fn connection(
        gateway: &'a str,
        (from, entry, arrival): (IpAddr, Entry, &'a Arrival),
        claim: Claimed<'a>,
        refusal: &'a Refusal,
    ) -> Self {
        let decided = (Decision::Deny, Outcome::Refused);
        Self { claim: Some(claim), ..Self::bare(gateway, (from, entry, arrival), decided, Some(refusal)) }
    }

    fn bare(
        gateway: &'a str,
        (from, entry, arrival): (IpAddr, Entry, &'a Arrival),
        (decision, outcome): (Decision, Outcome),
        refusal: Option<&'a Refusal>,
    ) -> Self {
        Self {
            time: now(),
            gateway,
            decision,
            outcome,
            session: None,
            from: from.to_canonical(),
            peer: None,
            origin: None,
            principal: None,
            claim: None,
            entry: entry.name(),
            listener: arrival.listener.map(|listener| listener.to_string()),
            transport: &arrival.transport,
            security: arrival.security.name(),
            destination: None,
            rule: None,
            code: refusal.map_or(0, |refusal| refusal.code.number()),
            hop: refusal.map_or("", |refusal| if refusal.hop.is_empty() { gateway } else { &refusal.hop }),
            reason: refusal.map_or("", |refusal| &refusal.reason),
            redirect: None,
        }
    }
}

/// Lines that are missing.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Missing {
    /// There was no room for them, or they could not be written.
    Lost(u64),
    /// They were about strangers, who caused too many.
    LeftOut(u64),
}

impl Missing {
    /// A line that tells it.
    pub(super) fn line(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Line<'a> {
            time: String,
            #[serde(flatten)]
            missing: &'a Missing,
        }
        text(&Line { time: now(), missing: self })
    }
}

/// A line with its end.
pub(super) fn text(line: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text
}

/// The time, with milliseconds.
fn now() -> String {
    let now = SystemTime::now();
    let part = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_millis();
    format!("{}.{part:03}Z", date(now).trim_end_matches('Z'))
}
