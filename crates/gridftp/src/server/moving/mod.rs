//! What goes over the data channel.
//!
//! - `striped` has data nodes move files, and `stripe` is what such a node does.
//! - `retrieve` sends files, `receive` takes them, `listing` sends directories.
//! - [`flow`] has what is put between a file and the data channel; [`ascii`] is TYPE A.

mod ascii;
mod flow;
mod listing;
mod receive;
mod retrieve;
mod stripe;
mod striped;

pub(super) use listing::{Alone, facts_line, lines};

use super::answer::Failure;
use super::session::task::{Aim, Transfer, What};
use super::work::{Tell, Worker, nobodys, quoted};
use crate::data::{Channel, Guard, Mode, Peers, Settings};
use phoebus_files::block::Pool;
use phoebus_files::key::Key;
use phoebus_net::{Buffer, Profile, route};
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::units::ByteSize;
use std::net::SocketAddr;
use std::time::Instant;

/// How many blocks of a file are read or written at once.
const AT_ONCE: usize = 4;

impl Worker {
    /// Carries out a transfer, and says how it ended.
    pub(super) async fn transfer(&mut self, transfer: Transfer, tell: &Tell) -> Reply {
        let begin = Instant::now();
        let striped = matches!(transfer.aim, Aim::StripesConnect(_) | Aim::StripesListen);
        let refused = match &transfer.what {
            What::Send { key, .. } | What::Receive { key } | What::Append { key } | What::Adjust { key, .. } => {
                nobodys(key).err()
            }
            // A data node is told where its front end's draft is, and the server names what it chooses itself.
            What::Stripe { .. } | What::List { .. } | What::Unique { .. } => None,
        };
        let moved = match &transfer.what {
            _ if refused.is_some() => Err(refused.unwrap_or(Failure::Stopped)),
            What::Send { .. }
            | What::Receive { .. }
            | What::Unique { .. }
            | What::Append { .. }
            | What::Adjust { .. }
                if striped && self.is_wrong_way(&transfer) =>
            {
                Err(Failure::say(
                    425,
                    "the sender connects: SPOR has to say where to for RETR, and SPAS to ask where for STOR",
                ))
            }
            What::Send { key, part, .. } if striped => self.send_striped(&transfer, key, *part, tell).await,
            What::Receive { .. } | What::Adjust { .. } if striped => self.receive_striped(&transfer, tell).await,
            What::Stripe { key, from, inode } => self.receive_stripe(&transfer, key, (*from, *inode), tell).await,
            What::Send { key, part, stripe } => self.retrieve(&transfer, key, *part, *stripe, tell).await,
            What::List { key, format } => self.send_listing(&transfer, key, format, tell).await,
            What::Unique { .. } if striped => {
                Err(Failure::say(504, "data nodes store files under names that clients choose"))
            }
            What::Receive { .. } | What::Unique { .. } | What::Append { .. } | What::Adjust { .. } => {
                self.receive(&transfer, tell).await
            }
        };
        if moved.is_err() || transfer.settings.mode != Mode::Extended {
            // What is left of its connections is of no use.
            self.channel = None;
        }
        if moved.is_err() {
            self.stripes = None;
        }
        let seconds = begin.elapsed().as_secs_f64();
        match moved {
            Ok(bytes) => {
                self.sent = Some(bytes).filter(|_| matches!(transfer.what, What::Send { .. }));
                tracing::info!(peer = %self.peer, user = transfer.user, what = %transfer.what, bytes, seconds, "transferred");
                Reply::new(226, "transfer complete")
            }
            Err(failure) => {
                let reply = failure.reply();
                let (code, why) = (reply.code, reply.text());
                tracing::info!(peer = %self.peer, user = transfer.user, what = %transfer.what, seconds, code, why, "not transferred");
                reply
            }
        }
    }

    fn is_wrong_way(&self, transfer: &Transfer) -> bool {
        matches!(transfer.what, What::Send { .. }) == (transfer.aim == Aim::StripesListen)
    }

    /// The data channel of a transfer: the one that is open, if it goes to the same place.
    fn channel_of(&mut self, transfer: &Transfer) -> Result<Channel, Failure> {
        let sends = matches!(transfer.what, What::Send { .. } | What::List { .. });
        if transfer.settings.mode == Mode::Extended && sends == (transfer.aim == Aim::Listen) {
            let how = if sends { "PORT, EPRT or SPOR has to say where" } else { "PASV, EPSV or SPAS has to ask where" };
            return Err(Failure::say(425, format!("in MODE E the sender connects: {how}")));
        }
        if let Some((_, open)) = self.channel.as_ref().filter(|(generation, _)| *generation == transfer.generation) {
            return Ok(open.clone());
        }
        match &transfer.aim {
            // A listing is sent from here, to the first of the stripes.
            Aim::Connect(to) | Aim::StripesConnect(to) => {
                let connections = match transfer.settings.mode {
                    Mode::Extended | Mode::ExtendedBoth => {
                        u64::from(transfer.settings.streams.max(1)) * to.len() as u64
                    }
                    Mode::Stream => 1,
                };
                self.reaches(to)?;
                let (third_party, guard) = (transfer.third_party, transfer.guard.clone());
                let settings = self.data_settings(&transfer.settings, third_party, guard, Some(connections));
                let channel = Channel::connecting(to.clone(), settings);
                self.channel = Some((transfer.generation, channel.clone()));
                Ok(channel)
            }
            _ => Err(Failure::say(425, "the data connection is gone; PASV, EPSV, PORT or EPRT makes another")),
        }
    }

