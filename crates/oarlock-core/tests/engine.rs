//! The engine over a store whose answers are tampered with, under paused time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oarlock_core::capabilities::{Liveness, Notify};
use oarlock_core::clock::TokioClock;
use oarlock_core::driver::{Attempt, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Ending, Page, Query};
use oarlock_core::{
    Claim, ClaimId, Driver, Error, ErrorKind, Locks, LossReason, Memory, Owner, ResourceName, Result, Slot,
};

/// What is done to the attempts and watches of a driver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tamper {
    Nothing,
    /// The answers to attempts take this long.
    SlowAnswers(Duration),
    /// The answers to renewals take this long.
    SlowRenewals(Duration),
    /// Renewals of `slow` take this long; together with others they are given up on after the second one.
    SlowBesideOthers(Duration, Duration),
    /// The first attempt takes effect and its answer is lost; the second is refused for good.
    LostThenDenied,
    /// Watches end as soon as they are armed.
    WatchesEnd,
    /// Attempts never answer.
    Silence,
    /// No notifications: waiters must poll.
    NoPush,
    /// A store of sessions: what is not released stays. Releases fail this long from the start.
    SessionReleasesFail(Duration),
    /// Each hold is lost just before its release.
    LostBeforeRelease,
    /// The answer to the first release is lost.
    ReleaseUnanswered,
}

struct Tampered {
    inner: Memory,
    tamper: Tamper,
    attempts: Arc<AtomicU32>,
    started: tokio::time::Instant,
}

impl Driver for Tampered {
    fn info(&self) -> Info {
        let mut info = Driver::info(&self.inner);
        if let Tamper::SessionReleasesFail(_) = self.tamper {
            info.capabilities.liveness = Liveness::Session;
        }
        if self.tamper == Tamper::NoPush {
            info.capabilities.notify = Notify::Poll;
        }
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let number = self.attempts.fetch_add(1, Ordering::SeqCst);
        match self.tamper {
            Tamper::LostThenDenied if number > 0 => return Err(Error::new(ErrorKind::Denied, "no")),
            Tamper::Silence => std::future::pending::<()>().await,
            Tamper::SessionReleasesFail(_) => {
                let mut lasting = claim.clone();
                lasting.ttl = Duration::from_secs(86_400);
                let answer = Driver::attempt(&self.inner, &lasting).await?;
                let Attempt::Granted(mut grant) = answer else { return Ok(answer) };
                grant.lease.ttl = claim.ttl;
                return Ok(Attempt::Granted(grant));
            }
            _ => {}
        }
        let answer = Driver::attempt(&self.inner, claim).await;
        match self.tamper {
            Tamper::SlowAnswers(delay) => tokio::time::sleep(delay).await,
            Tamper::LostThenDenied => return Err(Error::unreachable("lost")),
            _ => {}
        }
        answer
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let answers = Driver::renew(&self.inner, batch).await;
        let is_slow = |renewal: &Renewal| renewal.claim.resource.as_str() == "slow";
        match self.tamper {
            Tamper::SlowRenewals(delay) => tokio::time::sleep(delay).await,
            Tamper::SlowBesideOthers(_, rest) if batch.iter().any(is_slow) && !batch.iter().all(is_slow) => {
                tokio::time::sleep(rest).await;
                let given_up = |renewal: &Renewal| is_slow(renewal).then(|| Err(Error::unreachable("given up on")));
                return batch
                    .iter()
                    .zip(answers)
                    .map(|(renewal, answer)| given_up(renewal).unwrap_or(answer))
                    .collect();
            }
            Tamper::SlowBesideOthers(delay, _) if batch.iter().any(is_slow) => tokio::time::sleep(delay).await,
            _ => {}
        }
        answers
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        if let Tamper::SessionReleasesFail(outage) = self.tamper
            && self.started.elapsed() < outage
        {
            return Err(Error::unreachable("away"));
        }
        match self.tamper {
            Tamper::LostBeforeRelease => self.inner.kit().lose(resource.as_str())?,
            Tamper::ReleaseUnanswered => drop(Driver::release(&self.inner, resource, id, end).await?),
            _ => {}
        }
        Driver::release(&self.inner, resource, id, end).await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        if self.tamper == Tamper::WatchesEnd && matches!(interest, Interest::Turn(..)) {
            return Ok(Watch::ended());
        }
        if self.tamper == Tamper::NoPush {
            return Ok(Watch::never());
        }
        Driver::watch(&self.inner, interest).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        Driver::inspect(&self.inner, query).await
    }

