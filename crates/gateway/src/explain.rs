//! `phoebus gateway --explain`, and the same question to a running gateway: what would become of a session, by which rule and
//! under which limits.
//!
//! The answer comes from the code that decides about sessions. It opens none, and counts none.

use crate::admit;
use crate::config::{Config, Listen, Mechanism, RulePlace};
use crate::quota;
use crate::refusal::Refusal;
use crate::request::{Arrival, Request};
use crate::route::{self, Next};
use phoebus_net::names::Names;
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_proto::session::auth::scram;
use phoebus_proto::session::message::Open;
use phoebus_proto::session::{Principal, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// What a question may say.
const KEYS: [&str; 10] =
    ["user", "group", "method", "certificate", "from", "peer", "listener", "transport", "security", "to"];
/// The decision about a name without addresses.
const UNDECIDED: &str = "undecided";
/// What a question looks like.
const EXPECTED: &str = "expected, for example, user=ada from=192.0.2.7 to=host.example:22";

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
    pub rule: Option<RuleStatus>,
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

/// A rule by its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStatus {
    /// `rule` or `allow`.
    pub table: String,
    /// Its number among those, from 1.
    pub number: u32,
    /// Its line in the configuration, as it was read.
    pub line: u32,
}

impl From<RulePlace> for RuleStatus {
    fn from(place: RulePlace) -> Self {
        Self { table: place.table.name().to_owned(), number: place.number, line: place.line }
    }
}

/// What becomes of one address of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressExplanation {
    /// The address.
    pub address: IpAddr,
    /// `allow`, `deny` or `redirect`.
    pub decision: String,
    /// The rule that decides.
    pub rule: Option<RuleStatus>,
}

/// Says what a gateway with `config` would decide about the session that `question` describes by keys and values, such as
/// `user=ada from=192.0.2.7 to=host.example:22`. Resolves the destination's name where the gateway would.
///
/// # Errors
/// What is wrong with the question, and what was expected.
pub async fn explain(config: &Config, question: &str) -> Result<Explanation, String> {
    let lookups = config.limits.lookups.get() as usize;
    explain_by(config, &Names::new(lookups, lookups), question).await
}

/// Like [`explain`], with names resolved by `names`.
pub(crate) async fn explain_by(config: &Config, names: &Names, question: &str) -> Result<Explanation, String> {
    let (request, mut notes) = read(config, question)?;
    let next = route::by_route(config, request.destination.host.as_ref());
    let (mut addresses, mut unresolved) = (Vec::new(), None);
    let mut decided = admit::allowed(config, &request, next);
    if let (Host::Name(name), Next::Direct(_), Ok(by_name)) = (&request.destination.host, next, &decided) {
        let limit = config.limits.resolve_timeout.0;
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
        rule: rule.map(Into::into),
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
    AddressExplanation { address, decision: decision.to_owned(), rule: rule.map(Into::into) }
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
    let Arrival { listener, transport, security } = &request.arrival;
    let at = listener.map(|listener| format!(" at {listener}")).unwrap_or_default();
    format!("{who}{groups}, from {}{peer}{at} by {transport} with security \"{}\"", request.from.ip(), security.name())
}

/// The request that a question describes, and notes about it.
fn read(config: &Config, question: &str) -> Result<(Request, Vec<String>), String> {
    let mut given: BTreeMap<&str, &str> = BTreeMap::new();
    for word in question.split_whitespace() {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("\"{word}\" is no KEY=VALUE; {EXPECTED}"))?;
        if !KEYS.contains(&key) {
            return Err(format!("there is no key \"{key}\"; expected some of: {}", KEYS.join(", ")));
        }
        if value.is_empty() {
            return Err(format!("{key}= has no value; {EXPECTED}"));
        }
        if given.insert(key, value).is_some() {
            return Err(format!("{key}= stands there twice; expected it once"));
        }
    }
    let needed = |key: &str| given.get(key).copied().ok_or_else(|| format!("{key}= is missing; {EXPECTED}"));
    let to = Endpoint::from_str(needed("to")?).map_err(|error| format!("to= is no host and port: {error}"))?;
    let from = needed("from")?;
    let from: IpAddr =
        from.parse().map_err(|_| format!("from={from} is no address; expected one such as 192.0.2.7"))?;
    let peer = given.get("peer").map(|name| name.to_ascii_lowercase());
    if let Some(peer) = peer.as_ref().filter(|peer| !config.peers.contains_key(*peer)) {
        let known: Vec<_> = config.peers.keys().map(String::as_str).collect();
        return Err(format!("there is no peer \"{peer}\"; expected one of: {}", known.join(", ")));
    }
    let (arrival, listener) = arrival(config, &given)?;
    let mut notes = Vec::new();
    let mut principal = principal(config, &given, arrival.security);
    if let Some(peer) = peer.as_ref().filter(|_| !principal.is_nobody()) {
        principal.spoken_for_by.clone_from(peer);
        if !crate::rules::is_believed(config, &principal) {
            notes.push(format!(
                "{peer} may not speak for {} (speaks_for): no rule that allows believes it",
                principal.subject
            ));
        }
    } else if !principal.user.is_empty() {
        if listener
            .auth
            .iter()
            .all(|way| matches!(way, Mechanism::Anonymous | Mechanism::Agent(_) | Mechanism::Certificate))
        {
            notes.push(format!(
                "nobody can be {} at {}: its auth has no way to prove it",
                principal.user, listener.address
            ));
        } else if config.users.get(&principal.user).is_none() {
            notes.push(format!("{} is not in the users file", principal.user));
        }
    }
    let open = Open::new(SessionId([0; 16]), to.as_ref());
    let proved = given.get("certificate").map(|name| name.to_ascii_lowercase()).into_iter().collect();
    let request = Request::new(&open, SocketAddr::new(from, 0), None, principal);
    Ok((Request { peer, proved, arrival, ..request }, notes))
}

