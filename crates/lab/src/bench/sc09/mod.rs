//! `phoebus bench sc09`: the SC09 paper's Figures 4 to 10 and Table 1, with GridFTP's own programs and the XIO driver (S24, S30, S31, U13).
//!
//! - [`rows`] defines the rows; [`site`] makes paths and the environment of GCT's programs on them.
//! - [`programs`] starts them; `crate::bench::transfer` counts what arrives.
//! - `report` makes tables and drawings; `statements` compares the results with the paper's statements.

pub(in crate::bench) mod programs;
mod report;
mod rows;
pub(in crate::bench) mod site;
mod statements;

use super::Common;
use super::conditions::versions;
use super::engine::{Experiment, Label};
use super::report::Report;
use super::results::{Reading, Results};
use super::wan::{self, percent};
use crate::testbed::Security;
use phoebus_proto::units::{Probability, Span};
use phoebus_wan::model::{Loss, Rate};
use phoebus_wan::testbed::Sc09;
use rows::ROWS;
use site::PathCache;
use std::time::Duration;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct Sc09Args {
    #[command(flatten)]
    pub(super) common: Common,
    /// All of the paper's circumstances instead of five.
    #[arg(long)]
    full: bool,
    /// Round trips of the WAN, instead of those of the paper's figures.
    #[arg(long, value_delimiter = ',', value_name = "TIME", requires = "loss")]
    rtt: Vec<Span>,
    /// Losses on both LANs, with each of these round trips.
    #[arg(long, value_delimiter = ',', value_name = "PROBABILITY", requires = "rtt")]
    loss: Vec<Probability>,
    /// Length of each transfer, in seconds [default: 12, with --quick 5].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: Option<u64>,
    /// What protects the hop between the gateways; QUIC is always encrypted.
    #[arg(long, value_name = "NAME", default_value = "encrypt")]
    security: Security,
}

/// The experiment.
pub(super) struct Sc09Figures {
    cells: Vec<Cell>,
    seconds: u64,
    seed: u64,
    security: Security,
}

/// The circumstances of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    /// The round trip of the WAN; zero: nothing is emulated.
    rtt: Span,
    loss: Probability,
}

/// The paper's figures: number, round trip of the WAN in milliseconds, loss on the LANs.
const FIGURES: [(u32, u64, f64); 7] =
    [(4, 25, 1e-5), (5, 50, 1e-5), (6, 100, 1e-5), (7, 150, 1e-5), (8, 25, 1e-4), (9, 50, 1e-4), (10, 100, 1e-4)];
/// The figures measured by default: the nearest and the farthest, and those of the targets.
const USUAL: [u32; 4] = [4, 7, 9, 10];
/// Time before and after the data of a transfer: servers, logins, the end.
const AROUND: Duration = Duration::from_secs(5);

impl Cell {
    fn new(milliseconds: u64, loss: f64) -> Self {
        Self { rtt: Span(Duration::from_millis(milliseconds)), loss: Probability::new(loss).unwrap_or_default() }
    }

    /// Nothing is emulated except the hops.
    fn none() -> Self {
        Self::new(0, 0.0)
    }

    fn label(self) -> Label {
        if self.rtt.0.is_zero() {
            return Label::new("none", "no emulation");
        }
        let loss = percent(self.loss);
        Label::new(format!("{} {loss}", self.rtt), format!("{}, loss {loss}", self.rtt))
    }

    /// The number of its figure in the paper.
    fn figure(self) -> Option<u32> {
        FIGURES.iter().find(|(_, rtt, loss)| Self::new(*rtt, *loss) == self).map(|(number, ..)| *number)
    }

    fn path(self, seed: u64) -> Sc09 {
        let path = wan::path(self.rtt, self.loss, seed, "bbr");
        match self.rtt.0.is_zero() {
            true => Sc09 { lan_rtt: self.rtt, lan_loss: Loss::none(), rate: Rate::Unlimited, ..path },
            false => path,
        }
    }
}

impl Sc09Figures {
    /// The experiment with these options.
    pub(super) fn new(args: &Sc09Args) -> Self {
        let quick = args.common.quick;
        let figure = |wanted: &dyn Fn(u32) -> bool| -> Vec<Cell> {
            FIGURES.iter().filter(|(number, ..)| wanted(*number)).map(|(_, rtt, loss)| Cell::new(*rtt, *loss)).collect()
        };
        let cells = match (args.full, args.rtt.is_empty()) {
            (_, false) => {
                let with = |loss| args.rtt.iter().map(move |rtt| Cell { rtt: *rtt, loss });
                args.loss.iter().copied().flat_map(with).collect()
            }
            (true, true) => {
                let all =
                    [1e-5, 1e-4, 1e-3].into_iter().flat_map(|loss| [25, 50, 100, 150].map(|rtt| Cell::new(rtt, loss)));
                std::iter::once(Cell::none()).chain(all).collect()
            }
            (false, true) if quick => figure(&|number| number == 10),
            (false, true) => std::iter::once(Cell::none()).chain(figure(&|number| USUAL.contains(&number))).collect(),
        };
        let seconds = args.seconds.unwrap_or(if quick { 5 } else { 12 });
        Self { cells, seconds, seed: args.common.seed, security: args.security }
    }

