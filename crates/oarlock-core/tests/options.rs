//! The options that every kind has.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::TokioClock;
use oarlock_core::{Ended, Error, ErrorKind, Label, Locks, LossReason, Memory, Multi, Owner, Result};

const SECOND: Duration = Duration::from_secs(1);

fn locks() -> Locks {
    let clock = Arc::new(TokioClock::new());
    Locks::builder(Memory::on(clock.clone())).clock(clock).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn fair_writers_each_have_a_place_in_the_queue() -> Result<()> {
    for (fair, places) in [(false, 1), (true, 3)] {
        let locks = locks();
        let held = locks.mutex("a").lock().await?;
        let config = if fair { locks.rwlock("a").fair() } else { locks.rwlock("a") };
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let config = config.clone();
            writers.spawn(async move { config.write().await.map(drop) });
        }
        tokio::time::sleep(SECOND).await;
        let oarlock_core::state::Waiters::Listed(waiters) = locks.inspect("a").await?.waiters else { panic!("hidden") };
        assert_eq!(waiters.len(), places, "fair: {fair}");
        held.release().await?;
        while let Some(written) = writers.join_next().await {
            written.unwrap()?;
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_candidate_and_a_run_have_owners_and_places() -> Result<()> {
    let (locks, owner) = (locks(), Owner::new());
    let election = locks.election("a").fair().owner(&owner);
    let _leads = election.campaign("me").await?;
    assert_eq!(election.campaign("me").await.unwrap_err().kind(), ErrorKind::SelfDeadlock);
    let once = locks.once("b").at_least_once().fair().owner(&owner);
    let inner = once.clone();
    let nested = once.run("1", |_| async move { inner.run("1", |_| async { Ok::<_, Error>(()) }).await.map(drop) });
    assert_eq!(nested.await.unwrap_err().kind(), ErrorKind::SelfDeadlock);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_options_of_several_locks_apply_to_each() -> Result<()> {
    let locks = locks();
    let own = locks.mutex("a").ttl(SECOND * 20).reason("mine");
    let both = Multi::of(own).ttl(SECOND * 5).no_renewal().reason("both").and(locks.rwlock("b").for_reading());
    let guard = both.lock().await?;
    for name in ["a", "b"] {
        let holder = &locks.inspect(name).await?.holders[0];
        assert_eq!((holder.lease_left, holder.label.reason.as_deref()), (SECOND * 5, Some("both")), "{name}");
    }
    assert_eq!(guard.ended().await, Ended::Lost(LossReason::Expired), "it was renewed");
    drop(guard);
    let label = Label::of_this_process().reason("by its label").tag("job", "7");
    let guard = both.max_hold(SECOND).label(label).reason("both").lock().await?;
    let tags = &locks.inspect("b").await?.holders[0].label;
    assert_eq!((tags.tags["job"].as_str(), tags.reason.as_deref()), ("7", Some("both")));
    for held in guard.iter() {
        assert_eq!(held.lost().await, LossReason::MaxHold);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_part_of_several_locks_keeps_what_all_do_not_set() -> Result<()> {
    let locks = locks();
    let own = locks.mutex("a").ttl(SECOND * 20).reason("mine");
    let _guard = Multi::of(own).and(locks.mutex("b")).wait(SECOND).lock().await?;
    let holder = &locks.inspect("a").await?.holders[0];
    assert_eq!((holder.lease_left, holder.label.reason.as_deref()), (SECOND * 20, Some("mine")));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn every_guard_runs_work_while_it_is_held() -> Result<()> {
    let clock = Arc::new(TokioClock::new());
    let store = Memory::on(clock.clone());
    let locks = Locks::builder(store.connect()).clock(clock).build()?;
    let leadership = locks.election("a").campaign("me").await?;
    assert_eq!(leadership.with(|held| async move { Ok::<_, Error>(held.fence()) }).await?, leadership.held().fence());
    let entry = locks.mutex("b").reentrant(&Owner::new()).lock().await?;
    assert_eq!(entry.with(|held| async move { Ok::<_, Error>(held.fence()) }).await?, entry.fence());
    let endless = |_| std::future::pending::<Result<()>>();
    let lose = async {
        tokio::time::sleep(SECOND).await;
        store.kit().lose("a")?;
        store.kit().lose("b")
    };
    let both = async { tokio::join!(leadership.with(endless), entry.with(endless), lose) };
    let (led, entered, lost) = tokio::time::timeout(SECOND * 60, both).await.expect("the work goes on after the loss");
    lost?;
    assert_eq!((led.unwrap_err().kind(), entered.unwrap_err().kind()), (ErrorKind::Lost, ErrorKind::Lost));
    let leadership = locks.election("a").campaign("me").await?;
    leadership.release().await?;
    assert!(locks.election("a").leader().await?.is_none());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_released_here_is_not_said_to_be_lost_to_others() -> Result<()> {
    let locks = locks();
    let guard = locks.mutex("a").lock().await?;
    let held = guard.held();
    guard.release().await?;
    let error = held.check().unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, None));
    assert_eq!(error.to_string(), "\"a\": this client has released the lock, or handed it over");
    assert!(!error.hint().contains("another process"), "{}", error.hint());
    Ok(())
}
