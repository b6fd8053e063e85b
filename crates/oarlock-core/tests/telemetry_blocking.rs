//! The metrics of the blocking API. A program of its own: the thread of a blocking client has no recorder of its own, so
//! that the recorder is that of the whole process.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "telemetry/recorder.rs"]
mod recorder;

use std::time::Duration;

use oarlock_core::Memory;
use oarlock_core::blocking::Locks;
use recorder::Recorded;

#[test]
fn the_blocking_api_reports_the_same() {
    let recorded = Recorded::default();
    metrics::set_global_recorder(recorded.clone()).unwrap();
    let labels = r#"backend="mem",kind="mutex",mode="exclusive""#;
    let locks = Locks::over(Memory::new()).unwrap();
    let guard = locks.mutex("a").ttl(Duration::from_secs(6)).lock().unwrap();
    recorded.wait_for("oarlock_renewal_duration_seconds{backend=\"mem\",outcome=\"ok\"}");
    guard.release().unwrap();
    for (series, label) in [("wait", "outcome=\"acquired\""), ("hold", "end=\"released\"")] {
        let series = format!("oarlock_{series}_duration_seconds{{{labels},{label}}}");
        assert_eq!(recorded.values(&series).len(), 1, "{series}: {:?}", recorded.all());
    }
    assert_eq!(recorded.sum(&format!("oarlock_held{{{labels}}}")), 0.0);
}
