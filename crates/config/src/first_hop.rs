//! The transport of the hop to the first gateway: the setting `PHOEBUS_FIRST_HOP`.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

/// Transport and port of the first hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FirstHop {
    /// The transport.
    pub by: By,
    /// The gateway's port for this transport, if it differs from the port in the gateway's address.
    pub port: Option<NonZeroU16>,
}

/// Transports of a first hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// The program's own TCP connection, without an agent.
    Tcp,
    /// TLS on TCP.
    Tls,
    /// QUIC.
    Quic,
    /// TLS on UDT.
    Udt,
    /// The first of QUIC, UDT and TLS that connects, and the program's own TCP connection if none does.
    Auto,
}

impl By {
    const ALL: [Self; 5] = [Self::Tcp, Self::Tls, Self::Quic, Self::Udt, Self::Auto];

    /// The name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Quic => "quic",
            Self::Udt => "udt",
            Self::Auto => "auto",
        }
    }
}

impl FirstHop {
    /// Whether the hop fails rather than falls back when this transport is not available.
    pub fn is_strict(self) -> bool {
        self.by != By::Auto
    }
}

impl FromStr for FirstHop {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, port) = text.split_once('/').map_or((text, None), |(name, port)| (name, Some(port)));
        let by = By::ALL.into_iter().find(|by| by.name() == name);
        let port = port.map(|port| port.parse::<NonZeroU16>()).transpose();
        match (by, port) {
            (Some(By::Tcp | By::Auto), Ok(Some(_))) | (None, _) | (_, Err(_)) => Err(format!(
                "\"{text}\" is not a first hop: tcp, tls, quic, udt or auto, or one with a port as in udt/5007"
            )),
            (Some(by), Ok(port)) => Ok(Self { by, port }),
        }
    }
}

impl fmt::Display for FirstHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.by.name())?;
        self.port.map_or(Ok(()), |port| write!(f, "/{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_hops_are_read_and_written() {
        for text in ["tcp", "tls", "quic", "udt", "auto", "udt/5007", "tls/443"] {
            assert_eq!(text.parse::<FirstHop>().unwrap().to_string(), text);
        }
        for text in ["", "sctp", "quic/", "quic/0", "quic/70000", "tcp/5006", "auto/1", "QUIC"] {
            let why = text.parse::<FirstHop>().unwrap_err();
            assert!(why.contains("tcp, tls, quic, udt or auto"), "{why}");
        }
    }
}
