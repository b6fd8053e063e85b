//! The short way: one statement takes a name that is free, and one releases it. What it leaves in the row of the name
//! counts for every other step.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_core::driver::{Attempt, Driver as _, End, Released, Renewed};
use oarlock_core::state::{Query, ResourceState};
use oarlock_core::{Capacity, Claim, ErrorKind, Fence, Lifetime, Limit};
use oarlock_sql::mysql::MySql;
use oarlock_testbed::Flavour;

use crate::store::{claim, config, counted, grant, pending, renew, start, until};

const DONE: End = End::Done { memo: None };

/// How many claims are in the rows of their names.
const SOLE: &str = "SELECT COUNT(*) FROM oarlock_resource WHERE sole_expires > 0";

const CLAIMS: &str = "SELECT COUNT(*) FROM oarlock_claim";

async fn number(root: &mut Conn, sql: &str) -> i64 {
    root.query_first(sql).await.unwrap().unwrap()
}

async fn release(store: &MySql, claim: &Claim) -> Released {
    store.release(&claim.resource, claim.id, &DONE).await.unwrap().outcome
}

/// Uses a name once, so that this client knows that it is free. Returns the fence.
async fn use_once(store: &MySql, name: &str) -> Fence {
    let first = claim(u128::MAX, name);
    let fence = grant(store, &first).await.unwrap().fence;
    assert_eq!(release(store, &first).await, Released::Released);
    fence
}

/// A claim that is in the row of its name.
async fn held(root: &mut Conn, store: &MySql, claim: &Claim) -> Fence {
    let before = use_once(store, claim.resource.as_str()).await;
    let fence = grant(store, claim).await.unwrap().fence;
    assert_eq!((number(root, SOLE).await, number(root, CLAIMS).await), (1, 0), "it did not take the short way");
    assert!(fence > before, "{fence} after {before}");
    fence
}

async fn state(store: &MySql, claim: &Claim) -> ResourceState {
    store.inspect(&Query::name(claim.resource.clone())).await.unwrap().resources.remove(0)
}

async fn a_pair_is_two_statements(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let mut last = use_once(&store, "pair").await;
    let before = counted(&mut root, "Com_stmt_execute").await;
    let updates = counted(&mut root, "Com_update").await;
    for bits in 1..=10 {
        let claim = claim(bits, "pair");
        let fence = grant(&store, &claim).await.unwrap().fence;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        assert_eq!(release(&store, &claim).await, Released::Released);
        assert_eq!(release(&store, &claim).await, Released::NotHeld, "twice");
    }
    // The second release is the only one that calls a procedure.
    assert_eq!(counted(&mut root, "Com_stmt_execute").await - before, 30);
    assert_eq!(counted(&mut root, "Com_update").await - updates, 20);
}

async fn others_wait_for_a_claim_in_its_row(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let one = MySql::connect(config(server.addr())).await.unwrap();
    let two = MySql::connect(config(server.addr())).await.unwrap();
    use_once(&two, "way").await;
    let (mine, mut other) = (claim(1, "way"), claim(2, "way"));
    let fence = held(&mut root, &one, &mine).await;
    // Both clients believe that the name is free.
    assert_eq!(pending(&two, &other).await.ahead, Some(1));
    assert_eq!((number(&mut root, SOLE).await, number(&mut root, CLAIMS).await), (0, 1), "moved to the table");
    assert_eq!(grant(&one, &mine).await.unwrap().fence, fence, "a retry keeps its fence");
    assert!(matches!(renew(&one, &mine).await.unwrap(), Renewed::Alive { .. }));
    other.wait = true;
    pending(&two, &other).await;
    assert!(matches!(renew(&two, &mine).await.unwrap(), Renewed::Gone(_)), "of another session");
    assert_eq!(release(&one, &mine).await, Released::Released);
    // `one` saw the waiter, which goes first.
    assert_eq!(pending(&one, &claim(3, "way")).await.ahead, Some(1));
    assert!(grant(&two, &other).await.unwrap().fence > fence);
    assert_eq!(release(&two, &other).await, Released::Released);
    // The table has no claims of this name any more.
    held(&mut root, &two, &claim(4, "way")).await;
}

/// Whichever way the second attempt takes.
async fn an_attempt_that_is_repeated_keeps_its_fence(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let other = MySql::connect(config(server.addr())).await.unwrap();
    let mut mine = claim(1, "again");
    mine.lifetime = Lifetime::Lease;
    let fence = held(&mut root, &store, &mine).await;
    assert_eq!(grant(&store, &mine).await.unwrap().fence, fence);
    assert_eq!(grant(&other, &mine).await.unwrap().fence, fence);
    assert_eq!(release(&other, &mine).await, Released::Released);
    assert_eq!((number(&mut root, SOLE).await, number(&mut root, CLAIMS).await), (0, 0));
}

