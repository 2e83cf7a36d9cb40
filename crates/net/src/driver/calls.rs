//! Implements [`Driver`] for a loaded library: converts the arguments and results of each call from and to C.
#![allow(unsafe_code, reason = "functions of a shared library are called through pointers")]

use super::abi::{self, RawConnection, RawError, RawListener, RawSetting, RawStats, StatsBuffer};
use super::fault::fault;
use super::table::Table;
use crate::stats::Stats;
use crate::wrapblock::{Abilities, Connection, Driver, Fault, Listener, Setting};
use libc::{sockaddr_storage, ssize_t};
use socket2::{SockAddr, SockAddrStorage};
use std::ffi::{CString, c_int, c_uint};
use std::fmt;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// A driver under the name that the administrator gave it.
#[derive(Debug)]
pub(super) struct Loaded {
    name: &'static str,
    table: Arc<Table>,
}

/// An open connection of the library; dropping it closes it.
struct Open {
    raw: NonNull<RawConnection>,
    table: Arc<Table>,
}

/// A listener of the library; dropping it closes it.
struct Listening {
    raw: NonNull<RawListener>,
    table: Arc<Table>,
}

// SAFETY: the header permits every call from any thread, with restrictions that `wrapblock` observes.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}
// SAFETY: as above.
unsafe impl Send for Listening {}
// SAFETY: as above.
unsafe impl Sync for Listening {}

impl Loaded {
    pub(super) fn new(name: &'static str, table: Arc<Table>) -> Self {
        Self { name, table }
    }
}

/// Calls a function of the table, or evaluates `$else` if the function is missing. `$error` is for the
/// function to fill.
///
/// Every use is sound: the table was validated on loading; the object is alive because the caller borrows it;
/// pointer arguments are valid until the call returns, and the header promises a driver no more.
macro_rules! call {
    ($table:expr, $function:ident ($($argument:expr),*), else $else:expr) => {
        match $table.raw.$function {
            // SAFETY: see the macro's comment.
            Some(function) => unsafe { function($($argument),*) },
            None => $else,
        }
    };
}

impl Driver for Loaded {
    fn name(&self) -> &'static str {
        self.name
    }

    fn abilities(&self) -> Abilities {
        self.table.abilities
    }

    fn has_option(&self, name: &str, live: bool) -> bool {
        self.table.options.iter().any(|option| option.name == name && (option.live || !live))
    }

    fn open(&self, settings: &[Setting]) -> Result<Arc<dyn Connection>, Fault> {
        let mut error = RawError::empty();
        let texts = self.table.texts(settings)?;
        let settings = raw_settings(&texts);
        let none = std::ptr::null_mut();
        let raw = call!(self.table, open(settings.as_ptr(), settings.len(), &raw mut error), else none);
        let raw = NonNull::new(raw).ok_or_else(|| fault(&error))?;
        Ok(Arc::new(Open { raw, table: self.table.clone() }))
    }

    fn listen(&self, addr: SocketAddr, settings: &[Setting]) -> Result<Arc<dyn Listener>, Fault> {
        let mut error = RawError::empty();
        let texts = self.table.texts(settings)?;
        let settings = raw_settings(&texts);
        let (on, none) = (SockAddr::from(addr), std::ptr::null_mut());
        let raw = call!(
            self.table,
            listen(on.as_ptr().cast(), on.len(), settings.as_ptr(), settings.len(), &raw mut error),
            else none
        );
        let raw = NonNull::new(raw).ok_or_else(|| fault(&error))?;
        Ok(Arc::new(Listening { raw, table: self.table.clone() }))
    }
}

impl Table {
    /// The settings as C strings, each checked against the option's bounds.
    fn texts(&self, settings: &[Setting]) -> Result<Vec<(CString, CString)>, Fault> {
        let invalid = |text: String| Fault::new(libc::EINVAL, text);
        let text = |text: &str| CString::new(text).map_err(|_| invalid("a setting has a zero byte in it".into()));
        let checked = |Setting { name, value }: &Setting| {
            let option = self.options.iter().find(|option| option.name == *name);
            option.map_or(Ok(()), |option| option.check(value)).map_err(invalid)?;
            Ok((text(name)?, text(value)?))
        };
        settings.iter().map(checked).collect()
    }
}

impl Open {
    fn address(&self, end: c_uint) -> Result<SocketAddr, Fault> {
        address(|storage, error| call!(self.table, address(self.raw.as_ptr(), end, storage, error), else -1))
    }
}

impl Connection for Open {
    fn connect(&self, to: SocketAddr, limit: Duration) -> Result<(), Fault> {
        let (mut error, to) = (RawError::empty(), SockAddr::from(to));
        let (raw, limit) = (self.raw.as_ptr(), milliseconds(limit));
        done(call!(self.table, connect(raw, to.as_ptr().cast(), to.len(), limit, &raw mut error), else -1), &error)
    }

