//! What user and administrator have set (P30, P32), read once, and where the first gateway is.
//!
//! A gateway that is named is looked up when the program itself looks a name up, or connects, whichever comes first, and
//! again when none of its addresses answered. Looking up needs memory and waits, so a program that connects from a signal
//! handler or between fork and exec wants its gateway set by address.

use crate::agent::Seat;
use crate::process::Locked;
use crate::record::Gateways;
use crate::sys;
use crate::{epoll, process, real, table};
use libc::addrinfo;
use phoebus_proto::endpoint::{Endpoint, EndpointRef, Host};
use phoebus_proto::settings::{self, ADMINISTRATOR_FILE, FILE_MAX, File, Key, Settings, user_file};
use phoebus_proto::text::{self, TextError};
use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// How long the first gateway may take to accept a connection: four SYNs, and no more patience than people have for
/// something that is meant to be near.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long the path may take to say that the destination has connected: longer than a gateway's own connect, for which
/// Linux takes up to 127 s, so that it is the gateway that says what is wrong.
pub(crate) const OPEN_LIMIT: Duration = Duration::from_secs(150);
/// How soon a gateway's name is looked up again, at the earliest, when none of its addresses answered.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How soon, when it did not resolve: the program's own lookup and its connect are one event.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// What has been set.
pub(crate) struct Config {
    pub(crate) settings: Settings,
    /// The first gateway, and those after it.
    pub(crate) gateway: Endpoint,
    pub(crate) later: Vec<EndpointRef<'static>>,
    /// Why the settings cannot be used; connections that would have been looked at then fail.
    pub(crate) problem: Option<String>,
    /// All gateways, for an agent that stands before them.
    pub(crate) whole: Vec<EndpointRef<'static>>,
    /// Where a running agent is found.
    pub(crate) seat: Option<Seat>,
    /// File names as system calls want them.
    pub(crate) report: Option<CString>,
    pub(crate) cache: Option<CString>,
    /// The gateway's name for getaddrinfo(3), unless it is set by address.
    name: Option<CString>,
}

static CONFIG: AtomicPtr<Config> = AtomicPtr::new(std::ptr::null_mut());
/// 0: not read yet, 1: being read, 2: read.
static PROGRESS: AtomicU8 = AtomicU8::new(0);
static GATEWAYS: Locked<Gateways> = Locked::new(Gateways::NONE);
/// The process and the thread that looks the gateway up; another process's was cut off by fork.
static LOOKING: AtomicU64 = AtomicU64::new(0);
static STALE: AtomicBool = AtomicBool::new(false);
/// When it was last looked up, and why that failed.
static LOOKED: Locked<(Duration, Option<&'static str>)> = Locked::new((Duration::ZERO, None));

/// What has been set; `None` while nothing is to be done, because no gateway is set or Phoebus is switched off.
#[inline]
pub(crate) fn get() -> Option<&'static Config> {
    // SAFETY: null, or a leaked box.
    unsafe { CONFIG.load(Ordering::Acquire).as_ref() }
}

/// Reads the settings and sets memory aside, once. The constructor does this; another library's constructor that connects
/// comes before it.
pub(crate) fn init() {
    if PROGRESS.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return;
    }
    let errno = sys::errno();
    if let Some(config) = read() {
        CONFIG.store(Box::leak(Box::new(config)), Ordering::Release);
    }
    sys::set_errno(errno);
    PROGRESS.store(2, Ordering::Release);
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
        return Some(problem(format!("no memory for the table of sockets (error {errno})")));
    }
    epoll::init();
    let config = Config::new(settings);
    if let Host::Addr(ip) = config.gateway.host {
        let address = SocketAddr::new(ip, config.gateway.port);
        GATEWAYS.with(|gateways| *gateways = Gateways::new([address].into_iter()));
    }
    Some(config)
}

impl Config {
    /// Settings in the form that hooks want.
    pub(crate) fn new(settings: Settings) -> Self {
        let path: &'static [Endpoint] = settings.path.clone().leak();
        let none = || Endpoint { host: Host::Addr(IpAddr::from([0; 4])), port: 0 };
        let gateway = path.first().cloned().unwrap_or_else(none);
        let name = match &gateway.host {
            Host::Name(name) => CString::new(name.as_str()).ok(),
            Host::Addr(_) => None,
        };
        let file = |path: &Option<std::path::PathBuf>| CString::new(path.as_ref()?.as_os_str().as_bytes()).ok();
        Self {
            later: path.iter().skip(1).map(Endpoint::as_ref).collect(),
            whole: path.iter().map(Endpoint::as_ref).collect(),
            seat: Seat::of(&settings),
            problem: None,
            report: file(&settings.report),
            cache: file(&settings.cache),
            settings,
            gateway,
            name,
        }
    }

