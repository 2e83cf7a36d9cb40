//! Logging in at a gateway with a password, to keep what later sessions need of it (P27).

use crate::error::Error;
use phoebus_net::credentials::Credentials;
use phoebus_net::tcp::Tcp;
use phoebus_net::tls::Tls;
use phoebus_net::transport::{Target, Transport};
use phoebus_net::{Profile, Stream};
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_proto::session::auth::scram::{self, KEY_LEN, Keys, Login, Salting};
use phoebus_proto::session::auth::{AuthError, Credential};
use phoebus_proto::session::initiator::State;
use phoebus_proto::session::login::{self, LoginError, Random};
use phoebus_proto::session::message::Hello;
use phoebus_proto::session::{Initiator, ProtocolError};
use phoebus_proto::units::Span;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

type Asking = Initiator<Vec<u8>, Vec<u8>>;

/// A gateway at which a user logs in.
#[derive(Debug, Clone, Copy)]
pub struct LoginAt<'a> {
    /// The gateway.
    pub gateway: &'a Endpoint,
    /// The user's name there.
    pub user: &'a str,
    /// What to trust; `None` without TLS.
    pub credentials: Option<&'a Credentials>,
    /// Longest wait for the gateway, each time.
    pub limit: Duration,
}

impl LoginAt<'_> {
    /// Logs in, and returns the keys of the password. `derive` makes them, once the gateway has said how it has salted the password,
    /// and may take some seconds.
    ///
    /// # Errors
    /// The gateway cannot be reached, does not take passwords, or does not know this one; or it has not proved that it knows it.
    pub async fn log_in(&self, derive: impl FnOnce(Salting) -> Keys + Send + 'static) -> Result<Keys, Error> {
        let stream = self.connect().await?;
        let binding = stream.channel_binding();
        let mut random: Random = [0; _];
        getrandom::fill(&mut random).map_err(Error::Random)?;
        // The first message has the user only; how the password was salted is in the answer.
        let unknown = Keys::kept(Salting::default(), [0; KEY_LEN], [0; KEY_LEN]);
        let login = |keys| Credential::Password(Login { user: self.user, keys, binding: binding.as_ref() });
        let begun = login::greet((Vec::new(), Vec::new()), &Hello::of(""), Some((&login(&unknown), random)));
        let (mut initiator, mut exchange) = begun.map_err(|error| self.failed(error))?;
        self.converse(&stream, &mut initiator).await?;
        let offered = initiator
            .challenge()
            .map(|challenge| (challenge.data.to_vec(), challenge.mechanisms.iter().collect::<Vec<_>>().join(", ")));
        let salting = match offered {
            Some((data, _)) if !data.is_empty() => {
                scram::Initiator::salting(&data).map_err(|error| self.failed(error.into()))?
            }
            Some((_, mechanisms)) => {
                let advice = "it takes no passwords on this connection".to_owned();
                return Err(Error::Authentication { gateway: self.gateway.clone(), mechanisms, advice });
            }
            None => return Err(self.answer(&initiator)),
        };
        let keys = tokio::task::spawn_blocking(move || derive(salting)).await;
        let keys = keys.map_err(|_| self.failed(AuthError::Unexpected.into()))?;
        while login::go_on(&mut initiator, exchange.as_mut(), Some(&login(&keys)), None)
            .map_err(|error| self.failed(error))?
        {
            self.converse(&stream, &mut initiator).await?;
        }
        match initiator.state() {
            State::Ready => {
                stream.close();
                Ok(keys)
            }
            _ => Err(self.answer(&initiator)),
        }
    }

    async fn connect(&self) -> Result<Stream, Error> {
        let failed = |source| Error::Gateway { gateway: self.gateway.clone(), source };
        let late = || failed(phoebus_net::Error::Timeout { to: self.gateway.to_string(), limit: Span(self.limit) });
        let addresses: Vec<SocketAddr> = match &self.gateway.host {
            Host::Addr(addr) => vec![SocketAddr::new(*addr, self.gateway.port)],
            Host::Name(name) => {
                let found =
                    tokio::time::timeout(self.limit, tokio::net::lookup_host((name.as_str(), self.gateway.port)));
                let found = found.await.map_err(|_| late())?;
                found.map_err(|source| Error::Unreachable { gateway: self.gateway.clone(), source })?.collect()
            }
        };
        let transport: Box<dyn Transport> = match self.credentials {
            Some(credentials) => Box::new(Tls::auth(credentials.clone())),
            None => Box::new(Tcp),
        };
        let mut last = None;
        for addr in addresses {
            let target = Target { addr, name: self.gateway.host.to_string().into(), early: false };
            match transport.connect(&target, &Profile::default(), self.limit).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        let nothing = || Error::Unreachable { gateway: self.gateway.clone(), source: io::ErrorKind::NotFound.into() };
        Err(last.map_or_else(nothing, failed))
    }

    /// Sends, and reads until the gateway has answered.
    async fn converse(&self, stream: &Stream, initiator: &mut Asking) -> Result<(), Error> {
        let conversation = tokio::time::timeout(self.limit, converse(stream, initiator));
        match conversation.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Failed::Io(source))) => Err(Error::Lost { gateway: self.gateway.clone(), source }),
            Ok(Err(Failed::Protocol(error))) => Err(self.failed(error.into())),
            Err(_) => {
                let source = phoebus_net::Error::Timeout { to: self.gateway.to_string(), limit: Span(self.limit) };
                Err(Error::Gateway { gateway: self.gateway.clone(), source })
            }
        }
    }

    /// The error for an answer that is no login.
    fn answer(&self, initiator: &Asking) -> Error {
        let gateway = self.gateway.clone();
        match (initiator.refused(), initiator.state()) {
            (Some(refused), _) => {
                let (code, reason, hop) = (refused.code, refused.reason.to_owned(), refused.hop.to_owned());
                Error::Refused { gateway, hop, code, reason, redirect: None }
            }
            (None, State::Ready) => {
                let advice = "it asks for no password here".to_owned();
                Error::Authentication { gateway, mechanisms: "none".to_owned(), advice }
            }
            _ => Error::Login { gateway, source: AuthError::Unexpected },
        }
    }

    fn failed(&self, error: LoginError) -> Error {
        let gateway = self.gateway.clone();
        match error {
            LoginError::Protocol(source) => Error::Protocol { gateway, source },
            LoginError::Auth(source) => Error::Login { gateway, source },
        }
    }
}

enum Failed {
    Io(io::Error),
    Protocol(ProtocolError),
}

async fn converse(stream: &Stream, initiator: &mut Asking) -> Result<(), Failed> {
    loop {
        while !initiator.outgoing().is_empty() {
            match stream.try_write(initiator.outgoing(), false) {
                Ok(n) => initiator.sent(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stream.writable().await.map_err(Failed::Io)?
                }
                Err(error) => return Err(Failed::Io(error)),
            }
        }
        if initiator.want() == 0 {
            return Ok(());
        }
        match stream.try_read(initiator.space().map_err(Failed::Protocol)?) {
            Ok(0) => return Err(Failed::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => initiator.received(n).map_err(Failed::Protocol)?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await.map_err(Failed::Io)?,
            Err(error) => return Err(Failed::Io(error)),
        }
    }
}
