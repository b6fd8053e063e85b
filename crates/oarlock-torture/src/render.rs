//! A history as one HTML page: the verdict in words, and a timeline in SVG. Nothing is loaded from elsewhere, there are
//! no scripts, and everything that comes from the file is escaped.

mod timeline;

use std::fmt::Write as _;

use crate::judge::{Finding, Judgement, Ruling, beliefs};
use crate::record::{FaultKind, Header, LockKind, Record, What};

use timeline::{Timeline, Window};

/// More windows than this show nothing new.
const WINDOWS: usize = 5;

/// The page.
#[must_use]
pub fn page(record: &Record, judgement: &Judgement) -> String {
    let beliefs = beliefs(record);
    let timeline = Timeline::new(record, &beliefs);
    let header = &record.header;
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>oarlock torture: {ruling}</title>\n<style>{STYLE}</style></head><body>\n\
         <h1 class=\"{class}\">{ruling}</h1>\n<p>{said}</p>\n",
        ruling = judgement.ruling,
        class = class(judgement.ruling),
        said = meaning(judgement.ruling),
    );
    let _ = writeln!(
        page,
        "<p>{} on <code>{}</code>: {}, fences {}. Seed {}, {} workers, lease {} ms, {:.1} s.</p>",
        escaped(&locks(header)),
        escaped(&header.url),
        escaped(&header.consistency),
        escaped(&header.fencing),
        header.seed,
        header.workers,
        header.ttl_ms,
        judgement.figures.took.as_secs_f64(),
    );
    findings(&mut page, judgement);
    figures(&mut page, judgement);
    legend(&mut page, record);
    let _ = writeln!(page, "<h2>The whole run</h2>\n{}", timeline.draw(Window { from: 0, to: timeline.end }, false));
    for (title, window) in windows(record, judgement) {
        let _ = writeln!(page, "<h2>{}</h2>\n{}", escaped(&title), timeline.draw(window, true));
    }
    let _ = writeln!(
        page,
        "<p>Repeat the schedule of faults: <code>oarlock torture replay FILE -u URL</code>. A run without a finding is \
         evidence, not proof: no failure in n takeovers bounds their rate by 3/n.</p>\n</body></html>"
    );
    page
}

fn class(ruling: Ruling) -> &'static str {
    match ruling {
        Ruling::Ok => "ok",
        Ruling::Inconclusive => "unknown",
        Ruling::RiskSeen => "risk",
        Ruling::Violation => "bad",
    }
}

/// What a verdict means, in a sentence.
#[must_use]
pub fn meaning(ruling: Ruling) -> &'static str {
    match ruling {
        Ruling::Ok => "Every promise held, and enough was tried to say so.",
        Ruling::Inconclusive => "Nothing broke, but too little was tried or seen to call it OK.",
        Ruling::RiskSeen => "Something went wrong that this deployment does not promise to prevent. Use the fence.",
        Ruling::Violation => "A promise was broken.",
    }
}

fn findings(page: &mut String, judgement: &Judgement) {
    if judgement.findings.is_empty() {
        return;
    }
    page.push_str("<h2>What was found</h2>\n<ul>\n");
    for finding in &judgement.findings {
        let _ = writeln!(page, "<li class=\"{}\">{}</li>", class(finding.ruling), escaped(&sentence(finding)));
    }
    page.push_str("</ul>\n");
}

/// What took the locks of a run.
#[must_use]
pub fn locks(header: &Header) -> String {
    if header.beside { format!("oarlock and every second worker {}", header.lock) } else { header.lock.clone() }
}

/// A finding in words, as the page and the command line show it.
#[must_use]
pub fn sentence(finding: &Finding) -> String {
    let mut text = format!("{} {}: {}", finding.ruling, finding.name, finding.what);
    if let Some(after) = &finding.after {
        let _ = write!(text, "; last fault before it: {after}");
    }
    if let Some(excuse) = finding.excuse {
        let _ = write!(text, "; known: {excuse}");
    }
    text
}

