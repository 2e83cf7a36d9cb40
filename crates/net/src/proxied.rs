//! Listening behind relays that speak the PROXY protocol: a connection may begin with a header that names its client, before any
//! handshake of a transport above ([`phoebus_proto::proxy_header`]).

use crate::stream::Stream;
use crate::transport::{Boxed, Listener, Pending};
use phoebus_proto::proxy_header::{HeaderReader, Origin};
use phoebus_proto::session::Code;
use std::io;
use std::net::SocketAddr;

/// Lets connections of `under` begin with a header: [`Pending::origin`] reads it. The caller decides by the address of the other
/// end which ones have one.
pub fn listener(under: Box<dyn Listener>) -> Box<dyn Listener> {
    Box::new(Listening(under))
}

#[derive(Debug)]
struct Listening(Box<dyn Listener>);

impl Listener for Listening {
    fn accept(&self) -> Boxed<'_, io::Result<(Box<dyn Pending>, SocketAddr)>> {
        Box::pin(async {
            let (under, from) = self.0.accept().await?;
            Ok((Box::new(Arriving::Accepted(under)) as Box<dyn Pending>, from))
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn note(&self) -> Option<&str> {
        self.0.note()
    }

    fn set_refusal_code(&self, code: Code) {
        self.0.set_refusal_code(code);
    }
}

#[derive(Debug)]
enum Arriving {
    Accepted(Box<dyn Pending>),
    /// After the header.
    Read(Stream),
    Failed,
}

impl Pending for Arriving {
    fn origin(&mut self) -> Boxed<'_, io::Result<Origin>> {
        Box::pin(async {
            let Self::Accepted(under) = std::mem::replace(self, Self::Failed) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            let stream = under.handshake().await?;
            let origin = read(&stream).await?;
            *self = Self::Read(stream);
            Ok(origin)
        })
    }

    fn handshake(self: Box<Self>) -> Boxed<'static, io::Result<Stream>> {
        match *self {
            Self::Accepted(under) => under.handshake(),
            Self::Read(stream) => Box::pin(async { Ok(stream) }),
            Self::Failed => Box::pin(async { Err(io::ErrorKind::NotConnected.into()) }),
        }
    }
}

/// Reads a header, and no byte more.
async fn read(stream: &Stream) -> io::Result<Origin> {
    let mut reader = HeaderReader::default();
    loop {
        match stream.try_read(reader.space()) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended within the PROXY header")),
            Ok(n) => {
                let read = reader.received(n).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                if let Some(origin) = read {
                    return Ok(origin);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
}
