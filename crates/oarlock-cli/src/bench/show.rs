//! What was found, as tables for people and as JSON for programs.

use std::time::Duration;

use oarlock_bench::Targets;
use oarlock_bench::figures::{Spans, rate, ratio};
use oarlock_bench::grants::Contention;
use oarlock_bench::pairs::{Pairs, Who};
use oarlock_core::text::{plain, span};
use serde_json::{Value, json};

use crate::bench::measure::{Finding, Findings};
use crate::bench::plan::{Load, Plan};
use crate::output::table;

/// The percentiles shown, and what they are called.
const PARTS: [(f64, &str, &str); 4] =
    [(0.5, "P50", "p50_us"), (0.99, "P99", "p99_us"), (0.999, "P99.9", "p999_us"), (1.0, "MAX", "max_us")];

/// Who is compared with the baseline, and what that is called.
const RATIOS: [(Who, &str, &str); 2] = [(Who::Oarlock, "ratio", "ratio"), (Who::Http, "http ratio", "http_ratio")];

pub(crate) fn text(plan: &Plan, targets: &Targets, findings: &Findings) -> String {
    let info = targets.info();
    let fair = if plan.fair { ", fair" } else { "" };
    let mut text =
        format!("{} at {}, {} for each load{fair}\n", info.scheme, plain(&info.address), span(plan.duration));
    let pairs: Vec<_> = findings.loads.iter().flat_map(pair_rows).collect();
    if !pairs.is_empty() {
        text.push('\n');
        text.push_str(&table(&["ACQUIRE + RELEASE", "", "PAIRS/S", "P50", "P99", "P99.9", "MAX"], &pairs));
    }
    let contended: Vec<_> = findings.loads.iter().flat_map(contended_rows).collect();
    if !contended.is_empty() {
        let head = [
            "ONE NAME",
            "",
            "HAND-OFFS/S",
            "P50",
            "P99",
            "P99.9",
            "MAX",
            "LONGEST WAIT",
            "SHARES",
            "GRANTS/S",
            "CALLS/GRANT",
        ];
        text.push('\n');
        text.push_str(&table(&head, &contended));
    }
    text.push('\n');
    for (word, what) in explained(targets, findings) {
        text.push_str(&format!("{word}: {what}\n"));
    }
    if findings.checked > 0 {
        text.push_str(&verdict(findings));
    }
    text
}

/// Who the others are.
fn explained(targets: &Targets, findings: &Findings) -> Vec<(&'static str, &'static str)> {
    let mut all = Vec::new();
    if findings.loads.iter().any(|finding| matches!(finding, Finding::Pairs { .. })) {
        all.extend(targets.others().map(|(who, other)| (who.word(), other.what())));
    }
    let contended = |finding: &Finding| match finding {
        Finding::Contended { baseline: Some((what, _)), .. } => Some(("baseline of one name", *what)),
        _ => None,
    };
    all.extend(findings.loads.iter().find_map(contended));
    all
}

fn verdict(findings: &Findings) -> String {
    if findings.violations.is_empty() {
        return format!("exclusion: held; {} grants, never two at once, every fence larger\n", findings.checked);
    }
    let mut text = "exclusion: BROKEN\n".to_owned();
    for violation in &findings.violations {
        text.push_str(&format!("  {violation}\n"));
    }
    text
}

fn pair_rows(finding: &Finding) -> Vec<Vec<String>> {
    let Finding::Pairs { tasks, all } = finding else { return Vec::new() };
    let mut name = if *tasks == 1 { "1 task".to_owned() } else { format!("{tasks} tasks, own names") };
    let mut rows = Vec::new();
    for (who, pairs) in all {
        let mut row = vec![std::mem::take(&mut name), who.word().to_owned(), count(per_second(pairs))];
        row.extend(PARTS.iter().map(|(part, ..)| shown(pairs.spans.at(*part))));
        rows.push(row);
    }
    for (who, word, _) in RATIOS {
        let Some((ours, baseline)) = sides(all, who) else { continue };
        let rates = times(ratio(Some(per_second(ours)), Some(per_second(baseline))));
        let mut row = vec![String::new(), word.to_owned(), rates];
        row.extend(PARTS.iter().map(|(part, ..)| times(compare(&ours.spans, &baseline.spans, *part))));
        rows.push(row);
    }
    rows
}

