//! Connects to the addresses of a gateway or agent, one after the other.

use super::note_deadline;
use crate::config::Config;
use crate::record::Handshake;
use crate::socket;
use crate::sys::{self, Errno};
use crate::table::Guard;
use libc::c_int;
use phoebus_proto::endpoint::{EndpointRef, PATH_MAX};
use phoebus_proto::session::message::{Hello, Open, Requirements};
use phoebus_proto::session::plan::{CONNECT_LIMIT, auth};
use phoebus_proto::session::{List, SessionId};
use std::net::SocketAddr;

/// Connects to the gateway's current address, or to the next one that accepts.
pub(super) fn dial(guard: &mut Guard, fd: c_int, config: &Config, destination: SocketAddr) -> Result<(), Errno> {
    if let Some(attempt) = guard.record().and_then(|record| record.attempt.as_ref()) {
        attempt.unsettled.set();
    }
    loop {
        match dial_one(guard, fd, config, destination) {
            Ok(()) => return Ok(()),
            Err(errno) => {
                let attempt = guard.record().and_then(|record| record.attempt.as_mut()).ok_or(errno)?;
                attempt.failed(errno);
                attempt.gateways.get(attempt.gateway + 1).ok_or(errno)?;
                attempt.gateway += 1;
                socket::hang_up(fd);
            }
        }
    }
}

fn dial_one(guard: &mut Guard, fd: c_int, config: &Config, destination: SocketAddr) -> Result<(), Errno> {
    let gateway = guard
        .record()
        .and_then(|record| record.attempt.as_ref())
        .and_then(|attempt| attempt.gateways.get(attempt.gateway))
        .ok_or(libc::EHOSTUNREACH)?;
    let to = socket::fit(guard, fd, gateway)?;
    let record = guard.record().ok_or(libc::ENOMEM)?;
    let (out, inbox) = record.buffers();
    let attempt = record.attempt.as_mut().ok_or(libc::ENOMEM)?;
    let agent = attempt.agent_in_use().copied();
    if agent.is_none() {
        socket::tune(fd, attempt);
    }
    let asked = Open::new(SessionId(attempt.session), EndpointRef::from(destination));
    let mut room = [config.gateway.as_ref(); PATH_MAX];
    let mut count = 0;
    for (slot, gateway) in room.iter_mut().zip(attempt.plan.onward(&config.settings.path, agent.is_some())) {
        (*slot, count) = (gateway, count + 1);
    }
    let requirements = Requirements { rate: config.settings.bandwidth.map(|rate| rate.0), ..Requirements::default() };
    let open = Open { path: List::new(&room[..count]), requirements, ..asked };
    let auth = auth(agent.as_ref().map(|agent| &agent.secret.0[..]), config.settings.user.as_deref());
    // The longest OPEN fits the buffer.
    let mut handshake =
        Handshake::connect(out, inbox, &Hello::of(""), auth.as_ref(), &open).map_err(|_| libc::EMSGSIZE)?;
    let sent = socket::start(fd, &to, handshake.outgoing())?;
    handshake.sent(sent);
    attempt.handshake = Some(handshake);
    attempt.until = sys::now().saturating_add(CONNECT_LIMIT);
    note_deadline(attempt.until);
    attempt.unsettled.clear();
    Ok(())
}

/// Proceeds to the gateway's next address, if one is left.
pub(super) fn next_address(guard: &mut Guard, fd: c_int, config: &Config, destination: SocketAddr) -> bool {
    let Some(attempt) = guard.record().and_then(|record| record.attempt.as_mut()) else { return false };
    if attempt.gateways.get(attempt.gateway + 1).is_none() {
        return false;
    }
    attempt.gateway += 1;
    socket::hang_up(fd);
    dial(guard, fd, config, destination).is_ok()
}
