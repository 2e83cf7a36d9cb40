//! Replies of servers (RFC 959, section 4.2): a code of three digits and text, on one line or several lines.
//!
//! The first of several lines has `-` after the code, and the last one a blank after the same code. The lines between
//! them are arbitrary. A line that would look like the last one gets a leading blank.

use super::line::{Lines, LongLine, MAX_LINE, is_line};
use std::fmt;

/// Most bytes of a reply that contains a listing, such as those to `STAT` and `SITE DRAFTS`.
pub const MAX_REPLY: usize = 64 << 20;

/// Most lines of such a reply. Each line costs memory beside its bytes.
pub const MAX_LINES: usize = 1 << 20;

/// Most bytes of any other reply: two of the longest lines. Greetings, messages of the day and lists of features have
/// some thousand bytes.
pub const MAX_SHORT: usize = 2 * MAX_LINE;

/// Most lines of any other reply.
pub const MAX_SHORT_LINES: usize = 2048;

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// From 100 to 699: 6xx are protected replies (RFC 2228).
    pub code: u16,
    /// The lines of the text without codes, at least one. Bytes, because they may contain file names.
    pub lines: Vec<Vec<u8>>,
}

/// Why received bytes are not a valid reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// A line is too long.
    #[error("the server answers with {0}")]
    Line(#[from] LongLine),
    /// The first line does not begin with a code.
    #[error("the server answers with \"{0}\", and a code of three digits was expected")]
    Code(String),
    /// The reply has too many bytes.
    #[error("the server answers with more than {0} bytes")]
    Long(usize),
    /// The reply has too many lines.
    #[error("the server answers with more than {0} lines")]
    Lines(usize),
}

impl Reply {
    /// A reply of one line.
    pub fn new(code: u16, text: impl AsRef<[u8]>) -> Self {
        Self { code, lines: vec![text.as_ref().to_vec()] }
    }

    /// A reply of several lines.
    pub fn of_lines<L: AsRef<[u8]>>(code: u16, lines: impl IntoIterator<Item = L>) -> Self {
        let mut lines: Vec<Vec<u8>> = lines.into_iter().map(|line| line.as_ref().to_vec()).collect();
        if lines.is_empty() {
            lines.push(Vec::new());
        }
        Self { code, lines }
    }

    /// Whether another reply to the same command follows (1xx).
    pub fn is_preliminary(&self) -> bool {
        self.code / 100 == 1
    }

    /// Whether the command has succeeded (2xx).
    pub fn is_success(&self) -> bool {
        self.code / 100 == 2
    }

    /// Whether another command is needed to complete the request (3xx).
    pub fn is_intermediate(&self) -> bool {
        self.code / 100 == 3
    }

    /// Whether the command has failed but may succeed later (4xx).
    pub fn is_transient_failure(&self) -> bool {
        self.code / 100 == 4
    }

    /// The text for people: all lines, with invalid UTF-8 replaced.
    pub fn text(&self) -> String {
        let lines: Vec<_> = self.lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
        lines.join("\n")
    }

    /// Encodes the reply.
    pub fn encode(&self) -> Vec<u8> {
        let (mut out, last) = (Vec::new(), self.lines.len().saturating_sub(1));
        for (i, line) in self.lines.iter().enumerate() {
            match i {
                _ if i == last => out.extend(format!("{:03} ", self.code).bytes()),
                0 => out.extend(format!("{:03}-", self.code).bytes()),
                _ if line.starts_with(format!("{:03} ", self.code).as_bytes()) => out.push(b' '),
                _ => {}
            }
            // Replace line ends in names: the rest would be taken for a reply of its own.
            out.extend(line.iter().map(|&byte| if is_line(&[byte]) { byte } else { b'?' }));
            out.extend(b"\r\n");
        }
        out
    }
}

/// The code and the text, with control characters escaped.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.text().escape_debug())
    }
}

