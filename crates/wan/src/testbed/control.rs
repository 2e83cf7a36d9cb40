//! The control socket, over which other processes of the same user query and change a running testbed and
//! enter its hosts.
//!
//! A connection carries one request and one answer, each a line of JSON. The answer to `enter` comes with
//! descriptors of the host's namespaces, so the client needs no permission to access the owner's process.

use super::environment::{self, control_socket};
use super::namespace::Namespaces;
use super::report::Report;
use super::{Error, Found, State};
use crate::model::{Direction, DirectionUpdate};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A request to a testbed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    Report,
    Enter {
        host: String,
    },
    /// Changes one direction of a link, or both if none is given.
    Set {
        link: String,
        direction: Option<Direction>,
        update: DirectionUpdate,
    },
    Cut {
        link: String,
    },
    Heal {
        link: String,
    },
    Down,
}

/// A testbed's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Done,
    Report(Box<Report>),
    Refused(Refused),
}

/// An [`Error`] in a form that can be sent to another process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Refused {
    pub(super) message: String,
    pub(super) bad_input: bool,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { message: error.to_string(), bad_input: error.is_bad_input() }
    }
}

impl From<Refused> for Error {
    fn from(Refused { message, bad_input }: Refused) -> Self {
        Self::Remote { message, bad_input }
    }
}

/// A running testbed of this user, owned by any process.
#[derive(Debug, Clone)]
pub struct Remote {
    name: String,
    socket: PathBuf,
}

impl Remote {
    /// Finds the testbed `name`; without a name, the one that this process runs in ([`super::ENV_NAME`]), or
    /// else the only running one.
    pub fn find(name: Option<&str>) -> Result<Self, Error> {
        let inside = std::env::var(super::ENV_NAME).ok().filter(|name| !name.is_empty());
        let running: Vec<_> = Found::all()?.into_iter().filter(|found| found.state == State::Running).collect();
        let found = match name.or(inside.as_deref()) {
            Some(name) => running.iter().find(|found| found.name == name).ok_or_else(|| Error::NotRunning {
                name: Some(name.into()),
                known: super::list(running.iter().map(|found| found.name.as_str())),
            })?,
            None => match &running[..] {
                [only] => only,
                [] => return Err(Error::NotRunning { name: None, known: "none".into() }),
                several => return Err(Error::Ambiguous(super::list(several.iter().map(|found| found.name.as_str())))),
            },
        };
        Ok(Self::at(found))
    }

    /// The testbed at `found`.
    pub fn at(found: &Found) -> Self {
        Self { name: found.name.clone(), socket: control_socket(&found.path) }
    }

    /// Its location.
    pub fn found(&self) -> Found {
        Found { name: self.name.clone(), path: self.directory().to_owned(), state: State::Running }
    }

    /// The testbed's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its state directory.
    pub fn directory(&self) -> &Path {
        self.socket.parent().unwrap_or(&self.socket)
    }

    /// Sets environment variables that tell a command which testbed it belongs to, and which host it runs in,
    /// if any.
    pub fn identify(&self, command: &mut Command, host: Option<&str>) {
        environment::identify(command, self.directory(), host);
    }

    /// The current conditions, links and counters.
    pub fn report(&self) -> Result<Report, Error> {
        match self.ask(&Request::Report, Some(ANSWER_TIME))? {
            (Answer::Report(report), _) => Ok(*report),
            _ => Err(self.lost(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Descriptors of the namespaces of `host`.
    pub fn enter(&self, host: &str) -> Result<Namespaces, Error> {
        let (_, fds) = self.ask(&Request::Enter { host: host.into() }, Some(ANSWER_TIME))?;
        match <[OwnedFd; 4]>::try_from(fds) {
            Ok(fds) => Ok(Namespaces::from_fds(fds)),
            Err(_) => Err(self.lost(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Changes one direction of a link, or both if none is given; settings absent from `update` stay
    /// unchanged.
    pub fn set(&self, link: &str, direction: Option<Direction>, update: &DirectionUpdate) -> Result<(), Error> {
        self.order(&Request::Set { link: link.into(), direction, update: *update }, Some(ANSWER_TIME))
    }

    /// Interrupts a link.
    pub fn cut(&self, link: &str) -> Result<(), Error> {
        self.order(&Request::Cut { link: link.into() }, Some(ANSWER_TIME))
    }

    /// Ends a cut.
    pub fn heal(&self, link: &str) -> Result<(), Error> {
        self.order(&Request::Heal { link: link.into() }, Some(ANSWER_TIME))
    }

    /// Takes the testbed down and waits for completion.
    pub fn down(&self) -> Result<(), Error> {
        // No time limit: programs in the hosts get time to end, and if the owner dies, the connection closes.
        self.order(&Request::Down, None)
    }

    fn order(&self, request: &Request, limit: Option<Duration>) -> Result<(), Error> {
        self.ask(request, limit).map(drop)
    }

    fn ask(&self, request: &Request, limit: Option<Duration>) -> Result<(Answer, Vec<OwnedFd>), Error> {
        let stream = UnixStream::connect(&self.socket).map_err(|error| self.lost(error))?;
        stream.set_write_timeout(Some(ANSWER_TIME)).map_err(|error| self.lost(error))?;
        stream.set_read_timeout(limit).map_err(|error| self.lost(error))?;
        send(&stream, request, None).map_err(|error| self.lost(error))?;
        match receive(&stream).map_err(|error| self.lost(error))? {
            (Answer::Refused(refused), _) => Err(refused.into()),
            answer => Ok(answer),
        }
    }

    fn lost(&self, error: io::Error) -> Error {
        Error::system(format!("testbed {} does not answer", self.name))(error)
    }
}

/// Longest wait for an answer: no request takes long, but the machine may be busy.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Longest wait of the owner for a request, since other clients wait meanwhile.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(2);
/// Largest message, in bytes; the report of the largest scenario is well below it.
const MESSAGE_MAX: usize = 4 << 20;

/// Sends one message as a line, with descriptors of a host's namespaces if given.
pub(super) fn send<T: Serialize>(stream: &UnixStream, message: &T, host: Option<&Namespaces>) -> io::Result<()> {
    let mut text = serde_json::to_vec(message)?;
    text.push(b'\n');
    let fds = host.map(Namespaces::fds);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if let Some(fds) = &fds {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let sent = sendmsg(stream, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL)?;
    io::Write::write_all(&mut &*stream, &text[sent..])
}

/// Receives one message and the descriptors sent with it.
pub(super) fn receive<T: for<'de> Deserialize<'de>>(stream: &UnixStream) -> io::Result<(T, Vec<OwnedFd>)> {
    let (mut text, mut fds) = (Vec::new(), Vec::new());
    while !text.ends_with(b"\n") && text.len() <= MESSAGE_MAX {
        let mut buffer = [0u8; 8192];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(stream, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        text.extend_from_slice(&buffer[..received]);
    }
    Ok((serde_json::from_slice(&text)?, fds))
}
