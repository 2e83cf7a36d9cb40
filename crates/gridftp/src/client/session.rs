//! A control connection: commands out, replies in, with time limits (RFC 959, section 5.4; RFC 2228, section 3).

use super::ahead::Ahead;
use super::error::{broken, late, passing, refused, senseless, silent};
use super::farewell::{ANSWER, Farewell, LATE};
use super::lines::{is_work, lists, verb};
use super::preliminary::Limit;
use super::stack::AcceptedStack;
use crate::control::Link;
use crate::data::Mode;
use crate::data::pinned::OwnKey;
use phoebus_files::Error;
use phoebus_files::key::Key;
use phoebus_gsi::control::Protected;
use phoebus_net::transport::Transport;
use phoebus_proto::gridftp::features::Features;
use phoebus_proto::gridftp::line::is_line;
use phoebus_proto::gridftp::reply::{Replies, Reply};
use rustls::ClientConfig;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{timeout, timeout_at};

/// Most bytes of one read.
const READ: usize = 16 << 10;

/// A control connection, logged in or about to be. Dropping it resets it.
#[derive(Debug)]
pub(super) struct Session {
    link: Link,
    replies: Replies,
    /// Protected replies that were opened.
    inner: Replies,
    pub(super) protected: Option<Box<Protected>>,
    /// TLS configuration of this connection and its data connections, whose session store is its own.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// The server's name in errors.
    pub(super) name: Arc<str>,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// Carries data connections, if the network does not. Then nobody connects to this end.
    pub(super) data: Option<Arc<dyn Transport>>,
    /// Whether it goes through gateways, which distinguish an end from a cut.
    pub(super) farewell: Option<Farewell>,
    /// The stack that the server was told.
    pub(super) stack: Option<AcceptedStack>,
    /// Whether the server refused an optional stack.
    pub(super) refuses_stack: bool,
    /// Whether certificates authenticate data connections now (DCAU A).
    pub(super) proves_data: bool,
    /// This end's key of data connections, if they need one.
    pub(super) own: Option<OwnKey>,
    /// The exchange of keys with the session of another server: each server has the other's key, and no newer one.
    pub(super) key_exchange: Option<Arc<KeyExchange>>,
    pub(super) reply_timeout: Duration,
    /// The server's greeting.
    pub(super) greeting: String,
    pub(super) features: Arc<Features>,
    /// Directory of the login.
    pub(super) home: Arc<Key>,
    /// The fastest reply so far. Choices do not depend on late replies of a busy machine.
    pub(super) rtt: Duration,
    /// The current mode.
    pub(super) mode: Mode,
    /// Connections over which the server sends.
    pub(super) parallel: u32,
    /// Whether the server knows EPSV, as far as known.
    pub(super) epsv: bool,
    /// Whether EPSV or PASV was sent ahead for the next transfer.
    ahead: bool,
    /// The reply to it.
    prefetched: Option<Reply>,
    /// Whether the reply to a keep-alive is outstanding.
    is_keepalive_pending: bool,
    /// Outstanding replies that are to be ignored.
    unread: usize,
    /// Whether the server was told to enter a directory, which may have been removed since.
    pub(super) is_elsewhere: bool,
    /// Its place in the limit of connections in use.
    pub(super) place: Option<OwnedSemaphorePermit>,
    /// Whether a transfer has begun that the server continues until it is stopped.
    pub(super) is_transferring: bool,
    /// Time of the last use.
    pub(super) used: Instant,
    /// Whether the next reply belongs to the last command. If not, the session cannot be used again.
    pub(super) in_step: bool,
}

/// Two servers' exchange of keys over two control connections. It holds for these two only.
#[derive(Debug)]
pub(super) struct KeyExchange;

impl Session {
    pub(super) fn new(link: Link, name: Arc<str>, reply_timeout: Duration) -> Result<Self, Error> {
        let addresses = link.peer_addr().and_then(|peer| Ok((peer, link.local_addr()?)));
        let (peer, local) = addresses.map_err(|error| broken(&name, &error))?;
        Ok(Self {
            link,
            replies: Replies::new(),
            inner: Replies::new(),
            protected: None,
            tls: None,
            name,
            peer,
            local,
            data: None,
            farewell: None,
            stack: None,
            refuses_stack: false,
            proves_data: false,
            own: None,
            key_exchange: None,
            reply_timeout,
            greeting: String::new(),
            features: Arc::default(),
            home: Arc::default(),
            rtt: Duration::MAX,
            mode: Mode::Stream,
            parallel: 1,
            epsv: true,
            ahead: false,
            prefetched: None,
            is_keepalive_pending: false,
            unread: 0,
            is_elsewhere: false,
            place: None,
            is_transferring: false,
            used: Instant::now(),
            in_step: true,
        })
    }

