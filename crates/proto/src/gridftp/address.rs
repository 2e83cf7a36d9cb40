//! Addresses of data connections, in the three notations of FTP.
//!
//! - `PORT` and the reply to `PASV`: six numbers (RFC 959).
//! - `EPRT`: family, address and port between bars; the reply to `EPSV`: only the port (RFC 2428).
//! - `SPOR` and the reply to `SPAS`: lists of the first, and of the second for IPv6 (GFD.20).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Most stripes of a transfer.
pub const MAX_STRIPES: usize = 1024;

/// A text that does not parse as an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not {expected}")]
pub struct AddressError {
    text: String,
    expected: &'static str,
}

fn error(text: &str, expected: &'static str) -> AddressError {
    AddressError { text: text.chars().take(100).collect(), expected }
}

/// Parses `127,0,0,1,209,205`.
///
/// # Errors
/// [`AddressError`] unless the text is six numbers below 256.
pub fn parse_port(text: &str) -> Result<SocketAddr, AddressError> {
    const EXPECTED: &str = "an address and a port as six numbers with commas between";
    let numbers: Option<Vec<u8>> = text.trim().split(',').map(number).collect();
    let Some([a, b, c, d, high, low]) = numbers.as_deref() else { return Err(error(text, EXPECTED)) };
    Ok(SocketAddr::new(Ipv4Addr::new(*a, *b, *c, *d).into(), u16::from_be_bytes([*high, *low])))
}

fn number(text: &str) -> Option<u8> {
    let digits = (1..=3).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

/// Prints an IPv4 address as six numbers. Returns `None` for IPv6.
pub fn print_port(addr: SocketAddr) -> Option<String> {
    let IpAddr::V4(ip) = addr.ip().to_canonical() else { return None };
    let ([a, b, c, d], [high, low]) = (ip.octets(), addr.port().to_be_bytes());
    Some(format!("{a},{b},{c},{d},{high},{low}"))
}

/// Parses `|1|132.235.1.2|6275|` or `|2|::1|5282|`. Any other punctuation character may stand for the bar.
///
/// # Errors
/// [`AddressError`] if the text is malformed, or if family and address do not match.
pub fn parse_eprt(text: &str) -> Result<SocketAddr, AddressError> {
    let wrong = || error(text, "a family, an address and a port between bars");
    let bar = text.chars().next().filter(|c| c.is_ascii_graphic() && !c.is_ascii_alphanumeric()).ok_or_else(wrong)?;
    let parts: Vec<&str> = text.split(bar).collect();
    let ["", family, host, port, ""] = parts[..] else { return Err(wrong()) };
    let ip: IpAddr = host.parse().map_err(|_| wrong())?;
    let port = port.parse().map_err(|_| wrong())?;
    match (family, ip) {
        ("1", IpAddr::V4(_)) | ("2", IpAddr::V6(_)) => Ok(SocketAddr::new(ip, port)),
        _ => Err(wrong()),
    }
}

/// Prints an address of any family in the form of [`parse_eprt`].
pub fn print_eprt(addr: SocketAddr) -> String {
    let family = if addr.is_ipv4() { 1 } else { 2 };
    format!("|{family}|{}|{}|", addr.ip(), addr.port())
}

/// Finds the address anywhere in the text of a 227 reply. Servers differ in the text around it.
///
/// # Errors
/// [`AddressError`] if there is none.
pub fn find_pasv(text: &str) -> Result<SocketAddr, AddressError> {
    let candidates = text.split(|c: char| !(c.is_ascii_digit() || c == ','));
    let found = candidates.map(|word| word.trim_matches(',')).find_map(|word| parse_port(word).ok());
    found.ok_or_else(|| error(text, "an answer with an address of six numbers"))
}

/// Finds the port in the text of a 229 reply: `(|||6446|)`.
///
/// # Errors
/// [`AddressError`] if there is none.
pub fn find_epsv(text: &str) -> Result<u16, AddressError> {
    let wrong = || error(text, "an answer with a port between bars");
    let inner = text.rsplit_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(inner, _)| inner);
    let inner = inner.ok_or_else(wrong)?;
    let bar = inner.chars().next().ok_or_else(wrong)?;
    let parts: Vec<&str> = inner.split(bar).collect();
    let ["", "", "", port, ""] = parts[..] else { return Err(wrong()) };
    port.parse().ok().filter(|&port| port != 0).ok_or_else(wrong)
}

