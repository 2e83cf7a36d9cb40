//! Commands about many files, sent without waiting for each reply, as GridFTP servers allow.

use super::super::error::words;
use super::super::lines::verb;
use super::super::remote::Remote;
use super::super::session::Session;
use phoebus_files::{Error, ErrorKind};
use phoebus_proto::gridftp::reply::Reply;
use std::collections::VecDeque;

/// Most bytes of commands in flight. The receive buffer of any system holds them, so that a server which waits for its
/// replies to be read does not keep this end from reading them.
const WINDOW: usize = 16 << 10;

/// Sends `lines`, and passes the last reply to each to `heard` with its number, in order.
///
/// # Errors
/// The connection fails, the server takes too long, or `heard` returns an error. Then replies are outstanding.
pub(super) async fn ask_in_order(
    session: &mut Session,
    lines: &[Vec<u8>],
    mut heard: impl FnMut(usize, Reply) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut in_flight: VecDeque<&[u8]> = VecDeque::new();
    let (mut bytes, mut number) = (0, 0);
    let mut lines = lines.iter().map(Vec::as_slice).peekable();
    loop {
        // Few large pieces cost both ends less than one for each line.
        if bytes <= WINDOW / 2 {
            let before = in_flight.len();
            while let Some(line) = lines.next_if(|line| bytes == 0 || bytes + line.len() <= WINDOW) {
                bytes += line.len();
                in_flight.push_back(line);
            }
            let new: Vec<&[u8]> = in_flight.range(before..).copied().collect();
            if !new.is_empty() {
                session.send_together(&new).await?;
            }
        }
        let Some(line) = in_flight.pop_front() else { return Ok(()) };
        bytes -= line.len();
        session.in_step = false;
        let reply = session.last_to(line).await?;
        session.in_step &= in_flight.is_empty();
        heard(number, reply)?;
        number += 1;
    }
}

/// The error of a batch that a reply to `line` ends. It is passing if the reply is.
pub(super) fn ends(remote: &Remote, line: &[u8], reply: &Reply) -> Error {
    let reason = format!("a batch ends: the server answers {} with {}", verb(line), words(reply));
    let kind = if reply.is_transient_failure() { ErrorKind::Passing } else { ErrorKind::Request };
    Error::Store { name: remote.0.name.to_string(), reason, kind }
}
