//! How often the store is asked to keep claims alive.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::spy::{SECOND, world};

/// A turn that is not taken gets shorter with every answer, and then the place is gone: neither is a reason to ask more often.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_not_polled_does_not_flood_the_store() {
    for fair in [false, true] {
        let world = world();
        let held = world.honest.mutex("a").unwrap().lock().await.unwrap();
        let lock = world.spied.mutex("a").unwrap();
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
