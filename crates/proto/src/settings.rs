//! What a client is told by its user and its administrator (P30, P32, P38): variables, and files of the same names.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `PHOEBUS_GW` | the first gateway, `host/port`; its routes choose the rest | none: all connections are direct |
//! | `PHOEBUS_PATH` | the whole path, `host/port,host/port`; stands in for `PHOEBUS_GW` | |
//! | `PHOEBUS_ONLY`, `PHOEBUS_EXCEPT` | which destinations go through gateways ([`crate::select`]) | all but this host's own |
//! | `PHOEBUS_USER` | an e-mail address for anonymous sessions (P26) | none |
//! | `PHOEBUS_DISABLE` | `1`: as if Phoebus were not there | `0` |
//! | `PHOEBUS_CC` | congestion control of the first hop, or `system` to leave it alone | `bbr`, where it is permitted |
//! | `PHOEBUS_BYPASS_RTT` | destinations whose path measured a shorter round trip go direct (S26); `0`: none | `0` |
//! | `PHOEBUS_FALLBACK` | `1`: go direct when the first gateway cannot be reached | `0` |
//! | `PHOEBUS_REPORT` | a file to which each session's report is appended, one line of JSON each | none |
//! | `PHOEBUS_VERBOSE` | `1`: say on standard error what happens | `0` |
//! | `PHOEBUS_FIRST_HOP` | what carries the first hop: `quic`, `udt`, `tls` or `auto` by way of an agent, `tcp` without one ([`crate::agent`]) | an agent that runs, otherwise `tcp` |
//! | `PHOEBUS_CA` | the authorities that may vouch for the first gateway, a PEM file | none |
//! | `PHOEBUS_CERT`, `PHOEBUS_KEY` | this user's certificate and its key, PEM files, for gateways that want to see one | none |
//! | `PHOEBUS_BANDWIDTH` | how much the gateways are asked to keep free for each session, such as `100mbit` | none |
//! | `PHOEBUS_AGENT_IDLE` | how long an agent that nobody uses waits before it goes | `5m` |
//! | `PHOEBUS_CACHE` | the file that remembers round trips for `PHOEBUS_BYPASS_RTT` | `~/.cache/phoebus/bypass` |
//!
//! A file has a line `NAME=value` for each setting, empty lines, and comments that begin with `#`. The environment stands
//! before the user's file, that before the administrator's. A file that is wrong is refused as a whole, with the line.

use crate::endpoint::{Endpoint, NAME_MAX};
use crate::first_hop::FirstHop;
use crate::select::Selection;
use crate::text::TextError;
use crate::units::{BitRate, Span};
use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The administrator's file.
pub const ADMINISTRATOR_FILE: &str = "/etc/phoebus/client.conf";
/// The congestion control asked for on the first hop: of those in Linux the one that loss hurts least. Unprivileged
/// programs get it only where `net.ipv4.tcp_allowed_congestion_control` lists it, and the report says what they got.
pub const DEFAULT_CONGESTION_CONTROL: &str = "bbr";
/// Longest name of a congestion control (TCP_CA_NAME_MAX of linux/net/tcp.h, less the final zero).
pub const CONGESTION_CONTROL_MAX: usize = 15;

/// The settings of a client. `Default` is a client without gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Gateways to go through, the first hop first; empty: everything goes direct. One gateway may choose further ones.
    pub path: Vec<Endpoint>,
    /// Only these destinations go through gateways.
    pub only: Option<Selection>,
    /// These do not.
    pub except: Option<Selection>,
    /// E-mail address of anonymous sessions (P26).
    pub user: Option<String>,
    /// Whether Phoebus is switched off.
    pub disabled: bool,
    /// Congestion control to ask for on the first hop; `None` leaves the system's.
    pub congestion_control: Option<String>,
    /// Destinations with a shorter round trip go direct (S26); zero: none.
    pub bypass_rtt: Duration,
    /// Whether to go direct when the first gateway cannot be reached.
    pub fallback: bool,
    /// Where session reports are appended.
    pub report: Option<PathBuf>,
    /// Whether to say on standard error what happens.
    pub verbose: bool,
    /// Where round trips are remembered.
    pub cache: Option<PathBuf>,
    /// What carries the first hop, if that is demanded; otherwise an agent is used when one runs.
    pub first_hop: Option<FirstHop>,
    /// Certificates of the authorities that may vouch for the first gateway.
    pub authorities: Option<PathBuf>,
    /// This user's certificate, for gateways that want to see one.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// Bandwidth to ask for with every session. Then none goes direct by way of a bypass.
    pub bandwidth: Option<BitRate>,
    /// How long an agent that nobody uses waits before it goes.
    pub agent_idle: Duration,
}

