//! Spans, by a subscriber of the test's thread, on which its runtime runs everything.

use std::time::Duration;

use tracing::Instrument as _;
use tracing::subscriber::set_default;

use crate::client::client;
use crate::tracer::Tracer;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_lock_is_a_wait_a_hold_and_a_release() {
    let tracer = Tracer::new();
    let _subscriber = set_default(tracer.clone());
    let (locks, _) = client(|builder| builder);
    let work = async {
        let guard = locks.mutex("deploy/prod").lock().await.unwrap();
        tokio::time::sleep(SECOND * 60).await;
        let fence = guard.fence();
        guard.release().await.unwrap();
        fence
    };
    let fence = work.instrument(tracing::info_span!(target: "test", "job")).await;
    let [job, wait, hold, release] = ["job", "lock wait", "lock hold", "lock release"].map(|name| {
        let mut spans = tracer.spans(name);
        assert_eq!(spans.len(), 1, "{name}");
        spans.remove(0)
    });
    let named = |fields: &str| fields.contains("lock.name=deploy/prod") && fields.contains("backend=\"mem\"");
    assert!(named(&wait.fields) && wait.fields.contains("outcome=\"acquired\""), "{wait:?}");
    assert!(named(&hold.fields) && hold.fields.contains(&format!("lock.fence={fence}")), "{hold:?}");
    assert!(hold.fields.contains("end=\"released\"") && named(&release.fields), "{hold:?} {release:?}");
    for span in [&wait, &hold, &release] {
        let parent = tracer.span(span.parent.expect("a parent"));
        assert_eq!(parent.name, job.name, "{span:?} is a part of the caller's work");
    }
    let renewals = tracer.spans("lock renew");
    assert!(renewals.len() >= 5 && renewals.iter().all(|span| span.fields.contains("claims=1")), "{renewals:?}");
    let renewed = hold.events.iter().filter(|event| event.contains("message=renewed")).count();
    assert_eq!(renewed, renewals.len(), "{hold:?}");
    for span in [wait, hold, release].iter().chain(&renewals) {
        assert_eq!(span.handles, 0, "it is closed: {span:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_an_event_of_the_hold() {
    let tracer = Tracer::new();
    let _subscriber = set_default(tracer.clone());
    let (locks, kit) = client(|builder| builder);
    let guard = locks.mutex("a").lock().await.unwrap();
    kit.cut();
    guard.lost().await;
    let hold = tracer.spans("lock hold").remove(0);
    assert!(hold.fields.contains("end=\"lost\"") && hold.handles == 0, "{hold:?}");
    let events = hold.events.join("\n");
    assert!(events.contains("message=not renewed") && events.contains("cause=\"expired\""), "{events}");
    drop(guard);
}

#[tokio::test]
async fn a_late_renewal_is_a_warning() {
    let tracer = Tracer::new();
    let _subscriber = set_default(tracer.clone());
    let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
    let guard = locks.mutex("a").ttl(SECOND * 3).lock().await.unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let began = std::time::Instant::now();
    let warned = || tracer.span(0).events.iter().any(|event| event.contains("began late") && event.contains("by="));
    while !warned() {
        assert!(began.elapsed() < SECOND * 30, "{:?}", tracer.span(0));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(guard);
}
