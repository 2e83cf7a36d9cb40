//! Tasks that use the data channel.
//!
//! - `striped` has data nodes move files; `stripe` is the node's side.
//! - `retrieve` sends files, `receive` receives them, `batch` does both with many short ones, `listing` sends
//!   directories.
//! - [`flow`] and [`ascii`] convert between a file and the data channel; [`markers`] report progress.

mod ascii;
mod batch;
mod flow;
mod listing;
mod markers;
mod nodes;
mod receive;
mod retrieve;
mod stripe;
mod striped;

pub(super) use listing::{Alone, facts_line, lines};

use super::NOT_DONE;
use super::failure::Failure;
use super::names::{nobodys, quoted};
use super::session::task::{DataEndpoint, Operation, Transfer};
use super::worker::{TaskClient, Worker};
use crate::data::{Channel, ChannelSecurity, Mode, Peers, Settings};
use phoebus_files::block::Pool;
use phoebus_files::key::Key;
use phoebus_net::{Buffer, Profile, route};
use phoebus_proto::gridftp::reply::Reply;
use phoebus_proto::units::ByteSize;
use std::net::SocketAddr;
use std::time::Instant;

impl Worker {
    /// Carries out a transfer, and makes its final reply.
    pub(super) async fn transfer(&mut self, transfer: Transfer, client: &TaskClient) -> Reply {
        let begin = Instant::now();
        let striped = matches!(transfer.aim, DataEndpoint::StripesConnect(_) | DataEndpoint::StripesListen);
        let refused = match &transfer.what {
            Operation::Send { key, .. }
            | Operation::Receive { key }
            | Operation::Append { key }
            | Operation::Adjust { key, .. } => nobodys(key).err(),
            // Data nodes write to the front end's draft, and STOU chooses its name itself.
            Operation::Stripe { .. } | Operation::List { .. } | Operation::Unique { .. } => None,
            // Each file has an answer of its own.
            Operation::SendBatch { .. } | Operation::ReceiveBatch => None,
        };
        let mut not_stored = batch::NotStored::new();
        let moved = match &transfer.what {
            _ if refused.is_some() => Err(refused.unwrap_or(Failure::Stopped)),
            Operation::Send { .. }
            | Operation::Receive { .. }
            | Operation::Unique { .. }
            | Operation::Append { .. }
            | Operation::Adjust { .. }
                if striped && self.is_wrong_way(&transfer) =>
            {
                Err(Failure::say(
                    425,
                    "the sender connects: SPOR has to say where to for RETR, and SPAS to ask where for STOR",
                ))
            }
            Operation::Send { key, part, .. } if striped => self.send_striped(&transfer, key, *part, client).await,
            Operation::Receive { .. } | Operation::Adjust { .. } if striped => {
                self.receive_striped(&transfer, client).await
            }
            Operation::Stripe { key, from, inode } => {
                self.receive_stripe(&transfer, key, (*from, *inode), client).await
            }
            Operation::Send { key, part, stripe } => self.retrieve(&transfer, key, *part, *stripe, client).await,
            Operation::List { key, format } => self.send_listing(&transfer, key, format, client).await,
            Operation::SendBatch { .. } | Operation::ReceiveBatch if striped => {
                Err(Failure::say(504, "batches do not go to data nodes"))
            }
            Operation::SendBatch { keys } => self.send_batch(&transfer, keys, client).await,
            Operation::ReceiveBatch => self.receive_batch(&transfer, &mut not_stored, client).await,
            Operation::Unique { .. } if striped => {
                Err(Failure::say(504, "data nodes store files under names that clients choose"))
            }
            Operation::Receive { .. }
            | Operation::Unique { .. }
            | Operation::Append { .. }
            | Operation::Adjust { .. } => self.receive(&transfer, client).await,
        };
        if moved.is_err() || transfer.settings.mode != Mode::Extended {
            // Connections of a failed transfer, or of a mode without reuse, are closed.
            self.close_channel();
        }
        if moved.is_err() {
            self.stripes = None;
        }
        let seconds = begin.elapsed().as_secs_f64();
        match moved {
            Ok(bytes) => {
                self.sent = Some(bytes).filter(|_| matches!(transfer.what, Operation::Send { .. }));
                tracing::info!(peer = %self.peer, user = transfer.user, what = %transfer.what, bytes, seconds, "transferred");
                batch::reply(&not_stored)
            }
            Err(failure) => {
                let reply = failure.reply();
                let (code, why) = (reply.code, reply.text());
                tracing::info!(
                    target: NOT_DONE, peer = %self.peer, user = transfer.user, what = %transfer.what, seconds, code, why,
                    "not transferred"
                );
                reply
            }
        }
    }

    fn is_wrong_way(&self, transfer: &Transfer) -> bool {
        matches!(transfer.what, Operation::Send { .. }) == (transfer.aim == DataEndpoint::StripesListen)
    }

