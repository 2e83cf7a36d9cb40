//! Drivers of data connections (U7, U9, U12): the administrator's list, and the stacks that clients choose from it.
//!
//! The lowest driver of a stack is a transport: `tcp`, `udt`, `quic`, or a library that the administrator lists. Above
//! it, `phoebus` opens a session through gateways wherever this server connects, and `rate` limits what it sends. This
//! file has the options that clients may set. None of them names a file, or a gateway beyond those that the
//! administrator lists.

use super::config::{ConfigError, Data};
use super::hub::Hub;
use crate::data::pinned::{self, OwnKey, Pinned};
use crate::data::stack::{self, Changes, Layer, OBJECT, QUIC, RATE, SESSIONS, TLS};
use crate::data::{Objects, RateControl};
use phoebus_net::Profile;
use phoebus_net::Registry;
use phoebus_net::driver::{Library, ValueType};
use phoebus_net::transport::Transport;
use phoebus_net::wrapblock::Limits;
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::gridftp::inside::{self, Ticket};
use phoebus_proto::gridftp::pin::Pin;
use phoebus_proto::units::BitRate;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

/// Opens sessions through gateways. Programs with a gateway client pass it to
/// [`Server::start_with`](super::Server::start_with).
pub trait Gateways: Debug + Send + Sync {
    /// A transport that connects by sessions through `path`. `profile` sets up the first hop.
    fn through(&self, path: &[Endpoint], profile: &Profile) -> Arc<dyn Transport>;
}

/// A resolved stack.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    /// Its text, which identifies it.
    pub(crate) text: String,
    transport: Arc<dyn Transport>,
    /// Gateways through which this end connects.
    path: Option<(Vec<Endpoint>, Arc<dyn Gateways>)>,
    /// Whether files go as objects, over the transport's connections as control streams.
    objects: Option<Objects>,
    changes: Changes,
    keyed: Option<Keyed>,
    /// Told to the client if data goes inside SSH.
    ticket: Option<Ticket>,
}

/// A driver whose two ends exchange keys.
#[derive(Debug, Clone)]
struct Keyed {
    driver: &'static str,
    own: OwnKey,
    /// The other end's key, once the client has sent it.
    peer: Option<Pin>,
}

impl PartialEq for Stack {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Stack {}

impl Stack {
    /// The profile of each of `connections` connections, which share the rate of the stack.
    pub(super) fn profile(&self, profile: Profile, connections: u64) -> Profile {
        self.changes.of(profile, connections)
    }

    /// Told to the client: the driver and this end's key, or how to find this server inside SSH.
    pub(super) fn answer(&self) -> Option<String> {
        if let Some(ticket) = &self.ticket {
            return Some(ticket.answer());
        }
        self.keyed.as_ref().map(|keyed| keyed.own.pin().answer(keyed.driver))
    }

    /// The driver that still needs the other end's key.
    pub(super) fn lacks_key(&self) -> Option<&'static str> {
        self.keyed.as_ref().filter(|keyed| keyed.peer.is_none()).map(|keyed| keyed.driver)
    }

    /// Whether the two ends are authenticated by keys.
    pub(super) fn is_keyed(&self) -> bool {
        self.keyed.is_some()
    }

    /// Whether files go as objects, and how.
    pub(super) fn objects(&self) -> Option<Objects> {
        self.objects
    }

    /// TLS between pinned keys, if the stack has it.
    pub(super) fn pinned(&self) -> Option<Pinned> {
        let keyed = self.keyed.as_ref().filter(|keyed| [TLS, OBJECT].contains(&keyed.driver))?;
        Some(Pinned::new(&keyed.own, keyed.peer?))
    }

    /// The transport for connections that this end makes, or accepts.
    pub(super) fn transport(&self, connects: bool, profile: &Profile) -> Arc<dyn Transport> {
        match &self.path {
            Some((path, gateways)) if connects => gateways.through(path, profile),
            // A session arrives as a TCP connection from its last gateway.
            _ => self.transport.clone(),
        }
    }
}

