//! Whether this gateway can provide what a client requires of each hop (P10). It refuses what it cannot provide.

use crate::config::Config;
use crate::refusal::Refusal;
use crate::request::Request;
use crate::route::Next;
use phoebus_config::agent::AGENT;
use phoebus_proto::session::Code;
use phoebus_proto::session::message::{Requirements, Security};
use phoebus_proto::units::BitRate;

/// Whether this gateway can provide what `request` requires of the hop to `next`. What it cannot provide is refused,
/// never silently ignored. `available` is the most bytes that it buffers of one direction. The hop to the destination
/// carries the program's bytes as they are, and protects nothing.
pub(crate) fn check(config: &Config, request: &Request, next: Next<'_>, available: u64) -> Result<(), Refusal> {
    let wanted = request.requirements;
    let protected = match next {
        Next::Peer(name) => config.peers.get(name).map_or(Security::None, |peer| as_told(peer.security)),
        Next::Direct(_) => Security::None,
    };
    let profile = match next {
        Next::Peer(name) => config.peers.get(name).map(|peer| &peer.profile),
        Next::Direct(route) => Some(route.map_or(&config.direct, |route| &route.profile)),
    };
    let rate = profile.and_then(|profile| config.rates.get(&profile.name)).map(|rate| rate.0);
    let limits = Requirements {
        rate,
        buffer: Some(available),
        streams: Some(config.limits.streams.get()),
        security: Some(protected),
        ..Requirements::default()
    };
    let refuse = |reason: String| Err(Refusal { limits: Box::new(limits), ..Refusal::new(Code::Requirement, reason) });
    match wanted {
        Requirements { buffer: Some(bytes), .. } if bytes > available => {
            refuse(format!("a buffer of {bytes} bytes was asked for; at most {available} is available"))
        }
        Requirements { duration: Some(_), .. } => {
            refuse("a time was asked for, but a reservation here lasts as long as its session".to_owned())
        }
        // An agent promises no rate: its user's programs are alone on its hop, and its gateway decides.
        Requirements { rate: Some(wanted), .. } if config.name != AGENT && rate.is_none_or(|rate| wanted > rate) => {
            let wanted = BitRate(wanted);
            let has = rate.map_or_else(|| "has no rate".to_owned(), |rate| format!("carries {}", BitRate(rate)));
            refuse(format!("{wanted} was asked for, but the hop to {} {has}", next_name(next, request)))
        }
        Requirements { rate: Some(0), .. } => refuse("a bandwidth of 0 was asked for".to_owned()),
        Requirements { streams: Some(streams), .. } if streams > config.limits.streams.get() => {
            let most = config.limits.streams;
            refuse(format!(
                "{streams} connections for each hop were asked for; at most {most} are available (limits.streams)"
            ))
        }
        Requirements { security: Some(security), .. } if security > protected => {
            let to = next_name(next, request);
            refuse(format!("protected hops were asked for, but the hop to {to} is not protected so"))
        }
        _ if request.resumable => {
            refuse("a resumable session was asked for, but no hop of this gateway can resume".to_owned())
        }
        _ => Ok(()),
    }
}

fn next_name(next: Next<'_>, request: &Request) -> String {
    match next {
        Next::Peer(name) => name.to_owned(),
        Next::Direct(_) => format!("the destination, {}", request.destination),
    }
}

fn as_told(security: phoebus_net::transport::Security) -> Security {
    use phoebus_net::transport::Security as Has;
    match security {
        Has::None => Security::None,
        Has::Auth => Security::Auth,
        Has::Encrypt => Security::Encrypt,
    }
}
