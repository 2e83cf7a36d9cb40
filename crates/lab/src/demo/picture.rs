//! The results as a picture: the path, the file transfer over time, and the programs side by side. Plain SVG, which
//! any browser and code host displays.

use super::transfer::Outcome;
use super::{Act, Results};
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const DIRECT: &str = "#b4533c";
const SESSION: &str = "#1f6f8b";
const INK: &str = "#222";
const PALE: &str = "#ddd";

/// The position of a chart's axes, in the picture's units.
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

/// Draws everything.
pub(super) fn draw(results: &Results) -> String {
    let bars_top = 560.0;
    let notes_top = bars_top + 50.0 + 64.0 * results.acts.len() as f64;
    let height = notes_top + 16.0 * results.conditions.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"15\" \
         fill=\"{INK}\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    path(&mut svg, results);
    let file = results.acts.iter().find(|act| act.gain().is_some() && act.title.starts_with("curl"));
    if let Some(Act { title, direct: Some(direct), session: Some(session), .. }) = file {
        text(&mut svg, 40.0, 200.0, 17.0, "start", &format!("{title}: what reaches dst, Mbit/s (headers included)"));
        curves(&mut svg, &Frame { left: 90.0, top: 225.0, width: 820.0, height: 260.0 }, direct, session);
    }
    text(&mut svg, 40.0, bars_top, 17.0, "start", "Data over time, Mbit/s");
    side_by_side(&mut svg, bars_top + 30.0, &results.acts);
    for (i, condition) in results.conditions.iter().enumerate() {
        text(&mut svg, 40.0, notes_top + 16.0 * i as f64, 11.0, "start", condition);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws the hosts and links, and the two routes over them.
fn path(svg: &mut String, results: &Results) {
    let places = [110.0, 340.0, 620.0, 850.0];
    for (i, link) in results.links.iter().enumerate() {
        line(svg, (places[i] + 34.0, 80.0), (places[i + 1] - 34.0, 80.0), INK, if i == 1 { "3" } else { "1.5" });
        text(svg, (places[i] + places[i + 1]) / 2.0, 68.0, 13.0, "middle", link);
    }
    for (i, host) in ["src", "pg1", "pg2", "dst"].iter().enumerate() {
        let (fill, ink) = if (1..3).contains(&i) { (SESSION, "#fff") } else { ("#f4f4f4", INK) };
        let x = places[i] - 34.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"60\" width=\"68\" height=\"40\" rx=\"6\" fill=\"{fill}\" stroke=\"{INK}\"/>"
        );
        let _ = writeln!(svg, "<text x=\"{}\" y=\"85\" text-anchor=\"middle\" fill=\"{ink}\">{host}</text>", places[i]);
    }
    text(svg, 40.0, 32.0, 19.0, "start", "Unmodified programs, directly and through two gateways");
    line(svg, (places[0], 124.0), (places[3], 124.0), DIRECT, "3");
    text(svg, places[0], 144.0, 13.0, "start", "direct: one TCP connection, every loss repaired end to end");
    for pair in places.windows(2) {
        line(svg, (pair[0] + 6.0, 158.0), (pair[1] - 6.0, 158.0), SESSION, "3");
    }
    text(svg, places[3], 176.0, 13.0, "end", "a session: every segment a hop of its own");
}

fn curves(svg: &mut String, frame: &Frame, direct: &Outcome, session: &Outcome) {
    let end = direct.seconds.max(session.seconds).max(1.0);
    let most = [direct, session].iter().flat_map(|o| &o.samples).map(|(_, rate)| *rate).fold(1.0, f64::max);
    let (x_step, y_step) = (step(end / 8.0), step(most / 5.0));
    // A sample just above a tick does not need another tick.
    let (x_max, y_max) = (end, (most / y_step - 0.05).ceil().max(1.0) * y_step);
    let x = |seconds: f64| frame.left + seconds / x_max * frame.width;
    let y = |rate: f64| frame.top + frame.height - (rate / y_max).min(1.0) * frame.height;
    let bottom = frame.top + frame.height;
    for i in 0..=(y_max / y_step).round() as u32 {
        let rate = f64::from(i) * y_step;
        line(svg, (frame.left, y(rate)), (frame.left + frame.width, y(rate)), PALE, "1");
        text(svg, frame.left - 8.0, y(rate) + 5.0, 13.0, "end", &format!("{rate}"));
    }
    for i in 0..=(x_max / x_step).floor() as u32 {
        let seconds = f64::from(i) * x_step;
        line(svg, (x(seconds), bottom), (x(seconds), bottom + 5.0), INK, "1");
        text(svg, x(seconds), bottom + 20.0, 13.0, "middle", &format!("{seconds}"));
    }
    line(svg, (frame.left, bottom), (frame.left + frame.width, bottom), INK, "1");
    text(svg, frame.left + frame.width, bottom + 38.0, 13.0, "end", "seconds");
    for (outcome, colour, name) in [(direct, DIRECT, "direct"), (session, SESSION, "session")] {
        let points = outcome.samples.iter().map(|(at, rate)| format!("{:.1},{:.1}", x(*at), y(*rate)));
        let points: Vec<_> = [format!("{:.1},{bottom}", x(0.0))].into_iter().chain(points).collect();
        let points = points.join(" ");
        let _ = writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
        let done = x(outcome.seconds);
        let _ = writeln!(
            svg,
            "<line x1=\"{done:.1}\" y1=\"{}\" x2=\"{done:.1}\" y2=\"{bottom}\" stroke=\"{colour}\" stroke-dasharray=\"4 4\"/>",
            frame.top
        );
        let (at, anchor) =
            if done > frame.left + frame.width / 2.0 { (done - 6.0, "end") } else { (done + 6.0, "start") };
        let label = match outcome.complete {
            true => format!("{name}: {:.1} s", outcome.seconds),
            false => format!("{name}: stopped at {} MB", outcome.bytes / 1_000_000),
        };
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"{anchor}\" fill=\"{colour}\" font-weight=\"bold\">{label}</text>",
            frame.top + 14.0
        );
    }
}

