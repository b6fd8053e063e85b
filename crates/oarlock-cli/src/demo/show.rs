//! The demos as stories for people and as JSON for programs.

use std::time::Duration;

use oarlock_core::text::plain;
use serde_json::{Value, json};

use crate::demo::chart::{self, Bar};
use crate::demo::flash_sale::{Findings, Plan as Sale};
use crate::demo::oncall::Plan as Ward;
use crate::demo::oversell::Plan as Shop;
use crate::demo::strategy::{Outcome, Strategy};
use crate::output::{millis, table};

/// Where it was played.
pub(crate) struct Stage {
    /// The scheme of the URL, where the locks are.
    pub(crate) store: &'static str,
    pub(crate) rows: String,
    pub(crate) stock: String,
}

pub(crate) fn oversell(plan: &Shop, stage: &Stage, outcomes: &[Outcome]) -> String {
    let Shop { buyers, items, tills, .. } = plan;
    let mut text = format!(
        "{buyers} buyers want one of {items} items, at {tills} tills of 4 shops. Each looks whether one is left, pays, and takes it.\n\
         The lock is in {}; the rows are in {}; the segments are in {}.\n\n",
        stage.store,
        plain(&stage.rows),
        plain(&stage.stock)
    );
    let row = |outcome: &Outcome| {
        let mut row = vec![outcome.name.clone()];
        row.extend(outcome.figures.iter().map(|(_, figure)| figure.to_string()));
        row.extend([outcome.verdict.clone(), again(outcome), took(outcome.took)]);
        row
    };
    let rows: Vec<_> = outcomes.iter().map(row).collect();
    text.push_str(&table(&["HOW", "SOLD", "LEFT", "", "TRIED AGAIN", "TOOK"], &rows));
    text.push_str(
        "\nno lock: while one pays, others look at the same row, see the same item, and pay for it too.\n\
         a mutex: one buyer at a time looks, pays and takes, at whichever till and in whichever shop.\n\
         a version: no buyer waits, but the row is written only if it is the one that was looked at; else from the beginning.\n\
         SELECT … FOR UPDATE: the row is locked by looking; the second buyer looks when the first is done.\n",
    );
    if stage.rows.starts_with("SQLite") {
        text.push_str("  (SQLite has no such words: BEGIN IMMEDIATE locks the whole file in their place.)\n");
    }
    text.push_str("stock in segments: taking is one step, \"if there is one\"; buyers at different segments do not meet at all.\n");
    text
}

pub(crate) fn oncall(plan: &Ward, stage: &Stage, outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "Two doctors are on call, and one must stay. Both want to go home, {} nights in a row: each looks whether the other is there, \
         thinks about it, and goes.\nThe lock is in {}; the rows are in {}.\n\n",
        plan.nights,
        stage.store,
        plain(&stage.rows)
    );
    let row =
        |outcome: &Outcome| vec![outcome.name.clone(), outcome.verdict.clone(), again(outcome), took(outcome.took)];
    let rows: Vec<_> = outcomes.iter().map(row).collect();
    text.push_str(&table(&["HOW", "", "TRIED AGAIN", "TOOK"], &rows));
    text.push_str(
        "\nEach writes a row of its own, so no two writes meet: what was wrong is what they read. That is a write skew.\n",
    );
    if outcomes.iter().any(|outcome| outcome.strategy == Strategy::Transaction) {
        text.push_str(
            "A transaction at REPEATABLE READ does not help: both read from a picture in which the other is there.\n",
        );
    }
    text.push_str(
        "A version on each doctor's own row does not help: only its own doctor ever changes it.\n\
         What helps is something that both must go through: a mutex; a row that both move on (the ward's version); \
         locks on all rows that were read; or a database that looks for such pairs (SERIALIZABLE) and is asked again.\n",
    );
    if stage.rows.starts_with("SQLite") {
        text.push_str(
            "(Every transaction of SQLite is SERIALIZABLE; BEGIN IMMEDIATE stands for SELECT … FOR UPDATE.)\n",
        );
    }
    text
}

