//! What a driver says when a call has failed.

use super::abi::RawError;
use crate::wrapblock::Fault;
use std::ffi::CStr;

impl RawError {
    /// For a call to fill.
    pub(super) fn empty() -> Self {
        Self { code: 0, text: [0; 252] }
    }
}

/// What a driver said went wrong. A driver that says nothing has an I/O error, a text without an end is cut.
pub(super) fn fault(error: &RawError) -> Fault {
    let bytes = error.text.map(|c| c.to_ne_bytes()[0]);
    let text = CStr::from_bytes_until_nul(&bytes).map_or(&bytes[..], CStr::to_bytes);
    let code = if error.code > 0 { error.code } else { libc::EIO };
    // It goes into logs, line by line.
    let text = String::from_utf8_lossy(text).replace(|c: char| c.is_control(), " ");
    Fault::new(code, text)
}
