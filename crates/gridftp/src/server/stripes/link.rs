//! The control connection of a front end to a data node: lines of FTP under TLS, after a handshake of its own
//! (`node_auth`).

use super::super::failure::Failure;
use super::super::node_auth::{PROTOCOL, Purpose, Secret, TLS, Transcript, random};
use crate::control::Link;
use crate::data::ChannelSecurity;
use crate::data::pinned::{OwnKey, Pinned, nobody};
use phoebus_gsi::context::Expect;
use phoebus_net::{Profile, dial};
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_proto::gridftp::pin::Pin;
use phoebus_proto::gridftp::reply::{Replies, Reply};
use phoebus_proto::hex::{hex, unhex};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Most bytes of one read.
const READ: usize = 4096;

/// A control connection to a node. Dropping it resets it, and the node stops its work.
#[derive(Debug)]
pub(in super::super) struct Node {
    /// The node's name in errors.
    name: String,
    link: Link,
    replies: Replies,
    secret: Arc<Secret>,
    transcript: Transcript,
    /// Number of delegations so far.
    lent: u64,
    reply_timeout: Duration,
    pub(in super::super) addr: SocketAddr,
}

impl Node {
    /// Connects to the node `at`, and logs in as `user` for the client at `client`.
    pub(in super::super) async fn connect(
        at: &Endpoint,
        secret: Arc<Secret>,
        user: &str,
        client: IpAddr,
        reply_timeout: Duration,
    ) -> Result<Self, Failure> {
        let name = at.to_string();
        let no = |why: &str| Failure::say(425, format!("data node {name}: {why}"));
        let addresses = match &at.host {
            Host::Addr(addr) => Ok(vec![SocketAddr::new(*addr, at.port)]),
            Host::Name(host) => dial::resolve(host, at.port, reply_timeout).await,
        };
        let addresses = addresses.map_err(|error| no(&error.to_string()))?;
        let stream = dial::connect(&addresses, &Profile::default(), reply_timeout).await;
        let stream = stream.map_err(|error| no(&error.to_string()))?;
        let addr = stream.peer_addr().map_err(|error| no(&error.to_string()))?;
        let of_front = random().ok_or_else(|| no("the system has no randomness"))?;
        let own = OwnKey::new().map_err(|error| no(&error.to_string()))?;
        let front_key = own.pin();
        let transcript =
            Transcript { user: user.to_owned(), client, of_front, of_node: [0; 32], front_key, node_key: Pin([0; 32]) };
        let (link, replies) = (Link::new(stream), Replies::new());
        let mut node = Self { name, link, replies, secret, transcript, lent: 0, reply_timeout, addr };
        node.answer().await?;
        let line = format!("XNODE {} {client} {} {front_key}", hex(user.as_bytes()), hex(&of_front));
        let asked = node.command(&line).await?;
        let text = asked.text();
        let words: Vec<_> = text.split_whitespace().collect();
        let [number, key, proof] = words[..] else {
            return Err(node.no("a number, a key and a proof were expected; is it of this version?"));
        };
        node.transcript.node_key = key.parse().map_err(|_| node.no("a key was expected"))?;
        let number = unhex(number).and_then(|number| number.try_into().ok());
        node.transcript.of_node = number.ok_or_else(|| node.no("a number of 32 bytes was expected"))?;
        if !node.secret.is_proof(Purpose::Node, &node.transcript, proof) {
            return Err(node.no("it does not have the secret of this front end"));
        }
        node.command(&format!("XPROVE {}", node.secret.proof(Purpose::Front, &node.transcript))).await?;
        if !std::mem::take(&mut node.replies).rest().is_empty() {
            return Err(node.no("it sent more lines in the clear than the protocol has"));
        }
        let config = Pinned::new(&own, node.transcript.node_key).client(PROTOCOL);
        let agreed = node.link.protect_as_client(config, nobody(), reply_timeout).await;
        agreed.map_err(|error| node.no(&format!("TLS failed: {error}")))?;
        node.command("XBEGIN").await?;
        Ok(node)
    }

    /// Delegates what the node needs for `security`.
    pub(in super::super) async fn lend(&mut self, security: Option<&ChannelSecurity>) -> Result<(), Failure> {
        let text = match security {
            None => String::new(),
            Some(ChannelSecurity::Gsi { endpoint, peer: Expect::Subject(subject), protection }) => {
                format!("{}\n{subject}\n{}", protection.argument(), endpoint.credential.to_pem().as_str())
            }
            Some(ChannelSecurity::TlsServer { .. }) => TLS.to_owned(),
            Some(_) => {
                return Err(
                    self.no("data on stripes is protected by certificates (DCAU), TLS (AUTH TLS) or not at all")
                );
            }
        };
        let sealed = self.secret.seal(&self.transcript, self.lent, &text);
        self.lent += 1;
        let sealed = sealed.ok_or_else(|| self.no("rights cannot be sealed"))?;
        self.command(&format!("XLEND {sealed}")).await.map(drop)
    }

    /// Sends a command line.
    pub(in super::super) async fn send(&mut self, line: &[u8]) -> Result<(), Failure> {
        let line = [line, b"\r\n"].concat();
        self.link.write(&line, self.reply_timeout).await.map_err(|error| self.no(&error.to_string()))
    }

    /// The next reply, without a limit of time. Cancel safe.
    pub(in super::super) async fn next(&mut self) -> Result<Reply, Failure> {
        loop {
            if let Some(reply) = self.replies.take().map_err(|error| self.no(&error.to_string()))? {
                return Ok(reply);
            }
            let mut room = [0; READ];
            match self.link.read(&mut room).await {
                Ok(0) => return Err(self.no("it closed the connection")),
                Ok(len) => self.replies.push(&room[..len]),
                Err(error) => return Err(self.no(&error.to_string())),
            }
        }
    }

    /// The next reply within the time limit. A refusal is an error.
    pub(in super::super) async fn answer(&mut self) -> Result<Reply, Failure> {
        let reply_timeout = self.reply_timeout;
        let reply = timeout(reply_timeout, self.next()).await;
        let reply =
            reply.unwrap_or_else(|_| Err(self.no(&format!("it said nothing for {} s", reply_timeout.as_secs()))))?;
        if reply.code >= 400 { Err(self.refused(&reply)) } else { Ok(reply) }
    }

    /// Sends a command, and waits for its reply.
    pub(in super::super) async fn command(&mut self, line: &str) -> Result<Reply, Failure> {
        self.send(line.as_bytes()).await?;
        self.answer().await
    }

    /// The failure that a refusal means.
    pub(in super::super) fn refused(&self, reply: &Reply) -> Failure {
        Failure::say(reply.code, format!("data node {}: {}", self.name, reply.text()))
    }

    /// A failure that names this node.
    pub(in super::super) fn no(&self, why: &str) -> Failure {
        Failure::say(426, format!("data node {}: {why}", self.name))
    }
}