fn side_by_side(svg: &mut String, top: f64, acts: &[Act]) {
    let (left, width) = (190.0, 560.0);
    let rates = acts.iter().flat_map(|act| [&act.direct, &act.session]).flatten().map(|o| o.bits_per_second);
    let most = rates.fold(1.0, f64::max);
    for (i, act) in acts.iter().enumerate() {
        let y = top + 64.0 * i as f64;
        text(svg, left - 12.0, y + 28.0, 15.0, "end", act.title.trim_start());
        for (row, outcome, colour) in [(0.0, &act.direct, DIRECT), (24.0, &act.session, SESSION)] {
            let Some(outcome) = outcome else { continue };
            let long = (outcome.bits_per_second / most * width).max(1.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{left}\" y=\"{}\" width=\"{long:.1}\" height=\"20\" fill=\"{colour}\"/>",
                y + row
            );
            let label = format!("{:.0}", outcome.bits_per_second / 1e6);
            text(svg, left + long + 8.0, y + row + 15.0, 13.0, "start", &label);
        }
        if let Some(gain) = act.gain() {
            text(svg, WIDTH - 40.0, y + 28.0, 17.0, "end", &format!("× {gain:.1}"));
        }
    }
}

/// A round distance between ticks: 1, 2 or 5 times a power of ten.
fn step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= least).unwrap_or(power)
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str, width: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, size: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ =
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\">{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let close = |got: f64, expected: f64| assert!((got - expected).abs() < expected * 1e-9, "{got} {expected}");
        for (least, expected) in [(0.11, 0.2), (1.0, 1.0), (3.0, 5.0), (11.4, 20.0), (190.0, 200.0), (600.0, 1000.0)] {
            close(step(least), expected);
        }
    }
}
