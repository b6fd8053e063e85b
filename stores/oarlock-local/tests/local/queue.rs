//! The order of queues. Hundreds of waiters are served without polling.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Interest, Renewal};
use oarlock_core::state::Ending;

use crate::{claim, granted, hint, open, pending, release, take_turn, temp, turn, waiting};

#[tokio::test]
async fn a_release_calls_only_the_next_waiter() {
    let dir = temp();
    let (a, b, c) = (open(dir.path()).await, open(dir.path()).await, open(dir.path()).await);
    let (held, first, second) = (claim("x"), waiting("x"), waiting("x"));
    granted(&a, &held).await;
    let cursor = pending(&b, &first).await.cursor;
    let mut next = turn(&b, &first, cursor).await;
    let cursor = pending(&c, &second).await.cursor;
    let mut later = turn(&c, &second, cursor).await;
    release(&a, &held).await;
    hint(&mut next).await;
    pending(&c, &second).await;
    granted(&b, &first).await;
    release(&b, &first).await;
    hint(&mut later).await;
    granted(&c, &second).await;
}

#[tokio::test]
async fn a_broken_holder_is_notified_in_its_mailbox() {
    let dir = temp();
    let (a, b) = (open(dir.path()).await, open(dir.path()).await);
    let held = claim("x");
    granted(&a, &held).await;
    let mut mailbox = a.watch(&Interest::Mailbox).await.unwrap();
    let ending = Ending::new("operator", "maintenance");
    let end = End::Broken { ending, grace: std::time::Duration::ZERO };
    b.release(&held.resource, held.id, &end).await.unwrap();
    let hint = tokio::time::timeout(crate::PATIENCE, mailbox.changed()).await.unwrap().unwrap();
    assert_eq!(hint.claim, Some(held.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_waiters_are_served_in_order() {
    const STORES: usize = 20;
    const EACH: usize = 15;
    let dir = temp();
    let first = open(dir.path()).await;
    let held = claim("x");
    granted(&first, &held).await;
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut expected = Vec::new();
    let mut tasks = Vec::new();
    let mut keepers = tokio::task::JoinSet::new();
    for _ in 0..STORES {
        let store = Arc::new(open(dir.path()).await);
        let line: Vec<_> = (0..EACH).map(|_| waiting("x")).collect();
        let (kept, places) =
            (store.clone(), line.iter().map(|claim| Renewal::of(Arc::new(claim.clone()))).collect::<Vec<_>>());
        // A waiter that is not renewed is evicted after ten seconds.
        keepers.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(2)).await;
                kept.renew(&places).await;
            }
        });
        for claim in line {
            pending(&store, &claim).await;
            expected.push(claim.id);
            let (store, order) = (store.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                take_turn(&store, &claim).await;
                order.lock().unwrap().push(claim.id);
                release(&store, &claim).await;
            }));
        }
    }
    release(&first, &held).await;
    for task in tasks {
        tokio::time::timeout(crate::PATIENCE, task).await.unwrap().unwrap();
    }
    assert_eq!(*order.lock().unwrap(), expected);
}

/// Linux drops datagrams beyond ten unread ones. Their receivers must still attempt again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_calls_reaches_every_waiter() {
    let dir = temp();
    let (a, b) = (open(dir.path()).await, Arc::new(open(dir.path()).await));
    let names: Vec<_> = (0..100).map(|n| format!("x{n}")).collect();
    let mut tasks = Vec::new();
    let mut held = Vec::new();
    for name in &names {
        let claim = claim(name);
        granted(&a, &claim).await;
        held.push(claim);
        let next = waiting(name);
        let cursor = pending(&b, &next).await.cursor;
        let mut watch = turn(&b, &next, cursor).await;
        let b = b.clone();
        tasks.push(tokio::spawn(async move {
            // A hint may be for nothing: after a loss every waiter is notified.
            while let Attempt::Pending(_) = b.attempt(&next).await.unwrap() {
                hint(&mut watch).await;
            }
        }));
    }
    for claim in &held {
        release(&a, claim).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
}
