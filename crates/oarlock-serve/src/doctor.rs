//! The findings of the doctor, kept up to date in the background.

use std::sync::Arc;
use std::time::Duration;

use oarlock::doctor::{Limits, examine as examine_store};
use serde_json::{Value, json};

use crate::state::{State, wall_millis};

/// How often the store is examined.
const EVERY: Duration = Duration::from_secs(300);

/// Examines the store at the start and now and then, until the server ends.
pub(crate) async fn examine(state: Arc<State>) {
    let Some(url) = state.config.store.clone() else { return };
    loop {
        let report = tokio::select! {
            () = state.closing.cancelled() => return,
            report = examine_store(&url, Limits::default()) => report,
        };
        let body = match report {
            Ok(report) => {
                let list: Vec<Value> = report.findings.iter().map(|finding| json!(finding)).collect();
                json!({ "at_ms": wall_millis(), "list": list, "error": null })
            }
            Err(error) => json!({ "at_ms": wall_millis(), "list": [], "error": error.to_string() }),
        };
        state.findings.send_replace(body);
        tokio::select! {
            () = state.closing.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}
