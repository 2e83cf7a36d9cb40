//! Comparison of transports on the hops of a path (S1, S12, S31): `phoebus bench throughput`, `short` and `latency`
//! with `--transport`.
//!
//! - `rows` defines the rows: every first hop with every transport between the gateways, and direct connections.
//! - [`PathCache`] holds a path for each transport, with gateways that keep running between tests.
//! - `throughput`, `short`, `latency` are the experiments; `report` makes tables and drawings of the first. `cpu` is
//!   `phoebus bench cpu`.

mod cpu;
mod latency;
mod point;
mod report;
mod rows;
mod short;
mod throughput;

use super::bed::Bed;
use super::flows::Sink;
use super::hop::Wan;
use anyhow::bail;
pub(super) use cpu::{Cpu, CpuArgs};
pub(super) use latency::Latencies;
use phoebus_proto::units::Span;
use phoebus_wan::model::Loss;
use phoebus_wan::testbed::Sc09;
pub(super) use short::ShortTransfers;
use std::collections::BTreeMap;
pub(super) use throughput::Transports;

/// Paths with the same circumstances, each created when a row first needs it.
pub(crate) struct PathCache {
    settings: Sc09,
    sites: BTreeMap<String, Site>,
}

/// A path, and the sinks at its end.
struct Site {
    /// Sinks by carrier. They must end before their hosts.
    sinks: BTreeMap<&'static str, Sink>,
    bed: Bed,
}

/// The path that a row needs.
#[derive(Debug, Clone, PartialEq)]
enum Path {
    /// The three links, without the WAN's delay and without loss.
    Clean,
    /// Without gateways.
    Direct,
    /// With gateways, joined by this transport.
    Joined(Wan),
}

impl PathCache {
    /// No path yet, with these circumstances.
    fn new(settings: Sc09) -> Self {
        Self { settings, sites: BTreeMap::new() }
    }

    /// Returns the path; creates it with `prepare` if necessary.
    fn get(&mut self, path: &Path, prepare: impl FnOnce(&mut Bed) -> anyhow::Result<()>) -> anyhow::Result<&mut Site> {
        let name = match path {
            Path::Clean => "clean",
            Path::Direct => "direct",
            Path::Joined(wan) => &wan.name,
        };
        if !self.sites.contains_key(name) {
            let mut bed = match path {
                Path::Clean => {
                    let clean = Sc09 { wan_rtt: Span::default(), lan_loss: Loss::none(), ..self.settings.clone() };
                    Bed::bare(&clean)?
                }
                Path::Direct => Bed::bare(&self.settings)?,
                Path::Joined(wan) => Bed::joined(&self.settings, wan.clone())?,
            };
            prepare(&mut bed)?;
            self.sites.insert(name.to_owned(), Site { sinks: BTreeMap::new(), bed });
        }
        match self.sites.get_mut(name) {
            Some(site) => Ok(site),
            None => bail!("there is no path {name}"),
        }
    }

    /// Any existing path.
    fn any(&self) -> Option<&Bed> {
        self.sites.values().next().map(|site| &site.bed)
    }
}

impl Site {
    /// The sink of `carrier` at `dst`; starts it if necessary.
    fn sink(&mut self, carrier: &'static str) -> anyhow::Result<&mut Sink> {
        if !self.sinks.contains_key(carrier) {
            self.sinks.insert(carrier, Sink::start(&self.bed.testbed, "dst", self.bed.address("dst")?, &[carrier])?);
        }
        match self.sinks.get_mut(carrier) {
            Some(sink) => sink.check().map(|()| sink),
            None => bail!("there is no sink of {carrier}"),
        }
    }
}
