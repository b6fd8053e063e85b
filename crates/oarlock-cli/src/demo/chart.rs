//! Bars: in the terminal, as an SVG file, as a page.

use std::fmt::Write as _;

/// A bar and what stands beside it.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) label: String,
}

const WIDTH: f64 = 40.0;

fn most(bars: &[Bar]) -> f64 {
    bars.iter().map(|bar| bar.value).fold(1e-9, f64::max)
}

/// One line for each.
pub(crate) fn terminal(bars: &[Bar]) -> String {
    let width = |of: fn(&Bar) -> &str| bars.iter().map(|bar| of(bar).chars().count()).max().unwrap_or_default();
    let (names, labels) = (width(|bar| &bar.name), width(|bar| &bar.label));
    let mut text = String::new();
    for bar in bars {
        let eighths = (bar.value / most(bars) * WIDTH * 8.0).round().max(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 320, and not below 1")]
        let eighths = eighths as usize;
        let end = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
        // Writing to a string does not fail.
        let _ = writeln!(text, "{:>names$}  {:>labels$}  {}{end}", bar.name, bar.label, "█".repeat(eighths / 8));
    }
    text
}

/// A drawing that stands alone.
pub(crate) fn svg(title: &str, bars: &[Bar]) -> String {
    const ROW: usize = 34;
    const LEFT: u16 = 120;
    const TOP: usize = 52;
    const SPAN: f64 = 480.0;
    let (width, height) = (740, TOP + ROW * bars.len() + 16);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"30\" font-size=\"16\" fill=\"#222222\">{}</text>\n",
        escaped(title)
    );
    for (at, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * at;
        let length = bar.value / most(bars) * SPAN;
        let (middle, beside) = (y + 18, f64::from(LEFT) + length + 8.0);
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\" fill=\"#222222\">{}</text>\n\
             <rect x=\"{LEFT}\" y=\"{y}\" width=\"{length:.1}\" height=\"26\" rx=\"3\" fill=\"#2b6cb0\"/>\n\
             <text x=\"{beside:.1}\" y=\"{middle}\" fill=\"#222222\">{}</text>",
            LEFT - 10,
            escaped(&bar.name),
            escaped(&bar.label),
        );
    }
    text.push_str("</svg>\n");
    text
}

/// The drawing on a page, with a few words below it.
pub(crate) fn html(title: &str, bars: &[Bar], words: &[String]) -> String {
    let words: String = words.iter().map(|line| format!("<p>{}</p>\n", escaped(line))).collect();
    let title_text = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title_text}</title></head>\n\
         <body style=\"font-family: sans-serif; margin: 2em; max-width: 760px\">\n{}{words}</body>\n</html>\n",
        svg(title, bars)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars() -> Vec<Bar> {
        let bar = |name: &str, value: f64| Bar { name: name.to_owned(), value, label: format!("{value}/s") };
        vec![bar("1 <segment>", 100.0), bar("16", 400.0), bar("64", 0.0)]
    }

    #[test]
    fn the_longest_bar_is_the_largest_and_none_is_missing() {
        let text = terminal(&bars());
        let lengths: Vec<_> = text.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(lengths, [10, 40, 0]);
        assert!(text.lines().last().unwrap().ends_with('▏'), "{text}");
        assert!(text.starts_with("1 <segment>  100/s  "), "{text}");
    }

    #[test]
    fn a_drawing_has_a_bar_for_each_and_no_stray_marks() {
        let drawn = svg("a & b", &bars());
        assert_eq!(drawn.matches("<rect").count(), 1 + 3);
        assert!(drawn.contains("width=\"480.0\"") && drawn.contains("width=\"120.0\""), "{drawn}");
        assert!(drawn.contains("a &amp; b") && drawn.contains("1 &lt;segment&gt;"), "{drawn}");
        let page = html("t", &bars(), &["x < y".to_owned()]);
        assert!(page.contains("<svg ") && page.contains("<p>x &lt; y</p>"), "{page}");
    }
}