    /// The connection, to start TLS. Fails if something was read ahead.
    pub(super) fn link(&mut self) -> Result<&mut Link, Error> {
        let ahead = std::mem::take(&mut self.replies).rest();
        if ahead.is_empty() {
            return Ok(&mut self.link);
        }
        // It may come from an attacker, and not from the TLS peer.
        Err(passing(&self.name, "the server sent more in clear than its answer to AUTH TLS"))
    }

    /// Sends a command.
    pub(super) async fn send(&mut self, line: &[u8]) -> Result<(), Error> {
        self.send_together(&[line]).await
    }

    /// Sends commands in one piece.
    pub(super) async fn send_together(&mut self, lines: &[&[u8]]) -> Result<(), Error> {
        self.settle().await?;
        let mut bytes = Vec::new();
        for line in lines {
            self.encode(line, &mut bytes)?;
        }
        let (name, reply_timeout) = (self.name.clone(), self.reply_timeout);
        self.link.write(&bytes, reply_timeout).await.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => silent(&name, reply_timeout),
            _ => broken(&name, &error),
        })
    }

    /// Adds a command to `bytes` as it goes over the connection.
    fn encode(&mut self, line: &[u8], bytes: &mut Vec<u8>) -> Result<(), Error> {
        if !is_line(line) {
            return Err(senseless(&self.name, "a name with a line end in it cannot be asked for"));
        }
        self.is_elsewhere |= line.starts_with(b"CWD ");
        // A command sent ahead may be such a question too.
        if self.in_step || lists(line) {
            self.replies.expect_long(lists(line));
            self.inner.expect_long(lists(line));
        }
        let line = match &mut self.protected {
            None => line.to_vec(),
            Some(protected) => {
                let text = str::from_utf8(line).map_err(|_| {
                    senseless(&self.name, "a name that is not UTF-8 cannot be asked for under protection")
                })?;
                protected.command(text).map_err(|error| passing(&self.name, error.to_string()))?.into_bytes()
            }
        };
        // The Telnet escape is doubled (RFC 959, section 5.3; RFC 854).
        for byte in line {
            bytes.extend(std::iter::repeat_n(byte, if byte == 255 { 2 } else { 1 }));
        }
        bytes.extend(b"\r\n");
        self.in_step = false;
        Ok(())
    }

    /// Sends a query for the data endpoint of the next transfer, and leaves its reply for then.
    pub(super) async fn send_ahead(&mut self, line: &str) -> Result<(), Error> {
        if self.prefetched.is_none() && !self.ahead {
            let in_step = self.in_step;
            self.send(line.as_bytes()).await?;
            // The session is in step: its next user expects the reply.
            (self.ahead, self.in_step) = (true, in_step);
        }
        Ok(())
    }

    /// Sends a command whose reply is ignored.
    pub(super) async fn send_unread(&mut self, line: &[u8]) -> Result<(), Error> {
        self.send(line).await?;
        // The session is in step: its next user need not know.
        (self.unread, self.in_step) = (self.unread + 1, true);
        Ok(())
    }

    /// Stores the `reply` to such a query for the next transfer.
    pub(super) fn keep_prefetched(&mut self, reply: Reply) {
        self.prefetched = Some(reply);
    }

    /// The stored reply, if a query was sent.
    pub(super) async fn take_prefetched(&mut self) -> Result<Option<Reply>, Error> {
        self.settle().await?;
        Ok(self.prefetched.take())
    }

    /// Whether a reply is outstanding.
    pub(super) fn is_ahead(&self) -> bool {
        self.ahead || self.is_keepalive_pending || self.unread > 0
    }

    /// Sends a keep-alive to an idle server, because one that shuts down closes silent connections. Does not wait.
    /// False if the server has closed.
    pub(super) fn speak(&mut self) -> bool {
        if self.is_keepalive_pending {
            match at_once(self.next()) {
                Some(Ok(reply)) => self.is_keepalive_pending = reply.is_preliminary(),
                Some(Err(_)) => return false,
                None => {}
            }
        }
        if self.unread > 0 && at_once(self.next()).is_some() {
            return false;
        }
        if self.is_ahead() || !self.in_step {
            return self.in_step;
        }
        // NOOP is what idle clients send.
        if !matches!(at_once(self.send(b"PWD")), Some(Ok(()))) {
            return false;
        }
        (self.is_keepalive_pending, self.in_step) = (true, true);
        true
    }

    /// Reads the replies to commands that were sent ahead.
    async fn settle(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.is_keepalive_pending) {
            self.last(self.reply_timeout).await?;
        }
        if std::mem::take(&mut self.ahead) {
            self.in_step = false;
            self.prefetched = Some(self.last(self.reply_timeout).await?);
        }
        Ok(())
    }

    /// The next reply, without a limit of time. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Reply, Error> {
        loop {
            if let Some(reply) = self.take()? {
                self.used = Instant::now();
                if reply.code == 421 {
                    let words = super::error::words(&reply);
                    return Err(passing(&self.name, format!("the server closes the connection: {words}")));
                }
                if self.unread > 0 {
                    self.unread -= usize::from(!reply.is_preliminary());
                    continue;
                }
                return Ok(reply);
            }
            let mut room = [0; READ];
            let read = self.link.read(&mut room).await;
            let len = match read {
                Ok(0) => return Err(broken(&self.name, &io::ErrorKind::UnexpectedEof.into())),
                Ok(len) => len,
                Err(error) => return Err(broken(&self.name, &error)),
            };
            self.replies.push(&room[..len]);
        }
    }

    /// A complete reply.
    fn take(&mut self) -> Result<Option<Reply>, Error> {
        let Some(protected) = &mut self.protected else {
            return self.replies.take().map_err(|error| passing(&self.name, error.to_string()));
        };
        loop {
            let wrong = |error: &dyn std::fmt::Display| passing(&self.name, error.to_string());
            if let Some(reply) = self.inner.take().map_err(|error| wrong(&error))? {
                return Ok(Some(reply));
            }
            let Some(outer) = self.replies.take().map_err(|error| wrong(&error))? else { return Ok(None) };
            for line in &outer.lines {
                let text = str::from_utf8(line).map_err(|error| wrong(&error))?;
                if text.is_empty() && outer.lines.len() > 1 {
                    continue;
                }
                let mut opened =
                    protected.open_reply(&format!("{:03} {text}", outer.code)).map_err(|error| wrong(&error))?;
                // Some servers end protected replies with NUL.
                while opened.last() == Some(&0) {
                    opened.pop();
                }
                self.inner.push(&opened);
            }
        }
    }

    /// The next reply within `limit`.
    pub(super) async fn within(&mut self, limit: Duration) -> Result<Reply, Error> {
        let name = self.name.clone();
        timeout(limit, self.next()).await.unwrap_or_else(|_| Err(silent(&name, limit)))
    }

    /// The final reply within `limit`, whatever preliminary replies come.
    pub(super) async fn last(&mut self, limit: Duration) -> Result<Reply, Error> {
        let end = tokio::time::Instant::now() + limit;
        loop {
            let left = timeout_at(end, self.next()).await;
            let reply = left.unwrap_or_else(|_| Err(silent(&self.name, limit)))?;
            if !reply.is_preliminary() {
                self.in_step = true;
                return Ok(reply);
            }
            // Replies without a pause could keep the timer from being checked.
            if tokio::time::Instant::now() >= end {
                return Err(silent(&self.name, limit));
            }
        }
    }

    /// The final reply. Each preliminary reply restarts `silence`, up to a [`Limit`].
    async fn at_last(&mut self, silence: Duration) -> Result<Reply, Error> {
        let mut limit = Limit::new(silence, Duration::ZERO);
        loop {
            let left = timeout_at(limit.end(), self.next()).await;
            let reply = left.unwrap_or_else(|_| Err(late(&self.name, &limit)))?;
            if !reply.is_preliminary() {
                self.in_step = true;
                return Ok(reply);
            }
            limit.heard();
            if limit.is_over() {
                return Err(late(&self.name, &limit));
            }
        }
    }

    /// The final reply to `line`, which was sent.
    pub(super) async fn last_to(&mut self, line: &[u8]) -> Result<Reply, Error> {
        if is_work(line) { self.at_last(self.reply_timeout).await } else { self.last(self.reply_timeout).await }
    }

    /// Sends a command, and returns its final reply.
    pub(super) async fn ask(&mut self, line: impl AsRef<[u8]>) -> Result<Reply, Error> {
        let asked = Instant::now();
        self.send(line.as_ref()).await?;
        let reply = self.last_to(line.as_ref()).await?;
        self.rtt = self.rtt.min(asked.elapsed());
        Ok(reply)
    }

    /// Sends several commands, pipelined if the server accepts that (`ahead`), and returns their final replies.
    pub(super) async fn ask_all(&mut self, lines: &[Vec<u8>], ahead: &Ahead) -> Result<Vec<Reply>, Error> {
        let mut replies = Vec::new();
        if !ahead.is_taken() || lines.len() < 2 {
            for line in lines {
                replies.push(self.ask(line).await?);
            }
            return Ok(replies);
        }
        let asked = Instant::now();
        let answered = async {
            for line in lines {
                self.send(line).await?;
            }
            for line in lines {
                self.in_step = false;
                replies.push(self.last_to(line).await?);
            }
            Ok(())
        };
        match answered.await {
            Ok(()) => {
                self.rtt = self.rtt.min(asked.elapsed());
                Ok(replies)
            }
            Err(error) => {
                ahead.refuse();
                Err(error)
            }
        }
    }

    /// Sends a command, and expects success.
    ///
    /// # Errors
    /// Also a refusal: then `file` is the subject, and `act` the verb of the error.
    pub(super) async fn must(&mut self, line: impl AsRef<[u8]>, file: &str, act: &'static str) -> Result<Reply, Error> {
        let line = line.as_ref();
        let reply = self.ask(line).await?;
        if reply.is_success() || reply.is_intermediate() {
            return Ok(reply);
        }
        Err(refused(file, act, &verb(line), &reply))
    }

    /// Whether the server has the feature.
    pub(super) fn has(&self, feature: &str) -> bool {
        self.features.has(feature)
    }

    /// Records the exchange of keys with the session `other`.
    pub(super) fn meet(&mut self, other: &mut Self) {
        // A new allocation has an identity of its own.
        let met = Arc::new(KeyExchange);
        (self.key_exchange, other.key_exchange) = (Some(met.clone()), Some(met));
    }

    /// Whether the session took part in `met`.
    pub(super) fn was_at(&self, met: Option<&Arc<KeyExchange>>) -> bool {
        self.key_exchange.as_ref().zip(met).is_some_and(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// Whether nothing unexpected has come, such as the server's end.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut room = [0; 1];
        self.in_step
            && matches!(self.link.try_read(&mut room), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            && self.link.is_quiet()
    }

    /// Ends the session without waiting. Through gateways, a task waits for the server's end
    /// ([`farewells`](super::farewells)).
    pub(super) fn quit(mut self) {
        self.is_transferring = false;
        let Some((runtime, mut farewell)) = Handle::try_current().ok().zip(self.farewell.take()) else {
            return self.say_last("QUIT");
        };
        self.place = None;
        let limit = if self.in_step { ANSWER } else { LATE };
        runtime.spawn(async move {
            let line = self.last_line("QUIT");
            // The outcome does not matter, since nothing more is requested.
            if !farewell.leave(limit, self.link.take_leave(&line, limit)).await {
                self.link.say_last(b"");
            }
            drop((self, farewell));
        });
    }

    fn say_last(&mut self, command: &str) {
        let line = self.last_line(command);
        self.link.say_last(&line);
    }

    fn last_line(&mut self, command: &str) -> Vec<u8> {
        let line = match &mut self.protected {
            Some(protected) => protected.command(command).unwrap_or_default(),
            None => command.to_owned(),
        };
        format!("{line}\r\n").into_bytes()
    }
}

/// ABOR tells the server that the transfer is given up (RFC 959), so that it need not find out.
impl Drop for Session {
    fn drop(&mut self) {
        if self.is_transferring && !self.in_step {
            self.say_last("ABOR");
        }
    }
}

/// The result of `future` if it is ready.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
