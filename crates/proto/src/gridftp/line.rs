//! Lines of the control channel (RFC 959, section 5.3; RFC 854).
//!
//! A line ends with CR LF; LF alone is taken, as many send it. Telnet's commands, which some clients send before `ABOR`, are
//! dropped, as RFC 1123 (4.1.2.12) asks; CR NUL stands for CR.

/// The longest line that is taken, unless a connection says otherwise: a path of 4096 bytes with its command, and GSI's
/// tokens, which come in base64 and hold chains of certificates.
pub const MAX_LINE: usize = 64 << 10;

/// A line that is longer than is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line of more than {0} bytes")]
pub struct LongLine(pub usize);

/// The room that is kept when a line has been given: most need no more, and what a long one took is given back.
const KEPT: usize = 4 << 10;

/// Telnet's "interpret as command".
const IAC: u8 = 255;

/// Bytes that came in, and the lines in them.
#[derive(Debug, Clone)]
pub struct Lines {
    /// What came and was not yet given, without what Telnet means for itself.
    bytes: Vec<u8>,
    /// Up to where there is no LF in them.
    searched: usize,
    telnet: Telnet,
    /// How many bytes of Telnet's came since a line was given. They count as the line's: whoever sends nothing else sends no line.
    dropped: usize,
    limit: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Telnet {
    Text,
    /// After IAC.
    Command,
    /// After WILL, WON'T, DO or DON'T.
    Option,
}

impl Default for Lines {
    fn default() -> Self {
        Self::new(MAX_LINE)
    }
}

impl Lines {
    /// None yet, of at most `limit` bytes each.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), searched: 0, telnet: Telnet::Text, dropped: 0, limit }
    }

    /// Adds what came in.
    pub fn push(&mut self, bytes: &[u8]) {
        let before = self.bytes.len();
        for &byte in bytes {
            self.telnet = match (self.telnet, byte) {
                (Telnet::Text, IAC) => Telnet::Command,
                (Telnet::Command, 251..=254) => Telnet::Option,
                // The rest of a command that was sent as urgent data is not in the stream: what comes is text.
                (Telnet::Text, _) | (Telnet::Command, IAC | 0..128) => {
                    self.bytes.push(byte);
                    Telnet::Text
                }
                (Telnet::Command | Telnet::Option, _) => Telnet::Text,
            };
        }
        self.dropped += bytes.len() - (self.bytes.len() - before);
    }

    /// The next line without its end, if all of it is there.
    ///
    /// # Errors
    /// It is too long. There is no way to go on from there.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, LongLine> {
        let found = self.bytes[self.searched..].iter().position(|&b| b == b'\n').map(|at| at + self.searched);
        // CR LF comes on top of what a line may have.
        if found.unwrap_or(self.bytes.len() + self.dropped) > self.limit + 1 {
            return Err(LongLine(self.limit));
        }
        let Some(end) = found else {
            self.searched = self.bytes.len();
            return Ok(None);
        };
        let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
        (self.searched, self.dropped) = (0, 0);
        if self.bytes.len() <= KEPT && self.bytes.capacity() > 2 * KEPT {
            self.bytes.shrink_to(KEPT);
        }
        line.pop();
        line.pop_if(|byte| *byte == b'\r');
        let mut after_cr = false;
        line.retain(|&byte| !(std::mem::replace(&mut after_cr, byte == b'\r') && byte == 0));
        if line.len() > self.limit { Err(LongLine(self.limit)) } else { Ok(Some(line)) }
    }

    /// What came after the last line that was given: what belongs to another protocol, as TLS after `AUTH TLS`. A client
    /// that sends it before the answer cannot be trusted to have meant it so, and is better refused if there is any.
    pub fn rest(self) -> Vec<u8> {
        self.bytes
    }
}

/// Whether `text` can be part of a line. Others would end it, and what follows would be taken for a command.
pub fn is_line(text: &[u8]) -> bool {
    !text.iter().any(|b| matches!(b, b'\r' | b'\n' | 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(lines: &mut Lines) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| lines.take().unwrap()).collect()
    }

    #[test]
    fn lines_are_found_as_others_end_them() {
        let mut lines = Lines::default();
        lines.push(b"USER a\r\nPASS b\nCWD \r\0x\r\n\r\n\xff\xf4\xff\xf2ABOR\r\n\xff\xfd\x01NOOP \xff\xff\r\n");
        lines.push(b"\xff\xf4\xffABOR\r\nrest");
        assert_eq!(all(&mut lines), [&b"USER a"[..], b"PASS b", b"CWD \rx", b"", b"ABOR", b"NOOP \xff", b"ABOR"]);
        assert_eq!(lines.rest(), b"rest");
    }

    #[test]
    fn lines_that_are_too_long_are_not_kept() {
        for end in ["", "\n", "\r\n"] {
            let mut lines = Lines::new(5);
            lines.push(b"12345\r\n");
            assert_eq!(lines.take(), Ok(Some(b"12345".to_vec())));
            lines.push(format!("123456{}{end}", if end.is_empty() { "7" } else { "" }).as_bytes());
            assert_eq!(lines.take(), Err(LongLine(5)), "{end:?}");
        }
    }

    #[test]
    fn what_is_telnets_is_no_line_for_ever() {
        let mut lines = Lines::new(20);
        for _ in 0..10 {
            lines.push(b"\xff\xf4\xff\xf2");
            assert_eq!(lines.take(), Ok(None));
            lines.push(b"NOOP\r\n");
            assert_eq!(lines.take(), Ok(Some(b"NOOP".to_vec())));
        }
        let mut taken = 0;
        while lines.take().is_ok() {
            lines.push(b"\xff\xf1");
            taken += 2;
            assert!(taken < 100);
        }
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_they_come(texts in proptest::collection::vec("[^\r\n\0]{0,20}", 0..10), cut in 1..7usize) {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for chunk in texts.iter().map(|t| format!("{t}\r\n")).collect::<String>().as_bytes().chunks(cut) {
                lines.push(chunk);
                found.extend(all(&mut lines));
            }
            prop_assert_eq!(found, texts.iter().map(|t| t.as_bytes().to_vec()).collect::<Vec<_>>());
        }
    }
}
