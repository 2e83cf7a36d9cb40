//! Transfers that several data nodes carry out together (S11; GFD.20, sections 3.3 and 5): this server keeps the control
//! connection, names and drafts, and the nodes move the bytes between the client and a file system that all of them share.
//!
//! - A node is `phoebus serve --data-node` with the same users and roots. It does for its front end what that asks for in a user's
//!   name, and nothing for anybody else (`proof`, `link`; its side is `session::node` and `moving::stripe`).
//! - What is received goes into the draft that the front end has begun. Nodes tell what they have synced, and the front end notes it
//!   in its journal as if it had been written here: so markers, restarts and publication are as those of any other file.
//! - What is sent is divided among the nodes block by block. Each sends to addresses of its own.
//! - The failure of one node is the failure of the transfer, and names the node.

pub(super) mod link;
pub(super) mod proof;

use super::answer::Failure;
use super::session::Settings;
use super::session::task::Aim;
use super::work::Worker;
use crate::data::Guard;
use link::Node;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::gridftp::address::{find_epsv, find_pasv, print_stripe};
use phoebus_proto::gridftp::reply::Reply;
use proof::Secret;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The nodes of a front end.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) at: Vec<Endpoint>,
    pub(super) secret: Arc<Secret>,
}

/// Control connections to the nodes that take part in the transfers of one aim.
#[derive(Debug)]
pub(super) struct Stripes {
    /// Of the session's address.
    generation: u64,
    nodes: Vec<Node>,
}

/// What one of the nodes said.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) index: usize,
    pub(super) reply: Result<Reply, Failure>,
}

/// Nodes at work. Dropped, they give it up.
#[derive(Debug)]
pub(super) struct Work {
    tasks: JoinSet<Node>,
    said: mpsc::Receiver<Said>,
    pub(super) count: usize,
}

impl Worker {
    /// Has the nodes listen, and gives where.
    pub(super) async fn listen_on_nodes(
        &mut self,
        generation: u64,
        settings: &Settings,
        guard: Option<&Guard>,
    ) -> Result<Vec<SocketAddr>, Failure> {
        let most = usize::MAX;
        let mut stripes = self.nodes(generation, settings, guard, most).await?;
        let mut addresses = Vec::new();
        for node in &mut stripes.nodes {
            let no = |error: &dyn std::fmt::Display| Failure::say(425, error.to_string());
            addresses.push(match node.addr {
                SocketAddr::V4(_) => find_pasv(&node.command("PASV").await?.text()).map_err(|error| no(&error))?,
                SocketAddr::V6(at) => {
                    let port = find_epsv(&node.command("EPSV").await?.text()).map_err(|error| no(&error))?;
                    SocketAddr::new((*at.ip()).into(), port)
                }
            });
        }
        self.stripes = Some(stripes);
        Ok(addresses)
    }

    /// The nodes that are to work for a transfer: those that listen, or that are told to connect, as far as there are addresses.
    pub(super) async fn stripes_of(
        &mut self,
        (generation, aim): (u64, &Aim),
        settings: &Settings,
        guard: Option<&Guard>,
    ) -> Result<Stripes, Failure> {
        if let Some(stripes) = self.stripes.take_if(|stripes| stripes.generation == generation) {
            return Ok(stripes);
        }
        let Aim::StripesConnect(to) = aim else {
            return Err(Failure::say(425, "the data nodes do not listen any more; SPAS has them listen again"));
        };
        let mut stripes = self.nodes(generation, settings, guard, to.len()).await?;
        let count = stripes.nodes.len();
        for (i, node) in stripes.nodes.iter_mut().enumerate() {
            let own: Vec<_> = to.iter().skip(i).step_by(count).map(|addr| print_stripe(*addr)).collect();
            node.command(&format!("SPOR {}", own.join(" "))).await?;
        }
        Ok(stripes)
    }

