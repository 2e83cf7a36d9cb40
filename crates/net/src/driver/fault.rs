//! Errors that a driver reports for a failed call.

use super::abi::RawError;
use crate::wrapblock::Fault;
use std::ffi::CStr;

impl RawError {
    /// An empty error for a call to fill.
    pub(super) fn empty() -> Self {
        Self { code: 0, text: [0; 252] }
    }
}

/// The error that a driver reported. Without a code it counts as an I/O error; an unterminated text ends at
/// its field's end.
pub(super) fn fault(error: &RawError) -> Fault {
    let bytes = error.text.map(|c| c.to_ne_bytes()[0]);
    let text = CStr::from_bytes_until_nul(&bytes).map_or(&bytes[..], CStr::to_bytes);
    let code = if error.code > 0 { error.code } else { libc::EIO };
    // The text goes into line-oriented logs.
    let text = String::from_utf8_lossy(text).replace(|c: char| c.is_control(), " ");
    Fault::new(code, text)
}