    /// Refuses an address of this host, where a client can mean a service that no firewall guards from within: it is connected to only
    /// where the configuration names it, the client is there, or another session of this server listens on that port for its data.
    fn reaches(&self, to: &[SocketAddr]) -> Result<(), Failure> {
        let (reach, peer) = (&self.server.config.data.third_party_to, self.peer.ip());
        // Where the kernel cannot be asked, any address may be one of this host.
        let is_own = |ip| route::is_own(ip).unwrap_or(true);
        match reach.service_here(to, peer, |port| self.server.data_ports.has(&port), is_own) {
            Some(own) if self.server.config.trusted.is_none() => {
                let why = format!("{own} is on this server's host, and no range of data.third_party_to holds it");
                Err(Failure::say(425, why))
            }
            _ => Ok(()),
        }
    }

    /// How the data connections of a session are made: so many, which this end makes, or those of others, for which it waits.
    pub(super) fn data_settings(
        &self,
        session: &super::session::Settings,
        third_party: bool,
        guard: Option<Guard>,
        connects: Option<u64>,
    ) -> Settings {
        let data = &self.server.config.data;
        let buffer = |bytes: Option<u64>| bytes.map_or(Buffer::Auto, |bytes| Buffer::Bytes(ByteSize(bytes.max(4096))));
        let profile = Profile {
            send_buffer: buffer(session.send_buffer),
            receive_buffer: buffer(session.receive_buffer),
            ..Profile::default()
        };
        let stack = session.stack.as_ref().unwrap_or(self.server.drivers.usual());
        let profile = stack.profile(profile, connects.unwrap_or(1));
        Settings {
            transport: stack.transport(connects.is_some(), &profile),
            profile,
            most: data.streams as usize,
            streams: session.streams.max(1),
            ports: data.ports.map(|(first, last)| first..=last),
            // Nobody else's connections are even looked at, keys or none: a stranger's would end the transfer.
            from: match third_party {
                true => Peers::Anyone,
                false => Peers::Among(data.gateways.iter().copied().chain([self.peer.ip()]).collect()),
            },
            guard,
            carriers: self.server.carriers.clone(),
            patience: data.patience.0,
            stall: data.stall.0,
        }
    }

    /// The buffers of a transfer over so many connections.
    fn pool(&self, streams: usize) -> Pool {
        // 4 KiB to 64 MiB, as the configuration was checked for.
        Pool::new(self.server.config.data.block.0 as usize, AT_ONCE + streams + 4)
    }

    /// That data is about to move; under which name, if the server has chosen it.
    async fn begin(channel: &Channel, named: Option<&Key>, tell: &Tell) {
        let reply = match channel.kept() {
            // These words and no others (RFC 1123, section 4.1.2.9).
            0 if let Some(key) = named => Reply::new(150, [b"FILE: ", key.name()].concat()),
            _ if let Some(key) = named => Reply::new(125, [b"FILE: ", key.name()].concat()),
            0 => Reply::new(150, "the transfer begins"),
            _ => Reply::new(125, "the transfer begins over the connections that there are"),
        };
        tell.say(reply).await;
    }
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Send { key, part: None, .. } => write!(f, "retrieve {}", quoted(key)),
            Self::Send { key, part: Some((offset, length)), stripe: None } => {
                write!(f, "retrieve {length} bytes at {offset} of {}", quoted(key))
            }
            Self::Send { key, part: Some((offset, length)), stripe: Some(stripe) } => {
                let (index, count) = (stripe.index, stripe.count);
                write!(f, "retrieve stripe {index} of {count} of {length} bytes at {offset} of {}", quoted(key))
            }
            Self::Stripe { key, .. } => write!(f, "store a stripe in {}", quoted(key)),
            Self::Receive { key } => write!(f, "store {}", quoted(key)),
            Self::Unique { key } => write!(f, "store as {}", quoted(key)),
            Self::Append { key } => write!(f, "append to {}", quoted(key)),
            Self::Adjust { key, offset } => write!(f, "store from {offset} in {}", quoted(key)),
            Self::List { key, .. } => write!(f, "list {}", quoted(key)),
        }
    }
}
