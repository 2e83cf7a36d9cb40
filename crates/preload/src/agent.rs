//! The user's agent, which carries the first hop over another transport: whether one runs, and where (S1;
//! `phoebus_config::agent`).
//!
//! Each connect looks for it anew. A program therefore finds an agent that was started after it, and does not wait for
//! one that has ended. Without an agent, this costs one open(2) of a missing file.

use crate::sys::{self, Errno};
use phoebus_config::agent::{AgentFileNames, FILE_MAX, Running, directory};
use phoebus_config::bearer::BearerPlaces;
use phoebus_config::environment::variable;
use phoebus_config::first_hop::{By, FirstHop};
use phoebus_config::settings::Settings;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

/// Where to find the agent that these settings may use.
pub(crate) struct AgentLocator {
    files: [Option<CString>; 2],
    /// Whether only an agent may carry the first hop.
    demanded: bool,
}

impl AgentLocator {
    /// For `settings`; `None` if no agent is to be used.
    pub(crate) fn of(settings: &Settings) -> Option<Self> {
        let demanded = settings.first_hop;
        if demanded.is_some_and(|hop| hop.by == By::Tcp) {
            return None;
        }
        let namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino());
        let place = AgentFileNames::of(settings, namespace, &BearerPlaces::source(variable))?;
        let directory = directory(variable, sys::geteuid());
        let file = |name: String| CString::new(directory.join(name).as_os_str().as_bytes()).ok();
        let strict = demanded.is_some_and(FirstHop::is_strict);
        let own = demanded.and_then(|_| file(place.own));
        // An agent started by others may show another certificate than these settings name.
        let any = if demanded.is_some() { None } else { file(place.any) };
        Some(Self { files: [own, any], demanded: strict })
    }

    /// Whether only an agent may carry the first hop.
    pub(crate) fn is_demanded(&self) -> bool {
        self.demanded
    }

    /// The running agent, if it belongs to this user: its file is closed to others, and locked by the process that
    /// listens there.
    ///
    /// # Errors
    /// There is a file, and no free descriptor to read it with.
    pub(crate) fn running(&self) -> Result<Option<Running>, Errno> {
        for file in self.files.iter().flatten() {
            if let Some(agent) = at(file)? {
                return Ok(Some(agent));
            }
        }
        Ok(None)
    }
}

fn at(file: &CStr) -> Result<Option<Running>, Errno> {
    let fd = match sys::open(file, libc::O_RDONLY | libc::O_NONBLOCK) {
        Ok(fd) => fd,
        // Programs at their limit have to know whether there is an agent, all the same.
        Err(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) if sys::exists(file) => return Err(errno),
        Err(_) => return Ok(None),
    };
    let ours = sys::owner_and_mode(fd).is_ok_and(|(uid, mode)| uid == sys::geteuid() && mode & 0o077 == 0);
    let mut text = [0; FILE_MAX];
    let read = if ours && sys::is_locked(fd) { sys::read(fd, &mut text) } else { Ok(0) };
    sys::close(fd);
    let text = read.ok().and_then(|len| std::str::from_utf8(&text[..len]).ok());
    Ok(text.and_then(Running::parse))
}
