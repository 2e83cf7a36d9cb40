//! What clients of a listener may speak: `entry`.

use super::carriage::{Carriage, MAKE};
use super::reader::Reader;
use super::{ConfigError, Mechanism, raw};
use phoebus_proto::entry::Entry;
use std::net::SocketAddr;

impl Reader<'_> {
    /// What clients of a listener may speak. Default: the session protocol.
    pub(super) fn entries(
        &self,
        listen: &raw::Listen,
        (address, transport): (SocketAddr, &str),
        auth: &[Mechanism],
        carriage: &Carriage,
    ) -> Result<Vec<Entry>, ConfigError> {
        let known = "session, socks, http, or several of them in brackets";
        let Some(given) = &listen.entry else { return Ok(vec![Entry::Session]) };
        let names = match given.get_ref() {
            raw::Names::One(name) => std::slice::from_ref(name),
            raw::Names::Several(names) => names,
        };
        if names.is_empty() {
            return Err(self.at(given, format!("entry is empty; expected {known}")));
        }
        let mut all = Vec::new();
        for name in names {
            let entry = Entry::ALL.into_iter().find(|entry| entry.name() == name);
            let entry =
                entry.ok_or_else(|| self.at(given, format!("there is no entry \"{name}\"; expected {known}")))?;
            if all.contains(&entry) {
                return Err(self.at(given, format!("entry has \"{name}\" twice")));
            }
            all.push(entry);
        }
        let Some(other) = all.iter().find(|entry| **entry != Entry::Session) else { return Ok(all) };
        if transport != "tcp" {
            let message = format!("entry \"{other}\" is for programs, which use TCP; expected transport = \"tcp\"");
            return Err(self.at(given, message));
        }
        let is_private = carriage.has_credentials || address.ip().is_loopback();
        let can = |way: &Mechanism| match way {
            Mechanism::Certificate | Mechanism::Grid | Mechanism::Agent(_) => true,
            Mechanism::Scram { .. } => is_private,
            // Neither protocol has a field for them.
            Mechanism::Token | Mechanism::Anonymous => false,
        };
        if auth.is_empty() || auth.iter().any(can) {
            return Ok(all);
        }
        let message = if auth.iter().any(|way| matches!(way, Mechanism::Scram { .. })) {
            format!(
                "entry \"{other}\" takes passwords only inside TLS or on loopback; {MAKE}, or an address of loopback"
            )
        } else {
            format!(
                "programs cannot authenticate by entry \"{other}\" as auth demands; expected \"scram\", \"certificate\" or \"grid\" \
                 in auth, or entry = \"session\""
            )
        };
        Err(self.at(given, message))
    }
}
