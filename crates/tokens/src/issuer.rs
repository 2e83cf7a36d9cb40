//! Who issues tokens, and what is demanded of them.

use crate::claims::{Claim, Claims, Verified};
use crate::crypto;
use crate::error::TokenError;
use crate::keys::KeySet;
use crate::token::Token;
use jsonwebtoken::{Algorithm, Validation};
use std::collections::HashSet;

/// Tolerance for clocks that differ, in seconds.
const LEEWAY: u64 = 60;
/// Most groups in a token.
const GROUPS_MAX: usize = 32;
/// What tokens say that are for every service: by the WLCG profile, and SciTokens.
const ANY_AUDIENCE: [&str; 2] = ["https://wlcg.cern.ch/jwt/v1/any", "ANY"];
/// The name that stands for every user in rules. No token has it.
const ANY_USER: &str = "*";

/// An issuer, and what is demanded of its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    /// Its URL, exactly as in tokens (`iss`).
    pub url: String,
    /// What follows the names of its users and groups, after `@`, so that they are not taken for those of others. Empty: the names
    /// count as they are.
    pub realm: String,
    /// What tokens are for (`aud`): one of these.
    pub audiences: Vec<String>,
    /// Whether tokens that are for every service count too.
    pub takes_any_audience: bool,
    /// The algorithms that it may sign with.
    pub algorithms: Vec<Algorithm>,
    /// The scopes that a token has to have, all of them.
    pub scopes: Vec<String>,
    /// Which claim names the user.
    pub user: Claim,
    /// Which claim names the user's groups.
    pub groups: Claim,
}

/// A realm that cannot be told from a name.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is no realm; expected letters, digits, \"-\", \".\" and \"_\"")]
pub struct RealmError(String);

impl Issuer {
    /// The realm that an issuer has unless it is given another: its host.
    pub fn default_realm(url: &str) -> String {
        let rest = url.strip_prefix("https://").unwrap_or(url);
        rest[..rest.find('/').unwrap_or(rest.len())].replace(':', "-")
    }

    /// Checks a realm.
    ///
    /// # Errors
    /// [`RealmError`].
    pub fn check_realm(realm: &str) -> Result<(), RealmError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if realm.len() <= 255 && realm.chars().all(is_plain) { Ok(()) } else { Err(RealmError(realm.to_owned())) }
    }

    /// Verifies a token with the issuer's keys; `now` is in seconds since 1970.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn verify(&self, token: &Token, keys: &KeySet, now: u64) -> Result<Verified, TokenError> {
        if token.issuer() != self.url {
            return Err(token.unknown_issuer());
        }
        if !self.algorithms.contains(&token.algorithm) {
            let names: Vec<String> = self.algorithms.iter().map(|algorithm| format!("{algorithm:?}")).collect();
            return Err(TokenError::Algorithm(names.join(", ")));
        }
        let key = keys.key(token.key_id.as_deref(), token.algorithm).ok_or(TokenError::UnknownKey)?;
        crypto::install();
        // The claims are judged below, by a time that is an argument.
        let mut validation = Validation::new(token.algorithm);
        (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
        validation.required_spec_claims = HashSet::new();
        let decoded = jsonwebtoken::decode::<Claims>(token.text(), key, &validation);
        let claims = decoded.map_err(|_| TokenError::Signature)?.claims;
        self.judge(&claims, now)
    }

    fn judge(&self, claims: &Claims, now: u64) -> Result<Verified, TokenError> {
        if claims.text("iss")? != self.url {
            return Err(TokenError::Signature);
        }
        let expires = claims.time("exp")?.ok_or_else(|| TokenError::Claim("exp".into(), "seconds since 1970"))?;
        if now >= expires.saturating_add(LEEWAY) {
            return Err(TokenError::Expired(now - expires));
        }
        for name in ["nbf", "iat"] {
            let begin = claims.time(name)?.unwrap_or(0);
            if begin > now.saturating_add(LEEWAY) {
                return Err(TokenError::NotYet(begin - now));
            }
        }
        self.judge_audience(&claims.texts("aud")?)?;
        let scopes = claims.scopes()?;
        if let Some(lacking) = self.scopes.iter().find(|scope| !scopes.contains(&scope.as_str())) {
            return Err(TokenError::Scope(lacking.clone()));
        }
        let subject = match claims.optional_text("sub")? {
            Some(subject) => format!("{}#{subject}", self.url),
            None => self.url.clone(),
        };
        let user = match claims.optional_text(self.user.name())? {
            Some(ANY_USER) => return Err(TokenError::Claim(self.user.name().to_owned(), "a user's name")),
            Some(user) => self.in_realm(user),
            None => String::new(),
        };
        let groups = claims.texts(self.groups.name())?;
        if groups.len() > GROUPS_MAX {
            return Err(TokenError::Groups(groups.len(), GROUPS_MAX));
        }
        let groups = groups.into_iter().map(|group| self.in_realm(group)).collect();
        Ok(Verified { subject, user, groups, expires: expires.saturating_add(LEEWAY) })
    }

    fn judge_audience(&self, audiences: &[&str]) -> Result<(), TokenError> {
        let is_meant = |audience: &&str| {
            self.audiences.iter().any(|own| own == audience)
                || self.takes_any_audience && ANY_AUDIENCE.contains(audience)
        };
        if audiences.iter().any(is_meant) { Ok(()) } else { Err(TokenError::Audience(self.audiences.join(" or "))) }
    }

    fn in_realm(&self, name: &str) -> String {
        if self.realm.is_empty() { name.to_owned() } else { format!("{name}@{}", self.realm) }
    }
}
