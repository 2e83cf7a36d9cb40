//! Where data connections lead, and what protects them (RFC 959, 2428, 4217; GFD.20, section 3).

use super::error::{passing, refused, senseless, words};
use super::login::server_name;
use super::options::{Grid, Options, Security};
use super::session::Session;
use crate::data::{Channel, Guard, Losses, Mode, Peers, Protection, Settings};
use phoebus_files::{Error, Sort};
use phoebus_gsi::context::Expect;
use phoebus_proto::gridftp::address::{find_epsv, find_pasv, print_eprt, print_port};
use phoebus_proto::gridftp::options::RetrOptions;
use std::net::SocketAddr;
use std::sync::Arc;

/// How much is protected at once under GSI: what is asked for is more than any record has.
const PROTECTED_BLOCK: u64 = 1 << 20;

/// What holds for all data connections of a server.
#[derive(Debug)]
pub(super) struct DataPlan<'a> {
    options: &'a Options,
    /// Where is counted what becomes of what is sent.
    losses: Option<Arc<Losses>>,
}

impl<'a> DataPlan<'a> {
    pub(super) fn of(options: &'a Options) -> Self {
        Self { options, losses: None }
    }

    /// The same, which counts what becomes of what is sent.
    pub(super) fn counting(self, losses: Arc<Losses>) -> Self {
        Self { losses: Some(losses), ..self }
    }

    /// Whether bytes go as they are.
    pub(super) fn is_plain(&self) -> bool {
        match &self.options.security {
            Security::None => true,
            Security::Tls { .. } => false,
            Security::Grid(grid) => !grid.data_auth || grid.protection == Protection::Clear,
        }
    }

    /// Tells the server what protects data.
    pub(super) async fn announce(&self, session: &mut Session) -> Result<(), Error> {
        let name = session.name.clone();
        match &self.options.security {
            Security::None => Ok(()),
            Security::Tls { .. } => {
                session.must("PBSZ 0", &name, "use").await?;
                // What was asked for is had or refused: data in clear beside commands under TLS would be neither.
                session.must("PROT P", &name, "protect the data of").await.map(drop)
            }
            Security::Grid(Grid { data_auth: false, .. }) => session.must("DCAU N", &name, "use").await.map(drop),
            Security::Grid(Grid { protection, .. }) => {
                let reply = session.ask("DCAU A").await?;
                if !reply.is_success() {
                    return Err(refused(&name, "authenticate the data connections of", "DCAU A", &reply));
                }
                if *protection == Protection::Clear {
                    return Ok(());
                }
                session.must(format!("PBSZ {PROTECTED_BLOCK}"), &name, "use").await?;
                let prot = format!("PROT {}", protection.argument());
                session.must(prot, &name, "protect the data of").await.map(drop)
            }
        }
    }

    /// How connections are made for a transfer of this session.
    fn settings(&self, session: &Session) -> Result<Settings, Error> {
        let guard = match &self.options.security {
            Security::None | Security::Grid(Grid { data_auth: false, .. }) => None,
            Security::Tls { config, .. } => {
                let config = session.tls.as_ref().unwrap_or(config).clone();
                Some(Guard::TlsClient(config, server_name(&self.options.server.host, &session.name)?))
            }
            Security::Grid(grid) => Some(Guard::Gsi {
                endpoint: grid.identity.clone(),
                peer: Expect::Subject(grid.subject()),
                protection: grid.protection,
            }),
        };
        let proved = matches!(guard, Some(Guard::Gsi { .. }));
        let from = if proved || self.options.data_elsewhere { Peers::Anyone } else { Peers::Only(session.peer.ip()) };
        let (patience, stall) = (self.options.patience, self.options.stall);
        let ports = self.options.ports.clone();
        let mut settings = Settings { from, guard, ports, patience, stall, ..Settings::default() };
        if let Some(transport) = &session.data {
            settings.transport = transport.clone();
        }
        Ok(settings)
    }

    /// Goes to `mode`, if the session is not there.
    pub(super) async fn enter(&self, session: &mut Session, mode: Mode) -> Result<(), Error> {
        if session.mode == mode {
            return Ok(());
        }
        let name = session.name.clone();
        // Where to connect to depends on it.
        session.foreseen().await?;
        let letter = if mode == Mode::Stream { 'S' } else { 'E' };
        let reply = session.ask(format!("MODE {letter}")).await?;
        if !reply.is_success() {
            let reason = format!("the server has no parallel streams: it answers MODE {letter} with {}", words(&reply));
            return Err(Error::Store { name: name.to_string(), reason, sort: Sort::Request });
        }
        session.mode = mode;
        Ok(())
    }

