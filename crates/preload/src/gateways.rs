//! The addresses of the first gateway.
//!
//! A gateway's name is looked up when the program looks up a name or connects, whichever comes first, and again after
//! none of its addresses has answered. A lookup needs memory and blocks, so programs that connect from a signal handler
//! or between fork and exec need the gateway as an address.

use crate::process::Locked;
use crate::record::Gateways;
use crate::{addr, config, process, real, sys};
use libc::addrinfo;
use std::ffi::CStr;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Least time between lookups of a gateway's name if none of its addresses answered.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Least time after a failed lookup: the program's own lookup and its connect are one event.
const TRY_AGAIN: Duration = Duration::from_secs(1);

static GATEWAYS: Locked<Gateways> = Locked::new(Gateways::NONE);
/// The process and the thread that are looking up the gateway; fork cuts off a lookup of another process.
static LOOKING: AtomicU64 = AtomicU64::new(0);
static STALE: AtomicBool = AtomicBool::new(false);
/// When it was last looked up, and why that failed.
static LOOKED: Locked<(Duration, Option<&'static str>)> = Locked::new((Duration::ZERO, None));

/// The gateway's addresses, looked up if necessary; otherwise the reason why they are unknown.
pub(crate) fn addresses() -> Result<Gateways, &'static str> {
    let Some(config) = config::get() else { return Ok(Gateways::NONE) };
    let Some(name) = config.name.as_deref() else {
        return Ok(Gateways::new(config.gateway.as_ref().socket_addr().into_iter()));
    };
    let known = GATEWAYS.with(|gateways| *gateways);
    let (at, failure) = LOOKED.with(|looked| *looked);
    let age = sys::now().saturating_sub(at);
    match failure {
        Some(reason) if known.is_empty() && age < TRY_AGAIN => return Err(reason),
        _ if known.is_empty() || STALE.load(Ordering::Relaxed) && age > LOOK_AGAIN => {}
        _ => return Ok(known),
    }
    let own = this_thread();
    let mask = loop {
        // A signal handler may jump out of the lookup, which would then never end for the others. What this thread
        // connects meanwhile must be the lookup's own.
        let mask = sys::block_handled_signals();
        let holder = LOOKING.load(Ordering::Relaxed);
        let free = holder >> 32 != own >> 32;
        if free && LOOKING.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            break mask;
        }
        sys::restore_signals(mask);
        // SAFETY: no descriptors; this only waits a moment.
        unsafe { real::poll(std::ptr::null_mut(), 0, 1) };
    };
    let found = uncancelled(|| look_up(name, config.gateway.port));
    STALE.store(false, Ordering::Relaxed);
    LOOKED.with(|looked| *looked = (sys::now(), found.err()));
    let result = GATEWAYS.with(|gateways| {
        // Earlier addresses are better than none.
        *gateways = found.unwrap_or(*gateways);
        if gateways.is_empty() { Err(found.err().unwrap_or("no address")) } else { Ok(*gateways) }
    });
    LOOKING.store(0, Ordering::Release);
    sys::restore_signals(mask);
    result
}

/// Calls `call` with cancellation of this thread disabled (pthread_setcancelstate(3)). Otherwise a cancelled lookup
/// would let all others wait for ever.
fn uncancelled<T>(call: impl FnOnce() -> T) -> T {
    const PTHREAD_CANCEL_DISABLE: libc::c_int = 1;
    unsafe extern "C" {
        fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
    }
    let mut before = 0;
    // SAFETY: a valid state, and a place for the one before.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
    let result = call();
    // SAFETY: the state that it was.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

/// Whether this thread is looking up the gateway, so that it connects to a name server.
pub(crate) fn is_looking() -> bool {
    LOOKING.load(Ordering::Relaxed) != 0 && LOOKING.load(Ordering::Relaxed) == this_thread()
}

fn this_thread() -> u64 {
    u64::from(process::owner()) << 32 | u64::from(sys::gettid())
}

/// Looks up the gateway during a lookup of the program, which may block anyway.
pub(crate) fn look_ahead() {
    if config::get().is_some_and(|config| config.name.is_some()) && !is_looking() {
        let errno = sys::errno();
        let _ = addresses();
        sys::set_errno(errno);
    }
}

/// Records that none of the gateway's addresses answered.
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
    let found_addresses = unsafe { addr::addresses(found) };
    let gateways = Gateways::new(found_addresses.map(|ip| SocketAddr::new(ip, port)));
    // SAFETY: as above, and not used any more.
    unsafe { libc::freeaddrinfo(found) };
    if gateways.is_empty() { Err("no address") } else { Ok(gateways) }
}
