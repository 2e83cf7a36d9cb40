//! Why a session is refused (P10, P18).

use crate::config::RulePlace;
use phoebus_net::Error;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::session::Code;
use phoebus_proto::session::message::{Refused, Requirements};

/// The content of a REFUSED message.
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
    /// A gateway that the requester should ask instead.
    pub(crate) redirect: Option<Box<Endpoint>>,
    /// The rule that has decided.
    pub(crate) rule: Option<RulePlace>,
}

impl Refusal {
    /// By this gateway.
    pub(crate) fn new(code: Code, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), hop: String::new(), limits: Box::default(), redirect: None, rule: None }
    }

    /// Because of what lies behind `hop`.
    pub(crate) fn at(hop: impl Into<String>, code: Code, reason: impl Into<String>) -> Self {
        Self { hop: hop.into(), ..Self::new(code, reason) }
    }

    /// A refusal that another gateway has sent to this one. If it names a better gateway, only this gateway could follow
    /// that. The gateways before it get the name in the reason.
    pub(crate) fn passed_on(refused: &Refused<'_>) -> Self {
        let better = refused.redirect.map(|better| format!(" (it names a better gateway: {better})"));
        Self {
            code: refused.code,
            reason: format!("{}{}", refused.reason, better.unwrap_or_default()),
            hop: refused.hop.to_owned(),
            limits: Box::new(refused.limits),
            redirect: None,
            rule: None,
        }
    }

    /// The message, from the gateway `name`.
    pub(crate) fn message<'a>(&'a self, name: &'a str) -> Refused<'a> {
        Refused {
            code: self.code,
            reason: text(&self.reason),
            hop: if self.hop.is_empty() { name } else { text(&self.hop) },
            limits: *self.limits,
            redirect: self.redirect.as_deref().map(Endpoint::as_ref),
        }
    }
}

/// `error` as a sentence about the gateway `name`, if it is about what that has tried: the failed hop, which clients read
/// first, is the other end.
pub(crate) fn tried_by(name: &str, error: &Error) -> String {
    match error.most_informative() {
        Error::Connect { .. } | Error::Timeout { .. } | Error::Untrusted { .. } | Error::Resolve { .. } => {
            format!("{name} {error}")
        }
        _ => error.to_string(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_gateway_is_named_to_the_client_and_the_path() {
        let better: Endpoint = "pg9/5006".parse().unwrap();
        let refused = Refused {
            code: Code::Limit,
            reason: "it is full",
            hop: "pg2",
            limits: Requirements::default(),
            redirect: Some(better.as_ref()),
        };
        let refusal = Refusal::passed_on(&refused);
        let message = refusal.message("pg1");
        assert_eq!((message.hop, message.redirect), ("pg2", None));
        assert_eq!(message.reason, "it is full (it names a better gateway: pg9:5006)");
    }
}
