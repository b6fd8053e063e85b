//! A request that its caller stops polling, in the middle of what other requests need: they must go on.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, Interest, Renewal, Renewed};
use oarlock_core::{Claim, Lifetime};
use oarlock_sql::mysql::{MySql, MySqlSession, Named};
use oarlock_testbed::Flavour;
use oarlock_testbed::proxy::{Held, Proxy, Seen};

use crate::store::{claim, config, grant, start};

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

async fn renews(store: &impl oarlock_core::driver::Driver, held: &Claim) {
    let renewed = answered(store.renew(&[Renewal::of(Arc::new(held.clone()))])).await.remove(0).unwrap();
    assert!(matches!(renewed, Renewed::Alive { .. }), "{renewed:?}");
}

/// The session is over, and the request that begins the next one does not go on.
async fn who_opens_a_connection_and_does_not_go_on_holds_up_no_other(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = MySql::connect(config(proxy.addr())).await.unwrap();
    let mut held = claim(1, "held");
    held.lifetime = Lifetime::Lease;
    grant(&store, &held).await.unwrap();
    let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    proxy.heal(Held::Reset).unwrap();
    answered(mailbox.changed()).await;
    // Connections are accepted, and nothing is said.
    proxy.cut();
    let before = proxy.seen().accepted;
    let (first, second) = (claim(2, "first"), claim(3, "second"));
    let mut stuck = pin!(store.attempt(&first));
    poll_until(stuck.as_mut(), &proxy, |seen| seen.accepted > before).await;
    proxy.heal(Held::Deliver).unwrap();
    assert!(answered(grant(&store, &second)).await.is_ok());
    renews(&store, &held).await;
    assert!(matches!(answered(stuck).await.unwrap(), Attempt::Granted(_)));
}

/// As many requests as there are connections do not go on to read their answers.
async fn who_does_not_read_an_answer_holds_up_no_other(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = MySql::connect(config(proxy.addr())).await.unwrap();
    let held = claim(1, "held");
    grant(&store, &held).await.unwrap();
    let claims: Vec<_> = (10..14).map(|bits| claim(bits, &format!("stuck {bits}"))).collect();
    proxy.cut();
    let before = proxy.seen().accepted;
    // Three of them need connections of their own, and each has got so far.
    let mut stuck: Vec<_> = claims.iter().map(|claim| Box::pin(store.attempt(claim))).collect();
    let mut all = pin!(poll_fn(|cx| {
        let answers = stuck.iter_mut().map(|attempt| usize::from(attempt.as_mut().poll(cx).is_ready())).sum::<usize>();
        if answers > 0 { Poll::Ready(()) } else { Poll::Pending }
    }));
    poll_until(all.as_mut(), &proxy, |seen| seen.accepted >= before + 3 && seen.held_to_server > 0).await;
    proxy.heal(Held::Deliver).unwrap();
    assert!(answered(grant(&store, &claim(2, "free"))).await.is_ok());
    renews(&store, &held).await;
    for attempt in stuck {
        assert!(matches!(answered(attempt).await.unwrap(), Attempt::Granted(_)));
    }
}

async fn who_does_not_go_on_with_a_session_lock_holds_up_no_renewal(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = MySqlSession::connect(Named::new(config(proxy.addr()))).await.unwrap();
    let (held, first) = (claim(1, "held"), claim(2, "first"));
    assert!(matches!(store.attempt(&held).await.unwrap(), Attempt::Granted(_)));
    proxy.cut();
    let mut stuck = pin!(store.attempt(&first));
    poll_until(stuck.as_mut(), &proxy, |seen| seen.held_to_server > 0).await;
    proxy.heal(Held::Deliver).unwrap();
    renews(&store, &held).await;
    assert!(matches!(answered(stuck).await.unwrap(), Attempt::Granted(_)));
}

on_both!(
    who_opens_a_connection_and_does_not_go_on_holds_up_no_other,
    who_does_not_read_an_answer_holds_up_no_other,
    who_does_not_go_on_with_a_session_lock_holds_up_no_renewal,
);