/// The drivers that the administrator lists.
#[derive(Debug)]
pub(crate) struct Drivers {
    known: Vec<(String, Known)>,
    /// Gateways of sessions if a client names none, and those that it may name.
    path: Vec<Endpoint>,
    nameable: Vec<Endpoint>,
    gateways: Option<Arc<dyn Gateways>>,
    buffer: u64,
    object_memory: u64,
    circuit: Option<BitRate>,
    usual: Stack,
}

#[derive(Debug)]
enum Known {
    Transport(Arc<dyn Transport>),
    Library(Library, BTreeMap<String, String>, Arc<dyn Transport>),
    Quic,
    Object,
    Sessions,
    Rate,
    Inside(Hub),
}

impl Drivers {
    /// Loads the drivers of a configuration, libraries included.
    ///
    /// # Errors
    /// [`ConfigError::Value`], naming the setting.
    pub(super) fn new(data: &Data, gateways: Option<Arc<dyn Gateways>>) -> Result<Self, ConfigError> {
        let value = |text: String| Err(ConfigError::Value(text));
        let standard = Registry::standard();
        let mut libraries = BTreeMap::new();
        for driver in &data.libraries {
            let name = &driver.name;
            let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
            if name.is_empty() || !is_plain || standard.get(name).is_some() || RESERVED.contains(&name.as_str()) {
                return value(format!("[[data.driver]]: \"{name}\" cannot be the name of another driver"));
            }
            let options =
                driver.texts().map_err(|error| ConfigError::Value(format!("[[data.driver]] {name}: {error}")))?;
            let loaded = Library::load(&driver.library)
                .and_then(|library| Ok((library.transport(name, &options, Limits::default())?, library)));
            let (transport, library) =
                loaded.map_err(|error| ConfigError::Value(format!("[[data.driver]] {name}: {error}")))?;
            let transport: Arc<dyn Transport> = Arc::new(transport);
            if libraries.insert(name.clone(), Known::Library(library, options, transport)).is_some() {
                return value(format!("[[data.driver]]: \"{name}\" is there twice"));
            }
        }
        let known_names = || {
            let all = standard
                .names()
                .chain([QUIC, OBJECT, SESSIONS, RATE])
                .map(str::to_owned)
                .chain(libraries.keys().cloned());
            all.collect::<Vec<_>>().join(", ")
        };
        let expected = format!("data.drivers: some of {} were expected, a transport first", known_names());
        let mut known = Vec::new();
        for name in &data.drivers {
            let driver = match (name.as_str(), standard.get(name)) {
                (_, Some(transport)) => Known::Transport(transport.clone()),
                (SESSIONS, _) if gateways.is_none() => {
                    return value("data.drivers: phoebus was asked for, and this program opens no sessions".to_owned());
                }
                (SESSIONS, _) => Known::Sessions,
                (RATE, _) => Known::Rate,
                (QUIC | OBJECT, _) if known.is_empty() => {
                    return value(format!(
                        "data.drivers: {name} cannot be the first, since clients have to name a key for it"
                    ));
                }
                (QUIC, _) => Known::Quic,
                (OBJECT, _) => Known::Object,
                (other, _) => match libraries.remove(other) {
                    Some(library) => library,
                    None => return value(expected),
                },
            };
            known.push((name.clone(), driver));
        }
        let transport = match known.first() {
            Some((_, Known::Transport(transport) | Known::Library(_, _, transport))) => transport.clone(),
            _ => return value(expected),
        };
        let gateways_of = |key: &str, texts: &[String]| match texts.is_empty() {
            true => Ok(Vec::new()),
            false => Endpoint::parse_path(&texts.join(","))
                .map_err(|error| ConfigError::Value(format!("data.sessions.{key}: {error}"))),
        };
        let path = gateways_of("path", &data.sessions.path)?;
        let mut nameable = path.clone();
        for gateway in &data.sessions.gateways {
            nameable.extend(gateways_of("gateways", std::slice::from_ref(gateway))?);
        }
        let (text, changes) = (data.drivers[0].clone(), Changes::default());
        let usual = Stack { text, transport, path: None, objects: None, changes, keyed: None, ticket: None };
        let mut drivers = Self {
            known,
            path,
            nameable,
            gateways,
            buffer: data.buffer.0,
            object_memory: data.object_memory.0,
            circuit: data.circuit,
            usual,
        };
        if let Some(stack) = &data.stack {
            let made = stack::parse(stack).and_then(|layers| drivers.stack(stack, &layers, None));
            drivers.usual = made.map_err(|error| ConfigError::Value(format!("data.stack: {error}")))?;
        }
        Ok(drivers)
    }

