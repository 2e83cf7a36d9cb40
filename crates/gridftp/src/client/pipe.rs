//! Short commands of many files over one control connection, each sent before those ahead of it are answered (RFC 959 wants answers
//! in order, and no more): what a file needs beside its bytes then takes its time, but holds up no connection that could carry the
//! bytes of another.
//!
//! Nothing in RFC 959 makes a server read ahead. One whose connection breaks while several commands wait is given one at a time from
//! then on ([`Ahead`]).

use super::error::{passing, silent};
use super::session::Session;
use phoebus_files::Error;
use phoebus_proto::gridftp::reply::Reply;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// How many commands wait for their answers: as much as any server's socket holds while it answers.
const DEPTH: usize = 32;

/// Whether a server takes commands ahead. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Ahead(Arc<AtomicBool>);

impl Ahead {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    pub(super) fn is_taken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes that it broke the connection while several waited.
    pub(super) fn refuse(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Commands that follow each other, and where their answers go.
struct Order {
    lines: Vec<Vec<u8>>,
    replies: Vec<Reply>,
    answer: oneshot::Sender<Result<Vec<Reply>, Error>>,
}

/// A control connection for commands. Dropped, it ends once all are answered.
#[derive(Debug, Clone)]
pub(super) struct Pipe(mpsc::Sender<Order>);

impl Pipe {
    /// One over `session`, whose server answers each command within `patience`.
    pub(super) fn begin(session: Session, ahead: Ahead, patience: Duration) -> Self {
        let (orders, taken) = mpsc::channel(DEPTH);
        tokio::spawn(Run { session, ahead, patience, waiting: VecDeque::new(), unanswered: 0 }.all(taken));
        Self(orders)
    }

    /// Whether it has not ended.
    pub(super) fn is_open(&self) -> bool {
        !self.0.is_closed()
    }

    /// The answers to `lines`, which are sent one after the other with nothing between; none if the connection has ended.
    pub(super) async fn ask(&self, lines: Vec<Vec<u8>>) -> Option<Result<Vec<Reply>, Error>> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Order { lines, replies: Vec::new(), answer }).await.ok()?;
        answered.await.ok()
    }
}

struct Run {
    session: Session,
    ahead: Ahead,
    patience: Duration,
    waiting: VecDeque<Order>,
    unanswered: usize,
}

impl Run {
    async fn all(mut self, mut orders: mpsc::Receiver<Order>) {
        let mut until = Instant::now();
        let mut open = true;
        while open || !self.waiting.is_empty() {
            let depth = if self.ahead.is_taken() { DEPTH } else { 1 };
            let result = tokio::select! {
                biased;
                // Also while nothing waits: a server that closes says so.
                reply = self.session.next() => {
                    until = Instant::now() + self.patience;
                    reply.map(|reply| self.answer(reply))
                }
                order = orders.recv(), if open && self.unanswered < depth => match order {
                    None => {
                        open = false;
                        continue;
                    }
                    Some(order) => {
                        until = Instant::now() + self.patience;
                        self.send(order).await.map(|()| true)
                    }
                },
                () = sleep_until(until), if !self.waiting.is_empty() => Err(silent(&self.session.name, self.patience)),
            };
            match result {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.fail(&error),
            }
        }
        self.session.quit();
    }

    async fn send(&mut self, mut order: Order) -> Result<(), Error> {
        if !self.ahead.is_taken() {
            for line in &order.lines {
                order.replies.push(self.session.ask(line).await?);
            }
            // Whoever asked may have gone.
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

    /// Hands an answer on; false if nobody asked.
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
