//! Sessions as a transport (S19, U9), for code that connects over any given transport, such as GridFTP's data
//! connections (U7, U12).

use crate::connect::connect;
use crate::options::Options;
use crate::report::Report;
use phoebus_net::transport::{Boxed, Listener, Target, Transport};
use phoebus_net::{Error, Profile, Stream};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::Code;
use phoebus_proto::session::datagrams::NO_DATAGRAMS;
use phoebus_proto::units::Span;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};
use tokio::time::timeout;

/// Opens sessions with the same options. A connection's profile is ignored: the first hop uses the profile of
/// [`Options`], and the other hops those of their gateways.
#[derive(Clone)]
pub struct Sessions {
    options: Options,
    told: Arc<dyn Fn(&Report) + Send + Sync>,
}

impl Sessions {
    /// Sessions with these options; `told` is called for each that is open.
    pub fn new(options: Options, told: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        Self { options, told: Arc::new(told) }
    }

    /// From now on, asks gateways to relay datagrams beside the sessions. As a transport, it opens none without.
    pub fn ask_for_datagrams(&mut self) {
        self.options.demands.datagrams = true;
    }

    /// Opens a session to `destination` within `limit`. The last gateway resolves a name.
    ///
    /// # Errors
    /// [`Error::Carrier`], which names the hop, and [`Error::Timeout`].
    pub async fn open(&self, destination: &Endpoint, limit: Duration) -> Result<(Stream, Report), Error> {
        let opened = timeout(limit, connect(&self.options, destination)).await;
        let late = || {
            let gateway = self.options.path.first().map_or_else(|| "the network".to_owned(), Endpoint::to_string);
            let reason = format!("gateway {gateway} opened no session to {destination} within {}", Span(limit));
            Error::Carrier { code: Code::TimedOut, reason }
        };
        let opened = opened.map_err(|_| late())?;
        let session = opened.map_err(|error| Error::Carrier { code: error.code(), reason: error.to_string() })?;
        (self.told)(session.report());
        Ok(session.into_stream())
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("path", &self.options.path).finish_non_exhaustive()
    }
}

impl Transport for Sessions {
    fn name(&self) -> &'static str {
        "phoebus"
    }

    fn connect<'a>(&'a self, to: &'a Target, _: &'a Profile, limit: Duration) -> Boxed<'a, Result<Stream, Error>> {
        Box::pin(async move {
            let (stream, report) = self.open(&to.addr.into(), limit).await?;
            if self.options.demands.datagrams && stream.datagrams().is_none() && !report.session.is_empty() {
                // Of the gateways that have none, the last one's note gives the reason.
                let noted = report.hops.iter().rev().map(|hop| &*hop.note).find(|note| note.contains(NO_DATAGRAMS));
                let reason = noted.unwrap_or("the gateways relay no datagrams").to_owned();
                return Err(Error::Carrier { code: Code::NoDatagrams, reason });
            }
            Ok(stream)
        })
    }

    fn listen(&self, addr: SocketAddr, _: &Profile) -> Result<Box<dyn Listener>, Error> {
        let source = io::Error::new(io::ErrorKind::Unsupported, "sessions through gateways lead away from here only");
        Err(Error::Listen { addr, source })
    }
}
