//! What can happen between the steps of a renewal.

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

/// A holder stops between its read and its memo. When it goes on, another client holds the lock, and the memo is that
/// client's.
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

    let ending = Ending::new("ops", "maintenance");
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

/// A new leader starts all leases anew, and knows nothing of what its predecessor said about them later. A single
/// member that is restarted elects itself again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_kept_alive_in_an_earlier_term_is_not_believed() {
    let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
    let store = Etcd::open(Config::new([server.addr().to_string()])).await.unwrap();
    let (mut held, mut fresh) = (Claim::clone(&claim(1)), Claim::clone(&claim(2)));
    fresh.resource = ResourceName::new("beside").unwrap();
    // So long that a lease is fresh until the end of the test.
    (held.ttl, fresh.ttl) = (Duration::from_secs(3600), Duration::from_secs(3600));
    granted(&store, &held).await;
    let renewal = Renewal::of(Arc::new(held.clone()));
    let find = async || store.find(std::slice::from_ref(&renewal)).await.pop().unwrap();

    let before = find().await.unwrap();
    let (entry, idle) = (store.leases.get(held.id), store.connection.grant(3600).await.unwrap());
    let mut kept = entry.clone();
    let (from, lives) =
        store.connection.keep_alive(vec![entry.as_ref().unwrap().full.unwrap().id, idle.id]).await.unwrap();
    kept.as_mut().unwrap().extend(from, &lives);
    let ttl = lives[&idle.id].ttl;
    store.leases.put(crate::lease::Leased { from, ttl, term: Some(lives[&idle.id].term), ..idle });
    let early = store.renew_one(&renewal, entry.clone(), kept.clone(), before).await;
    assert!(early.is_err(), "what was seen earlier cannot vouch for it: {early:?}");
    let answer = store.renew_one(&renewal, entry.clone(), kept.clone(), find().await.unwrap()).await.unwrap();
    let lease = Lease::sent_at(from, ttl);
    assert_eq!(
        answer,
        Renewed::Alive {
            lease,
            fence: find().await.unwrap().0.unwrap().fence().map(oarlock_core::Fence::new),
            ending: None
        }
    );

    server.kill().unwrap();
    server.restart().unwrap();
    let patience = std::time::Instant::now() + Duration::from_secs(30);
    let after = loop {
        match find().await {
            Ok(found) => break found,
            Err(error) => assert!(std::time::Instant::now() < patience, "{error}"),
        }
    };
    let late = store.renew_one(&renewal, entry.clone(), kept, after).await;
    assert!(late.is_err(), "{late:?}");
    assert!(matches!(store.renew(std::slice::from_ref(&renewal)).await[..], [Ok(Renewed::Alive { .. })]));

    // The same for a lease from the pool: the lock is taken, but nothing is believed before it was kept alive again.
    let error = store.attempt(&fresh).await.unwrap_err();
    assert_eq!(error.applied(), oarlock_core::Applied::Unknown);
    let Attempt::Granted(grant) = store.attempt(&fresh).await.unwrap() else { panic!("it is free") };
    assert!(grant.lease.from > Some(from));
    assert_eq!(store.leases.get(fresh.id).unwrap().full.map(|lease| lease.id), Some(idle.id));
}
