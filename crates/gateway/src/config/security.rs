//! Transports, credentials and protection of listeners and peers.

use super::carriage::{Carriage, MAKE};
use super::read::MayBe;
use super::reader::Reader;
use super::rules::read_method;
use super::{ClientCertificate, ConfigError, Mechanism, SpokenFor, raw};
use phoebus_config::users::Users;
use phoebus_net::credentials::{Credentials, Fingerprint, Trust, parse_fingerprint};
use phoebus_net::transport::Security;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;

impl Reader<'_> {
    /// Loads the credentials from the files of `[tls]`, whose names are relative to the configuration.
    pub(super) fn credentials(&self, tls: &Spanned<raw::Tls>, peers: &[raw::Peer]) -> Result<Credentials, ConfigError> {
        let folder = self.folder();
        let raw::Tls { certificate, key, authorities, revoked, .. } = tls.get_ref();
        let is_without = |peer: &&raw::Peer| {
            peer.fingerprint.is_none() && peer.security.as_ref().is_none_or(|security| security.get_ref() != "none")
        };
        if authorities.is_none()
            && let Some(peer) = peers.iter().find(is_without)
        {
            let expected = "expected the peer's fingerprint (phoebus cert show prints it), or authorities in [tls]";
            return Err(self.at(&peer.name, format!("nobody vouches for {}; {expected}", peer.name.get_ref())));
        }
        if authorities.is_none() && !revoked.is_empty() {
            return Err(self.at(tls, "revoked is for certificates of authorities; expected authorities in [tls]"));
        }
        let trust = Trust {
            authorities: authorities.as_ref().map(|file| folder.join(file)),
            revoked: revoked.iter().map(|file| folder.join(file)).collect(),
            pins: peers.iter().filter_map(|peer| self.pin(peer).transpose()).collect::<Result<_, _>>()?,
        };
        let loaded = Credentials::load_with(folder.join(certificate), folder.join(key), trust);
        loaded.map_err(|error| self.at(tls, error.to_string()))
    }

    /// The name of a peer, and the only certificate that it may show, if it is pinned.
    pub(super) fn pin(&self, peer: &raw::Peer) -> Result<Option<(String, Fingerprint)>, ConfigError> {
        let Some(given) = &peer.fingerprint else { return Ok(None) };
        let read = parse_fingerprint(given.get_ref()).ok_or_else(|| {
            let expected = "expected the 64 hexadecimal digits that phoebus cert show prints after sha256";
            self.at(given, format!("\"{}\" is no fingerprint; {expected}", given.get_ref()))
        })?;
        if peer.security.as_ref().is_some_and(|security| security.get_ref() == "none") {
            let message =
                "a peer without protection shows no certificate; expected no fingerprint, or another security";
            return Err(self.at(given, message));
        }
        Ok(Some((peer.name.get_ref().to_ascii_lowercase(), read)))
    }

    /// The users of the file that `[users]` names, relative to the configuration.
    pub(super) fn users(&self, file: &Spanned<PathBuf>) -> Result<Arc<Users>, ConfigError> {
        let path = self.folder().join(file.get_ref());
        Users::read(&path).map(Arc::new).map_err(|error| self.at(file, error.to_string()))
    }

    /// For whom a peer may ask.
    pub(super) fn spoken_for(&self, peer: &raw::Peer, security: Security) -> Result<Vec<SpokenFor>, ConfigError> {
        let read = |text: &Spanned<String>| {
            if security == Security::None {
                let message = "who speaks for others has to prove itself; expected security = \"auth\" or \"encrypt\"";
                return Err(self.at(text, message));
            }
            match text.get_ref().split_once(':') {
                None if text.get_ref() == "*" => Ok(SpokenFor::Anyone),
                Some(("user", name)) if !name.is_empty() => Ok(SpokenFor::User(name.to_owned())),
                Some(("group", name)) if !name.is_empty() => Ok(SpokenFor::Group(name.to_owned())),
                Some(("method", name)) if !name.is_empty() => {
                    read_method(name).map(SpokenFor::Method).map_err(|message| self.at(text, message))
                }
                _ => {
                    let expected = "expected user:NAME, group:NAME, method:NAME or *";
                    Err(self.at(text, format!("\"{}\" is nobody to speak for; {expected}", text.get_ref())))
                }
            }
        };
        peer.speaks_for.iter().map(read).collect()
    }

    /// How clients of a listener authenticate.
    pub(super) fn mechanisms(
        &self,
        listen: &raw::Listen,
        (transport, security): (&str, Security),
        carriage: &Carriage,
        may_be: MayBe,
    ) -> Result<Vec<Mechanism>, ConfigError> {
        let known = "none, anonymous, certificate, scram, token, grid, or several of the last five in brackets";
        let named = listen.auth.as_ref().map(toml::Spanned::get_ref);
        let names = match named {
            None => &[][..],
            Some(raw::Names::One(name)) if name == "none" => &[][..],
            Some(raw::Names::One(name)) => std::slice::from_ref(name),
            Some(raw::Names::Several(names)) => names,
        };
        if listen.raw_password && !names.iter().any(|name| name == "scram") {
            return Err(self.at(&listen.address, "raw_password is for auth = \"scram\", which this listener has not"));
        }
        let Some(auth) = &listen.auth else { return Ok(Vec::new()) };
        if matches!(named, Some(raw::Names::Several(names)) if names.is_empty()) {
            return Err(self.at(auth, format!("auth is empty; expected {known}")));
        }
        let mut all = Vec::new();
        for name in names {
            let mechanism = match name.as_str() {
                "anonymous" => Mechanism::Anonymous,
                "certificate" | "scram" | "token" | "grid"
                    if !(carriage.has_credentials || name == "scram" && listen.raw_password) =>
                {
                    let advice = if name == "scram" { ", or raw_password = true" } else { "" };
                    return Err(self.at(auth, format!("auth \"{name}\" needs certificates; {MAKE}{advice}")));
                }
                "certificate" => Mechanism::Certificate,
                "scram" if !may_be.has_users => {
                    let message =
                        "auth \"scram\" needs users; expected [users] with file = \"FILE\" (phoebus passwd makes it)";
                    return Err(self.at(auth, message));
                }
                // TCP recognizes TLS by its first byte; the others do not.
                "scram" if security == Security::None && transport != "tcp" && !listen.raw_password => {
                    let message = format!(
                        "auth \"scram\" needs TLS; expected security = \"encrypt\" with {transport}, or raw_password = true"
                    );
                    return Err(self.at(auth, message));
                }
                "token" if !may_be.has_issuers => {
                    let message = "auth \"token\" needs somebody who issues tokens; expected an [[issuer]] with url and audiences";
                    return Err(self.at(auth, message));
                }
                // TCP recognizes TLS by its first byte; the others do not.
                "token" if security == Security::None && transport != "tcp" => {
                    let message = format!("auth \"token\" needs TLS; expected security = \"encrypt\" with {transport}");
                    return Err(self.at(auth, message));
                }
                "token" => Mechanism::Token,
                "grid" if !may_be.has_grid => {
                    let message = "auth \"grid\" needs authorities of the Grid; expected [grid] with certificates = \"DIRECTORY\"";
                    return Err(self.at(auth, message));
                }
                // TCP recognizes TLS by its first byte; the others do not.
                "grid" if security == Security::None && transport != "tcp" => {
                    let message = format!("auth \"grid\" needs TLS; expected security = \"encrypt\" with {transport}");
                    return Err(self.at(auth, message));
                }
                "grid" => Mechanism::Grid,
                "scram" => Mechanism::Scram { raw: listen.raw_password },
                other => {
                    return Err(self.at(auth, format!("there is no auth \"{other}\" here; expected {known}")));
                }
            };
            if all.contains(&mechanism) {
                return Err(self.at(auth, format!("auth has \"{name}\" twice")));
            }
            all.push(mechanism);
        }
        Ok(all)
    }

    /// The file with the secret of QUIC's stateless resets. Default: beside the private key.
    pub(super) fn reset_key(&self, tls: &Spanned<raw::Tls>) -> PathBuf {
        let raw::Tls { key, reset_key, .. } = tls.get_ref();
        self.folder().join(reset_key.clone().unwrap_or_else(|| key.with_extension("reset")))
    }

    pub(super) fn folder(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new(""))
    }

    /// The configured transport. Default: TCP.
    pub(super) fn transport(
        &self,
        wanted: Option<&Spanned<String>>,
        carriage: &Carriage,
    ) -> Result<String, ConfigError> {
        let Some(wanted) = wanted else { return Ok("tcp".to_owned()) };
        match wanted.get_ref() {
            name if carriage.names.contains(name) => Ok(name.clone()),
            _ => Err(self.unknown(wanted, "transport", carriage.names.iter())),
        }
    }

    /// The minimum protection of a listener's connections. Default: the weakest that the transport supports, since
    /// programs connect without encryption.
    pub(super) fn least_security(
        &self,
        listen: &raw::Listen,
        transport: &str,
        carriage: &Carriage,
    ) -> Result<Security, ConfigError> {
        let address = &listen.address;
        let least = match &listen.security {
            Some(wanted) => self.security(wanted, transport, carriage)?,
            None => match Carriage::can(transport).last().copied().unwrap_or_default() {
                least if least > Security::None && !carriage.has_credentials => {
                    return Err(self.at(address, format!("{transport} needs certificates; {MAKE}")));
                }
                least => least,
            },
        };
        if listen.unprotected && !listen.public {
            let message = "unprotected = true allows what public = true refuses, and means nothing without it; expected both, or \
                           neither";
            return Err(self.at(address, message.to_owned()));
        }
        // An attacker who sees or guesses a few numbers can forge the peer's packets; TCP at least checks sequence
        // numbers.
        if listen.public && !listen.unprotected && least == Security::None && transport != "tcp" {
            let message = format!(
                "on a public listener, anyone could forge packets of {transport}, and so end or change sessions; expected \
                 security = \"encrypt\", or unprotected = true beside public = true"
            );
            return Err(self.at(address, message));
        }
        Ok(least)
    }

    /// Whether clients of a listener must show a certificate. Default: yes.
    pub(super) fn client_certificate(
        &self,
        listen: &raw::Listen,
        transport: &str,
        least: Security,
        carriage: &Carriage,
    ) -> Result<ClientCertificate, ConfigError> {
        let Some(wanted) = &listen.client_certificate else { return Ok(ClientCertificate::Required) };
        self.needs_certificates(wanted, carriage)?;
        if transport != "tcp" && least == Security::None {
            let message = format!("nobody shows a certificate over {transport} without security = \"encrypt\"");
            return Err(self.at(wanted, message));
        }
        Ok(*wanted.get_ref())
    }

    /// Checks that there are certificates, which `value` requires.
    pub(super) fn needs_certificates<T>(&self, value: &Spanned<T>, carriage: &Carriage) -> Result<(), ConfigError> {
        if carriage.has_credentials { Ok(()) } else { Err(self.at(value, format!("this needs certificates; {MAKE}"))) }
    }

    /// The protection of connections to and from a peer. Default: encryption.
    pub(super) fn peer_security(
        &self,
        peer: &raw::Peer,
        transport: &str,
        carriage: &Carriage,
    ) -> Result<Security, ConfigError> {
        match &peer.security {
            Some(wanted) => self.security(wanted, transport, carriage),
            None if carriage.has_credentials => Ok(Security::Encrypt),
            None => {
                let name = peer.name.get_ref();
                let message = format!(
                    "connections to peer \"{name}\" are encrypted unless its security says otherwise, which needs \
                     certificates; {MAKE}, or security = \"none\""
                );
                Err(self.at(&peer.name, message))
            }
        }
    }

    fn security(
        &self,
        wanted: &Spanned<String>,
        transport: &str,
        carriage: &Carriage,
    ) -> Result<Security, ConfigError> {
        const ALL: [Security; 3] = [Security::Encrypt, Security::Auth, Security::None];
        let names = ALL.map(|security| security.name().to_owned());
        let found = ALL.into_iter().find(|security| security.name() == wanted.get_ref());
        let security = found.ok_or_else(|| self.unknown(wanted, "security", names.iter()))?;
        let can = Carriage::can(transport);
        if !can.contains(&security) {
            let can: Vec<_> = can.iter().map(|security| security.name()).collect();
            let message = format!("{transport} cannot do \"{}\"; expected one of: {}", security.name(), can.join(", "));
            return Err(self.at(wanted, message));
        }
        if security > Security::None && !carriage.has_credentials {
            return Err(self.at(wanted, format!("\"{}\" needs certificates; {MAKE}", security.name())));
        }
        Ok(security)
    }
}