    /// Whether the settings in force send a connection to `address` through gateways.
    pub(crate) fn selects<'a>(&self, address: SocketAddr, names: impl Iterator<Item = &'a str> + Clone) -> bool {
        // With settings that cannot be used, nobody knows what they would have selected; this host's own is not asked.
        let unknown = self.problem.is_some() && !address.ip().to_canonical().is_loopback();
        unknown || self.settings.selects(address, names)
    }
}

/// Where the first gateway is, looked up if need be; the error says why it is not known.
pub(crate) fn gateways() -> Result<Gateways, &'static str> {
    let known = GATEWAYS.with(|gateways| *gateways);
    let Some((config, name)) = get().and_then(|config| Some((config, config.name.as_deref()?))) else {
        return Ok(known);
    };
    let (at, failure) = LOOKED.with(|looked| *looked);
    let age = sys::now().saturating_sub(at);
    match failure {
        Some(reason) if known.is_empty() && age < TRY_AGAIN => return Err(reason),
        _ if known.is_empty() || STALE.load(Ordering::Relaxed) && age > LOOK_AGAIN => {}
        _ => return Ok(known),
    }
    let own = this_thread();
    loop {
        let holder = LOOKING.load(Ordering::Relaxed);
        let free = holder >> 32 != own >> 32;
        if free && LOOKING.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            break;
        }
        // SAFETY: no descriptors; this only waits a moment.
        unsafe { real::poll(std::ptr::null_mut(), 0, 1) };
    }
    let found = look_up(name, config.gateway.port);
    STALE.store(false, Ordering::Relaxed);
    LOOKED.with(|looked| *looked = (sys::now(), found.err()));
    let result = GATEWAYS.with(|gateways| {
        // What was known before is better than nothing.
        *gateways = found.unwrap_or(*gateways);
        if gateways.is_empty() { Err(found.err().unwrap_or("no address")) } else { Ok(*gateways) }
    });
    LOOKING.store(0, Ordering::Release);
    result
}

/// Whether this thread is just looking the gateway up, so that what it connects to is a name server.
pub(crate) fn is_looking() -> bool {
    LOOKING.load(Ordering::Relaxed) != 0 && LOOKING.load(Ordering::Relaxed) == this_thread()
}

fn this_thread() -> u64 {
    u64::from(process::owner()) << 32 | u64::from(sys::gettid())
}

/// Looks the gateway up while the program looks something up itself, and could not mind.
pub(crate) fn look_ahead() {
    if get().is_some_and(|config| config.name.is_some()) && !is_looking() {
        let errno = sys::errno();
        let _ = gateways();
        sys::set_errno(errno);
    }
}

/// Says that none of the gateway's addresses answered.
pub(crate) fn nobody_answered() {
    STALE.store(true, Ordering::Relaxed);
}

fn look_up(name: &CStr, port: u16) -> Result<Gateways, &'static str> {
    // SAFETY: all zero is a valid addrinfo.
    let mut hints: addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_socktype = libc::SOCK_STREAM;
    let mut found = std::ptr::null_mut();
    // SAFETY: the name ends with a zero, and the rest is valid for the call.
    let result = unsafe { real::getaddrinfo(name.as_ptr(), std::ptr::null(), &raw const hints, &raw mut found) };
    if result != 0 {
        // SAFETY: the texts of gai_strerror are constants of the C library.
        let reason: &'static CStr = unsafe { CStr::from_ptr(libc::gai_strerror(result)) };
        return Err(reason.to_str().unwrap_or("unknown reason"));
    }
    // SAFETY: a list that getaddrinfo made.
    let addresses = unsafe { crate::names::addresses(found) };
    let gateways = Gateways::new(addresses.map(|ip| SocketAddr::new(ip, port)));
    // SAFETY: as above, and not used any more.
    unsafe { libc::freeaddrinfo(found) };
    if gateways.is_empty() { Err("no address") } else { Ok(gateways) }
}

/// The settings, from where they live: environment, the user's file, the administrator's file.
fn load() -> Result<Settings, String> {
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    // Switched off, not even the files matter.
    let off = Settings::load(|name| variable(name).filter(|_| name == Key::Disable.name()), &[]);
    if off.is_ok_and(|settings| settings.disabled) {
        return Ok(Settings { disabled: true, ..Settings::default() });
    }
    let user = user_file(variable);
    let mut texts = Vec::new();
    for path in [Some(Path::new(ADMINISTRATOR_FILE)), user.as_deref()].into_iter().flatten() {
        if let Some(text) = read_file(path)? {
            texts.push((path.display().to_string(), text));
        }
    }
    let files: Vec<_> = texts.iter().map(|(name, text)| File { name, text }).collect();
    Settings::load(variable, &files).map_err(|error| error.to_string())
}

fn read_file(path: &Path) -> Result<Option<String>, String> {
    let open = || match std::fs::metadata(path)?.file_type() {
        // It would be waited for.
        kind if kind.is_fifo() => Err(io::Error::other("it is a pipe")),
        _ => std::fs::File::open(path),
    };
    let read = open().map_err(TextError::Read).and_then(|file| text::read(file, FILE_MAX));
    settings::contents(&path.display().to_string(), read)
}
