//! Loads a library and checks what it says of itself, so that every later call goes to a function that is there.
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

/// A driver that can be used: versions agree and no function is missing.
pub(super) struct Table {
    pub(super) raw: DriverTable,
    pub(super) title: String,
    pub(super) abilities: Abilities,
    pub(super) options: Vec<DriverOption>,
}

// SAFETY: the table and what it points to never change (the header's rules on ownership); its functions may be called from any
// thread (its rules on threads).
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("title", &self.title).field("abilities", &self.abilities).finish_non_exhaustive()
    }
}

impl Table {
    /// Loads `file`, which was approved. The error says what is wrong with it.
    pub(super) fn load(file: &Path) -> Result<Self, String> {
        // SAFETY: loading runs the library's initialisers. The administrator has listed the file and nobody else can have
        // written it: it is trusted as this program is.
        let library = unsafe { libloading::Library::new(file) }
            .map_err(|error| format!("it does not load: {}", deepest(&error)))?;
        // SAFETY: a symbol of this name is a function of this type, or the file is no driver; the name has the version in it.
        let entry = unsafe { library.get::<Entry>(abi::ENTRY.as_bytes()) }.map(|symbol| *symbol).map_err(|_| {
            format!(
                "it has no symbol {}; a driver for version {} of phoebus_driver.h was expected",
                abi::ENTRY,
                abi::VERSION
            )
        })?;
        // Never unloaded: the entry point, the table and threads of the library stay valid as long as the process.
        std::mem::forget(library);
        // SAFETY: the entry point takes nothing and may be called at any time.
        let table = unsafe { entry() };
        let raw = copy(table)?;
        require_all(&raw)?;
        let abilities = abilities(raw.abilities)?;
        if abilities.half_close && raw.shutdown.is_none() {
            return Err("it says that it has half-close (PHOEBUS_HALF_CLOSE), and has no function shutdown".into());
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

/// Calls the driver's `start`, once in the life of the process: a library that is loaded again is the same one.
fn start(table: *const DriverTable, raw: &DriverTable) -> Result<(), String> {
    static STARTED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
    let Some(start) = raw.start else { return Ok(()) };
    // Held until it has started, so that no other thread goes on before.
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if started.contains(&table.addr()) {
        return Ok(());
    }
    let mut error = RawError::empty();
    // SAFETY: called once, before anything else, with an error to fill.
    if unsafe { start(&raw mut error) } != 0 {
        return Err(format!("it cannot start: {}", fault(&error)));
    }
    started.insert(table.addr());
    Ok(())
}

/// Has this process end, with its status, without the destructors of libraries. A driver's threads go on until then and may use what
/// those take away (libudt's do): the process would be ended by a signal, whatever its status was.
fn leave_out_destructors() {
    extern "C" fn end(status: c_int, _: *mut c_void) {
        // SAFETY: Rust has flushed its streams before the C library's `exit` calls this.
        unsafe { libc::_exit(status) }
    }
    unsafe extern "C" {
        // Of glibc: like atexit(3), and tells the status.
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    // The last to be registered is the first to be called, and each library registers its destructors when it is loaded.
    // SAFETY: the function takes nothing that could be gone by then. Without memory for it the destructors do run.
    let _ = unsafe { on_exit(end, std::ptr::null_mut()) };
}

/// The table as far as both sides know it, the rest zero.
fn copy(table: *const DriverTable) -> Result<DriverTable, String> {
    if table.is_null() {
        return Err(format!("its {} returned no table", abi::ENTRY));
    }
    // SAFETY: not null, and every version of the table begins with these two fields. (They may be unaligned only in a
    // library that breaks its own platform's rules, which reading so survives.)
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
    // SAFETY: the library says that the table has `size` bytes, which are at least those of ours; all fields are plain
    // numbers and pointers.
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
        return Err(format!("its abilities are {bits:#x}, of which version {} does not know all", abi::VERSION));
    }
    let abilities = Abilities { half_close: bits & abi::HALF_CLOSE != 0, true_ends: bits & abi::TRUE_ENDS != 0 };
    if abilities.true_ends && !abilities.half_close {
        return Err("it says that it has true ends (PHOEBUS_TRUE_ENDS) without half-close (PHOEBUS_HALF_CLOSE)".into());
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
    // SAFETY: the library says that this many options are there; they never change (the header's rules on ownership).
    let list = unsafe { std::slice::from_raw_parts(raw.options, raw.option_count as usize) };
    list.iter().map(|option| DriverOption::from_raw(option, text)).collect()
}

/// A text of the library's.
fn text(text: *const c_char) -> Option<String> {
    // SAFETY: not null, and texts of a driver end with a 0 (the header's rules).
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// What the loader said, below what the crate says around it.
fn deepest(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), deepest)
}
