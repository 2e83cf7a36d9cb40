//! The way between the two ends of a transfer: where datagrams go, and whether they get through
//! (`docs/protocol/object.md` §4).

use super::port::{Port, path_mtu};
use super::seal::{End, Sealer, Secret};
use crate::datagram::Sent;
use phoebus_proto::object::packet::{HEADER_LEN, Header};
use phoebus_proto::object::{Answering, Checking, Seal, Shape};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Why a transfer has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Datagrams do not get through, so nothing was sent: a firewall may drop them. The text is a sentence.
    Closed(String),
    /// Anything else, as a sentence.
    Other(String),
}

/// The way to the peer, as the end sees it that has made the control connection: it checks.
#[derive(Debug)]
pub struct CheckedPath {
    checking: Checking,
    out_seal: Sealer,
    in_seal: Sealer,
    to: SocketAddr,
    /// A check has as many bytes as a packet.
    packet_len: usize,
    within: Duration,
}

/// The way to the peer.
#[derive(Debug)]
pub enum Path {
    /// This end has made the control connection.
    Connected(CheckedPath),
    /// The peer has.
    Accepted(AcceptedPath),
}

/// The way to a peer that has made the control connection. Its datagrams come from any port.
#[derive(Debug)]
pub struct AcceptedPath {
    answering: Answering,
    out_seal: Sealer,
    in_seal: Sealer,
    peer: IpAddr,
    /// Bytes of an answer: as many as of a packet if this end sends, so that packets are known to get through.
    answer_len: usize,
    /// Where the latest intact datagram came from.
    to: Option<SocketAddr>,
    /// For how long the first check may take, and when that is over.
    patience: Option<(Duration, Duration)>,
}

impl Path {
    /// The path to `to` and back. Sends the first check now, so that its answer may be there when the control stream has told that
    /// the peer agrees. Without an answer `within` this time, the transfer fails.
    pub fn connected(
        port: &Port,
        to: SocketAddr,
        (shape, seal, secret): (Shape, Seal, &Secret),
        within: Duration,
    ) -> Self {
        let mut path = CheckedPath {
            checking: Checking::new(port.now(), shape.transfer, within),
            out_seal: Sealer::new(seal, secret, End::Checking),
            in_seal: Sealer::new(seal, secret, End::Answering),
            to,
            packet_len: shape.packet_len as usize,
            within,
        };
        // What the network refuses now, it will refuse again.
        let _ = path.check(port);
        Self::Connected(path)
    }

    /// The path to a peer that has connected from `peer`, and checks. `within` this time, a check has to come if this end is to
    /// send.
    pub fn accepted(
        port: &Port,
        peer: IpAddr,
        (shape, seal, secret): (Shape, Seal, &Secret),
        within: Option<Duration>,
    ) -> Self {
        Self::Accepted(AcceptedPath {
            answering: Answering::new(shape.transfer),
            out_seal: Sealer::new(seal, secret, End::Answering),
            in_seal: Sealer::new(seal, secret, End::Checking),
            peer: peer.to_canonical(),
            answer_len: if within.is_some() { shape.packet_len as usize } else { 0 },
            to: None,
            patience: within.map(|within| (within, port.now().saturating_add(within))),
        })
    }

    /// Checks with packets of this length from now on, because the peer has accepted shorter ones than were proposed.
    pub fn shorten(&mut self, packet_len: u32) {
        if let Self::Connected(path) = self {
            path.packet_len = path.packet_len.min(packet_len as usize);
        }
    }

    /// Begins to wait for the peer, which has agreed to the transfer by now.
    pub(super) fn begin(&mut self, port: &Port) {
        let now = port.now();
        match self {
            Self::Connected(path) => path.checking.restart(now, path.within),
            Self::Accepted(path) => {
                path.patience = path.patience.map(|(within, _)| (within, now.saturating_add(within)));
            }
        }
    }

    /// Where datagrams go, once that is known.
    pub(super) fn to(&self) -> Option<SocketAddr> {
        match self {
            Self::Connected(path) => Some(path.to),
            Self::Accepted(path) => path.to,
        }
    }

