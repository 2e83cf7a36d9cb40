//! Stacks of drivers for data connections (U9–U12), used by both ends. `SITE SETNETSTACK` tells the server. If drivers
//! need keys, the two ends exchange them with it ([`pinned`](crate::data::pinned)).

use crate::data::pinned::{self, OwnKey, Pinned};
use crate::data::stack::{Changes, Layer, OBJECT, QUIC, RATE, TLS, objects, parse};
use crate::data::{Mode, ObjectMemory, Objects};
use phoebus_net::Profile;
use phoebus_net::Registry;
use phoebus_net::tcp::Tcp;
use phoebus_net::transport::Transport;
use phoebus_proto::gridftp::inside;
use phoebus_proto::gridftp::pin::Pin;
use phoebus_proto::object::Seal;
use std::io;
use std::sync::Arc;

/// Largest buffers that a stack may set at this end, in bytes.
const BUFFER: u64 = 1 << 30;

/// Most memory of a transfer as objects: more than four round trips of 200 ms at 40 Gbit/s.
const OBJECT_MEMORY: u64 = 4 << 30;

/// The name that stands for the protection by certificates, which DCAU and PROT determine.
const GSI: &str = "gsi";

/// A stack of drivers.
#[derive(Debug, Clone)]
pub struct NetStack {
    /// Its text.
    text: String,
    /// The transport. `None` is QUIC, of which each control connection has its own.
    transport: Option<Arc<dyn Transport>>,
    /// Whether files go as objects, over the transport's connections as control streams.
    objects: Option<Objects>,
    changes: Changes,
    /// The layer of protection by certificates or TLS.
    protection: Option<String>,
    /// Whether TLS is that of the control connection, and not one between pinned keys.
    certified: bool,
    /// Whether the stack is optional: without it, data goes by the default.
    pub(super) optional: bool,
}

/// The stack that a server accepted.
#[derive(Debug)]
pub(super) struct AcceptedStack {
    pub(super) line: String,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) objects: Option<Objects>,
    changes: Changes,
    /// TLS between pinned keys.
    pub(super) pinned: Option<Pinned>,
    /// Whether the other end has proved the pinned key.
    pub(super) keyed: bool,
}

impl NetStack {
    /// Resolves `layers`, the lowest first, for this end. `text` is their source.
    ///
    /// # Errors
    /// The reason, naming the driver.
    pub fn new(text: &str, layers: &[Layer]) -> Result<Self, String> {
        let registry = Registry::standard();
        let (mut transport, mut protection, mut changes) = (None, None, Changes::default());
        let mut as_objects = None;
        for (i, layer) in layers.iter().enumerate() {
            let name = layer.name.as_str();
            match registry.get(name) {
                Some(_) if i > 0 => return Err(not_lowest(name, layers, i)),
                None if [QUIC, OBJECT].contains(&name) && i > 0 => return Err(not_lowest(name, layers, i)),
                None if name == OBJECT => {
                    refuse_key(layer)?;
                    as_objects = Some(objects(layer, (BUFFER, OBJECT_MEMORY))?);
                }
                found if found.is_some() || name == QUIC => {
                    refuse_key(layer)?;
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
                    return Err(format!("driver {name}: the protection of data is given twice"));
                }
                None if [GSI, TLS].contains(&name) => {
                    if !layer.options.is_empty() {
                        return Err(format!("driver {name} takes no options here"));
                    }
                    protection = Some(name.to_owned());
                }
                _ => {
                    let known = registry.names().chain([QUIC, OBJECT, RATE, GSI, TLS]).collect::<Vec<_>>().join(", ");
                    return Err(format!("driver {name} is not available; this end has {known}"));
                }
            }
        }
        // Without a transport, a rate uses TCP.
        let transport = transport.unwrap_or_else(|| Some(Arc::new(Tcp)));
        if transport.is_none() && protection.as_deref() == Some(TLS) {
            return Err("driver tls is above quic, which is encrypted".to_owned());
        }
        if as_objects.is_some()
            && let Some(protection) = &protection
        {
            return Err(format!("driver {protection} is above {OBJECT}, which is encrypted"));
        }
        let as_objects = as_objects.map(|objects| objects.within(changes.limit())).transpose()?;
        let (text, objects) = (text.to_owned(), as_objects);
        Ok(Self { text, transport, objects, changes, protection, certified: false, optional: false })
    }

