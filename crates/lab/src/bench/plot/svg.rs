//! The SVG writer: lays out a chart on a fixed canvas, with the legend to the right, and writes SVG 1.1.

use super::scale::FittedAxis;
use super::{Chart, Kind, Point, Series};
use std::fmt::Write;

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 218.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 58.0;
/// The share of a category's width that its bars fill.
const FILLED: f64 = 0.84;
/// Wider bars look like areas.
const BAR_MAX: f64 = 56.0;
const INK: &str = "#222222";
const FAINT: &str = "#dddddd";

impl Chart {
    /// The chart as an SVG document.
    pub(crate) fn to_svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = self.x.scale.fit(points().map(|p| p.x));
        let spread = points().flat_map(|p| [p.y, p.low, p.high]);
        let y = self.y.scale.fit(spread.chain(self.marks.iter().map(|(value, _)| *value)));
        let mut canvas = Canvas::new(&self.title);
        canvas.text(LEFT, 26.0, "start", 17.0, "font-weight=\"bold\"", &self.title);
        canvas.text(LEFT, 46.0, "start", 12.0, "", &self.subtitle);
        canvas.axes(self, &x, &y);
        match self.kind {
            Kind::Bars => canvas.bars(&self.series, &x, &y),
            Kind::Lines => canvas.lines(&self.series, &x, &y),
            Kind::Traces => canvas.traces(&self.series, &x, &y),
        }
        canvas.marks(&self.marks, &y);
        canvas.legend(&self.series, &self.marks, &y);
        canvas.finish()
    }
}

struct Canvas {
    svg: String,
}