/// How long an agent waits unless something else is said: what its connections have learned of the path is hardly true for
/// longer.
pub const AGENT_IDLE: Duration = Duration::from_secs(300);

/// Largest settings file that is to be read: a thousand times what anyone writes by hand.
pub const FILE_MAX: u64 = 1 << 20;

/// A settings file, read by the caller.
#[derive(Debug, Clone, Copy)]
pub struct File<'a> {
    /// Its name, for errors.
    pub name: &'a str,
    /// What it contains.
    pub text: &'a str,
}

/// A setting that cannot be used: which, where it stands, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {problem}")]
pub struct SettingsError {
    origin: String,
    problem: String,
}

/// Declares the names once: in the environment, in files, and in [`Key::ALL`].
macro_rules! keys {
    ($($(#[doc = $doc:literal])+ $key:ident = $name:literal;)+) => {
        /// The name of a setting.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Key { $($(#[doc = $doc])+ $key,)+ }

        impl Key {
            /// Every setting.
            pub const ALL: &[Self] = &[$(Self::$key),+];

            /// The variable that holds it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$key => $name,)+ }
            }
        }
    };
}

keys! {
    /// The first gateway.
    Gateway = "PHOEBUS_GW";
    /// The whole path.
    Path = "PHOEBUS_PATH";
    /// What goes through gateways.
    Only = "PHOEBUS_ONLY";
    /// What does not.
    Except = "PHOEBUS_EXCEPT";
    /// E-mail address of anonymous sessions.
    User = "PHOEBUS_USER";
    /// The switch.
    Disable = "PHOEBUS_DISABLE";
    /// Congestion control of the first hop.
    CongestionControl = "PHOEBUS_CC";
    /// Round trip below which destinations go direct.
    BypassRtt = "PHOEBUS_BYPASS_RTT";
    /// Whether to go direct without a gateway.
    Fallback = "PHOEBUS_FALLBACK";
    /// Where reports go.
    Report = "PHOEBUS_REPORT";
    /// Whether to be chatty.
    Verbose = "PHOEBUS_VERBOSE";
    /// Where round trips are remembered.
    Cache = "PHOEBUS_CACHE";
    /// What carries the first hop.
    FirstHop = "PHOEBUS_FIRST_HOP";
    /// Who may vouch for the first gateway.
    Authorities = "PHOEBUS_CA";
    /// The user's certificate.
    Certificate = "PHOEBUS_CERT";
    /// Its key.
    PrivateKey = "PHOEBUS_KEY";
    /// Bandwidth of each session.
    Bandwidth = "PHOEBUS_BANDWIDTH";
    /// How long an agent waits.
    AgentIdle = "PHOEBUS_AGENT_IDLE";
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            path: Vec::new(),
            only: None,
            except: None,
            user: None,
            disabled: false,
            congestion_control: Some(DEFAULT_CONGESTION_CONTROL.to_owned()),
            bypass_rtt: Duration::ZERO,
            fallback: false,
            report: None,
            verbose: false,
            cache: None,
            first_hop: None,
            authorities: None,
            certificate: None,
            key: None,
            bandwidth: None,
            agent_idle: AGENT_IDLE,
        }
    }
}

impl Settings {
    /// The settings of an environment, given as a look-up of variables, and of files, the administrator's first. An empty
    /// variable counts as unset. When the environment switches Phoebus off, nothing else is looked at.
    ///
    /// # Errors
    /// One sentence that names the variable, or file and line, and what was expected.
    pub fn load(lookup: impl Fn(&str) -> Option<String>, files: &[File]) -> Result<Self, SettingsError> {
        let variable = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let mut settings = Self { cache: default_cache(&variable), ..Self::default() };
        let environment = || "environment".to_owned();
        if let Some(value) = variable(Key::Disable.name()) {
            settings.apply(Key::Disable, &value).map_err(|why| wrong(environment(), Key::Disable, &why))?;
            if settings.disabled {
                return Ok(settings);
            }
        }
        for file in files {
            settings.apply_file(file)?;
        }
        for key in Key::ALL {
            if let Some(value) = variable(key.name()) {
                settings.apply(*key, &value).map_err(|why| wrong(environment(), *key, &why))?;
            }
        }
        if settings.bandwidth.is_some() {
            if settings.fallback {
                let problem = format!(
                    "{} asks gateways for something, and {} (--fallback) would do without them; expected one of the two",
                    Key::Bandwidth,
                    Key::Fallback
                );
                return Err(SettingsError { origin: "settings".to_owned(), problem });
            }
            // Nobody promises anything to a connection that goes direct.
            settings.bypass_rtt = Duration::ZERO;
        }
        Ok(settings)
    }

