//! `phoebus bench emulator`: checks the emulated links against their own settings, before any experiment relies on
//! them.
//!
//! [`phoebus_wan::measure`] makes the measurements; this module prints and saves them like those of all experiments.

use super::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};
use super::report::{self, Report, Verdict};
use super::results::{CommandRun, Results, Sample, Store};
use super::stats::Summary;
use super::table::Table;
use super::{Common, conditions, iperf};
use crate::exit::Exit;
use phoebus_wan::measure::{self, Bound, Finding, Options};

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct EmulatorArgs {
    #[command(flatten)]
    pub(super) common: Common,
}

/// Measures, and saves each finding at once.
pub(super) fn run(args: &EmulatorArgs, store: &Store) -> anyhow::Result<(Results, Report)> {
    let Common { only, resume, .. } = &args.common;
    if *resume || !only.is_empty() {
        let why = "bench emulator measures all there is each time; expected neither --only nor --resume";
        return Err(Exit::usage(why));
    }
    let full = Options { runs: args.common.runs(), ..Options::default() };
    let options = if args.common.quick { Options { seconds: 3, segments: 100_000, ..full } } else { full };
    eprintln!("Eight properties, {} runs each: about {} min.", options.runs, minutes(&options));
    let mut facts = conditions::machine();
    facts.extend(conditions::versions(&[(iperf::PROGRAM, "--version")]));
    facts.push(("loss".into(), format!("counted over {} segments", options.segments)));
    let mut results = Results::of("emulator");
    results.parts =
        vec![CommandRun { command: conditions::command_line(), started: conditions::now(), conditions: facts }];
    let mut unsaved = None;
    let findings = measure::all(&options, |finding| {
        eprintln!("{finding}");
        results.samples.extend(samples(finding));
        unsaved = store.save(&results).err();
    })?;
    // Each write contains all earlier findings, so only the last one's result matters.
    unsaved.map_or_else(|| Ok((results, report(&findings))), Err)
}

/// Transfers take their seconds, their warm-up and a little more; all other tests together about as much again.
fn minutes(options: &Options) -> u32 {
    let transfers = 3 * options.runs * (options.seconds + Options::WARM_UP_SECONDS + 1);
    (transfers * 2 + 20).div_ceil(60)
}

fn samples(finding: &Finding) -> impl Iterator<Item = Sample> {
    (1..).zip(&finding.runs).map(|(run, value)| Sample {
        point: finding.conditions.clone(),
        row: "emulator".into(),
        run,
        metric: finding.what.clone(),
        unit: finding.unit.clone(),
        value: *value,
    })
}

fn report(findings: &[Finding]) -> Report {
    let mut table = Table::new("The emulator against its settings", ["", "measured", "unit", "wanted", "conditions"]);
    for finding in findings {
        let measured = Summary::of(&finding.runs).map_or_else(|| "–".into(), |summary| summary.with_extremes());
        let wanted = finding.wanted.to_string();
        table.row([&finding.what, &measured, &finding.unit, &wanted, &finding.conditions].map(String::as_str));
    }
    let verdict = |finding: &Finding| Verdict {
        target: format!("{}, {}", finding.what, finding.unit),
        measured: finding.median,
        bound: match finding.wanted {
            Bound::AtMost(most) => report::Bound::AtMost(most),
            Bound::AtLeast(least) => report::Bound::AtLeast(least),
        },
    };
    Report {
        title: "The emulator".into(),
        method: "Medians, with the smallest and the largest of the runs. Round trips are those of ICMP echo, loss is what a \
                 receiver counted, goodput is iperf3's."
            .into(),
        tables: vec![table],
        charts: chart(findings).map(|chart| ("goodput".to_owned(), chart)).into_iter().collect(),
        verdicts: findings.iter().map(verdict).collect(),
    }
}

/// The rates, which share a unit.
fn chart(findings: &[Finding]) -> Option<Chart> {
    let rates: Vec<_> = findings.iter().filter(|finding| finding.unit == "Mbit/s").collect();
    let points = (0..)
        .zip(&rates)
        .filter_map(|(place, finding)| Some(Point::of(f64::from(place), &Summary::of(&finding.runs)?)));
    let series = Series { name: "one TCP stream".into(), colour: Colour::Blue, points: points.collect() };
    (!rates.is_empty()).then(|| Chart {
        title: "Goodput of emulated links".into(),
        subtitle: "medians with smallest and largest".into(),
        kind: Kind::Bars,
        x: Axis::new("", Scale::Categories(rates.iter().map(|finding| finding.what.clone()).collect())),
        y: Axis::new("goodput, Mbit/s", Scale::Linear),
        series: vec![series],
        marks: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_become_rows_and_verdicts() {
        let finding = |what: &str, unit: &str, median, wanted| Finding {
            what: what.into(),
            conditions: "one link".into(),
            median,
            runs: vec![median],
            unit: unit.into(),
            wanted,
        };
        let report = report(&[
            finding("goodput", "Mbit/s", 925.0, Bound::AtLeast(930.0)),
            finding("error of the round trip", "ms", 0.3, Bound::AtMost(1.0)),
        ]);
        assert_eq!(report.tables[0].rows[1], ["error of the round trip", "0.300", "ms", "at most 1", "one link"]);
        assert_eq!(report.verdicts.iter().map(Verdict::met).collect::<Vec<_>>(), [false, true]);
        assert_eq!(report.charts[0].1.series[0].points.len(), 1);
    }
}
