//! The values of single settings: each parser tells what it expected.

use phoebus_proto::endpoint::NAME_MAX;
use phoebus_proto::units::BitRate;
use std::fmt;
use std::path::PathBuf;

/// Longest name of a congestion control (TCP_CA_NAME_MAX of linux/net/tcp.h, less the final zero).
pub const CONGESTION_CONTROL_MAX: usize = 15;

pub(super) fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

pub(super) fn switch(value: &str) -> Result<bool, String> {
    match value {
        "1" | "yes" | "true" | "on" => Ok(true),
        "0" | "no" | "false" | "off" => Ok(false),
        _ => Err(format!("\"{value}\" is not 1 or 0")),
    }
}

pub(super) fn bandwidth(value: &str) -> Result<BitRate, String> {
    match value.parse::<BitRate>().map_err(text)? {
        BitRate(0) => Err("a bandwidth of 0 lets nothing through; expected a rate such as 100mbit".to_owned()),
        rate => Ok(rate),
    }
}

pub(super) fn congestion_control(value: &str) -> Result<Option<String>, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match value {
        "system" => Ok(None),
        _ if value.len() <= CONGESTION_CONTROL_MAX && value.chars().all(is_name) => Ok(Some(value.to_owned())),
        _ => Err(format!("\"{value}\" is not a congestion control such as bbr or cubic, or system")),
    }
}

/// One `@` with text on both sides, no blanks or control characters. The mail system judges everything else.
pub(super) fn mail_address(value: &str) -> Result<String, String> {
    let plain = value.len() <= NAME_MAX && !value.contains(|c: char| c.is_whitespace() || c.is_control());
    match value.split_once('@') {
        Some((user, host)) if plain && !user.is_empty() && !host.is_empty() && !host.contains('@') => {
            Ok(value.to_owned())
        }
        _ => Err(format!("\"{value}\" is not an e-mail address such as ada@example.org")),
    }
}

/// Absolute names only: programs change their directory, so a relative name would mean many files.
pub(super) fn file_name(value: &str) -> Result<PathBuf, String> {
    match value.starts_with('/') {
        true => Ok(PathBuf::from(value)),
        false => Err(format!("\"{value}\" is not an absolute file name")),
    }
}
