//! SITE SETNETSTACK, SITE SETDCSTACK: the stack of drivers under data connections (U12), separated by commas, the
//! lowest first, as in GCT.
//!
//! `drivers` has the drivers and their options. `gsi` and `tls` repeat what DCAU and PROT ask for: they protect the
//! whole stack, wherever they stand. `tls` with a key protects by itself. A refusal names the driver. If a driver needs
//! keys (`quic`, `tls:key=…`), the reply has this end's key (`data::pinned`).

use super::super::drivers::Stack;
use super::protect::Security;
use super::{Session, Step};
use crate::data::pinned::OwnKey;
use crate::data::stack::{Layer, OBJECT, QUIC, TLS, parse};
use crate::data::{ChannelSecurity, Protection};
use phoebus_proto::gridftp::reply::Reply;

impl Session {
    pub(super) fn net_stack(&mut self, stack: &str) -> Step {
        let stack = match self.stack_of(stack) {
            Ok(stack) => stack,
            Err(reason) => {
                let lines = ["Setting data channel driver stack failed.".to_owned(), reason, "End.".to_owned()];
                return Step::Say(Reply::of_lines(500, lines));
            }
        };
        if self.settings.stack != stack {
            // Kept connections use the earlier stack.
            self.forget_data_endpoint();
        }
        let answer = stack.as_ref().and_then(Stack::answer);
        self.settings.stack = stack;
        Step::say(250, answer.as_deref().unwrap_or("OK."))
    }

    /// Resolves `stack`; `None` is the server's default.
    fn stack_of(&mut self, stack: &str) -> Result<Option<Stack>, String> {
        if stack.eq_ignore_ascii_case("default") {
            return Ok(None);
        }
        let mut layers = parse(stack)?;
        let keyed = |layer: &Layer| layer.name == TLS && layer.options.iter().any(|(key, _)| key == "key");
        for (i, layer) in layers.iter().enumerate() {
            let why_not = match layer.name.as_str() {
                "gsi" if !self.authenticates_data() => "needs AUTH GSSAPI, and DCAU A or S",
                "tls" if i > 0 && keyed(layer) => continue,
                "tls" if !keyed(layer) && !self.is_under_tls() => "needs AUTH TLS, and PROT P",
                "gsi" | "tls" if i == 0 => "cannot be the lowest; a transport was expected",
                "gsi" | "tls" if !layer.options.is_empty() => "takes no options here",
                _ => continue,
            };
            return Err(format!("driver {} {why_not}", layer.name));
        }
        layers.retain(|layer| layer.name != "gsi" && (layer.name != TLS || keyed(layer)));
        if self.own_key.is_none() && layers.iter().any(|layer| [QUIC, OBJECT, TLS].contains(&&*layer.name)) {
            self.own_key = Some(OwnKey::new().map_err(|error| error.to_string())?);
        }
        self.rules.drivers.stack(stack, &layers, self.own_key.as_ref()).map(Some)
    }

    /// Combines `security`, which PROT and DCAU ask for, with the protection of the stack.
    ///
    /// # Errors
    /// The reply, if the two exclude each other, or the client has named no key.
    pub(super) fn with_stack_security(
        &self,
        security: Option<ChannelSecurity>,
    ) -> Result<Option<ChannelSecurity>, Step> {
        let Some(stack) = &self.settings.stack else { return Ok(security) };
        if let Some(driver) = stack.lacks_key() {
            let text = format!(
                "driver {driver} needs the key of the other end: SITE SETNETSTACK with {driver}:key=sha256-… names it"
            );
            return Err(Step::say(503, text));
        }
        match (stack.pinned(), security) {
            // TLS has keys for objects.
            (Some(_), Some(tls @ ChannelSecurity::TlsServer { .. })) if stack.objects().is_some() => Ok(Some(tls)),
            (Some(_), Some(_)) => Err(Step::say(
                536,
                "tls and object with a key are for data that nothing else protects: DCAU N and PROT C have to come first",
            )),
            (Some(pinned), None) => Ok(Some(ChannelSecurity::Pinned(pinned))),
            (None, security) => Ok(security),
        }
    }

    fn is_under_tls(&self) -> bool {
        self.has_delegated_tls() || matches!(self.security, Security::Tls) && self.protection == Protection::Private
    }
}
