//! What carries data connections where it is not TCP as the kernel has it (U9–U12): a stack of drivers, which both ends make use of.
//! The server is told by `SITE SETNETSTACK`; where drivers need keys, the two ends tell each other theirs with it
//! ([`pinned`](crate::data::pinned)).

use crate::data::pinned::{self, Own, Pinned};
use crate::data::stack::{Changes, Layer, QUIC, RATE, TLS};
use phoebus_net::Profile;
use phoebus_net::Registry;
use phoebus_net::tcp::Tcp;
use phoebus_net::transport::Transport;
use phoebus_proto::gridftp::inside;
use phoebus_proto::gridftp::pin::Pin;
use std::io;
use std::sync::Arc;

/// How large the buffers may be that a stack asks for at this end, in bytes.
const BUFFER: u64 = 1 << 30;

/// What is said of protection by certificates: it follows from what data connections agree on in any case.
const GSI: &str = "gsi";

/// A stack of drivers.
#[derive(Debug, Clone)]
pub struct NetStack {
    /// As it was written.
    text: String,
    /// What is lowest; none if that is QUIC, of which each control connection has its own.
    transport: Option<Arc<dyn Transport>>,
    changes: Changes,
    /// What is said of protection by certificates, or by TLS.
    protection: Option<String>,
    /// Whether TLS is that of the control connection, and not one between keys.
    certified: bool,
    /// Whether data goes as it would without, where the server refuses it.
    pub(super) optional: bool,
}

/// What a server was told, and what came of it.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) line: String,
    pub(super) transport: Arc<dyn Transport>,
    changes: Changes,
    /// What protects connections between keys.
    pub(super) pinned: Option<Pinned>,
    /// Whether the other end of a connection has the key that it named.
    pub(super) keyed: bool,
}

impl NetStack {
    /// What `layers` come to at this end, the lowest of which is the first; `text` is what they were read from.
    ///
    /// # Errors
    /// Why not, in words that name the driver.
    pub fn new(text: &str, layers: &[Layer]) -> Result<Self, String> {
        let registry = Registry::standard();
        let (mut transport, mut protection, mut changes) = (None, None, Changes::default());
        for (i, layer) in layers.iter().enumerate() {
            let name = layer.name.as_str();
            match registry.get(name) {
                Some(_) if i > 0 => return Err(not_lowest(name, layers, i)),
                None if name == QUIC && i > 0 => return Err(not_lowest(name, layers, i)),
                found if found.is_some() || name == QUIC => {
                    if let Some((key, _)) = layer.options.iter().find(|(key, _)| key == "key") {
                        return Err(format!("driver {name}: {key} is what the two ends tell each other by themselves"));
                    }
                    changes.transport(layer, BUFFER)?;
                    transport = Some(found.cloned());
                }
                None if name == RATE => changes.rate(layer)?,
                None if [GSI, TLS].contains(&name) && i == 0 => {
                    return Err(format!(
                        "driver {name} goes over a transport, which has to be named: {},{name}",
                        Tcp.name()
                    ));
                }
                None if [GSI, TLS].contains(&name) && protection.is_some() => {
                    return Err(format!("driver {name}: what protects data is said already"));
                }
                None if [GSI, TLS].contains(&name) => {
                    if !layer.options.is_empty() {
                        return Err(format!("driver {name} takes no options here"));
                    }
                    protection = Some(name.to_owned());
                }
                _ => {
                    let known = registry.names().chain([QUIC, RATE, GSI, TLS]).collect::<Vec<_>>().join(", ");
                    return Err(format!("driver {name} is not to be had here; this end has {known}"));
                }
            }
        }
        // A rate is one of TCP where nothing else is said.
        let transport = transport.unwrap_or_else(|| Some(Arc::new(Tcp)));
        if transport.is_none() && protection.as_deref() == Some(TLS) {
            return Err("driver tls is above quic, which is encrypted".to_owned());
        }
        Ok(Self { text: text.to_owned(), transport, changes, protection, certified: false, optional: false })
    }

    /// TLS between keys, over TCP.
    pub fn tls() -> Self {
        let (text, protection) = (format!("{},{TLS}", Tcp.name()), Some(TLS.to_owned()));
        let transport: Option<Arc<dyn Transport>> = Some(Arc::new(Tcp));
        Self { text, transport, changes: Changes::default(), protection, certified: false, optional: false }
    }

    /// The same, in which `tls` is that of the control connection (RFC 4217).
    #[must_use]
    pub fn certified(self) -> Self {
        Self { certified: true, ..self }
    }

    /// The same, without which data goes as it would otherwise where the server refuses it.
    #[must_use]
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What is said of protection: `gsi` or `tls`.
    pub fn protection(&self) -> Option<&str> {
        self.protection.as_deref()
    }

