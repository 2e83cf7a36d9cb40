//! Transfers that several data nodes carry out together (S11; GFD.20, sections 3.3 and 5): this server keeps the control
//! connection, names and drafts, and the nodes move the bytes between the client and a file system that all of them share.
//!
//! - A node is `phoebus serve --data-node` with the same users and roots. It does for its front end what that asks for in a user's
//!   name, and nothing for anybody else (`proof`, `link`; its side is `session::node` and `moving::stripe`).
//! - What is received goes into the draft that the front end has begun. Nodes tell what they have synced, and the front end notes it
//!   in its journal as if it had been written here: so markers, restarts and publication are as those of any other file.
//! - What is sent is divided among the nodes block by block. Each sends to addresses of its own, or several to one address, where
//!   there are fewer than nodes: then one of them announces the ends of all, so that without any of them the receiver lacks an end.
//! - The failure of one node is the failure of the transfer, and names the node.

pub(super) mod link;
pub(super) mod proof;

use super::answer::Failure;
use super::session::Settings;
use super::session::task::Aim;
use super::work::Worker;
use crate::data::{Guard, Sharing};
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

/// How long it is looked for whether a node has died, once a client gives a transfer up or data is cut: on a busy machine, too, it is
/// then known.
const LAST_WORDS: Duration = Duration::from_secs(2);

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
    /// To how many addresses they send.
    addresses: usize,
}

/// What one of the nodes said.
#[derive(Debug)]
pub(super) struct Said {
    index: usize,
    reply: Result<Reply, Failure>,
    /// Whether it says nothing any more.
    lost: bool,
}

/// Nodes at work. Dropped, they give it up.
#[derive(Debug)]
pub(super) struct Work {
    tasks: JoinSet<(usize, Node)>,
    said: mpsc::Receiver<Said>,
    pub(super) count: usize,
    addresses: usize,
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
        // However many nodes there are: receivers, too, have a limit.
        let most = match aim {
            Aim::StripesConnect(_) => (self.server.config.data.streams / settings.streams.max(1)).max(1) as usize,
            _ => usize::MAX,
        };
        let is_still = |stripes: &mut Stripes| stripes.generation == generation && stripes.nodes.len() <= most;
        if let Some(stripes) = self.stripes.take_if(is_still) {
            return Ok(stripes);
        }
        let Aim::StripesConnect(to) = aim else {
            return Err(Failure::say(425, "the data nodes do not listen any more; SPAS has them listen again"));
        };
        let mut stripes = self.nodes(generation, settings, guard, most).await?;
        stripes.addresses = to.len();
        let count = stripes.nodes.len();
        for (i, node) in stripes.nodes.iter_mut().enumerate() {
            // One that is shared, or some that are not.
            let own = to.iter().skip(i % to.len().max(1)).step_by(count.min(to.len()).max(1));
            let own: Vec<_> = own.map(|addr| print_stripe(*addr)).collect();
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
        Ok(Stripes { generation, nodes, addresses: 0 })
    }
}

impl Stripes {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// With how many others each node sends to the same address.
    pub(super) fn sharing(&self) -> Vec<Sharing> {
        (0..self.nodes.len()).map(|index| sharing(index, self.nodes.len(), self.addresses)).collect()
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
        let (mut tasks, count, addresses) = (JoinSet::new(), self.nodes.len(), self.addresses);
        for (index, mut node) in self.nodes.into_iter().enumerate() {
            let sender = sender.clone();
            tasks.spawn(async move {
                loop {
                    // A node that works says so now and then.
                    let reply = timeout(stall, node.next()).await;
                    let reply =
                        reply.unwrap_or_else(|_| Err(node.no(&format!("it said nothing for {} s", stall.as_secs()))));
                    let lost = reply.is_err();
                    let reply =
                        reply.and_then(|reply| if reply.code >= 400 { Err(node.refused(&reply)) } else { Ok(reply) });
                    let ended = reply.as_ref().map_or(true, |reply| !reply.is_preliminary());
                    // Whoever has gone does not want to know.
                    let gone = sender.send(Said { index, reply, lost }).await.is_err();
                    if ended || gone {
                        return (index, node);
                    }
                }
            });
        }
        Ok(Work { tasks, said, count, addresses })
    }
}

impl Work {
    /// What one of them says next, and none when all are done. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Said> {
        self.said.recv().await
    }

    /// Why it ends, now that the client wants that or that data is cut (`otherwise`): either may have heard of a node's death sooner
    /// than this end did.
    pub(super) async fn why(&mut self, otherwise: Failure) -> Failure {
        let lost = async {
            loop {
                match self.next().await {
                    Some(Said { reply: Err(failure), lost: true, .. }) => return Some(failure),
                    Some(_) => {}
                    None => return None,
                }
            }
        };
        timeout(LAST_WORDS, lost).await.ok().flatten().unwrap_or(otherwise)
    }

    /// What was `said`, where it is no failure; what was cut by another's death is that one's.
    ///
    /// # Errors
    /// Why the transfer ends.
    pub(super) async fn good(&mut self, said: Said) -> Result<(usize, Reply), Failure> {
        match said {
            Said { index, reply: Ok(reply), .. } => Ok((index, reply)),
            Said { reply: Err(failure), lost: false, .. } if matches!(failure.reply().code, 425 | 426) => {
                Err(self.why(failure).await)
            }
            Said { reply: Err(failure), .. } => Err(failure),
        }
    }

    /// The nodes, which are done, for another transfer.
    pub(super) async fn ended(mut self, generation: u64) -> Option<Stripes> {
        let mut nodes = Vec::new();
        while let Some(node) = self.tasks.join_next().await {
            nodes.push(node.ok()?);
        }
        // Whichever was done first: each has been told where to send to.
        nodes.sort_by_key(|(index, _)| *index);
        let nodes = nodes.into_iter().map(|(_, node)| node).collect();
        Some(Stripes { generation, nodes, addresses: self.addresses })
    }
}

/// With how many others the node of this index sends to the same of so many addresses.
fn sharing(index: usize, nodes: usize, addresses: usize) -> Sharing {
    if addresses == 0 || addresses >= nodes {
        return Sharing::default();
    }
    let senders = (nodes - index % addresses).div_ceil(addresses);
    Sharing { senders: senders as u64, place: (index / addresses) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_those_that_share_an_address_announces_the_ends_of_all() {
        for (nodes, addresses) in [(1, 1), (2, 1), (3, 2), (5, 3), (7, 2), (2, 4), (4, 4), (3, 0)] {
            let all: Vec<_> = (0..nodes).map(|index| sharing(index, nodes, addresses)).collect();
            for address in 0..addresses.min(nodes) {
                let those: Vec<_> = all.iter().skip(address).step_by(addresses).collect();
                assert!(those.iter().all(|one| one.senders == those.len() as u64), "{nodes} {addresses} {all:?}");
                let places: Vec<_> = those.iter().map(|one| one.place).collect();
                assert_eq!(places, (0..those.len() as u64).collect::<Vec<_>>(), "{nodes} {addresses}");
            }
        }
    }
}
