//! A server whose clock is wrong, and then set right.

use std::time::{Duration, Instant};

use oarlock_core::driver::{Attempt, Driver as _, End};
use oarlock_core::{Claim, Fence, Lifetime};
use oarlock_sql::postgres::Postgres;
use oarlock_testbed::PostgresClock;
use tokio_postgres::NoTls;

use crate::store::{claim, config, grant};

/// In microseconds.
const HOUR: i64 = 3_600_000_000;

async fn start() -> Option<(PostgresClock, tokio_postgres::Client, Postgres)> {
    let server = tokio::task::spawn_blocking(PostgresClock::start_or_skip).await.unwrap().unwrap()?;
    let (root, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    Some((server, root, store))
}

/// Takes it and lets it go.
async fn fence_of(store: &Postgres, claim: &Claim) -> Fence {
    let fence = grant(store, claim).await.unwrap().fence;
    store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();
    fence
}

/// Makes a new name, which looks at ten others that it draws by lot: the only other one is among them.
async fn make_another_name(root: &tokio_postgres::Client, store: &Postgres) {
    root.batch_execute(
        "DELETE FROM oarlock.resource WHERE name <> 'nightly'; ALTER TABLE oarlock.resource ALTER key RESTART WITH 2",
    )
    .await
    .unwrap();
    fence_of(store, &claim(1, "new")).await;
}

/// The row of a name is forgotten a day after its last use, and the next fence of that name then comes from the clock
/// alone.
#[tokio::test]
async fn fences_do_not_fall_after_a_clock_was_ahead() {
    let Some((server, root, store)) = start().await else { return };
    let known = "SELECT count(*) FROM oarlock.resource WHERE name = 'nightly'";
    let mut last = Fence::new(1);
    // A week ahead, set right, and then as the days go by.
    for hours in [168, 0, 25, 50, 168, 180, 193] {
        server.set_clock(hours * HOUR).unwrap();
        make_another_name(&root, &store).await;
        let fence = fence_of(&store, &claim(2, "nightly")).await;
        assert!(fence > last, "{fence} after {last}, {hours} hours ahead");
        last = fence;
    }
    // Once the clock has passed the last fence by a day, nothing is lost by forgetting it.
    server.set_clock(218 * HOUR).unwrap();
    make_another_name(&root, &store).await;
    assert_eq!(root.query_one(known, &[]).await.unwrap().get::<_, i64>(0), 0, "it is kept for ever");
    assert!(fence_of(&store, &claim(2, "nightly")).await > last);
}

/// A clock that was ahead moves `used` too; a fence that an operator raised after a restore does not.
#[tokio::test]
async fn a_name_whose_fence_was_raised_is_not_forgotten() {
    let Some((_server, root, store)) = start().await else { return };
    make_another_name(&root, &store).await;
    fence_of(&store, &claim(2, "nightly")).await;
    let raise = format!(
        "UPDATE oarlock.resource SET last_fence = last_fence + {}, used = used - interval '48 hours'
         WHERE name = 'nightly' RETURNING last_fence",
        48 * HOUR
    );
    let raised: i64 = root.query_one(&raise, &[]).await.unwrap().get(0);
    // Which of the others are looked at is drawn by lot.
    for _ in 0..8 {
        make_another_name(&root, &store).await;
    }
    let raised = Fence::new(u64::try_from(raised).unwrap());
    assert!(fence_of(&store, &claim(3, "nightly")).await > raised);
}

/// Without a session that ends, only its lease frees what a dead client held: an hour more for a clock that was an hour
/// ahead is too long.
#[tokio::test]
async fn a_clock_set_back_prolongs_no_lease_by_more_than_itself() {
    let Some((server, _root, store)) = start().await else { return };
    server.set_clock(HOUR).unwrap();
    let mut dead = claim(1, "left");
    (dead.ttl, dead.lifetime) = (Duration::from_secs(3), Lifetime::Lease);
    let granted = Instant::now();
    let fence = grant(&store, &dead).await.unwrap().fence;
    server.set_clock(0).unwrap();
    let rival = claim(2, "left");
    let next = loop {
        match store.attempt(&rival).await.unwrap() {
            Attempt::Granted(grant) => break grant.fence,
            Attempt::Pending(pending) => {
                let recheck = pending.recheck_after.unwrap();
                assert!(recheck <= dead.ttl, "to look again after {recheck:?}");
                tokio::time::sleep(recheck).await;
            }
        }
    };
    // It may believe for as long as that.
    assert!(granted.elapsed() >= dead.ttl, "ended early, after {:?}", granted.elapsed());
    assert!(next > fence);
}
