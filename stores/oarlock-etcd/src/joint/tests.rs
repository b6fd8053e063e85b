//! Releases that carry a claim, on a real server.

use std::task::{Context, Waker};
use std::time::Duration;

use oarlock_core::driver::{Driver as _, Grant};
use oarlock_core::{Fence, ResourceName};

use super::*;
use crate::config::Config;
use crate::operations::put;
use crate::queue::FenceOffset;

const DONE: End = End::Done { memo: None };

struct TestContext {
    server: oarlock_testbed::Etcd,
    one: Etcd,
    two: Etcd,
}

async fn context() -> Option<TestContext> {
    let server = oarlock_testbed::Etcd::start_or_skip().unwrap()?;
    let config = Config::new([server.addr().to_string()]);
    let (one, two) = (Etcd::open(config.clone()).await.unwrap(), Etcd::open(config).await.unwrap());
    Some(TestContext { server, one, two })
}

fn claim(bits: u128) -> Claim {
    let mut claim = Claim::new(ClaimId::from_bits(bits), ResourceName::new("job").unwrap());
    claim.wait = true;
    claim
}

async fn granted(store: &Etcd, bits: u128) -> Grant {
    match store.attempt(&claim(bits)).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Pending(pending) => panic!("{bits} waits: {pending:?}"),
    }
}

async fn waits(store: &Etcd, bits: u128) {
    assert!(matches!(store.attempt(&claim(bits)).await.unwrap(), Attempt::Pending(_)), "{bits} is granted");
}

async fn release(store: &Etcd, bits: u128) -> Released {
    store.release(&claim(bits).resource, claim(bits).id, &DONE).await.unwrap().outcome
}

/// Both answers: of the release, and the fence of the next claim, or how many are before it. Like the engine, it
/// attempts once more if the claim is to.
async fn carry(store: &Etcd, bits: u128, next: u128) -> (Released, Result<Fence, u32>) {
    let (released, mut attempt) = carry_once(store, bits, next).await;
    if is_to_attempt_again(&attempt) {
        attempt = store.attempt(&claim(next)).await.unwrap();
    }
    let answer = match attempt {
        Attempt::Granted(grant) => Ok(grant.fence),
        Attempt::Pending(pending) => Err(pending.ahead.unwrap()),
    };
    (released, answer)
}

async fn carry_once(store: &Etcd, bits: u128, next: u128) -> (Released, Attempt) {
    let next = claim(next);
    let (released, attempt) = store.release_and_attempt(&next.resource, claim(bits).id, &DONE, &next).await;
    (released.unwrap().outcome, attempt.unwrap())
}

fn is_to_attempt_again(answer: &Attempt) -> bool {
    matches!(answer, Attempt::Pending(pending) if pending.recheck_after == Some(Duration::ZERO) && !pending.watched)
}

async fn shown(store: &Etcd) -> Vec<u128> {
    let listing = store.poll(&store.keys(&claim(1).resource)).await.unwrap();
    listing.claims.iter().map(|stored| stored.id.bits()).collect()
}

impl TestContext {
    fn requests(&self) -> f64 {
        self.server.metric("grpc_server_started_total").unwrap()
    }
}

#[tokio::test]
async fn a_release_carries_the_next_claim_in_one_request() {
    let Some(context) = context().await else { return };
    let (one, two) = (&context.one, &context.two);
    let first = granted(one, 1).await.fence;
    // The client has no second lease yet.
    let (released, second) = carry(one, 1, 2).await;
    assert!(released == Released::Released && second.as_ref().is_ok_and(|fence| *fence > first), "{second:?}");
    one.leases.freshen();
    let before = context.requests();
    let (released, third) = carry(one, 2, 3).await;
    assert_eq!((released, context.requests() - before), (Released::Released, 1.0));
    assert!(third.is_ok() && third > second, "{third:?} after {second:?}");
    // Repeated, because the answer may have been lost: nothing changes.
    assert_eq!((carry(one, 2, 3).await, shown(one).await), ((Released::NotHeld, third), vec![3]));
    // Others wait: they are before it. The first time it has no lease to wait on.
    let mut last = third.unwrap();
    for (round, requests) in [(10, None), (20, None), (30, Some(1.0))] {
        let (holder, next) = (if round == 10 { 3 } else { round - 8 }, round + 2);
        waits(two, round).await;
        waits(two, round + 1).await;
        one.leases.freshen();
        let before = context.requests();
        assert_eq!(carry(one, holder, next).await, (Released::Released, Err(2)));
        if let Some(requests) = requests {
            assert_eq!(context.requests() - before, requests);
        }
        let in_order = vec![round, round + 1, next];
        assert_eq!(shown(one).await, in_order);
        assert_eq!((carry(one, holder, next).await.0, shown(one).await), (Released::NotHeld, in_order), "one place");
        for bits in [round, round + 1] {
            let fence = granted(two, bits).await.fence;
            assert!(fence > last);
            last = fence;
            waits(one, next).await;
            assert_eq!(release(two, bits).await, Released::Released);
        }
        let fence = granted(one, next).await.fence;
        assert!(fence > last);
        last = fence;
    }
}

/// A claim that another client broke is not released, and the next claim stands behind those that came since.
#[tokio::test]
async fn a_release_of_a_claim_that_is_gone_carries_nothing_past_others() {
    let Some(context) = context().await else { return };
    let (one, two) = (&context.one, &context.two);
    granted(one, 1).await;
    carry(one, 1, 2).await.1.unwrap();
    let keys = one.keys(&claim(2).resource);
    let key = keys.claim(one.leases.get(claim(2).id).unwrap().named_after);
    two.connection.txn(Vec::new(), vec![delete(&key.key)], Vec::new()).await.unwrap();
    // Another claim has the same key now.
    let other = put(&key, Record::of(&claim(9), "another", None, true).bytes(), 0);
    two.connection.txn(Vec::new(), vec![other], Vec::new()).await.unwrap();
    assert_eq!(carry(one, 2, 3).await, (Released::NotHeld, Err(1)));
    assert_eq!(shown(one).await, [9, 3]);
}

