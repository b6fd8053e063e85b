//! A picture of the figures of one store: bars, for light and dark pages.

use std::fmt::Write as _;

/// Bars that belong together.
pub(super) struct Panel {
    pub(super) title: String,
    /// What is better.
    pub(super) hint: &'static str,
    pub(super) bars: Vec<Bar>,
}

pub(super) struct Bar {
    pub(super) name: &'static str,
    pub(super) value: f64,
    /// The value as it is written.
    pub(super) label: String,
}

const WIDTH: f64 = 900.0;
const PANEL: f64 = WIDTH / 2.0;
const ROW: f64 = 20.0;
const HEAD: f64 = 52.0;
/// Where bars begin, and how long the longest is.
const LEFT: f64 = 160.0;
const LONGEST: f64 = 205.0;

const STYLE: &str = "\
    .page { fill: #ffffff } text { font: 11px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 }
    .hint { fill: #59636e; font-size: 11px } .other { fill: #8c959f } .ours { fill: #0969da } .raw { fill: #d0d7de }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0d1117 } text { fill: #f0f6fc } .hint { fill: #9198a1 }
      .other { fill: #6e7681 } .ours { fill: #4493f8 } .raw { fill: #3d444d }
    }";

/// The picture as SVG.
pub(super) fn svg(title: &str, panels: &[Panel]) -> String {
    let height_of = |row: &[Panel]| row.iter().map(|panel| height(panel.bars.len())).fold(0.0, f64::max);
    let height: f64 = panels.chunks(2).map(height_of).sum();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\">\n<title>{}</title>\n<style>\n{STYLE}\n</style>\n\
         <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n",
        escaped(title)
    );
    let mut top = 0.0;
    for row in panels.chunks(2) {
        for (column, panel) in [0.0, PANEL].into_iter().zip(row) {
            draw(&mut text, panel, column, top);
        }
        top += height_of(row);
    }
    text.push_str("</svg>\n");
    text
}

fn draw(text: &mut String, panel: &Panel, left: f64, top: f64) {
    let most = panel.bars.iter().map(|bar| bar.value).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let (title, hint) = (escaped(&panel.title), panel.hint);
    // Writing to a `String` cannot fail.
    let _ = writeln!(text, "<text class=\"title\" x=\"{}\" y=\"{}\">{title}</text>", left + 12.0, top + 22.0);
    let _ = writeln!(text, "<text class=\"hint\" x=\"{}\" y=\"{}\">{hint}</text>", left + 12.0, top + 38.0);
    for (at, bar) in panel.bars.iter().enumerate() {
        let y = top + HEAD + ROW * f64::from(u32::try_from(at).unwrap_or(u32::MAX));
        let class = match bar.name {
            super::contestants::BASELINE => "raw",
            name if name.starts_with("oarlock") => "ours",
            _ => "other",
        };
        let (name, length) = (escaped(bar.name), (bar.value / most * LONGEST).max(1.0));
        let (end, base) = (left + LEFT - 8.0, y + 12.0);
        let _ = writeln!(text, "<text x=\"{end:.0}\" y=\"{base:.0}\" text-anchor=\"end\">{name}</text>");
        let _ = writeln!(
            text,
            "<rect class=\"{class}\" x=\"{:.0}\" y=\"{y:.0}\" width=\"{length:.1}\" height=\"15\" rx=\"2\"/>",
            left + LEFT
        );
        let at = left + LEFT + length + 6.0;
        let _ = writeln!(text, "<text x=\"{at:.0}\" y=\"{base:.0}\">{}</text>", escaped(&bar.label));
    }
}

fn height(bars: usize) -> f64 {
    HEAD + ROW * f64::from(u32::try_from(bars).unwrap_or(u32::MAX)) + 16.0
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_the_largest_value() {
        let bar = |name, value| Bar { name, value, label: format!("{value} <a second>") };
        let panel = Panel {
            title: "pairs & more".to_owned(),
            hint: "more is better",
            bars: vec![bar("baseline", 10.0), bar("oarlock", 5.0), bar("rslock", 2.5)],
        };
        let svg = svg("Redis", &[panel]);
        for part in ["width=\"205.0\"", "width=\"102.5\"", "width=\"51.2\"", "pairs &amp; more", "&lt;a second>"] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert_eq!((svg.matches("class=\"ours\"").count(), svg.matches("class=\"raw\"").count()), (1, 1));
    }
}
