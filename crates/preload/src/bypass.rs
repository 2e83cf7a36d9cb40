//! The memory of short paths, in the file that `phoebus connect` uses, too (S26; [`phoebus_config::bypass`]).
//!
//! System calls read and write the file. It is not mapped, because a mapped file that someone truncates ends the
//! program. A file that cannot be read or written costs a detour, and is no error.

use crate::config::Config;
use crate::record::Attempt;
use crate::report::FirstHopMetrics;
use crate::sys;
use libc::c_int;
use phoebus_config::bypass::{FILE_MAX, LINE_MAX, Measurement, recall};
use phoebus_proto::endpoint::HostRef;
use std::ffi::CStr;
use std::net::SocketAddr;
use std::time::Duration;

/// The round trip of an earlier session to `destination`, if it was short enough to connect directly.
pub(crate) fn short(config: &Config, destination: SocketAddr) -> Option<Duration> {
    let limit = config.settings.bypass_rtt;
    let file = config.cache.as_deref().filter(|_| !limit.is_zero())?;
    let fd = sys::open(file, libc::O_RDONLY).ok()?;
    let room = sys::map(FILE_MAX, false);
    let rtt = room.ok().and_then(|room| {
        // SAFETY: a mapping of this length, until it is given back below.
        let memory = unsafe { std::slice::from_raw_parts_mut(room, FILE_MAX) };
        let mut len = 0;
        while let Ok(n @ 1..) = sys::read(fd, &mut memory[len..]) {
            len += n;
        }
        let rtt = recall(&memory[..len], host(destination), &config.settings.path, sys::wall_clock().as_secs());
        // SAFETY: mapped above; the slice is not used any more.
        unsafe { sys::unmap(room, FILE_MAX) };
        rtt
    });
    sys::close(fd);
    rtt.filter(|rtt| *rtt < limit)
}

/// Remembers the round trip of a session that was just opened.
pub(crate) fn remember(config: &Config, attempt: &Attempt, fd: c_int, destination: SocketAddr) {
    let Some(file) = config.cache.as_deref().filter(|_| !config.settings.bypass_rtt.is_zero()) else { return };
    let Some(opened) = attempt.handshake.as_ref().and_then(|handshake| handshake.opened()) else { return };
    let rtt_us = opened.rtt_us().saturating_add(FirstHopMetrics::of(fd).rtt_us);
    let at = sys::wall_clock().as_secs();
    let measured = Measurement { at, destination: host(destination), rtt_us, path: &config.settings.path };
    let mut line = [0; LINE_MAX];
    // A hop that could not measure its round trip reports 0.
    if let Some(len) = measured.write(&mut line).filter(|_| rtt_us > 0) {
        append(file, &line[..len]);
    }
}

fn append(file: &CStr, line: &[u8]) {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT;
    let fd = sys::open(file, flags).or_else(|_| {
        make_directories(file);
        sys::open(file, flags)
    });
    let Ok(fd) = fd else { return };
    if sys::length(fd).is_ok_and(|len| len as usize + line.len() > FILE_MAX) {
        sys::truncate(fd);
    }
    // A single write, so that lines of programs that end at the same time do not mix.
    let _ = sys::write(fd, line);
    sys::close(fd);
}

fn make_directories(file: &CStr) {
    let mut path = [0; libc::PATH_MAX as usize];
    for (i, byte) in file.to_bytes().iter().enumerate().take(path.len() - 1) {
        if let (b'/', 1.., Ok(directory)) = (*byte, i, CStr::from_bytes_until_nul(&path)) {
            sys::mkdir(directory);
        }
        path[i] = *byte;
    }
}

fn host(destination: SocketAddr) -> HostRef<'static> {
    HostRef::Addr(destination.ip().to_canonical())
}
