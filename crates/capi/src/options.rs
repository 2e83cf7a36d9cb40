//! `phoebus_options`: the options of sessions, as names and values.

#![allow(unsafe_code, reason = "functions that C calls")]

mod plan;

use crate::boundary::{get, get_mut, give, room, take, text};
use crate::failure::{Failure, code};
use phoebus_client::environment::{self, variable};
use phoebus_client::{Demands, Opening, Options};
use phoebus_config::settings::{Key, Settings};
use phoebus_gateway::config::Origin;
use phoebus_net::Buffer;
use phoebus_net::credentials::{CredentialFiles, Credentials};
use phoebus_net::transport::Security;
use phoebus_proto::endpoint::{Endpoint, Host, is_name};
use phoebus_proto::units::{ByteSize, Span};
use std::ffi::{c_char, c_int};
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::str::FromStr;
use std::time::Duration;

/// `phoebus_options`.
#[derive(Debug, Clone, Default)]
pub(crate) struct SessionOptions {
    settings: Settings,
    security: Security,
    demands: Demands,
    send_buffer: Buffer,
    receive_buffer: Buffer,
    connect_limit: Option<Span>,
    open_limit: Option<Span>,
    finish_limit: Option<Span>,
    redirects: Option<u8>,
    /// The name of a destination, and the peers that may open sessions to it.
    name: Option<String>,
    from: Vec<Origin>,
    /// The text of `from`.
    origins: String,
    /// The first error.
    failure: Option<Failure>,
}

/// Options that correspond to settings of the environment.
const SETTINGS: &[(&str, Key)] = &[
    ("gateway", Key::Gateway),
    ("path", Key::Path),
    ("only", Key::Only),
    ("except", Key::Except),
    ("disable", Key::Disable),
    ("fallback", Key::Fallback),
    ("first_hop", Key::FirstHop),
    ("authorities", Key::Authorities),
    ("certificate", Key::Certificate),
    ("key", Key::PrivateKey),
    ("user", Key::User),
    ("rate", Key::Bandwidth),
    ("congestion_control", Key::CongestionControl),
    ("bypass_rtt", Key::BypassRtt),
    ("cache", Key::Cache),
];

/// All other options.
const OWN: &[&str] = &[
    "security",
    "buffer",
    "streams",
    "protection",
    "transport",
    "send_buffer",
    "receive_buffer",
    "connect_timeout",
    "open_timeout",
    "finish_timeout",
    "redirects",
    "aware",
    "name",
    "from",
];

/// A destination as the program named it.
#[derive(Debug)]
pub(crate) struct Destination(Result<Endpoint, Failure>);

impl Destination {
    pub(crate) fn of(host: Option<&str>, port: u16) -> Self {
        let host = host.ok_or_else(|| Failure::argument("the destination's host is missing, or is no text in UTF-8"));
        Self(host.and_then(|host| match host.parse() {
            _ if port == 0 => {
                Err(Failure::argument(format!("port 0 of {host} is no destination; expected 1 to 65535")))
            }
            Ok(host) => Ok(Endpoint { host, port }),
            Err(error) => Err(Failure::argument(error.to_string())),
        }))
    }
}

impl Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |endpoint| endpoint.fmt(f))
    }
}

