//! Metrics, by a recorder of the test's thread, on which its runtime runs everything.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::set_default_local_recorder;
use oarlock_core::{Ending, Fence, Fenced, Lifetime, LockEvent, Locks, Memory, Step};

use crate::client::{Ready, client};
use crate::recorder::Recorded;

const SECOND: Duration = Duration::from_secs(1);

/// The labels of a mutex.
const MUTEX: &str = r#"backend="mem",kind="mutex",mode="exclusive""#;

#[track_caller]
fn one(recorded: &Recorded, series: &str) -> f64 {
    let values = recorded.values(series);
    assert_eq!(values.len(), 1, "{series} in {:?}", recorded.all());
    values[0]
}

fn waited(outcome: &str) -> String {
    format!("oarlock_wait_duration_seconds{{{MUTEX},outcome=\"{outcome}\"}}")
}

fn held(end: &str) -> String {
    format!("oarlock_hold_duration_seconds{{{MUTEX},end=\"{end}\"}}")
}

#[tokio::test(start_paused = true)]
async fn waits_and_holds_are_counted_with_their_outcome() {
    let recorded = Recorded::default();
    let _recorder = set_default_local_recorder(&recorded);
    let (locks, _) = client(|builder| builder);
    let (waiting, holding) = (format!("oarlock_waiting{{{MUTEX}}}"), format!("oarlock_held{{{MUTEX}}}"));

    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!((one(&recorded, &waited("acquired")), recorded.sum(&holding), recorded.sum(&waiting)), (0.0, 1.0, 0.0));
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    assert_eq!(recorded.values(&waited("busy")).len(), 1, "{:?}", recorded.all());
    let late = locks.mutex("a").wait(SECOND * 3).lock().await;
    assert!(late.is_err() && one(&recorded, &waited("timeout")) >= 3.0, "{:?}", recorded.all());
    let lock = locks.mutex("a");
    let mut cancelled = Box::pin(lock.lock());
    assert!(tokio::time::timeout(SECOND * 2, &mut cancelled).await.is_err());
    assert_eq!(recorded.sum(&waiting), 1.0, "it waits");
    drop(cancelled);
    assert!(one(&recorded, &waited("cancelled")) >= 2.0);
    assert!(
        locks.mutex("").lock().await.is_err() && recorded.values(&waited("error")).len() == 1,
        "{:?}",
        recorded.all()
    );

    let before = one(&recorded, &waited("acquired"));
    guard.release().await.unwrap();
    assert!(one(&recorded, &held("released")) >= 5.0 && before == 0.0);
    drop(locks.mutex("a").lock().await.unwrap());
    assert_eq!(one(&recorded, &held("dropped")), 0.0);
    let ticket = locks.mutex("b").lifetime(Lifetime::Lease).lock().await.unwrap().hand_over().unwrap();
    assert_eq!(one(&recorded, &held("handed_over")), 0.0);
    locks.adopt(&ticket).await.unwrap().release().await.unwrap();
    assert_eq!(recorded.values(&held("released")).len(), 2);
    assert_eq!((recorded.sum(&holding), recorded.sum(&waiting)), (0.0, 0.0), "nothing is left");
    assert!(recorded.all().iter().all(|series| !series.contains("name=")), "{:?}", recorded.all());
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_counted_with_its_cause() {
    let recorded = Recorded::default();
    let _recorder = set_default_local_recorder(&recorded);
    let (locks, kit) = client(|builder| builder);
    let lost = |cause: &str| format!("oarlock_lost_total{{{MUTEX},cause=\"{cause}\"}}");

    let guard = locks.mutex("gone").lock().await.unwrap();
    kit.lose("gone").unwrap();
    guard.lost().await;
    assert_eq!(one(&recorded, &lost("gone")), 1.0);
    let gone = "oarlock_renewal_duration_seconds{backend=\"mem\",outcome=\"gone\"}";
    assert_eq!(recorded.values(gone).len(), 1, "the renewal that found it gone: {:?}", recorded.all());
    drop(guard);
    let guard = locks.mutex("broken").lock().await.unwrap();
    locks.break_hold("broken", guard.fence(), Ending::new("ops", "stuck"), Duration::ZERO).await.unwrap();
    guard.lost().await;
    assert_eq!((one(&recorded, &lost("broken")), recorded.values(&held("broken")).len()), (1.0, 1));
    drop(guard);
    let guard = locks.mutex("long").max_hold(SECOND * 5).lock().await.unwrap();
    guard.lost().await;
    assert_eq!(one(&recorded, &lost("max_hold")), 1.0);
    drop(guard);
    let guard = locks.mutex("expired").ttl(SECOND * 4).no_renewal().lock().await.unwrap();
    guard.lost().await;
    assert_eq!((one(&recorded, &lost("expired")), recorded.values(&held("lost")).len()), (1.0, 3));
    drop(guard);
    assert_eq!(recorded.sum(&format!("oarlock_held{{{MUTEX}}}")), 0.0, "none is counted twice");
}

#[tokio::test(start_paused = true)]
async fn renewals_are_counted_with_the_lease_that_was_left() {
    let recorded = Recorded::default();
    let _recorder = set_default_local_recorder(&recorded);
    let (locks, kit) = client(|builder| builder);
    let renewals = |outcome: &str| {
        recorded.values(&format!("oarlock_renewal_duration_seconds{{backend=\"mem\",outcome=\"{outcome}\"}}")).len()
    };
    let guard = locks.mutex("a").ttl(SECOND * 30).lock().await.unwrap();
    tokio::time::sleep(SECOND * 60).await;
    let (ok, margins) = (renewals("ok"), recorded.values("oarlock_lease_margin_seconds{backend=\"mem\"}"));
    assert!(ok >= 5 && margins.len() == ok, "{ok} renewals, margins {margins:?}");
    assert!(margins.iter().all(|left| (15.0..30.0).contains(left)), "a third of the lease is over: {margins:?}");
    let parts = recorded.values("oarlock_lease_margin_ratio{backend=\"mem\"}");
    let mut pairs = margins.iter().zip(&parts);
    assert!(parts.len() == ok && pairs.all(|(left, part)| (left / 30.0 - part).abs() < 1e-9), "{parts:?}");
    assert!(recorded.values("oarlock_renewal_late_seconds{backend=\"mem\"}").is_empty(), "none was late");
    kit.cut();
    guard.lost().await;
    assert!(renewals("error") > 0 && renewals("ok") == ok, "{:?}", recorded.all());
}

/// The runtime of the user does nothing else for a while, as with a blocking call in a task.
#[tokio::test]
async fn a_renewal_that_began_late_is_told_with_by_how_much() {
    let recorded = Recorded::default();
    let _recorder = set_default_local_recorder(&recorded);
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = told.clone();
    let observer = move |event: &LockEvent| {
        if let Step::Late { by, .. } = event.step {
            sink.lock().unwrap().push(by);
        }
    };
    let locks = Locks::builder(Memory::new()).observer(observer).build().unwrap();
    let late = || recorded.values("oarlock_renewal_late_seconds{backend=\"mem\"}");
    for starved in [Duration::from_millis(1500), Duration::from_millis(3500)] {
        // The second is starved for longer than its lease: it is lost, and the reason is told as well.
        let before = late().len();
        let guard = locks.mutex("a").ttl(SECOND * 3).lock().await.unwrap();
        std::thread::sleep(starved);
        let began = std::time::Instant::now();
        while late().len() == before {
            assert!(began.elapsed() < SECOND * 30, "not told: {:?}", recorded.all());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let by = late()[before];
        assert!(by > 0.25 && by < starved.as_secs_f64() + 30.0, "late by {by}");
        assert_eq!(told.lock().unwrap().len(), late().len(), "observers are told, too");
        drop(guard);
    }
}

#[tokio::test(start_paused = true)]
async fn names_are_labels_for_those_who_ask() {
    let recorded = Recorded::default();
    let _recorder = set_default_local_recorder(&recorded);
    let (locks, _) = client(Ready::names_in_metrics);
    locks.rwlock("book").read().await.unwrap().release().await.unwrap();
    let labels = r#"backend="mem",kind="rwlock",mode="shared",name="book""#;
    assert_eq!(recorded.values(&format!("oarlock_held{{{labels}}}")), [1.0, -1.0], "{:?}", recorded.all());
}

#[test]
fn a_late_write_is_counted() {
    let recorded = Recorded::default();
    let _recorder = set_default_local_recorder(&recorded);
    let data = Fenced::new(0);
    data.change(Fence::new(2), |data| *data += 1).unwrap();
    assert!(data.change(Fence::new(1), |data| *data += 1).is_err());
    assert_eq!(one(&recorded, "oarlock_fence_rejected_total{store=\"memory\"}"), 1.0);
}

/// A recorder that panics costs no lock.
#[tokio::test(start_paused = true)]
async fn a_recorder_that_panics_stops_no_renewal() {
    struct Faulty(Recorded);
    impl metrics::Recorder for Faulty {
        fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
        fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
            panic!("a fault of the recorder")
        }
        fn register_gauge(&self, key: &metrics::Key, metadata: &metrics::Metadata<'_>) -> metrics::Gauge {
            self.0.register_gauge(key, metadata)
        }
        fn register_histogram(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
            panic!("a fault of the recorder")
        }
    }
    let faulty = Faulty(Recorded::default());
    let _recorder = set_default_local_recorder(&faulty);
    let (locks, _) = client(|builder| builder);
    let guard = locks.mutex("a").lock().await.unwrap();
    tokio::time::sleep(SECOND * 120).await;
    assert!(guard.is_held(), "it is renewed");
    guard.release().await.unwrap();
}
