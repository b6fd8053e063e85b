//! What kinds of lock do with time, under paused time.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::TokioClock;
use oarlock_core::driver::{Attempt, BoxFuture, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, DynDriver, Locks, Memory, ResourceName, Result};

#[tokio::test(start_paused = true)]
async fn spinning_is_by_timer_alone() {
    let clock = Arc::new(TokioClock::new());
    let store = Memory::on(clock.clone());
    let client = |driver: Memory, seed| Locks::builder(driver).clock(clock.clone()).seed(seed).build().unwrap();
    let (holder, waiter) = (client(store.connect(), 1), client(store, 2));
    let mut delays = Vec::new();
    for round in 0..20 {
        let held = holder.mutex("a").lock().await.unwrap();
        let lock = waiter.mutex("a").spin();
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

#[tokio::test]
async fn a_try_beside_a_waiting_claim_says_that_the_lock_is_free() {
    let store = Memory::new();
    let client = Locks::over(store.connect()).unwrap();
    let store = Arc::new(store);
    let name = ResourceName::new("a").unwrap();
    let [held, waits] = [1, 2].map(|id| {
        let mut claim = Claim::new(ClaimId::from_bits(id), name.clone());
        claim.wait = true;
        Arc::new(claim)
    });
    assert!(matches!(store.clone().attempt(held.clone()).await.unwrap(), Attempt::Granted(_)));
    assert!(matches!(store.clone().attempt(waits).await.unwrap(), Attempt::Pending(_)));
    store.release(name, held.id, End::Done { memo: None }).await.unwrap();
    assert!(client.mutex("a").try_lock().await.unwrap().is_none(), "it passed a claim that waits");
    let error = client.mutex("a").wait(Duration::ZERO).lock().await.unwrap_err();
    assert!(error.to_string().ends_with("is free, but 1 claim waits before this one"), "{error}");
}

/// A store without notifications.
struct Mute(Arc<Memory>);

impl DynDriver for Mute {
    fn info(&self) -> Info {
        DynDriver::info(&*self.0)
    }

    fn attempt(self: Arc<Self>, claim: Arc<Claim>) -> BoxFuture<Result<Attempt>> {
        DynDriver::attempt(self.0.clone(), claim)
    }

    fn renew(self: Arc<Self>, batch: Vec<Renewal>) -> BoxFuture<Vec<Result<Renewed>>> {
        DynDriver::renew(self.0.clone(), batch)
    }

    fn release(self: Arc<Self>, resource: ResourceName, id: ClaimId, end: End) -> BoxFuture<Result<Release>> {
        DynDriver::release(self.0.clone(), resource, id, end)
    }

    fn watch(self: Arc<Self>, _: Interest) -> BoxFuture<Result<Watch>> {
        Box::pin(std::future::ready(Ok(Watch::never())))
    }

    fn inspect(self: Arc<Self>, query: Query) -> BoxFuture<Result<Page>> {
        DynDriver::inspect(self.0.clone(), query)
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        DynDriver::close(self.0.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn observers_poll_again_without_a_hint() {
    let clock = Arc::new(TokioClock::new());
    let store = Memory::on(clock.clone());
    let client = |driver: Arc<dyn DynDriver>| Locks::builder_over(driver).clock(clock.clone()).build().unwrap();
    let leader = client(Arc::new(store.connect()));
    let mut leaders = client(Arc::new(Mute(Arc::new(store)))).election("a").observe();
    assert!(leaders.changed().await.unwrap().is_none());
    let leadership = leader.election("a").campaign("x").await.unwrap();
    let started = tokio::time::Instant::now();
    let seen = leaders.changed().await.unwrap().unwrap();
    assert_eq!(seen.fence, Some(leadership.fence()));
    assert!(started.elapsed() <= Duration::from_secs(10), "seen after {:?}", started.elapsed());
}
