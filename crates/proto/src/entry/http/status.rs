//! The answers that end a connection, and which of them fits the code of a refused session.

use crate::session::Code;

/// A response that ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) number: u16,
    pub(super) phrase: &'static str,
    /// Header fields besides those of every response.
    pub(super) fields: &'static str,
}

pub(super) const BAD_REQUEST: Status = Status { number: 400, phrase: "Bad Request", fields: "" };
pub(super) const METHOD: Status = Status { number: 405, phrase: "Method Not Allowed", fields: "Allow: CONNECT\r\n" };
pub(super) const TOO_LONG: Status = Status { number: 431, phrase: "Request Header Fields Too Large", fields: "" };
pub(super) const VERSION: Status = Status { number: 505, phrase: "HTTP Version Not Supported", fields: "" };
pub(super) const FORBIDDEN: Status = Status { number: 403, phrase: "Forbidden", fields: "" };
pub(super) const TOO_MANY: Status = Status { number: 429, phrase: "Too Many Requests", fields: "" };
pub(super) const TIMEOUT: Status = Status { number: 408, phrase: "Request Timeout", fields: "" };
pub(super) const UNAVAILABLE: Status = Status { number: 503, phrase: "Service Unavailable", fields: "" };
pub(super) const BAD_GATEWAY: Status = Status { number: 502, phrase: "Bad Gateway", fields: "" };
pub(super) const GATEWAY_TIMEOUT: Status = Status { number: 504, phrase: "Gateway Timeout", fields: "" };
pub(super) const PASSWORD: Status = Status {
    number: 407,
    phrase: "Proxy Authentication Required",
    fields: "Proxy-Authenticate: Basic realm=\"phoebus\", charset=\"UTF-8\"\r\n",
};

/// The status for a code, and its name in RFC 9209 §2.3.
pub(super) fn status_of(code: Code) -> (Status, Option<&'static str>) {
    match code {
        Code::NotAllowed => (FORBIDDEN, Some("http_request_denied")),
        Code::AuthRequired | Code::AuthFailed => (FORBIDDEN, Some("http_request_denied")),
        Code::Limit => (UNAVAILABLE, Some("connection_limit_reached")),
        Code::Draining => (UNAVAILABLE, Some("destination_unavailable")),
        Code::TimedOut | Code::HandshakeTimeout => (GATEWAY_TIMEOUT, Some("connection_timeout")),
        Code::NameNotFound => (BAD_GATEWAY, Some("dns_error")),
        Code::Refused => (BAD_GATEWAY, Some("connection_refused")),
        Code::NoRoute | Code::NetworkUnreachable | Code::HostUnreachable => {
            (BAD_GATEWAY, Some("destination_ip_unroutable"))
        }
        Code::Loop => (BAD_GATEWAY, Some("proxy_loop_detected")),
        Code::Internal => (BAD_GATEWAY, Some("proxy_internal_error")),
        _ => (BAD_GATEWAY, Some("destination_unavailable")),
    }
}
