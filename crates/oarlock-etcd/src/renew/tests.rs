//! What can happen between the look of a renewal and its memo.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver, End, Released};
use oarlock_core::state::Query;
use oarlock_core::{Claim, ResourceName};

use super::*;
use crate::config::Config;

fn claim(bits: u128) -> Arc<Claim> {
    Arc::new(Claim::new(ClaimId::from_bits(bits), ResourceName::new("job").unwrap()))
}

fn leaving(claim: &Arc<Claim>, memo: &[u8]) -> Renewal {
    let mut renewal = Renewal::of(claim.clone());
    renewal.memo = Some(memo.into());
    renewal
}

async fn memo(store: &Etcd) -> Option<Memo> {
    let page = store.inspect(&Query::name(claim(1).resource.clone())).await.unwrap();
    page.resources.into_iter().next().and_then(|state| state.memo)
}

async fn granted(store: &Etcd, claim: &Claim) {
    assert!(matches!(store.attempt(claim).await.unwrap(), Attempt::Granted(_)));
}

/// A holder stops between its look and its memo. When it goes on the lock is another's, and so is the memo.
#[tokio::test]
async fn a_memo_that_comes_too_late_is_not_written_and_the_claim_is_gone() {
    let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
    let config = Config::new([server.addr().to_string()]);
    let (one, two) = (Etcd::open(config.clone()).await.unwrap(), Etcd::open(config).await.unwrap());
    let (stalled, other) = (claim(1), claim(2));
    granted(&one, &stalled).await;
    let late = leaving(&stalled, b"old");
    let entry = one.leases.get(stalled.id);
    let seen = one.find(std::slice::from_ref(&late)).await.pop().unwrap().unwrap();
    assert!(seen.0.is_some(), "nothing was seen: nothing is tested");

    let ending = Ending { by: "ops".into(), why: "maintenance".into() };
    let broken = End::Broken { ending: ending.clone(), grace: Duration::ZERO };
    let release = two.release(&stalled.resource, stalled.id, &broken).await.unwrap();
    assert_eq!(release.outcome, Released::Released);
    granted(&two, &other).await;
    let answers = two.renew(&[leaving(&other, b"new")]).await;
    assert!(matches!(answers[..], [Ok(Renewed::Alive { .. })]), "{answers:?}");

    let answer = one.renew_one(&late, entry.clone(), entry, seen).await.unwrap();
    assert_eq!(answer, Renewed::Gone(Gone::Broken(ending)));
    assert_eq!(memo(&one).await.as_deref(), Some(&b"new"[..]));
    assert!(one.leases.get(stalled.id).is_none(), "something is kept for a claim that is gone");
}
