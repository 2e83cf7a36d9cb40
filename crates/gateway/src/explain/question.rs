//! The session that a question describes: `user=ada from=192.0.2.7 to=host.example:22`.

use crate::config::{Config, Listen, Mechanism};
use crate::request::{Arrival, Request};
use crate::rules::Belief;
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::auth::scram;
use phoebus_proto::session::message::Open;
use phoebus_proto::session::{Principal, SessionId};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// What a question may say.
const KEYS: [&str; 11] =
    ["user", "group", "method", "certificate", "from", "origin", "peer", "listener", "transport", "security", "to"];
/// What a question looks like.
const EXPECTED: &str = "expected, for example, user=ada from=192.0.2.7 to=host.example:22";

/// The request that a question describes, and notes about it.
pub(super) fn read(config: &Config, question: &str) -> Result<(Request, Vec<String>), String> {
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
        let belief = Belief::of(config, &principal);
        let unbelieved =
            |what: String| format!("{peer} may not say {what} (speaks_for): no rule that allows believes it");
        if !principal.user.is_empty() && !belief.in_user(&principal) {
            notes.push(unbelieved(format!("who is user {}", principal.user)));
        }
        let groups = principal.groups.iter().filter(|group| !belief.in_group(&principal, group));
        notes.extend(groups.map(|group| unbelieved(format!("who is in group {group}"))));
        if principal.user.is_empty() && !belief.in_all(&principal) {
            notes.push(unbelieved(format!("who is known by {}", principal.method)));
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
        } else if config.users.get(&principal.user).is_none()
            && !config.grid.as_ref().is_some_and(|grid| grid.has_user(&principal.user))
        {
            notes.push(format!("{} is not in the users file", principal.user));
        }
    }
    let origin = given.get("origin").map(|origin| match peer {
        Some(_) => origin.parse().map_err(|_| format!("origin={origin} is no address; expected one such as 192.0.2.7")),
        None => Err("origin= is the client that a peer names; expected peer= with it".to_owned()),
    });
    let origin: IpAddr = origin.transpose()?.unwrap_or(from);
    // A peer shows its certificate wherever there are any.
    let shown = peer.as_ref().filter(|_| arrival.security != Security::None).map(String::as_str);
    let proved = given.get("certificate").copied().or(shown).map(str::to_ascii_lowercase).into_iter().collect();
    let open = Open::new(SessionId([0; 16]), to.as_ref());
    let request = Request::new(&open, SocketAddr::new(from, 0), None, principal);
    Ok((Request { peer, proved, arrival, origin: SocketAddr::new(origin, 0).into(), ..request }, notes))
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
    // A peer's connections are protected as its settings say, whatever the listener is content with.
    let peer = given.get("peer").and_then(|name| config.peers.get(&name.to_ascii_lowercase()));
    let least = peer.map_or(listener.security, |peer| peer.security.max(listener.security));
    let shown = if given.contains_key("certificate") { Security::Encrypt } else { least };
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
