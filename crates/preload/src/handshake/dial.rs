//! Connects to the addresses of a gateway or agent, one after the other.

use super::note_deadline;
use crate::config::Config;
use crate::record::Attempt;
use crate::report::Failure;
use crate::socket;
use crate::sys::{self, Errno};
use crate::table::Guard;
use libc::c_int;
use phoebus_proto::endpoint::{EndpointRef, PATH_MAX};
use phoebus_proto::session::auth::Credential;
use phoebus_proto::session::login::{self, LoginError, Random};
use phoebus_proto::session::message::{Hello, Open, Requirements};
use phoebus_proto::session::plan::{CONNECT_LIMIT, credential};
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
    if attempt.agent_in_use().is_none() {
        socket::tune(fd, attempt);
    }
    let credential = credential_of(attempt, config);
    let mut random: Random = [0; _];
    if matches!(credential, Some(Credential::Password(_))) {
        sys::random(&mut random)?;
    }
    let login = credential.as_ref().map(|credential| (credential, random));
    let begun =
        with_open(attempt, config, destination, |open| login::connect((out, inbox), &Hello::of(""), login, open));
    // The longest OPEN fits the buffer.
    let (mut handshake, exchange) = begun.map_err(|_| libc::EMSGSIZE)?;
    attempt.exchange = exchange;
    let sent = socket::start(fd, &to, handshake.outgoing())?;
    handshake.sent(sent);
    attempt.handshake = Some(handshake);
    attempt.until = sys::now().saturating_add(CONNECT_LIMIT);
    note_deadline(attempt.until);
    attempt.unsettled.clear();
    Ok(())
}

/// Goes on after the gateway's CHALLENGE or PROVED. Returns whether it can.
pub(super) fn authenticate(attempt: &mut Attempt, config: &Config, destination: SocketAddr) -> Result<bool, Failure> {
    let (mut handshake, mut exchange) = (attempt.handshake.take().ok_or(Failure::Lost(0))?, attempt.exchange.take());
    let credential = credential_of(attempt, config);
    let goes_on = with_open(attempt, config, destination, |open| {
        login::go_on(&mut handshake, exchange.as_mut(), credential.as_ref(), Some(open))
    });
    (attempt.handshake, attempt.exchange) = (Some(handshake), exchange);
    goes_on.map_err(|error| match error {
        LoginError::Protocol(error) => Failure::Protocol(error),
        LoginError::Auth(error) => Failure::Login(error),
    })
}

/// What this program proves itself with.
fn credential_of<'a>(attempt: &'a Attempt, config: &'a Config) -> Option<Credential<'a>> {
    let secret = attempt.agent_in_use().map(|agent| &agent.secret.0[..]);
    let login = attempt.plan.gateway().and_then(|gateway| config.login(gateway));
    credential(secret, login, config.settings.user.as_deref())
}

/// Calls `then` with the request.
fn with_open<R>(attempt: &Attempt, config: &Config, destination: SocketAddr, then: impl FnOnce(&Open) -> R) -> R {
    let mut room = [config.gateway.as_ref(); PATH_MAX];
    let mut count = 0;
    let by_agent = attempt.agent_in_use().is_some();
    for (slot, gateway) in room.iter_mut().zip(attempt.plan.onward(&config.settings.path, by_agent)) {
        (*slot, count) = (gateway, count + 1);
    }
    let requirements = Requirements { rate: config.settings.bandwidth.map(|rate| rate.0), ..Requirements::default() };
    let asked = Open::new(SessionId(attempt.session), EndpointRef::from(destination));
    then(&Open { path: List::new(&room[..count]), requirements, ..asked })
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
