//! Killed and stopped processes on the embedded store.

use std::path::Path;
use std::time::Duration;

use oarlock_testbed::processes::{
    a_killed_waiter_is_skipped, a_stopped_holder_loses, after_a_killed_holder_the_next_waiter_holds,
    stopped_waiters_are_skipped,
};

const SOON: Duration = Duration::from_secs(3);

fn url(dir: &Path) -> String {
    format!("local:{}", dir.display())
}

/// The lease is far away: only the death itself can be what frees it.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn after_a_killed_holder_the_next_waiter_holds_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut times = Vec::new();
    for round in 0..5 {
        let name = format!("job {round}");
        times.push(after_a_killed_holder_the_next_waiter_holds(&url(dir.path()), &name, LONG, SOON).await.unwrap());
    }
    println!("from SIGKILL to the next grant: {times:?}");
}

#[tokio::test]
async fn a_killed_waiter_is_skipped_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let took = a_killed_waiter_is_skipped(&url(dir.path()), "job", LONG, SOON).await.unwrap();
    println!("from the release to the grant behind a killed waiter: {took:?}");
}

#[tokio::test]
async fn a_stopped_holder_loses_after_its_lease() {
    let dir = tempfile::tempdir().unwrap();
    let ttl = Duration::from_secs(3);
    for round in 0..2 {
        let name = format!("job {round}");
        let stopped = a_stopped_holder_loses(&url(dir.path()), &name, ttl, SOON).await.unwrap();
        println!("a lease of {ttl:?}: {stopped:?}");
        assert!(stopped.taken_over_after >= ttl / 2, "taken over before the lease could end");
    }
}

/// A turn lasts two seconds; a waiter that is silent for ten loses its place.
const EIGHT_TURNS: Duration = Duration::from_secs(16);

#[tokio::test]
async fn eight_stopped_waiters_cost_a_turn_each_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let took = stopped_waiters_are_skipped(&url(dir.path()), "job", LONG, 8, EIGHT_TURNS + SOON).await.unwrap();
    println!("local, from the release to the grant behind eight stopped waiters: {took:?}");
    let Some(server) = oarlock_testbed::Redis::start_or_skip().unwrap() else { return };
    let took = stopped_waiters_are_skipped(&server.url(), "job", LONG, 8, EIGHT_TURNS + SOON).await.unwrap();
    println!("redis, from the release to the grant behind eight stopped waiters: {took:?}");
}