fn contended_rows(finding: &Finding) -> Vec<Vec<String>> {
    let Finding::Contended { load, processes, contenders, ours, baseline } = finding else { return Vec::new() };
    let what = if *load == Load::Processes { "processes" } else { "tasks" };
    let row = |name: String, who: Who, side: &Contention| {
        let mut row = vec![name, who.word().to_owned(), count(hand_offs(side))];
        row.extend(PARTS.iter().map(|(part, ..)| shown(side.hand_offs.at(*part))));
        let shares = match (side.most(), side.least()) {
            (most, 0) => format!("{most} to 0"),
            (most, least) => times(ratio(Some(float(most)), Some(float(least)))),
        };
        let calls = times(side.calls_per_grant());
        row.extend([shown(Some(side.longest_wait)), shares, count(rate(side.grants, side.time)), calls]);
        row
    };
    let name = match processes {
        Some(processes) if processes < contenders => format!("{contenders} tasks, {processes} processes"),
        _ => format!("{contenders} {what}"),
    };
    let mut rows = vec![row(name, Who::Oarlock, ours)];
    let dash = || "-".to_owned();
    match baseline {
        None => {
            let who = [String::new(), Who::Baseline.word().to_owned()];
            rows.push(who.into_iter().chain((0..9).map(|_| dash())).collect());
        }
        Some((_, baseline)) => {
            rows.push(row(String::new(), Who::Baseline, baseline));
            let mut last =
                vec![String::new(), "ratio".to_owned(), times(ratio(Some(hand_offs(ours)), Some(hand_offs(baseline))))];
            last.extend(PARTS.iter().map(|(part, ..)| times(compare(&ours.hand_offs, &baseline.hand_offs, *part))));
            let (wait, theirs) = (ours.longest_wait.as_secs_f64(), baseline.longest_wait.as_secs_f64());
            last.extend([times(ratio(Some(wait), Some(theirs))), String::new(), String::new(), String::new()]);
            rows.push(last);
        }
    }
    rows
}

pub(crate) fn json(plan: &Plan, targets: &Targets, findings: &Findings) -> Value {
    let info = targets.info();
    json!({
        "store": info.scheme,
        "address": info.address,
        "duration_ms": crate::output::millis(plan.duration),
        "fair": plan.fair,
        "driver": targets.raw_driver.as_ref().map(|driver| driver.what()),
        "baseline": targets.baseline.as_ref().map(|baseline| baseline.what()),
        "http": targets.http.as_ref().map(|http| http.what()),
        "loads": findings.loads.iter().map(finding_json).collect::<Vec<_>>(),
        "exclusion": {
            "held": findings.violations.is_empty(),
            "grants_checked": findings.checked,
            "violations": findings.violations.iter().map(ToString::to_string).collect::<Vec<_>>(),
        },
    })
}

fn finding_json(finding: &Finding) -> Value {
    match finding {
        Finding::Pairs { tasks, all } => {
            let mut value = json!({ "load": if *tasks == 1 { "pair" } else { "names" }, "tasks": tasks });
            for (who, _, key) in RATIOS {
                value[key] = sides(all, who).map_or(Value::Null, |(ours, baseline)| {
                    ratio_json(&ours.spans, &baseline.spans, per_second(ours), per_second(baseline))
                });
            }
            for who in [Who::Oarlock, Who::Driver, Who::Baseline, Who::Http] {
                value[who.word()] = of(all, who).map_or(Value::Null, pairs_json);
            }
            value
        }
        Finding::Contended { load, processes, contenders, ours, baseline } => json!({
            "load": if *load == Load::Processes { "processes" } else { "tasks" },
            "processes": processes.unwrap_or(1),
            "contenders": contenders,
            "oarlock": contention_json(ours),
            "baseline": baseline.as_ref().map(|(_, baseline)| contention_json(baseline)),
            "baseline_is": baseline.as_ref().map(|(what, _)| what),
            "ratio": baseline.as_ref().map(|(_, baseline)| {
                ratio_json(&ours.hand_offs, &baseline.hand_offs, hand_offs(ours), hand_offs(baseline))
            }),
        }),
    }
}