    fn cell(&self, point: &str) -> Cell {
        self.cells.iter().copied().find(|cell| cell.label().id == point).unwrap_or_else(Cell::none)
    }
}

impl Experiment for Sc09Figures {
    type Bed = PathCache;

    fn name(&self) -> &'static str {
        "sc09"
    }

    fn points(&self) -> Vec<Label> {
        self.cells.iter().map(|cell| cell.label()).collect()
    }

    fn rows(&self) -> Vec<Label> {
        let title = |row: &rows::Row| match row.ends {
            rows::EndsControl::CubicAlone => format!("{}, ends with cubic alone", row.title),
            _ => row.title.to_owned(),
        };
        ROWS.iter().map(|row| Label::new(row.id, title(row))).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        Duration::from_secs(self.seconds) + AROUND
    }

    fn set_up(&self, point: &str) -> anyhow::Result<PathCache> {
        let mut sites = PathCache::new(self.cell(point).path(self.seed))?;
        sites.of(&ROWS[0], self.security)?;
        Ok(sites)
    }

    fn conditions(&self, sites: &PathCache) -> Vec<(String, String)> {
        let mut all = versions(&[
            ("globus-gridftp-server", "--version"),
            ("globus-url-copy", "-version"),
            ("ssh", "-V"),
            (super::iperf::PROGRAM, "--version"),
        ]);
        all.push((
            "test".into(),
            format!(
                "put of /dev/zero to /dev/null in MODE E for {} s from the first byte of data at the receiver on, GSI on the \
                 control channel, data channels authenticated (DCAU A) and not protected",
                self.seconds
            ),
        ));
        all.push((
            "ends".into(),
            "congestion control by route (ip-route(8), congctl): cubic, and bbr for those who ask".into(),
        ));
        all.push(("between the gateways".into(), format!("security = \"{}\"", self.security.name())));
        all.extend(sites.any().map(|bed| wan::conditions(bed, self.seed)).unwrap_or_default());
        all
    }

    fn measure(&self, sites: &mut PathCache, _: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some(row) = ROWS.iter().find(|one| one.id == row) else { return Ok(Vec::new()) };
        let (bed, grid) = sites.of(row, self.security)?;
        programs::measure(bed, grid, row, self.seconds, limit)
    }

    fn report(&self, results: &Results) -> Report {
        report::of(self, results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(change: impl FnOnce(&mut Sc09Args)) -> Sc09Figures {
        let mut args = Sc09Args {
            common: Common::for_tests(),
            full: false,
            rtt: Vec::new(),
            loss: Vec::new(),
            seconds: None,
            security: Security::Encrypt,
        };
        change(&mut args);
        Sc09Figures::new(&args)
    }

    fn ids(figures: &Sc09Figures) -> Vec<String> {
        figures.points().into_iter().map(|label| label.id).collect()
    }

    #[test]
    fn default_points_are_those_of_the_paper() {
        let usual = figures(|_| {});
        assert_eq!(ids(&usual), ["none", "25ms 0.001%", "150ms 0.001%", "50ms 0.01%", "100ms 0.01%"]);
        let numbers: Vec<_> = usual.cells.iter().map(|cell| cell.figure()).collect();
        assert_eq!(numbers, [None, Some(4), Some(7), Some(9), Some(10)]);
        assert_eq!(figures(|args| args.full = true).points().len(), 13);
        assert_eq!(ids(&figures(|args| args.common.quick = true)), ["100ms 0.01%"]);
    }

    #[test]
    fn options_select_any_point() {
        let some = figures(|args| {
            args.rtt = vec![Span(Duration::from_millis(40)), Span(Duration::from_millis(80))];
            args.loss = vec![Probability::new(1e-3).unwrap()];
        });
        assert_eq!(ids(&some), ["40ms 0.1%", "80ms 0.1%"]);
        assert_eq!(some.cell("80ms 0.1%").path(1).wan_rtt, Span(Duration::from_millis(80)));
        assert_eq!(Cell::none().path(1).rate, Rate::Unlimited);
    }
}
