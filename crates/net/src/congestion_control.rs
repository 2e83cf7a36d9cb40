//! The names of congestion controls (S14), as written in a configuration file.
//!
//! Who implements them: the kernel (TCP), `udt/settings.rs` (UDT), `quic/settings.rs` (QUIC).

use std::fmt;
use std::str::FromStr;

/// A congestion control (S14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CongestionControl {
    /// `bbr` where the kernel permits it, because random loss costs it little; otherwise the system's
    /// default.
    #[default]
    Auto,
    /// The system's default.
    System,
    /// BBR: paced by measured bandwidth and round-trip time.
    Bbr,
    /// CUBIC (RFC 9438).
    Cubic,
    /// NewReno (RFC 6582).
    Reno,
    /// Model-based control, available on UDT and QUIC only, and their `auto`: it treats loss as congestion
    /// only while packets queue, and so fills long paths with loss.
    Model,
    /// UDT's own control (DAIMD), for circuits with little loss.
    Native,
    /// UDT at the profile's rate regardless of loss: for a circuit that nobody else uses.
    Fixed,
}

impl CongestionControl {
    const NAMES: [(&'static str, Self); 8] = [
        ("auto", Self::Auto),
        ("system", Self::System),
        ("bbr", Self::Bbr),
        ("cubic", Self::Cubic),
        ("reno", Self::Reno),
        ("model", Self::Model),
        ("native", Self::Native),
        ("fixed", Self::Fixed),
    ];

    /// The kernel's name of the congestion control, if one is requested by name.
    pub fn kernel_name(self) -> Option<&'static str> {
        match self {
            Self::Auto | Self::Bbr => Some("bbr"),
            Self::Cubic => Some("cubic"),
            Self::Reno => Some("reno"),
            Self::System | Self::Model | Self::Native | Self::Fixed => None,
        }
    }

    /// Whether UDT, but not TCP, offers this congestion control.
    pub fn is_udt_specific(self) -> bool {
        matches!(self, Self::Model | Self::Native | Self::Fixed)
    }
}

impl FromStr for CongestionControl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        found.ok_or_else(|| {
            format!("\"{text}\" is not one of auto, system, bbr, cubic and reno, or of UDT's model, native and fixed")
        })
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES.iter().find(|(_, value)| value == self).map_or("auto", |(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_as_they_are_parsed() {
        for text in ["auto", "system", "bbr", "cubic", "reno", "model", "native", "fixed"] {
            assert_eq!(text.parse::<CongestionControl>().unwrap().to_string(), text);
        }
        assert!("vegas".parse::<CongestionControl>().unwrap_err().contains("bbr, cubic and reno"));
    }
}
