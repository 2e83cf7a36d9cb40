//! A token as it arrives, before anything of it is believed.

use crate::claims::Claims;
use crate::discovery::shown;
use crate::error::TokenError;
use jsonwebtoken::Algorithm;
use std::fmt;

/// Longest token, in bytes. A WLCG token has one or two KiB.
pub const TOKEN_MAX: usize = 12 << 10;

/// Types of tokens that may be shown (RFC 8725 §3.11): access tokens, and what old issuers write.
const TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];

/// A token whose form is right. Its claims are not verified. Debug output has nothing of it.
#[derive(Clone)]
pub struct Token {
    text: String,
    issuer: String,
    pub(crate) algorithm: Algorithm,
    pub(crate) key_id: Option<String>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("issuer", &shown(&self.issuer)).finish_non_exhaustive()
    }
}

impl Token {
    /// Reads a token.
    ///
    /// # Errors
    /// [`TokenError::Malformed`], [`TokenError::Claim`].
    pub fn read(data: &[u8]) -> Result<Self, TokenError> {
        if data.len() > TOKEN_MAX {
            return Err(TokenError::Malformed("it is longer than 12 KiB"));
        }
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !data.iter().all(is_plain) {
            return Err(TokenError::Malformed("it has other characters than A-Z, a-z, 0-9, \"-\", \"_\" and \".\""));
        }
        let text = String::from_utf8(data.to_vec()).map_err(|_| TokenError::Malformed("it is no text"))?;
        if text.split('.').count() != 3 {
            return Err(TokenError::Malformed("it has not three parts"));
        }
        let header = jsonwebtoken::decode_header(&text)
            .map_err(|_| TokenError::Malformed("its header is malformed or names no known algorithm"))?;
        let is_typed = header.typ.as_ref().is_none_or(|typ| TYPES.contains(&typ.to_ascii_lowercase().as_str()));
        if !is_typed {
            return Err(TokenError::Malformed("its type (typ) is another than JWT or at+jwt"));
        }
        if header.crit.is_some() {
            return Err(TokenError::Malformed("its header demands extensions (crit)"));
        }
        let claims: Claims = jsonwebtoken::dangerous::insecure_decode_claims(&text)
            .map_err(|_| TokenError::Malformed("its claims are no JSON object"))?;
        let issuer = claims.text("iss")?.to_owned();
        Ok(Self { text, issuer, algorithm: header.alg, key_id: header.kid })
    }

    /// Who has issued it, as it says.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The error for a token of somebody who is not known.
    pub fn unknown_issuer(&self) -> TokenError {
        TokenError::UnknownIssuer(shown(&self.issuer))
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}
