//! This end of data inside SSH (`docs/protocol/gridftp.md`): where data connections to a server that SSH has started do not get
//! through, they go over further connections of SSH, each of which carries one at a time.

use super::way::{Beside, Way};
use crate::data::inside::{carry, next, say};
use phoebus_net::pair::{Ends, Pair};
use phoebus_net::transport::{Boxed, Listener, Target, Transport};
use phoebus_net::{Error, Profile, Stream};
use phoebus_proto::gridftp::inside::{DRIVER, Frame, GREETING, Ticket};
use phoebus_proto::session::Code;
use phoebus_proto::units::Span;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// How many bytes a connection of OpenSSH lets be under way: the window of a channel (`CHAN_SES_WINDOW_DEFAULT`).
pub(super) const WINDOW: u64 = 2 << 20;

/// Whether data goes inside SSH: decided once for a server. Clones share the decision.
#[derive(Debug, Clone, Default)]
pub struct Inside(Arc<OnceLock<Option<String>>>);

impl Inside {
    /// Inside if data connections do not get through.
    pub fn if_needed() -> Self {
        Self::default()
    }

    /// Inside in any case.
    pub fn always() -> Self {
        Self(Arc::new(OnceLock::from(Some(String::new()))))
    }

    /// Why data goes inside, if it does: a sentence's end, empty if it was asked for.
    pub(super) fn why(&self) -> Option<&str> {
        self.0.get()?.as_deref()
    }

    /// Whether it is known how data goes.
    pub(super) fn is_decided(&self) -> bool {
        self.0.get().is_some()
    }

    /// Decides: why data goes inside, or none if it does not. Whoever was first counts.
    pub(super) fn decide(&self, why: Option<String>) {
        let _ = self.0.set(why);
    }
}

/// Connections beside a control connection, which carry data to its server.
#[derive(Debug)]
pub(super) struct Relays {
    way: Arc<dyn Way>,
    ticket: Ticket,
    /// Those that carry nothing at the moment.
    idle: Arc<Mutex<Vec<Beside>>>,
}

impl Relays {
    pub(super) fn new(way: Arc<dyn Way>, ticket: Ticket) -> Self {
        Self { way, ticket, idle: Arc::default() }
    }

    async fn start(&self, limit: Duration) -> Result<Beside, Error> {
        let mut beside = self.way.beside(limit).await?;
        let agreed = timeout(limit, self.agree(&mut beside));
        match agreed.await {
            Ok(Ok(true)) => Ok(beside),
            Ok(Ok(false)) => {
                let reason = "another login has reached a host or a user where the server of the first is not; data inside SSH needs both \
                              on the same host";
                Err(Error::Carrier { code: Code::ConnectFailed, reason: reason.to_owned() })
            }
            Ok(Err(error)) => {
                let reason = format!("data cannot be carried inside SSH: {}", phoebus_net::reason(&error));
                Err(Error::Carrier { code: Code::ConnectFailed, reason })
            }
            Err(_) => Err(Error::Timeout { to: "the relay at the far side".to_owned(), limit: Span(limit) }),
        }
    }

    /// Shows the ticket; whether it was taken.
    async fn agree(&self, beside: &mut Beside) -> io::Result<bool> {
        let io = &mut beside.io;
        let mut greeting = [0; GREETING.len()];
        io.read_exact(&mut greeting).await?;
        if greeting != GREETING {
            let said = String::from_utf8_lossy(&greeting).escape_debug().to_string();
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the far side's relay begins with \"{said}\""),
            ));
        }
        io.write_all(self.ticket.name_line().as_bytes()).await?;
        io.write_all(&self.ticket.secret).await?;
        Ok(next(io).await? == Frame::Opened)
    }
}

fn of(idle: &Mutex<Vec<Beside>>) -> MutexGuard<'_, Vec<Beside>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks for a connection to `port`.
async fn open(beside: &mut Beside, port: u16) -> io::Result<bool> {
    say(&mut beside.io, Frame::Open(port)).await?;
    match next(&mut beside.io).await? {
        Frame::Opened => Ok(true),
        Frame::Refused => Ok(false),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

impl Transport for Relays {
    fn name(&self) -> &'static str {
        DRIVER
    }

    fn connect<'a>(&'a self, to: &'a Target, _: &'a Profile, limit: Duration) -> Boxed<'a, Result<Stream, Error>> {
        Box::pin(async move {
            let failed = |source| Error::Connect { to: to.addr, source };
            let kept = of(&self.idle).pop();
            let mut beside = match kept {
                Some(beside) => beside,
                None => self.start(limit).await?,
            };
            let opened = timeout(limit, open(&mut beside, to.addr.port())).await;
            match opened.map_err(|_| Error::Timeout { to: to.addr.to_string(), limit: Span(limit) })? {
                Ok(true) => {}
                Ok(false) => return Err(failed(io::ErrorKind::ConnectionRefused.into())),
                Err(error) => return Err(failed(error)),
            }
            let (pair, other) = Pair::within().map_err(failed)?;
            let ends = Arc::new(Ends::default());
            let local = SocketAddr::new(to.addr.ip(), 0);
            let stream = pair.into_stream_with_ends((local, to.addr), ends.clone());
            let idle = Arc::downgrade(&self.idle);
            tokio::spawn(async move {
                let carried = carry(&mut beside.io, other, &ends).await;
                if let (Ok(()), Some(idle)) = (carried, idle.upgrade()) {
                    of(&idle).push(beside);
                }
            });
            Ok(stream)
        })
    }

    fn listen(&self, addr: SocketAddr, _: &Profile) -> Result<Box<dyn Listener>, Error> {
        let source = io::Error::new(io::ErrorKind::Unsupported, "nobody connects to this end inside SSH");
        Err(Error::Listen { addr, source })
    }
}
