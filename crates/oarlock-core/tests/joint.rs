//! Releases that carry the next claim of their process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use oarlock_core::clock::TokioClock;
use oarlock_core::driver::{Attempt, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, Driver, Error, Fence, Guard, Locks, Memory, Owner, Released, ResourceName, Result};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A store in which a release and an attempt are one request.
#[derive(Clone)]
struct Store(Arc<Inner>);

struct Inner {
    memory: Memory,
    joint: AtomicUsize,
    attempts: AtomicUsize,
    /// Answers of joint requests wait for a permit.
    answers: Semaphore,
    loses_answers: AtomicBool,
}

impl Driver for Store {
    fn info(&self) -> Info {
        let mut info = Driver::info(&self.0.memory);
        info.joint = true;
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        self.0.attempts.fetch_add(1, Ordering::Relaxed);
        Driver::attempt(&self.0.memory, claim).await
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        Driver::renew(&self.0.memory, batch).await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        Driver::release(&self.0.memory, resource, id, end).await
    }

    async fn release_and_attempt(
        &self,
        resource: &ResourceName,
        id: ClaimId,
        end: &End,
        next: &Claim,
    ) -> (Result<Release>, Result<Attempt>) {
        self.0.joint.fetch_add(1, Ordering::Relaxed);
        let release = Driver::release(&self.0.memory, resource, id, end).await;
        let attempt = Driver::attempt(&self.0.memory, next).await;
        let _answered = self.0.answers.acquire().await;
        if self.0.loses_answers.load(Ordering::Relaxed) {
            let lost = || Error::unreachable("the reply was lost").applied_unknown();
            return (Err(lost()), Err(lost()));
        }
        (release, attempt)
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        Driver::watch(&self.0.memory, interest).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        Driver::inspect(&self.0.memory, query).await
    }

    async fn close(&self) -> Result<()> {
        Driver::close(&self.0.memory).await
    }
}

impl Store {
    /// A store on the time of a test, and a client of it.
    fn open() -> (Self, Locks) {
        let clock = Arc::new(TokioClock::new());
        let store = Self(Arc::new(Inner {
            memory: Memory::on(clock.clone()),
            joint: AtomicUsize::new(0),
            attempts: AtomicUsize::new(0),
            answers: Semaphore::new(Semaphore::MAX_PERMITS),
            loses_answers: AtomicBool::new(false),
        }));
        let client = Locks::builder(store.clone()).clock(clock).build().unwrap();
        (store, client)
    }

    fn joint(&self) -> usize {
        self.0.joint.load(Ordering::Relaxed)
    }

    /// Holds the answers to joint requests back.
    fn mute(&self) {
        self.0.answers.forget_permits(Semaphore::MAX_PERMITS);
    }

    fn answer(&self) {
        self.0.answers.add_permits(1000);
    }

    /// How many claims hold and wait.
    async fn claims(&self) -> (usize, usize) {
        let page = self.inspect(&Query::name(name())).await.unwrap();
        page.resources.first().map_or((0, 0), |state| (state.holders.len(), state.waiters.count().unwrap()))
    }

    /// Waits until the store knows so many holders and waiters.
    async fn until(&self, claims: (usize, usize)) {
        for _ in 0..1000 {
            if self.claims().await == claims {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?} hold and wait, not {claims:?}", self.claims().await);
    }
}

fn name() -> ResourceName {
    ResourceName::new("x").unwrap()
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

fn waits(client: &Locks) -> JoinHandle<Result<Guard>> {
    let lock = client.mutex("x");
    tokio::spawn(async move { lock.lock().await })
}

/// A holder after a hold that lasted so long, and the task that waits behind it.
async fn holder_and_next(client: &Locks, held_for: Duration) -> (Guard, JoinHandle<Result<Guard>>) {
    let first = client.mutex("x").lock().await.unwrap();
    let (second, third, fourth) = (waits(client), waits(client), waits(client));
    settle().await;
    first.release().await.unwrap();
    let second = second.await.unwrap().unwrap();
    settle().await;
    tokio::time::sleep(held_for).await;
    second.release().await.unwrap();
    let third = third.await.unwrap().unwrap();
    settle().await;
    (third, fourth)
}

#[tokio::test(start_paused = true)]
async fn a_release_carries_the_next_claim() {
    const TASKS: usize = 4;
    const ROUNDS: usize = 25;
    let (store, client) = Store::open();
    let fences: Arc<Mutex<Vec<Fence>>> = Arc::default();
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let (client, fences) = (client.clone(), fences.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = client.mutex("x").lock().await.unwrap();
                fences.lock().unwrap().push(guard.fence());
                tokio::task::yield_now().await;
                assert_eq!(guard.release().await.unwrap(), Released::Released);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let fences = fences.lock().unwrap().clone();
    assert!(fences.len() == TASKS * ROUNDS && fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    let (joint, attempts) = (store.joint(), store.0.attempts.load(Ordering::Relaxed));
    assert!(joint >= TASKS * ROUNDS - 10, "{joint} releases carried a claim");
    assert!(attempts <= 20, "{attempts} attempts of their own: a grant takes one request");
    assert_eq!(store.claims().await, (0, 0));
}

/// Other processes must see that it waits, and it must not lose its place to them for long.
#[tokio::test(start_paused = true)]
async fn behind_a_long_hold_a_claim_joins_the_queue_by_itself() {
    let (store, client) = Store::open();
    let (holder, next) = holder_and_next(&client, Duration::ZERO).await;
    assert_eq!(store.claims().await, (1, 0));
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(store.claims().await, (1, 1), "it waits in the store");
    holder.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!((store.joint(), store.claims().await), (0, (0, 0)));
    // After a long hold, the next claim does not wait for a release at all.
    let (holder, next) = holder_and_next(&client, Duration::from_millis(5)).await;
    assert_eq!(store.claims().await, (1, 1), "it waits in the store at once");
    holder.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
}

/// At any moment: before its task has run again, and while the request is under way.
#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_carried_claim_that_is_dropped() {
    for has_run in [false, true] {
        let (store, client) = Store::open();
        let (holder, next) = holder_and_next(&client, Duration::ZERO).await;
        store.mute();
        let mut release = Box::pin(holder.release());
        assert!(poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx).is_pending())).await);
        assert_eq!((store.joint(), store.claims().await), (1, (1, 0)), "the release has carried the claim");
        if has_run {
            settle().await;
        }
        next.abort();
        assert!(next.await.is_err());
        store.answer();
        assert_eq!(release.await.unwrap(), Released::Released);
        store.until((0, 0)).await;
        client.mutex("x").lock().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_granted_although_the_release_that_carried_it_is_dropped() {
    for is_kept in [false, true] {
        let (store, client) = Store::open();
        let (holder, next) = holder_and_next(&client, Duration::ZERO).await;
        store.mute();
        let mut release = Box::pin(holder.release());
        assert!(poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx).is_pending())).await);
        // A future that is kept without being polled must not keep others waiting, either.
        let kept = is_kept.then_some(release);
        store.answer();
        let guard = tokio::time::timeout(Duration::from_secs(1), next).await.expect("it is granted").unwrap().unwrap();
        guard.release().await.unwrap();
        drop(kept);
        store.until((0, 0)).await;
    }
}