impl Canvas {
    fn new(title: &str) -> Self {
        let mut canvas = Self { svg: String::new() };
        canvas.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"Helvetica, Arial, DejaVu Sans, sans-serif\" role=\"img\">\n<title>{}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>",
            escape(title)
        ));
        canvas
    }

    fn finish(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.svg, "{element}");
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, size: f64, more: &str, text: &str) {
        let text = escape(text);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{INK}\" {more}>{text}</text>"
        ));
    }

    fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2], colour: &str, width: f64, more: &str) {
        self.put(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\" {more}/>"
        ));
    }

    fn axes(&mut self, chart: &Chart, x: &FittedAxis, y: &FittedAxis) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, text) in &y.ticks {
            let Some(at) = down(y, *value) else { continue };
            self.line([LEFT, at], [right, at], FAINT, 1.0, "");
            self.text(LEFT - 8.0, at + 4.0, "end", 12.0, "", text);
        }
        for (value, text) in &x.ticks {
            let Some(at) = across(x, *value) else { continue };
            if chart.kind != Kind::Bars {
                self.line([at, bottom], [at, bottom + 5.0], INK, 1.0, "");
            }
            self.text(at, bottom + 19.0, "middle", 12.0, "", text);
        }
        self.line([LEFT, bottom], [right, bottom], INK, 1.0, "");
        self.line([LEFT, TOP], [LEFT, bottom], INK, 1.0, "");
        self.text((LEFT + right) / 2.0, HEIGHT - 16.0, "middle", 13.0, "", &chart.x.label);
        let (x, y) = (20.0, (TOP + bottom) / 2.0);
        self.text(x, y, "middle", 13.0, &format!("transform=\"rotate(-90 {x:.1} {y:.1})\""), &chart.y.label);
    }

    fn bars(&mut self, series: &[Series], x: &FittedAxis, y: &FittedAxis) {
        let places = x.ticks.len().max(1) as f64;
        let count = series.len().max(1) as f64;
        let group = ((WIDTH - RIGHT - LEFT) / places * FILLED).min(count * BAR_MAX);
        let width = group / count;
        let Some(floor) = down(y, y.floor()) else { return };
        for (number, one) in series.iter().enumerate() {
            let offset = (number as f64 + 0.5) * width - group / 2.0;
            for point in &one.points {
                let (Some(middle), Some(top)) = (across(x, point.x), down(y, point.y)) else { continue };
                let (left, height) = (middle + offset - width * 0.45, (floor - top).max(0.0));
                let (wide, colour) = (width * 0.9, one.colour.hex());
                let name = escape(&one.name);
                self.put(format_args!(
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{height:.1}\" fill=\"{colour}\">\
                     <title>{name}: {:.4}</title></rect>",
                    point.y
                ));
                self.whisker(middle + offset, (width * 0.22).min(5.0), point, y);
            }
        }
    }

    fn traces(&mut self, series: &[Series], x: &FittedAxis, y: &FittedAxis) {
        for one in series {
            self.path(one, x, y, 1.3);
        }
    }

    /// Draws the line through the values of a series; returns their positions.
    fn path(&mut self, one: &Series, x: &FittedAxis, y: &FittedAxis, width: f64) -> Vec<[f64; 2]> {
        let at = |p: &Point| Some([across(x, p.x)?, down(y, p.y)?]);
        let places: Vec<_> = one.points.iter().filter_map(at).collect();
        let path: Vec<_> = places.iter().map(|[x, y]| format!("{x:.1},{y:.1}")).collect();
        let colour = one.colour.hex();
        self.put(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
            path.join(" ")
        ));
        places
    }

    fn lines(&mut self, series: &[Series], x: &FittedAxis, y: &FittedAxis) {
        for (number, one) in series.iter().enumerate() {
            let places = self.path(one, x, y, 2.0);
            for point in &one.points {
                if let Some(middle) = across(x, point.x) {
                    self.whisker(middle, 4.0, point, y);
                }
            }
            for place in places {
                self.marker(number, place, one.colour.hex());
            }
        }
    }

    /// Draws the spread of a value's measurements, if there is one.
    fn whisker(&mut self, x: f64, half: f64, point: &Point, y: &FittedAxis) {
        let (Some(low), Some(high)) = (down(y, point.low), down(y, point.high)) else { return };
        if low - high < 1.0 {
            return;
        }
        self.line([x, low], [x, high], INK, 1.2, "");
        for end in [low, high] {
            self.line([x - half, end], [x + half, end], INK, 1.2, "");
        }
    }

    /// The shape of the markers also distinguishes series, for prints in grey.
    fn marker(&mut self, number: usize, [x, y]: [f64; 2], colour: &str) {
        match number % 3 {
            0 => self.put(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{colour}\"/>")),
            1 => {
                let (x, y) = (x - 4.0, y - 4.0);
                self.put(format_args!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"8\" height=\"8\" fill=\"{colour}\"/>"));
            }
            _ => {
                let points =
                    format!("{:.1},{:.1} {:.1},{:.1} {:.1},{:.1}", x, y - 5.5, x - 5.0, y + 4.0, x + 5.0, y + 4.0);
                self.put(format_args!("<polygon points=\"{points}\" fill=\"{colour}\"/>"));
            }
        }
    }

    fn marks(&mut self, marks: &[(f64, String)], y: &FittedAxis) {
        for (value, text) in marks {
            let Some(at) = down(y, *value) else { continue };
            self.line([LEFT, at], [WIDTH - RIGHT, at], INK, 1.2, "stroke-dasharray=\"5 4\"");
            self.text(WIDTH - RIGHT + 6.0, at + 4.0, "start", 11.0, "", text);
        }
    }

    /// Placed at the bottom, or where it does not cover the label of a mark.
    fn legend(&mut self, series: &[Series], marks: &[(f64, String)], y_axis: &FittedAxis) {
        let x = WIDTH - RIGHT + 14.0;
        let is_new = |(place, one): &(usize, &Series)| series[..*place].iter().all(|other| other.name != one.name);
        let series: Vec<_> = series.iter().enumerate().filter(is_new).map(|(_, one)| one).collect();
        let length = 20.0 * series.len().saturating_sub(1) as f64;
        let marks: Vec<_> = marks.iter().filter_map(|(value, _)| down(y_axis, *value)).collect();
        let (highest, lowest) = (TOP + 12.0, HEIGHT - BOTTOM - 6.0 - length);
        let is_free = |first: &f64| marks.iter().all(|mark| *mark < first - 20.0 || *mark > first + length + 20.0);
        let beside = marks.iter().flat_map(|mark| [mark - length - 21.0, mark + 21.0]);
        let places = [lowest, highest].into_iter().chain(beside.filter(|first| (highest..=lowest).contains(first)));
        let first = places.into_iter().find(is_free).unwrap_or(lowest);
        for (number, one) in series.iter().enumerate() {
            let y = first + 20.0 * number as f64;
            let colour = one.colour.hex();
            self.put(format_args!(
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/>",
                y - 10.0
            ));
            self.text(x + 18.0, y, "start", 12.0, "", &one.name);
        }
    }
}

fn across(axis: &FittedAxis, value: f64) -> Option<f64> {
    Some(LEFT + axis.place(value)? * (WIDTH - RIGHT - LEFT))
}

