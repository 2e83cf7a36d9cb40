//! The overhead of every packet on a link. A rate is that of the link (S17): a circuit of 500 Mbit/s is full
//! at 500 Mbit/s with all headers and Ethernet framing, of which TCP's payload is 94 %.

use phoebus_proto::units::BitRate;

/// Bytes that Ethernet adds to every IP packet: preamble, addresses, type, check sequence, and the gap before the next.
pub const FRAMING: u64 = 38;

/// Length of an IPv4 or IPv6 header, in bytes.
pub(crate) const fn ip_header(is_ipv6: bool) -> u64 {
    if is_ipv6 { 40 } else { 20 }
}

/// The rate of `part` bytes in each packet, when whole packets take `rate` on the link and carry `rest`
/// further bytes, framing not counted.
pub(crate) fn share(rate: BitRate, part: u64, rest: u64) -> BitRate {
    let part = part.max(1);
    let whole = u128::from(part + rest + FRAMING);
    BitRate(u64::try_from(u128::from(rate.0) * u128::from(part) / whole).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_rate_excludes_headers_and_framing() {
        let rate = BitRate(1_000_000_000);
        // 1448 bytes of TCP payload in a packet of 1500 bytes, on a link of 1 Gbit/s.
        assert_eq!(share(rate, 1448, 20 + ip_header(false) + 12).0, 941_482_444);
        assert_eq!(share(BitRate(u64::MAX), 1, 0).0, u64::MAX / 39);
        assert_eq!(share(rate, 0, 0).0, 1_000_000_000 / 39);
    }
}
