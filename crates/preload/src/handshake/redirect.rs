//! What follows a failure, by the plan of the attempt; and how a better gateway is asked (`docs/protocol/session.md`,
//! REFUSED).

use super::FirstHop;
use super::dial::dial;
use crate::config::Config;
use crate::record::{GATEWAYS, Gateways};
use crate::report::Failure;
use crate::socket;
use crate::sys::{self, Errno};
use crate::table::Guard;
use libc::c_int;
use phoebus_proto::session::plan::{self, Hop, Next};
use std::net::SocketAddr;

/// Decides what to do after `failure`, when no address is left.
pub(super) fn next(guard: &mut Guard, config: &Config, failure: &Failure) -> Next {
    let Some(attempt) = guard.record().and_then(|record| record.attempt.as_mut()) else { return Next::Over(None) };
    // Unless an agent is required, the gateway's own addresses were among those tried.
    let hop = if config.demands_agent() { Hop::Agent { demanded: true } } else { Hop::Gateway };
    let refused = attempt.handshake.as_ref().and_then(|handshake| handshake.refused());
    let better = refused.and_then(|refused| refused.redirect).filter(|better| better.socket_addr().is_some());
    let failure = match failure {
        Failure::Connect(_) if attempt.is_gateway_absent() => plan::Failure::Absent,
        Failure::Refused(_) => plan::Failure::Refused(better),
        _ => plan::Failure::Broken,
    };
    let next = attempt.plan.failed(&config.settings.path, hop, failure);
    if let Next::Over(end) = next {
        attempt.end = end;
    }
    next
}

/// Closes the connection to the gateway that named a better one, and asks that one for a session of its own.
pub(super) fn follow(guard: &mut Guard, fd: c_int, config: &Config, destination: SocketAddr) -> Result<(), Errno> {
    let mut session = [0; 16];
    sys::random(&mut session)?;
    let family = guard.socket_state().family;
    let attempt = guard.record().and_then(|record| record.attempt.as_mut()).ok_or(libc::ENOMEM)?;
    let better = attempt.plan.gateway().and_then(|gateway| gateway.socket_addr());
    let first = FirstHop::to(config, Gateways::new(better.into_iter()), attempt.agent_in_use().copied());
    attempt.handshake = None;
    attempt.session = session;
    attempt.gateways = first.to.for_family(family);
    attempt.gateway = 0;
    attempt.failures = [0; GATEWAYS];
    attempt.agent = first.agent;
    attempt.heard = false;
    attempt.begun = sys::now();
    socket::hang_up(fd);
    dial(guard, fd, config, destination)
}
