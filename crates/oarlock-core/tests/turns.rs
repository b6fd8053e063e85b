//! Grants that begin with a short lease, because the store gave the turn before it was asked for.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oarlock_core::capabilities::Capabilities;
use oarlock_core::clock::{BootClock, Clock as _, Moment};
use oarlock_core::driver::{
    Attempt, Driver, End, Grant, Hint, HintSender, Info, Interest, Lease, Pending, Release, Released, Renewal, Renewed,
    Watch,
};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, Error, Fence, Locks, LossReason, ResourceName, Result};
use tokio::sync::{Notify, mpsc};

/// The lease asked for, and that of a place; and the one that a turn comes with.
const LONG: Duration = Duration::from_millis(1800);
const SHORT: Duration = Duration::from_millis(300);

/// Answers attempts with a place until the turn is given, then with a short grant; the renewal of the place only when
/// told to.
#[derive(Clone, Default)]
struct Store(Arc<Inner>);

#[derive(Default)]
struct Inner {
    given: AtomicBool,
    place_renewed: Notify,
    answer: Notify,
    turn: std::sync::Mutex<Option<HintSender>>,
}

impl Driver for Store {
    fn info(&self) -> Info {
        Info::new("test", "here", Capabilities::of_the_model())
    }

    async fn attempt(&self, _: &Claim) -> Result<Attempt> {
        if self.0.given.load(Ordering::Acquire) {
            return Ok(Attempt::Granted(Grant::new(Fence::new(7), Lease::of(SHORT))));
        }
        let mut pending = Pending::default();
        pending.watched = true;
        Ok(Attempt::Pending(pending))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        if batch.iter().any(|renewal| renewal.held) {
            return batch.iter().map(|_| Err(Error::unreachable("cut off"))).collect();
        }
        self.0.place_renewed.notify_one();
        self.0.answer.notified().await;
        let alive = || Ok(Renewed::Alive { lease: Lease::of(LONG), fence: None, ending: None });
        batch.iter().map(|_| alive()).collect()
    }

    async fn release(&self, _: &ResourceName, _: ClaimId, _: &End) -> Result<Release> {
        Ok(Release::new(Released::Released, None))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        let Interest::Turn(..) = interest else { return Ok(Watch::never()) };
        let (turn, watch) = Watch::channel();
        *self.0.turn.lock().unwrap() = Some(turn);
        Ok(watch)
    }

    async fn inspect(&self, _: &Query) -> Result<Page> {
        Ok(Page::new(Vec::new(), false))
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// The answer says how long the place lives. The place is a grant by now, with a shorter lease.
#[tokio::test]
async fn a_late_answer_about_a_place_says_nothing_about_the_grant() {
    let store = Store::default();
    let client = Locks::over(store.clone()).unwrap();
    let lock = client.mutex("x").fair().ttl(LONG);
    let waits = tokio::spawn(async move { lock.lock().await.unwrap() });
    // Under way, and not answered before the grant.
    tokio::time::timeout(LONG * 4, store.0.place_renewed.notified()).await.expect("the place is renewed");
    store.0.given.store(true, Ordering::Release);
    assert!(store.0.turn.lock().unwrap().as_ref().unwrap().send(Hint::ANY), "it listens");
    let guard = tokio::time::timeout(LONG * 4, waits).await.expect("the turn is taken").unwrap();
    store.0.answer.notify_one();
    let reason = tokio::time::timeout(SHORT * 2, guard.lost()).await.expect("belief ends with the short lease");
    assert_eq!(reason, LossReason::Expired, "an answer about the place was taken for one about the grant");
}

/// Grants at once, with a lease that began a second ago, and tells of renewals.
#[derive(Clone)]
struct Handing {
    ttl: Duration,
    renewed: mpsc::UnboundedSender<()>,
}

impl Driver for Handing {
    fn info(&self) -> Info {
        Info::new("test", "here", Capabilities::of_the_model())
    }

    async fn attempt(&self, _: &Claim) -> Result<Attempt> {
        let from = Moment::from_nanos(BootClock.now().as_nanos() - 1_000_000_000);
        Ok(Attempt::Granted(Grant::new(Fence::new(7), Lease::sent_at(from, self.ttl))))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let _ = self.renewed.send(());
        let fence = Some(Fence::new(7));
        let alive = |of: &Renewal| Ok(Renewed::Alive { lease: Lease::of(of.claim.ttl), fence, ending: None });
        batch.iter().map(alive).collect()
    }

    async fn release(&self, _: &ResourceName, _: ClaimId, _: &End) -> Result<Release> {
        Ok(Release::new(Released::Released, None))
    }

    async fn watch(&self, _: &Interest) -> Result<Watch> {
        Ok(Watch::never())
    }

    async fn inspect(&self, _: &Query) -> Result<Page> {
        Ok(Page::new(Vec::new(), false))
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Else a stall of a second would cost a lock whose lease is half a minute.
#[tokio::test]
async fn the_rest_of_a_lease_is_asked_for_soon() {
    let (renewed, mut renewals) = mpsc::unbounded_channel();
    // By its own third, it would be renewed after three more seconds.
    let client = Locks::over(Handing { ttl: Duration::from_secs(12), renewed }).unwrap();
    let guard = client.mutex("x").lock().await.unwrap();
    let soon = tokio::time::timeout(Duration::from_secs(1), renewals.recv());
    soon.await.expect("renewed within a second").unwrap();
    assert!(guard.is_held());
}

#[tokio::test]
async fn the_longest_hold_begins_with_the_grant() {
    let (renewed, _renewals) = mpsc::unbounded_channel();
    let client = Locks::over(Handing { ttl: Duration::from_secs(12), renewed }).unwrap();
    let begun = std::time::Instant::now();
    let guard = client.mutex("x").max_hold(Duration::from_millis(600)).lock().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::MaxHold);
    assert!(begun.elapsed() >= Duration::from_millis(550), "lost after {:?}", begun.elapsed());
}