impl SessionOptions {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        if let Some((_, key)) = SETTINGS.iter().find(|(own, _)| *own == name) {
            // Driver stacks use fallback=direct.
            let value = if (*key, value) == (Key::Fallback, "direct") { "1" } else { value };
            return self.settings.apply(*key, value);
        }
        match name {
            "security" => {
                self.security = match value {
                    "none" => Security::None,
                    "auth" => Security::Auth,
                    "encrypt" => Security::Encrypt,
                    _ => return Err(format!("\"{value}\" is not none, auth or encrypt")),
                }
            }
            "protection" => {
                let known = [Security::None, Security::Auth, Security::Encrypt];
                let found = known.into_iter().find(|security| security.name() == value);
                self.demands.protection =
                    Some(found.ok_or_else(|| format!("\"{value}\" is not none, auth or encrypt"))?);
            }
            "transport" => {
                if value.is_empty() || !value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
                    return Err(format!("\"{value}\" is not the name of a transport such as tcp, udt or quic"));
                }
                self.demands.transport = Some(value.to_owned());
            }
            "name" => {
                if !is_name(value) {
                    return Err(format!("\"{value}\" is no name; expected one such as dtn or dtn.example.org"));
                }
                self.name = Some(value.to_ascii_lowercase());
            }
            "from" => {
                self.from = value.split(',').map(|entry| origin(entry.trim())).collect::<Result<_, _>>()?;
                value.clone_into(&mut self.origins);
            }
            "buffer" => self.demands.buffer = Some(parsed::<ByteSize>(value)?.0),
            "streams" => {
                let streams = value.parse().ok().filter(|streams| *streams > 0);
                self.demands.streams =
                    Some(streams.ok_or_else(|| format!("\"{value}\" is not a number from 1 to 65535"))?);
            }
            "send_buffer" => self.send_buffer = value.parse()?,
            "receive_buffer" => self.receive_buffer = value.parse()?,
            "connect_timeout" => self.connect_limit = Some(parsed(value)?),
            "open_timeout" => self.open_limit = Some(parsed(value)?),
            "finish_timeout" => self.finish_limit = Some(parsed(value)?),
            "aware" => {
                self.demands.aware = match value {
                    "0" => false,
                    "1" => true,
                    _ => return Err(format!("\"{value}\" is not 0 or 1")),
                }
            }
            "redirects" => {
                self.redirects = Some(value.parse().map_err(|_| format!("\"{value}\" is not a number from 0 to 255"))?);
            }
            _ => {
                let known: Vec<_> = SETTINGS.iter().map(|(name, _)| *name).chain(OWN.iter().copied()).collect();
                return Err(format!("there is no such option; expected one of {}", known.join(", ")));
            }
        }
        Ok(())
    }

    /// The value of an option in the form that [`set`](Self::set) accepts: empty if unset, `None` if there is no such
    /// option.
    fn value(&self, name: &str) -> Option<String> {
        fn shown<T: ToString>(value: Option<T>) -> String {
            value.map(|value| value.to_string()).unwrap_or_default()
        }
        let file = |file: &Option<PathBuf>| shown(file.as_ref().map(|file| file.display()));
        let switch = |on: bool| u8::from(on).to_string();
        let Self { settings, demands, .. } = self;
        let limits = Options::default();
        let limit = |chosen: Option<Span>, limit| chosen.unwrap_or(Span(limit)).to_string();
        Some(match name {
            "gateway" => shown(settings.path.first()),
            "path" => settings.path.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(","),
            "only" => shown(settings.only.as_ref()),
            "except" => shown(settings.except.as_ref()),
            "disable" => switch(settings.disabled),
            "fallback" => switch(settings.fallback),
            "first_hop" => shown(settings.first_hop),
            "authorities" => file(&settings.authorities),
            "certificate" => file(&settings.certificate),
            "key" => file(&settings.key),
            "user" => shown(settings.user.as_ref()),
            "rate" => shown(settings.bandwidth),
            "congestion_control" => settings.congestion_control.clone().unwrap_or_else(|| "system".to_owned()),
            "bypass_rtt" => Span(settings.bypass_rtt).to_string(),
            "cache" => file(&settings.cache),
            "security" => self.security.name().to_owned(),
            "buffer" => shown(demands.buffer.map(ByteSize)),
            "streams" => shown(demands.streams),
            "protection" => shown(demands.protection.map(Security::name)),
            "transport" => shown(demands.transport.as_ref()),
            "send_buffer" => self.send_buffer.to_string(),
            "receive_buffer" => self.receive_buffer.to_string(),
            "connect_timeout" => limit(self.connect_limit, limits.connect_limit),
            "open_timeout" => limit(self.open_limit, limits.open_limit),
            "finish_timeout" => limit(self.finish_limit, limits.finish_limit),
            "aware" => switch(demands.aware),
            "name" => shown(self.name.as_ref()),
            "from" => self.origins.clone(),
            "redirects" => self.redirects.unwrap_or(limits.redirects).to_string(),
            _ => return None,
        })
    }

    /// Keeps the first error, and returns the code of this result.
    fn note(&mut self, result: Result<(), String>) -> c_int {
        match result {
            Ok(()) => code::OK,
            Err(why) => {
                let failure = Failure::argument(why);
                let code = failure.code;
                self.failure.get_or_insert(failure);
                code
            }
        }
    }

    fn selects(&self, to: &Endpoint) -> bool {
        match &to.host {
            Host::Addr(addr) => self.settings.selects(SocketAddr::new(*addr, to.port), std::iter::empty()),
            Host::Name(name) => self.settings.selects_name(name, to.port),
        }
    }

    /// The options of a session, or the first error in them.
    pub(crate) fn resolve(&self) -> Result<Options, Failure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.settings.bandwidth.is_some() && self.settings.fallback {
            let why = "rate asks gateways for something, and fallback would do without them; expected one of the two";
            return Err(Failure::argument(why));
        }
        if self.security == Security::Encrypt {
            let why = "option security: what a program reads and writes on its own connection cannot be encrypted; expected \
                       none or auth, or first_hop=tls for an agent that encrypts";
            return Err(Failure::argument(why));
        }
        let mut options = Options::from(&self.settings);
        options.demands = self.demands.clone();
        if self.security == Security::Auth {
            options.auth = self.credentials()?;
            if self.settings.first_hop.is_none() {
                // An agent would present its own credentials, not these.
                options.agents = None;
            }
        }
        options.profile.send_buffer = self.send_buffer;
        options.profile.receive_buffer = self.receive_buffer;
        let limits = [
            (&mut options.connect_limit, self.connect_limit),
            (&mut options.open_limit, self.open_limit),
            (&mut options.finish_limit, self.finish_limit),
        ];
        for (limit, chosen) in limits {
            *limit = chosen.map_or(*limit, |span| span.0);
        }
        options.redirects = self.redirects.unwrap_or(options.redirects);
        if options.bandwidth.is_some() || options.demands != Demands::default() {
            // A direct connection cannot meet demands.
            options.bypass_rtt = Duration::ZERO;
        }
        Ok(options)
    }

    fn credentials(&self) -> Result<Option<Credentials>, Failure> {
        let settings = &self.settings;
        let Some(authorities) = settings.authorities.clone() else {
            if self.security == Security::None {
                return Ok(None);
            }
            let why = "security=auth has to know whom to trust; set authorities to a PEM file with the authority that signed the \
                       gateway's certificate";
            return Err(Failure::argument(why));
        };
        let loaded = match (settings.certificate.clone(), settings.key.clone()) {
            (Some(certificate), Some(key)) => Credentials::load(CredentialFiles { certificate, key, authorities }),
            (None, None) => Credentials::trusting(&authorities).map(|own| own.with_proxy(settings.proxy.clone())),
            _ => return Err(Failure::argument("certificate and key belong together, and one of them is not set")),
        };
        loaded.map(Some).map_err(|error| Failure::new(code::SYSTEM, error.to_string()))
    }

    /// The opening of a session to `to` with these options.
    pub(crate) fn opening(&self, to: &Destination) -> Result<Opening, Failure> {
        let options = self.resolve()?;
        let to = to.0.clone()?;
        let direct = |why: &str| Ok(Opening::direct(options.clone(), to.clone(), why));
        if self.settings.disabled {
            return direct("direct: Phoebus is switched off");
        }
        if self.settings.path.is_empty() {
            return match self.settings.fallback {
                true => direct("direct: no gateway is set"),
                false => Err(Failure::new(code::NO_GATEWAY, "no gateway is set; expected the option gateway or path")),
            };
        }
        let chosen = self.settings.only.is_some() || self.settings.except.is_some();
        if chosen && !self.selects(&to) {
            return direct("direct: the destination is not among those that go through gateways (only, except)");
        }
        Ok(Opening::new(options, to))
    }
}

