//! What comes in from C and what goes out: functions, pointers, texts, and no panic.

#![allow(unsafe_code, reason = "pointers of C programs")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Defines functions that C calls. A panic in one ends there: its result is then what stands behind `or`.
///
/// All rely on the same promise of their callers, which is the header's: a pointer is NULL where that is allowed, or leads to what
/// it is said to lead to, which is alive and which no other thread uses meanwhile.
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

/// Does `work`, or gives `fault` if that panics. Whoever changes a handle takes what it changes out of it, and so leaves
/// nothing behind that was changed by half.
pub(crate) fn shield<T>(fault: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(fault)
}

/// What a handle holds.
///
/// # Safety
/// The promise of `export`, for as long as the result is used.
pub(crate) unsafe fn get<'a, T>(handle: *const T) -> Option<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }
}

/// The same, to be changed; also for places that results are put into.
///
/// # Safety
/// The promise of `export`, for as long as the result is used.
pub(crate) unsafe fn get_mut<'a, T>(handle: *mut T) -> Option<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_mut() }
}

/// Gives a handle to the program.
pub(crate) fn give<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes a handle back, for good.
///
/// # Safety
/// NULL, or what [`give`] gave, once.
pub(crate) unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: the caller's promise.
    if handle.is_null() { None } else { Some(unsafe { Box::from_raw(handle) }) }
}

/// A text of the program's; `None` for NULL and for what is not UTF-8.
///
/// # Safety
/// NULL, or a text that ends with a zero and stays for as long as the result is used.
pub(crate) unsafe fn text<'a>(at: *const c_char) -> Option<&'a str> {
    // SAFETY: the caller's promise.
    if at.is_null() { None } else { unsafe { CStr::from_ptr(at) }.to_str().ok() }
}

/// Bytes of the program's; none for NULL.
///
/// # Safety
/// NULL, or as many bytes that stay for as long as the result is used.
pub(crate) unsafe fn bytes<'a>(at: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: the caller's promise; no object is longer than isize::MAX.
    if at.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(at, len) } }
}

/// Room of the program's; none for NULL.
///
/// # Safety
/// NULL, or room for as many bytes that nobody else uses for as long as the result is used. It may hold anything: nothing
/// reads it.
pub(crate) unsafe fn room<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: the caller's promise; no object is longer than isize::MAX.
    if at.is_null() { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(at, len) } }
}

/// Copies as much of `value` as there is room for, and leaves the rest of the room zero: a program that was compiled with another
/// version of a structure has room for fewer members, or for more.
///
/// # Safety
/// There is room for `size` bytes at `place`. `T` has no padding.
pub(crate) unsafe fn fill<T: Copy>(value: &T, place: *mut T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's promise; `known` is no more than either has.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), place.cast::<u8>(), known);
        place.cast::<u8>().add(known).write_bytes(0, size - known);
    }
}

/// What the program finds in `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the place is this thread's, for as long as it lives.
    unsafe { *libc::__errno_location() = errno };
}

/// Does `work`, which starts threads that are to get none of the program's signals: those are for its own.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both are written before they are read; blocking signals of this thread for a moment only delays them.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = work();
    // SAFETY: the mask is the one that was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// A text for the program. What would end it early is left out.
pub(crate) fn string(text: impl Into<String>) -> CString {
    let mut text: String = text.into();
    text.retain(|c| c != '\0');
    CString::new(text).unwrap_or_default()
}

/// The address of a text that stays as long as its owner; an empty one for nothing.
pub(crate) fn address(text: Option<&CString>) -> *const c_char {
    text.map_or(c"".as_ptr(), |text| text.as_ptr())
}