    /// Whether a connection to `addr`, looked up under `names`, is to go through gateways (P33).
    ///
    /// This host's own addresses (loopback, link-local, unspecified) mean another host at the far end, so they go direct
    /// unless `PHOEBUS_ONLY` has a range with them in it.
    pub fn selects<'a>(&self, addr: SocketAddr, names: impl Iterator<Item = &'a str> + Clone) -> bool {
        let wanted = match &self.only {
            Some(only) if is_loopback_or_link(addr.ip().to_canonical()) => only.matches_address(addr),
            Some(only) => only.matches(addr, names.clone()),
            None => !is_loopback_or_link(addr.ip().to_canonical()),
        };
        wanted
            && !self.disabled
            && !self.path.is_empty()
            && !self.except.as_ref().is_some_and(|e| e.matches(addr, names))
    }

    /// The same for a name that nobody has looked up, so that ranges of addresses do not fit it.
    pub fn selects_name(&self, name: &str, port: u16) -> bool {
        let own = name == "localhost" || name.ends_with(".localhost");
        self.only.as_ref().map_or(!own, |only| only.matches_name(name, port))
            && !self.disabled
            && !self.path.is_empty()
            && !self.except.as_ref().is_some_and(|except| except.matches_name(name, port))
    }

    /// Takes over one setting from its text. Later ones stand before earlier ones; a path stands before a gateway of the
    /// same source, which [`Key::ALL`] and the caller's order see to.
    ///
    /// # Errors
    /// What was expected.
    pub fn apply(&mut self, key: Key, value: &str) -> Result<(), String> {
        let value = value.trim();
        match key {
            Key::Gateway => {
                self.path = match value.contains(',') {
                    true => return Err(format!("\"{value}\" is not one gateway; a path of several is {}", Key::Path)),
                    false => Endpoint::parse_path(value).map_err(text)?,
                }
            }
            Key::Path => self.path = Endpoint::parse_path(value).map_err(text)?,
            Key::Only => self.only = Some(value.parse().map_err(text)?),
            Key::Except => self.except = Some(value.parse().map_err(text)?),
            Key::User => self.user = Some(mail_address(value)?),
            Key::Disable => self.disabled = switch(value)?,
            Key::CongestionControl => self.congestion_control = congestion_control(value)?,
            Key::BypassRtt => self.bypass_rtt = value.parse::<Span>().map_err(text)?.0,
            Key::Fallback => self.fallback = switch(value)?,
            Key::Report => self.report = Some(file_name(value)?),
            Key::Verbose => self.verbose = switch(value)?,
            Key::Cache => self.cache = Some(file_name(value)?),
            Key::FirstHop => self.first_hop = Some(value.parse()?),
            Key::Authorities => self.authorities = Some(file_name(value)?),
            Key::Certificate => self.certificate = Some(file_name(value)?),
            Key::PrivateKey => self.key = Some(file_name(value)?),
            Key::Bandwidth => self.bandwidth = Some(bandwidth(value)?),
            Key::AgentIdle => self.agent_idle = value.parse::<Span>().map_err(text)?.0,
        }
        Ok(())
    }

    fn apply_file(&mut self, file: &File) -> Result<(), SettingsError> {
        let at = |line: usize| format!("{}, line {}", file.name, line + 1);
        let mut seen: Vec<(Key, usize, &str)> = Vec::new();
        for (line, text) in file.text.lines().enumerate() {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let fail = |problem| SettingsError { origin: at(line), problem };
            let (name, value) = text.split_once('=').ok_or_else(|| {
                fail(format!("\"{text}\" is not a setting such as {}=pg1.example/5006", Key::Gateway))
            })?;
            let (name, value) = (name.trim_end(), value.trim());
            let key = *Key::ALL.iter().find(|key| key.name() == name).ok_or_else(|| fail(unknown(name)))?;
            if let Some((_, first, _)) = seen.iter().find(|(k, ..)| *k == key) {
                return Err(fail(format!("{key} was set on line {} already", first + 1)));
            }
            if value.is_empty() {
                return Err(fail(format!("{key} has no value; to leave it unset, leave the line out")));
            }
            seen.push((key, line, value));
        }
        // In the order of the keys, so that a path stands before a gateway wherever its line is.
        seen.sort_by_key(|(key, ..)| *key as usize);
        seen.into_iter()
            .try_for_each(|(key, line, value)| self.apply(key, value).map_err(|why| wrong(at(line), key, &why)))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the file called `name` has to say, given what reading it came to; `None` if there is none.
///
/// # Errors
/// One sentence that names the file, the line where that is known, and what was expected.
pub fn contents(name: &str, read: Result<String, TextError>) -> Result<Option<String>, String> {
    const EXPECTED: &str = "expected a few lines of NAME=value";
    match read {
        Ok(text) => Ok(Some(text)),
        Err(TextError::Read(error)) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error @ TextError::NotUtf8 { line, .. }) => Err(format!("{name}, line {line}: {error}; {EXPECTED}")),
        Err(error) => Err(format!("{name}: {error}; {EXPECTED}")),
    }
}

