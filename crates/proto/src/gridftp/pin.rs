//! Keys of data connections, as the two ends of a control connection tell them to each other (`docs/protocol/gridftp.md`): the
//! SHA-256 of a certificate that is made for the purpose, in an option of a driver, `quic:key=sha256-…`, and in its answer.

use super::reply::Reply;
use std::fmt;
use std::str::FromStr;

/// How it begins, which says what it is.
const SORT: &str = "sha256-";

/// The SHA-256 of an end's certificate, as it is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin(pub [u8; 32]);

/// What is no such thing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The text is another.
    #[error("a key was expected as sha256- and 64 hexadecimal digits in lower case")]
    Text,
    /// The answer to what asked for a stack is another.
    #[error("the server answers \"{said}\", and 250 {driver}:key=sha256-… was expected")]
    Answer {
        /// What it says.
        said: String,
        /// The driver that was asked for.
        driver: &'static str,
    },
}

impl Pin {
    /// What a server says after 250 to a stack with `driver`, the key being its own.
    pub fn answer(self, driver: &str) -> String {
        format!("{driver}:key={self}")
    }

    /// The server's key, in its answer to a stack with `driver`: this line and no other.
    ///
    /// # Errors
    /// [`PinError::Answer`]. Whoever goes on without it would not know whom data goes to.
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
        f.write_str(SORT)?;
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
        let digits = text.strip_prefix(SORT).ok_or(PinError::Text)?.as_bytes();
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
    fn a_key_is_read_as_it_is_printed_and_not_otherwise() {
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
