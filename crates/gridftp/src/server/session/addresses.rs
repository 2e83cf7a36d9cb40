//! PORT, EPRT, SPOR, PASV, EPSV, SPAS: between whom data goes (RFC 959, 2428, GFD.20).
//!
//! The server connects to the control connection's peer and to nobody else, unless the account may move data between third
//! parties (RFC 2577: a server that connects wherever it is told attacks others for its clients). These have public addresses, or such
//! as the configuration names (`data.third_party_to`).

use super::super::drivers::Stack;
use super::task::{Account, Aim, Listening, Task};
use super::{Session, Settings, Step};
use crate::data::{Guard, Mode};
use phoebus_proto::gridftp::address::{print_epsv, print_port, print_stripe};
use phoebus_proto::gridftp::command::Epsv;
use phoebus_proto::gridftp::reply::Reply;
use std::net::{IpAddr, SocketAddr};

/// Ports below this are those of services, which nobody listens on for data.
const FIRST_PORT: u16 = 1024;

impl Session {
    pub(super) fn port(&mut self, mut to: Vec<SocketAddr>, aim: impl FnOnce(Vec<SocketAddr>) -> Aim) -> Step {
        if self.epsv_only {
            return Step::say(503, "after EPSV ALL only EPSV is possible");
        }
        // What a front end says it has looked at.
        let third_party = self.third_party() || self.is_node();
        let peer = self.peer;
        // What is looked at here is what is connected to: no other way of writing an address gets past.
        to.iter_mut().for_each(|addr| addr.set_ip(addr.ip().to_canonical()));
        // lftp does not know where it is reached by IPv6, and says `::`. Taken as it is, that would be this host.
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

    /// SPOR to data nodes.
    pub(super) fn spor(&mut self, to: Vec<SocketAddr>) -> Step {
        if self.is_keyed() {
            return Self::no_keys_at_nodes();
        }
        self.port(to, Aim::StripesConnect)
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
            return self.listen_with(|generation, _, settings, guard| Task::ListenOnNodes {
                generation,
                settings,
                guard,
            });
        }
        self.listen(Listening::Spas)
    }

    /// Whether data goes between ends that know each other by keys, of which each data node would have another.
    fn is_keyed(&self) -> bool {
        self.settings.stack.as_ref().is_some_and(Stack::is_keyed)
    }

    fn no_keys_at_nodes() -> Step {
        Step::say(504, "quic and tls with a key are not to be had with data nodes; PASV and PORT do without those")
    }

    /// Whether data nodes move what SPAS and SPOR are about: in extended block mode, where blocks say where they belong.
    pub(super) fn is_striped(&self) -> bool {
        self.rules.stripes > 0 && self.settings.mode == Mode::Extended
    }

    fn listen(&mut self, answer: Listening) -> Step {
        self.listen_with(|generation, third_party, settings, guard| Task::Listen {
            answer,
            generation,
            third_party,
            settings,
            guard,
        })
    }

    fn listen_with(&mut self, task: impl FnOnce(u64, bool, Settings, Option<Guard>) -> Task) -> Step {
        self.aim_at_nothing();
        let guard = match self.guard() {
            Ok(guard) => guard,
            Err(refusal) => return refusal,
        };
        let (generation, third_party) = (self.generation, self.third_party());
        Step::task(task(generation, third_party, self.settings.clone(), guard))
    }

    pub(super) fn listening(&mut self, answer: Listening, addr: SocketAddr) -> Step {
        self.aim = Aim::Listen;
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

    /// The nodes listen.
    pub(super) fn striped(&mut self, addresses: &[SocketAddr]) -> Step {
        self.aim = Aim::StripesListen;
        let first = ["Entering Striped Passive Mode.".to_owned()];
        let all = addresses.iter().map(|addr| format!(" {}", print_stripe(*addr)));
        Step::Say(Reply::of_lines(229, first.into_iter().chain(all).chain(["End".to_owned()])))
    }

    /// Forgets where data was to go.
    pub(super) fn aim_at_nothing(&mut self) {
        self.generation += 1;
        self.aim = Aim::None;
    }

    /// Whether data connections may be made to a third party at this address.
    fn reaches(&self, ip: IpAddr) -> bool {
        // What a front end names it has looked at. Whoever has started this server for himself could connect there himself.
        let trusted = self.account().is_some_and(|account| account.keyed_third_party);
        self.is_node() || trusted || self.rules.reach.holds(ip)
    }

    pub(super) fn third_party(&self) -> bool {
        // Who has to prove who he is may come from anywhere.
        let may = |account: &Account| account.third_party || (account.keyed_third_party && self.is_keyed());
        self.is_guarded() || self.account().is_some_and(may)
    }
}
