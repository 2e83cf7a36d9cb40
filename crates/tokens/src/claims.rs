//! What a token says: its claims (RFC 7519 §4).

use crate::error::TokenError;
use phoebus_proto::text::is_unprintable;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Longest name in a claim, in bytes: with a realm or an issuer's URL, it fits into a text of the session protocol.
const NAME_MAX: usize = 256;

/// The claims of a token, by name.
#[derive(Debug, Deserialize)]
pub(crate) struct Claims(Map<String, Value>);

/// Where a value stands among the claims: the name of a claim, or, if it begins with `/`, a path as in RFC 6901, such as
/// `/realm_access/roles`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim(String);

/// What a verified token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The issuer, and the subject there: `https://issuer.example#subject`.
    pub subject: String,
    /// The user's name, with the issuer's realm if it has one. Empty if the token names no user.
    pub user: String,
    /// The user's groups, with the realm.
    pub groups: Vec<String>,
    /// When the token expires, in seconds since 1970.
    pub expires: u64,
}

impl Claim {
    /// The claim of this name, or at this path. `None` for no name, or a path that is malformed.
    pub fn new(name: &str) -> Option<Self> {
        let is_path = name.starts_with('/');
        let has_escapes = name.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        (!name.is_empty() && (!is_path || has_escapes)).then(|| Self(name.to_owned()))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Claims {
    fn get(&self, name: &str) -> Option<&Value> {
        let Some(path) = name.strip_prefix('/') else { return self.0.get(name) };
        let (first, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
        self.0.get(&first.replace("~1", "/").replace("~0", "~"))?.pointer(rest)
    }

    /// A text that has to be there.
    pub(crate) fn text(&self, name: &str) -> Result<&str, TokenError> {
        let text = self.get(name).and_then(Value::as_str).filter(|text| is_name(text));
        text.ok_or_else(|| TokenError::Claim(name.to_owned(), "a text of 1 to 256 bytes"))
    }

    /// A text that may be there.
    pub(crate) fn optional_text(&self, name: &str) -> Result<Option<&str>, TokenError> {
        if self.get(name).is_some() { self.text(name).map(Some) } else { Ok(None) }
    }

    /// A time that may be there, in seconds since 1970 (RFC 7519 §2, NumericDate).
    pub(crate) fn time(&self, name: &str) -> Result<Option<u64>, TokenError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        // Fractions are allowed, and mean nothing here.
        let seconds =
            value.as_u64().or_else(|| value.as_f64().filter(|time| (0.0..1e15).contains(time)).map(|time| time as u64));
        seconds.map(Some).ok_or_else(|| TokenError::Claim(name.to_owned(), "seconds since 1970"))
    }

    /// Texts that may be there: a list, or a single one.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<&str>, TokenError> {
        let malformed = || TokenError::Claim(name.to_owned(), "texts of 1 to 256 bytes");
        let texts = match self.get(name) {
            None => Vec::new(),
            Some(Value::String(text)) => vec![text.as_str()],
            Some(Value::Array(all)) => {
                all.iter().map(Value::as_str).collect::<Option<Vec<_>>>().ok_or_else(malformed)?
            }
            Some(_) => return Err(malformed()),
        };
        if texts.iter().all(|text| is_name(text)) { Ok(texts) } else { Err(malformed()) }
    }

    /// The scopes: words of a text (RFC 8693 §4.2), or a list.
    pub(crate) fn scopes(&self) -> Result<Vec<&str>, TokenError> {
        match self.get("scope") {
            Some(Value::String(text)) => Ok(text.split(' ').filter(|word| !word.is_empty()).collect()),
            _ => self.texts("scope"),
        }
    }
}

/// Whether a text can be a name in rules and logs: short, and without characters that change how a line looks.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_MAX && !text.chars().any(is_unprintable)
}
