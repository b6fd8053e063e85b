use super::*;
use crate::claim::ResourceName;
use crate::clock::TokioClock;
use crate::memory::Memory;

fn watchdog() -> Watchdog {
    let leaving = Leaving {
        driver: Arc::new(Memory::new()),
        clock: Arc::new(TokioClock::new()),
        entropy: Arc::new(Entropy::seeded(1)),
        over: CancellationToken::new(),
        outlasts_leases: false,
    };
    Watchdog::new(leaving, Observers::default(), Duration::from_secs(5), Home::here().unwrap())
}

/// Holds that end before they are due are most of them. If each woke the task, a pair would cost two threads their sleep.
#[tokio::test(start_paused = true)]
async fn a_look_that_was_planned_is_kept_when_its_claim_is_gone() {
    let (watchdog, ttl) = (watchdog(), Duration::from_secs(30));
    let planned = || Moment::from_nanos(watchdog.0.next_look.load(Ordering::Relaxed));
    let hold = |id: u128| {
        let claim = Arc::new(Claim::new(ClaimId::from_bits(id), ResourceName::new("r").unwrap()));
        let now = watchdog.0.clock.now();
        let belief = Arc::new(BeliefCell::new(watchdog.0.clock.clone(), now, ttl, None));
        watchdog.hold(claim, Fence::new(1), belief, (now, ttl), true);
    };
    hold(1);
    let first = planned();
    assert!(first < watchdog.0.clock.now() + ttl, "it is looked at before its lease ends");
    watchdog.forget(ClaimId::from_bits(1));
    // The task has been woken by now, and finds nothing.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(planned(), first);
    hold(2);
    watchdog.forget(ClaimId::from_bits(2));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(planned(), Moment::NEVER, "nothing is left to look at");
    watchdog.stop();
}
