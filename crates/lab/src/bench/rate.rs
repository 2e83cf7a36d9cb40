//! `phoebus bench rate`: checks with the link's counters that a rate is enforced (S17, S25). One and several sessions
//! use one segment whose profile has a rate; then the rate in the sending gateway's file is halved, and SIGHUP makes
//! the gateway reload it.

use super::Common;
use super::bed::{Bed, BedRoute, Service};
use super::conditions::versions;
use super::engine::{Experiment, Label};
use super::hop::Wan;
use super::iperf::{self, Test};
use super::narrow::LinkCounters;
use super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::report::{Bound, Report, Verdict};
use super::results::{Metric, Reading, Results};
use super::stats::Summary;
use super::table::Table;
use super::wan::{self, percent};
use anyhow::{Context, anyhow};
use phoebus_proto::units::{BitRate, Probability, Span};
use phoebus_wan::model::Loss;
use phoebus_wan::testbed::Sc09;
use std::thread;
use std::time::{Duration, Instant};

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct RateArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Rates of the profile between the gateways.
    #[arg(long, value_delimiter = ',', value_name = "RATE", default_value = "100mbit,500mbit")]
    rate: Vec<BitRate>,
    /// Numbers of sessions at a time.
    #[arg(long, value_delimiter = ',', value_name = "COUNT", default_value = "1,4")]
    sessions: Vec<u32>,
    /// What carries the hop between the gateways.
    #[arg(long, value_delimiter = ',', value_name = "TRANSPORT", default_value = "tcp,bbr,cubic,quic,udt")]
    transport: Vec<Wan>,
    /// Round trip of the WAN.
    #[arg(long, default_value = "40ms", value_name = "TIME")]
    rtt: Span,
    /// Loss of the WAN, each way.
    #[arg(long, default_value = "0%", value_name = "PROBABILITY")]
    loss: Probability,
    /// How long each rate is measured.
    #[arg(long, default_value = "4s", value_name = "TIME")]
    time: Span,
}

/// The experiment.
pub(super) struct RateHeld {
    rates: Vec<BitRate>,
    rows: Vec<(Label, Wan, u32)>,
    rtt: Span,
    loss: Probability,
    time: Duration,
    seed: u64,
}

/// The link's throughput, in per cent of the rate.
const HELD: Metric = Metric { name: "held", unit: "%" };
/// The largest throughput in a tenth of a second, in per cent of the rate.
const MOST: Metric = Metric { name: "most in 100 ms", unit: "%" };
/// Like [`HELD`], after the rate was halved.
const HALVED: Metric = Metric { name: "held after SIGHUP", unit: "%" };
/// From SIGHUP until no more than the new rate arrives at the link.
const FOLLOWED: Metric = Metric { name: "followed after", unit: "ms" };

/// Time for every session to find its rate.
const RAMP: Duration = Duration::from_secs(3);
/// Tolerance of a rate, in per cent.
const WITHIN: f64 = 3.0;
/// Interval between readings of the link's counters.
const PIECE: Duration = Duration::from_millis(100);
/// The same while waiting for a change.
const LOOK: Duration = Duration::from_millis(10);
/// Longest wait for a change.
const PATIENCE: Duration = Duration::from_secs(5);

impl RateHeld {
    /// The experiment with these options.
    pub(super) fn new(args: &RateArgs) -> Self {
        let row = |wan: &Wan, sessions: u32| {
            let title = format!("{}, {sessions} session{}", wan.name, if sessions == 1 { "" } else { "s" });
            (Label::new(format!("{}-{sessions}", wan.name), title), wan.clone(), sessions)
        };
        let rows = args.transport.iter().flat_map(|wan| args.sessions.iter().map(move |sessions| row(wan, *sessions)));
        Self {
            rates: args.rate.clone(),
            rows: rows.collect(),
            rtt: args.rtt,
            loss: args.loss,
            time: args.time.0,
            seed: args.common.seed,
        }
    }

    /// The total length of a test.
    fn length(&self) -> Duration {
        RAMP + self.time + PATIENCE + self.time
    }

    fn bed(&self, wan: Wan) -> anyhow::Result<Bed> {
        let path = wan::path(self.rtt, Probability::default(), self.seed, "bbr");
        Bed::joined(&Sc09 { wan_loss: Loss::Bernoulli(self.loss), ..path }, wan)
    }