fn figures(page: &mut String, judgement: &Judgement) {
    let figures = &judgement.figures;
    page.push_str("<h2>What was tried</h2>\n<table>\n");
    let mut row = |what: &str, value: String| {
        let _ = writeln!(page, "<tr><td>{}</td><td>{}</td></tr>", escaped(what), escaped(&value));
    };
    let ms = |span: Option<std::time::Duration>| {
        span.map_or_else(|| "none".to_owned(), |span| format!("{:.1} ms", span.as_secs_f64() * 1000.0))
    };
    row("holds", figures.holds.to_string());
    row("requests that were not granted", figures.gave_up.to_string());
    row("losses that holders were told of", figures.losses.to_string());
    row("longest time from the end of a belief until its holder was told", ms(figures.latest_told));
    row("processes killed", figures.deaths.to_string());
    row("takeovers from killed holders", format!("{}, slowest {}", figures.takeovers, ms(figures.slowest_takeover)));
    row("least time from the end of a belief to the next grant", ms(figures.least_margin));
    for (lock, counted) in &figures.locks {
        row(
            &format!("counter of {lock}"),
            format!(
                "{} writes; {} stale ones refused by the fence; without it {} updates would be lost",
                counted.writes,
                counted.refused,
                counted.lost_without_fence()
            ),
        );
    }
    for (kind, count) in &figures.faults {
        row(kind.words(), count.to_string());
    }
    page.push_str("</table>\n");
}

fn legend(page: &mut String, record: &Record) {
    page.push_str("<h2>How to read the timeline</h2>\n<p>");
    for (number, lock) in record.header.locks.iter().enumerate() {
        let kind = match lock.kind {
            LockKind::Mutex => "mutex".to_owned(),
            LockKind::ReadWrite => "read-write lock".to_owned(),
            LockKind::Semaphore(permits) => format!("semaphore of {permits}"),
        };
        let colour = timeline::colour(number);
        let _ =
            write!(page, "<span class=\"key\" style=\"background:{colour}\"></span> {} ({kind}) ", escaped(&lock.name));
    }
    if record.header.beside {
        page.push_str("</p>\n<p>A lane that is called <i>other</i> has workers of the other library.");
    }
    page.push_str(
        "</p>\n<p>One lane for each worker. A thin line: it waits. A bar: it believes that it holds, with its fence. A bar \
         with a dashed edge: the lock was lost. &#x271D;: the process was killed. Dots below a bar: writes; a cross: a \
         stale write that the fence refused. Grey bands: faults; hatched: the worker was stopped. Red columns: where a \
         promise broke.</p>\n",
    );
}

/// Three leases around each finding that has a time; around the stopped holder if there is none.
fn windows(record: &Record, judgement: &Judgement) -> Vec<(String, Window)> {
    let lease = record.header.ttl_ms.saturating_mul(1_000_000).max(1_000_000);
    let around = |at: u64| Window { from: at.saturating_sub(lease.saturating_mul(2)), to: at.saturating_add(lease) };
    let bad = |finding: &&Finding| finding.ruling >= Ruling::RiskSeen;
    let mut windows: Vec<(String, Window)> = Vec::new();
    for finding in judgement.findings.iter().filter(bad) {
        let Some(at) = finding.at else { continue };
        if windows.len() < WINDOWS && windows.iter().all(|(_, window)| !(window.from..window.to).contains(&at)) {
            windows.push((format!("Around {:.3} s: {}", seconds(at), finding.name), around(at)));
        }
    }
    if windows.is_empty() {
        let pause = |what: &What| matches!(what, What::Fault { kind: FaultKind::Pause, .. });
        let stopped = record.events.iter().find(|event| pause(&event.what));
        windows.extend(stopped.map(|event| {
            let window = Window {
                from: event.at.saturating_sub(lease / 2),
                to: event.at.saturating_add(lease.saturating_mul(2)),
            };
            ("A holder is stopped with a write in flight".to_owned(), window)
        }));
    }
    windows
}

fn seconds(nanos: u64) -> f64 {
    std::time::Duration::from_nanos(nanos).as_secs_f64()
}

/// Text that is nothing but text in HTML and SVG, also in an attribute.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

const STYLE: &str = "body{font:15px/1.4 sans-serif;margin:2em;max-width:75em;color:#222}\
code{background:#f2f2f2}table{border-collapse:collapse}td{border-bottom:1px solid #ddd;padding:2px 12px 2px 0}\
h1{padding:.3em .6em;border-left:12px solid}h1.ok{border-color:#0072b2}h1.unknown{border-color:#999}\
h1.risk{border-color:#e69f00}h1.bad{border-color:#d00}li.bad{color:#a00}li.risk{color:#8a5a00}\
.key{display:inline-block;width:1em;height:1em;vertical-align:middle}svg{background:#fff;border:1px solid #ddd}\
svg text{font:10px sans-serif}";

#[cfg(test)]
mod tests;
