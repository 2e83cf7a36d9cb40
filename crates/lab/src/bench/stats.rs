//! Summaries of repeated measurements: the median, because one disturbed run must not move it, and the spread.

use serde::Serialize;

/// A summary of measurements. All values have their unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Number of measurements.
    pub(crate) count: usize,
    /// The middle one, or the mean of the middle two.
    pub(crate) median: f64,
    /// The first quartile, by linear interpolation between neighbours (Hyndman and Fan's type 7).
    pub(crate) first_quartile: f64,
    /// The third quartile.
    pub(crate) third_quartile: f64,
    /// The smallest.
    pub(crate) min: f64,
    /// The largest.
    pub(crate) max: f64,
    /// The arithmetic mean, to compare with papers that print it.
    pub(crate) mean: f64,
    /// The standard deviation of the sample; 0 for a single measurement.
    pub(crate) deviation: f64,
}

impl Summary {
    /// Summarizes `values`; `None` if there are none, or one is not finite.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        if !(min.is_finite() && max.is_finite()) {
            return None;
        }
        let count = sorted.len();
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
        let [first_quartile, median, third_quartile] = [0.25, 0.5, 0.75].map(|share| quantile(&sorted, share));
        Some(Self { count, median, first_quartile, third_quartile, min, max, mean, deviation })
    }

    /// `median (min–max)`, or the median alone for a single measurement.
    pub(crate) fn with_extremes(&self) -> String {
        self.with_range(self.min, self.max)
    }

    /// `median (first quartile–third quartile)`, for sets so large that the extremes mean nothing.
    pub(crate) fn with_quartiles(&self) -> String {
        self.with_range(self.first_quartile, self.third_quartile)
    }

    fn with_range(&self, low: f64, high: f64) -> String {
        let digits = digits(self.median);
        if self.count == 1 {
            return format!("{:.digits$}", self.median);
        }
        format!("{:.digits$} ({low:.digits$}–{high:.digits$})", self.median)
    }
}

/// Jain's index of fairness: 1 if all values are equal; k/n if k of n values are equal and the others are 0.
pub(crate) fn jain(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum, squares) =
        values.fold((0.0, 0.0, 0.0), |(n, sum, squares), v| (n + 1.0, sum + v, squares + v * v));
    if squares > 0.0 { sum * sum / (count * squares) } else { 0.0 }
}

/// `value` with about three significant digits, and at most three decimals.
pub(crate) fn rounded(value: f64) -> String {
    format!("{value:.digits$}", digits = digits(value))
}

fn digits(value: f64) -> usize {
    match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    }
}

/// The value below which `share` of `sorted` lies; `sorted` must not be empty.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_known_sets_is_correct() {
        let odd = Summary::of(&[5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((odd.median, odd.first_quartile, odd.third_quartile), (3.0, 2.0, 4.0));
        assert_eq!((odd.min, odd.max, odd.mean, odd.count), (1.0, 5.0, 3.0, 5));
        assert!((odd.deviation - 2.5f64.sqrt()).abs() < 1e-12);
        let even = Summary::of(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!((even.median, even.first_quartile, even.third_quartile), (2.5, 1.75, 3.25));
    }

    #[test]
    fn one_outlier_does_not_move_the_median() {
        assert_eq!(Summary::of(&[10.0, 10.0, 10.0, 10.0, 9000.0]).unwrap().median, 10.0);
    }

    #[test]
    fn summary_of_nothing_is_none() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(Summary::of(&[f64::INFINITY]), None);
    }

    #[test]
    fn jains_index_is_between_one_nth_and_one() {
        assert_eq!(jain([5.0, 5.0, 5.0].into_iter()), 1.0);
        assert_eq!(jain([8.0, 0.0, 0.0, 0.0].into_iter()), 0.25);
        assert_eq!(jain([0.0].into_iter()), 0.0);
    }

    #[test]
    fn rounded_prints_significant_digits() {
        assert_eq!(Summary::of(&[915.2, 899.6, 921.4]).unwrap().with_extremes(), "915 (900–921)");
        assert_eq!(Summary::of(&[0.4567]).unwrap().with_extremes(), "0.457");
        assert_eq!(Summary::of(&[64.01, 64.05]).unwrap().with_quartiles(), "64.0 (64.0–64.0)");
        assert_eq!(rounded(1.0562), "1.06");
    }
}