    /// Watches the link while a rate is measured; returns the mean and the largest interval, in Mbit/s.
    fn watch(&self, bed: &Bed) -> anyhow::Result<(f64, f64)> {
        let first = LinkCounters::now(bed)?;
        let (mut last, mut most, end) = (first, 0f64, Instant::now() + self.time);
        while Instant::now() < end {
            thread::sleep(PIECE);
            let now = LinkCounters::now(bed)?;
            most = most.max(now.entered_since(&last));
            last = now;
        }
        Ok((last.entered_since(&first), most))
    }

    /// Halves the rate from `pg1` to `pg2`; returns how long the link took to show it.
    fn halve(bed: &mut Bed, rate: BitRate) -> anyhow::Result<Duration> {
        let gateway = bed.gateway("pg1").ok_or_else(|| anyhow!("there is no gateway on pg1"))?;
        let file = &gateway.config;
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let half = BitRate(rate.0 / 2);
        let changed = text.replace(&format!("rate = \"{rate}\""), &format!("rate = \"{half}\""));
        if changed == text {
            return Err(anyhow!("{} has no rate of {rate}", file.display()));
        }
        std::fs::write(file, changed).with_context(|| format!("cannot write {}", file.display()))?;
        let pid = rustix::process::Pid::from_child(&gateway.child);
        let told = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP)?;
        // One interval may be below the old rate by chance; three in a row are not.
        let (mut last, mut below, enough) = (LinkCounters::now(bed)?, None, half.0 as f64 / 1e6 * 1.25);
        let mut seen = 0;
        while seen < 3 && told.elapsed() < PATIENCE {
            thread::sleep(LOOK);
            let now = LinkCounters::now(bed)?;
            if now.entered_since(&last) <= enough {
                below.get_or_insert_with(|| told.elapsed());
                seen += 1;
            } else {
                (below, seen) = (None, 0);
            }
            last = now;
        }
        below.filter(|_| seen == 3).ok_or_else(|| anyhow!("the new rate was not held within {} s", PATIENCE.as_secs()))
    }
}

impl Experiment for RateHeld {
    type Bed = Option<Bed>;

    fn name(&self) -> &'static str {
        "rate"
    }

    fn points(&self) -> Vec<Label> {
        self.rates.iter().map(|rate| Label::new(rate.to_string(), rate.to_string())).collect()
    }

    fn rows(&self) -> Vec<Label> {
        self.rows.iter().map(|(label, ..)| label.clone()).collect()
    }

    fn expected(&self, _: &str, _: &str) -> Duration {
        self.length() + Duration::from_secs(2)
    }

    fn set_up(&self, _: &str) -> anyhow::Result<Option<Bed>> {
        Ok(Some(self.bed(Wan::plain("bbr"))?))
    }

    fn conditions(&self, bed: &Option<Bed>) -> Vec<(String, String)> {
        let mut all = versions(&[(iperf::PROGRAM, "--version")]);
        all.push(("path".into(), format!("round trip of the WAN {}, loss {}", self.rtt, percent(self.loss))));
        let time = self.time.as_secs_f64();
        all.push(("measured".into(), format!("{time} s at each rate, from {} s on", RAMP.as_secs())));
        let links = bed.iter().flat_map(|bed| wan::conditions(bed, self.seed));
        all.extend(links.map(|(name, value)| (name, value.replace(" no loss on the WAN,", ""))));
        all
    }

    fn measure(&self, bed: &mut Option<Bed>, point: &str, row: &str, limit: Duration) -> anyhow::Result<Vec<Reading>> {
        let Some((_, wan, sessions)) = self.rows.iter().find(|(label, ..)| label.id == row) else {
            return Ok(Vec::new());
        };
        let rate: BitRate = point.parse().map_err(anyhow::Error::msg)?;
        // Drop the previous bed first: both would have the same host names.
        *bed = None;
        let bed = bed.insert(self.bed(wan.clone().with("rate", point))?);
        let server = iperf::serve(bed.command("dst", iperf::PROGRAM)?, Service::Iperf.port())?;
        let mut client = bed.command("src", iperf::PROGRAM)?;
        bed.route(&mut client, BedRoute::Phoebus, Some("bbr"))?;
        let at = bed.entrance(BedRoute::Phoebus, Service::Iperf)?;
        let test =
            Test { seconds: self.length().as_secs(), streams: *sessions, reverse: false, congestion_control: None };
        let readings = thread::scope(|scope| {
            let transfer = scope.spawn(|| test.run(client, at, limit));
            thread::sleep(RAMP);
            let allowed = rate.0 as f64 / 1e6;
            let (mean, most) = self.watch(bed)?;
            let followed = Self::halve(bed, rate)?;
            let (halved, _) = self.watch(bed)?;
            transfer.join().map_err(|_| anyhow!("the thread of the test has failed"))??;
            Ok(vec![
                (HELD, 100.0 * mean / allowed),
                (MOST, 100.0 * most / allowed),
                (HALVED, 200.0 * halved / allowed),
                (FOLLOWED, followed.as_secs_f64() * 1e3),
            ])
        });
        drop(server);
        readings
    }

    fn report(&self, results: &Results) -> Report {
        let title = "Rates".to_owned();
        let method = format!(
            "iperf3 from `src` to `dst` through two gateways; the profile between them has the rate that heads the column. \
             The link between the gateways counts what comes to it, with all headers and framing, in per cent of that rate; \
             its round trip is {}, and it could carry 1 Gbit/s. Then the rate is halved by SIGHUP. Medians, with the smallest \
             and the largest of the runs.",
            self.rtt
        );
        let tables = [
            (HELD, "On the link, per cent of the rate"),
            (MOST, "The most on the link in a tenth of a second, per cent of the rate"),
            (HALVED, "After the rate was halved, per cent of what it was halved to"),
            (FOLLOWED, "From SIGHUP until the link shows the new rate, ms"),
        ];
        let tables = tables.into_iter().map(|(metric, caption)| self.table(results, metric, caption)).collect();
        let verdicts = self.verdicts(results);
        Report { title, method, tables, charts: vec![("held".into(), self.chart(results))], verdicts }
    }
}

