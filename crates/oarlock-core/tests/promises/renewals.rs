//! How often the store is asked to keep claims alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use oarlock_core::{LockEvent, Step};

use crate::spy::{BATCH, SECOND, world, world_with};

/// A turn that is not taken gets shorter with every answer, and then the place is gone: neither is a reason to ask more
/// often.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_not_polled_does_not_flood_the_store() {
    for fair in [false, true] {
        let world = world();
        let held = world.honest.mutex("a").lock().await.unwrap();
        let lock = world.spied.mutex("a");
        let lock = if fair { lock.fair() } else { lock };
        let mut waiting = Box::pin(lock.lock());
        let waits = tokio::time::timeout(Duration::from_millis(1500), &mut waiting).await;
        assert!(waits.is_err(), "it is held");
        held.release().await.unwrap();
        // While its turn runs out: a few more than for a place that lasts.
        tokio::time::sleep(SECOND * 4).await;
        let turn = world.hooks.renewals.load(SeqCst);
        assert!(turn <= 20, "{turn} renewals in five seconds, fair: {fair}");
        tokio::time::sleep(SECOND * 60).await;
        let later = world.hooks.renewals.load(SeqCst) - turn;
        assert!(later <= 30, "{later} renewals in the next minute, fair: {fair}");
        let guard = waiting.await.unwrap();
        assert!(guard.is_held(), "it takes another place once it is polled");
    }
}

/// Each is waited for as long as its own lease bears it. 150 ms are too long for a third of 360 ms, and nothing for a
/// third of 30 s.
#[tokio::test(start_paused = true)]
async fn a_short_lease_makes_no_long_one_suspect() {
    let suspects = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
    let [long, short] = suspects.clone();
    let world = world_with(|builder| {
        builder.observer(move |event: &LockEvent| {
            if let Step::Suspect { .. } = event.step {
                if event.resource.as_str() == "long" { &long } else { &short }.fetch_add(1, SeqCst);
            }
        })
    });
    *world.hooks.renewal_delay.lock().unwrap() = Duration::from_millis(150);
    let long = world.spied.mutex("long").ttl(SECOND * 30).lock().await.unwrap();
    let short = world.spied.mutex("short").ttl(Duration::from_millis(360)).lock().await.unwrap();
    tokio::time::sleep(SECOND * 300).await;
    let [long_ones, short_ones] = suspects.map(|count| count.load(SeqCst));
    assert!(long.is_held() && long_ones == 0, "the long one was suspect {long_ones} times in 300 s");
    // Else there was nothing to be spared from.
    assert!(short_ones > 0, "the short one was never suspect");
    drop(short);
}

/// A store that bounds its statements never gets more claims in one renewal, and none is left out.
#[tokio::test(start_paused = true)]
async fn a_renewal_is_for_no_more_claims_than_the_store_takes() {
    let world = world();
    let mut guards = Vec::new();
    for number in 0..BATCH * 3 + 1 {
        guards.push(world.spied.mutex(format!("lock/{number}")).lock().await.unwrap());
    }
    tokio::time::sleep(SECOND * 120).await;
    assert!(guards.iter().all(|guard| guard.is_held()), "all are renewed");
    assert_eq!(world.hooks.largest_batch.load(SeqCst), BATCH);
}
