//! Admission of sessions: limits on their number, and what the [`rules`] say (P10, P25, invariant 5).
//!
//! Addresses of the gateway's own host are refused unless a range names them. The kernel is asked for them at each
//! request.

use crate::config::{Action, Config, Rule, RulePlace, addresses_reached, is_local, is_private};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::route::Next;
use crate::rules::{self, Verdict};
use crate::shared::{Phase, Setup, Shared};
use crate::slots::{Full, Slot};
use phoebus_net::reason;
use phoebus_net::route::{self, Routes};
use phoebus_proto::endpoint::HostRef;
use phoebus_proto::session::Code;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Counts the session of `request`. Fails if the gateway takes no more sessions, or has seen this one before.
pub(crate) fn session(shared: &Shared, setup: &Setup, request: &Request) -> Result<Slot, Refusal> {
    if shared.phase() != Phase::Open {
        return Err(Refusal::new(Code::Draining, "the gateway is shutting down and takes no new sessions"));
    }
    let most = setup.config.limits.remembered_sessions.get() as usize;
    if !shared.admission.seen.is_new(request.session, most) {
        return Err(Refusal::new(Code::Duplicate, "a session with this identifier was seen before"));
    }
    let source = request.source();
    shared.admission.sessions.take(source, setup.sessions, setup.sessions_per_source).map_err(|full| {
        let reason = match full {
            Full::Total => format!("all {} sessions of the gateway are in use (limits.sessions)", setup.sessions),
            Full::Source => {
                format!("{source} has its {} sessions in use (limits.sessions_per_source)", setup.sessions_per_source)
            }
        };
        Refusal::new(Code::Limit, reason)
    })
}

/// Whether the configuration allows `request` its destination, as far as known before names are resolved. Returns the rule that
/// allows it; none if the addresses will decide.
pub(crate) fn allowed(config: &Config, request: &Request, next: Next<'_>) -> Result<Option<RulePlace>, Refusal> {
    let destination = request.destination.as_ref();
    let (verdict, own) = match destination.host {
        HostRef::Addr(addr) => {
            let own = is_own(config, next, addr, &mut |addr| route::is_own(addr))?;
            (rules::judge_address(config, request, addr, own), Some((addr, own)))
        }
        // Only the gateway that resolves a name can judge its addresses.
        HostRef::Name(_) => (rules::judge_name(config, request, matches!(next, Next::Direct(_))), None),
    };
    match verdict {
        Verdict::Allowed(_) | Verdict::ByAddress => Ok(verdict.place()),
        Verdict::Refused(rule) => Err(refused_by(rule, request, &destination.to_string())),
        Verdict::Unknown => Err(not_allowed(config, request, &destination.to_string(), own)),
    }
}

/// An address of a destination's name, and the rule that allows it.
pub(crate) type AllowedAddress = (SocketAddr, Option<RulePlace>);

/// The `addresses` that are allowed for the destination of `request`, a name that this gateway has resolved to connect
/// to.
pub(crate) fn allowed_addresses(
    config: &Config,
    request: &Request,
    addresses: Vec<SocketAddr>,
) -> Result<Vec<AllowedAddress>, Refusal> {
    let mut routes = Routes::default();
    allowed_addresses_by(config, request, addresses, |addr| routes.is_own(addr))
}

/// Like [`allowed_addresses`], where `is_hosts` tells which addresses belong to the host. If it fails for an address,
/// only that address is refused.
fn allowed_addresses_by(
    config: &Config,
    request: &Request,
    addresses: Vec<SocketAddr>,
    mut is_hosts: impl FnMut(IpAddr) -> io::Result<bool>,
) -> Result<Vec<AllowedAddress>, Refusal> {
    let (mut allowed, mut refused) = (Vec::new(), None);
    for addr in addresses {
        let ip = addr.ip();
        let own = match is_own(config, Next::Direct(None), ip, &mut is_hosts) {
            Ok(own) => own,
            Err(refusal) => {
                refused.get_or_insert(refusal);
                continue;
            }
        };
        let what = || format!("{}, which resolves to {ip},", request.destination);
        let verdict = rules::judge_address(config, request, ip, own);
        match verdict {
            Verdict::Allowed(_) => allowed.push((addr, verdict.place())),
            Verdict::Refused(rule) => {
                refused.get_or_insert_with(|| refused_by(rule, request, &what()));
            }
            Verdict::ByAddress | Verdict::Unknown => {
                refused.get_or_insert_with(|| not_allowed(config, request, &what(), Some((ip, own))));
            }
        }
    }
    match refused {
        Some(refusal) if allowed.is_empty() => Err(refusal),
        _ => Ok(allowed),
    }
}