/// The lease that the next claim was to have is not there any more: an operator has revoked it. That is no failure of
/// the release.
#[tokio::test]
async fn a_dead_idle_lease_fails_no_release() {
    let Some(context) = context().await else { return };
    let (one, two) = (&context.one, &context.two);
    granted(one, 1).await;
    for (holder, next, others) in [(1, 2, vec![]), (2, 3, vec![9])] {
        for other in &others {
            waits(two, *other).await;
        }
        // What the transaction uses: one lease to hold on, or one to wait on.
        let ttl = if others.is_empty() { claim(next).ttl } else { claim(next).waiter_ttl() };
        ready(one, claim(next).ttl).await;
        let dead = ready(one, ttl).await;
        two.connection.revoke(dead).await.unwrap();
        let (released, answer) = carry(one, holder, next).await;
        assert_eq!((released, answer.is_ok()), (Released::Released, others.is_empty()), "{answer:?}");
        assert_eq!(shown(one).await, [others, vec![next]].concat());
        assert!(!one.leases.idle().contains(&dead), "it is used again");
    }
}

/// A new idle lease.
async fn ready(store: &Etcd, ttl: Duration) -> i64 {
    let lease = store.connection.grant(seconds(ttl)).await.unwrap();
    store.leases.put(lease);
    store.leases.freshen();
    lease.id
}

/// What only the next claim needs (a lease to wait on, a listing of the queue) delays no release, and nothing is left
/// behind if that claim is withdrawn instead.
#[tokio::test]
async fn a_release_does_not_wait_for_the_requests_of_the_next_claim() {
    for (has_lease, withdraws) in [(false, false), (false, true), (true, false), (true, true)] {
        let Some(context) = context().await else { return };
        let (one, two) = (&context.one, &context.two);
        granted(one, 1).await;
        // It does not take its turn for now.
        waits(two, 9).await;
        ready(one, claim(2).ttl).await;
        if has_lease {
            ready(one, claim(2).waiter_ttl()).await;
        }
        let before = context.requests();
        let (released, answer) = carry_once(one, 1, 2).await;
        assert_eq!((released, context.requests() - before), (Released::Released, 1.0), "{has_lease}");
        assert!(is_to_attempt_again(&answer), "{answer:?}");
        assert_eq!(shown(one).await.contains(&2), has_lease);
        if withdraws {
            one.release(&claim(2).resource, claim(2).id, &End::Withdrawn).await.unwrap();
            assert_eq!(shown(one).await, [9]);
            assert!(one.leases.get(claim(2).id).is_none());
        } else {
            waits(one, 2).await;
            assert_eq!(shown(one).await, [9, 2]);
            granted(two, 9).await;
            assert_eq!(release(two, 9).await, Released::Released);
            granted(one, 2).await;
        }
    }
}

/// A release that leaves a memo, or a name whose fences were raised, takes the long way.
#[tokio::test]
async fn memos_and_raised_fences_are_heeded() {
    let Some(context) = context().await else { return };
    let one = &context.one;
    granted(one, 1).await;
    carry(one, 1, 2).await.1.unwrap();
    let (memo, next) = (End::Done { memo: Some(b"up to 7"[..].into()) }, claim(3));
    let (released, attempt) = one.release_and_attempt(&next.resource, claim(2).id, &memo, &next).await;
    let Attempt::Granted(grant) = attempt.unwrap() else { panic!("the lock is free") };
    assert_eq!((released.unwrap().outcome, grant.memo.as_deref()), (Released::Released, Some(&b"up to 7"[..])));
    let (released, attempt) = one.release_and_attempt(&next.resource, claim(3).id, &DONE, &claim(4)).await;
    let Attempt::Granted(grant) = attempt.unwrap() else { panic!("the lock is free") };
    assert_eq!((released.unwrap().outcome, grant.memo.as_deref()), (Released::Released, Some(&b"up to 7"[..])));
    let raised = put(&one.keys(&next.resource).fence_offset(), FenceOffset::bytes(1_000_000), 0);
    one.connection.txn(Vec::new(), vec![raised], Vec::new()).await.unwrap();
    let (released, fence) = carry(one, 4, 5).await;
    assert!(released == Released::Released && fence.as_ref().is_ok_and(|fence| fence.get() > 1_000_000), "{fence:?}");
}

/// The request may arrive later: neither lease of the claim that it carries is used again.
#[tokio::test]
async fn what_a_request_without_an_answer_carries_has_no_effect_later() {
    let Some(context) = context().await else { return };
    let one = &context.one;
    granted(one, 1).await;
    carry(one, 1, 2).await.1.unwrap();
    let next = claim(3);
    one.leases.freshen();
    {
        let (resource, id) = (next.resource.clone(), claim(2).id);
        let mut request = Box::pin(one.release_and_attempt(&resource, id, &DONE, &next));
        assert!(request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    let lease = one.leases.get(next.id).and_then(|entry| entry.full).unwrap();
    release(one, 3).await;
    release(one, 2).await;
    assert!(!one.leases.idle().contains(&lease.id), "a late request may still use it");
    assert!(one.connection.left(lease.id).await.unwrap().is_zero());
    assert_eq!(shown(one).await, Vec::<u128>::new());
}