    async fn close(&self) -> Result<()> {
        Driver::close(&self.inner).await
    }
}

/// A store, an honest client of it, and one that is tampered with.
struct World {
    honest: Locks,
    victim: Locks,
    attempts: Arc<AtomicU32>,
    started: tokio::time::Instant,
}

#[expect(clippy::unwrap_used, reason = "a test without its clients has nothing to say")]
fn world(tamper: Tamper) -> World {
    let clock = Arc::new(TokioClock::new());
    let store = Memory::on(clock.clone());
    let attempts = Arc::new(AtomicU32::new(0));
    let started = tokio::time::Instant::now();
    let tampered = Tampered { inner: store.connect(), tamper, attempts: attempts.clone(), started };
    let client =
        |driver: Arc<dyn oarlock_core::DynDriver>| Locks::builder_over(driver).clock(clock.clone()).build().unwrap();
    World { honest: client(Arc::new(store)), victim: client(Arc::new(tampered)), attempts, started }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_after_the_shutdown_is_not_believed() {
    let world = world(Tamper::SlowAnswers(Duration::from_millis(500)));
    let victim = world.victim.clone();
    let late = tokio::spawn(async move { victim.mutex("a").lock().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.victim.shutdown(Duration::ZERO).await.unwrap();
    let rival = world.honest.mutex("a").try_lock().await.unwrap();
    assert!(rival.is_some(), "the session has ended");
    let late = late.await.unwrap();
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Closed);
}

/// A slot is forgotten by what the release leaves: a release that finds no hold leaves nothing.
#[tokio::test(start_paused = true)]
async fn a_slot_is_not_forgotten_by_a_lock_that_was_lost() {
    for (tamper, forgotten) in [(Tamper::LostBeforeRelease, false), (Tamper::ReleaseUnanswered, true)] {
        let world = world(tamper);
        let ran = world.honest.once("nightly").run("7", |_| async { Ok::<_, Error>(()) }).await.unwrap();
        assert_eq!(ran, Slot::Ran(()));
        let (once, seen) = (world.victim.once("nightly"), world.honest.once("nightly"));
        let last = once.last_with_record().await.unwrap().unwrap();
        match once.forget(&last).await {
            Ok(true) => assert!(forgotten, "the lock was lost"),
            Ok(false) => panic!("it was the last slot"),
            Err(error) => assert!(!forgotten && error.kind() == ErrorKind::Lost, "{error}"),
        }
        assert_eq!(seen.last().await.unwrap().is_none(), forgotten);
    }
}

#[tokio::test(start_paused = true)]
async fn belief_in_a_renewal_counts_from_its_sending() {
    let world = world(Tamper::SlowRenewals(Duration::from_secs(3)));
    let guard = world.victim.mutex("a").ttl(Duration::from_secs(30)).lock().await.unwrap();
    // Sent after 7.5 to 10 seconds, answered 3 later: by now it is 4 to 6.5 seconds old, its answer 1 to 3.5.
    tokio::time::sleep(Duration::from_secs(14)).await;
    let left = guard.time_left();
    assert!(left > Duration::from_secs(20), "not renewed: {left:?}");
    assert!(left < Duration::from_millis(25_500), "counted from the answer: {left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_may_have_been_granted_is_released_whatever_failed_last() {
    let world = world(Tamper::LostThenDenied);
    let error = world.victim.mutex("a").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    let rival = world.honest.mutex("a").lock().await.unwrap();
    assert!(rival.waited() < Duration::from_secs(1), "waited {:?} for a claim without an owner", rival.waited());
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_do_not_make_a_tight_loop() {
    let world = world(Tamper::WatchesEnd);
    let _held = world.honest.mutex("a").lock().await.unwrap();
    let busy = world.victim.mutex("a").wait(Duration::from_secs(10)).lock().await;
    assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
    let attempts = world.attempts.load(Ordering::SeqCst);
    assert!(attempts < 60, "{attempts} attempts in ten seconds");
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_is_bounded_although_the_store_is_silent() {
    let world = world(Tamper::Silence);
    let error = world.victim.mutex("a").wait(Duration::from_secs(1)).lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(world.started.elapsed() < Duration::from_millis(2500), "took {:?}", world.started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_lives_as_long_as_its_session_is_released_however_late_that_works() {
    let (ttl, outage) = (Duration::from_secs(2), Duration::from_secs(60));
    let world = world(Tamper::SessionReleasesFail(outage));
    drop(world.victim.mutex("dropped").ttl(ttl).lock().await.unwrap());
    let expired = world.victim.mutex("expired").ttl(ttl).no_renewal().lock().await.unwrap();
    assert_eq!(expired.lost().await, LossReason::Expired);
    tokio::time::sleep_until(world.started + outage + ttl).await;
    for name in ["dropped", "expired"] {
        assert!(world.honest.mutex(name).try_lock().await.unwrap().is_some(), "{name} is still there");
    }
}

#[tokio::test(start_paused = true)]
async fn the_holder_of_an_explicit_lease_hears_of_a_break() {
    for grace in [Duration::ZERO, Duration::from_secs(5)] {
        let world = world(Tamper::Nothing);
        let guard = world.victim.mutex("a").ttl(Duration::from_secs(600)).no_renewal().lock().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let ends = guard.ends_at();
        let ending = Ending::new("ops", "stuck");
        let name = ResourceName::new("a").unwrap();
        world.honest.break_hold(&name, guard.fence(), ending.clone(), grace).await.unwrap();
        let reason = tokio::time::timeout(Duration::from_secs(6), guard.lost()).await.expect("told in time");
        assert_eq!(reason, LossReason::Broken(ending));
        assert!(guard.ends_at() <= ends, "checking it must not extend it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_break_is_heard_too() {
    let world = world(Tamper::Nothing);
    let guard = world.victim.mutex("a").ttl(Duration::from_secs(600)).lock().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let name = ResourceName::new("a").unwrap();
    let ending = Ending::new("ops", "stuck");
    world.honest.break_hold(&name, guard.fence(), ending.clone(), Duration::from_secs(300)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(guard.is_held());
    world.honest.break_hold(&name, guard.fence(), ending, Duration::ZERO).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), guard.lost()).await.expect("told in time");
}

#[tokio::test(start_paused = true)]
async fn an_owner_does_not_deadlock_with_what_it_has_lost() {
    let world = world(Tamper::Nothing);
    let owner = Owner::new();
    let mutex = world.victim.mutex("a").owner(&owner).ttl(Duration::from_secs(1)).no_renewal();
    let lost = mutex.lock().await.unwrap();
    let error = mutex.lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SelfDeadlock);
    lost.lost().await;
    assert!(mutex.lock().await.is_ok(), "it holds nothing any more");
}

#[test]
fn a_client_whose_runtime_is_gone_says_so() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let client = first.block_on(async { Locks::over(Memory::new()).unwrap() });
    drop(first);
    let error = runtime().block_on(async { client.mutex("a").try_lock().await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::Closed);
}

/// A task that releases a lock often takes it again; the task that it was released for goes first.
#[tokio::test(flavor = "current_thread")]
async fn a_waiter_runs_before_the_release_returns() -> Result<()> {
    let client = Locks::over(Memory::new())?;
    let lock = client.mutex("r").fair();
    let guard = lock.lock().await?;
    let granted = Arc::new(AtomicU32::new(0));
    let waiter = tokio::spawn({
        let (lock, granted) = (lock.clone(), granted.clone());
        async move {
            let guard = lock.lock().await?;
            granted.store(1, Ordering::SeqCst);
            guard.release().await
        }
    });
    while client.inspect(&ResourceName::new("r")?).await?.waiters.count() != Some(1) {
        tokio::task::yield_now().await;
    }
    // It has armed its watch when it has nothing left to do.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    guard.release().await?;
    assert_eq!(granted.load(Ordering::SeqCst), 1, "it was granted it meanwhile");
    waiter.await.map_err(|error| Error::new(ErrorKind::Os, error.to_string()))??;
    Ok(())
}

/// The next holder is in another process: to yield would only delay this one.
#[tokio::test(flavor = "current_thread")]
async fn a_release_that_only_other_clients_wait_for_does_not_yield() -> Result<()> {
    let store = Memory::new();
    let (client, other) = (Locks::over(store.connect())?, Locks::over(store)?);
    let guard = client.mutex("r").lock().await?;
    let waiter = tokio::spawn(async move { other.mutex("r").lock().await?.release().await });
    while client.inspect(&ResourceName::new("r")?).await?.waiters.count() != Some(1) {
        tokio::task::yield_now().await;
    }
    let mut release = Box::pin(guard.release());
    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(release.as_mut().poll(cx))).await;
    assert!(first.is_ready(), "it yielded");
    waiter.await.map_err(|error| Error::new(ErrorKind::Os, error.to_string()))??;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_waiter_polls_again_soon_after_the_queue_has_moved() {
    let world = world(Tamper::NoPush);
    let hold = world.honest.mutex("a").fair().lock().await.unwrap();
    let (next, victim) = (world.honest.mutex("a").fair(), world.victim.mutex("a").fair());
    let next = tokio::spawn(async move { next.lock().await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    let last = tokio::spawn(async move { victim.lock().await });
    // Long enough for its pauses to be the longest.
    tokio::time::sleep(Duration::from_secs(10)).await;
    hold.release().await.unwrap();
    let hold = next.await.unwrap().unwrap();
    let polls = world.attempts.load(Ordering::SeqCst);
    while world.attempts.load(Ordering::SeqCst) == polls {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    hold.release().await.unwrap();
    let released = tokio::time::Instant::now();
    drop(last.await.unwrap().unwrap());
    assert!(released.elapsed() < Duration::from_millis(50), "it polled after {:?}", released.elapsed());
}

/// A store of several servers, of which one is slow: those who ask the others do not wait for it, and it is waited for
/// all the same.
#[tokio::test(start_paused = true)]
async fn what_answers_slowly_is_not_given_up_on_for_the_sake_of_others() {
    let (lease, delay) = (Duration::from_secs(8), Duration::from_millis(2300));
    let world = world(Tamper::SlowBesideOthers(delay, lease / 4));
    let mut guards = Vec::new();
    for name in ["slow", "a", "b", "c", "d"] {
        guards.push(world.victim.mutex(name).ttl(lease).lock().await.unwrap());
    }
    for _ in 0..30 {
        tokio::time::sleep(lease).await;
        for guard in &guards {
            assert!(guard.is_held(), "{:?}", guard.loss());
        }
    }
}

/// Two clients of one driver, each on a thread of its own, are clients of one store.
#[tokio::test]
async fn an_owner_does_not_wait_for_itself_from_any_task() {
    let store: Arc<dyn oarlock_core::DynDriver> = Arc::new(Memory::default());
    let client = || {
        let runtime = oarlock_core::Runtime::own_thread().unwrap();
        Locks::builder_over(store.clone()).runtime(runtime).build().unwrap()
    };
    let (one, other, owner) = (client(), client(), Owner::new());
    let _held = one.mutex("x").owner(&owner).lock().await.unwrap();
    let again = other.mutex("x").owner(&owner).wait(Duration::from_secs(5)).lock().await;
    assert_eq!(again.unwrap_err().kind(), ErrorKind::SelfDeadlock);
}
