//! A request that its caller stops polling, in the middle of what other requests need: they must go on.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, Renewal, Renewed};
use oarlock_core::state::Query;
use oarlock_sql::postgres::{Advisory, Postgres, PostgresSession};
use oarlock_testbed::PgBouncer;
use oarlock_testbed::proxy::{Held, Proxy, Seen};

use crate::store::{claim, config, grant, start, until};

/// Polls a request until the proxy has seen `enough`, and not once more.
async fn poll_until<F: Future>(mut request: Pin<&mut F>, proxy: &Proxy, enough: impl Fn(Seen) -> bool) {
    for _ in 0..3000 {
        let is_pending = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx).is_pending())).await;
        assert!(is_pending, "it was answered");
        if enough(proxy.seen()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the request did not get so far: {:?}", proxy.seen());
}

/// What others ask is answered, however late: a connection may take five seconds to open, an answer twenty.
async fn answered<T>(request: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), request).await.expect("an answer, though another does not go on")
}

async fn renews(store: &Postgres, held: &oarlock_core::Claim) {
    let renewed = answered(store.renew(&[Renewal::of(Arc::new(held.clone()))])).await.remove(0).unwrap();
    assert!(matches!(renewed, Renewed::Alive { .. }), "{renewed:?}");
}

/// Those with the liveness lock, and the others of our clients.
const END: [&str; 2] = [
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'oarlock'
        AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')",
];

#[tokio::test]
async fn who_opens_a_connection_and_does_not_go_on_holds_up_no_other() {
    let Some((server, root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    for (round, end) in END.iter().enumerate() {
        let store = Postgres::connect(config(proxy.addr())).await.unwrap();
        let mut held = claim(1, &format!("held {round}"));
        held.lifetime = oarlock_core::Lifetime::Lease;
        grant(&store, &held).await.unwrap();
        assert!(!root.query(*end, &[]).await.unwrap().is_empty());
        proxy.until(|seen| seen.open == 1).await;
        // Connections are accepted, and nothing is said.
        proxy.cut();
        let before = proxy.seen().accepted;
        let (first, second) = (claim(2, &format!("first {round}")), claim(3, &format!("second {round}")));
        let mut stuck = pin!(store.attempt(&first));
        poll_until(stuck.as_mut(), &proxy, |seen| seen.accepted > before).await;
        proxy.heal(Held::Deliver).unwrap();
        assert!(answered(grant(&store, &second)).await.is_ok());
        renews(&store, &held).await;
        assert!(matches!(answered(stuck).await.unwrap(), Attempt::Granted(_)));
        store.close().await.unwrap();
        until(&root, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oarlock'", 0).await;
    }
}

#[tokio::test]
async fn who_asks_through_a_pooler_and_does_not_go_on_holds_up_no_other() {
    let Some((server, _root)) = start().await else { return };
    let addr = server.addr();
    let pooler = tokio::task::spawn_blocking(move || PgBouncer::in_front_of_or_skip(addr, &[])).await;
    let Some(pooler) = pooler.unwrap().unwrap() else { return };
    let proxy = Proxy::start(pooler.addr()).unwrap();
    let store = Postgres::connect(config(proxy.addr())).await.unwrap();
    let held = claim(1, "held");
    grant(&store, &held).await.unwrap();
    // The request waits for its answer …
    proxy.cut();
    let (first, second, third) = (claim(2, "first"), claim(3, "second"), claim(4, "third"));
    let mut stuck = pin!(store.attempt(&first));
    poll_until(stuck.as_mut(), &proxy, |seen| seen.held_to_server > 0).await;
    proxy.heal(Held::Deliver).unwrap();
    assert!(answered(grant(&store, &second)).await.is_ok());
    renews(&store, &held).await;
    assert!(matches!(answered(stuck).await.unwrap(), Attempt::Granted(_)));
    // … or for a connection.
    proxy.refuse();
    assert!(store.attempt(&third).await.is_err());
    proxy.heal(Held::Reset).unwrap();
    proxy.cut();
    let before = proxy.seen().accepted;
    let mut stuck = pin!(store.attempt(&third));
    poll_until(stuck.as_mut(), &proxy, |seen| seen.accepted > before).await;
    proxy.heal(Held::Deliver).unwrap();
    assert!(answered(grant(&store, &second)).await.is_ok());
    renews(&store, &held).await;
    assert!(matches!(answered(stuck).await.unwrap(), Attempt::Granted(_)));
}

#[tokio::test]
async fn who_does_not_go_on_with_a_session_lock_holds_up_no_look_at_another() {
    let Some((server, _root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = PostgresSession::connect(Advisory::new(config(proxy.addr()))).await.unwrap();
    let (held, first) = (claim(1, "held"), claim(2, "first"));
    assert!(matches!(store.attempt(&held).await.unwrap(), Attempt::Granted(_)));
    proxy.cut();
    let mut stuck = pin!(store.attempt(&first));
    poll_until(stuck.as_mut(), &proxy, |seen| seen.held_to_server > 0).await;
    proxy.heal(Held::Deliver).unwrap();
    let seen = answered(store.inspect(&Query::name(claim(3, "free").resource))).await.unwrap();
    assert!(seen.resources[0].holders.is_empty());
    let seen = answered(store.inspect(&Query::name(held.resource.clone()))).await.unwrap();
    assert_eq!(seen.resources[0].holders[0].id, held.id);
    let renewed = answered(store.renew(&[Renewal::of(Arc::new(held.clone()))])).await.remove(0);
    assert!(matches!(renewed, Ok(Renewed::Alive { .. })), "{renewed:?}");
    assert!(matches!(answered(stuck).await.unwrap(), Attempt::Granted(_)));
}
