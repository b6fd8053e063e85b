//! A claim that is the only one of its name is in the row of that name. There it counts for every other step.

use std::time::{Duration, Instant};

use oarlock_core::driver::{Attempt, Driver as _, End, Released, Renewed};
use oarlock_core::state::{Query, ResourceState};
use oarlock_core::{Claim, Fence, Lifetime};
use oarlock_sql::postgres::Postgres;
use tokio_postgres::Client;

use crate::store::{claim, config, grant, renew, start, until};

/// How many claims are in the rows of their names.
const SOLE: &str = "SELECT count(*) FROM oarlock.resource WHERE sole_id IS NOT NULL";

const CLAIMS: &str = "SELECT count(*) FROM oarlock.claim WHERE id IS NOT NULL";

async fn number(root: &Client, sql: &str) -> i64 {
    root.query_one(sql, &[]).await.unwrap().get(0)
}

async fn release(store: &Postgres, claim: &Claim) -> Released {
    store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap().outcome
}

async fn pending(store: &Postgres, claim: &Claim) -> Option<u32> {
    match store.attempt(claim).await.unwrap() {
        Attempt::Pending(pending) => pending.ahead,
        Attempt::Granted(grant) => panic!("granted while another believes: {grant:?}"),
    }
}

/// A claim that is in the row of its name.
async fn held(root: &Client, store: &Postgres, claim: &Claim) -> Fence {
    let first = self::claim(u128::MAX, claim.resource.as_str());
    let before = grant(store, &first).await.unwrap().fence;
    assert_eq!(release(store, &first).await, Released::Released);
    let fence = grant(store, claim).await.unwrap().fence;
    assert_eq!((number(root, SOLE).await, number(root, CLAIMS).await), (1, 0), "it did not take the short way");
    assert!(fence > before, "{fence} after {before}");
    fence
}

async fn state(store: &Postgres, claim: &Claim) -> ResourceState {
    store.inspect(&Query::name(claim.resource.clone())).await.unwrap().resources.remove(0)
}

#[tokio::test]
async fn others_wait_for_a_claim_in_its_row() {
    let Some((server, root)) = start().await else { return };
    let one = Postgres::connect(config(server.addr())).await.unwrap();
    let two = Postgres::connect(config(server.addr())).await.unwrap();
    let (mine, mut other) = (claim(1, "way"), claim(2, "way"));
    let fence = held(&root, &one, &mine).await;
    assert_eq!(release(&two, &other).await, Released::NotHeld, "the claim of another");
    assert_eq!(pending(&two, &other).await, Some(1));
    assert_eq!((number(&root, SOLE).await, number(&root, CLAIMS).await), (0, 1), "moved to the table");
    assert_eq!(grant(&one, &mine).await.unwrap().fence, fence, "a retry keeps its fence");
    assert!(matches!(renew(&one, &mine).await, Renewed::Alive { .. }));
    other.wait = true;
    pending(&two, &other).await;
    assert_eq!(release(&one, &mine).await, Released::Released);
    assert_eq!(pending(&one, &claim(3, "way")).await, Some(1));
    assert!(grant(&two, &other).await.unwrap().fence > fence);
    assert_eq!(release(&two, &other).await, Released::Released);
    // The table has no claims of this name any more.
    held(&root, &two, &claim(4, "way")).await;
}

#[tokio::test]
async fn a_claim_of_another_is_not_released_in_its_row() {
    let Some((server, root)) = start().await else { return };
    let one = Postgres::connect(config(server.addr())).await.unwrap();
    let mine = claim(1, "mine");
    let fence = held(&root, &one, &mine).await;
    assert_eq!(release(&one, &claim(2, "mine")).await, Released::NotHeld);
    assert_eq!(grant(&one, &mine).await.unwrap().fence, fence);
    assert_eq!(release(&one, &mine).await, Released::Released);
    assert_eq!((number(&root, SOLE).await, number(&root, CLAIMS).await), (0, 0));
}

