//! Answers on standard output: a table for people, JSON for programs, bare names for shells.

use std::io::{ErrorKind, Write};

use oarlock::Label;
use oarlock::state::{HolderState, ResourceState, WaiterState, Waiters};
use oarlock::state::{Limit, Weight};
use oarlock_core::text::{plain, span};
use serde_json::{Value, json};

use crate::exit::{Code, Failure};

/// The form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One JSON object a line.
    Jsonl,
    /// Names only.
    Name,
}

/// Writes to standard output; a reader that has gone away ends us quietly.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::quiet(Code::Success)),
        Err(error) => Err(Failure::os("cannot write to standard output", error)),
    }
}

pub(crate) fn print_line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

pub(crate) fn print_json(value: &Value) -> Result<(), Failure> {
    print_line(&format!("{value:#}"))
}

/// Rows under a head, each column as wide as it must be.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let head: Vec<String> = head.iter().map(|&word| word.to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// How many wait; `?` where the store does not say.
pub(crate) fn waiters(state: &ResourceState) -> String {
    state.waiters.count().map_or_else(|| "?".to_owned(), |count| count.to_string())
}

/// Whether the store knows since when it is held: a hold of another program, without a fence, has no such time.
pub(crate) fn since_is_known(holder: &HolderState) -> bool {
    holder.fence.is_some() || !holder.held_for.is_zero()
}

pub(crate) fn resource_json(state: &ResourceState) -> Value {
    let waiters = match &state.waiters {
        Waiters::Listed(waiters) => waiters.iter().map(waiter_json).collect(),
        _ => Value::Null,
    };
    json!({
        "name": state.name,
        "kind": state.kind(),
        "capacity": state.capacity.map(limit_json),
        "holders": state.holders.iter().map(holder_json).collect::<Vec<_>>(),
        "waiters": waiters,
        "waiting": state.waiters.count(),
        "last_fence": state.last_fence,
    })
}

fn holder_json(holder: &HolderState) -> Value {
    json!({
        "id": holder.id,
        "kind": holder.kind,
        "weight": weight_json(holder.weight),
        "fence": holder.fence,
        "label": *holder.label,
        "held_ms": millis(holder.held_for),
        "lease_left_ms": millis(holder.lease_left),
        "value": holder.value.as_deref(),
        "ending": holder.ending,
    })
}

fn waiter_json(waiter: &WaiterState) -> Value {
    json!({
        "id": waiter.id,
        "kind": waiter.kind,
        "weight": weight_json(waiter.weight),
        "label": *waiter.label,
        "waited_ms": millis(waiter.waited),
        "behind": waiter.behind,
    })
}

fn limit_json(limit: Limit) -> Value {
    match limit {
        Limit::Units(units) => json!(units),
        Limit::Unlimited => json!("unlimited"),
    }
}

fn weight_json(weight: Weight) -> Value {
    match weight {
        Weight::Units(units) => json!(units),
        Weight::All => json!("all"),
    }
}

pub(crate) fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Everything about a resource, for people.
pub(crate) fn resource_text(state: &ResourceState) -> String {
    let mut lines = vec![plain(state.name.as_str())];
    let kind = state.kind().map_or_else(|| "free".to_owned(), |kind| kind.to_string());
    lines.push(format!("  kind      {kind}"));
    if let Some(capacity) = state.capacity {
        lines.push(format!("  capacity  {capacity}"));
    }
    if let Some(fence) = state.last_fence {
        lines.push(format!("  fence     {fence}, the last one given"));
    }
    lines.push(format!("  holders   {}", state.holders.len()));
    for holder in &state.holders {
        // What `break` needs to name it.
        let fence = holder.fence.map_or_else(|| format!(", id {}", holder.id), |fence| format!(", fence {fence}"));
        let who = who(&holder.label);
        let held = if since_is_known(holder) { format!(" for {}", span(holder.held_for)) } else { String::new() };
        let left = span(holder.lease_left);
        lines.push(format!("    {who}, {}{held}, lease left {left}{fence}", holder.kind));
        lines.extend(label_lines(&holder.label));
        if let Some(value) = &holder.value {
            lines.push(format!("      value {}", oarlock_core::text::quoted(value)));
        }
        if let Some(ending) = &holder.ending {
            lines.push(format!("      asked to end by {}: {}", plain(&ending.by), plain(&ending.why)));
        }
    }
    lines.push(format!("  waiters   {}", waiters(state)));
    if let Waiters::Listed(waiters) = &state.waiters {
        for (place, waiter) in waiters.iter().enumerate() {
            let behind = match waiter.behind {
                0 => String::new(),
                more => format!(", and {more} more in its process"),
            };
            let (who, waited) = (who(&waiter.label), span(waiter.waited));
            lines.push(format!("    {}. {who}, {} for {waited}{behind}", place + 1, waiter.kind));
            lines.extend(label_lines(&waiter.label));
        }
    }
    lines.join("\n") + "\n"
}

fn who(label: &Label) -> String {
    let user = if label.user.is_empty() { String::new() } else { format!("{}@", plain(&label.user)) };
    let mut without_reason = label.clone();
    without_reason.reason = None;
    format!("{user}{}", oarlock_core::text::holder(&without_reason))
}

fn label_lines(label: &Label) -> impl Iterator<Item = String> + '_ {
    let reason = label.reason.iter().map(|reason| format!("      reason {}", oarlock_core::text::quoted(reason)));
    reason.chain(label.tags.iter().map(|(key, value)| format!("      {}={}", plain(key), plain(value))))
}
