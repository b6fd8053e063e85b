//! What a client does when its connection, or the server, is lost; how many connections it has.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Cursor, Driver as _, End, Hint, Interest, Renewal};
use oarlock_core::state::{Ending, Query};
use oarlock_core::{Applied, ErrorKind, Locks, Retry, Runtime};
use oarlock_redis::Redis;
use oarlock_testbed::proxy::{Held, Then};
use redis::Value;

use super::context::{DONE, claim, context, deploy, fence};

#[tokio::test]
async fn a_lost_reply_is_unknown_and_the_repeated_attempt_has_the_same_fence() {
    let context = context!();
    let (store, proxy) = context.through_proxy(Duration::from_secs(20)).await;
    let dropped = proxy.drop_next_reply(Then::Close);
    let error = store.attempt(&claim(1)).await.unwrap_err();
    assert!(dropped.wait().await.is_some());
    assert_eq!(
        (error.kind(), error.applied(), error.retry()),
        (ErrorKind::Unreachable, Applied::Unknown, Retry::Later)
    );
    let seen = context.open().await.inspect(&Query::name(deploy())).await.unwrap();
    let granted = seen.resources[0].holders[0].fence.unwrap().get();
    assert_eq!(fence(&store, &claim(1)).await, Some(granted), "a new connection, the same place");
    store.release(&deploy(), claim(1).id, &DONE).await.unwrap();
}

#[tokio::test]
async fn a_lost_reply_of_a_release_or_a_renewal_can_be_repeated() {
    let context = context!();
    let (store, proxy) = context.through_proxy(Duration::from_secs(20)).await;
    let first = fence(&store, &claim(1)).await;
    proxy.drop_next_reply(Then::Close);
    let renewal = Renewal::of(Arc::new(claim(1)));
    assert!(store.renew(std::slice::from_ref(&renewal)).await[0].is_err());
    assert!(store.renew(&[renewal]).await[0].is_ok());
    assert_eq!(fence(&store, &claim(1)).await, first);
    proxy.drop_next_reply(Then::Close);
    assert!(store.release(&deploy(), claim(1).id, &DONE).await.is_err());
    store.release(&deploy(), claim(1).id, &DONE).await.unwrap();
    assert!(fence(&store, &claim(2)).await > first);
}

#[tokio::test]
async fn an_engine_rides_over_lost_replies_and_resets() {
    let context = context!();
    let (store, proxy) = context.through_proxy(Duration::from_secs(20)).await;
    let client = Locks::builder(store).ttl(Duration::from_secs(5)).op_timeout(Duration::from_secs(1)).build().unwrap();
    proxy.drop_next_reply(Then::Close);
    let guard = client.mutex("deploy").lock().await.unwrap();
    proxy.cut();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    proxy.heal(Held::Reset).unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    guard.release().await.unwrap();
}

/// The connection was lost, and the next request opens another: on the engine's thread, and not on a runtime that is
/// then blocked for three leases.
#[test]
fn a_connection_made_anew_lives_where_the_engine_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut context = context!();
        let (runtime, config) = (Runtime::own_thread().unwrap(), context.config());
        let store = runtime.run(Redis::open(config)).await.unwrap().unwrap();
        let ttl = Duration::from_secs(2);
        let client = Locks::builder(store).runtime(runtime).ttl(ttl).build().unwrap();
        let _: Value = context.ask(&["CLIENT", "KILL", "SKIPME", "yes"]).await;
        let guard = client.mutex("deploy").lock().await.unwrap();
        std::thread::sleep(ttl * 3);
        assert!(guard.is_held(), "{:?}", guard.loss());
        guard.release().await.unwrap();
    });
}

#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let context = context!();
    let (store, proxy) = context.through_proxy(Duration::from_secs(2)).await;
    let _watch = store.watch(&Interest::Mailbox).await.unwrap();
    let dropped = proxy.drop_next_reply(Then::Silence);
    let error = store.attempt(&claim(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::Unknown));
    assert!(dropped.wait().await.is_some());
    assert!(fence(&store, &claim(1)).await.is_some());
    assert_eq!(proxy.seen().accepted, 2, "the silent one, and one more");
}

#[tokio::test]
async fn a_connection_that_ended_while_idle_costs_no_request() {
    let mut context = context!();
    let store = context.open().await;
    let mut watch = store.watch(&Interest::Mailbox).await.unwrap();
    for _ in 0..2 {
        let _: Value = context.ask(&["CLIENT", "KILL", "SKIPME", "yes"]).await;
        while watch.changed().await.is_some() {}
        assert!(fence(&store, &claim(1)).await.is_some());
        watch = store.watch(&Interest::Mailbox).await.unwrap();
    }
}

#[tokio::test]
async fn watches_end_with_their_connection_and_are_armed_anew() {
    let mut context = context!();
    let store = context.open().await;
    let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    let mut turn = store.watch(&Interest::Turn(Arc::new(claim(1)), Cursor::default())).await.unwrap();
    let _: Value = context.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    assert_eq!((mailbox.changed().await, turn.changed().await), (None, None), "watches end with their connection");
    let mut again = store.watch(&Interest::Mailbox).await.unwrap();
    fence(&store, &claim(1)).await;
    let ending = Ending::new("ops", "stuck");
    let broken = End::Broken { ending, grace: Duration::ZERO };
    store.release(&deploy(), claim(1).id, &broken).await.unwrap();
    let hint = tokio::time::timeout(Duration::from_secs(20), again.changed()).await.expect("a hint");
    assert_eq!(hint, Some(Hint::about(claim(1).id)), "its holder is told");
}

#[tokio::test]
async fn requests_fail_while_the_server_is_away_and_work_when_it_is_back() {
    let context = context!();
    let store = context.open().await;
    let first = fence(&store, &claim(1)).await;
    context.server.kill().unwrap();
    while store.attempt(&claim(1)).await.is_err_and(|error| error.applied() == Applied::Unknown) {}
    let error = store.attempt(&claim(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.applied(), error.retry()), (ErrorKind::Unreachable, Applied::No, Retry::Later));
    context.server.restart().unwrap();
    assert_eq!(fence(&store, &claim(1)).await, first);
}

#[tokio::test]
async fn one_connection_however_many_locks() {
    let mut context = context!();
    let client = Locks::over(context.open().await).unwrap();
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(client.mutex(format!("job/{number}")).lock().await.unwrap());
    }
    let _watch = client.watch(&deploy()).await.unwrap();
    assert_eq!(context.connections().await, 1, "for requests and news");
    client.shutdown(Duration::from_secs(1)).await.unwrap();
    drop((guards, client));
    while context.connections().await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn channels_without_a_watch_are_unsubscribed() {
    let mut context = context!();
    let store = context.open().await;
    drop(store.watch(&Interest::Resource(deploy())).await.unwrap());
    let _mail = store.watch(&Interest::Mailbox).await.unwrap();
    let channels: Vec<String> = context.ask(&["PUBSUB", "CHANNELS"]).await;
    assert!(channels.len() == 1 && channels[0].starts_with("oarlock:mail:"), "{channels:?}");
}
