//! Stacks of drivers in GCT's notation (U9, U12): parsing, and the options that both ends share.
//!
//! `tcp:sndbuf=1000000;rcvbuf=1000000,gsi`: drivers separated by commas, the lowest first, each with options after a
//! colon. `%` and two hexadecimal digits stand for a character. Each end decides which drivers it has, and who may use
//! them.

use super::objects::{Objects, RateControl};
use phoebus_net::{Buffer, CongestionControl, Profile};
use phoebus_proto::endpoint::Endpoint;
use phoebus_proto::object::{Seal, Shape};
use phoebus_proto::units::{BitRate, ByteSize, Probability};

/// Opens sessions through gateways.
pub const SESSIONS: &str = "phoebus";

/// Limits the rate.
pub const RATE: &str = "rate";

/// QUIC.
pub const QUIC: &str = "quic";

/// TLS.
pub const TLS: &str = "tls";

/// Files as objects over UDP.
pub const OBJECT: &str = "object";

/// Most loss that a control may tolerate (`object:control=loss`): more than that is seldom the path's own.
const LOSS_MAX: f64 = 0.1;

/// Another name of [`OBJECT`], that of the protocol in the paper.
const FOBS: &str = "fobs";

/// Congestion controls of QUIC.
const QUICS: [CongestionControl; 5] = [
    CongestionControl::Auto,
    CongestionControl::Model,
    CongestionControl::Bbr,
    CongestionControl::Cubic,
    CongestionControl::Reno,
];

/// Most drivers and bytes of a stack: more than anybody needs.
const MOST: usize = 8;
const LONGEST: usize = 4096;

/// A driver in a stack, with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// The driver.
    pub name: String,
    /// Decoded options, in the given order.
    pub options: Vec<(String, String)>,
}

/// Parses a stack. The lowest layer comes first.
///
/// # Errors
/// What was expected.
pub fn parse(text: &str) -> Result<Vec<Layer>, String> {
    if text.len() > LONGEST {
        return Err(format!("a stack has at most {LONGEST} bytes"));
    }
    let layers: Vec<_> = text.split(',').map(layer).collect::<Result<_, _>>()?;
    if layers.len() > MOST { Err(format!("a stack has at most {MOST} drivers")) } else { Ok(layers) }
}

fn layer(text: &str) -> Result<Layer, String> {
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    let name = match name.trim() {
        FOBS => OBJECT.to_owned(),
        name => name.to_owned(),
    };
    if name.is_empty() {
        return Err("the name of a driver was expected".to_owned());
    }
    let mut all = Vec::<(String, String)>::new();
    for option in options.split(';').filter(|option| !option.trim().is_empty()) {
        let Some((key, value)) = option.split_once('=') else {
            return Err(format!("driver {name}: \"{option}\" has no value; name=value was expected"));
        };
        let key = key.trim().to_owned();
        if all.iter().any(|(other, _)| *other == key) {
            return Err(format!("driver {name}: {key} is given twice"));
        }
        all.push((key, decoded(value.trim()).ok_or_else(|| format!("driver {name}: \"{value}\" is no text"))?));
    }
    Ok(Layer { name, options: all })
}

fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut out = parts.next()?.as_bytes().to_vec();
    for part in parts {
        out.push(u8::from_str_radix(part.get(..2).filter(|two| !two.starts_with('+'))?, 16).ok()?);
        out.extend_from_slice(part.get(2..)?.as_bytes());
    }
    String::from_utf8(out).ok().filter(|text| !text.chars().any(char::is_control))
}

/// The options' changes to a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    send_buffer: Option<ByteSize>,
    receive_buffer: Option<ByteSize>,
    mss: Option<u32>,
    congestion_control: Option<CongestionControl>,
    rate: Option<BitRate>,
}

