//! TYPE A (RFC 959, section 3.1.1.1): lines end with LF in files here, and with CR LF on the wire.

use bytes::Bytes;
use phoebus_files::Error;
use phoebus_files::block::{Block, Body};
use phoebus_files::store::{BytesFlow, Fallible, Flow};
use std::sync::Arc;
use tokio::sync::Mutex;

/// A flow in order, with the ends of lines converted.
#[derive(Debug)]
pub(super) struct Ascii {
    flow: BytesFlow,
    state: Mutex<State>,
    to_wire: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Offset of the next byte after the conversion.
    at: u64,
    /// Whether the last byte was a CR that may belong to a CR LF.
    after_cr: bool,
    ended: bool,
}

impl Ascii {
    /// Converts LF to CR LF, for sending.
    pub(super) fn to_wire(flow: Arc<dyn Flow>) -> Arc<dyn Flow> {
        let flow = BytesFlow::over(flow);
        Arc::new(Self { flow, state: Mutex::default(), to_wire: true })
    }

    /// Converts CR LF to LF, for receiving. Writing begins at `at`.
    pub(super) fn from_wire(flow: Arc<dyn Flow>, at: u64) -> Arc<dyn Flow> {
        let flow = BytesFlow::over(flow);
        Arc::new(Self { flow, state: Mutex::new(State { at, ..State::default() }), to_wire: false })
    }
}

impl Flow for Ascii {
    fn next(&self) -> Fallible<'_, Option<Block>> {
        Box::pin(async {
            let mut state = self.state.lock().await;
            loop {
                if state.ended {
                    return Ok(None);
                }
                let out = match self.flow.next().await? {
                    Some(block) if self.to_wire => to_wire(&block.body),
                    Some(block) => from_wire(&block.body, &mut state.after_cr),
                    None => {
                        state.ended = true;
                        if std::mem::take(&mut state.after_cr) { vec![b'\r'] } else { Vec::new() }
                    }
                };
                if out.is_empty() {
                    continue;
                }
                let block = Block::<Body>::new(state.at, Bytes::from(out));
                state.at = block.extent().map(|extent| extent.end()).ok_or_else(beyond)?;
                return Ok(Some(block));
            }
        })
    }
}

fn beyond() -> Error {
    Error::Limit { name: "the transfer".to_owned(), what: "the number of bytes", limit: u64::MAX }
}

fn to_wire(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 16);
    for line in bytes.split_inclusive(|&b| b == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(text) => {
                out.extend_from_slice(text);
                out.extend_from_slice(b"\r\n");
            }
            None => out.extend_from_slice(line),
        }
    }
    out
}

/// Converts CR LF to LF. Any other CR stays.
fn from_wire(bytes: &[u8], after_cr: &mut bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 1);
    for &byte in bytes {
        if std::mem::replace(after_cr, byte == b'\r') && byte != b'\n' {
            out.push(b'\r');
        }
        if byte != b'\r' {
            out.push(byte);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_converted_for_each_side() {
        assert_eq!(to_wire(b"a\nb\n\nc"), b"a\r\nb\r\n\r\nc");
        let text = b"a\r\nb\r\rc\r\n\r\nd\r";
        for cut in 0..text.len() {
            let mut after_cr = false;
            let mut out = from_wire(&text[..cut], &mut after_cr);
            out.extend(from_wire(&text[cut..], &mut after_cr));
            assert_eq!((out.as_slice(), after_cr), (&b"a\nb\r\rc\n\nd"[..], true), "cut at {cut}");
        }
    }
}
