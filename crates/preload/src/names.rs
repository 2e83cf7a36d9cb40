//! The names that the program looked up, so that destinations can be selected by name (P33).

use crate::{config, real, sys};
use libc::{addrinfo, c_char, c_int, hostent};
use std::ffi::CStr;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Addresses remembered; the oldest give way.
const ENTRIES: usize = 1024;
/// Names longer than this are not remembered: they would not be names (RFC 1035 §2.3.4).
const NAME_MAX: usize = phoebus_proto::endpoint::NAME_MAX;

#[derive(Clone, Copy)]
struct Entry {
    ip: Option<IpAddr>,
    len: u8,
    name: [u8; NAME_MAX],
}

impl Entry {
    fn name(&self) -> &str {
        std::str::from_utf8(&self.name[..self.len.into()]).unwrap_or("")
    }
}

struct Table(std::cell::UnsafeCell<[Entry; ENTRIES]>);
// SAFETY: entries are read and written only between `lock` and `unlock`.
unsafe impl Sync for Table {}

static TABLE: Table = Table(std::cell::UnsafeCell::new([Entry { ip: None, len: 0, name: [0; NAME_MAX] }; ENTRIES]));
static OWNER: AtomicU32 = AtomicU32::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);

/// Calls `ask` with the names that led to `ip`, the latest first.
pub(crate) fn with<T>(ip: IpAddr, ask: impl for<'a> FnOnce(Names<'a>) -> T) -> T {
    if USED.load(Ordering::Acquire) == 0 || !lock() {
        return ask(Names { entries: &[], ip });
    }
    // SAFETY: locked.
    let entries = unsafe { &*TABLE.0.get() };
    let answer = ask(Names { entries, ip });
    unlock();
    answer
}

/// Names of one address.
#[derive(Clone)]
pub(crate) struct Names<'a> {
    entries: &'a [Entry],
    ip: IpAddr,
}

impl<'a> Iterator for Names<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        while let Some((entry, rest)) = self.entries.split_first() {
            self.entries = rest;
            if entry.ip == Some(self.ip) {
                return Some(entry.name());
            }
        }
        None
    }
}

fn remember(ip: IpAddr, name: &CStr) {
    let name = name.to_bytes();
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.is_empty() || name.len() > NAME_MAX || !lock() {
        return;
    }
    // SAFETY: locked.
    let entries = unsafe { &mut *TABLE.0.get() };
    let ip = ip.to_canonical();
    let known =
        entries.iter().any(|entry| entry.ip == Some(ip) && entry.name[..entry.len.into()].eq_ignore_ascii_case(name));
    if !known {
        let entry = &mut entries[USED.fetch_add(1, Ordering::AcqRel) % ENTRIES];
        entry.ip = Some(ip);
        entry.len = name.len() as u8;
        entry.name[..name.len()].copy_from_slice(name);
        entry.name[..name.len()].make_ascii_lowercase();
    }
    unlock();
}

/// Takes the table; `false` in a signal handler that interrupted its own thread here.
fn lock() -> bool {
    let me = sys::thread();
    loop {
        match OWNER.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(owner) if owner == me => return false,
            // SAFETY: no conditions.
            Err(_) => unsafe { libc::sched_yield() },
        };
    }
}

fn unlock() {
    OWNER.store(0, Ordering::Release);
}

/// # Safety
/// As for getaddrinfo(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const addrinfo,
    result: *mut *mut addrinfo,
) -> c_int {
    // SAFETY: the program's own call; afterwards `result` is a valid list and `node`, if any, a valid string.
    unsafe {
        let code = real::getaddrinfo(node, service, hints, result);
        if code == 0 && !node.is_null() && config::active().is_some() {
            let name = CStr::from_ptr(node);
            let mut entry = *result;
            while let Some(info) = entry.as_ref() {
                if let Some(addr) = sys::socket_addr(info.ai_addr, info.ai_addrlen) {
                    remember(SocketAddr::ip(&addr), name);
                }
                entry = info.ai_next;
            }
        }
        code
    }
}

unsafe fn remember_hostent(found: *mut hostent, name: *const c_char) {
    // SAFETY: what gethostbyname returns is a valid hostent or null, and the name a valid string.
    unsafe {
        let Some(host) = found.as_ref() else { return };
        if config::active().is_none() || name.is_null() {
            return;
        }
        let mut list = host.h_addr_list;
        while !list.is_null() && !(*list).is_null() {
            match host.h_addrtype {
                libc::AF_INET => remember((*list).cast::<[u8; 4]>().read_unaligned().into(), CStr::from_ptr(name)),
                libc::AF_INET6 => remember((*list).cast::<[u8; 16]>().read_unaligned().into(), CStr::from_ptr(name)),
                _ => {}
            }
            list = list.add(1);
        }
    }
}

/// # Safety
/// As for gethostbyname(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostbyname(name: *const c_char) -> *mut hostent {
    // SAFETY: the program's own call.
    unsafe {
        let found = real::gethostbyname(name);
        remember_hostent(found, name);
        found
    }
}

/// # Safety
/// As for gethostbyname2(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostbyname2(name: *const c_char, family: c_int) -> *mut hostent {
    // SAFETY: the program's own call.
    unsafe {
        let found = real::gethostbyname2(name, family);
        remember_hostent(found, name);
        found
    }
}
