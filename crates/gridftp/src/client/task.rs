//! Runs a command that makes a server send, until the server confirms that it sent all, or the receiver has enough.

use super::error::{bare, passing, refused, words};
use super::lines::verb;
use super::preliminary::Limit;
use super::remote::Remote;
use super::session::Session;
use super::take::Sink;
use crate::data::{Channel, Intake, Mode};
use phoebus_files::block::Block;
use phoebus_files::range::Extent;
use phoebus_files::store::Flow;
use phoebus_files::{Error, ErrorKind};
use phoebus_proto::gridftp::reply::Reply;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// Interval of keep-alives to a server that has sent everything while the receiver is still busy: a server that shuts
/// down closes silent connections.
pub(super) const SPEAK: Duration = Duration::from_millis(400);

/// Longest wait for the server's reply after data failed, since the reply says more than a broken connection.
const WORDS: Duration = Duration::from_secs(5);

/// A command that makes a server send.
pub(super) struct Task<'a> {
    pub(super) remote: &'a Remote,
    /// Subject of errors.
    pub(super) name: &'a str,
    /// Verb of errors.
    pub(super) act: &'static str,
    /// Last wanted byte, if the server sends more.
    pub(super) enough: Option<u64>,
}

impl Task<'_> {
    /// Sends `command`, and passes data to `sink`, which returns whether it wants more. Returns true once everything
    /// has come and the server has confirmed it, and false if `sink` had enough.
    pub(super) async fn receive(
        &self,
        session: &mut Session,
        command: &[u8],
        channel: &Channel,
        mode: Mode,
        intake: Intake,
        sink: &mut impl Sink,
    ) -> Result<bool, Error> {
        session.is_transferring = true;
        session.send(command).await?;
        self.remote.prepare_next(session).await?;
        let incoming = channel.receive(mode, intake);
        let verb = verb(command);
        let (mut ended, mut said) = (false, false);
        let (mut limit, mut lag) = (Limit::new(self.remote.options().stall_timeout, Duration::ZERO), Lag::default());
        while !(ended && said && !lag.waits) {
            let word = async {
                match said {
                    false => session.next().await.map(Step::Said),
                    true => Ok(Step::Lags(lag.due(session).await)),
                }
            };
            let step = async {
                tokio::select! {
                    // The reply comes first, so that a refusal does not look like a broken connection.
                    biased;
                    step = word => step,
                    block = incoming.next(), if !ended => Ok(Step::Came(block)),
                }
            };
            let step = match timeout_at(limit.end(), step).await {
                Ok(Ok(step)) => step,
                Err(_) if ended && said => {
                    lag.is_lost = true;
                    break;
                }
                Ok(Err(error)) if ended => return Err(error),
                Ok(Err(error)) => return Err(self.cut(&*incoming, error).await),
                Err(_) => return Err(Error::Stalled { name: self.name.to_owned(), after: limit.length() }),
            };
            match step {
                Step::Lags(due) => {
                    lag.act(due, session).await;
                    continue;
                }
                Step::Said(reply) if reply.is_preliminary() => {
                    limit.heard();
                    if limit.is_over() {
                        return Err(Error::Stalled { name: self.name.to_owned(), after: limit.length() });
                    }
                    continue;
                }
                Step::Said(reply) if reply.is_success() => {
                    said = true;
                    lag.begins();
                }
                Step::Said(reply) => {
                    session.in_step = true;
                    return Err(refused(self.name, self.act, &verb, &reply));
                }
                Step::Came(Ok(None)) => ended = true,
                Step::Came(Ok(Some(block))) => {
                    let end = block.extent().map_or(u64::MAX, Extent::end);
                    let mut taken = pin!(sink.take(block));
                    let taken = loop {
                        tokio::select! {
                            biased;
                            taken = &mut taken => break taken,
                            due = lag.due(session), if said => lag.act(due, session).await,
                        }
                    };
                    if !taken {
                        return Err(passing(self.name, "the transfer was given up"));
                    }
                    if self.enough.is_some_and(|enough| end >= enough) {
                        return Ok(false);
                    }
                }
                Step::Came(Err(error)) => return Err(self.explained(session, &verb, said, error).await),
            }
            limit.progressed();
        }
        session.in_step = !lag.is_lost;
        Ok(true)
    }

    /// Combines the end of replies with the outcome of data, whichever was seen first.
    async fn cut(&self, incoming: &dyn Flow, said: Error) -> Error {
        let failed = async {
            loop {
                match incoming.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return None,
                    Err(error) => return Some(error),
                }
            }
        };
        match timeout(WORDS, failed).await {
            Ok(Some(data)) => self.both(data, &said),
            _ => said,
        }
    }

    /// A failure of data, with the server's reply or the reason for none.
    fn both(&self, data: Error, said: &Error) -> Error {
        match named(self.name, data) {
            Error::Store { reason, kind: ErrorKind::Passing, .. } => passing(self.name, format!("{reason}; {said}")),
            // A local failure, such as a full disk.
            other => other,
        }
    }

    /// Why data failed: the server's reply, if there is one, or what this end saw.
    async fn explained(&self, session: &mut Session, verb: &str, said: bool, error: Error) -> Error {
        let error = named(self.name, error);
        if said {
            return error;
        }
        match session.last(WORDS).await {
            Ok(reply) if reply.is_success() => error,
            // The server has only seen that this end gave up.
            Ok(_) if error.kind() == ErrorKind::Request => error,
            // These errors only say what became of the connection.
            Ok(reply) if matches!(reply.code, 425 | 426) => {
                passing(self.name, format!("{}; the server says {}", bare(&error, self.name), words(&reply)))
            }
            Ok(reply) => refused(self.name, self.act, verb, &reply),
            Err(silent) => self.both(error, &silent),
        }
    }
}

/// An event of a transfer.
enum Step {
    Said(Reply),
    Lags(Due),
    Came(Result<Option<Block>, Error>),
}

/// A server that has sent everything while the receiver is still busy. It gets keep-alives.
#[derive(Debug, Default)]
struct Lag {
    /// Time of the next keep-alive.
    at: Option<Instant>,
    /// Whether a reply is outstanding.
    waits: bool,
    /// Whether the connection has failed. The data have arrived all the same.
    is_lost: bool,
}

/// A keep-alive is due, or its reply has come.
enum Due {
    Speak,
    Answer(Result<Reply, Error>),
}

impl Lag {
    fn begins(&mut self) {
        self.at = Some(Instant::now() + SPEAK);
    }

    /// The next event. Cancel safe.
    async fn due(&self, session: &mut Session) -> Due {
        if self.waits {
            return Due::Answer(session.next().await);
        }
        match self.at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
        Due::Speak
    }

    async fn act(&mut self, due: Due, session: &mut Session) {
        let done = match due {
            // NOOP is what idle clients send.
            Due::Speak => session.send(b"PWD").await.map(|()| true),
            Due::Answer(reply) => reply.map(|reply| reply.is_preliminary()),
        };
        self.begins();
        self.waits = done.unwrap_or_else(|_| {
            (self.at, self.is_lost) = (None, true);
            false
        });
    }
}

/// Converts an error of the data channel of `name`.
fn named(name: &str, error: Error) -> Error {
    match error {
        Error::Store { name: ref of, ref reason, kind } if of == "data channel" => {
            Error::Store { name: name.to_owned(), reason: reason.clone(), kind }
        }
        other => other,
    }
}