async fn a_claim_in_its_row_is_renewed_and_shown(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let looks = MySql::connect(config(server.addr())).await.unwrap();
    let mut mine = claim(1, "shown");
    let limit = |units| Limit::Units(NonZeroU32::new(units).unwrap());
    (mine.value, mine.capacity) = (Some("at home".into()), Capacity::Fixed(limit(3)));
    let fence = held(&mut root, &store, &mine).await;
    let in_row = [state(&looks, &mine).await, looks.inspect(&Query::live()).await.unwrap().resources.remove(0)];
    assert!(matches!(renew(&store, &mine).await.unwrap(), Renewed::Alive { .. }));
    assert_eq!((number(&mut root, SOLE).await, number(&mut root, CLAIMS).await), (0, 1));
    let in_table = [state(&looks, &mine).await, looks.inspect(&Query::live()).await.unwrap().resources.remove(0)];
    for shown in in_row.into_iter().chain(in_table) {
        let [holder] = shown.holders.as_slice() else { panic!("{shown:?}") };
        assert_eq!((holder.id, holder.fence, holder.kind), (mine.id, Some(fence), mine.kind));
        assert_eq!((holder.value.as_deref(), &*holder.label), (Some("at home"), &*mine.label));
        assert!(holder.lease_left <= mine.ttl && holder.held_for < Duration::from_secs(60), "{holder:?}");
        assert_eq!((shown.capacity, shown.last_fence), (Some(limit(3)), Some(fence)));
    }
    assert_eq!(release(&store, &mine).await, Released::Released);
    // The capacity ends with the last claim, by the short way too.
    assert!(grant(&store, &mine).await.is_ok());
    assert_eq!(number(&mut root, SOLE).await, 1);
    assert_eq!(release(&store, &mine).await, Released::Released);
    let free = state(&looks, &mine).await;
    assert_eq!((free.holders.len(), free.capacity), (0, None), "{free:?}");
    assert!(looks.inspect(&Query::live()).await.unwrap().resources.is_empty());
    let mut other = claim(2, "shown");
    other.capacity = Capacity::Fixed(limit(5));
    assert!(grant(&looks, &other).await.is_ok());
}

async fn a_lease_in_its_row_runs_out(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let one = MySql::connect(config(server.addr())).await.unwrap();
    let two = MySql::connect(config(server.addr())).await.unwrap();
    let mut brief = claim(1, "brief");
    (brief.ttl, brief.lifetime) = (Duration::from_millis(700), Lifetime::Lease);
    let sent = Instant::now();
    let fence = held(&mut root, &one, &brief).await;
    let next = loop {
        match two.attempt(&claim(2, "brief")).await.unwrap() {
            Attempt::Granted(grant) => break grant.fence,
            Attempt::Pending(pending) => tokio::time::sleep(pending.recheck_after.unwrap()).await,
        }
    };
    assert!(sent.elapsed() >= brief.ttl, "ended early, after {:?}", sent.elapsed());
    assert!(next > fence);
    assert_eq!(release(&two, &claim(2, "brief")).await, Released::Released);
    // Another claim is in that row now.
    let last = held(&mut root, &two, &claim(4, "brief")).await;
    assert_eq!(release(&one, &brief).await, Released::NotHeld);
    assert_eq!(grant(&two, &claim(4, "brief")).await.unwrap().fence, last);
    assert_eq!(release(&two, &claim(4, "brief")).await, Released::Released);

    let mut alone = claim(3, "alone");
    (alone.ttl, alone.lifetime) = (Duration::from_millis(300), Lifetime::Lease);
    held(&mut root, &one, &alone).await;
    until(&mut root, "SELECT COUNT(*) FROM oarlock_resource WHERE sole_expires > 0 AND sole_expires < UNIX_TIMESTAMP(NOW(6)) * 1000000", 1)
        .await;
    assert!(state(&two, &alone).await.holders.is_empty());
    assert_eq!(release(&one, &alone).await, Released::NotHeld, "it had run out");
}

async fn a_memo_is_not_overlooked(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let one = MySql::connect(config(server.addr())).await.unwrap();
    let two = MySql::connect(config(server.addr())).await.unwrap();
    let last = held(&mut root, &one, &claim(1, "memo")).await;
    assert_eq!(release(&one, &claim(1, "memo")).await, Released::Released);
    let other = claim(2, "memo");
    grant(&two, &other).await.unwrap();
    let end = End::Done { memo: Some(b"seen"[..].into()) };
    two.release(&other.resource, other.id, &end).await.unwrap();
    let granted = grant(&one, &claim(3, "memo")).await.unwrap();
    assert_eq!(granted.memo.as_deref(), Some(&b"seen"[..]));
    assert!(granted.fence > last);
}

