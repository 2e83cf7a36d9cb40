//! PORT, EPRT, SPOR, PASV, EPSV, SPAS: the two ends of data connections (RFC 959, 2428, GFD.20).
//!
//! The server connects only to the address of the client, unless the account allows third-party transfers: a server
//! that connects anywhere attacks other hosts on behalf of its clients (RFC 2577). A third party needs a public
//! address, or one that the configuration names (`data.third_party_to`).

use super::super::drivers::Stack;
use super::task::{DataEndpoint, Listening, Task};
use super::{Session, Settings, Step};
use crate::data::{ChannelSecurity, Mode};
use phoebus_accounts::Account;
use phoebus_proto::gridftp::address::{print_epsv, print_port, print_stripe};
use phoebus_proto::gridftp::command::Epsv;
use phoebus_proto::gridftp::reply::Reply;
use std::net::{IpAddr, SocketAddr};

/// Lower ports belong to services, and nobody listens on them for data.
const FIRST_PORT: u16 = 1024;

impl Session {
    pub(super) fn port(&mut self, mut to: Vec<SocketAddr>, aim: impl FnOnce(Vec<SocketAddr>) -> DataEndpoint) -> Step {
        if self.epsv_only {
            return Step::say(503, "after EPSV ALL only EPSV is possible");
        }
        // The front end has checked the addresses.
        let third_party = self.third_party() || self.is_node();
        let peer = self.peer;
        // The checked address is the one that is connected to, however it was written.
        to.iter_mut().for_each(|addr| addr.set_ip(addr.ip().to_canonical()));
        // lftp sends `::` if it does not know its IPv6 address. Taken literally, it would be this host.
        to.iter_mut().filter(|addr| addr.ip().is_unspecified()).for_each(|addr| addr.set_ip(peer));
        if to.iter().any(|addr| addr.port() < FIRST_PORT) {
            return Step::say(504, "data connections to ports below 1024 are not made");
        }
        if !third_party && to.iter().any(|addr| addr.ip() != peer) {
            return Step::say(
                504,
                format!("data connections go to {peer} only, where the control connection comes from"),
            );
        }
        if to.iter().any(|addr| addr.ip().is_multicast()) {
            return Step::say(501, "an address of a host was expected");
        }
        if let Some(far) = to.iter().map(SocketAddr::ip).find(|ip| *ip != peer && !self.reaches(*ip)) {
            let why = format!("data connections to {far} are not made: data.third_party_to does not hold it");
            return Step::say(504, why);
        }
        self.generation += 1;
        self.aim = aim(to);
        Step::say(200, "data connections go there")
    }

    /// Handles SPOR for data nodes.
    pub(super) fn spor(&mut self, to: Vec<SocketAddr>) -> Step {
        if self.is_keyed() {
            return Self::no_keys_at_nodes();
        }
        self.port(to, DataEndpoint::StripesConnect)
    }

    pub(super) fn pasv(&mut self) -> Step {
        if self.epsv_only {
            return Step::say(503, "after EPSV ALL only EPSV is possible");
        }
        if self.local.is_ipv6() {
            return Step::say(425, "PASV has no form for IPv6; EPSV has");
        }
        self.listen(Listening::Pasv)
    }

    pub(super) fn epsv(&mut self, how: Epsv) -> Step {
        match (how, self.local.is_ipv6()) {
            (Epsv::All, _) => {
                self.epsv_only = true;
                Step::say(200, "only EPSV from here on")
            }
            (Epsv::V4, true) => Step::say(522, "the control connection is of IPv6, use (2)"),
            (Epsv::V6, false) => Step::say(522, "the control connection is of IPv4, use (1)"),
            _ => self.listen(Listening::Epsv),
        }
    }

    pub(super) fn spas(&mut self) -> Step {
        if self.epsv_only {
            return Step::say(503, "after EPSV ALL only EPSV is possible");
        }
        if self.is_striped() {
            if self.is_keyed() {
                return Self::no_keys_at_nodes();
            }
            return self.listen_with(|generation, _, settings, security| Task::ListenOnNodes {
                generation,
                settings,
                security,
            });
        }
        self.listen(Listening::Spas)
    }

    /// Whether data connections use pinned keys. Each data node would have another key.
    fn is_keyed(&self) -> bool {
        self.settings.stack.as_ref().is_some_and(Stack::is_keyed)
    }

    fn no_keys_at_nodes() -> Step {
        Step::say(504, "quic and tls with a key are not available with data nodes; PASV and PORT use no data nodes")
    }

    /// Whether data nodes serve SPAS and SPOR: in extended block mode, whose blocks carry their offset.
    pub(super) fn is_striped(&self) -> bool {
        self.rules.stripes > 0 && self.settings.mode == Mode::Extended
    }

    fn listen(&mut self, answer: Listening) -> Step {
        self.listen_with(|generation, third_party, settings, security| Task::Listen {
            answer,
            generation,
            third_party,
            settings,
            security,
        })
    }

    fn listen_with(&mut self, task: impl FnOnce(u64, bool, Settings, Option<ChannelSecurity>) -> Task) -> Step {
        self.forget_data_endpoint();
        let security = match self.channel_security() {
            Ok(security) => security,
            Err(refusal) => return refusal,
        };
        let (generation, third_party) = (self.generation, self.third_party());
        Step::task(task(generation, third_party, self.settings.clone(), security))
    }

    pub(super) fn listening(&mut self, answer: Listening, addr: SocketAddr) -> Step {
        self.aim = DataEndpoint::Listen;
        let reply = match answer {
            Listening::Pasv => match print_port(addr) {
                Some(six) => Reply::new(227, format!("Entering Passive Mode ({six})")),
                None => Reply::new(425, "PASV has no form for IPv6; EPSV has"),
            },
            Listening::Epsv => Reply::new(229, format!("Entering Extended Passive Mode {}", print_epsv(addr.port()))),
            Listening::Spas => Reply::of_lines(
                229,
                ["Entering Striped Passive Mode.".to_owned(), format!(" {}", print_stripe(addr)), "End".to_owned()],
            ),
        };
        Step::Say(reply)
    }

    /// Reports where the nodes listen.
    pub(super) fn striped(&mut self, addresses: &[SocketAddr]) -> Step {
        self.aim = DataEndpoint::StripesListen;
        let first = ["Entering Striped Passive Mode.".to_owned()];
        let all = addresses.iter().map(|addr| format!(" {}", print_stripe(*addr)));
        Step::Say(Reply::of_lines(229, first.into_iter().chain(all).chain(["End".to_owned()])))
    }

    /// Forgets the data endpoint.
    pub(super) fn forget_data_endpoint(&mut self) {
        self.generation += 1;
        self.aim = DataEndpoint::None;
    }

    /// Whether this account may use a third party at this address.
    fn reaches(&self, ip: IpAddr) -> bool {
        // The front end has checked its addresses. A user who started this server could connect anywhere without it.
        let trusted = self.account().is_some_and(|account| account.keyed_third_party);
        self.is_node() || trusted || self.rules.reach.holds(ip)
    }

    pub(super) fn third_party(&self) -> bool {
        // Authenticated data connections may come from any address.
        let may = |account: &Account| account.third_party || (account.keyed_third_party && self.is_keyed());
        self.authenticates_data() || self.account().is_some_and(may)
    }
}
