//! `transport` and `allowed` of a peer: the one transport that carries sessions to it, or those that `auto` chooses
//! from.

use super::carriage::{AUTO, Carriage, MAKE};
use super::reader::Reader;
use super::{ConfigError, raw};
use phoebus_net::{CongestionControl, Profile};
use toml::Spanned;

/// What `auto` chooses from, in the default order. The rules of `auto` cover these transports only.
const CHOICES: [&str; 3] = ["tcp", "quic", "udt"];

/// A transport that may carry sessions to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// Its name.
    pub transport: String,
    /// The peer's port for it, if that is not the port of its address.
    pub port: Option<u16>,
}

impl Allowed {
    /// The default list for this `transport`: that one, or all that `auto` chooses from.
    pub(super) fn by(transport: &str) -> Vec<Self> {
        let names = if transport == AUTO { &CHOICES[..] } else { &[transport] };
        names.iter().map(|name| Self { transport: (*name).to_owned(), port: None }).collect()
    }
}

impl Reader<'_> {
    /// The configured transport of `peer`, and all allowed ones.
    pub(super) fn carried_by(
        &self,
        peer: &raw::Peer,
        profile: &Profile,
        carriage: &Carriage,
    ) -> Result<(String, Vec<Allowed>), ConfigError> {
        let is_auto = peer.transport.as_ref().is_some_and(|wanted| wanted.get_ref() == AUTO);
        let allowed = match (&peer.allowed, is_auto) {
            (Some(list), true) => self.allowed(list, profile, carriage)?,
            (None, true) => {
                let mut can = Allowed::by(AUTO);
                can.retain(|allowed| lacks(&allowed.transport, profile, carriage).is_none());
                match &peer.transport {
                    Some(auto) if can.is_empty() => {
                        let lacks = CHOICES
                            .map(|name| format!("{name}: {}", lacks(name, profile, carriage).unwrap_or_default()));
                        return Err(self.at(auto, format!("auto has nothing to choose from: {}", lacks.join("; "))));
                    }
                    _ => can,
                }
            }
            (Some(list), false) => {
                let message = "allowed is what transport = \"auto\" chooses from; expected that, or no such key";
                return Err(self.at(list, message));
            }
            (None, false) => {
                if let Some(wanted) =
                    peer.transport.as_ref().filter(|wanted| !carriage.names.contains(wanted.get_ref()))
                {
                    let auto = [AUTO.to_owned()];
                    return Err(self.unknown(wanted, "transport", carriage.names.iter().chain(&auto)));
                }
                let transport = self.transport(peer.transport.as_ref(), carriage)?;
                let allowed = Allowed::by(&transport);
                return Ok((transport, allowed));
            }
        };
        Ok((AUTO.to_owned(), allowed))
    }

    fn allowed(
        &self,
        list: &Spanned<Vec<Spanned<String>>>,
        profile: &Profile,
        carriage: &Carriage,
    ) -> Result<Vec<Allowed>, ConfigError> {
        let mut allowed: Vec<Allowed> = Vec::new();
        for entry in list.get_ref() {
            let text = entry.get_ref();
            let (name, port) = match text.split_once('/') {
                Some((name, port)) => (name, Some(port.parse().ok().filter(|port| *port != 0).ok_or(port))),
                None => (text.as_str(), None),
            };
            let port = port.transpose().map_err(|port| {
                self.at(entry, format!("\"{port}\" is no port; expected a transport and its port, such as udt/5007"))
            })?;
            if !CHOICES.contains(&name) {
                let names = CHOICES.join(", ");
                return Err(self.at(entry, format!("auto has no rule for \"{name}\"; expected one of: {names}")));
            }
            if let Some(lack) = lacks(name, profile, carriage) {
                return Err(self.at(entry, format!("{name} cannot be allowed: {lack}")));
            }
            if allowed.iter().any(|other| other.transport == name) {
                return Err(self.at(entry, format!("{name} is allowed twice")));
            }
            allowed.push(Allowed { transport: name.to_owned(), port });
        }
        if allowed.is_empty() {
            return Err(self.at(list, format!("nothing is allowed; expected some of: {}", CHOICES.join(", "))));
        }
        Ok(allowed)
    }
}

/// Why a peer with `profile` cannot use this transport, if so. `auto` uses UDT only with TLS, which needs certificates
/// as QUIC does.
fn lacks(transport: &str, profile: &Profile, carriage: &Carriage) -> Option<String> {
    let control = profile.congestion_control;
    let has = match transport {
        "tcp" => !control.is_udt_specific(),
        "udt" => control == CongestionControl::Auto || control.is_udt_specific(),
        _ => true,
    };
    if transport != "tcp" && !carriage.has_credentials {
        Some(format!("it needs certificates; {MAKE}"))
    } else if !has {
        Some(format!("it has no congestion control \"{control}\", which the peer's profile asks for"))
    } else {
        None
    }
}