fn origin(entry: &str) -> Result<Origin, String> {
    match entry.strip_prefix("certificate:") {
        Some(name) => name.parse().map(Origin::Certificate),
        None => entry.parse().map(Origin::Net),
    }
}

fn parsed<T: FromStr<Err: Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| error.to_string())
}

export! {
    /// See the header.
    fn phoebus_options_new() -> *mut SessionOptions, or null_mut(), {
        give(SessionOptions::default())
    }

    /// See the header.
    fn phoebus_options_copy(options: *const SessionOptions) -> *mut SessionOptions, or null_mut(), {
        give(get(options).cloned().unwrap_or_default())
    }

    /// See the header.
    fn phoebus_options_load(options: *mut SessionOptions) -> c_int, or code::BUG, {
        let Some(options) = get_mut(options) else { return code::ARGUMENT };
        let loaded = environment::load(variable).map(|settings| options.settings = settings);
        let loaded = loaded.map_err(|error| error.to_string());
        options.note(loaded)
    }

    /// See the header.
    fn phoebus_options_set(options: *mut SessionOptions, name: *const c_char, value: *const c_char) -> c_int, or code::BUG, {
        let Some(options) = get_mut(options) else { return code::ARGUMENT };
        let result = match (text(name), text(value)) {
            (Some(name), Some(value)) => {
                options.set(name, value).map_err(|why| format!("option {}: {why}", name.escape_debug()))
            }
            _ => Err("an option's name or value is missing, or is no text in UTF-8".to_owned()),
        };
        options.note(result)
    }

    /// See the header.
    fn phoebus_options_get(options: *const SessionOptions, name: *const c_char, value: *mut c_char, size: usize) -> usize, or 0, {
        let found = get(options).zip(text(name)).and_then(|(options, name)| options.value(name)).unwrap_or_default();
        let room = room(value.cast(), size);
        if let Some((end, room)) = room.split_last_mut() {
            let shown = found.len().min(room.len());
            room[..shown].copy_from_slice(&found.as_bytes()[..shown]);
            *room.get_mut(shown).unwrap_or(end) = 0;
        }
        found.len()
    }

    /// See the header.
    fn phoebus_options_select(options: *const SessionOptions, host: *const c_char, port: u16) -> c_int, or 0, {
        let way = Destination::of(text(host), port);
        match (get(options), way.0) {
            (Some(options), Ok(to)) => options.selects(&to).into(),
            _ => 0,
        }
    }

    /// See the header.
    fn phoebus_options_error(options: *const SessionOptions) -> *const Failure, or null(), {
        get(options).and_then(|options| options.failure.as_ref()).map_or(null(), |failure| failure)
    }

    /// See the header.
    fn phoebus_options_free(options: *mut SessionOptions) -> (), or (), {
        drop(take(options));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_get_returns_what_set_accepts() {
        let mut options = SessionOptions::default();
        let set = [
            ("path", "pg1/5006, PG2.example:5007,[2001:db8::1]/1", "pg1:5006,pg2.example:5007,[2001:db8::1]:1"),
            ("only", "10.0.0.0/8:5000-5999,.example", "10.0.0.0/8:5000-5999,.example"),
            ("rate", "100mbit", "100mbit"),
            ("buffer", "16MiB", "16MiB"),
            ("streams", "8", "8"),
            ("transport", "udt", "udt"),
            ("protection", "encrypt", "encrypt"),
            ("security", "auth", "auth"),
            ("connect_timeout", "1500ms", "1500ms"),
            ("congestion_control", "cubic", "cubic"),
            ("fallback", "direct", "1"),
            ("first_hop", "quic", "quic"),
            ("aware", "1", "1"),
            ("from", "10.0.0.0/8,certificate:pg2", "10.0.0.0/8,certificate:pg2"),
        ];
        for (name, value, expected) in set {
            options.set(name, value).unwrap();
            assert_eq!(options.value(name).unwrap(), expected);
        }
        assert_eq!(options.value("gateway").unwrap(), "pg1:5006");
        assert_eq!(options.value("open_timeout").unwrap(), "150s");
        assert_eq!(options.value("gate"), None);
        let names: Vec<_> = SETTINGS.iter().map(|(name, _)| *name).chain(OWN.iter().copied()).collect();
        for name in names {
            let value = options.value(name).unwrap();
            if !value.is_empty() {
                options.set(name, &value).unwrap_or_else(|why| panic!("{name}={value}: {why}"));
                assert_eq!(options.value(name).unwrap(), value);
            }
        }
    }
}
