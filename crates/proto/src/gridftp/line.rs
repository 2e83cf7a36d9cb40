//! Lines of the control channel (RFC 959, section 5.3; RFC 854).
//!
//! A line ends with CR LF. LF alone is accepted, because many programs send it. Telnet commands at the beginning of a
//! line, which some clients send before `ABOR`, are dropped as RFC 1123 (4.1.2.12) requires. Within a line, the byte 255
//! belongs to a name: many clients send it once, and RFC 854 has it sent twice. CR NUL means CR.

/// Default limit of the length of a line, in bytes: enough for a path of 4096 bytes and its command, and for GSI
/// tokens, which contain certificate chains in base64.
pub const MAX_LINE: usize = 64 << 10;

/// A line exceeds the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line of more than {0} bytes")]
pub struct LongLine(pub usize);

/// Buffer capacity that is kept after a line was taken. Most lines need no more; the memory of a long line is released.
const KEPT: usize = 4 << 10;

/// Telnet's "interpret as command".
const IAC: u8 = 255;

/// Splits received bytes into lines.
#[derive(Debug, Clone)]
pub struct Lines {
    /// Received bytes that were not taken yet, without Telnet commands.
    bytes: Vec<u8>,
    /// Length of the prefix that is known to contain no LF.
    searched: usize,
    telnet: Telnet,
    /// Bytes of Telnet commands dropped since the last line. They count towards the limit, so that a peer that sends
    /// nothing else does not go on for ever.
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
    /// An empty buffer for lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), searched: 0, telnet: Telnet::Text, dropped: 0, limit }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let before = self.bytes.len();
        for &byte in bytes {
            let within = self.bytes.last().is_some_and(|last| *last != b'\n');
            self.telnet = match (self.telnet, byte) {
                (Telnet::Text, IAC) => Telnet::Command,
                (Telnet::Command, IAC) if within => {
                    self.bytes.push(IAC);
                    Telnet::Text
                }
                (Telnet::Command, _) if within => {
                    self.bytes.extend([IAC, byte]);
                    Telnet::Text
                }
                (Telnet::Command, 251..=254) => Telnet::Option,
                // If a command was sent as urgent data, its last byte may be missing from the stream: treat the byte as
                // text.
                (Telnet::Text, _) | (Telnet::Command, IAC | 0..128) => {
                    self.bytes.push(byte);
                    Telnet::Text
                }
                (Telnet::Command | Telnet::Option, _) => Telnet::Text,
            };
        }
        self.dropped += bytes.len().saturating_sub(self.bytes.len() - before);
    }

    /// Takes the next complete line, without its line end.
    ///
    /// # Errors
    /// [`LongLine`]. The connection cannot be used any more.
    pub fn take(&mut self) -> Result<Option<Vec<u8>>, LongLine> {
        let found = self.bytes[self.searched..].iter().position(|&b| b == b'\n').map(|at| at + self.searched);
        // The limit does not include CR LF.
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

    /// The bytes after the last line that was taken: they belong to the next protocol, such as TLS after `AUTH TLS`. A
    /// server should refuse a client for which there are any: plaintext sent before the reply may have been injected.
    pub fn rest(self) -> Vec<u8> {
        self.bytes
    }
}

/// Whether `text` can be part of a line: it must not contain a line end, after which the rest would be taken for a
/// command.
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
    fn lines_are_found_with_all_line_ends_and_without_telnet_commands() {
        let mut lines = Lines::default();
        lines.push(b"USER a\r\nPASS b\nCWD \r\0x\r\n\r\n\xff\xf4\xff\xf2ABOR\r\n\xff\xfd\x01NOOP \xff\xff\r\n");
        lines.push(b"\xff\xf4\xffABOR\r\nrest");
        assert_eq!(all(&mut lines), [&b"USER a"[..], b"PASS b", b"CWD \rx", b"", b"ABOR", b"NOOP \xff", b"ABOR"]);
        assert_eq!(lines.rest(), b"rest");
    }

    #[test]
    fn bytes_of_names_are_no_telnet_commands() {
        let mut lines = Lines::default();
        for chunk in
            [&b"DELE a\xff\r\nDELE b\xff\xf4\r\n"[..], b"DELE c\xff", b"\xfb\x01d\n\xff\xf4DELE e\xff", b"\xff\r\n"]
        {
            lines.push(chunk);
        }
        let expected = [&b"DELE a\xff"[..], b"DELE b\xff\xf4", b"DELE c\xff\xfb\x01d", b"DELE e\xff"];
        assert_eq!(all(&mut lines), expected);
    }

    #[test]
    fn lines_beyond_the_limit_are_refused() {
        for end in ["", "\n", "\r\n"] {
            let mut lines = Lines::new(5);
            lines.push(b"12345\r\n");
            assert_eq!(lines.take(), Ok(Some(b"12345".to_vec())));
            lines.push(format!("123456{}{end}", if end.is_empty() { "7" } else { "" }).as_bytes());
            assert_eq!(lines.take(), Err(LongLine(5)), "{end:?}");
        }
    }

    #[test]
    fn telnet_commands_count_towards_the_limit() {
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
        fn lines_do_not_depend_on_how_the_bytes_are_split(texts in proptest::collection::vec("[^\r\n\0]{0,20}", 0..10), cut in 1..7usize) {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for chunk in texts.iter().map(|t| format!("{t}\r\n")).collect::<String>().as_bytes().chunks(cut) {
                lines.push(chunk);
                found.extend(all(&mut lines));
            }
            prop_assert_eq!(found, texts.iter().map(|t| t.as_bytes().to_vec()).collect::<Vec<_>>());
        }
    }
}
