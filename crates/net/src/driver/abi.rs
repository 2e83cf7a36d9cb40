//! `include/phoebus_driver.h` in Rust: the same structs, field by field. The header states the rules. Tests
//! compile drivers against the header and so verify that the two agree: a misplaced field would show as a
//! missing function or a wrong number.

use libc::{size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `PHOEBUS_DRIVER_VERSION`.
pub(super) const VERSION: u32 = 1;
/// `PHOEBUS_DRIVER_ENTRY`.
pub(super) const ENTRY: &str = "phoebus_driver_v1";
/// `PHOEBUS_HALF_CLOSE`.
pub(super) const HALF_CLOSE: u32 = 1;
/// `PHOEBUS_TRUE_ENDS`.
pub(super) const TRUE_ENDS: u32 = 2;
/// `PHOEBUS_HERE`.
pub(super) const HERE: c_uint = 0;
/// `PHOEBUS_PEER`.
pub(super) const PEER: c_uint = 1;
/// Number of bytes that a driver may write into the `struct phoebus_stats` passed to it.
pub(super) const STATS_ROOM: usize = 1024;

/// `phoebus_driver_entry`.
pub(super) type Entry = unsafe extern "C" fn() -> *const DriverTable;

/// `phoebus_connection`: opaque, used only behind a pointer.
#[repr(C)]
pub(super) struct RawConnection {
    _opaque: [u8; 0],
}

/// `phoebus_listener`: opaque, used only behind a pointer.
#[repr(C)]
pub(super) struct RawListener {
    _opaque: [u8; 0],
}

/// `struct phoebus_error`.
#[repr(C)]
pub(super) struct RawError {
    pub(super) code: i32,
    pub(super) text: [c_char; 252],
}

/// `struct phoebus_option`.
#[repr(C)]
pub(super) struct RawOption {
    pub(super) name: *const c_char,
    pub(super) about: *const c_char,
    pub(super) least: i64,
    pub(super) most: i64,
    pub(super) kind: u32,
    pub(super) live: u32,
}

/// `struct phoebus_setting`.
#[repr(C)]
pub(super) struct RawSetting {
    pub(super) name: *const c_char,
    pub(super) value: *const c_char,
}

/// `struct phoebus_stats`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct RawStats {
    pub(super) size: u32,
    pub(super) segment_size: u32,
    pub(super) bytes_sent: u64,
    pub(super) bytes_acked: u64,
    pub(super) bytes_received: u64,
    pub(super) bytes_retransmitted: u64,
    pub(super) segments_sent: u64,
    pub(super) retransmits: u64,
    pub(super) lost: u64,
    pub(super) in_flight: u64,
    pub(super) rtt_us: u64,
    pub(super) rtt_var_us: u64,
    pub(super) min_rtt_us: u64,
    pub(super) delivery_rate: u64,
    pub(super) pacing_rate: u64,
    pub(super) congestion_window: u64,
    pub(super) sending_period_ns: u64,
    pub(super) send_buffer: u64,
    pub(super) receive_buffer: u64,
}

/// A [`RawStats`] with the spare room behind it that the header promises to later versions.
#[repr(C)]
pub(super) union StatsBuffer {
    pub(super) stats: RawStats,
    pub(super) room: [u64; STATS_ROOM / 8],
}

type Object<O, R> = Option<unsafe extern "C" fn(*mut O, *mut RawError) -> R>;
type Plain<O> = Option<unsafe extern "C" fn(*mut O)>;

/// `struct phoebus_driver`. Missing functions (NULL) are `None`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DriverTable {
    pub(super) version: u32,
    pub(super) size: u32,
    pub(super) name: *const c_char,
    pub(super) abilities: u32,
    pub(super) option_count: u32,
    pub(super) options: *const RawOption,
    pub(super) start: Option<unsafe extern "C" fn(*mut RawError) -> c_int>,
    pub(super) open: Option<unsafe extern "C" fn(*const RawSetting, size_t, *mut RawError) -> *mut RawConnection>,
    pub(super) connect:
        Option<unsafe extern "C" fn(*mut RawConnection, *const sockaddr, socklen_t, u32, *mut RawError) -> c_int>,
    pub(super) read: Option<unsafe extern "C" fn(*mut RawConnection, *mut c_void, size_t, *mut RawError) -> ssize_t>,
    pub(super) write: Option<unsafe extern "C" fn(*mut RawConnection, *const c_void, size_t, *mut RawError) -> ssize_t>,
    pub(super) shutdown: Object<RawConnection, c_int>,
    pub(super) finish: Option<unsafe extern "C" fn(*mut RawConnection, u32, *mut RawError) -> c_int>,
    pub(super) interrupt: Plain<RawConnection>,
    pub(super) check: Object<RawConnection, c_int>,
    pub(super) pending: Object<RawConnection, i64>,
    pub(super) set: Option<unsafe extern "C" fn(*mut RawConnection, *const RawSetting, *mut RawError) -> c_int>,
    pub(super) stats: Option<unsafe extern "C" fn(*mut RawConnection, *mut RawStats, *mut RawError) -> c_int>,
    pub(super) address:
        Option<unsafe extern "C" fn(*mut RawConnection, c_uint, *mut sockaddr_storage, *mut RawError) -> c_int>,
    pub(super) close: Plain<RawConnection>,
    pub(super) listen: Option<
        unsafe extern "C" fn(*const sockaddr, socklen_t, *const RawSetting, size_t, *mut RawError) -> *mut RawListener,
    >,
    pub(super) accept: Object<RawListener, *mut RawConnection>,
    pub(super) interrupt_listener: Plain<RawListener>,
    pub(super) listener_address:
        Option<unsafe extern "C" fn(*mut RawListener, *mut sockaddr_storage, *mut RawError) -> c_int>,
    pub(super) close_listener: Plain<RawListener>,
}

/// The table's size in version 1: a driver's `size` must be at least this.
pub(super) const FIRST_SIZE: usize = size_of::<DriverTable>();
