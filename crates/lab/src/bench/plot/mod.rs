//! Plots as SVG: grouped bars, lines with markers, each value with its spread, or traces over time.
//!
//! A [`Chart`] describes the content; [`Chart::to_svg`] draws it. The files are self-contained: no script, no style
//! sheet, fonts by family, a white background, a legend, and colours that people with any colour vision can
//! distinguish (Okabe and Ito's, and a wine of Tol's).

mod scale;
mod svg;

use super::stats::Summary;
pub(crate) use scale::Scale;

/// A drawing of measured values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chart {
    /// What it shows.
    pub(crate) title: String,
    /// The conditions, in a line below the title.
    pub(crate) subtitle: String,
    /// How values are drawn.
    pub(crate) kind: Kind,
    /// The horizontal axis.
    pub(crate) x: Axis,
    /// The vertical axis.
    pub(crate) y: Axis,
    /// The compared series.
    pub(crate) series: Vec<Series>,
    /// Reference values on the vertical axis, each with a label: capacities, targets.
    pub(crate) marks: Vec<(f64, String)>,
}

/// How values are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Grouped bars; the horizontal axis has categories.
    Bars,
    /// Points joined by lines.
    Lines,
    /// Only thin lines, for many values: flows over time. Series of the same name share a legend entry.
    Traces,
}

/// One axis.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    /// What it shows, with its unit.
    pub(crate) label: String,
    /// How values map to positions.
    pub(crate) scale: Scale,
}

/// The values of one compared row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    /// Its name in the legend.
    pub(crate) name: String,
    /// Its colour in this and other charts.
    pub(crate) colour: Colour,
    /// Its values, from left to right.
    pub(crate) points: Vec<Point>,
}

/// A value with the spread of its measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// Position on the horizontal axis: the number of the category, or a value.
    pub(crate) x: f64,
    /// The median.
    pub(crate) y: f64,
    /// The smallest measurement.
    pub(crate) low: f64,
    /// The largest measurement.
    pub(crate) high: f64,
}

/// The colours of series: greys and blues for peers, warm ones for Phoebus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    LightGrey,
    Grey,
    Black,
    Sky,
    Blue,
    Green,
    Purple,
    Orange,
    Vermilion,
    Wine,
    Yellow,
}

impl Point {
    /// The median at `x`, with the extremes.
    pub(crate) fn of(x: f64, summary: &Summary) -> Self {
        Self { x, y: summary.median, low: summary.min, high: summary.max }
    }
}

impl Axis {
    /// An axis called `label`.
    pub(crate) fn new(label: impl Into<String>, scale: Scale) -> Self {
        Self { label: label.into(), scale }
    }
}

impl Colour {
    fn hex(self) -> &'static str {
        match self {
            Self::LightGrey => "#bbbbbb",
            Self::Grey => "#777777",
            Self::Black => "#222222",
            Self::Sky => "#56b4e9",
            Self::Blue => "#0072b2",
            Self::Green => "#009e73",
            Self::Purple => "#cc79a7",
            Self::Orange => "#e69f00",
            Self::Vermilion => "#d55e00",
            Self::Wine => "#882255",
            Self::Yellow => "#d4c926",
        }
    }
}