    /// Adds data inside SSH, for a server that SSH has started.
    pub(super) fn with_inside(mut self) -> Self {
        self.known.push((inside::DRIVER.to_owned(), Known::Inside(Hub::default())));
        self
    }

    /// The listener of data inside SSH, if there is one.
    pub(super) fn hub(&self) -> Option<&Hub> {
        self.known.iter().find_map(|(_, known)| match known {
            Known::Inside(hub) => Some(hub),
            _ => None,
        })
    }

    /// The default stack.
    pub(super) fn usual(&self) -> &Stack {
        &self.usual
    }

    /// Resolves `layers`, the lowest first. Layers that protect data are not among them, except TLS between keys. `own`
    /// is this end's key, for drivers that need one.
    ///
    /// # Errors
    /// The reason, naming the driver.
    pub(crate) fn stack(&self, text: &str, layers: &[Layer], own: Option<&OwnKey>) -> Result<Stack, String> {
        let (mut transport, mut path, mut changes) = (None, None, Changes::default());
        let (mut keyed, mut ticket, mut objects) = (None, None, None);
        for (i, layer) in layers.iter().enumerate() {
            let name = &layer.name;
            if name == TLS {
                if keyed.replace(Keyed::of(TLS, layer, own)?).is_some() {
                    return Err("driver tls is there twice, or above quic or object, which are encrypted".to_owned());
                }
                continue;
            }
            let of_list = self.known.iter().find(|(known, _)| known == name);
            let Some((_, known)) = of_list else { return Err(format!("{name} driver not whitelisted")) };
            match known {
                Known::Transport(_) | Known::Library(..) | Known::Quic | Known::Object if i > 0 => {
                    return Err(format!(
                        "driver {name} has to be the lowest of a stack, and is above {}",
                        layers[i - 1].name
                    ));
                }
                Known::Transport(found) => {
                    changes.transport(layer, self.buffer)?;
                    transport = Some(found.clone());
                }
                Known::Library(library, options, found) => {
                    transport = Some(with_options(layer, library, options, found)?);
                }
                Known::Quic => {
                    changes.transport(layer, self.buffer)?;
                    let this = Keyed::of(QUIC, layer, own)?;
                    // Until the key is known, no peer matches.
                    let peer = this.peer.unwrap_or(this.own.pin());
                    transport = Some(pinned::quic(&this.own, peer).map_err(|error| format!("driver quic: {error}"))?);
                    keyed = Some(this);
                }
                Known::Object => {
                    objects = Some(stack::objects(layer, (self.buffer, self.object_memory))?);
                    keyed = Some(Keyed::of(OBJECT, layer, own)?);
                }
                Known::Inside(_) if layers.len() > 1 || !layer.options.is_empty() => {
                    return Err(format!("driver {name} stands alone, and has no options"));
                }
                Known::Inside(hub) => {
                    let made =
                        hub.ticket().map_err(|error| format!("driver {name}: {}", phoebus_net::reason(&error)))?;
                    ticket = Some(made);
                    transport = Some(Arc::new(hub.clone()));
                }
                Known::Sessions if path.is_none() => path = Some(self.path_of(layer)?),
                Known::Sessions => return Err(format!("driver {name} is there twice")),
                Known::Rate => changes.rate(layer)?,
            }
        }
        let tcp = || {
            self.known.iter().find_map(|(name, known)| match known {
                Known::Transport(tcp) if name == "tcp" => Some(tcp.clone()),
                _ => None,
            })
        };
        let transport = match (transport, &path) {
            (Some(other), Some(_)) if other.name() != "tcp" => {
                return Err(format!("driver {SESSIONS} is above {}, and sessions begin over tcp here", other.name()));
            }
            (Some(transport), _) => transport,
            // Without a transport, sessions and rates use TCP.
            (None, _) if !layers.is_empty() => tcp().ok_or("tcp driver not whitelisted")?,
            (None, _) => return Err("a driver was expected".to_owned()),
        };
        if objects.is_some() && path.is_some() {
            return Err(format!("driver {SESSIONS} is above {OBJECT}, whose datagrams go through no gateways"));
        }
        let objects = objects.map(|objects| self.allowed(objects.within(changes.limit())?)).transpose()?;
        let path = path.zip(self.gateways.clone());
        Ok(Stack { text: text.to_owned(), transport, path, objects, changes, keyed, ticket })
    }

