//! The user's agent, which carries the first hop by another transport: whether one runs, and where (S1; `phoebus_proto::agent`).
//!
//! This is looked at anew at each connect, so that a program finds an agent that was started after it, and does not wait for
//! one that has gone. A user who has none pays for one open(2) of a file that is not there.

use crate::config::Config;
use crate::sys;
use phoebus_proto::agent::{FILE_MAX, Place, Running, directory};
use phoebus_proto::first_hop::{By, FirstHop};
use phoebus_proto::settings::Settings;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// Where the agent is found that these settings may use.
pub(crate) struct Seat {
    files: [Option<CString>; 2],
    /// Whether the first hop is carried by it or not at all.
    demanded: bool,
}

impl Seat {
    /// For `settings`; none where no agent is to be used.
    pub(crate) fn of(settings: &Settings) -> Option<Self> {
        let demanded = settings.first_hop;
        if demanded.is_some_and(|hop| hop.by == By::Tcp) {
            return None;
        }
        let namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino());
        let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let place = Place::of(settings, namespace)?;
        let directory = directory(variable, sys::geteuid());
        let file = |name: String| CString::new(directory.join(name).as_os_str().as_bytes()).ok();
        let strict = demanded.is_some_and(FirstHop::is_strict);
        let own = demanded.and_then(|_| file(place.own));
        let any = if strict { None } else { file(place.any) };
        Some(Self { files: [own, any], demanded: strict })
    }
}

/// Whether there is no first hop but by an agent.
pub(crate) fn is_demanded(config: &Config) -> bool {
    config.seat.as_ref().is_some_and(|seat| seat.demanded)
}

/// The agent that runs, if it is this user's: its file is closed to others, and locked by whoever listens where it says.
pub(crate) fn running(config: &Config) -> Option<Running> {
    config.seat.as_ref()?.files.iter().flatten().find_map(|file| at(file))
}

fn at(file: &CStr) -> Option<Running> {
    let fd = sys::open(file, libc::O_RDONLY | libc::O_NONBLOCK).ok()?;
    let ours = sys::owner_and_mode(fd).is_ok_and(|(uid, mode)| uid == sys::geteuid() && mode & 0o077 == 0);
    let mut text = [0; FILE_MAX];
    let read = if ours && sys::is_locked(fd) { sys::read(fd, &mut text) } else { Ok(0) };
    sys::close(fd);
    Running::parse(std::str::from_utf8(&text[..read.ok()?]).ok()?)
}