#[tokio::test]
async fn a_claim_in_its_row_is_renewed_and_shown() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let looks = Postgres::connect(config(server.addr())).await.unwrap();
    let mut mine = claim(1, "shown");
    mine.value = Some("at home".into());
    let fence = held(&root, &store, &mine).await;
    let in_row = [state(&looks, &mine).await, looks.inspect(&Query::live()).await.unwrap().resources.remove(0)];
    assert!(matches!(renew(&store, &mine).await, Renewed::Alive { .. }));
    assert_eq!((number(&root, SOLE).await, number(&root, CLAIMS).await), (0, 1));
    let in_table = [state(&looks, &mine).await, looks.inspect(&Query::live()).await.unwrap().resources.remove(0)];
    for shown in in_row.into_iter().chain(in_table) {
        let [holder] = shown.holders.as_slice() else { panic!("{shown:?}") };
        assert_eq!((holder.id, holder.fence, holder.kind), (mine.id, Some(fence), mine.kind));
        assert_eq!((holder.value.as_deref(), &*holder.label), (Some("at home"), &*mine.label));
        assert!(holder.lease_left <= mine.ttl && holder.held_for < Duration::from_secs(60), "{holder:?}");
        assert_eq!(shown.last_fence, Some(fence));
    }
    assert_eq!(release(&store, &mine).await, Released::Released);
    assert!(state(&looks, &mine).await.holders.is_empty());
    assert!(looks.inspect(&Query::live()).await.unwrap().resources.is_empty());
}

#[tokio::test]
async fn a_lease_in_its_row_runs_out() {
    let Some((server, root)) = start().await else { return };
    let one = Postgres::connect(config(server.addr())).await.unwrap();
    let two = Postgres::connect(config(server.addr())).await.unwrap();
    let mut alone = claim(3, "alone");
    (alone.ttl, alone.lifetime) = (Duration::from_millis(300), Lifetime::Lease);
    held(&root, &one, &alone).await;
    until(&root, "SELECT count(*) FROM oarlock.resource WHERE sole_expires < clock_timestamp() AND name = 'alone'", 1)
        .await;
    assert!(state(&two, &alone).await.holders.is_empty());
    assert_eq!(release(&one, &alone).await, Released::NotHeld, "it had run out");

    let mut brief = claim(1, "brief");
    (brief.ttl, brief.lifetime) = (Duration::from_millis(700), Lifetime::Lease);
    let sent = Instant::now();
    let fence = held(&root, &one, &brief).await;
    let next = loop {
        match two.attempt(&claim(2, "brief")).await.unwrap() {
            Attempt::Granted(grant) => break grant.fence,
            Attempt::Pending(pending) => tokio::time::sleep(pending.recheck_after.unwrap()).await,
        }
    };
    assert!(sent.elapsed() >= brief.ttl, "ended early, after {:?}", sent.elapsed());
    assert!(next > fence);
    assert_eq!(release(&one, &brief).await, Released::NotHeld);
}

/// Its lease has a minute and more left.
#[tokio::test]
async fn a_dead_process_leaves_no_claim_in_a_row() {
    let Some((server, root)) = start().await else { return };
    let two = Postgres::connect(config(server.addr())).await.unwrap();
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let mut mine = claim(1, "dead");
    mine.ttl = Duration::from_secs(120);
    let fence = held(&root, &store, &mine).await;
    drop(store);
    let (began, rival) = (Instant::now(), claim(2, "dead"));
    let next = loop {
        if let Attempt::Granted(grant) = two.attempt(&rival).await.unwrap() {
            break grant.fence;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "the end of its process was not noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(next > fence);
}

/// A lease may last for days, and its name is not used meanwhile.
#[tokio::test]
async fn a_name_whose_row_has_a_claim_is_not_forgotten() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let mut long = claim(1, "long");
    (long.ttl, long.lifetime) = (Duration::from_secs(3 * 86_400), Lifetime::Lease);
    held(&root, &store, &long).await;
    let old = "UPDATE oarlock.resource SET used = used - interval '2 days', last_fence = last_fence - 2 * 86400000000";
    root.batch_execute(old).await.unwrap();
    for bits in 2..32 {
        // Each looks at ten others.
        grant(&store, &claim(bits, &format!("new {bits}"))).await.unwrap();
        assert_eq!(number(&root, "SELECT count(*) FROM oarlock.resource WHERE name = 'long'").await, 1);
    }
    pending(&store, &claim(99, "long")).await;
}
