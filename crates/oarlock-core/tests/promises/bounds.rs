//! What is bounded ends in time, whatever the store does.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use oarlock_core::{ErrorKind, Owner, Slot};
use tokio::time::Instant;

use crate::spy::{SECOND, World, name, world};

const WAIT: Duration = Duration::from_millis(100);

/// A wait and its grace.
const BOUND: Duration = Duration::from_millis(1_200);

/// The outcome of what must end at all.
async fn end_of<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SECOND * 3600, what).await.expect("it never ends")
}

async fn held(world: &World) -> oarlock_core::Guard {
    world.honest.mutex("a").lock().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_in_time_although_nothing_but_attempts_is_answered() {
    let world = world();
    let _held = held(&world).await;
    world.hooks.silent_turns.store(true, SeqCst);
    world.hooks.silent_inspects.store(true, SeqCst);
    world.hooks.silent_releases.store(true, SeqCst);
    let started = Instant::now();
    let error = end_of(world.spied.mutex("a").wait(WAIT).lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(started.elapsed() < BOUND, "a wait of {WAIT:?} took {:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_every_kind_ends_in_time_on_a_silent_store() {
    let world = world();
    let _held = held(&world).await;
    let silent = [&world.hooks.silent_turns, &world.hooks.silent_inspects, &world.hooks.silent_releases];
    for answers_attempts in [true, false] {
        silent.iter().for_each(|flag| flag.store(true, SeqCst));
        world.hooks.silent_attempts.store(!answers_attempts, SeqCst);
        let client = &world.spied;
        let owner = Owner::new();
        let started = Instant::now();
        let check = |what: &str, error: Option<ErrorKind>| {
            let wanted = if answers_attempts { ErrorKind::Busy } else { ErrorKind::Unreachable };
            assert_eq!(error, Some(wanted), "{what}");
        };
        check("mutex", client.mutex("a").wait(WAIT).lock().await.err().map(|error| error.kind()));
        check("fair", client.mutex("a").fair().wait(WAIT).lock().await.err().map(|error| error.kind()));
        check("spin", client.mutex("a").spin().wait(WAIT).lock().await.err().map(|error| error.kind()));
        check("election", client.election("a").wait(WAIT).campaign("x").await.err().map(|error| error.kind()));
        let reentrant = client.mutex("a").wait(WAIT).reentrant(&owner);
        check("re-entrant", reentrant.lock().await.err().map(|error| error.kind()));
        let once = client.once("a").wait(WAIT);
        let ran: oarlock_core::Result<Slot<()>> = once.run("1", async |_| Ok(())).await;
        check("once", ran.err().map(|error| error.kind()));
        assert!(started.elapsed() < BOUND * 6, "six waits of {WAIT:?} took {:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_ends_in_time() {
    let world = world();
    let guard = world.spied.rwlock("a").write().await.unwrap();
    world.hooks.silent_attempts.store(true, SeqCst);
    let started = Instant::now();
    let error = end_of(guard.downgrade()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(started.elapsed() <= SECOND * 5, "it took {:?}", started.elapsed());
    // Nothing is left of it once the request has been answered or its lease is over.
    tokio::time::sleep(SECOND * 31).await;
    assert!(world.honest.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_in_time() {
    for busy in [false, true] {
        let world = world();
        world.hooks.silent_close.store(true, SeqCst);
        if busy {
            world.hooks.silent_releases.store(true, SeqCst);
            drop(world.spied.mutex("a").lock().await.unwrap());
        }
        let started = Instant::now();
        let error = end_of(world.spied.shutdown(SECOND)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(started.elapsed() <= SECOND * 2, "it took {:?}", started.elapsed());
    }
}

/// One that is not polled again does not keep its claim in the store.
#[tokio::test(start_paused = true)]
async fn a_downgrade_that_is_dropped_lets_go() {
    let world = world();
    let guard = world.spied.rwlock("a").write().await.unwrap();
    let downgrade = guard.downgrade();
    drop(downgrade);
    tokio::time::sleep(SECOND).await;
    assert!(world.honest.inspect(&name()).await.unwrap().is_free());
}
