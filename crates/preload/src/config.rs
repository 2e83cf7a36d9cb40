//! What the shim is told, read once by the constructor (P30, P32, P38).

use crate::{real, sys};
use phoebus_proto::endpoint::{Endpoint, EndpointRef, Host};
use phoebus_proto::settings::{ADMINISTRATOR_FILE, File, Settings, user_file};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// What every hook may read. Absent: there is no gateway, and every call is the program's own.
static CONFIG: OnceLock<Config> = OnceLock::new();
/// The process that owns the state: a child of fork becomes the owner of its copy, a child of vfork does not.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// What the gateway's name resolved to.
static GATEWAY: AtomicPtr<Vec<SocketAddr>> = AtomicPtr::new(std::ptr::null_mut());

pub(crate) struct Config {
    pub(crate) settings: Settings,
    /// The gateways after the first.
    pub(crate) later: Vec<EndpointRef<'static>>,
    /// The congestion control to ask for, as the kernel takes it.
    pub(crate) congestion_control: Option<Vec<u8>>,
    /// The environment's answer to where reports go, as a C string.
    pub(crate) report: Option<std::ffi::CString>,
    pub(crate) cache: Option<std::ffi::CString>,
}

/// The configuration, if this process may use and change the state.
pub(crate) fn active() -> Option<&'static Config> {
    let config = CONFIG.get()?;
    // SAFETY: no conditions.
    (OWNER.load(Ordering::Relaxed) == unsafe { libc::getpid() }).then_some(config)
}

impl Config {
    /// Addresses of the first gateway. The name is resolved at the first use and kept: this allocates, like the program's
    /// own name look-ups before it.
    pub(crate) fn gateway(&self) -> &'static [SocketAddr] {
        let known = GATEWAY.load(Ordering::Acquire);
        if !known.is_null() {
            // SAFETY: only ever set to a leaked Vec.
            return unsafe { &*known };
        }
        let found = self.settings.path.first().map(resolve).unwrap_or_default();
        if found.is_empty() {
            return &[];
        }
        let new = Box::into_raw(Box::new(found));
        match GATEWAY.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked, as above; of two threads that came at once, the second one's result is lost.
            Ok(_) => unsafe { &*new },
            // SAFETY: set by that other thread, to a leaked Vec.
            Err(known) => unsafe { &*known },
        }
    }
}

fn resolve(gateway: &Endpoint) -> Vec<SocketAddr> {
    let name = match &gateway.host {
        Host::Addr(addr) => return vec![SocketAddr::new(*addr, gateway.port)],
        Host::Name(name) => name,
    };
    let Ok(node) = std::ffi::CString::new(name.as_str()) else { return Vec::new() };
    // SAFETY: an all-zero addrinfo asks for everything; the list that comes back is freed once, after its last use.
    unsafe {
        let mut hints: libc::addrinfo = std::mem::zeroed();
        hints.ai_socktype = libc::SOCK_STREAM;
        let mut list = std::ptr::null_mut();
        if real::getaddrinfo(node.as_ptr(), std::ptr::null(), &raw const hints, &raw mut list) != 0 {
            return Vec::new();
        }
        let mut found = Vec::new();
        let mut entry = list;
        while let Some(info) = entry.as_ref() {
            if let Some(mut addr) = sys::socket_addr(info.ai_addr, info.ai_addrlen) {
                addr.set_port(gateway.port);
                found.push(addr);
            }
            entry = info.ai_next;
        }
        libc::freeaddrinfo(list);
        found
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    real::resolve_all();
    let lookup = |name: &str| std::env::var(name).ok();
    let user_name = user_file(lookup).map(|path| path.to_string_lossy().into_owned());
    let (administrator, user) = (text(ADMINISTRATOR_FILE), user_name.as_deref().and_then(text));
    let mut files = Vec::new();
    for (name, text) in [(Some(ADMINISTRATOR_FILE), &administrator), (user_name.as_deref(), &user)] {
        if let (Some(name), Some(text)) = (name, text) {
            files.push(File { name, text });
        }
    }
    let settings = match Settings::load(lookup, &files) {
        Ok(settings) => settings,
        Err(error) => {
            // Going on would mean going direct against the user's wish.
            eprintln!("phoebus: {error}");
            std::process::exit(2);
        }
    };
    if settings.disabled || settings.path.is_empty() {
        return;
    }
    let path: &'static [Endpoint] = settings.path.clone().leak();
    let c_string = |path: &Option<std::path::PathBuf>| {
        path.as_ref().and_then(|path| std::ffi::CString::new(path.to_string_lossy().as_bytes()).ok())
    };
    let config = Config {
        later: path.iter().skip(1).map(Endpoint::as_ref).collect(),
        congestion_control: settings.congestion_control.clone().map(String::into_bytes),
        report: c_string(&settings.report),
        cache: c_string(&settings.cache),
        settings,
    };
    if !crate::pending::prepare() {
        eprintln!("phoebus: there is no memory for handshakes");
        std::process::exit(2);
    }
    adopt();
    // SAFETY: the handler only stores a number.
    unsafe { libc::pthread_atfork(None, None, Some(adopt)) };
    let _ = CONFIG.set(config);
}

extern "C" fn adopt() {
    // SAFETY: no conditions.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

fn text(file: &str) -> Option<String> {
    std::fs::read_to_string(file).ok()
}
