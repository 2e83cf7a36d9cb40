//! SITE SETNETSTACK: what carries data connections (U12): drivers with commas between, the lowest first, as GCT has them.
//!
//! A stack is a transport, and `gsi` above it where the client names what DCAU and PROT ask for anyway. Clients choose among
//! what the administrator lists, and a refusal names the driver.

use super::{Session, Step};
use phoebus_proto::gridftp::reply::Reply;

/// What GCT calls the driver that DCAU and PROT put on a stack.
const SECURITY: &str = "gsi";

impl Session {
    pub(super) fn net_stack(&mut self, stack: &str) -> Step {
        let transport = match self.transport_of(stack) {
            Ok(transport) => transport,
            Err(reason) => {
                let lines = ["Setting data channel driver stack failed.".to_owned(), reason, "End.".to_owned()];
                return Step::Say(Reply::of_lines(500, lines));
            }
        };
        if self.settings.transport != transport {
            // What is kept goes by another way.
            self.aim_at_nothing();
        }
        self.settings.transport = transport;
        Step::say(250, "OK.")
    }

    /// The transport that `stack` names, none being the server's own.
    fn transport_of(&self, stack: &str) -> Result<Option<String>, String> {
        if stack.eq_ignore_ascii_case("default") {
            return Ok(None);
        }
        let mut drivers = stack.split(',').map(str::trim);
        let lowest = drivers.next().unwrap_or_default();
        for driver in drivers {
            if driver != SECURITY {
                return Err(format!("driver {driver} cannot be above another; a transport and then gsi were expected"));
            }
            if !self.is_guarded() {
                return Err("driver gsi needs AUTH GSSAPI, and DCAU A or S".to_owned());
            }
        }
        if let Some((name, options)) = lowest.split_once(':') {
            return Err(format!("driver {name} takes no options here, and \"{options}\" was given"));
        }
        match self.rules.drivers.iter().find(|driver| **driver == lowest) {
            Some(driver) => Ok(Some(driver.clone())),
            None => Err(format!("{lowest} driver not whitelisted")),
        }
    }
}