    fn read(&self, buffer: &mut [u8]) -> Result<usize, Fault> {
        let (mut error, raw) = (RawError::empty(), self.raw.as_ptr());
        let n = call!(self.table, read(raw, buffer.as_mut_ptr().cast(), buffer.len(), &raw mut error), else -1);
        count(n, buffer.len(), &error)
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, Fault> {
        let (mut error, raw) = (RawError::empty(), self.raw.as_ptr());
        let n = call!(self.table, write(raw, bytes.as_ptr().cast(), bytes.len(), &raw mut error), else -1);
        count(n, bytes.len(), &error)
    }

    fn shutdown_write(&self) -> Result<(), Fault> {
        let mut error = RawError::empty();
        done(call!(self.table, shutdown(self.raw.as_ptr(), &raw mut error), else -1), &error)
    }

    fn finish(&self, limit: Duration) -> Result<(), Fault> {
        let (mut error, limit) = (RawError::empty(), milliseconds(limit));
        done(call!(self.table, finish(self.raw.as_ptr(), limit, &raw mut error), else -1), &error)
    }

    fn interrupt(&self) {
        call!(self.table, interrupt(self.raw.as_ptr()), else {});
    }

    fn check(&self) -> Result<(), Fault> {
        let mut error = RawError::empty();
        done(call!(self.table, check(self.raw.as_ptr(), &raw mut error), else 0), &error)
    }

    fn pending(&self) -> Result<u64, Fault> {
        let mut error = RawError::empty();
        let pending = call!(self.table, pending(self.raw.as_ptr(), &raw mut error), else 0);
        u64::try_from(pending).map_err(|_| fault(&error))
    }

    fn set(&self, setting: &Setting) -> Result<(), Fault> {
        let mut error = RawError::empty();
        let texts = self.table.texts(std::slice::from_ref(setting))?;
        let settings = raw_settings(&texts);
        done(call!(self.table, set(self.raw.as_ptr(), settings.as_ptr(), &raw mut error), else -1), &error)
    }

    fn stats(&self) -> Result<Stats, Fault> {
        let mut error = RawError::empty();
        let mut buffer = StatsBuffer { room: [0; abi::STATS_ROOM / 8] };
        buffer.stats = RawStats { size: size_of::<RawStats>() as u32, ..RawStats::default() };
        let place = (&raw mut buffer).cast();
        done(call!(self.table, stats(self.raw.as_ptr(), place, &raw mut error), else 0), &error)?;
        // SAFETY: every field is a number, for which any bit pattern is valid.
        Ok(stats(&unsafe { buffer.stats }))
    }

    fn local_addr(&self) -> Result<SocketAddr, Fault> {
        self.address(abi::HERE)
    }

    fn peer_addr(&self) -> Result<SocketAddr, Fault> {
        self.address(abi::PEER)
    }
}

impl Listener for Listening {
    fn accept(&self) -> Result<Arc<dyn Connection>, Fault> {
        let (mut error, none) = (RawError::empty(), std::ptr::null_mut());
        let raw = call!(self.table, accept(self.raw.as_ptr(), &raw mut error), else none);
        let raw = NonNull::new(raw).ok_or_else(|| fault(&error))?;
        Ok(Arc::new(Open { raw, table: self.table.clone() }))
    }

    fn interrupt(&self) {
        call!(self.table, interrupt_listener(self.raw.as_ptr()), else {});
    }

    fn local_addr(&self) -> Result<SocketAddr, Fault> {
        address(|storage, error| call!(self.table, listener_address(self.raw.as_ptr(), storage, error), else -1))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        call!(self.table, close(self.raw.as_ptr()), else {});
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        call!(self.table, close_listener(self.raw.as_ptr()), else {});
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection of {}", self.table.title)
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listener of {}", self.table.title)
    }
}

fn done(result: c_int, error: &RawError) -> Result<(), Fault> {
    if result == 0 { Ok(()) } else { Err(fault(error)) }
}

fn count(result: ssize_t, most: usize, error: &RawError) -> Result<usize, Fault> {
    match usize::try_from(result) {
        Ok(n) if n <= most => Ok(n),
        Ok(n) => Err(Fault::new(libc::EIO, format!("the driver moved {n} bytes where {most} were asked for"))),
        Err(_) => Err(fault(error)),
    }
}

/// The time in milliseconds for C: at least 1, because 0 would mean no wait, and saturated at the top.
fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1)
}

fn raw_settings(texts: &[(CString, CString)]) -> Vec<RawSetting> {
    texts.iter().map(|(name, value)| RawSetting { name: name.as_ptr(), value: value.as_ptr() }).collect()
}

fn address(ask: impl FnOnce(*mut sockaddr_storage, *mut RawError) -> c_int) -> Result<SocketAddr, Fault> {
    let mut error = RawError::empty();
    let mut storage = SockAddrStorage::zeroed();
    let len = storage.size_of();
    done(ask((&raw mut storage).cast(), &raw mut error), &error)?;
    // SAFETY: the storage is a zeroed `sockaddr_storage` of this length, which the driver then wrote; its
    // family selects the variant, and every variant consists of plain numbers.
    let addr = unsafe { SockAddr::new(storage, len) };
    addr.as_socket().ok_or_else(|| Fault::new(libc::EAFNOSUPPORT, "the driver gave no IPv4 or IPv6 address"))
}

fn stats(raw: &RawStats) -> Stats {
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    Stats {
        bytes_sent: raw.bytes_sent,
        bytes_acked: raw.bytes_acked,
        bytes_received: raw.bytes_received,
        bytes_retransmitted: raw.bytes_retransmitted,
        retransmits: raw.retransmits,
        segments_sent: raw.segments_sent,
        lost: narrow(raw.lost),
        in_flight: narrow(raw.in_flight),
        rtt_us: raw.rtt_us,
        rtt_var_us: raw.rtt_var_us,
        min_rtt_us: raw.min_rtt_us,
        delivery_rate: raw.delivery_rate,
        pacing_rate: raw.pacing_rate,
        congestion_window: narrow(raw.congestion_window),
        sending_period_ns: raw.sending_period_ns,
        segment_size: raw.segment_size,
        send_buffer: raw.send_buffer,
        receive_buffer: raw.receive_buffer,
        ..Stats::default()
    }
}
