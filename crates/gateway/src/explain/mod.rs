//! `phoebus gateway --explain`, and the same question to a running gateway: what would become of a session, by which rule and
//! under which limits.
//!
//! The answer comes from the code that decides about sessions. It opens none, and counts none.

mod question;

use crate::admit;
use crate::config::{Config, RulePlace};
use crate::quota;
use crate::refusal::Refusal;
use crate::request::{Arrival, Request};
use crate::route::{self, Next};
use phoebus_net::names::Names;
use phoebus_proto::endpoint::Host;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The decision about a name without addresses.
const UNDECIDED: &str = "undecided";
/// What would become of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Who asks, and how, with what the question left open filled in.
    pub asks: String,
    /// The destination.
    pub to: String,
    /// The next hop: a peer's name, or `direct`.
    pub next: String,
    /// `allow`, `deny`, `redirect`; or `undecided` if the destination's name does not resolve.
    pub decision: String,
    /// The rule that decides, or that fits the name; none if no rule fits.
    pub rule: Option<RulePlace>,
    /// Why, as a sentence: for a refusal the one that the client gets.
    pub reason: String,
    /// The gateway to ask instead.
    pub gateway: Option<String>,
    /// What each address of the destination's name leads to, if this gateway resolves it.
    pub addresses: Vec<AddressExplanation>,
    /// The limits that would bound the session, one sentence each.
    pub limits: Vec<String>,
    /// What else the administrator should know, one sentence each.
    pub notes: Vec<String>,
}

/// What becomes of one address of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressExplanation {
    /// The address.
    pub address: IpAddr,
    /// `allow`, `deny` or `redirect`.
    pub decision: String,
    /// The rule that decides.
    pub rule: Option<RulePlace>,
}

/// Says what a gateway with `config` would decide about the session that `question` describes by keys and values, such as
/// `user=ada from=192.0.2.7 to=host.example:22`. Resolves the destination's name where the gateway would.
///
/// # Errors
/// What is wrong with the question, and what was expected.
pub async fn explain(config: &Config, question: &str) -> Result<Explanation, String> {
    let lookups = config.limits.lookups.get() as usize;
    let limit = config.limits.resolve_timeout.0;
    explain_by(config, (&Names::new(lookups, lookups), limit), question).await
}

/// Like [`explain`], with names resolved by `names`, within `limit`.
pub(crate) async fn explain_by(
    config: &Config,
    (names, limit): (&Names, Duration),
    question: &str,
) -> Result<Explanation, String> {
    let (request, mut notes) = question::read(config, question)?;
    let next = route::by_route(config, request.destination.host.as_ref());
    let (mut addresses, mut unresolved) = (Vec::new(), None);
    let mut decided = admit::allowed(config, &request, next);
    if let (Host::Name(name), Next::Direct(_), Ok(by_name)) = (&request.destination.host, next, &decided) {
        match names.resolve(Ipv4Addr::LOCALHOST.into(), name, request.destination.port, limit).await {
            Ok(found) => {
                let judged = |addr: &SocketAddr| (addr.ip(), judge(config, &request, *addr));
                let judged: Vec<_> = found.iter().map(judged).collect();
                addresses = judged.iter().map(|(address, decided)| explain_address(*address, decided)).collect();
                let first = judged.iter().position(|(_, decided)| decided.is_ok()).unwrap_or(0);
                decided = judged.into_iter().nth(first).map_or(Ok(*by_name), |(_, decided)| decided);
            }
            Err(error) => unresolved = Some(error.to_string()),
        }
    }
    if matches!((&request.destination.host, next), (Host::Name(_), Next::Peer(_))) {
        notes.push("the gateway that resolves the name judges its addresses by rules of its own".to_owned());
    }
    if !config.peers.is_empty() {
        notes.push("a session with a path of its own goes where the path leads, and not by the routes".to_owned());
    }
    let (decision, rule, reason, gateway) = match decided {
        Ok(rule) if let Some(why) = unresolved => (UNDECIDED, rule, why, None),
        Ok(rule) => ("allow", rule, "the rule allows it".to_owned(), None),
        Err(refusal) => (decision(&refusal), refusal.rule, refusal.reason, refusal.redirect),
    };
    let next = if let Next::Peer(name) = next { name } else { "direct" };
    Ok(Explanation {
        asks: asks(&request),
        to: request.destination.to_string(),
        next: next.to_owned(),
        decision: decision.to_owned(),
        rule,
        reason,
        gateway: gateway.map(|gateway| gateway.to_string()),
        addresses,
        limits: limits(config, &request),
        notes,
    })
}

/// The decision about one address of the destination's name.
fn judge(config: &Config, request: &Request, addr: SocketAddr) -> Result<Option<RulePlace>, Refusal> {
    let allowed = admit::allowed_addresses(config, request, vec![addr])?;
    Ok(allowed.into_iter().next().and_then(|(_, rule)| rule))
}

fn explain_address(address: IpAddr, decided: &Result<Option<RulePlace>, Refusal>) -> AddressExplanation {
    let (decision, rule) = match decided {
        Ok(rule) => ("allow", *rule),
        Err(refusal) => (decision(refusal), refusal.rule),
    };
    AddressExplanation { address, decision: decision.to_owned(), rule }
}

fn decision(refusal: &Refusal) -> &'static str {
    if refusal.redirect.is_some() { "redirect" } else { "deny" }
}

/// The limits that bound the session.
fn limits(config: &Config, request: &Request) -> Vec<String> {
    let sessions = match config.limits.sessions {
        Some(sessions) => format!("{sessions} sessions at a time (limits.sessions)"),
        None => "as many sessions at a time as descriptors allow (limits.sessions)".to_owned(),
    };
    let source = match config.limits.sessions_per_source {
        Some(sessions) => format!("{sessions} of them from one source (limits.sessions_per_source)"),
        None => "half of them from one source (limits.sessions_per_source)".to_owned(),
    };
    let accounts = quota::accounts_of(config, request).into_iter();
    let accounts =
        accounts.map(|(account, limit)| format!("{account}: {limit} ({}, line {})", limit.place(), limit.line));
    [sessions, source].into_iter().chain(accounts).collect()
}

/// Who asks, for people.
fn asks(request: &Request) -> String {
    let principal = &request.principal;
    let who = if principal.is_nobody() { "nobody in particular".to_owned() } else { principal.to_string() };
    let groups = match &principal.groups[..] {
        [] => String::new(),
        groups => format!(", of {}", groups.join(", ")),
    };
    let peer = request.peer.as_ref().map(|peer| format!(", a connection of {peer}")).unwrap_or_default();
    let origin = Some(&request.origin.host).filter(|origin| **origin != Host::Addr(request.from.ip()));
    let peer = origin.map(|origin| format!("{peer} for {origin}")).unwrap_or(peer);
    let Arrival { listener, transport, security } = &request.arrival;
    let at = listener.map(|listener| format!(" at {listener}")).unwrap_or_default();
    format!("{who}{groups}, from {}{peer}{at} by {transport} with security \"{}\"", request.from.ip(), security.name())
}
