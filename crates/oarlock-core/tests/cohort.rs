//! Cohorts over a store that does not play along, and what must not be asked of them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oarlock_core::clock::TokioClock;
use oarlock_core::driver::{Attempt, End, Fences, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{
    Claim, ClaimId, Driver, ErrorKind, Lifetime, LockEvent, Locks, Memory, Multi, ResourceName, Result, Step,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// More fences are reserved than were asked for.
    Generous,
    /// Fences are never reserved: no answer.
    MuteReserve,
    /// Releases get no answer.
    MuteRelease,
    /// Renewals get no answer; fences are reserved.
    MuteRenewal,
}

struct Flawed(Memory, Flaw);

impl Driver for Flawed {
    fn info(&self) -> Info {
        Driver::info(&self.0)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        Driver::attempt(&self.0, claim).await
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        if batch.iter().any(|renewal| matches!(renewal.fences, Fences::Reserve(_))) {
            match self.1 {
                Flaw::Generous => {
                    for _ in 0..50 {
                        Driver::renew(&self.0, batch).await;
                    }
                }
                Flaw::MuteReserve => std::future::pending().await,
                Flaw::MuteRelease | Flaw::MuteRenewal => {}
            }
        } else if self.1 == Flaw::MuteRenewal {
            std::future::pending::<()>().await;
        }
        Driver::renew(&self.0, batch).await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        if self.1 == Flaw::MuteRelease {
            std::future::pending::<()>().await;
        }
        Driver::release(&self.0, resource, id, end).await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        Driver::watch(&self.0, interest).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        Driver::inspect(&self.0, query).await
    }

    async fn close(&self) -> Result<()> {
        Driver::close(&self.0).await
    }
}

/// A client of a flawed store on the test's time, and an honest one of the same.
fn clients(flaw: Flaw) -> Result<(Locks, Locks)> {
    let clock = Arc::new(TokioClock::new());
    let store = Memory::on(clock.clone());
    let flawed = Locks::builder(Flawed(store.connect(), flaw)).clock(clock.clone()).ttl(Duration::from_secs(2));
    Ok((flawed.build()?, Locks::builder(store).clock(clock).build()?))
}

#[tokio::test(start_paused = true)]
async fn hand_offs_are_counted_whatever_the_store_reserves() -> Result<(), Failure> {
    let (locks, _) = clients(Flaw::Generous)?;
    let lock = locks.mutex("a").cohort(2, Duration::from_secs(10));
    let in_a_row = Arc::new(Mutex::new(HashMap::<ClaimId, u32>::new()));
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (lock, in_a_row) = (lock.clone(), in_a_row.clone());
            tokio::spawn(async move {
                let guard = lock.lock().await?;
                if let Ok(mut in_a_row) = in_a_row.lock() {
                    *in_a_row.entry(guard.id()).or_default() += 1;
                }
                tokio::task::yield_now().await;
                guard.release().await
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let most = in_a_row.lock().ok().and_then(|in_a_row| in_a_row.values().max().copied());
    assert!(most > Some(1) && most <= Some(3), "{most:?} in a row, with two hand-offs");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_half_over_is_not_handed_on() -> Result<(), Failure> {
    for (held, handed_on) in [(Duration::from_millis(100), true), (Duration::from_millis(1100), false)] {
        // A lease of two seconds: the renewal after a third of it is on its way when the holder releases, and not
        // missed yet.
        let (locks, _) = clients(Flaw::MuteRenewal)?;
        let lock = locks.mutex("a").cohort(16, Duration::from_secs(10));
        let first = lock.lock().await?;
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let lock = lock.clone();
                tokio::spawn(async move {
                    let guard = lock.lock().await?;
                    tokio::time::sleep(held).await;
                    let id = guard.id();
                    guard.release().await.map(|_| id)
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Fences are reserved for the next one, for whom others wait.
        first.release().await?;
        let mut claims = HashSet::new();
        for task in waiting {
            claims.insert(task.await??);
        }
        assert_eq!(claims.len() < 3, handed_on, "{} claims for three holds of {held:?}", claims.len());
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_is_bounded_although_no_fences_are_reserved() -> Result<(), Failure> {
    let (locks, _) = clients(Flaw::MuteReserve)?;
    let lock = locks.mutex("a").wait(Duration::from_millis(500)).cohort(4, Duration::from_millis(100));
    let first = lock.lock().await?;
    let started = tokio::time::Instant::now();
    let wait = || {
        let lock = lock.clone();
        tokio::spawn(async move { (lock.lock().await.map(drop), started.elapsed()) })
    };
    let waiting = [wait(), wait(), wait()];
    tokio::time::sleep(Duration::from_millis(100)).await;
    first.release().await?;
    for task in waiting {
        let (outcome, after) = task.await?;
        assert!(after < Duration::from_millis(1600), "{outcome:?} after {after:?}, was to wait 500 ms");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn several_locks_keep_their_deadline_although_releases_get_no_answer() -> Result<(), Failure> {
    let (locks, honest) = clients(Flaw::MuteRelease)?;
    let _in_the_way = honest.mutex("z").lock().await?;
    let parts = ["a", "b", "c", "d", "z"].map(|name| locks.mutex(name));
    let started = tokio::time::Instant::now();
    let outcome = Multi::all(parts).wait(Duration::from_secs(1)).lock().await;
    assert_eq!(outcome.map(drop).map_err(|error| error.kind()), Err(ErrorKind::Busy));
    assert!(started.elapsed() < Duration::from_secs(4), "took {:?}", started.elapsed());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_loses_no_lock() -> Result<(), Failure> {
    let clock = Arc::new(TokioClock::new());
    let store = Memory::on(clock.clone());
    let panicked = Arc::new(AtomicBool::new(false));
    let observer = {
        let panicked = panicked.clone();
        move |event: &LockEvent| {
            if matches!(event.step, Step::Released { .. } | Step::Renewed) {
                panicked.store(true, Ordering::SeqCst);
                std::panic::resume_unwind(Box::new("an observer"));
            }
        }
    };
    let locks = Locks::builder(store.connect()).clock(clock.clone()).observer(observer).build()?;
    let lock = locks.mutex("a").cohort(16, Duration::from_secs(10));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let kept = lock.lock().await?;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(panicked.load(Ordering::SeqCst) && kept.is_held(), "not renewed any more: {:?}", kept.loss());
    drop(kept);
    let honest = Locks::builder(store).clock(clock).build()?;
    assert!(honest.mutex("a").wait(Duration::from_secs(5)).lock().await.is_ok(), "it has no holder, and is not free");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_makes_no_sense_is_refused() -> Result<(), Failure> {
    let locks = Locks::over(Memory::new())?;
    let second = Duration::from_secs(1);
    let lock = || locks.mutex("a");
    let refused = [
        lock().cohort(0, second),
        lock().cohort(u32::MAX, second),
        // The one that waits in the store for all would give up while the lock goes round.
        lock().cohort(4, second).wait(second),
        lock().max_hold(Duration::ZERO),
    ];
    for lock in refused {
        assert_eq!(lock.lock().await.map(drop).map_err(|error| error.kind()), Err(ErrorKind::InvalidClaim));
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_client_adopts_a_ticket_once() -> Result<(), Failure> {
    let locks = Locks::over(Memory::new())?;
    let ticket = locks.mutex("a").lifetime(Lifetime::Lease).lock().await?.hand_over()?;
    let _adopted = locks.adopt(&ticket).await?;
    assert_eq!(locks.adopt(&ticket).await.map(drop).map_err(|error| error.kind()), Err(ErrorKind::InvalidClaim));
    Ok(())
}

#[tokio::test]
async fn two_stores_in_memory_are_two_stores() -> Result<(), Failure> {
    let (one, other) = (Locks::over(Memory::new())?, Locks::over(Memory::new())?);
    let both = Multi::of(one.mutex("a")).and(other.mutex("a")).lock().await?;
    assert!(both.is_held());
    Ok(())
}
