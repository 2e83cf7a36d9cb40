//! Text in fixed memory: lines, words for errors, escapes inside JSON.

use crate::sys::Errno;
use std::fmt::{self, Write};

/// An error number in words.
pub(crate) struct Reason(pub(crate) Errno);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // strerror(3) allocates and translates; these are the errors of a connect.
        let words = match self.0 {
            libc::ECONNREFUSED => "connection refused",
            libc::ETIMEDOUT => "timed out",
            libc::EHOSTUNREACH => "no route to host",
            libc::ENETUNREACH => "network unreachable",
            libc::ECONNRESET => "connection reset",
            libc::EADDRNOTAVAIL => "no address or port left on this host",
            libc::EACCES | libc::EPERM => "forbidden on this host",
            libc::EMFILE | libc::ENFILE => "too many open files",
            errno => return write!(f, "error {errno}"),
        };
        f.write_str(words)
    }
}

/// The name of the error number for a code of the session protocol, as in connect(2)'s manual.
pub(super) fn name_of(errno: Errno) -> &'static str {
    match errno {
        libc::EACCES => "EACCES",
        libc::EPROTO => "EPROTO",
        libc::ENOBUFS => "ENOBUFS",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ECONNABORTED => "ECONNABORTED",
        libc::ECONNRESET => "ECONNRESET",
        libc::ETIMEDOUT => "ETIMEDOUT",
        _ => "an error",
    }
}

/// A line in progress; text that does not fit is left out.
pub(super) struct Text<'a> {
    room: &'a mut [u8],
    pub(super) len: usize,
    pub(super) full: bool,
}

impl Text<'_> {
    pub(super) fn on(room: &mut [u8]) -> Text<'_> {
        Text { room, len: 0, full: false }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }

    pub(super) fn fill<'a>(room: &'a mut [u8], text: fmt::Arguments) -> &'a str {
        let mut line = Text::on(room);
        let _ = line.write_fmt(text);
        let Text { room, len, .. } = line;
        std::str::from_utf8(&room[..len]).unwrap_or("")
    }
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        match self.room.get_mut(self.len..self.len + text.len()) {
            Some(room) => {
                room.copy_from_slice(text.as_bytes());
                self.len += text.len();
                Ok(())
            }
            None => {
                self.full = true;
                Err(fmt::Error)
            }
        }
    }
}

/// Text inside a JSON string. Peers' texts have no control characters, which leaves two to escape.
pub(super) struct Escaped<'a, W: Write + ?Sized>(pub(super) &'a mut W);

impl<W: Write + ?Sized> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match c {
            '"' | '\\' => self.0.write_char('\\').and_then(|()| self.0.write_char(c)),
            c => self.0.write_char(c),
        })
    }
}
