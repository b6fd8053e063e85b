//! What is recorded with a slot: to show it, and to forget it.

use std::time::Duration;

use jiff::Timestamp;
use oarlock::state::ResourceName;
use oarlock::{ErrorKind, LastSlot};
use oarlock_core::text;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cmd::break_::{confirmation_is_possible, confirmed};
use crate::exit::{Code, Exit, Failure};
use crate::output::{self, Format};
use crate::slot::Clock;
use crate::store::Store;

/// What is recorded with a slot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) by: String,
    pub(super) started: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<String>,
    /// 128+N if signal N ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<u8>,
}

/// A run that used no slot up: `--at-least-once`, and its command failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FailedRun {
    pub(super) slot: String,
    #[serde(flatten)]
    pub(super) run: Record,
}

/// All that is recorded beside the last slot that is used up.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Records {
    /// How that slot ended.
    #[serde(flatten)]
    pub(super) last: Option<Record>,
    /// A run of another slot since then that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<FailedRun>,
}

/// The longest name of a machine and process that is recorded, in bytes: with the longest slot it fits into a memo.
pub(super) const MAX_BY: usize = 200;

impl Record {
    pub(super) fn of(last: &LastSlot) -> Option<Self> {
        Records::of(last).last
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Records {
    pub(super) fn of(last: &LastSlot) -> Self {
        last.record.as_deref().and_then(|record| serde_json::from_str(record).ok()).unwrap_or_default()
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Without a slot there is only the record of a run that failed.
fn is_used_up(last: &LastSlot) -> bool {
    !last.slot.is_empty()
}

pub(super) fn now() -> String {
    format!("{:.3}", Timestamp::now())
}

/// Who ran it, when, and how it ended.
pub(super) fn told(record: &Record, running: bool) -> String {
    let end = match record.code {
        Some(code) => format!("exit code {code}"),
        None if running => "still running".to_owned(),
        None => "it did not finish".to_owned(),
    };
    format!("on {} at {}, {end}", text::plain(&record.by), text::plain(&record.started))
}

/// `--forget`: the slot that the caller names is the proof of having looked.
pub(super) async fn forget(store: &Store, name: &ResourceName, slot: &str, yes: bool) -> Result<Exit, Failure> {
    confirmation_is_possible(yes)?;
    let locks = store.connect().await?;
    let once = locks.once(name.as_str()).wait(Duration::ZERO);
    let quoted = text::quoted(name.as_str());
    let refused = |why: String| Failure::new(Code::Busy, format!("not forgotten: {why}."));
    let last = once.last_with_record().await?.filter(is_used_up);
    let Some(last) = last.filter(|last| *last.slot == *slot) else {
        let why = format!("{} is not the last slot of {quoted}; see --show", text::quoted(slot));
        return Err(refused(why));
    };
    let ran = Record::of(&last).map(|record| format!(" ran {}", told(&record, false))).unwrap_or_default();
    let question = format!("The slot {} of {quoted}{ran}. Let it, and those before it, run again?", text::plain(slot));
    if !yes && !confirmed(&question) {
        store.messages.note("nothing was done");
        return Ok(Code::Success.into());
    }
    match once.forget(&last).await {
        Ok(true) => store.messages.note(&format!("the slot {} of {quoted} is forgotten", text::plain(slot))),
        Ok(false) => return Err(refused(format!("another slot of {quoted} ran meanwhile"))),
        Err(error) if error.kind() == ErrorKind::Busy => return Err(refused(error.to_string())),
        Err(error) => return Err(error.into()),
    }
    Ok(Code::Success.into())
}

/// `--show`.
pub(super) async fn show(store: &Store, name: &ResourceName) -> Result<Exit, Failure> {
    let locks = store.connect().await?;
    let last = locks.once(name.as_str()).last_with_record().await?;
    let running = !locks.inspect(name).await?.holders.is_empty();
    let clock = Clock::of(&locks);
    let Records { last: record, failed } = last.as_ref().map(Records::of).unwrap_or_default();
    let last = last.filter(is_used_up);
    let value = json!({
        "name": name,
        "slot": last.as_ref().map(|last| &*last.slot),
        "by": record.as_ref().map(|record| &record.by),
        "started": record.as_ref().map(|record| &record.started),
        "ended": record.as_ref().and_then(|record| record.ended.as_ref()),
        "exit_code": record.as_ref().and_then(|record| record.code),
        "failed": failed.as_ref().map(|FailedRun { slot, run }| json!({
            "slot": slot,
            "by": run.by,
            "started": run.started,
            "ended": run.ended,
            "exit_code": run.code,
        })),
        "running": running,
        "clock": clock,
    });
    match store.messages.format {
        Format::Json => output::print_json(&value)?,
        Format::Jsonl => output::print_line(&value.to_string())?,
        Format::Name => output::print_line(&last.map(|last| text::plain(&last.slot)).unwrap_or_default())?,
        Format::Table => {
            let whose = match clock {
                Clock::Store => "the store's",
                Clock::Client => "of each client: this store does not tell the time",
            };
            let mut lines = vec![text::plain(name.as_str())];
            match (&last, &record) {
                (None, _) => lines.push("  last slot  none, or forgotten".to_owned()),
                (Some(last), record) => {
                    lines.push(format!("  last slot  {}", text::plain(&last.slot)));
                    lines.extend(record.iter().map(|record| format!("  ran        {}", told(record, running))));
                }
            }
            if let Some(FailedRun { slot, run }) = &failed {
                lines.push(format!("  failed     {} {}; it is not used up", text::plain(slot), told(run, false)));
            }
            lines.push(format!("  running    {}", if running { "yes" } else { "no" }));
            lines.push(format!("  clock      {whose}"));
            output::print_line(&lines.join("\n"))?;
        }
    }
    Ok(Code::Success.into())
}
