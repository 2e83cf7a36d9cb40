//! One control connection: commands out, answers in, each within its time (RFC 959, section 5.4; RFC 2228, section 3).

use super::error::{broken, passing, refused, senseless, silent};
use super::farewell::{ANSWER, Farewell};
use super::pipe::Ahead;
use super::stack::Told;
use crate::control::Link;
use crate::data::Mode;
use crate::data::pinned::Own;
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
use tokio::time::timeout;

/// How much is read at once.
const READ: usize = 16 << 10;

/// A control connection that is logged in, or on its way there. Dropped, it is reset.
#[derive(Debug)]
pub(super) struct Session {
    link: Link,
    replies: Replies,
    /// Answers that came under protection.
    inner: Replies,
    pub(super) protected: Option<Box<Protected>>,
    /// What this connection and its data connections agree by under TLS: a session that is resumed is this connection's own.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// The server, as errors name it.
    pub(super) name: Arc<str>,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// What carries its data connections, where the network itself does not: then nobody connects to this end.
    pub(super) data: Option<Arc<dyn Transport>>,
    /// Where it leads through gateways, which tell a connection that has ended from one that was cut.
    pub(super) farewell: Option<Farewell>,
    /// By what the server was told to carry data, if it was.
    pub(super) told: Option<Told>,
    /// Whether it refuses to carry data by what it was told, where that is no matter.
    pub(super) refuses: bool,
    /// By what data connections know this end, where they need a key.
    pub(super) own: Option<Own>,
    /// What it has in common with the session of another server, where each of the two servers was told the other's key and nothing
    /// since.
    pub(super) met: Option<Arc<Meeting>>,
    pub(super) patience: Duration,
    /// As the server has greeted.
    pub(super) greeting: String,
    pub(super) features: Arc<Features>,
    /// Where the login leads.
    pub(super) home: Arc<Key>,
    /// How long it has taken for the quickest of its answers. A busy machine makes one or another late, on which no choice may
    /// depend.
    pub(super) rtt: Duration,
    /// How data is transmitted from here on.
    pub(super) mode: Mode,
    /// Over how many connections the server sends.
    pub(super) parallel: u32,
    /// Whether it knows EPSV, as far as is known.
    pub(super) epsv: bool,
    /// Whether EPSV or PASV was sent ahead, for the next transfer.
    ahead: bool,
    /// The answer to that.
    foreseen: Option<Reply>,
    /// Whether an answer is to come to what only showed that this end is there.
    spoken: bool,
    /// Its place among those that may be in use at a time.
    pub(super) place: Option<OwnedSemaphorePermit>,
    /// Whether a transfer was begun on it, which the server goes on with until it is told otherwise.
    pub(super) moving: bool,
    /// When it was last used.
    pub(super) used: Instant,
    /// Whether what comes next belongs to what was asked last: if not, it is of no further use.
    pub(super) in_step: bool,
}

/// That two servers were told each other's keys, by two control connections. A key is of no use with any other.
#[derive(Debug)]
pub(super) struct Meeting;

