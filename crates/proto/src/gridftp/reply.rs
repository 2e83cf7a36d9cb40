//! Answers of servers (RFC 959, section 4.2): a code of three digits and text, on one line or on several.
//!
//! The first line of several has `-` after the code, and the last one the code and a blank; between them is anything, and a
//! line that would be taken for the last begins with a blank instead.

use super::line::{Lines, LongLine, MAX_LINE, is_line};
use std::fmt;

/// How many bytes an answer may have that lists something, such as those to `STAT` and `SITE DRAFTS`.
pub const MAX_REPLY: usize = 64 << 20;

/// How many lines it may have: each costs memory beside its bytes.
pub const MAX_LINES: usize = 1 << 20;

/// How many bytes any other answer may have: two of the longest lines. Greetings, messages of the day and lists of features have some
/// thousand.
pub const MAX_SHORT: usize = 2 * MAX_LINE;

/// How many lines any other answer may have.
pub const MAX_SHORT_LINES: usize = 2048;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// From 100 to 699: 6xx are protected answers (RFC 2228).
    pub code: u16,
    /// The text, line by line, without codes: at least one line, empty perhaps. Bytes, since names are in them.
    pub lines: Vec<Vec<u8>>,
}

/// What is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// A line is too long.
    #[error("the server answers with {0}")]
    Line(#[from] LongLine),
    /// A line does not begin as answers do.
    #[error("the server answers with \"{0}\", and a code of three digits was expected")]
    Code(String),
    /// The answer does not end.
    #[error("the server answers with more than {0} bytes")]
    Long(usize),
    /// The same, by its lines.
    #[error("the server answers with more than {0} lines")]
    Lines(usize),
}

impl Reply {
    /// An answer of one line.
    pub fn new(code: u16, text: impl AsRef<[u8]>) -> Self {
        Self { code, lines: vec![text.as_ref().to_vec()] }
    }

    /// One of several lines.
    pub fn of_lines<L: AsRef<[u8]>>(code: u16, lines: impl IntoIterator<Item = L>) -> Self {
        let mut lines: Vec<Vec<u8>> = lines.into_iter().map(|line| line.as_ref().to_vec()).collect();
        if lines.is_empty() {
            lines.push(Vec::new());
        }
        Self { code, lines }
    }

    /// Whether another answer to the same command follows.
    pub fn is_preliminary(&self) -> bool {
        self.code / 100 == 1
    }

    /// Whether what was asked for is done.
    pub fn is_success(&self) -> bool {
        self.code / 100 == 2
    }

    /// Whether the next command completes what was asked for.
    pub fn is_intermediate(&self) -> bool {
        self.code / 100 == 3
    }

    /// Whether it failed, and the same may succeed later.
    pub fn is_passing_failure(&self) -> bool {
        self.code / 100 == 4
    }

    /// Its text for people: all lines, with what is no text replaced.
    pub fn text(&self) -> String {
        let lines: Vec<_> = self.lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
        lines.join("\n")
    }

    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let (mut out, last) = (Vec::new(), self.lines.len().saturating_sub(1));
        for (i, line) in self.lines.iter().enumerate() {
            match i {
                _ if i == last => out.extend(format!("{:03} ", self.code).bytes()),
                0 => out.extend(format!("{:03}-", self.code).bytes()),
                _ if line.starts_with(format!("{:03} ", self.code).as_bytes()) => out.push(b' '),
                _ => {}
            }
            // A name with a line end in it would be taken for an answer of its own.
            out.extend(line.iter().map(|&byte| if is_line(&[byte]) { byte } else { b'?' }));
            out.extend(b"\r\n");
        }
        out
    }
}

/// The code, and the text.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.text().escape_debug())
    }
}

/// Reads answers.
#[derive(Debug, Clone, Default)]
pub struct Replies {
    lines: Lines,
    open: Option<Reply>,
    size: usize,
    long: bool,
}

impl Replies {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether answers may be as long as listings from here on. They are short before this is called.
    pub fn expect_long(&mut self, long: bool) {
        self.long = long;
    }

    /// Adds what came in.
    pub fn push(&mut self, bytes: &[u8]) {
        self.lines.push(bytes);
    }

    /// The next answer, if all of it is there.
    ///
    /// # Errors
    /// What came is no answer. There is no way to go on from there.
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

    /// Whether part of an answer has come.
    pub fn is_amid(&self) -> bool {
        self.open.is_some()
    }

    /// What came after the last answer that was given: what belongs to another protocol, as TLS after the answer to `AUTH
    /// TLS`.
    pub fn rest(self) -> Vec<u8> {
        self.lines.rest()
    }
}

/// The code that a line begins with, and whether lines follow.
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
    fn answers_are_read_as_servers_write_them() {
        let bytes = b"220 ready\r\n211-Extensions\r\n MLST a*;\r\n 211 not the end\r\n211 End.\r\n\
            112-Perf Marker\r\n Stripe Index: 0\r\n112 End.\r\n200\r\n250-a\r\n250-b\r\n250 c\r\n";
        let replies = read(bytes).unwrap();
        assert_eq!(replies.iter().map(|r| r.code).collect::<Vec<_>>(), [220, 211, 112, 200, 250]);
        assert_eq!(replies[1].text(), "Extensions\n MLST a*;\n 211 not the end\nEnd.");
        assert_eq!((replies[3].text(), replies[4].text()), (String::new(), "a\nb\nc".into()));
        assert!(replies[2].is_preliminary() && replies[0].is_success());
    }

    /// Feeds `line` for ever after the first line of an answer; how it ends, and how many bytes were taken.
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
    fn answers_without_end_are_given_up_soon() {
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
    fn listings_are_long_where_they_are_expected() {
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
    fn says_what_is_no_answer() {
        for line in ["hello", "2200 x", "22 x", "+20 x", "700 x", "099 x", "", "220x"] {
            assert_eq!(read(format!("{line}\r\n").as_bytes()), Err(ReplyError::Code(line.into())));
        }
        let mut replies = Replies::new();
        replies.push(b"150-x\r\n");
        assert_eq!((replies.take(), replies.is_amid()), (Ok(None), true));
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back_and_no_line_becomes_two(
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
                // A line in the middle that begins with the same code and a dash is taken without it.
                let repeated = clean.strip_prefix(&format!("{code}-"));
                let indented = found.strip_prefix(' ') == Some(&clean);
                prop_assert!(found == clean || indented || Some(found.as_str()) == repeated);
            }
        }

        #[test]
        fn answers_do_not_depend_on_how_they_come(bytes in "([1-3][0-9]{2}[ -]?.{0,5}\r\n){0,8}", cut in 1..9usize) {
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
