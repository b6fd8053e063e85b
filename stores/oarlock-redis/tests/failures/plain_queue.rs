//! The queue of our claims beside a lock that other programs take too.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Hint, Interest, Pending, Released, Watch};
use oarlock_core::{Claim, ClaimId};
use oarlock_redis::{Config, Layout, Redis};
use oarlock_testbed::Redis as Server;

use crate::context::{DONE, Raw, claim, config, fence, name, started};

/// How long a turn may go untaken.
const TURN: Duration = Duration::from_millis(250);

fn plain(server: &Server) -> Config {
    let mut config = config(server.addr());
    (config.layout, config.prefix) = (Layout::Plain, String::new());
    config
}

/// A store that is notified of the turns of its claims.
async fn listening(server: &Server) -> (Redis, Watch) {
    let store = Redis::open(plain(server)).await.unwrap();
    let mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    (store, mailbox)
}

fn waiting(id: u128) -> Claim {
    let mut claim = claim(id, "deploy");
    claim.wait = true;
    claim
}

async fn pending(store: &Redis, id: u128) -> Pending {
    match store.attempt(&waiting(id)).await.unwrap() {
        Attempt::Pending(pending) => pending,
        Attempt::Granted(grant) => panic!("{grant:?}"),
    }
}

/// A claim that waits in the queue, and the watch for its turn.
async fn queued(store: &Redis, id: u128) -> Watch {
    let pending = pending(store, id).await;
    assert!(pending.watched && pending.recheck_after.unwrap() <= TURN, "{pending:?}");
    store.watch(&Interest::Turn(Arc::new(waiting(id)), pending.cursor)).await.unwrap()
}

async fn is_told(turn: &mut Watch, id: u128) {
    let hint = tokio::time::timeout(Duration::from_secs(30), turn.changed()).await;
    assert_eq!(hint.ok().flatten(), Some(Hint::about(ClaimId::from_bits(id))));
}

async fn is_not_told(turn: &mut Watch) {
    let hint = tokio::time::timeout(Duration::from_millis(50), turn.changed()).await;
    assert!(hint.is_err(), "{hint:?}");
}

async fn release(store: &Redis, id: u128, end: &End) -> Released {
    store.release(&name("deploy"), ClaimId::from_bits(id), end).await.unwrap().outcome
}

#[tokio::test]
async fn a_release_tells_the_first_claim_in_the_queue_and_no_other() {
    let server = started!(Server::start_or_skip());
    let ((a, _a), (b, _b), (c, _c)) = (listening(&server).await, listening(&server).await, listening(&server).await);
    let mut fences = vec![fence(&a, &waiting(1)).await.unwrap()];
    let (mut second, mut third) = (queued(&b, 2).await, queued(&c, 3).await);
    assert_eq!(release(&a, 1, &DONE).await, Released::Released);
    is_told(&mut second, 2).await;
    is_not_told(&mut third).await;
    // Neither a later one nor a new one takes what is the turn of another.
    assert!(pending(&c, 3).await.recheck_after.unwrap() <= TURN);
    assert!(pending(&a, 4).await.watched);
    fences.push(fence(&b, &waiting(2)).await.expect("it is its turn"));
    assert_eq!(release(&b, 2, &DONE).await, Released::Released);
    is_told(&mut third, 3).await;
    fences.push(fence(&c, &waiting(3)).await.expect("it is its turn"));
    assert_eq!(release(&c, 3, &DONE).await, Released::Released);
    fences.push(fence(&a, &waiting(4)).await.expect("it is its turn"));
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    assert_eq!(release(&a, 4, &DONE).await, Released::Released);
    assert_eq!(Raw::to(server.addr()).await.ask::<usize>(&["EXISTS", "oarlock:beside:queue:{deploy}"]).await, 0);
}

#[tokio::test]
async fn another_program_may_be_faster_and_costs_a_claim_no_place() {
    let server = started!(Server::start_or_skip());
    let ((a, _a), (b, _b), (c, _c)) = (listening(&server).await, listening(&server).await, listening(&server).await);
    let mut raw = Raw::to(server.addr()).await;
    fence(&a, &waiting(1)).await.unwrap();
    let (mut second, mut third) = (queued(&b, 2).await, queued(&c, 3).await);
    release(&a, 1, &DONE).await;
    is_told(&mut second, 2).await;
    let taken: Option<String> = raw.ask(&["SET", "deploy", "theirs", "NX", "PX", "8000"]).await;
    assert!(taken.is_some(), "for other programs it is free");
    // Another program tells no claim when it releases: they look from time to time.
    assert!(!pending(&b, 2).await.watched && !pending(&c, 3).await.watched);
    assert_eq!(raw.ask::<usize>(&["DEL", "deploy"]).await, 1);
    fence(&a, &waiting(4)).await.expect("it is no one's turn");
    assert!(pending(&b, 2).await.watched);
    release(&a, 4, &DONE).await;
    is_told(&mut second, 2).await;
    is_not_told(&mut third).await;
}

#[tokio::test]
async fn a_claim_that_does_not_wait_takes_what_is_free() {
    let server = started!(Server::start_or_skip());
    let ((a, _a), (b, _b)) = (listening(&server).await, listening(&server).await);
    fence(&a, &waiting(1)).await.unwrap();
    let mut second = queued(&b, 2).await;
    release(&a, 1, &DONE).await;
    is_told(&mut second, 2).await;
    assert!(fence(&a, &claim(3, "deploy")).await.is_some());
    assert!(pending(&b, 2).await.watched);
    release(&a, 3, &DONE).await;
    is_told(&mut second, 2).await;
    assert!(fence(&b, &waiting(2)).await.is_some());
}

