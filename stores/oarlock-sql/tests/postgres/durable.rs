//! What a crash of the server may undo: the end of a claim that nothing depends on, and no more.

use std::time::Duration;

use oarlock_core::Claim;
use oarlock_core::driver::{Attempt, Driver as _, End};
use oarlock_core::state::Ending;
use oarlock_sql::postgres::Postgres;
use tokio_postgres::NoTls;

use crate::store::{Server, claim, config, grant, until};

/// The server writes commits that no client waits for at most every ten seconds, so that a crash undoes them.
async fn start() -> Option<Server> {
    tokio::task::spawn_blocking(|| Server::start_with_or_skip(&[("wal_writer_delay", "10s")])).await.unwrap().unwrap()
}

/// Kills the server, starts it again, and returns a client that looks behind the scenes.
async fn crash(server: Server) -> (Server, tokio_postgres::Client) {
    let server = tokio::task::spawn_blocking(move || {
        server.kill().unwrap();
        server.restart().unwrap();
        server
    });
    let server = server.await.unwrap();
    let (root, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    (server, root)
}

async fn open(server: &Server) -> Postgres {
    Postgres::connect(config(server.addr())).await.unwrap()
}

async fn queue(store: &Postgres, mut claim: Claim) {
    claim.wait = true;
    assert!(matches!(store.attempt(&claim).await.unwrap(), Attempt::Pending(_)));
}

async fn end(store: &Postgres, claim: &Claim, end: End) {
    store.release(&claim.resource, claim.id, &end).await.unwrap();
}

/// In the table of claims, and in the rows of their names.
const HOLDERS: &str = "SELECT (SELECT count(*) FROM oarlock.claim WHERE id IS NOT NULL AND fence IS NOT NULL)
    + (SELECT count(*) FROM oarlock.resource WHERE sole_id IS NOT NULL)";

#[tokio::test]
async fn a_grant_and_a_hand_over_survive_a_crash() {
    let Some(server) = start().await else { return };
    let held = claim(1, "kept");
    grant(&open(&server).await, &held).await.unwrap();
    let (server, root) = crash(server).await;
    until(&root, HOLDERS, 1).await;

    // The release that hands the lock over.
    let store = open(&server).await;
    queue(&store, claim(2, "kept")).await;
    end(&store, &held, End::Done { memo: None }).await;
    let (server, root) = crash(server).await;
    until(&root, "SELECT count(*) FROM oarlock.claim WHERE id = '\\x00000000000000000000000000000001'", 0).await;
    until(&root, HOLDERS, 1).await;

    // The grant of a name that is known and free.
    let store = open(&server).await;
    grant(&store, &claim(3, "free")).await.unwrap();
    end(&store, &claim(3, "free"), End::Withdrawn).await;
    grant(&store, &claim(4, "free")).await.unwrap();
    let (_server, root) = crash(server).await;
    let fourth = "SELECT count(*) FROM oarlock.resource WHERE sole_id = '\\x00000000000000000000000000000004'";
    until(&root, fourth, 1).await;
}

#[tokio::test]
async fn a_memo_a_break_and_the_end_of_a_long_lease_survive_a_crash() {
    let Some(mut server) = start().await else { return };
    let ending = Ending::new("ops", "to test");
    let ends = [
        (Duration::from_secs(30), End::Done { memo: Some(b"seen"[..].into()) }),
        (Duration::from_secs(30), End::Broken { ending, grace: Duration::ZERO }),
        (Duration::from_secs(600), End::Done { memo: None }),
    ];
    for (bits, (ttl, how)) in (1_u32..).zip(ends) {
        let store = open(&server).await;
        let mut held = claim(bits.into(), &format!("ended {bits}"));
        held.ttl = ttl;
        grant(&store, &held).await.unwrap();
        end(&store, &held, how).await;
        let root;
        (server, root) = crash(server).await;
        let count = async |sql: &str| root.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
        assert_eq!(count(HOLDERS).await, 0, "{ttl:?}");
        // Their grants are not what was lost.
        assert_eq!(
            count("SELECT count(*) FROM oarlock.resource WHERE last_fence > 0").await,
            i64::from(bits),
            "{ttl:?}"
        );
        assert_eq!(count("SELECT count(*) FROM oarlock.resource WHERE memo = 'seen'").await, 1, "the memo");
    }
}

/// The release may be undone. Then the claim ends with its lease, and fences still rise.
#[tokio::test]
async fn a_release_that_a_crash_undoes_blocks_for_a_lease_at_most() {
    let Some(server) = start().await else { return };
    let store = open(&server).await;
    let mut held = claim(1, "undone");
    held.ttl = Duration::from_secs(5);
    let fence = grant(&store, &held).await.unwrap().fence;
    end(&store, &held, End::Done { memo: None }).await;
    let (server, root) = crash(server).await;
    let left = root.query_one(HOLDERS, &[]).await.unwrap().get::<_, i64>(0);
    println!("claims after the crash: {left}");
    let store = open(&server).await;
    if let Attempt::Pending(pending) = store.attempt(&claim(2, "undone")).await.unwrap() {
        let left = pending.recheck_after.unwrap();
        assert!(left <= held.ttl, "{left:?}");
        tokio::time::sleep(left).await;
    }
    assert!(grant(&store, &claim(2, "undone")).await.unwrap().fence > fence);
}
