//! A front end's control connection to a data node: FTP's lines under TLS, after a handshake of its own.

use super::super::answer::Failure;
use super::super::hex::{hex, unhex};
use super::proof::{Secret, Talk, Whose, random};
use crate::control::Link;
use crate::data::Guard;
use crate::data::pinned::{Own, Pinned, nobody};
use phoebus_gsi::context::Expect;
use phoebus_net::{Profile, dial};
use phoebus_proto::endpoint::{Endpoint, Host};
use phoebus_proto::gridftp::pin::Pin;
use phoebus_proto::gridftp::reply::{Replies, Reply};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// What is spoken under TLS (RFC 7301).
pub(in super::super) const PROTOCOL: &[u8] = b"phoebus-node/1";

/// What is lent where data goes under TLS, for which each node has a certificate of its own.
pub(in super::super) const TLS: &str = "TLS";

/// How much is read at once.
const READ: usize = 4096;

/// A control connection to a node. Dropped, it is reset, and the node gives up what it is doing.
#[derive(Debug)]
pub(super) struct Node {
    /// As errors name it.
    name: String,
    link: Link,
    replies: Replies,
    secret: Arc<Secret>,
    talk: Talk,
    /// How often rights were lent.
    lent: u64,
    patience: Duration,
    pub(super) addr: SocketAddr,
}

impl Node {
    /// Connects to the node at `at`, and speaks for `user`, whose client is at `client`.
    pub(super) async fn connect(
        at: &Endpoint,
        secret: Arc<Secret>,
        user: &str,
        client: IpAddr,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let name = at.to_string();
        let no = |why: &str| Failure::say(425, format!("data node {name}: {why}"));
        let addresses = match &at.host {
            Host::Addr(addr) => Ok(vec![SocketAddr::new(*addr, at.port)]),
            Host::Name(host) => dial::resolve(host, at.port, patience).await,
        };
        let addresses = addresses.map_err(|error| no(&error.to_string()))?;
        let stream = dial::connect(&addresses, &Profile::default(), patience).await;
        let stream = stream.map_err(|error| no(&error.to_string()))?;
        let addr = stream.peer_addr().map_err(|error| no(&error.to_string()))?;
        let of_front = random().ok_or_else(|| no("the system has no randomness"))?;
        let own = Own::new().map_err(|error| no(&error.to_string()))?;
        let front_key = own.pin();
        let talk =
            Talk { user: user.to_owned(), client, of_front, of_node: [0; 32], front_key, node_key: Pin([0; 32]) };
        let (link, replies) = (Link::new(stream), Replies::new());
        let mut node = Self { name, link, replies, secret, talk, lent: 0, patience, addr };
        node.answer().await?;
        let line = format!("XNODE {} {client} {} {front_key}", hex(user.as_bytes()), hex(&of_front));
        let asked = node.command(&line).await?;
        let text = asked.text();
        let words: Vec<_> = text.split_whitespace().collect();
        let [number, key, proof] = words[..] else {
            return Err(node.no("a number, a key and a proof were expected; is it of this version?"));
        };
        node.talk.node_key = key.parse().map_err(|_| node.no("a key was expected"))?;
        let number = unhex(number).and_then(|number| number.try_into().ok());
        node.talk.of_node = number.ok_or_else(|| node.no("a number of 32 bytes was expected"))?;
        if !node.secret.is_proof(Whose::Node, &node.talk, proof) {
            return Err(node.no("it does not have the secret of this front end"));
        }
        node.command(&format!("XPROVE {}", node.secret.proof(Whose::Front, &node.talk))).await?;
        if !std::mem::take(&mut node.replies).rest().is_empty() {
            return Err(node.no("it said more in clear than it has to"));
        }
        let config = Pinned::new(&own, node.talk.node_key).client(PROTOCOL);
        let agreed = node.link.protect_as_client(config, nobody(), patience).await;
        agreed.map_err(|error| node.no(&format!("TLS failed: {error}")))?;
        node.command("XBEGIN").await?;
        Ok(node)
    }

    /// Lets the node do in the name of the client what `guard` asks for.
    pub(super) async fn lend(&mut self, guard: Option<&Guard>) -> Result<(), Failure> {
        let text = match guard {
            None => String::new(),
            Some(Guard::Gsi { endpoint, peer: Expect::Subject(subject), protection }) => {
                format!("{}\n{subject}\n{}", protection.argument(), endpoint.credential.to_pem().as_str())
            }
            Some(Guard::TlsServer { .. }) => TLS.to_owned(),
            Some(_) => {
                return Err(
                    self.no("data on stripes is protected by certificates (DCAU), TLS (AUTH TLS) or not at all")
                );
            }
        };
        let sealed = self.secret.seal(&self.talk, self.lent, &text);
        self.lent += 1;
        let sealed = sealed.ok_or_else(|| self.no("rights cannot be sealed"))?;
        self.command(&format!("XLEND {sealed}")).await.map(drop)
    }

    /// Sends a line.
    pub(super) async fn send(&mut self, line: &[u8]) -> Result<(), Failure> {
        let line = [line, b"\r\n"].concat();
        self.link.write(&line, self.patience).await.map_err(|error| self.no(&error.to_string()))
    }

    /// The next answer, whenever it comes. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Reply, Failure> {
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

    /// The next answer, unless it does not come in time; one that refuses is an error.
    pub(super) async fn answer(&mut self) -> Result<Reply, Failure> {
        let patience = self.patience;
        let reply = timeout(patience, self.next()).await;
        let reply = reply.unwrap_or_else(|_| Err(self.no(&format!("it said nothing for {} s", patience.as_secs()))))?;
        if reply.code >= 400 { Err(self.refused(&reply)) } else { Ok(reply) }
    }

    /// Sends a command that is answered at once.
    pub(super) async fn command(&mut self, line: &str) -> Result<Reply, Failure> {
        self.send(line.as_bytes()).await?;
        self.answer().await
    }

    /// What a refusal comes to.
    pub(super) fn refused(&self, reply: &Reply) -> Failure {
        Failure::say(reply.code, format!("data node {}: {}", self.name, reply.text()))
    }

    /// A failure of this node's.
    pub(super) fn no(&self, why: &str) -> Failure {
        Failure::say(426, format!("data node {}: {why}", self.name))
    }
}