impl Changes {
    /// Applies the options of a built-in transport, under GCT's names where it has them. Buffers are limited to
    /// `buffer` bytes.
    ///
    /// # Errors
    /// What was expected, naming the driver.
    pub fn transport(&mut self, layer: &Layer, buffer: u64) -> Result<(), String> {
        let (udt, quic) = (layer.name == "udt", layer.name == QUIC);
        for (key, value) in &layer.options {
            let wrong =
                |expected: &str| format!("driver {}: {key} is \"{value}\"; {expected} was expected", layer.name);
            let size = || {
                let size = value.parse::<ByteSize>().ok().filter(|size| (4096..=buffer).contains(&size.0));
                size.ok_or_else(|| wrong(&format!("a size from 4096 to {buffer} bytes")))
            };
            match key.as_str() {
                "sndbuf" => self.send_buffer = Some(size()?),
                "rcvbuf" => self.receive_buffer = Some(size()?),
                // The handshake handles the other options.
                "key" if quic => {}
                "cc" => {
                    let control = value.parse().map_err(|_| wrong("the name of a congestion control"))?;
                    if quic && !QUICS.contains(&control) {
                        return Err(wrong("auto, model, bbr, cubic or reno"));
                    }
                    self.congestion_control = Some(control);
                }
                "mss" if udt => {
                    let mss = value.parse().ok().filter(|mss| (576..=9000).contains(mss));
                    self.mss = Some(mss.ok_or_else(|| wrong("a size from 576 to 9000 bytes"))?);
                }
                _ => {
                    let known = match layer.name.as_str() {
                        "udt" => "sndbuf, rcvbuf, cc and mss",
                        QUIC => "key, sndbuf, rcvbuf and cc",
                        _ => "sndbuf, rcvbuf and cc",
                    };
                    return Err(format!("driver {} has no option {key} here; it has {known}", layer.name));
                }
            }
        }
        Ok(())
    }

    /// The rate of the stack.
    pub(crate) fn limit(&self) -> Option<BitRate> {
        self.rate
    }

    /// Parses `rate:rate=500mbit`.
    ///
    /// # Errors
    /// What was expected; or the option occurs twice.
    pub fn rate(&mut self, layer: &Layer) -> Result<(), String> {
        if self.rate.is_some() {
            return Err(format!("driver {RATE} is there twice"));
        }
        let given = match &layer.options[..] {
            [(key, value)] if key == "rate" => value.parse::<BitRate>().ok().filter(|rate| rate.0 >= 8000),
            _ => None,
        };
        self.rate = Some(given.ok_or_else(|| format!("driver {RATE}: rate=500mbit or the like was expected"))?);
        Ok(())
    }

    /// The profile of each of `connections` connections, which share the rate of the stack.
    pub fn of(&self, profile: Profile, connections: u64) -> Profile {
        let Self { send_buffer, receive_buffer, mss, congestion_control, rate } = *self;
        Profile {
            send_buffer: send_buffer.map_or(profile.send_buffer, Buffer::Bytes),
            receive_buffer: receive_buffer.map_or(profile.receive_buffer, Buffer::Bytes),
            mss: mss.or(profile.mss),
            congestion_control: congestion_control.unwrap_or(profile.congestion_control),
            rate: rate.map(|rate| BitRate((rate.0 / connections.max(1)).max(1))).or(profile.rate),
            ..profile
        }
    }
}

