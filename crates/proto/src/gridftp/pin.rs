//! Certificate pins of data connections, which both ends exchange over the control connection
//! (`docs/protocol/gridftp.md`). A pin is the SHA-256 of a certificate made for the purpose. It is sent in a driver option,
//! `quic:key=sha256-…`, and in its reply.

use super::reply::Reply;
use std::fmt;
use std::str::FromStr;

/// Prefix of a pin's text form: the hash algorithm.
const PREFIX: &str = "sha256-";

/// The SHA-256 of an end's certificate in DER.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin(pub [u8; 32]);

/// A text or reply without a valid pin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The text is malformed.
    #[error("a key was expected as sha256- and 64 hexadecimal digits in lower case")]
    Text,
    /// The reply to `SITE SETNETSTACK` does not contain a pin.
    #[error("the server answers \"{said}\", and 250 {driver}:key=sha256-… was expected")]
    Answer {
        /// The server's reply.
        said: String,
        /// The requested driver.
        driver: &'static str,
    },
}

impl Pin {
    /// The text of the server's 250 reply to a stack with `driver`, with its own pin.
    pub fn answer(self, driver: &str) -> String {
        format!("{driver}:key={self}")
    }

    /// Parses the server's pin in its reply to a stack with `driver`. The reply must consist of this line only.
    ///
    /// # Errors
    /// [`PinError::Answer`]. The caller must not go on: without a pin, the data connection's peer is not authenticated.
    pub fn of_answer(driver: &'static str, reply: &Reply) -> Result<Self, PinError> {
        let line = match (&reply.lines[..], reply.code) {
            ([line], 250) => str::from_utf8(line).ok(),
            _ => None,
        };
        let pin = line.and_then(|line| line.strip_prefix(driver)?.strip_prefix(":key=")?.parse().ok());
        pin.ok_or_else(|| PinError::Answer { said: reply.to_string(), driver })
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({self})")
    }
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let digits = text.strip_prefix(PREFIX).ok_or(PinError::Text)?.as_bytes();
        if digits.len() != 64 || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(PinError::Text);
        }
        let mut pin = [0; 32];
        for (byte, pair) in pin.iter_mut().zip(digits.chunks(2)) {
            *byte = pair.iter().fold(0, |byte, digit| byte << 4 | char::from(*digit).to_digit(16).unwrap_or(0) as u8);
        }
        Ok(Self(pin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_parses_only_in_its_printed_form() {
        let pin = Pin(std::array::from_fn(|i| i as u8 * 7));
        let text = pin.to_string();
        assert_eq!((text.parse(), text.len()), (Ok(pin), 71));
        for wrong in
            ["", "sha256-", &text[..70], &format!("{text}0"), &text.to_uppercase(), &text.replace("sha256", "sha1")]
        {
            assert_eq!(wrong.parse::<Pin>(), Err(PinError::Text), "{wrong}");
        }
        let read = |code, text: &str| Pin::of_answer("quic", &Reply::new(code, text));
        assert_eq!(read(250, &pin.answer("quic")), Ok(pin));
        for (code, said) in [
            (200, pin.answer("quic")),
            (250, pin.answer("tls")),
            (250, format!("{} ", pin.answer("quic"))),
            (250, format!("OK. {}", pin.answer("quic"))),
            (250, "OK.".to_owned()),
        ] {
            assert!(read(code, &said).is_err(), "{code} {said}");
        }
        assert!(Pin::of_answer("quic", &Reply::of_lines(250, [pin.answer("quic"), "End".to_owned()])).is_err());
    }
}
