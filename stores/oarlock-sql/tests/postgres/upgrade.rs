//! The format is raised while clients of an older one are there.

use oarlock_core::driver::{Attempt, Driver as _, End, Released, Renewed};
use oarlock_core::{Claim, ErrorKind};
use oarlock_sql::postgres::{Postgres, init};
use tokio_postgres::Client;

use crate::store::{claim, config, grant, renew, start};

const OLDER: &str = include_str!("format_9.sql");

/// Its functions once more, for what is under way when the format is raised: a step goes on as it began, and finds what
/// it calls by name.
const UNDER_WAY: &str = "CREATE SCHEMA under_way;
    DO $$
    DECLARE
        step regprocedure;
    BEGIN
        FOR step IN SELECT oid FROM pg_proc WHERE pronamespace = 'oarlock'::regnamespace LOOP
            EXECUTE replace(pg_get_functiondef(step), 'FUNCTION oarlock.', 'FUNCTION under_way.');
        END LOOP;
    END $$";

/// An attempt of a client of the older format that has no session, and its outcome.
async fn attempt(root: &Client, schema: &str, claim: &Claim) -> Result<String, tokio_postgres::Error> {
    let sql = format!(
        "SELECT outcome FROM {schema}.attempt('{}', decode('{}', 'hex'), 0, false, 'mutex', NULL, true, 0, false, 0,
            60000000, 60000000, '{{}}', NULL, NULL, false)",
        claim.resource, claim.id
    );
    Ok(root.query_one(&sql, &[]).await?.get(0))
}

async fn release(root: &Client, schema: &str, claim: &Claim) -> Result<String, tokio_postgres::Error> {
    let (name, id) = (&claim.resource, claim.id);
    let sql = format!("SELECT outcome FROM {schema}.release('{name}', decode('{id}', 'hex'), NULL, NULL, 0)");
    Ok(root.query_one(&sql, &[]).await?.get(0))
}

async fn pending(store: &Postgres, claim: &Claim) {
    let answer = store.attempt(claim).await.unwrap();
    assert!(matches!(answer, Attempt::Pending(_)), "granted while another believes: {answer:?}");
}

#[tokio::test]
async fn a_step_of_an_older_format_that_is_under_way_takes_no_lock() {
    let Some((server, root)) = start().await else { return };
    root.batch_execute(OLDER).await.unwrap();
    let old = claim(1, "old");
    assert_eq!(attempt(&root, "oarlock", &old).await.unwrap(), "granted");
    root.batch_execute(UNDER_WAY).await.unwrap();
    let error = Postgres::connect(config(server.addr())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");

    init(config(server.addr()), None).await.unwrap();
    let (one, two) = (
        Postgres::connect(config(server.addr())).await.unwrap(),
        Postgres::connect(config(server.addr())).await.unwrap(),
    );
    pending(&one, &claim(2, "old")).await;
    let mine = claim(3, "new");
    for _ in 0..2 {
        grant(&one, &mine).await.unwrap();
        let released = one.release(&mine.resource, mine.id, &End::Done { memo: None }).await.unwrap();
        assert_eq!(released.outcome, Released::Released);
    }
    let fence = grant(&one, &mine).await.unwrap().fence;
    let sole = "SELECT count(*) FROM oarlock.resource WHERE sole_id IS NOT NULL";
    assert_eq!(root.query_one(sole, &[]).await.unwrap().get::<_, i64>(0), 1, "no older step would overlook it");

    for name in ["new", "old", "free"] {
        let outcome = attempt(&root, "under_way", &claim(4, name)).await;
        assert!(outcome.is_err(), "{name}: {outcome:?}");
        let entered = root.query(&format!("SELECT under_way.enter('{name}', true)"), &[]).await;
        assert!(entered.is_err(), "{name}: {entered:?}");
        let told = root.query(&format!("SELECT under_way.observe('{name}', 5)"), &[]).await;
        assert!(told.is_err(), "{name}: {told:?}");
    }
    for (name, id) in [("new", mine.id), ("old", old.id)] {
        let sql = format!(
            "SELECT outcome FROM under_way.renew(0, false, ARRAY['{name}'::bytea], ARRAY[decode('{id}', 'hex')],
                '{{60000000}}', '{{60000000}}', '{{0}}', '{{NULL}}', '{{NULL}}', '{{0}}', '{{NULL}}', '{{NULL}}',
                '{{true}}', '{{NULL}}')"
        );
        assert_eq!(root.query_one(&sql, &[]).await.unwrap().get::<_, String>(0), "newer", "{name}");
    }
    assert!(release(&root, "under_way", &mine).await.is_err());
    assert!(release(&root, "under_way", &old).await.is_err());

    assert_eq!(grant(&one, &mine).await.unwrap().fence, fence);
    assert!(matches!(renew(&one, &mine).await, Renewed::Alive { .. }));
    pending(&two, &claim(5, "new")).await;
    pending(&two, &claim(5, "old")).await;
}

/// What it asks from now on is answered by the new functions: it keeps what it holds, and can release it.
#[tokio::test]
async fn a_client_of_an_older_format_goes_on_beside_newer_ones() {
    let Some((server, root)) = start().await else { return };
    root.batch_execute(OLDER).await.unwrap();
    let old = claim(1, "old");
    assert_eq!(attempt(&root, "oarlock", &old).await.unwrap(), "granted");
    init(config(server.addr()), None).await.unwrap();
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    assert_eq!(attempt(&root, "oarlock", &old).await.unwrap(), "granted");
    assert_eq!(release(&root, "oarlock", &old).await.unwrap(), "released");
    let mine = claim(2, "old");
    grant(&store, &mine).await.unwrap();
    assert_eq!(attempt(&root, "oarlock", &claim(3, "old")).await.unwrap(), "pending");
    let released = store.release(&mine.resource, mine.id, &End::Withdrawn).await.unwrap();
    assert_eq!(released.outcome, Released::Released);
    assert_eq!(attempt(&root, "oarlock", &claim(3, "old")).await.unwrap(), "granted");
    pending(&store, &claim(4, "old")).await;
}

/// A transaction has used a table for long.
#[tokio::test]
async fn a_format_that_cannot_be_raised_now_leaves_older_clients_at_work() {
    let Some((server, root)) = start().await else { return };
    root.batch_execute(OLDER).await.unwrap();
    let old = claim(1, "old");
    assert_eq!(attempt(&root, "oarlock", &old).await.unwrap(), "granted");
    let (reader, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    reader.batch_execute("BEGIN; SELECT count(*) FROM oarlock.fence").await.unwrap();
    let error = init(config(server.addr()), None).await.unwrap_err();
    assert!(error.to_string().contains("lock timeout"), "{error}");

    assert_eq!(attempt(&root, "oarlock", &claim(2, "new")).await.unwrap(), "granted");
    assert_eq!(release(&root, "oarlock", &old).await.unwrap(), "released");
    reader.batch_execute("ROLLBACK").await.unwrap();
    init(config(server.addr()), None).await.unwrap();
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    pending(&store, &claim(3, "new")).await;
}
