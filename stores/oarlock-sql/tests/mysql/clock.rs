//! A server whose clock is wrong, and then set right.

use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_core::driver::{Attempt, Driver as _, End};
use oarlock_core::{Claim, Fence, Lifetime};
use oarlock_sql::mysql::MySql;
use oarlock_testbed::MariaDbClock;

use crate::store::{claim, config, grant, raw};

/// In microseconds.
const HOUR: i64 = 3_600_000_000;

async fn start() -> Option<(MariaDbClock, Conn, MySql)> {
    let server = tokio::task::spawn_blocking(MariaDbClock::start_or_skip).await.unwrap().unwrap()?;
    let root = raw(server.addr()).await;
    let store = MySql::connect(config(server.addr())).await.unwrap();
    Some((server, root, store))
}

/// Takes it and lets it go.
async fn fence_of(store: &MySql, claim: &Claim) -> Fence {
    let fence = grant(store, claim).await.unwrap().fence;
    store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();
    fence
}

/// Makes a new name, which looks at ten others that it draws by lot: the only other one is among them.
async fn make_another_name(root: &mut Conn, store: &MySql) {
    root.query_drop("DELETE FROM oarlock_resource WHERE name <> 'nightly'").await.unwrap();
    root.query_drop("ALTER TABLE oarlock_resource AUTO_INCREMENT = 2").await.unwrap();
    fence_of(store, &claim(1, "new")).await;
}

/// The row of a name is forgotten a day after its last use, and the next fence of that name then comes from the clock
/// alone.
#[tokio::test]
async fn fences_do_not_fall_after_a_clock_was_ahead() {
    let Some((server, mut root, store)) = start().await else { return };
    let known = "SELECT count(*) FROM oarlock_resource WHERE name = 'nightly'";
    let mut last = Fence::new(1);
    // A week ahead, set right, and then as the days go by.
    for hours in [168, 0, 25, 50, 168, 180, 193] {
        server.set_clock(hours * HOUR).unwrap();
        make_another_name(&mut root, &store).await;
        let fence = fence_of(&store, &claim(2, "nightly")).await;
        assert!(fence > last, "{fence} after {last}, {hours} hours ahead");
        last = fence;
    }
    // Once the clock has passed the last fence by a day, nothing is lost by forgetting it.
    server.set_clock(218 * HOUR).unwrap();
    make_another_name(&mut root, &store).await;
    assert_eq!(root.query_first::<i64, _>(known).await.unwrap(), Some(0), "it is kept for ever");
    assert!(fence_of(&store, &claim(2, "nightly")).await > last);
}

/// A clock that was ahead moves `used` too; a fence that an operator raised after a restore does not.
#[tokio::test]
async fn a_name_whose_fence_was_raised_is_not_forgotten() {
    let Some((_server, mut root, store)) = start().await else { return };
    fence_of(&store, &claim(2, "nightly")).await;
    let raise = format!(
        "UPDATE oarlock_resource SET last_fence = last_fence + {}, used = used - {} WHERE name = 'nightly'",
        48 * HOUR,
        48 * HOUR
    );
    root.query_drop(raise).await.unwrap();
    let raised = "SELECT last_fence FROM oarlock_resource WHERE name = 'nightly'";
    let raised: u64 = root.query_first(raised).await.unwrap().unwrap();
    // Which of the others are looked at is drawn by lot.
    for _ in 0..8 {
        make_another_name(&mut root, &store).await;
    }
    assert!(fence_of(&store, &claim(3, "nightly")).await > Fence::new(raised));
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
