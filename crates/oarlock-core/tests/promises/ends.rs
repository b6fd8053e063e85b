//! How a hold ends: by its guard or in the background.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use oarlock_core::driver::Released;
use oarlock_core::{Lifetime, LockEvent, Step};

use crate::spy::{SECOND, world, world_with};

#[tokio::test(start_paused = true)]
async fn a_memo_is_left_although_the_first_release_failed() {
    let world = world();
    let guard = world.spied.mutex("a").lock().await.unwrap();
    world.hooks.fail_release.store(true, SeqCst);
    assert!(guard.release_leaving(&b"slot 7"[..]).await.is_err());
    let next = world.honest.mutex("a").lock().await.unwrap();
    assert_eq!(next.memo(), Some(&b"slot 7"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_memo_is_left_although_the_release_was_dropped() {
    for polled in [false, true] {
        let world = world();
        let guard = world.spied.mutex("a").lock().await.unwrap();
        world.hooks.fail_release.store(true, SeqCst);
        let release = guard.release_leaving(&b"slot 7"[..]);
        if polled {
            let _ = tokio::time::timeout(SECOND / 100, release).await;
        } else {
            drop(release);
        }
        let next = world.honest.mutex("a").lock().await.unwrap();
        assert_eq!(next.memo(), Some(&b"slot 7"[..]), "polled: {polled}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_dropped_is_released_and_a_waiter_withdrawn() {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let world = world_with(|builder| {
        builder.observer(move |event: &LockEvent| match event.step {
            Step::Released { outcome, held_for, .. } => seen.lock().unwrap().push(Some((outcome, held_for))),
            Step::Withdrawn => seen.lock().unwrap().push(None),
            _ => {}
        })
    });
    let guard = world.spied.mutex("a").lock().await.unwrap();
    tokio::time::sleep(SECOND * 3).await;
    drop(guard);
    tokio::time::sleep(SECOND).await;
    assert_eq!(steps.lock().unwrap()[..], [Some((Released::Released, SECOND * 3))]);
    let _held = world.honest.mutex("a").lock().await.unwrap();
    let waiting = world.spied.mutex("a");
    assert!(tokio::time::timeout(SECOND, waiting.lock()).await.is_err());
    tokio::time::sleep(SECOND).await;
    assert_eq!(steps.lock().unwrap().last(), Some(&None));
}

#[tokio::test(start_paused = true)]
async fn the_token_of_what_outlives_its_client_fires_with_the_lease() {
    let world = world();
    let guard = world.spied.mutex("a").lifetime(Lifetime::Lease).ttl(SECOND * 10).lock().await.unwrap();
    let token = guard.token();
    world.spied.shutdown(SECOND).await.unwrap();
    assert!(guard.is_held(), "it lives by its lease");
    let fired = tokio::time::timeout(SECOND * 11, token.cancelled()).await;
    assert!(fired.is_ok(), "the token does not fire");
    assert!(!guard.is_held());
    tokio::time::sleep(SECOND).await;
    assert!(world.honest.mutex("a").try_lock().await.unwrap().is_some());
}