    /// The same settings, if the administrator allows them. Controls other than `fair` do not yield to others.
    fn allowed(&self, objects: Objects) -> Result<Objects, String> {
        let name = match objects.control {
            RateControl::Fair => return Ok(objects),
            RateControl::Loss => "loss",
            RateControl::Fixed => "fixed",
        };
        match (objects.rate, self.circuit) {
            (_, None) => Err(format!(
                "driver {OBJECT}: control is \"{name}\", which is for reserved circuits, and this server has none (data.circuit)"
            )),
            (Some(rate), Some(most)) if rate.0 > most.0 => {
                Err(format!("driver {OBJECT}: rate is {rate}; at most {most} was expected (data.circuit)"))
            }
            (rate, circuit) => Ok(Objects { rate: rate.or(circuit), ..objects }),
        }
    }

    /// The gateways of a `phoebus` layer, which must be among those that clients may name.
    fn path_of(&self, layer: &Layer) -> Result<Vec<Endpoint>, String> {
        let path = stack::gateways(layer)?;
        if let Some(other) = path.iter().flatten().find(|gateway| !self.nameable.contains(gateway)) {
            return Err(format!("driver {SESSIONS}: gateway {other} not whitelisted"));
        }
        match path.unwrap_or_else(|| self.path.clone()) {
            path if path.is_empty() => Err(format!("driver {SESSIONS}: a gateway was expected (gw=host/port)")),
            path => Ok(path),
        }
    }
}

impl Keyed {
    /// Reads a layer whose option `key` has the other end's key. Without it, the key is still to come.
    fn of(driver: &'static str, layer: &Layer, own: Option<&OwnKey>) -> Result<Self, String> {
        let own =
            own.ok_or_else(|| format!("driver {driver} is for clients to ask for, since they have to name a key"))?;
        let mut peer = None;
        for (key, value) in &layer.options {
            match key.as_str() {
                "key" if value.is_empty() => {}
                "key" => peer = Some(value.parse().map_err(|error| format!("driver {driver}: {error}"))?),
                _ if [QUIC, OBJECT].contains(&driver) => {}
                _ => return Err(format!("driver {driver} has no option {key} here; it has key")),
            }
        }
        Ok(Self { driver, own: own.clone(), peer })
    }
}

/// Names that no transport may have.
const RESERVED: &[&str] = &[SESSIONS, RATE, QUIC, OBJECT, TLS, inside::DRIVER, "gsi", "default"];

/// Combines the administrator's options of a library with the client's. Options with text are the administrator's
/// alone, since they may name files.
fn with_options(
    layer: &Layer,
    library: &Library,
    options: &BTreeMap<String, String>,
    usual: &Arc<dyn Transport>,
) -> Result<Arc<dyn Transport>, String> {
    if layer.options.is_empty() {
        return Ok(usual.clone());
    }
    let mut all = options.clone();
    for (key, value) in &layer.options {
        let known = library.options().iter().find(|option| option.name == *key);
        if known.is_some_and(|option| option.kind == ValueType::Text) {
            return Err(format!("driver {}: option {key} is the administrator's to set", layer.name));
        }
        all.insert(key.clone(), value.clone());
    }
    match library.transport(&layer.name, &all, Limits::default()) {
        Ok(transport) => Ok(Arc::new(transport)),
        // Clients do not learn where files are.
        Err(error) => Err(format!("driver {}: {}", layer.name, error.why())),
    }
}
