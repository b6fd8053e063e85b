use super::*;
use crate::claim::ResourceName;
use crate::clock::TokioClock;
use crate::memory::Memory;

fn watchdog() -> Watchdog {
    let releaser = Releaser {
        driver: Arc::new(Memory::new()),
        clock: Arc::new(TokioClock::new()),
        entropy: Arc::new(Entropy::seeded(1)),
        over: CancellationToken::new(),
        outlasts_leases: false,
    };
    Watchdog::new(
        releaser,
        (Observers::default(), Telemetry::new("memory", false)),
        Duration::from_secs(5),
        Runtime::here().unwrap(),
    )
}

/// Most holds end before their first renewal is due. They must not wake the task each time.
#[tokio::test(start_paused = true)]
async fn a_planned_check_is_kept_when_its_claim_is_gone() {
    let (watchdog, ttl) = (watchdog(), Duration::from_secs(30));
    let planned = || Moment::from_nanos(watchdog.0.next_check.load(Ordering::Relaxed));
    let hold = |id: u128| {
        let claim = Arc::new(Claim::new(ClaimId::from_bits(id), ResourceName::new("r").unwrap()));
        let now = watchdog.0.clock.now();
        let belief = Arc::new(BeliefCell::new(watchdog.0.clock.clone(), now, ttl, None));
        watchdog.hold(claim, Fence::new(1), belief, (now, ttl), true, now);
    };
    hold(1);
    let first = planned();
    assert!(first < watchdog.0.clock.now() + ttl, "it is checked before its lease ends");
    watchdog.forget(ClaimId::from_bits(1));
    // The task has run by now, and found nothing.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(planned(), first);
    hold(2);
    watchdog.forget(ClaimId::from_bits(2));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(planned(), Moment::NEVER, "nothing is left to check");
    watchdog.stop();
}
