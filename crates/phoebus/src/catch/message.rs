//! What the supervisor tells the front about the program: messages of five bytes, a kind and a number.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::io;

/// What has happened to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// It runs, with this number.
    Started(i32),
    /// It has exited with this code.
    Exited(i32),
    /// This signal has ended it.
    Killed(i32),
    /// A signal has stopped it.
    Stopped,
    /// It goes on.
    Continued,
}

/// One end of the channel.
#[derive(Debug)]
pub(super) struct End(OwnedFd);

/// The ends of the front and of the supervisor.
pub(super) fn channel() -> io::Result<(End, End)> {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((End(one), End(other)))
}

impl End {
    /// Sends a message. The front may have gone, which ends nothing.
    pub(super) fn say(&self, message: Message) {
        let (kind, number) = match message {
            Message::Started(pid) => (0, pid),
            Message::Exited(code) => (1, code),
            Message::Killed(signal) => (2, signal),
            Message::Stopped => (3, 0),
            Message::Continued => (4, 0),
        };
        let [a, b, c, d] = number.to_le_bytes();
        let _ = send(&self.0, &[kind, a, b, c, d], SendFlags::NOSIGNAL);
    }

    /// The next message, if one is there: `Ok(None)` if none is yet.
    ///
    /// # Errors
    /// The supervisor has gone.
    pub(super) fn hear(&self) -> io::Result<Option<Message>> {
        let mut bytes = [0; 5];
        match recv(&self.0, &mut bytes, RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
            Ok((5, _)) => {}
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        let [kind, number @ ..] = bytes;
        let number = i32::from_le_bytes(number);
        Ok(Some(match kind {
            0 => Message::Started(number),
            1 => Message::Exited(number),
            2 => Message::Killed(number),
            3 => Message::Stopped,
            _ => Message::Continued,
        }))
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