/// The short way gives no memo: it is not tried in vain each time.
async fn a_name_with_a_memo_costs_no_statement_more(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let first = claim(1, "memo");
    grant(&store, &first).await.unwrap();
    store.release(&first.resource, first.id, &End::Done { memo: Some(b"seen"[..].into()) }).await.unwrap();
    let before = counted(&mut root, "Com_stmt_execute").await;
    for bits in 2..=6 {
        let claim = claim(bits, "memo");
        assert_eq!(grant(&store, &claim).await.unwrap().memo.as_deref(), Some(&b"seen"[..]));
        assert_eq!(release(&store, &claim).await, Released::Released);
    }
    assert_eq!(counted(&mut root, "Com_stmt_execute").await - before, 10);
}

async fn a_row_of_a_newer_version_is_refused(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let mine = claim(1, "newer");
    held(&mut root, &store, &mine).await;
    root.query_drop("UPDATE oarlock_resource SET format = 3").await.unwrap();
    let error = store.release(&mine.resource, mine.id, &DONE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NewerFormat, "{error}");
    root.query_drop("UPDATE oarlock_resource SET sole_expires = 0").await.unwrap();
    let error = store.attempt(&mine).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NewerFormat, "{error}");
}

async fn fences_end_at_two_to_the_53rd(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    use_once(&store, "last").await;
    root.query_drop("UPDATE oarlock_resource SET last_fence = 9007199254740990").await.unwrap();
    let last = claim(1, "last");
    assert_eq!(grant(&store, &last).await.unwrap().fence.get(), (1 << 53) - 1);
    assert_eq!(release(&store, &last).await, Released::Released);
    let error = store.attempt(&claim(2, "last")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FenceExhausted, "{error}");
}

/// Its lease has a minute and more left.
async fn a_dead_process_leaves_no_claim_in_a_row(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let two = MySql::connect(config(server.addr())).await.unwrap();
    for closes in [false, true] {
        let store = MySql::connect(config(server.addr())).await.unwrap();
        let mut mine = claim(1, if closes { "closed" } else { "dead" });
        mine.ttl = Duration::from_secs(120);
        let fence = held(&mut root, &store, &mine).await;
        if closes {
            store.close().await.unwrap();
        }
        drop(store);
        let (began, rival) = (Instant::now(), claim(2, mine.resource.as_str()));
        let next = loop {
            if let Attempt::Granted(grant) = two.attempt(&rival).await.unwrap() {
                break grant.fence;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "the end of its process was not noticed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(next > fence);
        assert_eq!(release(&two, &rival).await, Released::Released);
    }
}

/// A waiter of another process waits for that lock.
async fn the_wake_up_lock_is_held_as_long_as_the_claim(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let mine = claim(1, "wake");
    let is_free = format!("SELECT IS_FREE_LOCK('oarlock_w_{}')", mine.id);
    for _ in 0..3 {
        held(&mut root, &store, &mine).await;
        assert_eq!(number(&mut root, &is_free).await, 0);
        assert_eq!(release(&store, &mine).await, Released::Released);
        assert_eq!(number(&mut root, &is_free).await, 1);
    }
}

/// A lease may last for days, and its name is not used meanwhile.
async fn a_name_whose_row_has_a_claim_is_not_forgotten(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let mut long = claim(1, "long");
    (long.ttl, long.lifetime) = (Duration::from_secs(3 * 86_400), Lifetime::Lease);
    held(&mut root, &store, &long).await;
    root.query_drop(
        "UPDATE oarlock_resource SET used = used - 2 * 86400000000, last_fence = last_fence - 2 * 86400000000",
    )
    .await
    .unwrap();
    for bits in 2..12 {
        // Each looks at ten others.
        let other = claim(bits, &format!("new {bits}"));
        grant(&store, &other).await.unwrap();
        assert_eq!(number(&mut root, "SELECT COUNT(*) FROM oarlock_resource WHERE name LIKE '%long'").await, 1);
    }
    pending(&MySql::connect(config(server.addr())).await.unwrap(), &claim(20, "long")).await;
}

on_both!(
    a_pair_is_two_statements,
    others_wait_for_a_claim_in_its_row,
    an_attempt_that_is_repeated_keeps_its_fence,
    a_claim_in_its_row_is_renewed_and_shown,
    a_lease_in_its_row_runs_out,
    a_memo_is_not_overlooked,
    a_name_with_a_memo_costs_no_statement_more,
    a_row_of_a_newer_version_is_refused,
    fences_end_at_two_to_the_53rd,
    a_dead_process_leaves_no_claim_in_a_row,
    the_wake_up_lock_is_held_as_long_as_the_claim,
    a_name_whose_row_has_a_claim_is_not_forgotten,
);
