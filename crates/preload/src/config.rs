//! Settings of the user and the administrator (P30, P32), read once.

use crate::agent::AgentLocator;
use crate::sys;
use crate::{process, registrations, table};
use phoebus_config::environment::{self, LoadError, variable};
use phoebus_config::logins::Logins;
use phoebus_config::settings::{Key, Settings};
use phoebus_proto::endpoint::{Endpoint, EndpointRef, Host};
use phoebus_proto::session::auth::scram;
use std::ffi::CString;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The settings.
pub(crate) struct Config {
    pub(crate) settings: Settings,
    /// The first gateway.
    pub(crate) gateway: Endpoint,
    /// The user's passwords at gateways.
    logins: Logins,
    /// Why the settings cannot be used; connections that they might have selected then fail.
    pub(crate) problem: Option<Problem>,
    /// Where to find a running agent.
    pub(crate) seat: Option<AgentLocator>,
    /// File names in the form for system calls.
    pub(crate) report: Option<CString>,
    pub(crate) cache: Option<CString>,
    /// The gateway's name for getaddrinfo(3), unless the setting is an address.
    pub(crate) name: Option<CString>,
}

/// Why the settings cannot be used.
pub(crate) struct Problem {
    /// The reason for people.
    pub(crate) sentence: String,
    /// Whether the settings select, or may select, destinations that can be this host's own.
    may_name_own: bool,
}

static CONFIG: AtomicPtr<Config> = AtomicPtr::new(std::ptr::null_mut());
/// 0: not read yet; [`READ`]; or the process and the thread that are reading.
static PROGRESS: AtomicU64 = AtomicU64::new(0);
const READ: u64 = u64::MAX;

/// The settings; `None` if there is nothing to do, because no gateway is set or Phoebus is switched off.
#[inline]
pub(crate) fn get() -> Option<&'static Config> {
    // SAFETY: null, or a leaked box.
    unsafe { CONFIG.load(Ordering::Acquire).as_ref() }
}

/// Reads the settings and allocates memory, once. The constructor does this. Another library's constructor, or a thread
/// that it has started, may connect before it. Returns when the settings are read, except to their reader.
pub(crate) fn init() {
    let mut tries = 0;
    loop {
        let progress = PROGRESS.load(Ordering::Acquire);
        if progress == READ {
            return;
        }
        let own = u64::from(sys::getpid()) << 32 | u64::from(sys::gettid());
        if progress == own {
            return;
        }
        // A process that is forked while another thread reads has no such thread.
        let free = progress >> 32 != own >> 32;
        if free && PROGRESS.compare_exchange(progress, own, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            break;
        }
        process::back_off(tries);
        tries = tries.saturating_add(1);
    }
    let errno = sys::errno();
    if let Some(config) = read() {
        CONFIG.store(Box::leak(Box::new(config)), Ordering::Release);
    }
    sys::set_errno(errno);
    PROGRESS.store(READ, Ordering::Release);
}

fn read() -> Option<Config> {
    let problem = |problem| Config { problem: Some(problem), ..Config::new(Settings::default()) };
    let settings = match load() {
        Ok(settings) => settings,
        Err(error) => return Some(problem(error)),
    };
    if settings.disabled || settings.path.is_empty() {
        return None;
    }
    if let Err(errno) = process::create().and_then(|()| table::create()) {
        let sentence = format!("no memory for the table of sockets (error {errno})");
        return Some(problem(Problem { sentence, may_name_own: settings.only.is_some() }));
    }
    registrations::init();
    let may_name_own = settings.only.is_some();
    match Logins::place(variable).map(|file| Logins::read(&file)).transpose() {
        Ok(logins) => Some(Config { logins: logins.unwrap_or_default(), ..Config::new(settings) }),
        Err(error) => Some(problem(Problem { sentence: error.to_string(), may_name_own })),
    }
}

impl Config {
    /// Converts the settings for the hooks.
    pub(crate) fn new(settings: Settings) -> Self {
        let none = || Endpoint { host: Host::Addr(IpAddr::from([0; 4])), port: 0 };
        let gateway = settings.path.first().cloned().unwrap_or_else(none);
        let name = match &gateway.host {
            Host::Name(name) => CString::new(name.as_str()).ok(),
            Host::Addr(_) => None,
        };
        let file = |path: &Option<std::path::PathBuf>| CString::new(path.as_ref()?.as_os_str().as_bytes()).ok();
        Self {
            seat: AgentLocator::of(&settings),
            problem: None,
            report: file(&settings.report),
            cache: file(&settings.cache),
            settings,
            gateway,
            logins: Logins::default(),
            name,
        }
    }

    /// The user's login at a gateway, if one is kept.
    pub(crate) fn login(&self, gateway: EndpointRef) -> Option<scram::Login<'_>> {
        // The shim has no TLS.
        let login = self.logins.at(gateway).filter(|login| login.is_raw)?;
        Some(scram::Login { user: &login.user, keys: &login.keys, binding: None })
    }

    /// Whether only an agent may carry the first hop.
    pub(crate) fn demands_agent(&self) -> bool {
        self.seat.as_ref().is_some_and(AgentLocator::is_demanded)
    }

    /// Whether these settings send a connection to `address` through gateways.
    pub(crate) fn selects<'a>(&self, address: SocketAddr, names: impl Iterator<Item = &'a str> + Clone) -> bool {
        // Unusable settings do not tell what they would have selected. This host's own addresses count only if they
        // said so.
        let own = || address.ip().to_canonical().is_loopback();
        let unknown = self.problem.as_ref().is_some_and(|problem| problem.may_name_own || !own());
        unknown || self.settings.selects(address, names)
    }
}

/// Reads the settings from the environment, the user's file and the administrator's file.
fn load() -> Result<Settings, Problem> {
    // If Phoebus is switched off, the files are not read.
    let off = Settings::load(|name| variable(name).filter(|_| name == Key::Disable.name()), &[]);
    if off.is_ok_and(|settings| settings.disabled) {
        return Ok(Settings { disabled: true, ..Settings::default() });
    }
    environment::load(variable)
        .map_err(|LoadError { sentence, may_say_only }| Problem { sentence, may_name_own: may_say_only })
}