fn down(axis: &FittedAxis, value: f64) -> Option<f64> {
    Some(HEIGHT - BOTTOM - axis.place(value)? * (HEIGHT - BOTTOM - TOP))
}

/// Escapes text for XML character data, which cannot contain most control characters.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use crate::bench::plot::{Axis, Chart, Colour, Kind, Point, Scale, Series};

    fn chart(kind: Kind, x: Scale, y: Scale) -> Chart {
        let series = |name: &str, colour, values: [f64; 2]| Series {
            name: name.into(),
            colour,
            points: [0.0, 1.0]
                .into_iter()
                .zip(values)
                .map(|(x, y)| Point { x, y, low: y * 0.5, high: y * 1.5 })
                .collect(),
        };
        Chart {
            title: "Goodput <& \"more\">".into(),
            subtitle: "loss 0.01 %".into(),
            kind,
            x: Axis::new("round trip, ms", x),
            y: Axis::new("Mbit/s", y),
            series: vec![
                series("direct", Colour::Grey, [400.0, 100.0]),
                series("Phoebus", Colour::Vermilion, [900.0, 0.0]),
            ],
            marks: vec![(800.0, "target 800".into())],
        }
    }

    /// The number in `attribute` of each element `element` whose text contains `with`.
    fn numbers(svg: &str, element: &str, with: &str, attribute: &str) -> Vec<f64> {
        let of_element = svg.lines().filter(|line| line.starts_with(&format!("<{element} ")) && line.contains(with));
        let value = |line: &str| {
            line.split_once(&format!(" {attribute}=\"")).unwrap().1.split_once('"').unwrap().0.parse().unwrap()
        };
        of_element.map(value).collect()
    }

    #[test]
    fn bars_are_as_high_as_their_values() {
        let svg = chart(Kind::Bars, Scale::Categories(vec!["50".into(), "100".into()]), Scale::Linear).to_svg();
        let [direct, phoebus] = ["<title>direct", "<title>Phoebus"].map(|with| numbers(&svg, "rect", with, "height"));
        assert!((direct[0] / direct[1] - 4.0).abs() < 0.01, "{direct:?}");
        assert!((phoebus[0] / direct[0] - 2.25).abs() < 0.01 && phoebus[1] == 0.0, "{phoebus:?}");
    }

    #[test]
    fn chart_contains_its_texts_escaped() {
        let svg = chart(Kind::Lines, Scale::Linear, Scale::Log).to_svg();
        for text in [
            "Goodput &lt;&amp; &quot;more&quot;&gt;",
            "loss 0.01 %",
            "round trip, ms",
            "Mbit/s",
            "target 800",
            ">direct<",
        ] {
            assert!(svg.contains(text), "{text} is missing from {svg}");
        }
        // The value 0 has no position on a logarithmic axis: three markers of circle and square, not counting the
        // legend's.
        assert_eq!(svg.matches("<circle ").count() + svg.matches("width=\"8\"").count(), 3);
    }

    #[test]
    fn legend_does_not_cover_the_label_of_a_mark() {
        for value in [10.0, 60.0, 140.0, 450.0, 790.0, 890.0] {
            let mut chart = chart(Kind::Lines, Scale::Linear, Scale::Linear);
            chart.marks[0].0 = value;
            let svg = chart.to_svg();
            let [mark] = numbers(&svg, "text", ">target 800<", "y")[..] else { panic!("one text of a mark") };
            for name in [">direct<", ">Phoebus<"] {
                let [name] = numbers(&svg, "text", name, "y")[..] else { panic!("one text in the legend") };
                assert!((mark - name).abs() >= 12.0, "a mark at {value}: {mark} and {name}");
            }
        }
    }

    #[test]
    fn every_element_is_closed_and_inside_the_canvas() {
        for kind in [Kind::Bars, Kind::Lines, Kind::Traces] {
            let svg = chart(kind, Scale::Categories(vec!["a".into(), "b".into()]), Scale::Linear).to_svg();
            for tag in ["svg", "text", "title"] {
                assert_eq!(svg.matches(&format!("<{tag}")).count(), svg.matches(&format!("</{tag}>")).count(), "{tag}");
            }
            for (element, attribute, most) in
                [("text", "x", 920.0), ("text", "y", 460.0), ("line", "x2", 920.0), ("line", "y2", 460.0)]
            {
                assert!(
                    numbers(&svg, element, "", attribute).iter().all(|v| (0.0..=most).contains(v)),
                    "{element} {attribute}"
                );
            }
        }
    }
}
