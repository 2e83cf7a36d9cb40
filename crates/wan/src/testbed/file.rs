//! Scenario files: their grammar, and errors that give line and column.

use super::Error;
use super::scenario::{FaultyPart, Flaw, HostSpec, LinkSpec, Scenario};
use crate::model::{DirectionConfig, DirectionUpdate, LinkConfig, Loss, Rate};
use phoebus_proto::text::{self, TextError};
use phoebus_proto::units::{ByteSize, Span};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// Largest scenario file, in bytes: ten times what the largest testbed needs; also bounds reads from devices.
const FILE_MAX: u64 = 1 << 20;

impl Scenario {
    /// Reads a scenario file.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let read = std::fs::File::open(path).map_err(TextError::Read).and_then(|file| text::read(file, FILE_MAX));
        match read {
            Ok(text) => Self::parse(&text, &name),
            Err(TextError::Read(error)) => {
                Err(Error::Scenario { place: format!("{name}: "), message: format!("cannot be read: {error}") })
            }
            Err(error) => {
                let place = match &error {
                    TextError::NotUtf8 { line, column } => format!("{name}:{line}:{column}: "),
                    _ => format!("{name}: "),
                };
                Err(Error::Scenario { place, message: format!("this {error}; expected a scenario in TOML") })
            }
        }
    }

    /// Parses the text of a scenario file; errors call it `name`.
    pub fn parse(text: &str, name: &str) -> Result<Self, Error> {
        let error = |span: Option<Range<usize>>, message: &str| Error::Scenario {
            place: place(text, name, span),
            message: message.lines().collect::<Vec<_>>().join(" "),
        };
        let file: ScenarioFile = toml::from_str(text).map_err(|e| error(e.span(), e.message()))?;
        let scenario = file.scenario();
        match scenario.flaw() {
            None => Ok(scenario),
            Some(Flaw { at, message }) => Err(error(file.span(at), &message)),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    #[serde(default = "ScenarioFile::default_seed")]
    seed: u64,
    #[serde(default)]
    stock: bool,
    #[serde(default)]
    host: Vec<HostTable>,
    #[serde(default)]
    link: Vec<LinkTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    name: Spanned<String>,
    #[serde(default)]
    gateway: bool,
    congestion_control: Option<String>,
    #[serde(default)]
    sysctl: BTreeMap<String, String>,
}

/// Settings next to the link's own apply to both directions; those of one direction are in a table of its
/// name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTable {
    name: Spanned<String>,
    ends: Spanned<[String; 2]>,
    mtu: Option<Spanned<u16>>,
    delay: Option<Span>,
    jitter: Option<Span>,
    reorder: Option<bool>,
    loss: Option<Loss>,
    rate: Option<Rate>,
    queue: Option<ByteSize>,
    #[serde(default)]
    forward: DirectionUpdate,
    #[serde(default)]
    backward: DirectionUpdate,
}

impl ScenarioFile {
    fn default_seed() -> u64 {
        1
    }

    fn scenario(&self) -> Scenario {
        let seed = |offset: usize| self.seed.wrapping_add(offset as u64);
        Scenario {
            hosts: self.host.iter().map(HostTable::host).collect(),
            links: self.link.iter().enumerate().map(|(index, link)| link.link(seed(index))).collect(),
            stock: self.stock,
        }
    }

    /// The position of the faulty part of the scenario.
    fn span(&self, place: FaultyPart) -> Option<Range<usize>> {
        match place {
            FaultyPart::Whole => None,
            FaultyPart::Host(index) => self.host.get(index).map(|host| host.name.span()),
            FaultyPart::Link(index) => self.link.get(index).map(|link| link.name.span()),
            FaultyPart::Ends(index) => self.link.get(index).map(|link| link.ends.span()),
            FaultyPart::Mtu(index) => self.link.get(index).and_then(|link| link.mtu.as_ref()).map(Spanned::span),
        }
    }
}

impl HostTable {
    fn host(&self) -> HostSpec {
        HostSpec {
            name: self.name.get_ref().clone(),
            gateway: self.gateway,
            congestion_control: self.congestion_control.clone(),
            sysctl: self.sysctl.clone(),
        }
    }
}

impl LinkTable {
    fn link(&self, seed: u64) -> LinkSpec {
        let &Self { delay, jitter, reorder, loss, rate, queue, .. } = self;
        let mut both = DirectionConfig::default();
        both.change(&DirectionUpdate { delay, jitter, reorder, loss, rate, queue });
        let mut config = LinkConfig::symmetric(seed, both);
        config.forward.change(&self.forward);
        config.backward.change(&self.backward);
        config.mtu = self.mtu.as_ref().map_or(config.mtu, |mtu| *mtu.get_ref());
        LinkSpec { name: self.name.get_ref().clone(), ends: self.ends.get_ref().clone(), config }
    }
}

/// `FILE:LINE:COLUMN: `, in the format of compilers.
fn place(text: &str, name: &str, span: Option<Range<usize>>) -> String {
    let Some(before) = span.and_then(|span| text.get(..span.start)) else { return format!("{name}: ") };
    let (line, column) = phoebus_proto::text::place(before);
    format!("{name}:{line}:{column}: ")
}