fn pairs_json(pairs: &Pairs) -> Value {
    let mut value = json!({ "pairs": pairs.spans.count(), "per_second": round(per_second(pairs)) });
    for (part, _, key) in PARTS {
        value[key] = json!(pairs.spans.at(part).map(micros));
    }
    value
}

fn contention_json(side: &Contention) -> Value {
    let mut value = json!({
        "grants": side.grants,
        "grants_per_second": round(rate(side.grants, side.time)),
        "hand_offs": side.hand_offs.count(),
        "hand_offs_per_second": round(hand_offs(side)),
        "longest_wait_us": micros(side.longest_wait),
        "calls_per_grant": side.calls_per_grant().map(round),
        "shares": side.shares,
    });
    for (part, _, key) in PARTS {
        value[key] = json!(side.hand_offs.at(part).map(micros));
    }
    value
}

fn ratio_json(ours: &Spans, baseline: &Spans, our_rate: f64, baseline_rate: f64) -> Value {
    let mut value = json!({ "per_second": ratio(Some(our_rate), Some(baseline_rate)).map(round) });
    for (part, _, key) in PARTS {
        value[key.trim_end_matches("_us")] = json!(compare(ours, baseline, part).map(round));
    }
    value
}

fn of(all: &[(Who, Pairs)], who: Who) -> Option<&Pairs> {
    all.iter().find(|(one, _)| *one == who).map(|(_, pairs)| pairs)
}

/// The pairs of `who`, and those of the baseline.
fn sides(all: &[(Who, Pairs)], who: Who) -> Option<(&Pairs, &Pairs)> {
    Some((of(all, who)?, of(all, Who::Baseline)?))
}

fn per_second(pairs: &Pairs) -> f64 {
    rate(pairs.spans.count(), pairs.time)
}

fn hand_offs(side: &Contention) -> f64 {
    rate(side.hand_offs.count(), side.time)
}

fn compare(ours: &Spans, theirs: &Spans, part: f64) -> Option<f64> {
    ratio(ours.at(part).map(|span| span.as_secs_f64()), theirs.at(part).map(|span| span.as_secs_f64()))
}

#[expect(clippy::cast_precision_loss, reason = "figures are rounded anyway")]
fn float(count: u64) -> f64 {
    count as f64
}

fn micros(span: Duration) -> f64 {
    round(span.as_secs_f64() * 1e6)
}

/// To a thousandth, so that JSON shows no digits that mean nothing.
fn round(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

fn count(number: f64) -> String {
    if number < 100.0 { format!("{number:.1}") } else { format!("{number:.0}") }
}

fn times(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"))
}

/// Three digits, and a unit.
fn shown(span: Option<Duration>) -> String {
    let Some(span) = span else { return "-".to_owned() };
    let micros = span.as_secs_f64() * 1e6;
    let (number, unit) = match micros {
        micros if micros < 1e3 => (micros, "µs"),
        micros if micros < 1e6 => (micros / 1e3, "ms"),
        micros => (micros / 1e6, "s"),
    };
    let digits = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    format!("{number:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_three_digits_and_a_unit() {
        let nanos = |nanos| shown(Some(Duration::from_nanos(nanos)));
        assert_eq!(
            [nanos(830), nanos(81_234), nanos(812_345), nanos(1_234_567), nanos(98_765_432_100)],
            ["0.83 µs", "81.2 µs", "812 µs", "1.23 ms", "98.8 s"]
        );
        assert_eq!(shown(None), "-");
    }
}
