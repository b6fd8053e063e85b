//! The judgement of a run: a few lines for people, one document for programs.

use std::path::Path;
use std::time::Duration;

use oarlock_core::text::plain;
use oarlock_torture::judge::{Judgement, Ruling};
use oarlock_torture::record::{Record, What};
use oarlock_torture::render::{locks, meaning, sentence};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};
use crate::output::{self, Format};

/// Prints it. Only OK ends with 0.
pub(crate) fn judgement(
    record: &Record,
    judgement: &Judgement,
    history: Option<&Path>,
    format: Format,
) -> Result<Exit, Failure> {
    match format {
        Format::Table => output::print(&text(record, judgement, history))?,
        Format::Json => output::print_json(&document(record, judgement, history))?,
        Format::Jsonl => output::print_line(&document(record, judgement, history).to_string())?,
        Format::Name => output::print_line(&judgement.ruling.to_string())?,
    }
    Ok(exit(judgement.ruling))
}

pub(crate) fn exit(ruling: Ruling) -> Exit {
    match ruling {
        Ruling::Ok => Exit(0),
        Ruling::Violation => Exit(1),
        Ruling::RiskSeen => Exit(2),
        Ruling::Inconclusive => Exit(3),
    }
}

fn document(record: &Record, judgement: &Judgement, history: Option<&Path>) -> Value {
    let header = &record.header;
    json!({
        "verdict": judgement.ruling,
        "findings": judgement.findings,
        "figures": judgement.figures,
        "lost_without_fence": judgement.figures.lost_without_fence(),
        "stale_writes_refused": judgement.figures.refused(),
        "run": header.run,
        "seed": header.seed,
        "lock": header.lock,
        "beside": header.beside,
        "url": header.url,
        "consistency": header.consistency,
        "fencing": header.fencing,
        "ttl_ms": header.ttl_ms,
        "workers": header.workers,
        "servers": record.events.iter().filter(|event| matches!(event.what, What::Carried { .. })).count(),
        "history": history.map(|path| path.display().to_string()),
    })
}

fn text(record: &Record, judgement: &Judgement, history: Option<&Path>) -> String {
    let (header, figures) = (&record.header, &judgement.figures);
    let mut lines = vec![format!(
        "{} on {}: {}, fences {}",
        plain(&locks(header)),
        plain(&header.url),
        plain(&header.consistency),
        plain(&header.fencing)
    )];
    let faults: u64 = figures.faults.values().sum();
    lines.push(format!(
        "{:.0} s, seed {}, {} workers, lease {} ms: {} holds, {faults} faults of {} kinds",
        figures.took.as_secs_f64(),
        header.seed,
        header.workers,
        header.ttl_ms,
        figures.holds,
        figures.faults.len()
    ));
    let ms = |span: Duration| format!("{:.1} ms", span.as_secs_f64() * 1000.0);
    let latest = figures.latest_told.map_or_else(String::new, |latest| format!(", at most {} late", ms(latest)));
    lines.push(format!("  losses told to holders   {}{latest}", figures.losses));
    let slowest = figures.slowest_takeover.map_or_else(String::new, |slowest| format!(", slowest {}", ms(slowest)));
    lines.push(format!("  takeovers from the dead  {}{slowest}", figures.takeovers));
    if let Some(margin) = figures.least_margin {
        lines.push(format!("  belief ended before the next grant by at least {}", ms(margin)));
    }
    let writes: u64 = figures.locks.values().map(|lock| lock.writes).sum();
    let (refused, lost) = (figures.refused(), figures.lost_without_fence());
    lines.push(format!("  fenced counter           {writes} writes, {refused} stale ones refused"));
    lines.push(format!("  the same without a fence {lost} updates lost"));
    if figures.calm_losses > 0 {
        lines.push(format!("  {} losses before the first fault: too slow for this lease?", figures.calm_losses));
    }
    lines.extend(judgement.findings.iter().map(|finding| format!("  {}", plain(&sentence(finding)))));
    lines.push(format!("{}: {}", judgement.ruling, meaning(judgement.ruling)));
    if let Some(path) = history {
        let path = crate::messages::shell_word(&path.display().to_string());
        lines.push(format!("timeline: oarlock torture render {path} > torture.html"));
    }
    lines.join("\n") + "\n"
}
