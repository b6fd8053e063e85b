//! Whether holders were told of their losses in time.

use std::time::Duration;

use super::excuse::Excuses;
use super::{Finding, Ruling, finding};
use crate::record::{Record, What};

/// A holder hears of a loss when its belief ends. A busy machine may run it later.
pub(crate) const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// The longest time that a holder was not told, and those that were told too late.
pub(super) fn findings(record: &Record, excuses: &Excuses<'_>) -> (Option<Duration>, Vec<Finding>) {
    let (mut latest, mut findings) = (None, Vec::new());
    for event in &record.events {
        let What::Ended { w, lost: Some(why), told: Some(told), .. } = &event.what else { continue };
        let late = told.saturating_sub(event.at).saturating_sub(excuses.stopped(*w, event.at, *told));
        let late = Duration::from_nanos(late);
        latest = latest.max(Some(late));
        if late > TOLD_WITHIN {
            let what = format!("worker {w} was told {} ms late that its lock was lost: {why}", late.as_millis());
            let stood_still = Duration::from_nanos(excuses.silence(*w, event.at, *told));
            // A command can stop the process, or the whole machine, and nothing here says for how long.
            let ruling = if excuses.user_may_act(event.at, *told) {
                Ruling::RiskSeen
            } else if stood_still * 2 >= late {
                Ruling::Inconclusive
            } else {
                Ruling::Violation
            };
            findings.push(finding(ruling, "ToldLate", Some(event.at), what));
        }
    }
    (latest, findings)
}
