//! Data nodes of a session: connects to them, and sets their data endpoints.

use super::super::failure::Failure;
use super::super::session::Settings;
use super::super::session::task::DataEndpoint;
use super::super::stripes::{Node, Stripes};
use super::super::worker::Worker;
use crate::data::ChannelSecurity;
use phoebus_proto::gridftp::address::{find_epsv, find_pasv, print_stripe};
use std::net::SocketAddr;

impl Worker {
    /// Has the nodes listen, and returns their addresses.
    pub(in super::super) async fn listen_on_nodes(
        &mut self,
        generation: u64,
        settings: &Settings,
        security: Option<&ChannelSecurity>,
    ) -> Result<Vec<SocketAddr>, Failure> {
        let most = usize::MAX;
        let mut stripes = self.nodes(generation, settings, security, most).await?;
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

    /// The nodes of a transfer: those that listen, or as many as there are addresses to connect to.
    pub(super) async fn stripes_of(
        &mut self,
        (generation, aim): (u64, &DataEndpoint),
        settings: &Settings,
        security: Option<&ChannelSecurity>,
    ) -> Result<Stripes, Failure> {
        // A transfer has at most `data.streams` connections, because receivers have a limit too.
        let most = match aim {
            DataEndpoint::StripesConnect(_) => {
                (self.server.config.data.streams / settings.streams.max(1)).max(1) as usize
            }
            _ => usize::MAX,
        };
        let is_still = |stripes: &mut Stripes| stripes.generation == generation && stripes.nodes.len() <= most;
        if let Some(stripes) = self.stripes.take_if(is_still) {
            return Ok(stripes);
        }
        let DataEndpoint::StripesConnect(to) = aim else {
            return Err(Failure::say(425, "the data nodes do not listen any more; SPAS has them listen again"));
        };
        let mut stripes = self.nodes(generation, settings, security, most).await?;
        stripes.addresses = to.len();
        let count = stripes.nodes.len();
        for (i, node) in stripes.nodes.iter_mut().enumerate() {
            // One address that all nodes share, or one for each node.
            let own = to.iter().skip(i % to.len().max(1)).step_by(count.min(to.len()).max(1));
            let own: Vec<_> = own.map(|addr| print_stripe(*addr)).collect();
            node.command(&format!("SPOR {}", own.join(" "))).await?;
        }
        Ok(stripes)
    }

    /// Connects to at most `most` nodes, and sets up their data channels.
    async fn nodes(
        &mut self,
        generation: u64,
        settings: &Settings,
        security: Option<&ChannelSecurity>,
        most: usize,
    ) -> Result<Stripes, Failure> {
        let lost = || Failure::say(425, "there are no data nodes");
        let server = self.server.clone();
        let known = server.nodes.as_ref().ok_or_else(lost)?;
        let user = self.served.as_ref().map(|served| served.account.name.clone()).ok_or_else(lost)?;
        let (client, reply_timeout) = (self.peer.ip().to_canonical(), server.config.data.reply_timeout.0);
        // Nodes of an earlier endpoint are reused, after they closed their kept connections.
        let mut nodes = self.stripes.take().map(|stripes| stripes.nodes).unwrap_or_default();
        nodes.truncate(most);
        for at in known.at.iter().take(most).skip(nodes.len()) {
            let mut node = Node::connect(at, known.secret.clone(), &user, client, reply_timeout).await?;
            for line in ["TYPE I", "MODE E"] {
                node.command(line).await?;
            }
            nodes.push(node);
        }
        let stack = settings.stack.as_ref().map_or("default", |stack| stack.text.as_str());
        for node in &mut nodes {
            // The protection goes first, since a stack may depend on it.
            node.lend(security).await?;
            node.command(&format!("SITE SETNETSTACK {stack}")).await?;
            node.command(&format!("SITE RETRBUFSIZE {}", settings.send_buffer.unwrap_or(0))).await?;
            node.command(&format!("SITE STORBUFSIZE {}", settings.receive_buffer.unwrap_or(0))).await?;
        }
        Ok(Stripes { generation, nodes, addresses: 0 })
    }
}