/// Whether `addr` is an address of this host or its links. Interface addresses, which `is_hosts` recognizes, count only
/// where this gateway connects itself: for the next gateway, they belong to another host.
fn is_own(
    config: &Config,
    next: Next<'_>,
    addr: IpAddr,
    is_hosts: &mut dyn FnMut(IpAddr) -> io::Result<bool>,
) -> Result<bool, Refusal> {
    if is_local(addr) {
        return Ok(true);
    }
    // A process that is the destination itself connects to nothing.
    if config.inlet.is_some() || !matches!(next, Next::Direct(_)) {
        return Ok(false);
    }
    for addr in addresses_reached(addr) {
        let own = is_hosts(addr).map_err(|error| {
            let why = reason(&error);
            Refusal::new(Code::Internal, format!("cannot find out whether {addr} is an address of the gateway: {why}"))
        })?;
        if own {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The refusal of `what` by a rule that denies or redirects it.
fn refused_by(rule: &Rule, request: &Request, what: &str) -> Refusal {
    let redirect = match &rule.action {
        Action::Redirect(gateway) => Some(Box::new(gateway.clone())),
        Action::Allow | Action::Deny => None,
    };
    let reason = match (rule.reason.as_str(), &redirect) {
        ("", None) => format!("{what} is denied to {}", requester(request)),
        ("", Some(gateway)) => format!("{what} is reached through {gateway}"),
        (reason, _) => reason.to_owned(),
    };
    Refusal { redirect, rule: Some(rule.place), ..Refusal::new(Code::NotAllowed, reason) }
}

/// The refusal of `what` that no rule fits. `at`: the address, and whether it is one of the gateway's own host or links.
fn not_allowed(config: &Config, request: &Request, what: &str, at: Option<(IpAddr, bool)>) -> Refusal {
    let would = |addr, own| matches!(rules::judge_address(config, request, addr, own), Verdict::Allowed(_));
    // The address that stands for a public one is reserved for documentation.
    let public = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let hint = match at {
        Some((addr, true)) if would(addr, false) => {
            " (it is an address of the gateway's own host or links; only a rule that names it by address covers it)"
        }
        Some((addr, _)) if is_private(addr) && would(public, false) => {
            " (it is an address of a private network; only a rule that names it by address or host covers it)"
        }
        _ => "",
    };
    Refusal::new(Code::NotAllowed, format!("{what} is not allowed to {}{hint}", requester(request)))
}

/// Who asks, as refusals name them.
fn requester(request: &Request) -> String {
    let from = || request.from.ip().to_canonical().to_string();
    let own = Some(&request.principal).filter(|principal| !principal.user.is_empty() && request.peer.is_none());
    match (&request.peer, own) {
        (Some(peer), _) => peer.clone(),
        (None, Some(principal)) => format!("{} from {}", principal.user, from()),
        (None, None) => from(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phoebus_proto::endpoint::Endpoint;
    use phoebus_proto::session::message::Open;
    use phoebus_proto::session::{Principal, SessionId};

    #[test]
    fn address_that_cannot_be_checked_is_refused_alone() {
        let text = "name = \"pg\"\n[[listen]]\naddress = \"127.0.0.1:5006\"\n\
                    [[allow]]\nfrom = [\"0.0.0.0/0\"]\nto = [\"*\"]\n";
        let config = Config::parse(text, "pg.toml".as_ref()).unwrap();
        let to: Endpoint = "host.example:7".parse().unwrap();
        let open = Open::new(SessionId([1; 16]), to.as_ref());
        let request = Request::new(&open, ([192, 0, 2, 9], 5).into(), None, Principal::default());
        let [six, four] = ["[2001:db8::1]:7", "192.0.2.1:7"].map(|addr| addr.parse::<SocketAddr>().unwrap());
        let is_hosts = |ip: IpAddr| if ip.is_ipv6() { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(false) };
        let allowed = |addresses| {
            let allowed = allowed_addresses_by(&config, &request, addresses, is_hosts)?;
            Ok::<Vec<_>, Refusal>(allowed.into_iter().map(|(addr, _)| addr).collect())
        };
        assert_eq!(allowed(vec![six, four]).unwrap(), [four]);
        let refusal = allowed(vec![six]).unwrap_err();
        assert_eq!(refusal.code, Code::Internal);
        assert!(refusal.reason.contains("2001:db8::1"), "{refusal:?}");
    }
}