/// The settings of an `object` layer. Chunks have at most `chunk_max` bytes, and all that a transfer holds at most `memory`.
/// Unless the number of chunks is given, it is [`Objects::buffers_of`] the chunk's length.
///
/// # Errors
/// What was expected, naming the driver.
pub fn objects(layer: &Layer, (chunk_max, memory): (u64, u64)) -> Result<Objects, String> {
    let (mut objects, mut buffers, mut lossy) = (Objects::default(), None, false);
    for (key, value) in &layer.options {
        let wrong = |expected: &str| format!("driver {OBJECT}: {key} is \"{value}\"; {expected} was expected");
        let size = |least: u32, most: u32| {
            let size = value.parse::<ByteSize>().ok().and_then(|size| u32::try_from(size.0).ok());
            let size = size.filter(|size| (least..=most).contains(size));
            size.ok_or_else(|| wrong(&format!("a size from {least} to {most} bytes")))
        };
        match key.as_str() {
            // The handshake handles it.
            "key" => {}
            "packet" => objects.packet = Some(size(Shape::PACKET_MIN, Shape::PACKET_MAX)?),
            "chunk" => {
                let most = chunk_max.min(Shape::CHUNK_MAX.into()) as u32;
                objects.chunk = size(Shape::PACKET_MAX, most)?;
            }
            "buffers" => {
                let number = value.parse().ok().filter(|number| (2..=65_536).contains(number));
                buffers = Some(number.ok_or_else(|| wrong("a number of chunks from 2 to 65536"))?);
            }
            "ack" => {
                let ack = value.parse().ok().filter(|ack| (1..=100_000).contains(ack));
                objects.ack = ack.ok_or_else(|| wrong("a number of packets from 1 to 100000"))?;
            }
            "batch" => {
                let batch = value.parse().ok().filter(|batch| (1..=Objects::BATCH_MAX).contains(batch));
                objects.batch = batch.ok_or_else(|| wrong("a number of packets from 1 to 64"))?;
            }
            "rate" => {
                let rate = value.parse::<BitRate>().ok().filter(|rate| rate.0 >= 8000);
                objects.rate = Some(rate.ok_or_else(|| wrong("a rate from 8 kbit/s on"))?);
            }
            "control" => {
                objects.control = match value.as_str() {
                    "fair" => RateControl::Fair,
                    "loss" => RateControl::Loss,
                    "fixed" => RateControl::Fixed,
                    _ => return Err(wrong("fair, loss or fixed")),
                }
            }
            "loss" => {
                let share = value.parse::<Probability>().ok().map(Probability::get);
                let share = share.filter(|share| (0.001..=LOSS_MAX).contains(share));
                let share = share.ok_or_else(|| wrong("a share of packets from 0.001 to 0.1"))?;
                (objects.loss_per_million, lossy) = ((share * 1e6).round() as u32, true);
            }
            "seal" => {
                objects.seal = match value.as_str() {
                    "encrypt" => Seal::Encrypt,
                    "none" => Seal::None,
                    _ => return Err(wrong("encrypt or none")),
                }
            }
            _ => {
                return Err(format!(
                    "driver {OBJECT} has no option {key} here; it has key, chunk, buffers, packet, ack, batch, control, loss, rate and seal"
                ));
            }
        }
    }
    if lossy && objects.control != RateControl::Loss {
        return Err(format!("driver {OBJECT}: loss is for control=loss"));
    }
    let fitting = u32::try_from(memory / u64::from(objects.chunk)).unwrap_or(u32::MAX).max(2);
    objects.buffers = match buffers {
        None => Objects::buffers_of(objects.chunk).min(fitting),
        Some(buffers) if buffers <= fitting => buffers,
        Some(buffers) => {
            let chunk = objects.chunk;
            return Err(format!(
                "driver {OBJECT}: buffers is {buffers}; with chunks of {chunk} bytes at most {fitting} are allowed here"
            ));
        }
    };
    Ok(objects)
}

/// The gateways of a `phoebus` layer, if it names any: `gw=host/port`, or `path=` with several separated by `|`.
///
/// # Errors
/// What was expected, naming the driver.
pub fn gateways(layer: &Layer) -> Result<Option<Vec<Endpoint>>, String> {
    let mut path = None;
    for (key, value) in &layer.options {
        if !matches!(key.as_str(), "gw" | "path") {
            return Err(format!("driver {SESSIONS} has no option {key} here; it has gw and path"));
        }
        let gateways = Endpoint::parse_path(&value.replace('|', ","));
        let gateways = gateways.map_err(|error| format!("driver {SESSIONS}: {key}: {error}"))?;
        if path.replace(gateways).is_some() {
            return Err(format!("driver {SESSIONS}: gw and path are both given; one of them was expected"));
        }
    }
    Ok(path)
}