    /// The driver whose ends have to know each other's keys, if there is one.
    pub(super) fn keyed(&self) -> Option<&'static str> {
        match self.protection() {
            _ if self.transport.is_none() => Some(QUIC),
            Some(TLS) if !self.certified => Some(TLS),
            _ => None,
        }
    }

    /// As servers are told it, if data connections are `proved` by certificates: GCT's client names `gsi` then, too, and its server
    /// does without it otherwise, after bytes have left in clear. `key` is one of the two ends'.
    pub(super) fn line(&self, proved: bool, key: Option<Pin>) -> String {
        let mut drivers: Vec<String> = self.text.split(',').map(|driver| driver.trim().to_owned()).collect();
        if let Some(keyed) = self.keyed() {
            // Without one the server tells its own all the same.
            let key = key.map(|key| key.to_string()).unwrap_or_default();
            for driver in &mut drivers {
                let (name, options) = driver.split_once(':').unwrap_or((driver, ""));
                if name.trim() == keyed {
                    let rest = if options.is_empty() { String::new() } else { format!(";{options}") };
                    *driver = format!("{keyed}:key={key}{rest}");
                }
            }
        }
        if proved && self.protection.is_none() {
            drivers.push(GSI.to_owned());
        }
        drivers.join(",")
    }

    /// What listings go by, which have no size by which their end could be told where the connection has none.
    pub(super) fn to_list(&self) -> Self {
        if self.tells_ends() {
            return self.clone();
        }
        let drivers: Vec<String> = [Tcp.name().to_owned()].into_iter().chain(self.protection.clone()).collect();
        let (text, transport) = (drivers.join(","), Some(Arc::new(Tcp) as Arc<dyn Transport>));
        Self { text, transport, changes: Changes::default(), ..self.clone() }
    }

    /// What comes of it with a server that has answered with its key, if there have to be any.
    pub(super) fn told(&self, line: String, keys: Option<(&Own, Pin)>) -> io::Result<Told> {
        let (transport, pinned) = match (&self.transport, keys) {
            (None, Some((own, theirs))) => (pinned::quic(own, theirs)?, None),
            (None, None) => return Err(io::ErrorKind::InvalidInput.into()),
            (Some(transport), keys) => {
                let pinned = keys.map(|(own, theirs)| Pinned::new(own, theirs));
                (transport.clone(), pinned)
            }
        };
        Ok(Told { line, transport, changes: self.changes, pinned, keyed: keys.is_some() })
    }

    /// Whether its connections say when they are at their end.
    pub(super) fn tells_ends(&self) -> bool {
        self.protection() == Some(TLS) || self.transport.as_ref().is_none_or(|transport| transport.name() != "udt")
    }

    /// Whether its connections are the kernel's.
    pub(super) fn is_tcp(&self) -> bool {
        self.transport.as_ref().is_some_and(|transport| transport.name() == Tcp.name())
    }
}

impl Told {
    /// What comes of it where data goes inside SSH over `relays`.
    pub(super) fn inside(relays: Arc<dyn Transport>) -> Self {
        let (line, changes) = (inside::DRIVER.to_owned(), Changes::default());
        Self { line, transport: relays, changes, pinned: None, keyed: false }
    }

    /// What the options of the stack make of `profile` for each of so many connections.
    pub(super) fn profile(&self, profile: Profile, connections: u32) -> Profile {
        self.changes.of(profile, connections.into())
    }
}

fn not_lowest(name: &str, layers: &[Layer], i: usize) -> String {
    format!("driver {name} has to be the lowest of a stack, and is above {}", layers[i - 1].name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::stack::parse;

    #[test]
    fn stacks_are_told_as_they_were_written() {
        let stack = |text: &str| NetStack::new(text, &parse(text)?);
        let key = Pin([1; 32]);
        let lines = |text: &str, proved| {
            let stack = stack(text).unwrap();
            (stack.line(proved, Some(key)), stack.to_list().line(proved, Some(key)))
        };
        let is = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        assert_eq!(lines("udt", false), is("udt", "tcp"));
        assert_eq!(lines("udt", true), is("udt,gsi", "tcp,gsi"));
        assert_eq!(lines("udt:mss=1400,rate:rate=1gbit,gsi", true), is("udt:mss=1400,rate:rate=1gbit,gsi", "tcp,gsi"));
        assert_eq!(lines("tcp:sndbuf=1MiB", true), is("tcp:sndbuf=1MiB,gsi", "tcp:sndbuf=1MiB,gsi"));
        let (quic, tls) = (format!("quic:key={key};cc=bbr,rate:rate=1gbit"), format!("tcp,tls:key={key}"));
        assert_eq!(lines("quic:cc=bbr,rate:rate=1gbit", false), (quic.clone(), quic));
        assert_eq!(NetStack::tls().line(false, Some(key)), tls);
        assert_eq!(lines("tcp,tls", false), (tls.clone(), tls));
        assert_eq!(stack("tcp,tls").unwrap().certified().line(false, Some(key)), "tcp,tls");
        assert!(stack("rate:rate=1gbit").unwrap().is_tcp());
        for (text, words) in [
            ("mux", "driver mux is not to be had here"),
            ("gsi", "driver gsi goes over a transport, which has to be named: tcp,gsi"),
            ("tls", "driver tls goes over a transport, which has to be named: tcp,tls"),
            ("tcp,tls,gsi", "driver gsi: what protects data is said already"),
            ("tcp,gsi:x=1", "driver gsi takes no options"),
            ("tcp,udt", "driver udt has to be the lowest"),
            ("tcp,quic", "driver quic has to be the lowest"),
            ("quic,tls", "driver tls is above quic"),
            ("quic:key=x", "driver quic: key is what the two ends tell each other"),
            ("udt:rate=1", "driver udt has no option rate here"),
            ("tcp:sndbuf=1", "driver tcp: sndbuf is \"1\""),
            ("tcp,", "the name of a driver was expected"),
        ] {
            let error = stack(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
