//! Loads a library and validates its table, so that every later call reaches an existing function.
#![allow(unsafe_code, reason = "a shared library is loaded and its table is read")]

use super::abi::{self, DriverTable, Entry, RawError};
use super::fault::fault;
use super::options::DriverOption;
use crate::wrapblock::Abilities;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A usable driver: its version matches and no required function is missing.
pub(super) struct Table {
    pub(super) raw: DriverTable,
    pub(super) title: String,
    pub(super) abilities: Abilities,
    pub(super) options: Vec<DriverOption>,
}

// SAFETY: the table and what it points to never change (the header's rules on ownership); its functions may
// be called from any thread (the header's rules on threads).
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("title", &self.title).field("abilities", &self.abilities).finish_non_exhaustive()
    }
}

impl Table {
    /// Loads `file`, which must have been approved. The error says what is wrong with it.
    pub(super) fn load(file: &Path) -> Result<Self, String> {
        // SAFETY: loading runs the library's initialisers. The administrator has listed the file and nobody
        // else can have written it, so it is trusted like this program.
        let library = unsafe { libloading::Library::new(file) }
            .map_err(|error| format!("it does not load: {}", deepest(&error)))?;
        // SAFETY: a symbol of this name has this type in every driver; the name contains the version.
        let entry = unsafe { library.get::<Entry>(abi::ENTRY.as_bytes()) }.map(|symbol| *symbol).map_err(|_| {
            format!(
                "it has no symbol {}; a driver for version {} of phoebus_driver.h was expected",
                abi::ENTRY,
                abi::VERSION
            )
        })?;
        // Never unloaded: the entry point, the table and the library's threads stay valid for the life of the
        // process.
        std::mem::forget(library);
        // SAFETY: the entry point takes no arguments and may be called at any time.
        let table = unsafe { entry() };
        let raw = copy(table)?;
        require_all(&raw)?;
        let abilities = abilities(raw.abilities)?;
        if abilities.half_close && raw.shutdown.is_none() {
            return Err("it declares half-close (PHOEBUS_HALF_CLOSE), and has no function shutdown".into());
        }
        let title = text(raw.name).filter(|name| !name.is_empty()).ok_or("it does not give its name (field name)")?;
        let options = options(&raw)?;
        if options.iter().any(|option| option.live) && raw.set.is_none() {
            return Err("it lists an option that can be changed (live), and has no function set".into());
        }
        start(table, &raw)?;
        leave_out_destructors();
        Ok(Self { raw, title, abilities, options })
    }
}

/// Calls the driver's `start`, once per process: loading a library again yields the same instance.
fn start(table: *const DriverTable, raw: &DriverTable) -> Result<(), String> {
    static STARTED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    let Some(start) = raw.start else { return Ok(()) };
    // The lock is held until `start` returns, so that no other thread proceeds before.
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if started.contains(&table.addr()) {
        return Ok(());
    }
    let mut error = RawError::empty();
    // SAFETY: called once, before any other function, with an error to fill.
    if unsafe { start(&raw mut error) } != 0 {
        return Err(format!("it cannot start: {}", fault(&error)));
    }
    started.insert(table.addr());
    Ok(())
}

/// Makes this process exit with its status but without running the destructors of libraries. A driver's
/// threads keep running until then and may use what destructors destroy (libudt's do): the process would die
/// of a signal, whatever its status.
fn leave_out_destructors() {
    extern "C" fn end(status: c_int, _: *mut c_void) {
        // SAFETY: `_exit` has no preconditions. Rust has flushed its streams before the C library's `exit`
        // calls this.
        unsafe { libc::_exit(status) }
    }
    unsafe extern "C" {
        // A glibc function: like atexit(3), but passes the status.
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    // Handlers run in reverse order of registration, and each library registers its destructors when it is loaded.
    // SAFETY: the function uses no argument that could be gone by then. If registering fails for lack of memory, the
    // destructors do run.
    let _ = unsafe { on_exit(end, std::ptr::null_mut()) };
}

/// Copies the fields of the table that both sides know; the rest is zero.
fn copy(table: *const DriverTable) -> Result<DriverTable, String> {
    if table.is_null() {
        return Err(format!("its {} returned no table", abi::ENTRY));
    }
    // SAFETY: not null, and every version of the table begins with these two fields. The unaligned read
    // survives a library that breaks its platform's alignment rules.
    let (version, size) =
        unsafe { ((&raw const (*table).version).read_unaligned(), (&raw const (*table).size).read_unaligned()) };
    if version != abi::VERSION {
        return Err(format!("it is a driver of version {version}; version {} was expected", abi::VERSION));
    }
    let size = size as usize;
    if size < abi::FIRST_SIZE {
        let expected = abi::FIRST_SIZE;
        return Err(format!("its table has {size} bytes; version {version} has at least {expected}"));
    }
    // SAFETY: the library declares that the table has `size` bytes, at least as many as ours; all fields are
    // plain numbers and pointers.
    Ok(unsafe { table.read_unaligned() })
}

fn require_all(raw: &DriverTable) -> Result<(), String> {
    let required = [
        ("open", raw.open.is_some()),
        ("connect", raw.connect.is_some()),
        ("read", raw.read.is_some()),
        ("write", raw.write.is_some()),
        ("finish", raw.finish.is_some()),
        ("address", raw.address.is_some()),
        ("close", raw.close.is_some()),
        ("listen", raw.listen.is_some()),
        ("accept", raw.accept.is_some()),
        ("listener_address", raw.listener_address.is_some()),
        ("close_listener", raw.close_listener.is_some()),
    ];
    match required.iter().find(|(_, is_there)| !is_there) {
        Some((name, _)) => Err(format!("its function {name} is missing (NULL), which a driver must have")),
        None => Ok(()),
    }
}

fn abilities(bits: u32) -> Result<Abilities, String> {
    if bits & !(abi::HALF_CLOSE | abi::TRUE_ENDS) != 0 {
        return Err(format!(
            "its abilities are {bits:#x}, which contain bits that version {} does not define",
            abi::VERSION
        ));
    }
    let abilities =
        Abilities { half_close: bits & abi::HALF_CLOSE != 0, authenticated_close: bits & abi::TRUE_ENDS != 0 };
    if abilities.authenticated_close && !abilities.half_close {
        return Err(
            "it declares an authenticated close (PHOEBUS_TRUE_ENDS) without half-close (PHOEBUS_HALF_CLOSE)".into()
        );
    }
    Ok(abilities)
}

fn options(raw: &DriverTable) -> Result<Vec<DriverOption>, String> {
    if raw.option_count == 0 {
        return Ok(Vec::new());
    }
    if raw.options.is_null() {
        return Err(format!("it says that it has {} options, and has no list of them", raw.option_count));
    }
    // SAFETY: the library declares this number of options; they never change (the header's rules on
    // ownership).
    let list = unsafe { std::slice::from_raw_parts(raw.options, raw.option_count as usize) };
    list.iter().map(|option| DriverOption::from_raw(option, text)).collect()
}

/// A C string of the library, if not NULL.
fn text(text: *const c_char) -> Option<String> {
    // SAFETY: not null, and a driver's strings end with a 0 (the header's rules).
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The innermost error, which is the dynamic loader's own.
fn deepest(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), deepest)
}
