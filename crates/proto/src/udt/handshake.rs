//! The body of handshake packets: 48 bytes.
//!
//! 1. The client sends [`Request::Induction`] with destination 0. The listener answers with a cookie.
//! 2. The client sends [`Request::Conclusion`] with the cookie. The listener answers with [`Request::Conclusion`], its
//!    own socket id, and the client's initial sequence number, which both directions then use.
//!
//! In a rendezvous, two sockets exchange [`Request::Rendezvous`], [`Request::Conclusion`] and [`Request::Agreement`]
//! without a cookie.

use super::seq::Seq;
use super::words::{words, write_words};
use std::net::IpAddr;

/// Length of the body in bytes.
pub(super) const LEN: usize = 48;
/// The protocol version of libudt 4.
pub(super) const VERSION: u32 = 4;
/// Smallest MSS, in bytes: IP, UDP and UDT headers and a handshake.
pub const MSS_MIN: u32 = 28 + 16 + LEN as u32;
/// Largest MSS, in bytes: the longest IPv4 packet.
pub const MSS_MAX: u32 = 65_535;

/// One handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// The protocol version, 4; 0 in some answers of libudt.
    pub version: u32,
    /// 1 for streams, 2 for messages; 0 in some answers of libudt.
    pub kind: u32,
    /// The sender's first sequence number.
    pub initial_seq: Seq,
    /// Largest IP packet that the sender of the handshake accepts, in bytes. IPv6 headers count as long as IPv4
    /// headers.
    pub mss: u32,
    /// Size of its receive buffer, in packets.
    pub flow_window: u32,
    /// Type of the request or answer.
    pub request: Request,
    /// The sender's socket id.
    pub socket: u32,
    /// The listener's cookie, or 0.
    pub cookie: u32,
    /// The receiver's address as the sender sees it, in one of two byte orders: see [`sees`](Self::sees).
    pub peer_ip: [u8; 16],
}

/// Type of a handshake packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A client's first packet, and the answer with the cookie.
    Induction,
    /// A packet with the cookie, and the answer that opens the connection; the second step of a rendezvous.
    Conclusion,
    /// The first step of a rendezvous.
    Rendezvous,
    /// The last step of a rendezvous.
    Agreement,
    /// A refusal, or an unknown type.
    Other(i32),
}

impl Request {
    /// The refusal that libudt sends.
    pub const REFUSED: Self = Self::Other(1002);

    /// Whether the packet refuses the connection.
    pub const fn is_refusal(self) -> bool {
        matches!(self, Self::Other(1000..))
    }

    const fn number(self) -> i32 {
        match self {
            Self::Induction => 1,
            Self::Conclusion => -1,
            Self::Rendezvous => 0,
            Self::Agreement => -2,
            Self::Other(number) => number,
        }
    }

    const fn from_number(number: i32) -> Self {
        match number {
            1 => Self::Induction,
            -1 => Self::Conclusion,
            0 => Self::Rendezvous,
            -2 => Self::Agreement,
            number => Self::Other(number),
        }
    }
}

impl Handshake {
    /// Decodes a body; `None` if it is too short. Further bytes are padding.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<LEN>()?;
        let [version, kind, initial_seq, mss, flow_window, request, socket, cookie] = words(bytes);
        let mut peer_ip = [0; 16];
        peer_ip.copy_from_slice(&bytes[32..]);
        Some(Self {
            version,
            kind,
            initial_seq: Seq::new(initial_seq),
            mss,
            flow_window,
            request: Request::from_number(request as i32),
            socket,
            cookie,
            peer_ip,
        })
    }

    pub(super) fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let request = self.request.number() as u32;
        let (seq, out) = (self.initial_seq.get(), out.get_mut(..LEN)?);
        let fields = [self.version, self.kind, seq, self.mss, self.flow_window, request, self.socket, self.cookie];
        write_words(out, &fields)?;
        out[32..].copy_from_slice(&self.peer_ip);
        Some(LEN)
    }

    /// The field for `ip`, with the words of the address in the byte order of libudt on little-endian machines.
    pub fn peer_ip(ip: IpAddr) -> [u8; 16] {
        let mut field = [0; 16];
        match ip.to_canonical() {
            IpAddr::V4(ip) => field[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => field = ip.octets(),
        }
        swapped(field)
    }

    /// Whether the peer sees this end's address as `ip`, in either byte order. If not, a NAT is on the path.
    pub fn sees(&self, ip: IpAddr) -> bool {
        let field = Self::peer_ip(ip);
        self.peer_ip == field || self.peer_ip == swapped(field)
    }
}

fn swapped(mut field: [u8; 16]) -> [u8; 16] {
    field.chunks_exact_mut(4).for_each(<[u8]>::reverse);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Handshake {
        Handshake {
            version: VERSION,
            kind: 1,
            initial_seq: Seq::MAX,
            mss: 1500,
            flow_window: 8192,
            request: Request::Conclusion,
            socket: 77,
            cookie: 0xdead_beef,
            peer_ip: Handshake::peer_ip("192.0.2.1".parse().unwrap()),
        }
    }

    #[test]
    fn handshake_decodes_back_and_padding_is_ignored() {
        let mut wire = [0xff; LEN + 3];
        assert_eq!(request().encode(&mut wire), Some(LEN));
        assert_eq!(wire[20..24], [0xff; 4], "the request type is signed");
        assert_eq!(Handshake::decode(&wire), Some(request()));
        assert_eq!(Handshake::decode(&wire[..LEN - 1]), None);
        assert_eq!(request().encode(&mut wire[..LEN - 1]), None);
    }

    #[test]
    fn peer_address_matches_in_both_byte_orders() {
        for ip in ["192.0.2.1", "2001:db8::1:2"].map(|ip| ip.parse().unwrap()) {
            let mut seen = Handshake { peer_ip: Handshake::peer_ip(ip), ..request() };
            assert!(seen.sees(ip));
            seen.peer_ip = swapped(seen.peer_ip);
            assert!(seen.sees(ip));
            assert!(!seen.sees("198.51.100.9".parse().unwrap()));
        }
        assert_eq!(request().peer_ip[..4], [1, 2, 0, 192]);
    }

    #[test]
    fn request_numbers_convert_back() {
        for number in [-3, -2, -1, 0, 1, 2, 1002, 1004] {
            assert_eq!(Request::from_number(number).number(), number);
        }
        assert!(Request::REFUSED.is_refusal() && !Request::Induction.is_refusal());
    }
}
