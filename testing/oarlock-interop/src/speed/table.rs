//! The figures as tables.

use std::time::Duration;

use super::contestants::BASELINE;
use super::grants::Contention;
use super::measure::{LoadRows, PairRows};
use super::{hand_offs, rate};
use crate::cases::span;
use crate::matrix::aligned;

/// One row for each contestant, beside the baseline where there is one.
pub(super) fn pairs(loads: &[PairRows]) -> String {
    let mut table = vec![words(["tasks", "who", "pairs/s", "p50", "p99", "by the baseline (p50)"])];
    for (tasks, rows) in loads {
        let baseline = rows.iter().find(|(shown, _)| *shown == BASELINE).and_then(|(_, pairs)| pairs.as_ref().ok());
        for (shown, pairs) in rows {
            let pairs = match pairs {
                Ok(pairs) => pairs,
                Err(why) => {
                    table.push(words([&tasks.to_string(), shown, &format!("failed: {why}")]));
                    continue;
                }
            };
            let nanos = |nanos| span(Duration::from_nanos(nanos));
            let by = baseline.map_or_else(|| "-".to_owned(), |baseline| format!("{:.2}", by(pairs.p50, baseline.p50)));
            let rate = format!("{:.0}", pairs.rate);
            table.push(words([&tasks.to_string(), shown, &rate, &nanos(pairs.p50), &nanos(pairs.p99), &by]));
        }
    }
    aligned(&table)
}

/// One row for each shape and contestant.
pub(super) fn loads(loads: &[LoadRows]) -> String {
    let head =
        ["contenders", "processes", "who", "hand-offs/s", "by the baseline", "grants/s", "longest wait", "shares"];
    let mut head: Vec<String> = head.map(str::to_owned).to_vec();
    head.extend(words(["requests/grant", "two at once"]));
    let mut table = vec![head];
    for ((contenders, processes), rows) in loads {
        let baseline =
            rows.iter().find(|(shown, _)| *shown == BASELINE).and_then(|(_, row)| row.as_ref().ok()).map(hand_offs);
        for (shown, row) in rows {
            let mut line = words([&contenders.to_string(), &processes.to_string(), shown]);
            match row {
                Ok(row) => line.extend(figures(row, baseline)),
                Err(why) => line.push(format!("failed: {why}")),
            }
            table.push(line);
        }
    }
    aligned(&table)
}

fn figures(row: &Contention, baseline: Option<f64>) -> Vec<String> {
    let mine = hand_offs(row);
    let ratio = baseline
        .filter(|baseline| *baseline > 0.0)
        .map_or_else(|| "-".to_owned(), |baseline| format!("{:.2}", mine / baseline));
    let shares = match row.shares() {
        (most, 0) => format!("{most} to 0"),
        (most, least) => format!("{:.2}", by(most, least)),
    };
    vec![
        format!("{mine:.0}"),
        ratio,
        format!("{:.0}", rate(row.grants, row.time.as_secs_f64())),
        span(row.longest_wait),
        shares,
        row.calls().map_or_else(|| "-".to_owned(), |calls| format!("{calls:.1}")),
        if row.overlaps == 0 { "never".to_owned() } else { format!("**{} times**", row.overlaps) },
    ]
}

fn by(ours: u64, theirs: u64) -> f64 {
    rate(ours, rate(theirs.max(1), 1.0))
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}
