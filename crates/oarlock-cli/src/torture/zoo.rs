//! `oarlock torture zoo`: broken locks in memory, each of which must be caught, and a correct one, which must not.

use std::sync::Arc;
use std::time::Duration;

use oarlock_torture::broken::{BrokenStore, Flaw, storm, through_a_file};
use oarlock_torture::history::{Rules, Verdict};
use serde_json::json;

use crate::exit::{Code, Exit, Failure};
use crate::output::{self, Format};
use crate::signals;

/// How long each of them is contended for, all at once.
const SPAN: Duration = Duration::from_secs(6);
const BOUND: Duration = Duration::from_millis(1600);

pub(crate) fn main(format: Format) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().on_thread_start(signals::deafen).build();
    let runtime = runtime.map_err(|error| Failure::os("cannot start", error))?;
    let verdicts = runtime.block_on(async {
        let storms = Flaw::ALL.map(|flaw| (flaw, tokio::spawn(storm(Arc::new(BrokenStore::new(flaw)), 5, SPAN))));
        let mut verdicts = Vec::new();
        for (flaw, running) in storms {
            let history = running.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))??;
            // As the history of a run: written, read and judged.
            let history = through_a_file(&history).map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
            let rules = Rules::new().takeover_within(BOUND).idle_within(BOUND).least_holds(20);
            verdicts.push((flaw, history.check(&rules)));
        }
        Ok::<_, Failure>(verdicts)
    })?;
    runtime.shutdown_background();
    show(&verdicts, format)
}

/// Whether the checker said the right thing of it.
fn is_right(flaw: Flaw, verdict: &Verdict) -> bool {
    match flaw {
        Flaw::None => verdict.is_ok(),
        _ => verdict.names().iter().any(|name| flaw.shows().contains(name)),
    }
}

fn show(verdicts: &[(Flaw, Verdict)], format: Format) -> Result<Exit, Failure> {
    let all_right = verdicts.iter().all(|(flaw, verdict)| is_right(*flaw, verdict));
    match format {
        Format::Json | Format::Jsonl => {
            let locks = verdicts.iter().map(|(flaw, verdict)| {
                json!({ "lock": format!("{flaw:?}"), "holds": verdict.holds, "found": verdict.names(),
                        "right": is_right(*flaw, verdict) })
            });
            output::print_json(&json!({ "all_right": all_right, "locks": locks.collect::<Vec<_>>() }))?;
        }
        Format::Table | Format::Name => {
            let rows: Vec<Vec<String>> = verdicts
                .iter()
                .map(|(flaw, verdict)| {
                    let found = if verdict.is_ok() { "nothing".to_owned() } else { verdict.names().join(", ") };
                    let right = if is_right(*flaw, verdict) { "right" } else { "WRONG" };
                    vec![flaw.words().to_owned(), verdict.holds.to_string(), found, right.to_owned()]
                })
                .collect();
            output::print(&output::table(&["BROKEN RULE", "HOLDS", "FOUND", "CHECKER"], &rows))?;
        }
    }
    if all_right {
        return Ok(Code::Success.into());
    }
    Err(Failure::new(Code::Internal, "the checker missed a broken lock, or blamed the correct one"))
}
