//! A release that carries the next claim of its process: one request for both.

use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Released};
use oarlock_core::state::{Query, Waiters};
use oarlock_core::{Claim, ClaimId, ResourceName};

use super::context::{DONE, claim, context, granted, name, pending, told};

/// A process whose next task waits already sends both as one request.
#[tokio::test]
async fn a_release_carries_the_next_claim() {
    let mut context = context!();
    let ((one, _one), (other, mut mailbox)) = (context.listening().await, context.listening().await);
    let carry = async |id: u128, next: u128| {
        let (released, attempt) = one.release_and_attempt(&name(), ClaimId::from_bits(id), &DONE, &claim(next)).await;
        (released.unwrap().outcome, attempt.unwrap())
    };
    // The holder, and those who wait, in order.
    let shown = async || {
        let page = one.inspect(&Query::name(name())).await.unwrap();
        let Waiters::Listed(waiters) = &page.resources[0].waiters else { panic!("{page:?}") };
        let holders = page.resources[0].holders.iter().map(|holder| holder.id);
        holders.chain(waiters.iter().map(|waiter| waiter.id)).map(ClaimId::bits).collect::<Vec<_>>()
    };
    let first = granted(&one, &claim(1)).await;
    // No claim waits: it is granted in the same step. The server learns the script by the first call.
    let (released, Attempt::Granted(second)) = carry(1, 2).await else { panic!("the lock is free") };
    assert!(released == Released::Released && second.fence > first.fence);
    let before = context.calls().await;
    let (released, Attempt::Granted(third)) = carry(2, 3).await else { panic!("the lock is free") };
    assert_eq!((released, context.calls().await - before), (Released::Released, 1));
    assert!(third.fence > second.fence && third.lease.ttl == claim(3).ttl);
    assert_eq!(shown().await, [3]);
    // Repeated, because the answer may have been lost: nothing changes.
    let (released, Attempt::Granted(again)) = carry(2, 3).await else { panic!("it holds") };
    assert_eq!((released, again.fence, shown().await), (Released::NotHeld, third.fence, vec![3]));
    // Another claim waits: it is handed the lock, and the next one queues behind it, and behind one more.
    let mut last = third.fence;
    for round in [10, 20, 30] {
        let (holder, next) = (if round == 10 { 3 } else { round - 8 }, round + 2);
        assert!(pending(&other, &claim(round)).await.watched);
        let more = round == 30;
        if more {
            assert!(pending(&other, &claim(round + 1)).await.watched);
        }
        let (released, Attempt::Pending(answer)) = carry(holder, next).await else { panic!("another is first") };
        let ahead = if more { 2 } else { 1 };
        assert_eq!((released, answer.ahead, answer.watched), (Released::Released, Some(ahead), true));
        let ids = if more { vec![round, round + 1, next] } else { vec![round, next] };
        assert_eq!(shown().await, ids);
        let (released, Attempt::Pending(answer)) = carry(holder, next).await else { panic!("another holds") };
        assert_eq!((released, answer.ahead, shown().await), (Released::NotHeld, Some(ahead), ids), "it has one place");
        for id in [round, round + 1].into_iter().take(if more { 2 } else { 1 }) {
            assert_eq!(told(&mut mailbox).await, Some(claim(id).id));
            let grant = granted(&other, &claim(id)).await;
            assert!(grant.fence > last);
            last = grant.fence;
            assert_eq!(other.release(&name(), claim(id).id, &DONE).await.unwrap().outcome, Released::Released);
        }
        let grant = granted(&one, &claim(next)).await;
        assert!(grant.fence > last && shown().await == [next]);
        last = grant.fence;
    }
}

/// What the short way of such a request does not know goes the long way.
#[tokio::test]
async fn a_release_that_carries_a_claim_leaves_memos_and_passes_dead_waiters_over() {
    let context = context!();
    let ((one, _one), (dead, mailbox)) = (context.listening().await, context.listening().await);
    granted(&one, &claim(1)).await;
    let memo = End::Done { memo: Some(b"up to 7"[..].into()) };
    let (released, attempt) = one.release_and_attempt(&name(), claim(1).id, &memo, &claim(2)).await;
    let Attempt::Granted(grant) = attempt.unwrap() else { panic!("the lock is free") };
    assert_eq!((released.unwrap().outcome, grant.memo.as_deref()), (Released::Released, Some(&b"up to 7"[..])));
    let (other, _other) = context.listening().await;
    granted(&other, &elsewhere(1)).await;
    assert!(dead.attempt(&elsewhere(2)).await.is_ok());
    let listeners = context.listeners().await;
    dead.close().await.unwrap();
    drop((dead, mailbox));
    let closed = async {
        while context.listeners().await == listeners {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), closed).await.expect("the connection has ended");
    let (released, attempt) =
        other.release_and_attempt(&elsewhere(1).resource, elsewhere(1).id, &DONE, &elsewhere(3)).await;
    assert_eq!(released.unwrap().outcome, Released::Released);
    assert!(matches!(attempt.unwrap(), Attempt::Granted(_)), "the claim before it is dead");
}

fn elsewhere(id: u128) -> Claim {
    let mut claim = claim(id);
    claim.resource = ResourceName::new("elsewhere").unwrap();
    claim
}
