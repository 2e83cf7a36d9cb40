//! The head of a request (RFC 9112), read by the letter, and the password in it (RFC 7617).

use super::status::{BAD_REQUEST, METHOD, Status, VERSION};
use crate::endpoint::{Endpoint, Host};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A request that is refused before anything is opened for it.
pub(super) type Bad = (Status, &'static str);

/// What a request asks for.
pub(super) struct Connect<'a> {
    pub(super) to: Endpoint,
    /// The value of Proxy-Authorization.
    pub(super) authorization: Option<&'a [u8]>,
}

/// Reads the lines of a head.
pub(super) fn connect(head: &[u8]) -> Result<Connect<'_>, Bad> {
    let mut rest = Some(head);
    let mut line = || {
        let Some(text) = rest else { return Ok(None) };
        let end = text.windows(2).position(|two| two == b"\r\n");
        rest = end.map(|end| &text[end + 2..]);
        let line = &text[..end.unwrap_or(text.len())];
        // A line feed alone ends no line here, so that nobody sees other lines in the head.
        match line.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control()) {
            true => Ok(Some(line)),
            false => Err((BAD_REQUEST, "the head of the request has a control character")),
        }
    };
    let first = line()?.unwrap_or_default();
    let (target, version) = request_line(first)?;
    let (mut hosts, mut authorization, mut has_length) = (0, None, false);
    while let Some(line) = line()? {
        let (name, value) = field(line).ok_or((BAD_REQUEST, "a header field is malformed"))?;
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
        } else if name.eq_ignore_ascii_case(b"proxy-authorization") {
            if authorization.replace(value).is_some() {
                return Err((BAD_REQUEST, "there are two fields Proxy-Authorization"));
            }
        } else if name.eq_ignore_ascii_case(b"content-length") && value == b"0" && !has_length {
            // Some clients say that there is none.
            has_length = true;
        } else if name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err((BAD_REQUEST, "CONNECT has no content (RFC 9110, section 9.3.6)"));
        }
    }
    if hosts > 1 || hosts == 0 && version == b"HTTP/1.1" {
        return Err((BAD_REQUEST, "expected one field Host (RFC 9112, section 3.2)"));
    }
    let to =
        authority(target).ok_or((BAD_REQUEST, "expected CONNECT HOST:PORT, with brackets around an IPv6 address"))?;
    Ok(Connect { to, authorization })
}

/// The target and the version in a request line.
fn request_line(line: &[u8]) -> Result<(&[u8], &[u8]), Bad> {
    let [method, target, version] = line.split(|byte| *byte == b' ').collect::<Vec<_>>()[..] else {
        return Err((BAD_REQUEST, "expected a line such as CONNECT host.example:443 HTTP/1.1"));
    };
    if method.is_empty() || !method.iter().copied().all(is_token) || target.is_empty() {
        return Err((BAD_REQUEST, "expected a line such as CONNECT host.example:443 HTTP/1.1"));
    }
    match version {
        b"HTTP/1.1" | b"HTTP/1.0" if method == b"CONNECT" => Ok((target, version)),
        version if !version.starts_with(b"HTTP/") => {
            Err((BAD_REQUEST, "expected HTTP/1.1 at the end of the first line"))
        }
        _ if method != b"CONNECT" => {
            Err((METHOD, "this proxy takes CONNECT alone; for http:// addresses use its SOCKS5 (socks5h://)"))
        }
        _ => Err((VERSION, "expected HTTP/1.1 or HTTP/1.0")),
    }
}

/// The name and the value of a header field. No field goes on in another line (RFC 9112 §5.2).
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    (!name.is_empty() && name.iter().copied().all(is_token)).then(|| (name, value.trim_ascii()))
}

/// Whether a token may have this byte (RFC 9110 §5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The destination in `HOST:PORT`.
fn authority(text: &[u8]) -> Option<Endpoint> {
    let text = std::str::from_utf8(text).ok()?;
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
        Some(six) => Host::Addr(six?.parse::<Ipv6Addr>().ok()?.into()),
        None if host.contains(':') => return None,
        None => match host.parse::<Ipv4Addr>() {
            Ok(four) => Host::Addr(four.into()),
            Err(_) => host.parse().ok()?,
        },
    };
    let digits = port.bytes().all(|digit| digit.is_ascii_digit());
    let port = port.parse().ok().filter(|port| *port != 0 && digits)?;
    Some(Endpoint { host, port })
}

/// The name and the password in the value of Proxy-Authorization.
pub(super) fn basic(value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, rest) = value.split_at_checked(b"basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let text = STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = text.iter().position(|byte| *byte == b':')?;
    Some((text[..colon].to_vec(), text[colon + 1..].to_vec()))
}