#[tokio::test]
async fn a_claim_that_does_not_react_delays_the_others_for_a_quarter_of_a_second() {
    let server = started!(Server::start_or_skip());
    let ((a, _a), (b, _b), (c, _c)) = (listening(&server).await, listening(&server).await, listening(&server).await);
    fence(&a, &waiting(1)).await.unwrap();
    let (mut second, _third) = (queued(&b, 2).await, queued(&c, 3).await);
    release(&a, 1, &DONE).await;
    is_told(&mut second, 2).await;
    tokio::time::sleep(pending(&c, 3).await.recheck_after.unwrap() + Duration::from_millis(2)).await;
    assert!(fence(&c, &waiting(3)).await.is_some(), "the turn is over");
    release(&c, 3, &DONE).await;
    // What is left of it keeps no later claim waiting.
    assert!(fence(&a, &waiting(4)).await.is_some());
}

#[tokio::test]
async fn a_claim_that_is_gone_or_gives_up_is_passed_over() {
    let server = started!(Server::start_or_skip());
    let ((a, _a), (b, _b), (c, _c)) = (listening(&server).await, listening(&server).await, listening(&server).await);
    let (d, mailbox) = listening(&server).await;
    fence(&a, &waiting(1)).await.unwrap();
    let (_gone, mut second, mut third) = (queued(&d, 5).await, queued(&b, 2).await, queued(&c, 3).await);
    d.close().await.unwrap();
    drop((d, mailbox));
    let mut raw = Raw::to(server.addr()).await;
    crate::context::until("the end of a connection", async || {
        raw.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "mail:*"]).await.len() == 3
    })
    .await;
    release(&a, 1, &DONE).await;
    is_told(&mut second, 2).await;
    assert_eq!(release(&b, 2, &End::Withdrawn).await, Released::NotHeld);
    is_told(&mut third, 3).await;
    // One that gives up while it waits leaves nothing.
    assert!(fence(&c, &waiting(3)).await.is_some());
    drop(queued(&b, 6).await);
    assert_eq!(release(&b, 6, &End::Withdrawn).await, Released::NotHeld);
    assert_eq!(raw.ask::<usize>(&["EXISTS", "oarlock:beside:queue:{deploy}"]).await, 0);
}

/// A client whose connection broke while its claim waited knows nothing of the queue.
#[tokio::test]
async fn nothing_stays_in_the_queue_when_a_connection_broke_in_between() {
    let server = started!(Server::start_or_skip());
    let mut raw = Raw::to(server.addr()).await;
    for is_granted in [true, false] {
        let ((a, _a), (b, _b)) = (listening(&server).await, listening(&server).await);
        fence(&a, &waiting(1)).await.unwrap();
        drop(queued(&b, 2).await);
        assert_eq!(raw.ask::<usize>(&["ZCARD", "oarlock:beside:queue:{deploy}"]).await, 1);
        raw.ask::<usize>(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        // Gone is the client that would be told, so no turn is given.
        crate::context::until("the end of the connections", async || {
            raw.ask::<Vec<String>>(&["PUBSUB", "CHANNELS", "mail:*"]).await.is_empty()
        })
        .await;
        if is_granted {
            assert_eq!(raw.ask::<usize>(&["DEL", "deploy"]).await, 1);
            crate::context::until("the grant", async || fence(&b, &waiting(2)).await.is_some()).await;
        } else {
            assert_eq!(release(&b, 2, &End::Withdrawn).await, Released::NotHeld);
        }
        assert_eq!(raw.ask::<usize>(&["EXISTS", "oarlock:beside:queue:{deploy}"]).await, 0);
        let (holder, id) = if is_granted { (&b, 2) } else { (&a, 1) };
        release(holder, id, &DONE).await;
    }
}

/// A process whose tasks always want the lock must not keep it from other programs.
#[tokio::test]
async fn a_release_that_carries_a_claim_leaves_the_lock_free_for_other_programs() {
    let server = started!(Server::start_or_skip());
    let ((a, _a), (b, _b)) = (listening(&server).await, listening(&server).await);
    let mut raw = Raw::to(server.addr()).await;
    fence(&a, &waiting(1)).await.unwrap();
    let mut second = queued(&b, 2).await;
    let (released, next) = a.release_and_attempt(&name("deploy"), waiting(1).id, &DONE, &waiting(3)).await;
    assert_eq!(released.unwrap().outcome, Released::Released);
    let Attempt::Pending(next) = next.unwrap() else { panic!("it is the turn of another") };
    assert!(next.watched);
    assert_eq!(raw.ask::<usize>(&["EXISTS", "deploy"]).await, 0);
    is_told(&mut second, 2).await;
    assert!(fence(&b, &waiting(2)).await.is_some());
    let mut third = a.watch(&Interest::Turn(Arc::new(waiting(3)), next.cursor)).await.unwrap();
    release(&b, 2, &DONE).await;
    is_told(&mut third, 3).await;
    assert!(fence(&a, &waiting(3)).await.is_some());
    // Alone in the queue, it is told at once.
    let (_, next) = a.release_and_attempt(&name("deploy"), waiting(3).id, &DONE, &waiting(4)).await;
    let Attempt::Pending(next) = next.unwrap() else { panic!("for a moment it is free") };
    assert_eq!(raw.ask::<usize>(&["EXISTS", "deploy"]).await, 0);
    let mut fourth = a.watch(&Interest::Turn(Arc::new(waiting(4)), next.cursor)).await.unwrap();
    is_told(&mut fourth, 4).await;
    assert!(fence(&a, &waiting(4)).await.is_some());
}
