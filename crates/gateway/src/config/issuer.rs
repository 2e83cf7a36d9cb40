//! Who issues tokens that the gateway takes: `[[issuer]]`.

use super::reader::Reader;
use super::{ConfigError, raw};
use phoebus_config::users::Users;
use phoebus_net::https::Https;
use phoebus_tokens::{ALGORITHMS, Algorithm, Claim, Issuer};
use std::sync::Arc;
use toml::Spanned;

/// Longest URL of an issuer, in bytes: with a user's name, it fits into a text of the session protocol.
const URL_MAX: usize = 512;
/// Most issuers. Each has a thread.
const ISSUERS_MAX: usize = 64;

/// An issuer, and how its keys are fetched.
#[derive(Debug, Clone)]
pub struct TokenIssuer {
    /// What is demanded of its tokens.
    pub issuer: Issuer,
    pub(crate) https: Https,
    /// The content of the file with the authorities of its web server; `None` for those of the system.
    authorities: Option<Vec<u8>>,
}

impl PartialEq for TokenIssuer {
    fn eq(&self, other: &Self) -> bool {
        (&self.issuer, &self.authorities) == (&other.issuer, &other.authorities)
    }
}

impl Eq for TokenIssuer {}

impl Reader<'_> {
    pub(super) fn issuers(&self, all: &[raw::Issuer], users: &Users) -> Result<Vec<Arc<TokenIssuer>>, ConfigError> {
        let mut issuers: Vec<Arc<TokenIssuer>> = Vec::new();
        for raw in all {
            if issuers.len() == ISSUERS_MAX {
                return Err(self.at(&raw.url, format!("there are more than {ISSUERS_MAX} issuers")));
            }
            let issuer = self.issuer(raw)?;
            let other = |is_same: fn(&Issuer, &Issuer) -> bool| {
                issuers.iter().find(|other| is_same(&other.issuer, &issuer.issuer))
            };
            if other(|other, own| other.url == own.url).is_some() {
                return Err(self.at(&raw.url, format!("the issuer {} stands here twice", issuer.issuer.url)));
            }
            if let Some(other) = other(|other, own| other.realm == own.realm) {
                let (other, realm) = (&other.issuer.url, &issuer.issuer.realm);
                let message = format!(
                    "it could name the users of {other}, which has the realm \"{realm}\" too; expected realm = \"NAME\", with another name"
                );
                return Err(self.at(raw.realm.as_ref().unwrap_or(&raw.url), message));
            }
            let suffix = format!("@{}", issuer.issuer.realm);
            if let Some(name) = users.names().find(|name| suffix.len() > 1 && name.ends_with(&suffix)) {
                let message = format!(
                    "it could name \"{name}\" of the users file; expected another realm, or another name there"
                );
                return Err(self.at(raw.realm.as_ref().unwrap_or(&raw.url), message));
            }
            issuers.push(Arc::new(issuer));
        }
        Ok(issuers)
    }

    fn issuer(&self, raw: &raw::Issuer) -> Result<TokenIssuer, ConfigError> {
        let url = raw.url.get_ref();
        let rest = url.strip_prefix("https://").filter(|rest| !rest.is_empty() && !rest.starts_with('/'));
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '@' | '"' | '\\');
        if url.len() > URL_MAX || !rest.is_some_and(|rest| rest.chars().all(is_plain)) {
            let expected = "expected an https:// URL without a query, exactly as tokens have it in \"iss\"";
            return Err(self.at(&raw.url, format!("\"{url}\" is no issuer; {expected}")));
        }
        if raw.audiences.get_ref().iter().all(String::is_empty) {
            let expected =
                "expected what tokens for this gateway have in \"aud\", such as [\"https://pg1.example:5006\"]";
            return Err(self.at(&raw.audiences, format!("audiences is empty; {expected}")));
        }
        let claim = |name: &Option<Spanned<String>>, default: &str| match name {
            None => Claim::new(default).ok_or_else(|| self.whole("a claim has no name")),
            Some(name) => Claim::new(name.get_ref()).ok_or_else(|| {
                let expected = "expected a claim's name, or a path such as /realm_access/roles (RFC 6901)";
                self.at(name, format!("\"{}\" is no claim; {expected}", name.get_ref()))
            }),
        };
        let realm = match &raw.realm {
            None => Issuer::default_realm(url),
            Some(realm) => realm.get_ref().clone(),
        };
        if let Err(error) = Issuer::check_realm(&realm) {
            return Err(match &raw.realm {
                Some(given) => self.at(given, error.to_string()),
                None => self.at(&raw.url, format!("{error}, in realm = \"NAME\"")),
            });
        }
        let issuer = Issuer {
            url: url.clone(),
            realm,
            audiences: raw.audiences.get_ref().clone(),
            takes_any_audience: raw.any_audience,
            algorithms: self.algorithms(raw.algorithms.as_ref())?,
            scopes: raw.scopes.clone(),
            user: claim(&raw.user, "sub")?,
            groups: claim(&raw.groups, "wlcg.groups")?,
        };
        let folder = self.file.parent().unwrap_or_else(|| "".as_ref());
        let file = raw.authorities.as_ref().map(|file| (file, folder.join(file.get_ref())));
        let at = |error: String| match &raw.authorities {
            Some(file) => self.at(file, error),
            None => self.at(&raw.url, error),
        };
        let https = Https::new(file.as_ref().map(|(_, path)| &**path)).map_err(|error| at(error.to_string()))?;
        let authorities = file.map(|(_, path)| std::fs::read(path)).transpose();
        let authorities = authorities.map_err(|error| at(phoebus_net::reason(&error)))?;
        Ok(TokenIssuer { issuer, https, authorities })
    }

    fn algorithms(&self, names: Option<&Spanned<Vec<Spanned<String>>>>) -> Result<Vec<Algorithm>, ConfigError> {
        let Some(names) = names else { return Ok(ALGORITHMS.to_vec()) };
        let known = || ALGORITHMS.map(|algorithm| format!("{algorithm:?}"));
        let read = |name: &Spanned<String>| {
            let found = ALGORITHMS.iter().zip(known()).find(|(_, known)| known == name.get_ref());
            found
                .map(|(algorithm, _)| *algorithm)
                .ok_or_else(|| self.unknown(name, "asymmetric algorithm", known().iter()))
        };
        let algorithms = names.get_ref().iter().map(read).collect::<Result<Vec<_>, _>>()?;
        if algorithms.is_empty() {
            return Err(self.at(names, format!("algorithms is empty; expected some of: {}", known().join(", "))));
        }
        Ok(algorithms)
    }
}
