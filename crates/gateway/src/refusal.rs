//! A session that is not to be, and why (P10, P18).

use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::Code;
use phoebus_proto::session::message::{Refused, Requirements};

/// REFUSED, owned.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    /// The reason, for machines.
    pub(crate) code: Code,
    /// The reason, as a sentence.
    pub(crate) reason: String,
    /// The gateway or address at fault; empty: this gateway.
    pub(crate) hop: String,
    /// What would have been accepted.
    pub(crate) limits: Box<Requirements>,
    /// A better gateway.
    pub(crate) redirect: Option<Endpoint>,
}

impl Refusal {
    /// By this gateway.
    pub(crate) fn new(code: Code, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), hop: String::new(), limits: Box::default(), redirect: None }
    }

    /// Because of what lies behind `hop`.
    pub(crate) fn at(hop: impl Into<String>, code: Code, reason: impl Into<String>) -> Self {
        Self { hop: hop.into(), ..Self::new(code, reason) }
    }

    /// As another gateway has said it.
    pub(crate) fn passed_on(refused: &Refused<'_>) -> Self {
        Self {
            code: refused.code,
            reason: refused.reason.to_owned(),
            hop: refused.hop.to_owned(),
            limits: Box::new(refused.limits),
            redirect: refused.redirect.map(|endpoint| endpoint.to_owned()),
        }
    }

    /// The message, from the gateway `name`.
    pub(crate) fn message<'a>(&'a self, name: &'a str) -> Refused<'a> {
        Refused {
            code: self.code,
            reason: text(&self.reason),
            hop: if self.hop.is_empty() { name } else { text(&self.hop) },
            limits: *self.limits,
            redirect: self.redirect.as_ref().map(Endpoint::as_ref),
        }
    }
}

/// As much of `text` as a message takes: fields are short and free of control characters.
pub(crate) fn text(text: &str) -> &str {
    const MAX: usize = 512;
    let plain = text.find(char::is_control).map_or(text, |end| &text[..end]);
    let mut end = plain.len().min(MAX);
    while !plain.is_char_boundary(end) {
        end -= 1;
    }
    &plain[..end]
}
