//! Version 2 (§2.2): sixteen bytes, addresses, and values with type and length.

use super::{Ends, HEADER_MAX, HeaderError, Origin, UNIQUE_ID_MAX, tlv};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What every header begins with.
pub(super) const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Length of what precedes the addresses.
const FIXED: usize = 16;
/// Version and command of a header that speaks for a client, and of one that does not.
const PROXY: u8 = 0x21;
const LOCAL: u8 = 0x20;
/// TCP over IPv4 and over IPv6, and no family.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const UNSPEC: u8 = 0x00;

/// A further value of a header: its type ([`tlv`]) and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// Its type.
    pub kind: u8,
    /// Its bytes.
    pub value: &'a [u8],
}

/// The header of a connection that is made for a client. Without `ends`, it says that the client is not known. Ends of different
/// families are both written as IPv6, an IPv4 address as IPv6 maps it (RFC 4291 §2.5.5.2).
///
/// # Errors
/// The values have no room in [`HEADER_MAX`] bytes, or a unique identifier is longer than [`UNIQUE_ID_MAX`].
pub fn encode(ends: Option<Ends>, values: &[Tlv<'_>]) -> Result<Vec<u8>, HeaderError> {
    let mut body = Vec::new();
    let family = match ends.map(|ends| (canonical(ends.client), canonical(ends.to))) {
        None => UNSPEC,
        Some((SocketAddr::V4(client), SocketAddr::V4(to))) => {
            body.extend_from_slice(&client.ip().octets());
            body.extend_from_slice(&to.ip().octets());
            TCP4
        }
        Some((client, to)) => {
            body.extend_from_slice(&as_v6(client).octets());
            body.extend_from_slice(&as_v6(to).octets());
            TCP6
        }
    };
    if let Some(Ends { client, to }) = ends {
        body.extend_from_slice(&client.port().to_be_bytes());
        body.extend_from_slice(&to.port().to_be_bytes());
    }
    for Tlv { kind, value } in values {
        if *kind == tlv::UNIQUE_ID && value.len() > UNIQUE_ID_MAX {
            return Err(HeaderError::Malformed("its unique identifier is longer than 128 bytes"));
        }
        body.push(*kind);
        body.extend_from_slice(&u16::try_from(value.len()).map_err(|_| HeaderError::TooLong)?.to_be_bytes());
        body.extend_from_slice(value);
    }
    if FIXED + body.len() > HEADER_MAX {
        return Err(HeaderError::TooLong);
    }
    let len = u16::try_from(body.len()).map_err(|_| HeaderError::TooLong)?;
    Ok([SIGNATURE, &[PROXY, family], &len.to_be_bytes(), &body].concat())
}

/// How many bytes are certainly missing.
pub(super) fn missing(header: &[u8]) -> Result<usize, HeaderError> {
    if header.get(12).is_some_and(|given| *given != PROXY && *given != LOCAL) {
        return Err(HeaderError::Malformed("its version is not 2, or its command unknown"));
    }
    let Some(&[high, low]) = header.get(14..FIXED) else { return Ok(FIXED - header.len()) };
    match FIXED + usize::from(u16::from_be_bytes([high, low])) {
        whole if whole > HEADER_MAX => Err(HeaderError::TooLong),
        whole => Ok(whole.saturating_sub(header.len())),
    }
}

/// What a complete header says.
pub(super) fn decode(header: &[u8]) -> Result<Origin, HeaderError> {
    let short = HeaderError::Malformed("it has no room for its addresses");
    let (fixed, body) = header.split_at_checked(FIXED).ok_or(short)?;
    let (command, family) = (fixed[12], fixed[13]);
    if command == LOCAL {
        // Family and content are to be ignored.
        return Ok(Origin::Relay);
    }
    if family >> 4 > 3 || family & 15 > 2 {
        return Err(HeaderError::Malformed("its address family or protocol is unknown"));
    }
    let length = match family >> 4 {
        1 => 12,
        2 => 36,
        3 => 216,
        // Nothing says where addresses of no family end.
        _ => return Ok(Origin::Unknown),
    };
    let (addresses, values) = body.split_at_checked(length).ok_or(short)?;
    check(header, values)?;
    let ends = match family {
        TCP4 => ends(addresses, |ip: [u8; 4]| Ipv4Addr::from(ip).into()),
        TCP6 => ends(addresses, |ip: [u8; 16]| IpAddr::from(ip).to_canonical()),
        _ => return Ok(Origin::Unknown),
    };
    ends.map(Origin::Client).ok_or(short)
}

/// Two addresses of `N` bytes, and their ports.
fn ends<const N: usize>(bytes: &[u8], ip: impl Fn([u8; N]) -> IpAddr) -> Option<Ends> {
    let (client, rest) = bytes.split_first_chunk::<N>()?;
    let (to, rest) = rest.split_first_chunk::<N>()?;
    let (client_port, rest) = rest.split_first_chunk::<2>()?;
    let to_port = rest.first_chunk::<2>()?;
    let end = |address: &[u8; N], port: &[u8; 2]| SocketAddr::new(ip(*address), u16::from_be_bytes(*port));
    Some(Ends { client: end(client, client_port), to: end(to, to_port) })
}

/// Checks that the `values` at the end of `header` are whole, and their checksum, if there is one.
fn check(header: &[u8], values: &[u8]) -> Result<(), HeaderError> {
    let mut rest = values;
    while !rest.is_empty() {
        let short = HeaderError::Malformed("a value of it is cut short");
        let (&[kind, high, low], after) = rest.split_first_chunk::<3>().ok_or(short)?;
        let (value, after) = after.split_at_checked(usize::from(u16::from_be_bytes([high, low]))).ok_or(short)?;
        match kind {
            tlv::CRC32C => {
                let at = header.len() - after.len() - value.len();
                let (before, behind) = (&header[..at], &header[header.len() - after.len()..]);
                let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]), behind);
                if value != crc.to_be_bytes() {
                    return Err(HeaderError::Malformed("its checksum is wrong"));
                }
            }
            tlv::UNIQUE_ID if value.len() > UNIQUE_ID_MAX => {
                return Err(HeaderError::Malformed("its unique identifier is longer than 128 bytes"));
            }
            _ => {}
        }
        rest = after;
    }
    Ok(())
}

/// An IPv4 address in IPv6's form is an IPv4 address.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

fn as_v6(addr: SocketAddr) -> Ipv6Addr {
    match addr.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