/// Its task may wait in a branch of a `select!` whose other branch is busy for minutes.
#[tokio::test(start_paused = true)]
async fn a_carried_claim_whose_task_is_not_polled_is_withdrawn() {
    let (store, client) = Store::open();
    let (holder, next) = holder_and_next(&client, Duration::ZERO).await;
    let lock = client.mutex("x");
    let mut unpolled = Box::pin(lock.lock());
    assert!(poll_fn(|cx| Poll::Ready(unpolled.as_mut().poll(cx).is_pending())).await);
    holder.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    settle().await;
    next.release().await.unwrap();
    assert_eq!((store.joint(), store.claims().await), (2, (1, 0)), "the release has carried the claim");
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(store.claims().await, (0, 0), "other processes can have the lock");
    unpolled.await.unwrap().release().await.unwrap();
    store.until((0, 0)).await;
}

/// A claim with an owner waits at the gate only.
#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_carried_gets_its_turn() {
    let (_store, client) = Store::open();
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                loop {
                    let guard = client.mutex("x").lock().await.unwrap();
                    tokio::task::yield_now().await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    // No timer would end while they are busy.
    settle().await;
    let owner = Owner::new();
    let lock = client.mutex("x").owner(&owner);
    let mut waits = Box::pin(lock.lock());
    let mut turns = 0;
    let guard = loop {
        match poll_fn(|cx| Poll::Ready(waits.as_mut().poll(cx))).await {
            Poll::Ready(guard) => break guard.unwrap(),
            Poll::Pending => turns += 1,
        }
        assert!(turns < 1000, "others are granted the lock again and again");
        tokio::task::yield_now().await;
    };
    drop(guard);
    for task in tasks {
        task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn both_requests_are_repeated_when_the_answer_is_lost() {
    let (store, client) = Store::open();
    let (holder, next) = holder_and_next(&client, Duration::ZERO).await;
    store.0.loses_answers.store(true, Ordering::Relaxed);
    let before = holder.fence();
    holder.release().await.unwrap_err();
    let guard = next.await.unwrap().unwrap();
    assert!(guard.fence() > before && guard.is_held());
    assert_eq!((store.joint(), store.claims().await), (1, (1, 0)));
    guard.release().await.unwrap();
    store.until((0, 0)).await;
}

/// Nothing may be believed for longer than the store keeps it.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_carried_claim_counts_from_before_the_request() {
    let (store, client) = Store::open();
    let (holder, next) = holder_and_next(&client, Duration::ZERO).await;
    store.mute();
    let release = tokio::spawn(holder.release());
    tokio::time::sleep(Duration::from_secs(3)).await;
    store.answer();
    release.await.unwrap().unwrap();
    let guard = next.await.unwrap().unwrap();
    assert!(guard.time_left() < Duration::from_secs(27), "{:?} of 30 s, 3 s after the request", guard.time_left());
}

/// A guard that is dropped is released in the background: the next claim asks the store.
#[tokio::test(start_paused = true)]
async fn a_dropped_guard_lets_the_next_claim_ask() {
    let (store, client) = Store::open();
    let (holder, next) = holder_and_next(&client, Duration::ZERO).await;
    drop(holder);
    next.await.unwrap().unwrap().release().await.unwrap();
    store.until((0, 0)).await;
}
