//! The LD_PRELOAD shim: unmodified programs use sessions without knowing (P29–P33, S9, S23).
//!
//! `LD_PRELOAD=libphoebus_preload.so PHOEBUS_GW=host/port COMMAND` is all it takes. `docs/guide/preload.md` says how to
//! use it and what it cannot reach; this is how it works.
//!
//! The program's own descriptor connects to the gateway instead of the destination, and says the handshake of
//! `docs/protocol/session.md` there. There are no threads and there is no runtime: the handshake advances inside the
//! calls that the program makes to find out how its connect is going. Until it is over, those calls say what they would
//! say of a connection that is not there yet; from then on the descriptor is a plain TCP connection to the gateway,
//! which relays, and no call on it costs more than before.
//!
//! Reading order:
//!
//! - `connect`: whether a connect opens a session; `handshake`: how that advances, and how it ends.
//! - `wait` (poll), `select`, `epoll`: where programs wait, and what is hidden from them.
//! - `io`, `options`, `close`: what other calls say meanwhile. `names`: what the program looked up. `rings`: io_uring.
//! - `table`: what is known of a socket; `record`: what its handshake needs; `asked`: the gateways it has asked;
//!   `process`: fork and locks.
//! - `socket`: the program's socket made fit for its gateway; `held`: a descriptor for it that no other thread closes;
//!   `registrations`: its places in epoll sets. `reuse`: sockets that connect again; `epoll_sets`: what the kernel tells
//!   of theirs; `changes`: what is undone on them.
//! - `config`, `report`, `bypass`, `agent`: what users see. `gateways`: where the first gateway is.
//! - `real`, `sys`, `errno`, `addr`: the functions behind the hooks, system calls, addresses.
//!
//! A guest in other people's processes, this library allocates nothing after its constructor (except to look up a
//! gateway by name), takes no lock that waits for anything but a few system calls, reads no variable, leaves `errno`
//! alone when a call succeeds, has no thread-local state, and lets threads be cancelled and signal handlers jump where
//! they could before.

#![allow(unsafe_code, reason = "every hook speaks C")]
#![cfg_attr(test, allow(dead_code, reason = "a test program is not to have hooks, and so does not use what they use"))]

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
compile_error!("the preload shim is for 64-bit Linux with the GNU C library");

/// Defines functions in front of the C library's. Their callers fulfil the C library's requirements, and the bodies
/// rely on nothing else.
macro_rules! hook {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// That of the C library's function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the caller keeps the C library's function's promises, which the body passes on.
            unsafe { $body }
        }
    )*};
}

mod addr;
mod agent;
mod asked;
mod bypass;
mod changes;
mod close;
mod config;
mod connect;
mod epoll;
mod epoll_sets;
mod errno;
mod gateways;
mod handshake;
mod held;
mod io;
mod names;
mod options;
mod process;
mod real;
mod record;
mod registrations;
mod report;
mod reuse;
mod rings;
mod select;
mod socket;
mod socket_options;
mod sys;
mod table;
mod tcp;
mod wait;

/// Runs when the library is loaded, before the program's `main`.
extern "C" fn construct() {
    real::find_all();
    config::init();
}

#[used]
#[cfg(not(test))]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;