    /// The command that asks where to connect to.
    fn where_to(&self, session: &Session) -> &'static str {
        // Only PASV can say another address than the control connection's, which is asked for where that is believed.
        let told = self.options.data_elsewhere && session.peer.is_ipv4();
        if !told && session.epsv { "EPSV" } else { "PASV" }
    }

    /// Asks where to connect to for the next transfer, without waiting for the answer, where that is the same for all.
    pub(super) async fn ask_ahead(&self, session: &mut Session) -> Result<(), Error> {
        if session.mode == Mode::Stream {
            session.send_ahead(self.where_to(session)).await?;
        }
        Ok(())
    }

    /// Where the server listens for data, as it says.
    pub(super) async fn ask(&self, session: &mut Session) -> Result<SocketAddr, Error> {
        let name = session.name.clone();
        let verb = self.where_to(session);
        let reply = match session.foreseen().await? {
            Some(reply) => reply,
            None => session.ask(verb).await?,
        };
        if verb == "EPSV" {
            match reply.code {
                229 => {
                    let port = find_epsv(&reply.text()).map_err(|error| passing(&name, error.to_string()))?;
                    return Ok(SocketAddr::new(session.peer.ip(), port));
                }
                // Of IPv4 there is another way.
                500..=599 if session.peer.ip().to_canonical().is_ipv4() => session.epsv = false,
                _ => return Err(refused(&name, "open a data connection to", "EPSV", &reply)),
            }
        }
        let reply = if verb == "EPSV" { session.ask("PASV").await? } else { reply };
        if reply.code != 227 {
            return Err(refused(&name, "open a data connection to", "PASV", &reply));
        }
        let mut addr = find_pasv(&reply.text()).map_err(|error| passing(&name, error.to_string()))?;
        if addr.port() == 0 {
            return Err(passing(&name, format!("the server says to connect to {addr}")));
        }
        // Behind a translator servers say what nobody can reach, and hostile ones whom they want to be reached.
        if !self.options.data_elsewhere || addr.ip().is_unspecified() {
            addr.set_ip(session.peer.ip());
        }
        Ok(addr)
    }

    /// A data channel that connects to where the server listens.
    pub(super) async fn passive(&self, session: &mut Session) -> Result<Channel, Error> {
        let addr = self.ask(session).await?;
        let channel = Channel::connecting(vec![addr], self.settings(session)?);
        Ok(match &self.losses {
            Some(losses) => channel.counting(losses.clone()),
            None => channel,
        })
    }

    /// A data channel that the server is to connect to.
    pub(super) async fn active(&self, session: &mut Session) -> Result<Channel, Error> {
        let name = session.name.clone();
        if session.data.is_some() {
            let reason = "the server gives no parts of files (ERET), and extended blocks come over connections that it makes, which do \
                          not go through gateways: leave --streams out, or --via";
            return Err(senseless(&name, reason));
        }
        let settings = self.settings(session)?;
        let channel =
            Channel::listening(session.local.ip(), settings).map_err(|error| super::error::data(&name, error))?;
        let addr = channel.local_addr().unwrap_or(session.local);
        self.aim(session, addr).await?;
        Ok(channel)
    }

    /// Tells the server where to connect to.
    pub(super) async fn aim(&self, session: &mut Session, addr: SocketAddr) -> Result<(), Error> {
        let name = session.name.clone();
        let line = match print_port(addr) {
            Some(six) => format!("PORT {six}"),
            None => format!("EPRT {}", print_eprt(addr)),
        };
        session.must(line, &name, "have data connections from").await.map(drop)
    }

    /// Says over how many connections the server is to send.
    pub(super) async fn parallel(&self, session: &mut Session, streams: u32) -> Result<(), Error> {
        if session.parallel == streams {
            return Ok(());
        }
        let name = session.name.clone();
        let options = RetrOptions { parallelism: Some((streams, streams, streams)), ..RetrOptions::default() };
        session.must(format!("OPTS RETR {options}"), &name, "have parallel streams from").await?;
        session.parallel = streams;
        Ok(())
    }
}