impl RateHeld {
    fn table(&self, results: &Results, metric: Metric, caption: &str) -> Table {
        let columns = self.rates.iter().map(BitRate::to_string);
        let mut table = Table::new(caption, std::iter::once(String::new()).chain(columns));
        for (label, ..) in &self.rows {
            let cell = |rate: &BitRate| results.cell(&rate.to_string(), &label.id, metric, Summary::with_extremes);
            table.row(std::iter::once(label.title.clone()).chain(self.rates.iter().map(cell)));
        }
        table
    }

    fn chart(&self, results: &Results) -> Chart {
        let colours = [Colour::Grey, Colour::Blue, Colour::Orange, Colour::Vermilion];
        let series = self.rates.iter().zip(colours.into_iter().cycle()).map(|(rate, colour)| {
            let point = |(place, (label, ..)): (usize, &(Label, Wan, u32))| {
                Some(Point::of(place as f64, &results.summary(&rate.to_string(), &label.id, HELD)?))
            };
            let points = self.rows.iter().enumerate().filter_map(point).collect();
            Series { name: rate.to_string(), colour, points }
        });
        Chart {
            title: "Rates, as the link counts".into(),
            subtitle: format!("WAN {}; medians with extremes", self.rtt),
            kind: Kind::Bars,
            x: Axis::new(
                "between the gateways",
                Scale::Categories(self.rows.iter().map(|row| row.0.id.clone()).collect()),
            ),
            y: Axis::new("on the link, % of the rate", Scale::Linear),
            series: series.collect(),
            marks: vec![(100.0, "the rate".into())],
        }
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let all = |metric: Metric| -> Vec<f64> {
            let all = self.rates.iter().flat_map(|rate| self.rows.iter().map(move |row| (rate, row)));
            let medians = all.filter_map(|(rate, (label, ..))| results.summary(&rate.to_string(), &label.id, metric));
            medians.map(|summary| summary.median).collect()
        };
        let verdict = |(metric, what): (Metric, &str)| {
            let off = all(metric).into_iter().map(|held| (held - 100.0).abs()).reduce(f64::max)?;
            Some(Verdict {
                target: format!("{what}, per cent off at worst"),
                measured: off,
                bound: Bound::AtMost(WITHIN),
            })
        };
        [(HELD, "a rate on the link"), (HALVED, "a rate after it was halved")].into_iter().filter_map(verdict).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_uses_the_worst_case() {
        let args = RateArgs {
            common: Common::for_tests(),
            rate: vec![BitRate(100_000_000)],
            sessions: vec![1, 4],
            transport: vec![Wan::plain("bbr")],
            rtt: Span(Duration::from_millis(40)),
            loss: Probability::default(),
            time: Span(Duration::from_secs(1)),
        };
        let experiment = RateHeld::new(&args);
        let mut results = Results::of("rate");
        results.add("100mbit", "bbr-1", 1, &[(HELD, 99.0)]);
        results.add("100mbit", "bbr-4", 1, &[(HELD, 96.5)]);
        let verdicts = experiment.verdicts(&results);
        assert_eq!(verdicts.len(), 1, "nothing was halved");
        assert!((verdicts[0].measured - 3.5).abs() < 1e-9 && !verdicts[0].met());
    }
}