/// The user's file, from the variables `XDG_CONFIG_HOME` and `HOME`.
pub fn user_file(lookup: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    in_home(&lookup, "XDG_CONFIG_HOME", ".config").map(|dir| dir.join("phoebus/client.conf"))
}

fn default_cache(lookup: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    in_home(lookup, "XDG_CACHE_HOME", ".cache").map(|dir| dir.join("phoebus/bypass"))
}

/// A base directory as the XDG specification has it: relative ones count as unset.
fn in_home(lookup: &impl Fn(&str) -> Option<String>, variable: &str, default: &str) -> Option<PathBuf> {
    let absolute = |name| lookup(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| Some(absolute("HOME")?.join(default)))
}

fn wrong(origin: String, key: Key, why: &str) -> SettingsError {
    SettingsError { origin, problem: format!("{key}: {why}") }
}

fn unknown(name: &str) -> String {
    let known: Vec<_> = Key::ALL.iter().map(|key| key.name()).collect();
    format!("\"{name}\" is no setting; expected one of {}", known.join(", "))
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "1" | "yes" | "true" | "on" => Ok(true),
        "0" | "no" | "false" | "off" => Ok(false),
        _ => Err(format!("\"{value}\" is not 1 or 0")),
    }
}

fn bandwidth(value: &str) -> Result<BitRate, String> {
    match value.parse::<BitRate>().map_err(text)? {
        BitRate(0) => Err("a bandwidth of 0 lets nothing through; expected a rate such as 100mbit".to_owned()),
        rate => Ok(rate),
    }
}

fn congestion_control(value: &str) -> Result<Option<String>, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match value {
        "system" => Ok(None),
        _ if value.len() <= CONGESTION_CONTROL_MAX && value.chars().all(is_name) => Ok(Some(value.to_owned())),
        _ => Err(format!("\"{value}\" is not a congestion control such as bbr or cubic, or system")),
    }
}

/// One `@` with something on both sides and no blanks or control characters: more is for the mail system to judge.
fn mail_address(value: &str) -> Result<String, String> {
    let plain = value.len() <= NAME_MAX && !value.contains(|c: char| c.is_whitespace() || c.is_control());
    match value.split_once('@') {
        Some((user, host)) if plain && !user.is_empty() && !host.is_empty() && !host.contains('@') => {
            Ok(value.to_owned())
        }
        _ => Err(format!("\"{value}\" is not an e-mail address such as ada@example.org")),
    }
}

/// Programs change their directory, so relative names would mean many files.
fn file_name(value: &str) -> Result<PathBuf, String> {
    match value.starts_with('/') {
        true => Ok(PathBuf::from(value)),
        false => Err(format!("\"{value}\" is not an absolute file name")),
    }
}

/// Whether this is an address that every host has for itself or its links: loopback, link-local, unspecified. At the far end it
/// would be another host's.
pub fn is_loopback_or_link(ip: IpAddr) -> bool {
    ip.is_loopback()
        || ip.is_unspecified()
        || match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
}

#[cfg(test)]
mod tests;