    /// Whether datagrams are known to get through.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Connected(path) => path.checking.is_answered(),
            Self::Accepted(path) => path.to.is_some(),
        }
    }

    /// Whether `from` may be the peer. Others' datagrams are dropped, so that nobody makes this end answer somebody else.
    pub(super) fn is_peer(&self, from: SocketAddr) -> bool {
        let peer = match self {
            Self::Connected(path) => path.to.ip().to_canonical(),
            Self::Accepted(path) => path.peer,
        };
        from.ip().to_canonical() == peer
    }

    /// Records that an intact datagram of the peer's came from there.
    pub(super) fn heard(&mut self, from: SocketAddr) {
        match self {
            Self::Connected(path) => path.checking.heard(),
            Self::Accepted(path) => path.to = Some(from),
        }
    }

    /// Processes a check or the answer to one.
    pub(super) fn datagram(&mut self, port: &Port, header: &Header, datagram: &mut [u8], from: SocketAddr) {
        match self {
            Self::Connected(path) => path.datagram(header, datagram),
            Self::Accepted(path) => path.datagram(port, header, datagram, from),
        }
    }

    /// Does what is due. Returns when there will be more.
    ///
    /// # Errors
    /// Datagrams do not get through.
    pub(super) fn poll(&mut self, port: &Port) -> Result<Option<Duration>, Failure> {
        match self {
            Self::Connected(path) => path.check(port),
            Self::Accepted(path) => path.wait(port),
        }
    }
}

impl CheckedPath {
    fn datagram(&mut self, header: &Header, datagram: &mut [u8]) {
        if self.checking.expects(header) && self.in_seal.open(header, &mut datagram[HEADER_LEN..]).is_some() {
            self.checking.heard();
        }
    }

    fn check(&mut self, port: &Port) -> Result<Option<Duration>, Failure> {
        let now = port.now();
        if self.checking.is_closed(now) {
            let (to, seconds) = (self.to, self.within.as_secs());
            // What routers say of a path may be forged, so silence has to agree.
            let headers = port.prefix_len() + HEADER_LEN + self.out_seal.len() + if to.is_ipv6() { 48 } else { 28 };
            if let Some(mtu) = path_mtu(to).filter(|mtu| (*mtu as usize) < self.packet_len + headers) {
                return Err(Failure::Closed(format!(
                    "packets of {} bytes to {to} got no answer, and routers say that the path carries {mtu} bytes with all headers",
                    self.packet_len
                )));
            }
            return Err(Failure::Closed(match port.is_relayed() {
                true => format!(
                    "datagrams (UDP) by way of the gateway at {to} got no answer from the server within {seconds} s; a firewall may drop \
                     them, or the answers, before that gateway or behind it"
                ),
                false => format!(
                    "datagrams (UDP) to {to} got no answer within {seconds} s; a firewall may drop them, or the answers"
                ),
            }));
        }
        if let Some(header) = self.checking.poll_transmit(now) {
            let mut out = header.encode().to_vec();
            out.resize(HEADER_LEN + self.packet_len + self.out_seal.len(), 0);
            if self.out_seal.seal(&header, &mut out)
                && let Sent::Refused(error) = port.send(self.to, &out, out.len())
                && error.raw_os_error() == Some(libc::EMSGSIZE)
            {
                return Err(too_long(self.to, out.len(), self.packet_len));
            }
        }
        Ok(self.checking.poll_timeout())
    }
}

impl AcceptedPath {
    fn datagram(&mut self, port: &Port, header: &Header, datagram: &mut [u8], from: SocketAddr) {
        let is_check =
            self.answering.expects(header) && self.in_seal.open(header, &mut datagram[HEADER_LEN..]).is_some();
        if !is_check {
            return;
        }
        self.to = Some(from);
        let answer = self.answering.answer(header);
        let mut out = answer.encode().to_vec();
        out.resize(HEADER_LEN + self.answer_len + self.out_seal.len(), 0);
        if self.out_seal.seal(&answer, &mut out) {
            // The peer checks again.
            let _ = port.send(from, &out, out.len());
        }
    }

    fn wait(&self, port: &Port) -> Result<Option<Duration>, Failure> {
        let Some((within, until)) = self.patience.filter(|_| self.to.is_none()) else { return Ok(None) };
        if port.now() < until {
            return Ok(Some(until));
        }
        let (peer, seconds, own) = (self.peer, within.as_secs(), port.local_addr().port());
        Err(Failure::Closed(format!(
            "no datagram (UDP) of {peer} came to port {own} within {seconds} s; a firewall may drop them"
        )))
    }
}

/// The failure of a transfer whose packets the path does not carry.
pub(super) fn too_long(to: SocketAddr, datagram: usize, packet: usize) -> Failure {
    Failure::Other(format!(
        "the path to {to} does not carry datagrams of {datagram} bytes; packets of {packet} bytes are too long for it"
    ))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(sentence) | Self::Other(sentence) => f.write_str(sentence),
        }
    }
}

impl std::error::Error for Failure {}

impl From<String> for Failure {
    fn from(sentence: String) -> Self {
        Self::Other(sentence)
    }
}
