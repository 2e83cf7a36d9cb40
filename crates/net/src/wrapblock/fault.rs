//! Errors of a blocking library: an errno for programs, and a phrase for people.

use std::fmt;
use std::io;

/// A failure of a call into a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind of failure, as an errno.
    pub code: i32,
    /// The library's own message; empty where the errno suffices.
    pub text: String,
}

impl Fault {
    /// A failure of this kind with this message.
    pub fn new(code: i32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Whether the call should simply be repeated.
    pub fn is_again(&self) -> bool {
        matches!(self.code, libc::EAGAIN | libc::EINTR)
    }

    /// The error of a connection that the peer closed without a sign that it had finished.
    pub(super) fn unfinished() -> Self {
        Self::new(libc::ECONNRESET, "the connection ended, and nothing shows that the peer had sent everything")
    }

    /// The caller has stopped waiting.
    pub(super) fn canceled() -> Self {
        Self::new(libc::ECANCELED, "")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() {
            f.write_str(&crate::error::reason(&io::Error::from_raw_os_error(self.code)))
        } else {
            f.write_str(&self.text)
        }
    }
}

impl std::error::Error for Fault {}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(code) => Self::new(code, ""),
            None => Self::new(libc::EIO, error.to_string()),
        }
    }
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        let plain = Self::from_raw_os_error(fault.code);
        if fault.text.is_empty() { plain } else { Self::new(plain.kind(), fault) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{code_of, reason};
    use phoebus_proto::session::Code;

    #[test]
    fn io_error_keeps_code_and_message() {
        let told: io::Error = Fault::new(libc::ECONNREFUSED, "the server does not speak UDT").into();
        assert_eq!((code_of(&told), reason(&told).as_str()), (Code::Refused, "the server does not speak UDT"));
        let plain: io::Error = Fault::new(libc::EHOSTUNREACH, "").into();
        assert_eq!((code_of(&plain), reason(&plain).as_str()), (Code::HostUnreachable, "no route to host"));
    }
}
