//! SITE SETNETSTACK, SITE SETDCSTACK: what carries data connections (U12): drivers with commas between, the lowest first, as GCT has
//! them.
//!
//! Which drivers there are, and what may be said of each, is in `drivers`. `gsi` and `tls` name what DCAU and PROT ask for anyway:
//! they protect all that is below and above them, wherever they stand. A refusal names the driver.

use super::super::drivers::{Stack, parse};
use super::protect::Security;
use super::{Session, Step};
use crate::data::Protection;
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
            // What is kept goes by another way.
            self.aim_at_nothing();
        }
        self.settings.stack = stack;
        Step::say(250, "OK.")
    }

    /// What `stack` comes to, none being the server's own.
    fn stack_of(&self, stack: &str) -> Result<Option<Stack>, String> {
        if stack.eq_ignore_ascii_case("default") {
            return Ok(None);
        }
        let mut layers = parse(stack)?;
        for (i, layer) in layers.iter().enumerate() {
            let why_not = match layer.name.as_str() {
                "gsi" if !self.is_guarded() => "needs AUTH GSSAPI, and DCAU A or S",
                "tls" if !self.is_under_tls() => "needs AUTH TLS, and PROT P",
                "gsi" | "tls" if i == 0 => "cannot be the lowest; a transport was expected",
                "gsi" | "tls" if !layer.options.is_empty() => "takes no options here",
                _ => continue,
            };
            return Err(format!("driver {} {why_not}", layer.name));
        }
        layers.retain(|layer| !matches!(layer.name.as_str(), "gsi" | "tls"));
        self.rules.drivers.stack(stack, &layers).map(Some)
    }

    fn is_under_tls(&self) -> bool {
        matches!(self.security, Security::Tls) && self.protection == Protection::Private
    }
}
