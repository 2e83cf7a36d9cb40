//! A command that makes a server send, until all has come and the server has said so, or until enough has.

use super::error::{bare, passing, refused, words};
use super::remote::Remote;
use super::session::{Session, verb};
use super::take::Sink;
use crate::data::{Channel, Intake, Mode};
use phoebus_files::block::Block;
use phoebus_files::range::Extent;
use phoebus_files::store::Flow;
use phoebus_files::{Error, Sort};
use phoebus_proto::gridftp::reply::Reply;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// How often a server is spoken to that has said that it sent all, while what it sent is still being taken: one that is about to end has to
/// know that its client is not done with the file.
pub(super) const SPEAK: Duration = Duration::from_millis(400);

/// How long the server's words are waited for, once data has failed: they say more than a broken connection does.
const WORDS: Duration = Duration::from_secs(5);

/// A command that makes a server send.
pub(super) struct Task<'a> {
    pub(super) remote: &'a Remote,
    /// What is sent, as errors name it.
    pub(super) name: &'a str,
    /// What cannot be done to it, if it cannot.
    pub(super) act: &'static str,
    /// After which byte no more is wanted, if the server sends more than is.
    pub(super) enough: Option<u64>,
}

impl Task<'_> {
    /// Sends `command`, and hands what comes to `sink`, which says whether more is wanted. Returns once all has come and the
    /// server has said so; false if it was stopped before, since enough had come.
    pub(super) async fn receive(
        &self,
        session: &mut Session,
        command: &[u8],
        channel: &Channel,
        mode: Mode,
        intake: Intake,
        sink: &mut impl Sink,
    ) -> Result<bool, Error> {
        session.moving = true;
        session.send(command).await?;
        self.remote.prepare_next(session).await?;
        let incoming = channel.receive(mode, intake);
        let verb = verb(command);
        let (mut ended, mut said) = (false, false);
        let (stall, mut moved, mut lag) = (self.remote.options().stall, Instant::now(), Lag::default());
        while !(ended && said && !lag.waits) {
            let word = async {
                match said {
                    false => session.next().await.map(Step::Said),
                    true => Ok(Step::Lags(lag.due(session).await)),
                }
            };
            let step = async {
                tokio::select! {
                    // What the server says comes first, so that a refusal is not taken for a broken connection.
                    biased;
                    step = word => step,
                    block = incoming.next(), if !ended => Ok(Step::Came(block)),
                }
            };
            let step = match timeout_at(moved + stall, step).await {
                Ok(Ok(step)) => step,
                Err(_) if ended && said => {
                    lag.is_lost = true;
                    break;
                }
                Ok(Err(error)) if ended => return Err(error),
                Ok(Err(error)) => return Err(self.cut(&*incoming, error).await),
                Err(_) => return Err(Error::Stalled { name: self.name.to_owned(), after: stall }),
            };
            match step {
                Step::Lags(due) => {
                    lag.act(due, session).await;
                    continue;
                }
                Step::Said(reply) if reply.is_preliminary() => {}
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
            moved = Instant::now();
        }
        session.in_step = !lag.is_lost;
        Ok(true)
    }

    /// Why nothing more is said, and what has become of the data, where that failed, too: whichever of the two was seen first.
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

    /// A failure of the data with what the server says, or why it says nothing.
    fn both(&self, data: Error, said: &Error) -> Error {
        match named(self.name, data) {
            Error::Store { reason, sort: Sort::Passing, .. } => passing(self.name, format!("{reason}; {said}")),
            // This end's own failure, such as a disk that is full.
            other => other,
        }
    }

    /// Why data failed: what the server says of it, if it says anything, or what was seen here.
    async fn explained(&self, session: &mut Session, verb: &str, said: bool, error: Error) -> Error {
        let error = named(self.name, error);
        if said {
            return error;
        }
        match session.last(WORDS).await {
            Ok(reply) if reply.is_success() => error,
            // What became of the connection is all that these know.
            Ok(reply) if matches!(reply.code, 425 | 426) => {
                passing(self.name, format!("{}; the server says {}", bare(&error, self.name), words(&reply)))
            }
            Ok(reply) => refused(self.name, self.act, verb, &reply),
            Err(silent) => self.both(error, &silent),
        }
    }
}

/// What happens in a transfer.
enum Step {
    Said(Reply),
    Lags(Due),
    Came(Result<Option<Block>, Error>),
}

/// A server that has said that it sent all, while what it sent is still being taken: it is spoken to now and then.
#[derive(Debug, Default)]
struct Lag {
    /// When it is spoken to next.
    at: Option<Instant>,
    /// Whether its answer is waited for.
    waits: bool,
    /// Whether it hears no more. What it has sent is here all the same.
    is_lost: bool,
}

/// That it is to be spoken to, or what it has answered.
enum Due {
    Speak,
    Answer(Result<Reply, Error>),
}

impl Lag {
    fn begins(&mut self) {
        self.at = Some(Instant::now() + SPEAK);
    }

    /// What is next. Cancel safe.
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
            // NOOP is what idle clients say.
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

/// A failure of the data channel, told of the file that it carried.
fn named(name: &str, error: Error) -> Error {
    match error {
        Error::Store { name: ref of, ref reason, sort } if of == "data channel" => {
            Error::Store { name: name.to_owned(), reason: reason.clone(), sort }
        }
        other => other,
    }
}
