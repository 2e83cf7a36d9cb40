//! Settings as read from the environment and from files.

use super::files::cache_file;
use super::value::{bandwidth, congestion_control, file_name, mail_address, switch, text};
use super::{Key, Settings};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::units::Span;
use std::path::PathBuf;
use std::time::Duration;

/// Where Grid tools keep a user's proxy certificate.
const GRID_PROXY: &str = "X509_USER_PROXY";

/// A settings file, read by the caller.
#[derive(Debug, Clone, Copy)]
pub struct File<'a> {
    /// Its name, for errors.
    pub name: &'a str,
    /// Its contents.
    pub text: &'a str,
}

/// An unusable setting: its name, its place, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {problem}")]
pub struct SettingsError {
    origin: String,
    problem: String,
}

impl Settings {
    /// The settings of an environment, given as a look-up of variables, and of files, the administrator's first. An empty
    /// variable counts as unset. If the environment switches Phoebus off, nothing else is read.
    ///
    /// # Errors
    /// One sentence that names the variable, or file and line, and what was expected.
    pub fn load(lookup: impl Fn(&str) -> Option<String>, files: &[File]) -> Result<Self, SettingsError> {
        let variable = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let mut settings = Self { cache: cache_file(&variable), ..Self::default() };
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
        settings.proxy = variable(GRID_PROXY).map(PathBuf::from).filter(|_| settings.certificate.is_none());
        if settings.bandwidth.is_some() {
            if settings.fallback {
                let problem = format!(
                    "{} asks gateways for something, and {} (--fallback) would do without them; expected one of the two",
                    Key::Bandwidth,
                    Key::Fallback
                );
                return Err(SettingsError { origin: "settings".to_owned(), problem });
            }
            // No gateway reserves bandwidth for a direct connection.
            settings.bypass_rtt = Duration::ZERO;
        }
        Ok(settings)
    }

    /// Applies one setting. Later calls override earlier ones. The caller applies settings in the order of [`Key::ALL`], so that a
    /// path overrides a gateway of the same source.
    ///
    /// # Errors
    /// What was expected.
    pub fn apply(&mut self, key: Key, value: &str) -> Result<(), String> {
        let value = value.trim();
        match key {
            Key::Gateway => {
                self.path = match value.contains(',') {
                    true => {
                        return Err(format!(
                            "\"{value}\" is not one gateway; a path of several is --path ({})",
                            Key::Path
                        ));
                    }
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
        // In the order of the keys, so that a path overrides a gateway on any line.
        seen.sort_by_key(|(key, ..)| *key as usize);
        seen.into_iter()
            .try_for_each(|(key, line, value)| self.apply(key, value).map_err(|why| wrong(at(line), key, &why)))
    }
}

fn wrong(origin: String, key: Key, why: &str) -> SettingsError {
    SettingsError { origin, problem: format!("{key}: {why}") }
}

fn unknown(name: &str) -> String {
    let known: Vec<_> = Key::ALL.iter().map(|key| key.name()).collect();
    format!("\"{name}\" is no setting; expected one of {}", known.join(", "))
}