/// Parses replies.
#[derive(Debug, Clone, Default)]
pub struct Replies {
    lines: Lines,
    open: Option<Reply>,
    size: usize,
    long: bool,
}

impl Replies {
    /// A parser without input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the next replies may be as long as listings. Initially they may not.
    pub fn expect_long(&mut self, long: bool) {
        self.long = long;
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.lines.push(bytes);
    }

    /// Takes the next complete reply.
    ///
    /// # Errors
    /// [`ReplyError`]. The connection cannot be used any more.
    pub fn take(&mut self) -> Result<Option<Reply>, ReplyError> {
        while let Some(line) = self.lines.take()? {
            let start = code(&line);
            let Some(open) = &mut self.open else {
                let Some((code, more)) = start else {
                    return Err(ReplyError::Code(String::from_utf8_lossy(&line).chars().take(100).collect()));
                };
                let reply = Reply { code, lines: vec![text(&line)] };
                if !more {
                    return Ok(Some(reply));
                }
                (self.open, self.size) = (Some(reply), line.len());
                continue;
            };
            self.size += line.len() + 1;
            let (bytes, lines) = if self.long { (MAX_REPLY, MAX_LINES) } else { (MAX_SHORT, MAX_SHORT_LINES) };
            if self.size > bytes {
                return Err(ReplyError::Long(bytes));
            }
            if open.lines.len() >= lines {
                return Err(ReplyError::Lines(lines));
            }
            match start {
                Some((code, false)) if code == open.code => {
                    open.lines.push(text(&line));
                    return Ok(self.open.take());
                }
                // Some servers repeat the code on every line.
                Some((code, true)) if code == open.code => open.lines.push(text(&line)),
                _ => open.lines.push(line),
            }
        }
        Ok(None)
    }

    /// Whether a reply of several lines is incomplete.
    pub fn is_incomplete(&self) -> bool {
        self.open.is_some()
    }

    /// The bytes after the last reply that was taken: they belong to the next protocol, such as TLS after the reply to
    /// `AUTH TLS`.
    pub fn rest(self) -> Vec<u8> {
        self.lines.rest()
    }
}

/// The code at the beginning of a line, and whether more lines follow.
fn code(line: &[u8]) -> Option<(u16, bool)> {
    let (digits, rest) = line.split_at_checked(3)?;
    let more = match rest.first() {
        None | Some(b' ') => false,
        Some(b'-') => true,
        Some(_) => return None,
    };
    let code = str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
    (100..700).contains(&code).then_some((code, more))
}

