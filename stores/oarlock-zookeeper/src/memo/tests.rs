//! What can happen between a read and the memo that depends on it.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver, End, Gone, Renewal, Renewed};
use oarlock_core::state::{Ending, Query};
use oarlock_core::{Capacity, Claim, Limit, Weight};

use super::*;
use crate::config::Config;
use crate::route::Known;

struct TestContext {
    _server: oarlock_testbed::ZooKeeper,
    one: ZooKeeper,
    two: ZooKeeper,
}

async fn context() -> Option<TestContext> {
    let server = oarlock_testbed::ZooKeeper::start_or_skip().unwrap()?;
    let config = Config::new([server.addr().to_string()]);
    let (one, two) = (ZooKeeper::open(config.clone()).await.unwrap(), ZooKeeper::open(config).await.unwrap());
    Some(TestContext { _server: server, one, two })
}

fn claim(bits: u128) -> Arc<Claim> {
    Arc::new(Claim::new(ClaimId::from_bits(bits), ResourceName::new("job").unwrap()))
}

fn ending() -> Ending {
    Ending::new("ops", "maintenance")
}

fn leaving(claim: &Arc<Claim>, memo: &[u8]) -> Renewal {
    let mut renewal = Renewal::of(claim.clone());
    renewal.memo = Some(memo.into());
    renewal
}

async fn memo(store: &ZooKeeper) -> Option<Memo> {
    let page = store.inspect(&Query::name(claim(1).resource.clone())).await.unwrap();
    page.resources.into_iter().next().and_then(|state| state.memo)
}

async fn granted(store: &ZooKeeper, claim: &Claim) {
    assert!(matches!(store.attempt(claim).await.unwrap(), Attempt::Granted(_)));
}

impl TestContext {
    /// The claim is broken, another has the lock, and has left a memo.
    async fn move_on(&self, stalled: &Claim) {
        let broken = End::Broken { ending: ending(), grace: Duration::ZERO };
        let release = self.two.release(&stalled.resource, stalled.id, &broken).await.unwrap();
        assert_eq!(release.outcome, Released::Released);
        let other = claim(2);
        granted(&self.two, &other).await;
        let answers = self.two.renew(&[leaving(&other, b"new")]).await;
        assert!(matches!(answers[..], [Ok(Renewed::Alive { .. })]), "{answers:?}");
    }
}

/// A holder stops between its read and its memo. When it goes on, another client holds the lock, and the memo is that
/// client's.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_comes_too_late_writes_nothing_and_the_claim_is_gone() {
    let Some(context) = context().await else { return };
    let stalled = claim(1);
    granted(&context.one, &stalled).await;
    let session = context.one.route.session().await.unwrap();
    let known = context.one.route.known(stalled.id);
    let Known::At(node) = known.clone() else { panic!("{known:?}") };
    let path = format!("{}/{}", session.parent(&stalled.resource), node.name);
    let answer = session.client.get_data(&path).await;
    assert!(answer.is_ok(), "nothing was seen: nothing is tested");
    context.move_on(&stalled).await;
    let late = leaving(&stalled, b"old");
    let answer = context.one.renew_one(&session, &late, &known, Some((node, path, answer))).await.unwrap();
    assert_eq!(answer, Renewed::Gone(Gone::Broken(ending())));
    assert_eq!(memo(&context.one).await.as_deref(), Some(&b"new"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_comes_too_late_writes_nothing() {
    let Some(context) = context().await else { return };
    let stalled = claim(1);
    granted(&context.one, &stalled).await;
    let session = context.one.route.session().await.unwrap();
    let seen = session.poll(&session.parent(&stalled.resource)).await.unwrap();
    assert_eq!(seen.held, 1, "nothing was seen: nothing is tested");
    context.move_on(&stalled).await;
    let late = Memo::from(&b"old"[..]);
    let release = context.one.remove_with_memo(&session, &stalled.resource, stalled.id, &late, &seen).await.unwrap();
    assert_eq!(release.outcome, Released::NotHeld);
    assert_eq!(memo(&context.one).await.as_deref(), Some(&b"new"[..]));
}

/// With all that belongs to it: a hold that was made lighter has a node more.
#[tokio::test(flavor = "multi_thread")]
async fn a_lighter_hold_leaves_its_memo_and_nothing_else() {
    let Some(context) = context().await else { return };
    let mut holder = Claim::clone(&claim(1));
    holder.capacity = Capacity::Fixed(Limit::Unlimited);
    granted(&context.one, &holder).await;
    holder.weight = Weight::ONE;
    granted(&context.one, &holder).await;
    for round in [b"first", b"again"] {
        let end = End::Done { memo: Some(round[..].into()) };
        let release = context.one.release(&holder.resource, holder.id, &end).await.unwrap();
        assert_eq!((release.outcome, release.others_waiting), (Released::Released, Some(false)));
        assert_eq!(memo(&context.two).await.as_deref(), Some(&round[..]));
        let session = context.two.route.session().await.unwrap();
        let left = session.client.list_children(&session.parent(&holder.resource)).await.unwrap();
        assert_eq!(left, [MEMO], "something is left beside the memo");
        granted(&context.one, &holder).await;
    }
}
