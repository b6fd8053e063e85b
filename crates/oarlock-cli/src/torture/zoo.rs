//! `oarlock torture zoo`: broken locks in memory, each of which must be caught, and a correct one, which must not.

use std::sync::Arc;
use std::time::Duration;

use oarlock_torture::broken::{BrokenStore, Flaw, is_right, judged, storm};
use oarlock_torture::judge::Judgement;
use serde_json::json;

use crate::exit::{Code, Exit, Failure};
use crate::output::{self, Format};
use crate::signals;

/// How long the storm of each of them takes, all at once.
const SPAN: Duration = Duration::from_secs(5);

pub(crate) fn main(format: Format) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().on_thread_start(signals::block_all).build();
    let runtime = runtime.map_err(|error| Failure::os("cannot start", error))?;
    let verdicts = runtime.block_on(async {
        let storms = Flaw::ALL.map(|flaw| (flaw, tokio::spawn(storm(Arc::new(BrokenStore::new(flaw)), 5, SPAN))));
        let mut verdicts = Vec::new();
        for (flaw, running) in storms {
            let record = running.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))??;
            verdicts.push((flaw, judged(&record).map_err(|error| Failure::new(Code::Internal, error.to_string()))?));
        }
        Ok::<_, Failure>(verdicts)
    })?;
    runtime.shutdown_background();
    show(&verdicts, format)
}

/// The names of what was found, each once.
fn names(judgement: &Judgement) -> Vec<&'static str> {
    let mut names: Vec<_> = judgement.findings.iter().map(|finding| finding.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn show(verdicts: &[(Flaw, Judgement)], format: Format) -> Result<Exit, Failure> {
    let all_right = verdicts.iter().all(|(flaw, judgement)| is_right(*flaw, judgement));
    match format {
        Format::Json | Format::Jsonl => {
            let locks = verdicts.iter().map(|(flaw, judgement)| {
                json!({ "lock": format!("{flaw:?}"), "holds": judgement.figures.holds, "verdict": judgement.ruling,
                        "found": names(judgement), "right": is_right(*flaw, judgement) })
            });
            output::print_json(&json!({ "all_right": all_right, "locks": locks.collect::<Vec<_>>() }))?;
        }
        Format::Table | Format::Name => {
            let rows: Vec<Vec<String>> = verdicts
                .iter()
                .map(|(flaw, judgement)| {
                    let right = if is_right(*flaw, judgement) { "right" } else { "WRONG" };
                    let (holds, found) = (judgement.figures.holds.to_string(), names(judgement).join(", "));
                    vec![flaw.words().to_owned(), holds, judgement.ruling.to_string(), found, right.to_owned()]
                })
                .collect();
            output::print(&output::table(&["BROKEN RULE", "HOLDS", "VERDICT", "FOUND", "CHECKER"], &rows))?;
        }
    }
    if all_right {
        return Ok(Code::Success.into());
    }
    Err(Failure::new(Code::Internal, "the checker missed a broken lock, or blamed the correct one"))
}