fn text(line: &[u8]) -> Vec<u8> {
    line.get(4..).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<Vec<Reply>, ReplyError> {
        let mut replies = Replies::new();
        replies.push(bytes);
        std::iter::from_fn(|| replies.take().transpose()).collect()
    }

    #[test]
    fn replies_are_parsed_as_servers_send_them() {
        let bytes = b"220 ready\r\n211-Extensions\r\n MLST a*;\r\n 211 not the end\r\n211 End.\r\n\
            112-Perf Marker\r\n Stripe Index: 0\r\n112 End.\r\n200\r\n250-a\r\n250-b\r\n250 c\r\n";
        let replies = read(bytes).unwrap();
        assert_eq!(replies.iter().map(|r| r.code).collect::<Vec<_>>(), [220, 211, 112, 200, 250]);
        assert_eq!(replies[1].text(), "Extensions\n MLST a*;\n 211 not the end\nEnd.");
        assert_eq!((replies[3].text(), replies[4].text()), (String::new(), "a\nb\nc".into()));
        assert!(replies[2].is_preliminary() && replies[0].is_success());
    }

    /// Feeds `line` for ever after the first line of a reply. Returns the error, and the number of bytes before it.
    fn endless(mut replies: Replies, line: &[u8]) -> (ReplyError, usize) {
        replies.push(b"220-hello\r\n");
        let block = line.repeat((16 << 10) / line.len());
        for taken in 0.. {
            replies.push(&block);
            match replies.take() {
                Ok(None) => {}
                Ok(Some(reply)) => panic!("an answer: {}", reply.code),
                Err(error) => return (error, (taken + 1) * block.len()),
            }
        }
        unreachable!("it never ends")
    }

    #[test]
    fn endless_replies_are_refused_at_the_limit() {
        let short = || Replies::new();
        assert_eq!(endless(short(), b"\r\n").0, ReplyError::Lines(MAX_SHORT_LINES));
        assert_eq!(endless(short(), b"220-a\r\n").0, ReplyError::Lines(MAX_SHORT_LINES));
        let (error, taken) = endless(short(), &[&[b'x'; 998][..], b"\r\n"].concat());
        assert_eq!(error, ReplyError::Long(MAX_SHORT));
        assert!(taken < 2 * MAX_SHORT, "{taken}");
        let mut long = short();
        long.expect_long(true);
        let (error, taken) = endless(long, b" a\r\n");
        assert_eq!(error, ReplyError::Lines(MAX_LINES));
        assert!(taken < 8 << 20, "{taken}");
    }

    #[test]
    fn long_replies_are_accepted_only_if_expected() {
        let lines: Vec<String> = (0..10_000).map(|n| format!(" type=file; name{n}")).collect();
        let bytes = Reply::of_lines(250, &lines).encode();
        let mut replies = Replies::new();
        replies.expect_long(true);
        replies.push(&bytes);
        assert_eq!(replies.take().unwrap().unwrap().lines.len(), lines.len());
        replies.expect_long(false);
        replies.push(&bytes);
        assert_eq!(replies.take(), Err(ReplyError::Lines(MAX_SHORT_LINES)));
    }

    #[test]
    fn lines_without_a_code_are_refused() {
        for line in ["hello", "2200 x", "22 x", "+20 x", "700 x", "099 x", "", "220x"] {
            assert_eq!(read(format!("{line}\r\n").as_bytes()), Err(ReplyError::Code(line.into())));
        }
        let mut replies = Replies::new();
        replies.push(b"150-x\r\n");
        assert_eq!((replies.take(), replies.is_incomplete()), (Ok(None), true));
    }

    proptest! {
        #[test]
        fn encoded_replies_parse_back_and_lines_are_never_split(
            code in 100..700u16,
            texts in proptest::collection::vec("([1-6]{3} )?.{0,10}[\r\n]?.{0,10}", 1..5),
        ) {
            let reply = Reply::of_lines(code, &texts);
            let read = read(&reply.encode()).unwrap();
            prop_assert_eq!(read.len(), 1);
            prop_assert_eq!((read[0].code, read[0].lines.len()), (code, texts.len()));
            for (found, text) in read[0].lines.iter().zip(&texts) {
                let clean = text.replace(['\r', '\n', '\0'], "?");
                let found = String::from_utf8(found.clone()).unwrap();
                // A middle line that begins with the same code and a dash is parsed without them.
                let repeated = clean.strip_prefix(&format!("{code}-"));
                let indented = found.strip_prefix(' ') == Some(&clean);
                prop_assert!(found == clean || indented || Some(found.as_str()) == repeated);
            }
        }

        #[test]
        fn replies_do_not_depend_on_how_the_bytes_are_split(bytes in "([1-3][0-9]{2}[ -]?.{0,5}\r\n){0,8}", cut in 1..9usize) {
            let (mut replies, mut found) = (Replies::new(), Vec::new());
            let mut failed = None;
            for chunk in bytes.as_bytes().chunks(cut) {
                replies.push(chunk);
                while failed.is_none() {
                    match replies.take() {
                        Ok(Some(reply)) => found.push(reply),
                        Ok(None) => break,
                        Err(error) => failed = Some(error),
                    }
                }
            }
            prop_assert_eq!(failed.map_or(Ok(found), Err), read(bytes.as_bytes()));
        }
    }
}
