//! Axes: the positions of values, and the tick values.

/// How values map to positions along an axis.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scale {
    /// Categories side by side; a value is the category's number, from 0.
    Categories(Vec<String>),
    /// From 0 (or below, if there are such values) to the largest.
    Linear,
    /// By powers of ten; values that are not above 0 are not drawn.
    Log,
}

/// An axis fitted to its values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FittedAxis {
    low: f64,
    high: f64,
    log: bool,
    /// The tick values, with their labels.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Scale {
    /// An axis with room for all of `values`.
    pub(super) fn fit(&self, values: impl Iterator<Item = f64>) -> FittedAxis {
        match self {
            Self::Categories(names) => FittedAxis {
                low: -0.5,
                high: names.len().max(1) as f64 - 0.5,
                log: false,
                ticks: names.iter().enumerate().map(|(place, name)| (place as f64, name.clone())).collect(),
            },
            Self::Linear => linear(values),
            Self::Log => log(values),
        }
    }
}

impl FittedAxis {
    /// The position of `value` between the ends, 0 to 1; `None` if it cannot be drawn.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        if !value.is_finite() || (self.log && value <= 0.0) {
            return None;
        }
        let at = |v: f64| if self.log { v.log10() } else { v };
        Some(((at(value) - at(self.low)) / (at(self.high) - at(self.low))).clamp(0.0, 1.0))
    }

    /// The value at the base of bars.
    pub(super) fn floor(&self) -> f64 {
        if self.log { self.low } else { self.low.max(0.0) }
    }
}

fn linear(values: impl Iterator<Item = f64>) -> FittedAxis {
    let (low, high) = values.filter(|v| v.is_finite()).fold((0.0f64, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    let high = if high > low { high } else { low + 1.0 };
    let step = nice_step((high - low) / 5.0);
    let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
    let ticks = (first..=last).map(|n| n as f64 * step).map(|v| (v, label(v))).collect();
    FittedAxis { low: first as f64 * step, high: last as f64 * step, log: false, ticks }
}

fn log(values: impl Iterator<Item = f64>) -> FittedAxis {
    let drawn = values.filter(|v| v.is_finite() && *v > 0.0);
    let (low, high) = drawn.fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 10.0) };
    // Ends are 1, 2 or 5 times a power of ten; ticks are all of these in between, or only the powers if there are too
    // many.
    let marks = |decade: i32| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(decade));
    let decades = low.log10().floor() as i32 - 1..=high.log10().ceil() as i32 + 1;
    let all: Vec<f64> = decades.flat_map(marks).collect();
    let start = all.iter().copied().rfind(|m| *m <= low * (1.0 + 1e-9)).unwrap_or(low);
    let end = all.iter().copied().find(|m| *m >= high * (1.0 - 1e-9) && *m > start).unwrap_or(high);
    let inside: Vec<f64> = all.into_iter().filter(|m| (start..=end).contains(m)).collect();
    let crowd = inside.len() > 10;
    let is_power = |v: f64| (v.log10() - v.log10().round()).abs() < 1e-9;
    let ticks = inside.into_iter().filter(|v| !crowd || is_power(*v)).map(|v| (v, label(v))).collect();
    FittedAxis { low: start, high: end, log: true, ticks }
}

/// The smallest of 1, 2, 5 times a power of ten that is at least `rough`.
fn nice_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().map(|m| m * power).find(|step| *step >= rough * (1.0 - 1e-9));
    step.unwrap_or(10.0 * power)
}

/// A number without trailing zeros.
fn label(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: &Scale, values: &[f64]) -> Vec<String> {
        scale.fit(values.iter().copied()).ticks.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn axis_has_round_ticks() {
        assert_eq!(texts(&Scale::Linear, &[3.0, 915.0]), ["0", "200", "400", "600", "800", "1000"]);
        assert_eq!(texts(&Scale::Linear, &[0.43]), ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]);
        assert_eq!(texts(&Scale::Log, &[1.0, 128.0]), ["1", "2", "5", "10", "20", "50", "100", "200"]);
        assert_eq!(
            texts(&Scale::Log, &[0.012, 90_000.0]),
            ["0.01", "0.1", "1", "10", "100", "1000", "10000", "100000"]
        );
    }

    #[test]
    fn axis_places_values_between_the_ends() {
        let linear = Scale::Linear.fit([0.0, 1000.0].into_iter());
        assert_eq!((linear.place(500.0), linear.place(f64::NAN)), (Some(0.5), None));
        let log = Scale::Log.fit([1.0, 100.0].into_iter());
        assert_eq!((log.place(10.0), log.place(0.0)), (Some(0.5), None));
        let names = Scale::Categories(vec!["a".into(), "b".into()]).fit([].into_iter());
        assert_eq!((names.place(0.0), names.place(1.0)), (Some(0.25), Some(0.75)));
    }

    #[test]
    fn axis_without_values_still_has_two_ends() {
        for scale in [Scale::Linear, Scale::Log, Scale::Categories(Vec::new())] {
            let axis = scale.fit([f64::NAN].into_iter());
            assert!(axis.low < axis.high, "{scale:?}");
        }
    }
}
