//! Transfers by several data nodes (S11; GFD.20, sections 3.3 and 5). This server keeps the control connection, names
//! and drafts; the nodes move the bytes between the client and a shared file system.
//!
//! - A node is `phoebus serve --data-node` with the same users and roots. It acts for its authenticated front end only
//!   (`server::node_auth`, `link`; its side is `session::node` and `transfer::stripe`).
//! - Nodes receive into the front end's draft. They report what they have synced, and the front end records it in its
//!   journal, so markers, restarts and publication are those of any other file.
//! - Nodes send alternating blocks. Each sends to its own addresses, or several to one address if there are fewer
//!   addresses than nodes. Then one of them announces the ends of all, so that the receiver notices if any is missing.
//! - The failure of a node fails the transfer, and its name is reported.

mod link;

pub(super) use link::Node;

pub(super) use super::failure::Failure;
use crate::data::Sharing;
use phoebus_proto::gridftp::reply::Reply;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Time to find out whether a node has died, after the client stopped the transfer or data was cut. Enough on a busy
/// machine.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Control connections to the nodes of one data endpoint.
#[derive(Debug)]
pub(super) struct Stripes {
    /// Generation of the session's data endpoint.
    pub(super) generation: u64,
    pub(super) nodes: Vec<Node>,
    /// Number of addresses that they send to.
    pub(super) addresses: usize,
}

/// A reply of one node.
#[derive(Debug)]
pub(super) struct NodeReply {
    index: usize,
    reply: Result<Reply, Failure>,
    /// Whether the node's connection is lost.
    lost: bool,
}

/// A transfer in progress. Dropping it stops the nodes.
#[derive(Debug)]
pub(super) struct Work {
    tasks: JoinSet<(usize, Node)>,
    said: mpsc::Receiver<NodeReply>,
    pub(super) count: usize,
    addresses: usize,
}

impl Stripes {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// For each node, how it shares its address with others.
    pub(super) fn sharing(&self) -> Vec<Sharing> {
        (0..self.nodes.len()).map(|index| sharing(index, self.nodes.len(), self.addresses)).collect()
    }

    /// Sends a command to each node, and waits for the replies.
    pub(super) async fn command(&mut self, mut line: impl FnMut(usize) -> String) -> Result<(), Failure> {
        for (i, node) in self.nodes.iter_mut().enumerate() {
            node.command(&line(i)).await?;
        }
        Ok(())
    }

    /// Starts a transfer on all nodes at once.
    pub(super) async fn begin(
        mut self,
        stall_timeout: Duration,
        line: impl Fn(usize) -> Vec<u8>,
    ) -> Result<Work, Failure> {
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
                    // A working node sends markers.
                    let reply = timeout(stall_timeout, node.next()).await;
                    let reply = reply.unwrap_or_else(|_| {
                        Err(node.no(&format!("it said nothing for {} s", stall_timeout.as_secs())))
                    });
                    let lost = reply.is_err();
                    let reply =
                        reply.and_then(|reply| if reply.code >= 400 { Err(node.refused(&reply)) } else { Ok(reply) });
                    let ended = reply.as_ref().map_or(true, |reply| !reply.is_preliminary());
                    // An error means that the transfer has ended.
                    let gone = sender.send(NodeReply { index, reply, lost }).await.is_err();
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
    /// The next reply of a node, or `None` once all are done. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<NodeReply> {
        self.said.recv().await
    }

    /// The reason of a failure: the death of a node, if there is one, or `otherwise`. The client or a data connection
    /// may notice a node's death before this server does.
    pub(super) async fn why(&mut self, otherwise: Failure) -> Failure {
        let lost = async {
            loop {
                match self.next().await {
                    Some(NodeReply { reply: Err(failure), lost: true, .. }) => return Some(failure),
                    Some(_) => {}
                    None => return None,
                }
            }
        };
        timeout(LAST_WORDS, lost).await.ok().flatten().unwrap_or(otherwise)
    }

    /// Passes on a reply that is no failure.
    ///
    /// # Errors
    /// The reason why the transfer failed. If another node's death cut this node's data, it is that.
    pub(super) async fn good(&mut self, said: NodeReply) -> Result<(usize, Reply), Failure> {
        match said {
            NodeReply { index, reply: Ok(reply), .. } => Ok((index, reply)),
            NodeReply { reply: Err(failure), lost: false, .. } if matches!(failure.reply().code, 425 | 426) => {
                Err(self.why(failure).await)
            }
            NodeReply { reply: Err(failure), .. } => Err(failure),
        }
    }

    /// The nodes after a successful transfer, for the next one.
    pub(super) async fn ended(mut self, generation: u64) -> Option<Stripes> {
        let mut nodes = Vec::new();
        while let Some(node) = self.tasks.join_next().await {
            nodes.push(node.ok()?);
        }
        // Nodes keep their order, because each has its address.
        nodes.sort_by_key(|(index, _)| *index);
        let nodes = nodes.into_iter().map(|(_, node)| node).collect();
        Some(Stripes { generation, nodes, addresses: self.addresses })
    }
}

/// How the node `index` shares its address, if `nodes` nodes send to `addresses` addresses.
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
    fn one_sender_per_address_announces_all_ends() {
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
