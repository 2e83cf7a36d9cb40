//! Where an issuer's keys are: OpenID Connect Discovery 1.0 §4, and RFC 8414 §3.

use serde::Deserialize;

/// Why an issuer's metadata cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// It is not JSON with the fields that are needed.
    #[error("it is no metadata of an issuer: {0}")]
    Malformed(serde_json::Error),
    /// It is another issuer's (RFC 8414 §3.3).
    #[error("it is the metadata of the issuer \"{0}\", which is another text than the configured URL")]
    OtherIssuer(String),
    /// The keys would come without TLS.
    #[error("its jwks_uri \"{0}\" is no https:// URL")]
    Unprotected(String),
}

/// The URLs at which an issuer's metadata may be. The second counts where there is nothing at the first.
pub fn metadata_urls(issuer: &str) -> [String; 2] {
    let issuer = issuer.trim_end_matches('/');
    let rest = issuer.strip_prefix("https://").unwrap_or(issuer);
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    [
        format!("{issuer}/.well-known/openid-configuration"),
        format!("https://{host}/.well-known/oauth-authorization-server{path}"),
    ]
}

/// The URL of the keys, from the metadata of `issuer`.
///
/// # Errors
/// [`MetadataError`].
pub fn keys_url(issuer: &str, metadata: &[u8]) -> Result<String, MetadataError> {
    #[derive(Deserialize)]
    struct Metadata {
        issuer: String,
        jwks_uri: String,
    }
    let found: Metadata = serde_json::from_slice(metadata).map_err(MetadataError::Malformed)?;
    if found.issuer != issuer {
        return Err(MetadataError::OtherIssuer(shown(&found.issuer)));
    }
    if !found.jwks_uri.starts_with("https://") {
        return Err(MetadataError::Unprotected(shown(&found.jwks_uri)));
    }
    Ok(found.jwks_uri)
}

/// A text from outside, for a message: short, and without control characters.
pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(200).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_beside_the_issuer() {
        for (issuer, first, second) in [
            (
                "https://a.example",
                "https://a.example/.well-known/openid-configuration",
                "https://a.example/.well-known/oauth-authorization-server",
            ),
            (
                "https://a.example/",
                "https://a.example/.well-known/openid-configuration",
                "https://a.example/.well-known/oauth-authorization-server",
            ),
            (
                "https://a.example/x/y",
                "https://a.example/x/y/.well-known/openid-configuration",
                "https://a.example/.well-known/oauth-authorization-server/x/y",
            ),
        ] {
            assert_eq!(metadata_urls(issuer), [first, second]);
        }
    }

    #[test]
    fn metadata_has_to_be_the_issuers_own() {
        let of = |text: &str| keys_url("https://a.example", text.as_bytes());
        assert_eq!(
            of(r#"{"issuer":"https://a.example","jwks_uri":"https://k.example/k"}"#).unwrap(),
            "https://k.example/k"
        );
        assert!(matches!(
            of(r#"{"issuer":"https://a.example/","jwks_uri":"https://k.example/k"}"#),
            Err(MetadataError::OtherIssuer(_))
        ));
        assert!(matches!(
            of(r#"{"issuer":"https://a.example","jwks_uri":"http://k.example/k"}"#),
            Err(MetadataError::Unprotected(_))
        ));
        for text in ["", "[]", "{}", r#"{"issuer":"https://a.example"}"#, r#"{"issuer":1,"jwks_uri":"https://k"}"#] {
            assert!(matches!(of(text), Err(MetadataError::Malformed(_))), "{text}");
        }
    }
}
