//! The client's end of data inside SSH (`docs/protocol/gridftp.md`). If data connections to a server that SSH has
//! started do not get through, data goes over further SSH connections, one data connection at a time on each.

use super::route::{RelayStream, Route};
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

/// Bytes that OpenSSH allows in flight: the window of a channel (`CHAN_SES_WINDOW_DEFAULT`).
pub(super) const WINDOW: u64 = 2 << 20;

/// Whether data goes inside SSH, decided once for a server. Clones share the decision.
#[derive(Debug, Clone, Default)]
pub struct Inside(Arc<OnceLock<Option<String>>>);

impl Inside {
    /// Inside SSH if data connections do not get through.
    pub fn if_needed() -> Self {
        Self::default()
    }

    /// Always inside SSH.
    pub fn always() -> Self {
        Self(Arc::new(OnceLock::from(Some(String::new()))))
    }

    /// The reason, as the end of a sentence. Empty if the user asked for it.
    pub(super) fn why(&self) -> Option<&str> {
        self.0.get()?.as_deref()
    }

    /// Whether the decision was made.
    pub(super) fn is_decided(&self) -> bool {
        self.0.get().is_some()
    }

    /// Decides: the reason, or `None` for data outside SSH. The first decision counts.
    pub(super) fn decide(&self, why: Option<String>) {
        let _ = self.0.set(why);
    }
}

/// SSH connections that carry data.
#[derive(Debug)]
pub(super) struct Relays {
    way: Arc<dyn Route>,
    ticket: Ticket,
    /// Idle connections.
    idle: Arc<Mutex<Vec<RelayStream>>>,
}

impl Relays {
    pub(super) fn new(way: Arc<dyn Route>, ticket: Ticket) -> Self {
        Self { way, ticket, idle: Arc::default() }
    }

    async fn start(&self, limit: Duration) -> Result<RelayStream, Error> {
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

    /// Presents the ticket. Returns whether the server accepted it.
    async fn agree(&self, beside: &mut RelayStream) -> io::Result<bool> {
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

fn of(idle: &Mutex<Vec<RelayStream>>) -> MutexGuard<'_, Vec<RelayStream>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Requests a connection to `port`.
async fn open(beside: &mut RelayStream, port: u16) -> io::Result<bool> {
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
            let (pair, other) = Pair::in_process().map_err(failed)?;
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
