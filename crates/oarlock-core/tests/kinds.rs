//! What kinds of lock do with time, under paused time.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::TokioClock;
use oarlock_core::{Client, Memory};

#[tokio::test(start_paused = true)]
async fn spinning_is_by_timer_alone() {
    let clock = Arc::new(TokioClock::new());
    let store = Memory::on(clock.clone());
    let client = |driver: Memory, seed| Client::builder(driver).clock(clock.clone()).seed(seed).build().unwrap();
    let (holder, waiter) = (client(store.connect(), 1), client(store, 2));
    let mut delays = Vec::new();
    for round in 0..20 {
        let held = holder.mutex("a").unwrap().lock().await.unwrap();
        let lock = waiter.mutex("a").unwrap().spin();
        let spinning = tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            let granted = tokio::time::Instant::now();
            guard.release().await.unwrap();
            granted
        });
        tokio::time::sleep(Duration::from_micros(500_000 + 7_919 * round)).await;
        let freed = tokio::time::Instant::now();
        held.release().await.unwrap();
        delays.push(spinning.await.unwrap() - freed);
    }
    // The store tells its waiters at the very moment of the release; a timer comes when it comes.
    let late = delays.iter().filter(|delay| !delay.is_zero()).count();
    assert!(late > 10, "woken by hints: {delays:?}");
    assert!(delays.iter().all(|delay| *delay <= Duration::from_millis(51)), "longer than a pause: {delays:?}");
}
