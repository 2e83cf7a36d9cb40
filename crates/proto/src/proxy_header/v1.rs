//! Version 1 (§2.1): a line of text.

use super::{Ends, HeaderError, Origin};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What every header begins with.
pub(super) const BEGINNING: &[u8] = b"PROXY ";
/// Longest line in bytes, with its end.
const LINE_MAX: usize = 107;

/// How many bytes are certainly missing.
pub(super) fn missing(header: &[u8]) -> Result<usize, HeaderError> {
    let missing = match header {
        [.., b'\r', b'\n'] => 0,
        [.., b'\r'] => 1,
        _ => 2,
    };
    if header.len() + missing > LINE_MAX { Err(HeaderError::EndlessLine) } else { Ok(missing) }
}

/// What a complete line says.
pub(super) fn decode(header: &[u8]) -> Result<Origin, HeaderError> {
    let malformed = HeaderError::Malformed;
    let line = header.strip_prefix(BEGINNING).and_then(|rest| rest.strip_suffix(b"\r\n"));
    let line = line.and_then(|line| std::str::from_utf8(line).ok()).ok_or(malformed("its line is no text"))?;
    let words: Vec<&str> = line.split(' ').collect();
    let is_v4 = match words[..] {
        // What follows is to be ignored.
        ["UNKNOWN", ..] => return Ok(Origin::Unknown),
        ["TCP4", ..] => true,
        ["TCP6", ..] => false,
        _ => return Err(malformed("it names no protocol such as TCP4")),
    };
    let [_, client, to, client_port, to_port] = words[..] else {
        return Err(malformed("its line has not two addresses and two ports"));
    };
    let address = |text: &str| -> Option<IpAddr> {
        if is_v4 {
            text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
        } else {
            text.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
        }
    };
    let end = |ip: &str, port: &str| {
        // Parsing would accept a sign, and leading zeros are not allowed (§2.1).
        let is_number = port.bytes().all(|digit| digit.is_ascii_digit()) && (port == "0" || !port.starts_with('0'));
        let port = port.parse().ok().filter(|_| is_number).ok_or(malformed("a port is no number up to 65535"))?;
        let ip = address(ip).ok_or(malformed("an address is none of its protocol"))?;
        Ok(SocketAddr::new(ip, port))
    };
    Ok(Origin::Client(Ends { client: end(client, client_port)?, to: end(to, to_port)? }))
}
