//! What observers cost, and what they are told.

use std::sync::atomic::Ordering::SeqCst;

use crate::spy::{SECOND, world};

#[tokio::test(start_paused = true)]
async fn an_observer_that_comes_back_late_polls_once() {
    let world = world();
    let mut leaders = world.spied.election("a").observe();
    assert!(leaders.changed().await.unwrap().is_none());
    for _ in 0..10_000 {
        world.honest.mutex("a").lock().await.unwrap().release().await.unwrap();
    }
    let before = world.hooks.inspects.load(SeqCst);
    let unchanged = tokio::time::timeout(SECOND, leaders.changed()).await;
    assert!(unchanged.is_err(), "a mutex is no leader");
    let requests = world.hooks.inspects.load(SeqCst) - before;
    assert!((1..=3).contains(&requests), "{requests} requests to catch up with 10,000 holds");
}
