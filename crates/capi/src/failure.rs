//! `phoebus_error`: the reason of a failure, for C programs.

#![allow(unsafe_code, reason = "functions that C calls")]

use crate::boundary::{address, get, give, string, take};
use std::ffi::{CString, c_char, c_int};
use std::io;

/// Codes of this library, beyond the range of protocol codes (`enum phoebus_code`).
pub(crate) mod code {
    use std::ffi::c_int;

    pub(crate) const OK: c_int = 0;
    pub(crate) const ARGUMENT: c_int = 65536;
    pub(crate) const STATE: c_int = 65537;
    pub(crate) const NO_GATEWAY: c_int = 65538;
    pub(crate) const NO_AGENT: c_int = 65539;
    pub(crate) const SYSTEM: c_int = 65540;
    pub(crate) const FORKED: c_int = 65541;
    pub(crate) const PENDING: c_int = 65542;
    pub(crate) const BUG: c_int = 65543;
}

/// `phoebus_error`.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) code: c_int,
    errno: c_int,
    message: CString,
    hop: CString,
}

impl Failure {
    /// An error of this library, without a hop.
    pub(crate) fn new(code: c_int, message: impl Into<String>) -> Self {
        let errno = match code {
            code::ARGUMENT => libc::EINVAL,
            code::STATE => libc::EALREADY,
            code::PENDING => libc::EAGAIN,
            code::FORKED => libc::EPERM,
            code::NO_GATEWAY => libc::EDESTADDRREQ,
            code::NO_AGENT => libc::ECONNREFUSED,
            _ => libc::EIO,
        };
        Self { code, errno, message: string(message), hop: CString::default() }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::new(code::ARGUMENT, message)
    }

    /// An error of the operating system.
    pub(crate) fn system(error: io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self { errno, ..Self::new(code::SYSTEM, phoebus_client::reason(&error)) }
    }

    /// The error of an open session.
    pub(crate) fn ended(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::InvalidInput {
            return Self::new(code::STATE, error.to_string());
        }
        let code = phoebus_net::code_of(error);
        let message = format!("the session broke: {}", phoebus_client::reason(error));
        Self { errno: error.raw_os_error().unwrap_or(code.errno()), ..Self::new(code.number().into(), message) }
    }

    /// The error of a handle in which a panic occurred.
    pub(crate) fn bug() -> Self {
        Self::new(code::BUG, "libphoebus has a fault, and this object cannot be used any more")
    }
}

impl From<&phoebus_client::Error> for Failure {
    fn from(error: &phoebus_client::Error) -> Self {
        use phoebus_client::Error;
        let code = match error {
            Error::NoAgent { .. } => code::NO_AGENT,
            Error::Random(_) => code::SYSTEM,
            other => other.code().number().into(),
        };
        let (message, hop) = (string(error.to_string()), string(error.hop().unwrap_or_default()));
        Self { code, errno: error.errno(), message, hop }
    }
}

impl From<&phoebus_client::AcceptError> for Failure {
    fn from(error: &phoebus_client::AcceptError) -> Self {
        let code = error.code();
        let (message, hop) = (string(error.to_string()), string(error.hop()));
        Self { code: code.number().into(), errno: code.errno(), message, hop }
    }
}

/// Unwraps a result; on failure, stores the error in `place` and returns `none`.
pub(crate) fn unwrap_or_store<T>(result: Result<T, Failure>, place: Option<&mut *mut Failure>, none: T) -> T {
    let (value, failure) = match result {
        Ok(value) => (value, None),
        Err(failure) => (none, Some(failure)),
    };
    if let Some(place) = place {
        *place = failure.map_or(std::ptr::null_mut(), give);
    }
    value
}

export! {
    /// See the header.
    fn phoebus_error_code(error: *const Failure) -> c_int, or code::BUG, {
        get(error).map_or(code::OK, |error| error.code)
    }

    /// See the header.
    fn phoebus_error_errno(error: *const Failure) -> c_int, or libc::EIO, {
        get(error).map_or(0, |error| error.errno)
    }

    /// See the header.
    fn phoebus_error_message(error: *const Failure) -> *const c_char, or address(None), {
        address(get(error).map(|error| &error.message))
    }

    /// See the header.
    fn phoebus_error_hop(error: *const Failure) -> *const c_char, or address(None), {
        address(get(error).map(|error| &error.hop))
    }

    /// See the header.
    fn phoebus_error_free(error: *mut Failure) -> (), or (), {
        drop(take(error));
    }

    /// See the header.
    fn phoebus_version() -> *const c_char, or address(None), {
        const { concat!(env!("CARGO_PKG_VERSION"), "\0") }.as_ptr().cast()
    }
}