    /// Connects to at most so many nodes, or all there are, and tells them how data connections are to be made.
    async fn nodes(
        &mut self,
        generation: u64,
        settings: &Settings,
        guard: Option<&Guard>,
        most: usize,
    ) -> Result<Stripes, Failure> {
        let lost = || Failure::say(425, "there are no data nodes");
        let server = self.server.clone();
        let known = server.nodes.as_ref().ok_or_else(lost)?;
        let user = self.served.as_ref().map(|served| served.account.name.clone()).ok_or_else(lost)?;
        let (client, patience) = (self.peer.ip().to_canonical(), server.config.data.patience.0);
        // Those of an earlier aim are used again, with all that they have kept let go.
        let mut nodes = self.stripes.take().map(|stripes| stripes.nodes).unwrap_or_default();
        nodes.truncate(most);
        for at in known.at.iter().take(most).skip(nodes.len()) {
            let mut node = Node::connect(at, known.secret.clone(), &user, client, patience).await?;
            for line in ["TYPE I", "MODE E"] {
                node.command(line).await?;
            }
            nodes.push(node);
        }
        let stack = settings.stack.as_ref().map_or("default", |stack| stack.text.as_str());
        for node in &mut nodes {
            // A stack may name what protects data, which has to be known then.
            node.lend(guard).await?;
            node.command(&format!("SITE SETNETSTACK {stack}")).await?;
            node.command(&format!("SITE RETRBUFSIZE {}", settings.send_buffer.unwrap_or(0))).await?;
            node.command(&format!("SITE STORBUFSIZE {}", settings.receive_buffer.unwrap_or(0))).await?;
        }
        Ok(Stripes { generation, nodes })
    }
}

impl Stripes {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Says one thing to all nodes, each its own.
    pub(super) async fn command(&mut self, mut line: impl FnMut(usize) -> String) -> Result<(), Failure> {
        for (i, node) in self.nodes.iter_mut().enumerate() {
            node.command(&line(i)).await?;
        }
        Ok(())
    }

    /// Has each node begin what `line` says; none of them has to wait for another.
    pub(super) async fn begin(mut self, stall: Duration, line: impl Fn(usize) -> Vec<u8>) -> Result<Work, Failure> {
        for (i, node) in self.nodes.iter_mut().enumerate() {
            node.send(&line(i)).await?;
        }
        for node in &mut self.nodes {
            let reply = node.answer().await?;
            if !reply.is_preliminary() {
                return Err(node.no(&format!("\"{reply}\" was not expected")));
            }
        }
        let (sender, said) = mpsc::channel(16);
        let (mut tasks, count) = (JoinSet::new(), self.nodes.len());
        for (index, mut node) in self.nodes.into_iter().enumerate() {
            let sender = sender.clone();
            tasks.spawn(async move {
                loop {
                    // A node that works says so now and then.
                    let reply = timeout(stall, node.next()).await;
                    let reply =
                        reply.unwrap_or_else(|_| Err(node.no(&format!("it said nothing for {} s", stall.as_secs()))));
                    let reply =
                        reply.and_then(|reply| if reply.code >= 400 { Err(node.refused(&reply)) } else { Ok(reply) });
                    let ended = reply.as_ref().map_or(true, |reply| !reply.is_preliminary());
                    // Whoever has gone does not want to know.
                    let gone = sender.send(Said { index, reply }).await.is_err();
                    if ended || gone {
                        return node;
                    }
                }
            });
        }
        Ok(Work { tasks, said, count })
    }
}

impl Work {
    /// What one of them says next, and none when all are done. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Said> {
        self.said.recv().await
    }

    /// The nodes, which are done, for another transfer.
    pub(super) async fn ended(mut self, generation: u64) -> Option<Stripes> {
        let mut nodes = Vec::new();
        while let Some(node) = self.tasks.join_next().await {
            nodes.push(node.ok()?);
        }
        Some(Stripes { generation, nodes })
    }
}