    /// The data channel of a transfer: the open one if it has the same endpoint, or a new one.
    fn channel_of(&mut self, transfer: &Transfer) -> Result<Channel, Failure> {
        let sends =
            matches!(transfer.what, Operation::Send { .. } | Operation::SendBatch { .. } | Operation::List { .. });
        // Of objects, either end connects.
        let has_objects = transfer.settings.stack.as_ref().is_some_and(|stack| stack.objects().is_some());
        let sender_connects = transfer.settings.mode == Mode::Extended && !has_objects;
        if sender_connects && sends == (transfer.aim == DataEndpoint::Listen) {
            let how = if sends { "PORT, EPRT or SPOR has to say where" } else { "PASV, EPSV or SPAS has to ask where" };
            return Err(Failure::say(425, format!("in MODE E the sender connects: {how}")));
        }
        if let Some((_, open)) = self.channel.as_ref().filter(|(generation, _)| *generation == transfer.generation) {
            return Ok(open.clone());
        }
        match &transfer.aim {
            // The front end sends listings itself, to the first of several addresses.
            DataEndpoint::Connect(to) | DataEndpoint::StripesConnect(to) => {
                let connections = match transfer.settings.mode {
                    Mode::Extended => u64::from(transfer.settings.streams.max(1)) * to.len() as u64,
                    Mode::Stream => 1,
                };
                self.reaches(to)?;
                let (third_party, security) = (transfer.third_party, transfer.security.clone());
                let settings = self.data_settings(&transfer.settings, third_party, security, Some(connections));
                let channel = Channel::connecting(to.clone(), settings);
                self.close_channel();
                self.channel = Some((transfer.generation, channel.clone()));
                Ok(channel)
            }
            _ => Err(Failure::say(425, "the data connection is gone; PASV, EPSV, PORT or EPRT makes another")),
        }
    }

    /// Refuses addresses of this host, unless the configuration names them, the client has that address, or another
    /// session of this server listens there for data. Services of this host may trust connections from inside its
    /// firewall.
    fn reaches(&self, to: &[SocketAddr]) -> Result<(), Failure> {
        let (reach, peer) = (&self.server.config.data.third_party_to, self.peer.ip());
        // Without an answer of the kernel, any address may belong to this host.
        let is_own = |ip| route::is_own(ip).unwrap_or(true);
        match reach.service_here(to, peer, |port| self.server.data_ports.has(&port), is_own) {
            Some(own) if self.server.config.trusted.is_none() => {
                let why = format!("{own} is on this server's host, and no range of data.third_party_to holds it");
                Err(Failure::say(425, why))
            }
            _ => Ok(()),
        }
    }

    /// Settings of a session's data channel. With `connects`, this end makes that many connections; otherwise it
    /// accepts them.
    pub(super) fn data_settings(
        &self,
        session: &super::session::Settings,
        third_party: bool,
        security: Option<ChannelSecurity>,
        connects: Option<u64>,
    ) -> Settings {
        let data = &self.server.config.data;
        let user = self.served.as_ref().map_or("", |served| &*served.account.name);
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
            objects: stack.objects(),
            object_memory: Some(self.server.object_memory.clone()),
            known_paths: self.server.known_paths.of(user),
            datagram_timeout: Settings::default().datagram_timeout,
            profile,
            most: data.streams as usize,
            ports: data.ports.map(|(first, last)| first..=last),
            // Connections of other hosts are dropped before a handshake, since a stranger's failed handshake would end
            // the transfer.
            from: match third_party {
                true => Peers::Anyone,
                false => Peers::Among(data.gateways.iter().copied().chain([self.peer.ip()]).collect()),
            },
            security,
            io_threads: self.server.io_threads.clone(),
            reply_timeout: data.reply_timeout.0,
            stall_timeout: data.stall_timeout.0,
        }
    }

    /// The buffers of a transfer over `streams` connections.
    fn pool(&self, streams: usize) -> Pool {
        // The configuration check bounds a block to 4 KiB to 64 MiB.
        let data = &self.server.config.data;
        Pool::new(data.block.0 as usize, data.readers.max(data.writers) + streams + 4)
    }

    /// Sends the preliminary reply, with the name if the server has chosen it.
    async fn begin(channel: &Channel, named: Option<&Key>, client: &TaskClient) {
        let reply = match channel.kept() {
            // RFC 1123, section 4.1.2.9, prescribes this text.
            0 if let Some(key) = named => Reply::new(150, [b"FILE: ", key.name()].concat()),
            _ if let Some(key) = named => Reply::new(125, [b"FILE: ", key.name()].concat()),
            0 => Reply::new(150, "the transfer begins"),
            _ => Reply::new(125, "the transfer begins over the connections that there are"),
        };
        client.send(reply).await;
    }
}

impl std::fmt::Display for Operation {
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
            Self::SendBatch { keys } => write!(f, "retrieve a batch of up to {} files", keys.len()),
            Self::ReceiveBatch => write!(f, "store a batch of files"),
        }
    }
}
