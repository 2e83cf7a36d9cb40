//! Short commands about many files, pipelined on one control connection (RFC 959 only requires replies in order). The
//! commands before and after each file then do not occupy a connection that could transfer another file.
//!
//! RFC 959 does not require servers to read ahead. If the connection breaks while several commands wait, they are sent
//! one at a time from then on ([`Ahead`]).

use super::ahead::Ahead;
use super::error::{late, passing};
use super::lines::is_work;
use super::preliminary::Limit;
use super::session::Session;
use phoebus_files::Error;
use phoebus_proto::gridftp::reply::Reply;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

/// Most commands in flight, which the receive buffer of any server holds.
const DEPTH: usize = 32;

/// A sequence of commands, and where its replies go.
struct Order {
    lines: Vec<Vec<u8>>,
    replies: Vec<Reply>,
    answer: oneshot::Sender<Result<Vec<Reply>, Error>>,
}

/// A control connection for short commands. After it is dropped, it ends once all replies have come.
#[derive(Debug, Clone)]
pub(super) struct Pipe(mpsc::Sender<Order>);

impl Pipe {
    /// Starts the pipe over `session`. `reply_timeout` limits each reply.
    pub(super) fn begin(session: Session, ahead: Ahead, reply_timeout: Duration) -> Self {
        let (orders, taken) = mpsc::channel(DEPTH);
        tokio::spawn(Run { session, ahead, reply_timeout, waiting: VecDeque::new(), unanswered: 0 }.all(taken));
        Self(orders)
    }

    /// Whether the pipe still runs.
    pub(super) fn is_open(&self) -> bool {
        !self.0.is_closed()
    }

    /// Sends `lines` without other commands in between. Returns the replies, or `None` if the connection has ended.
    pub(super) async fn ask(&self, lines: Vec<Vec<u8>>) -> Option<Result<Vec<Reply>, Error>> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Order { lines, replies: Vec::new(), answer }).await.ok()?;
        answered.await.ok()
    }
}

struct Run {
    session: Session,
    ahead: Ahead,
    reply_timeout: Duration,
    waiting: VecDeque<Order>,
    unanswered: usize,
}

impl Run {
    async fn all(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut limit = self.limit();
        let mut open = true;
        while open || !self.waiting.is_empty() {
            let depth = if self.ahead.is_taken() { DEPTH } else { 1 };
            let result = tokio::select! {
                biased;
                // The server's end is noticed also while nothing waits.
                reply = self.session.next() => {
                    match &reply {
                        Ok(reply) if !reply.is_preliminary() => limit = self.limit(),
                        Ok(_) if self.is_at_work() => limit.heard(),
                        _ => {}
                    }
                    match reply {
                        Ok(_) if limit.is_over() && !self.waiting.is_empty() => {
                            Err(late(&self.session.name, &limit))
                        }
                        reply => reply.map(|reply| self.answer(reply)),
                    }
                }
                order = orders.recv(), if open && self.unanswered < depth => match order {
                    None => {
                        open = false;
                        continue;
                    }
                    Some(order) => {
                        match self.waiting.is_empty() {
                            true => limit = self.limit(),
                            false => limit.heard(),
                        }
                        self.send(order).await.map(|()| true)
                    }
                },
                () = sleep_until(limit.end()), if !self.waiting.is_empty() => Err(late(&self.session.name, &limit)),
            };
            match result {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.fail(&error),
            }
        }
        self.session.quit();
    }

    /// The time limit for the next reply.
    fn limit(&self) -> Limit {
        Limit::new(self.reply_timeout, Duration::ZERO)
    }

    async fn send(&mut self, mut order: Order) -> Result<(), Error> {
        if !self.ahead.is_taken() {
            for line in &order.lines {
                order.replies.push(self.session.ask(line).await?);
            }
            // An error means that the caller is gone.
            let _ = order.answer.send(Ok(order.replies));
            return Ok(());
        }
        self.unanswered += order.lines.len();
        self.waiting.push_back(order);
        let count = self.waiting.back().map_or(0, |order| order.lines.len());
        for i in 0..count {
            let line = self.waiting.back().and_then(|order| order.lines.get(i)).cloned().unwrap_or_default();
            self.session.send(&line).await?;
        }
        Ok(())
    }

    /// Whether the next reply may take long, with preliminary replies meanwhile.
    fn is_at_work(&self) -> bool {
        self.waiting.front().and_then(|order| order.lines.get(order.replies.len())).is_some_and(|line| is_work(line))
    }

    /// Delivers a reply. False if no command waits.
    fn answer(&mut self, reply: Reply) -> bool {
        if reply.is_preliminary() {
            return true;
        }
        let Some(order) = self.waiting.front_mut() else { return false };
        self.unanswered -= 1;
        order.replies.push(reply);
        if order.replies.len() == order.lines.len()
            && let Some(order) = self.waiting.pop_front()
        {
            let _ = order.answer.send(Ok(order.replies));
        }
        if self.waiting.is_empty() {
            self.session.in_step = true;
        }
        true
    }

    fn fail(&mut self, error: &Error) {
        if self.unanswered > 1 {
            self.ahead.refuse();
        }
        let name = self.session.name.clone();
        let reason = super::error::bare(error, &name);
        for order in self.waiting.drain(..) {
            let _ = order.answer.send(Err(passing(&name, reason.clone())));
        }
    }
}