/// Prints a port in the form of [`find_epsv`].
pub fn print_epsv(port: u16) -> String {
    format!("(|||{port}|)")
}

/// Parses the list of addresses of `SPOR` and of the reply to `SPAS`, separated by blanks or line ends.
///
/// # Errors
/// [`AddressError`] if an address is malformed, or if there are none or more than [`MAX_STRIPES`].
pub fn parse_stripes(text: &str) -> Result<Vec<SocketAddr>, AddressError> {
    let words: Vec<&str> = text.split_ascii_whitespace().take(MAX_STRIPES + 1).collect();
    if words.is_empty() || words.len() > MAX_STRIPES {
        return Err(error(text, "a list of 1 to 1024 addresses"));
    }
    words.into_iter().map(|word| if word.starts_with('|') { parse_eprt(word) } else { parse_port(word) }).collect()
}

/// Prints one address of such a list.
pub fn print_stripe(addr: SocketAddr) -> String {
    print_port(addr).filter(|_| addr.is_ipv4()).unwrap_or_else(|| print_eprt(addr))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_found_in_replies_of_various_servers() {
        let addr: SocketAddr = "127.0.0.1:53709".parse().unwrap();
        for text in [
            "Entering Passive Mode (127,0,0,1,209,205)",
            "=127,0,0,1,209,205",
            "Entering Passive Mode 127,0,0,1,209,205.",
        ] {
            assert_eq!(find_pasv(text), Ok(addr), "{text}");
        }
        assert_eq!(find_epsv("Entering Extended Passive Mode (|||6446|)"), Ok(6446));
        assert_eq!(find_epsv("ok (!!!80!)"), Ok(80));
        assert_eq!(parse_eprt("|2|1080::8:800:200C:417A|5282|"), Ok("[1080::8:800:200c:417a]:5282".parse().unwrap()));
        let stripes = parse_stripes(" 127,0,0,1,209,205\r\n |2|::1|80|\r\n").unwrap();
        assert_eq!(stripes, [addr, "[::1]:80".parse().unwrap()]);
    }

    #[test]
    fn malformed_addresses_are_refused() {
        for text in [
            "",
            "1,2,3,4,5",
            "1,2,3,4,5,6,7",
            "1,2,3,4,5,256",
            "1,2,3,4,5,+6",
            "a,2,3,4,5,6",
            "1,,3,4,5,6",
            "1,2,3,4,5, 6",
        ] {
            assert!(parse_port(text).unwrap_err().to_string().starts_with(&format!("\"{text}\" is not an address")));
        }
        for text in
            ["", "|", "|1|::1|80|", "|2|1.2.3.4|80|", "|3|x|80|", "|1|1.2.3.4|65536|", "11112", "|1|1.2.3.4|80", "é1é"]
        {
            assert!(parse_eprt(text).is_err(), "{text}");
        }
        for text in ["", "()", "(|||0|)", "(|||x|)", "(|1|2|3|)", "(||||)", "|||80|"] {
            assert!(find_epsv(text).is_err(), "{text}");
        }
        assert!(parse_stripes("").is_err() && parse_stripes(&"1,2,3,4,5,6 ".repeat(1025)).is_err());
    }

    proptest! {
        #[test]
        fn printed_addresses_parse_back(ip: IpAddr, port in 1u16..) {
            let addr = SocketAddr::new(ip, port);
            prop_assert_eq!(parse_eprt(&print_eprt(addr)), Ok(addr));
            prop_assert_eq!(find_epsv(&print_epsv(port)), Ok(port));
            if let Some(text) = print_port(addr) {
                prop_assert_eq!(find_pasv(&format!("({text})")).map(|a| a.ip()), Ok(ip.to_canonical()));
                prop_assert_eq!(parse_stripes(&print_stripe(addr)).unwrap()[0].port(), port);
            }
        }

        #[test]
        fn parsing_never_panics(text in ".{0,40}") {
            let _ = (parse_port(&text), parse_eprt(&text), find_pasv(&text), find_epsv(&text), parse_stripes(&text));
        }
    }
}
