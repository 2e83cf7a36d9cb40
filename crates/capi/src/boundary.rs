//! The boundary to C: exported functions, pointers, strings, and the containment of panics.

#![allow(unsafe_code, reason = "pointers of C programs")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Defines functions that C calls. If the body panics, the function returns the expression behind `or`.
///
/// Each relies on the same promise of its caller, which the header states: a pointer is NULL where that is allowed,
/// or points to a live object of the stated type that no other thread uses meanwhile.
macro_rules! export {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty, or $fault:expr, $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The promise of `export`.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some take no pointers")]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the caller's promise is passed on to the body, which relies on nothing else.
            $crate::boundary::shield($fault, || unsafe { $body })
        }
    )*};
}

/// Runs `work`, or returns `fault` if that panics. Code that changes a handle takes the changed part out of it first,
/// so that a panic leaves nothing half changed.
pub(crate) fn shield<T>(fault: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(fault)
}

/// The object behind a handle.
///
/// # Safety
/// The promise of `export`, for as long as the result is used.
pub(crate) unsafe fn get<'a, T>(handle: *const T) -> Option<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }
}

/// The object behind a handle, mutably; also for output parameters.
///
/// # Safety
/// The promise of `export`, for as long as the result is used.
pub(crate) unsafe fn get_mut<'a, T>(handle: *mut T) -> Option<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_mut() }
}

/// Passes ownership of a value to the program, as a handle.
pub(crate) fn give<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes the ownership back from a handle.
///
/// # Safety
/// NULL, or a pointer from [`give`] that was not taken before.
pub(crate) unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: the caller's promise.
    if handle.is_null() { None } else { Some(unsafe { Box::from_raw(handle) }) }
}

/// A string from the program; `None` for NULL and for invalid UTF-8.
///
/// # Safety
/// NULL, or a zero-terminated string that lives as long as the result is used.
pub(crate) unsafe fn text<'a>(at: *const c_char) -> Option<&'a str> {
    // SAFETY: the caller's promise.
    if at.is_null() { None } else { unsafe { CStr::from_ptr(at) }.to_str().ok() }
}

/// Bytes from the program; empty for NULL.
///
/// # Safety
/// NULL, or `len` bytes that live as long as the result is used.
pub(crate) unsafe fn bytes<'a>(at: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: the caller's promise; no object is longer than isize::MAX.
    if at.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(at, len) } }
}

/// An output buffer of the program; empty for NULL.
///
/// # Safety
/// NULL, or a buffer of `len` bytes that nobody else uses while the result is used. The bytes may be uninitialized:
/// nothing reads them.
pub(crate) unsafe fn room<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: the caller's promise; no object is longer than isize::MAX.
    if at.is_null() { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(at, len) } }
}

/// Copies `value` into `place` as far as it fits, and sets the rest of `place` to zero: a program that was compiled
/// with another version of a structure has fewer members, or more.
///
/// # Safety
/// `place` has `size` bytes. `T` has no padding.
pub(crate) unsafe fn fill<T: Copy>(value: &T, place: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's promise; `known` is at most the size of either.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), place.cast::<u8>(), known);
        place.cast::<u8>().add(known).write_bytes(0, size - known);
    }
}

/// Sets the program's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the location belongs to this thread, as long as it lives.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs `work` with all signals blocked, so that the threads it starts inherit the mask: signals go to the program's
/// own threads.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both are written before they are read; blocking signals of this thread for a moment only delays them.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = work();
    // SAFETY: the mask was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// A C string for the program. Zero bytes inside the text are removed.
pub(crate) fn string(text: impl Into<String>) -> CString {
    let mut text: String = text.into();
    text.retain(|c| c != '\0');
    CString::new(text).unwrap_or_default()
}

/// The address of a string that its owner keeps; of an empty one for `None`.
pub(crate) fn address(text: Option<&CString>) -> *const c_char {
    text.map_or(c"".as_ptr(), |text| text.as_ptr())
}