fn again(outcome: &Outcome) -> String {
    outcome.again.map_or_else(|| "-".to_owned(), |again| again.to_string())
}

fn took(span: Duration) -> String {
    format!("{} ms", millis(span))
}

/// Both stories.
pub(crate) fn ways_json(demo: &str, stage: &Stage, outcomes: &[Outcome], shown: bool) -> Value {
    json!({
        "demo": demo,
        "store": stage.store,
        "rows": stage.rows,
        "stock": stage.stock,
        "ways": outcomes.iter().map(Outcome::json).collect::<Vec<_>>(),
        "shown": shown,
    })
}

pub(crate) fn bars(findings: &Findings) -> Vec<Bar> {
    let bar = |sale: &crate::demo::flash_sale::Sale| {
        let many = if sale.segments == 1 { "segment" } else { "segments" };
        Bar { name: format!("{} {many}", sale.segments), value: sale.rate(), label: format!("{:.0}/s", sale.rate()) }
    };
    findings.sales.iter().map(bar).collect()
}

pub(crate) fn title(plan: &Sale, stage: &Stage) -> String {
    format!("Units of one item sold per second by {} takers: {}", plan.takers, stage.stock)
}

/// What the chart says, in words.
pub(crate) fn reading(stage: &Stage, findings: &Findings) -> Vec<String> {
    let mut words = Vec::new();
    if let (Some(first), Some(last)) = (findings.sales.first(), findings.sales.last())
        && findings.sales.len() > 1
    {
        words.push(format!(
            "With {} segments {:.1} times as many were sold as with {}.",
            last.segments,
            last.rate() / first.rate().max(1e-9),
            first.segments
        ));
    }
    words.push(match stage.stock.split_once(' ').map_or("", |(first, _)| first) {
        "SQLite," => "SQLite lets one write at a time, whatever the row: segments gain nothing there. Look at a database with -u.",
        "Redis" if !stage.stock.starts_with("Redis Cluster") => {
            "One Redis does one thing at a time: segments gain nothing there. They do in a cluster, where they lie on different masters."
        }
        "Redis" => "Each segment lies on one master of the cluster: more segments use more of them.",
        _ => "One segment is one row: each taker waits for all before it. With more of them, few wait for each other.",
    }
    .to_owned());
    let last = &findings.last;
    words.push(format!(
        "Then {} units were sold to the last one, in {} segments: {} orders were served, {} are written down, {} are left.",
        last.count.delivered, last.segments, last.told, last.count.held, last.count.available
    ));
    if findings.is_right() {
        words.push("Every unit is accounted for, in every sale.".to_owned());
    }
    words
}

pub(crate) fn flash_sale(plan: &Sale, stage: &Stage, findings: &Findings) -> String {
    let mut text = format!("{}\n\n{}\n", plain(&title(plan, stage)), chart::terminal(&bars(findings)));
    for line in reading(stage, findings) {
        text.push_str(&plain(&line));
        text.push('\n');
    }
    text
}

pub(crate) fn flash_sale_json(plan: &Sale, stage: &Stage, findings: &Findings, chart: &str) -> Value {
    let sale = |sale: &crate::demo::flash_sale::Sale| {
        json!({
            "segments": sale.segments,
            "told": sale.told,
            "held": sale.count.held,
            "available": sale.count.available,
            "delivered": sale.count.delivered,
            "per_second": sale.rate().round(),
            "took_ms": millis(sale.took),
            "right": sale.is_right(),
        })
    };
    json!({
        "demo": "flash-sale",
        "store": stage.store,
        "stock": stage.stock,
        "takers": plan.takers,
        "sales": findings.sales.iter().map(sale).collect::<Vec<_>>(),
        "last": sale(&findings.last),
        "chart": chart,
        "shown": findings.is_right(),
    })
}