    /// TLS between pinned keys, over TCP.
    pub fn tls() -> Self {
        let (text, protection) = (format!("{},{TLS}", Tcp.name()), Some(TLS.to_owned()));
        let transport: Option<Arc<dyn Transport>> = Some(Arc::new(Tcp));
        let changes = Changes::default();
        Self { text, transport, objects: None, changes, protection, certified: false, optional: false }
    }

    /// The same with the TLS of the control connection (RFC 4217).
    #[must_use]
    pub fn certified(self) -> Self {
        Self { certified: true, ..self }
    }

    /// The same as an optional stack.
    #[must_use]
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The layer of protection: `gsi` or `tls`.
    pub fn protection(&self) -> Option<&str> {
        self.protection.as_deref()
    }

    /// The driver that needs keys, if there is one.
    pub(super) fn keyed(&self) -> Option<&'static str> {
        match self.protection() {
            _ if self.objects.is_some() => Some(OBJECT),
            _ if self.transport.is_none() => Some(QUIC),
            Some(TLS) if !self.certified => Some(TLS),
            _ => None,
        }
    }

    /// The text for the server. If certificates authenticate data (`proved`), it includes `gsi`, as GCT's client does;
    /// GCT's server would otherwise go without it, after bytes have left in clear. `key` is one end's key.
    pub(super) fn line(&self, proved: bool, key: Option<Pin>) -> String {
        let mut drivers: Vec<String> = self.text.split(',').map(|driver| driver.trim().to_owned()).collect();
        if let Some(keyed) = self.keyed() {
            // Without the peer's key, the server still replies with its own.
            let key = key.map(|key| key.to_string()).unwrap_or_default();
            for driver in &mut drivers {
                let (name, options) = driver.split_once(':').unwrap_or((driver, ""));
                if is_named(name, keyed) {
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

    /// Memory for files that come as objects, if they do.
    pub(super) fn object_memory(&self) -> Option<ObjectMemory> {
        self.objects.map(|objects| ObjectMemory::of_client(objects.chunk, objects.buffers))
    }

    /// Whether files go as objects.
    pub fn has_objects(&self) -> bool {
        self.objects.is_some()
    }

    /// Whether files go as objects whose datagrams are not sealed.
    pub fn has_clear_objects(&self) -> bool {
        self.objects.is_some_and(|objects| objects.seal == Seal::None)
    }

    /// The stack for transfers in `mode`. Objects need extended block mode; streams go by TLS between the same keys.
    pub(super) fn in_mode(&self, mode: Mode) -> Self {
        if self.has_objects() && mode == Mode::Stream {
            return Self { optional: self.optional, ..Self::tls() };
        }
        self.clone()
    }

    /// The transport of listings. They have no size, so the connection itself must show its end.
    pub(super) fn to_list(&self) -> Self {
        if self.has_objects() {
            return self.in_mode(Mode::Stream);
        }
        if self.tells_ends() {
            return self.clone();
        }
        let drivers: Vec<String> = [Tcp.name().to_owned()].into_iter().chain(self.protection.clone()).collect();
        let (text, transport) = (drivers.join(","), Some(Arc::new(Tcp) as Arc<dyn Transport>));
        Self { text, transport, changes: Changes::default(), ..self.clone() }
    }

    /// Combines the stack with the key in the server's reply, if keys are needed.
    pub(super) fn told(&self, line: String, keys: Option<(&OwnKey, Pin)>) -> io::Result<AcceptedStack> {
        let (transport, pinned) = match (&self.transport, keys) {
            (None, Some((own, theirs))) => (pinned::quic(own, theirs)?, None),
            (None, None) => return Err(io::ErrorKind::InvalidInput.into()),
            (Some(transport), keys) => {
                let pinned = keys.map(|(own, theirs)| Pinned::new(own, theirs));
                (transport.clone(), pinned)
            }
        };
        let (objects, changes) = (self.objects, self.changes);
        Ok(AcceptedStack { line, transport, objects, changes, pinned, keyed: keys.is_some() })
    }

    /// Whether its connections have an authenticated close.
    pub(super) fn tells_ends(&self) -> bool {
        self.protection() == Some(TLS) || self.transport.as_ref().is_none_or(|transport| transport.name() != "udt")
    }

    /// Whether its connections are kernel sockets.
    pub(super) fn is_tcp(&self) -> bool {
        self.transport.as_ref().is_some_and(|transport| transport.name() == Tcp.name())
    }
}

impl AcceptedStack {
    /// The stack for data inside SSH over `relays`.
    pub(super) fn inside(relays: Arc<dyn Transport>) -> Self {
        let (line, changes) = (inside::DRIVER.to_owned(), Changes::default());
        Self { line, transport: relays, objects: None, changes, pinned: None, keyed: false }
    }

    /// Applies the options of the stack to the `profile` of each of `connections` connections.
    pub(super) fn profile(&self, profile: Profile, connections: u32) -> Profile {
        self.changes.of(profile, connections.into())
    }
}

/// Whether a driver is called `name`, or has another name for it.
fn is_named(driver: &str, name: &str) -> bool {
    let driver = driver.trim();
    driver == name || parse(driver).is_ok_and(|layers| layers.iter().any(|layer| layer.name == name))
}

fn refuse_key(layer: &Layer) -> Result<(), String> {
    match layer.options.iter().find(|(key, _)| key == "key") {
        Some((key, _)) => Err(format!("driver {}: {key} cannot be set, since the two ends exchange it", layer.name)),
        None => Ok(()),
    }
}

fn not_lowest(name: &str, layers: &[Layer], i: usize) -> String {
    format!("driver {name} has to be the lowest of a stack, and is above {}", layers[i - 1].name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_displayed_as_written() {
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
        for name in ["object", "fobs"] {
            let objects = lines(&format!("{name}:ack=9,rate:rate=1gbit"), false);
            assert_eq!(
                objects,
                (format!("object:key={key};ack=9,rate:rate=1gbit"), NetStack::tls().line(false, Some(key)))
            );
        }
        assert!(stack("rate:rate=1gbit").unwrap().is_tcp());
        for (text, words) in [
            ("mux", "driver mux is not available"),
            ("gsi", "driver gsi goes over a transport, which has to be named: tcp,gsi"),
            ("tls", "driver tls goes over a transport, which has to be named: tcp,tls"),
            ("tcp,tls,gsi", "driver gsi: the protection of data is given twice"),
            ("tcp,gsi:x=1", "driver gsi takes no options"),
            ("tcp,udt", "driver udt has to be the lowest"),
            ("tcp,quic", "driver quic has to be the lowest"),
            ("quic,tls", "driver tls is above quic"),
            ("object,tls", "driver tls is above object, which is encrypted"),
            ("tcp,object", "driver object has to be the lowest"),
            ("object:packet=63", "driver object: packet is \"63\"; a size from 64 to"),
            ("object:chunk=1000", "driver object: chunk is \"1000\"; a size from"),
            ("object:buffers=1", "driver object: buffers is \"1\"; a number of chunks from 2 to"),
            (
                "object:buffers=5000",
                "driver object: buffers is 5000; with chunks of 1048576 bytes at most 4096 are allowed",
            ),
            ("object:ack=0", "driver object: ack is \"0\"; a number of packets"),
            ("object:batch=65", "driver object: batch is \"65\"; a number of packets from 1 to 64"),
            ("object:seal=rot13", "driver object: seal is \"rot13\"; encrypt or none was expected"),
            ("object:control=new", "driver object: control is \"new\"; fair, loss or fixed was expected"),
            (
                "object:control=fixed",
                "driver object: control is \"fixed\", which needs a rate: object:control=fixed;rate=1gbit",
            ),
            ("object:loss=0.02", "driver object: loss is for control=loss"),
            ("object:window=9", "driver object has no option window here"),
            ("fobs:key=x", "driver object: key cannot be set"),
            ("quic:key=x", "driver quic: key cannot be set, since the two ends exchange it"),
            ("udt:rate=1", "driver udt has no option rate here"),
            ("tcp:sndbuf=1", "driver tcp: sndbuf is \"1\""),
            ("tcp,", "the name of a driver was expected"),
        ] {
            let error = stack(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