/// How the session arrives: what the question says, and otherwise what the listener does; of several listeners, the first one that
/// fits.
fn arrival<'a>(config: &'a Config, given: &BTreeMap<&str, &str>) -> Result<(Arrival, &'a Listen), String> {
    let all = [Security::None, Security::Auth, Security::Encrypt];
    let security = match given.get("security") {
        None => None,
        Some(name) => Some(all.into_iter().find(|security| security.name() == *name).ok_or_else(|| {
            let known = all.map(Security::name).join(", ");
            format!("there is no security \"{name}\"; expected one of: {known}")
        })?),
    };
    let is_it = |listen: &&Listen| {
        given.get("listener").is_none_or(|address| listen.address.to_string() == **address)
            && given.get("transport").is_none_or(|transport| listen.transport == **transport)
            && security.is_none_or(|security| security >= listen.security)
    };
    let listener = config.listeners.iter().find(is_it).ok_or_else(|| {
        let known = config.listeners.iter().map(|listen| {
            format!("{} by {} with at least \"{}\"", listen.address, listen.transport, listen.security.name())
        });
        format!("no [[listen]] fits that; there are: {}", known.collect::<Vec<_>>().join(", "))
    })?;
    let shown = if given.contains_key("certificate") { Security::Encrypt } else { listener.security };
    let arrival = Arrival {
        listener: Some(listener.address),
        transport: listener.transport.as_str().into(),
        security: security.unwrap_or(shown),
    };
    Ok((arrival, listener))
}

/// Who asks. Groups are those of the users file, unless the question names some.
fn principal(config: &Config, given: &BTreeMap<&str, &str>, security: Security) -> Principal {
    let password = if security == Security::None { scram::PLAIN } else { scram::PLUS };
    let method = given.get("method").copied();
    let mut principal = match (given.get("user"), given.get("certificate")) {
        (Some(user), _) => {
            let method = method.filter(|method| *method != "scram").unwrap_or(password);
            Principal { user: (*user).to_owned(), ..Principal::new(method, user) }
        }
        (None, Some(name)) => Principal::new(method.unwrap_or("certificate"), name),
        (None, None) => method.map(|method| Principal::new(method, "somebody")).unwrap_or_default(),
    };
    principal.groups = match given.get("group") {
        Some(groups) => groups.split(',').map(str::to_owned).collect(),
        None => config.users.get(&principal.user).map(|user| user.groups.clone()).unwrap_or_default(),
    };
    principal
}