impl Session {
    pub(super) fn new(link: Link, name: Arc<str>, patience: Duration) -> Result<Self, Error> {
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
            told: None,
            refuses: false,
            own: None,
            met: None,
            patience,
            greeting: String::new(),
            features: Arc::default(),
            home: Arc::default(),
            rtt: Duration::MAX,
            mode: Mode::Stream,
            parallel: 1,
            epsv: true,
            ahead: false,
            foreseen: None,
            spoken: false,
            place: None,
            moving: false,
            used: Instant::now(),
            in_step: true,
        })
    }

    /// The connection itself, for agreeing on TLS; what was read ahead has to be nothing.
    pub(super) fn link(&mut self) -> Result<&mut Link, Error> {
        let ahead = std::mem::take(&mut self.replies).rest();
        if ahead.is_empty() {
            return Ok(&mut self.link);
        }
        // Whoever put it there is not whom TLS will be with.
        Err(passing(&self.name, "the server sent more in clear than its answer to AUTH TLS"))
    }

    /// Sends a command.
    pub(super) async fn send(&mut self, line: &[u8]) -> Result<(), Error> {
        self.settle().await?;
        if !is_line(line) {
            return Err(senseless(&self.name, "a name with a line end in it cannot be asked for"));
        }
        // What was sent ahead may be such a question, too.
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
        // Telnet's escape stands for itself if it is doubled (RFC 959, section 5.3; RFC 854).
        let mut bytes = Vec::with_capacity(line.len() + 2);
        for byte in line {
            bytes.extend(std::iter::repeat_n(byte, if byte == 255 { 2 } else { 1 }));
        }
        bytes.extend(b"\r\n");
        self.in_step = false;
        let (name, patience) = (self.name.clone(), self.patience);
        self.link.write(&bytes, patience).await.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => silent(&name, patience),
            _ => broken(&name, &error),
        })
    }

    /// Sends a command that asks where to connect to for the next transfer, and leaves its answer for then.
    pub(super) async fn send_ahead(&mut self, line: &str) -> Result<(), Error> {
        if self.foreseen.is_none() && !self.ahead {
            let in_step = self.in_step;
            self.send(line.as_bytes()).await?;
            // Whoever goes on here knows that its answer is to come.
            (self.ahead, self.in_step) = (true, in_step);
        }
        Ok(())
    }

    /// Leaves `reply` to such a command for the next transfer.
    pub(super) fn foresee(&mut self, reply: Reply) {
        self.foreseen = Some(reply);
    }

    /// What was answered to that, if it was sent.
    pub(super) async fn foreseen(&mut self) -> Result<Option<Reply>, Error> {
        self.settle().await?;
        Ok(self.foreseen.take())
    }

    /// Whether something was sent whose answer is to come.
    pub(super) fn is_ahead(&self) -> bool {
        self.ahead || self.spoken
    }

    /// Shows a server on which nothing is done at the moment that this end is not done with its files: one that is about to end closes what
    /// says nothing. Waits for nothing. False if it has closed.
    pub(super) fn speak(&mut self) -> bool {
        if self.spoken {
            match at_once(self.next()) {
                Some(Ok(reply)) => self.spoken = reply.is_preliminary(),
                Some(Err(_)) => return false,
                None => {}
            }
        }
        if self.is_ahead() || !self.in_step {
            return self.in_step;
        }
        // NOOP is what idle clients say.
        if !matches!(at_once(self.send(b"PWD")), Some(Ok(()))) {
            return false;
        }
        (self.spoken, self.in_step) = (true, true);
        true
    }

    /// Takes the answer to what was sent ahead.
    async fn settle(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.spoken) {
            self.last(self.patience).await?;
        }
        if std::mem::take(&mut self.ahead) {
            self.in_step = false;
            self.foreseen = Some(self.last(self.patience).await?);
        }
        Ok(())
    }

    /// The next answer, whenever it comes. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Reply, Error> {
        loop {
            if let Some(reply) = self.take()? {
                self.used = Instant::now();
                if reply.code == 421 {
                    let words = super::error::words(&reply);
                    return Err(passing(&self.name, format!("the server closes the connection: {words}")));
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

    /// An answer of which all has come.
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
                // Some end what they protect with NUL.
                while opened.last() == Some(&0) {
                    opened.pop();
                }
                self.inner.push(&opened);
            }
        }
    }

    /// The next answer, within `limit`.
    pub(super) async fn within(&mut self, limit: Duration) -> Result<Reply, Error> {
        let name = self.name.clone();
        timeout(limit, self.next()).await.unwrap_or_else(|_| Err(silent(&name, limit)))
    }

    /// The last answer to what was sent. Each one that says that the server is at work gives it time anew.
    pub(super) async fn last(&mut self, limit: Duration) -> Result<Reply, Error> {
        loop {
            let reply = self.within(limit).await?;
            if !reply.is_preliminary() {
                self.in_step = true;
                return Ok(reply);
            }
        }
    }

    /// Asks, and gives the last answer, whatever it is.
    pub(super) async fn ask(&mut self, line: impl AsRef<[u8]>) -> Result<Reply, Error> {
        let asked = Instant::now();
        self.send(line.as_ref()).await?;
        let reply = self.last(self.patience).await?;
        self.rtt = self.rtt.min(asked.elapsed());
        Ok(reply)
    }

    /// Asks several things, all at once if the server takes them `ahead`, and gives the last answer to each.
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
            for _ in lines {
                self.in_step = false;
                replies.push(self.last(self.patience).await?);
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

    /// Asks for something to be done.
    ///
    /// # Errors
    /// Also where the server does not do it: then `file` is what it was about and `act` what cannot be done to it.
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

    /// Notes that this server and that of `other` were told each other's keys.
    pub(super) fn meet(&mut self, other: &mut Self) {
        // Each is another one, though it holds nothing.
        let met = Arc::new(Meeting);
        (self.met, other.met) = (Some(met.clone()), Some(met));
    }

    /// Whether it has this meeting behind it.
    pub(super) fn was_at(&self, met: Option<&Arc<Meeting>>) -> bool {
        self.met.as_ref().zip(met).is_some_and(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// Whether nothing has come that nobody asked for, such as that the server closes.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut room = [0; 1];
        self.in_step
            && matches!(self.link.try_read(&mut room), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            && self.link.is_quiet()
    }

    /// Ends it without waiting. Through gateways a task waits for the server's end ([`farewells`](super::farewells)).
    pub(super) fn quit(mut self) {
        self.moving = false;
        let Some(runtime) = Handle::try_current().ok().filter(|_| self.farewell.is_some()) else {
            return self.say_last("QUIT");
        };
        self.place = None;
        runtime.spawn(async move {
            let line = self.last_line("QUIT");
            // Whatever becomes of it: nothing is asked for any more.
            if !matches!(timeout(ANSWER, self.link.take_leave(&line, ANSWER)).await, Ok(Ok(()))) {
                self.link.say_last(b"");
            }
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

/// What was given up amid a transfer is told so (RFC 959, ABOR), so that the server does not have to find out.
impl Drop for Session {
    fn drop(&mut self) {
        if self.moving && !self.in_step {
            self.say_last("ABOR");
        }
    }
}

/// Whether the answer to a line lists something, so that it may be long.
fn lists(line: &[u8]) -> bool {
    [&b"STAT"[..], b"SITE", b"MLSC", b"MLSR", b"MLST", b"HELP"].iter().any(|verb| line.starts_with(verb))
}

/// What `future` comes to without waiting.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// The command of a line, without what follows it.
pub(super) fn verb(line: &[u8]) -> String {
    let mut words = line.split(|&b| b == b' ');
    let first = words.next().unwrap_or_default();
    let second = words.next().filter(|_| first == b"SITE").map(|word| [b" ", word].concat()).unwrap_or_default();
    String::from_utf8_lossy(&[first, &second].concat()).into_owned()
}
