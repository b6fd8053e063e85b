//! The format is raised while clients of an older one are there.

use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_core::driver::{Driver as _, End, Released, Renewed};
use oarlock_core::{Claim, ErrorKind};
use oarlock_sql::mysql::{MySql, init};
use oarlock_testbed::Flavour;

use crate::store::{claim, config, grant, pending, raw, renew, start};

const OLDER: &str = include_str!("format_7.sql");

const MODE: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'";

/// Its procedures once more, for what is under way when the format is raised: a step goes on as it began, and finds what
/// it calls by name.
fn under_way() -> Vec<String> {
    let procedures = OLDER.split("CREATE PROCEDURE IF NOT EXISTS oarlock_").skip(1);
    let body = |procedure: &str| procedure.split("\nEND").next().unwrap_or_default().to_owned();
    procedures.map(|procedure| format!("CREATE PROCEDURE under_way_{}\nEND", body(procedure))).collect()
}

/// What format 7 made, and a claim in it. The connection is that of a client of that format, without a session.
async fn older(root: &mut Conn, held: &Claim) {
    root.query_drop(MODE).await.unwrap();
    root.query_drop(OLDER).await.unwrap();
    assert_eq!(attempt(root, "oarlock", held).await.unwrap(), "granted");
}

async fn attempt(root: &mut Conn, of: &str, claim: &Claim) -> mysql_async::Result<String> {
    let sql = format!(
        "CALL {of}_attempt('{}', X'{}', 0, FALSE, 'mutex', NULL, TRUE, 0, FALSE, 0, 60000000, 60000000, '{{}}', NULL, FALSE)",
        claim.resource, claim.id
    );
    outcome(root, &sql).await
}

async fn release(root: &mut Conn, of: &str, claim: &Claim) -> mysql_async::Result<String> {
    outcome(root, &format!("CALL {of}_release('{}', X'{}', NULL, NULL, 0)", claim.resource, claim.id)).await
}

async fn outcome(root: &mut Conn, sql: &str) -> mysql_async::Result<String> {
    let row: Option<mysql_async::Row> = root.query_first(sql).await?;
    Ok(row.unwrap().get("outcome").unwrap())
}

async fn a_step_of_an_older_format_that_is_under_way_takes_no_lock(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let old = claim(1, "old");
    older(&mut root, &old).await;
    for procedure in under_way() {
        root.query_drop(procedure).await.unwrap();
    }
    let error = MySql::connect(config(server.addr())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");

    init(config(server.addr()), None).await.unwrap();
    let (one, two) =
        (MySql::connect(config(server.addr())).await.unwrap(), MySql::connect(config(server.addr())).await.unwrap());
    pending(&one, &claim(2, "old")).await;
    let mine = claim(3, "new");
    grant(&one, &mine).await.unwrap();
    let released = one.release(&mine.resource, mine.id, &End::Done { memo: None }).await.unwrap();
    assert_eq!(released.outcome, Released::Released);
    let fence = grant(&one, &mine).await.unwrap().fence;
    let sole = "SELECT COUNT(*) FROM oarlock_resource WHERE sole_expires > 0";
    assert_eq!(root.query_first::<i64, _>(sole).await.unwrap(), Some(1), "no older step would overlook it");

    for name in ["new", "old", "free"] {
        let outcome = attempt(&mut root, "under_way", &claim(4, name)).await;
        assert!(outcome.is_err(), "{name}: {outcome:?}");
        let enter = format!("CALL under_way_enter('{name}', TRUE, @a, @b, @c, @d, @e)");
        let entered = root.query_drop(enter).await;
        assert!(entered.is_err(), "{name}: {entered:?}");
    }
    for (name, id) in [("new", mine.id), ("old", old.id)] {
        let name: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        let batch = format!(
            r#"[{{"at":0,"name":"{name}","id":"{id}","lease":60000000,"place":60000000,"behind":0,"keep":0}}]"#
        );
        let row: Option<mysql_async::Row> =
            root.query_first(format!("CALL under_way_renew(0, NULL, FALSE, '{batch}')")).await.unwrap();
        let answers: String = row.unwrap().get("answers").unwrap();
        assert!(answers.contains(r#""outcome":"newer""#), "{answers}");
    }
    for claim in [&mine, &old] {
        let released = release(&mut root, "under_way", claim).await;
        assert!(released.is_err(), "{released:?}");
    }

    assert_eq!(grant(&one, &mine).await.unwrap().fence, fence);
    assert!(matches!(renew(&one, &mine).await.unwrap(), Renewed::Alive { .. }));
    pending(&two, &claim(5, "new")).await;
    pending(&two, &claim(5, "old")).await;
}

/// What it asks from now on is answered by the new procedures: it keeps what it holds, and can release it.
async fn a_client_of_an_older_format_goes_on_beside_newer_ones(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let old = claim(1, "old");
    older(&mut root, &old).await;
    init(config(server.addr()), None).await.unwrap();
    let store = MySql::connect(config(server.addr())).await.unwrap();
    assert_eq!(attempt(&mut root, "oarlock", &old).await.unwrap(), "granted");
    assert_eq!(release(&mut root, "oarlock", &old).await.unwrap(), "released");
    let mine = claim(2, "old");
    grant(&store, &mine).await.unwrap();
    assert_eq!(attempt(&mut root, "oarlock", &claim(3, "old")).await.unwrap(), "pending");
    let released = store.release(&mine.resource, mine.id, &End::Withdrawn).await.unwrap();
    assert_eq!(released.outcome, Released::Released);
    assert_eq!(attempt(&mut root, "oarlock", &claim(3, "old")).await.unwrap(), "granted");
    pending(&store, &claim(4, "old")).await;
}

/// A transaction has read a table for hours, as a backup does.
async fn a_format_that_cannot_be_raised_now_leaves_older_clients_at_work(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let old = claim(1, "old");
    older(&mut root, &old).await;
    let mut reader = raw(server.addr()).await;
    reader.query_drop("START TRANSACTION").await.unwrap();
    let _rows: Option<i64> = reader.query_first("SELECT COUNT(*) FROM oarlock_resource").await.unwrap();
    let error = init(config(server.addr()), None).await.unwrap_err();
    assert!(error.to_string().contains("ock wait timeout"), "{error}");

    assert_eq!(attempt(&mut root, "oarlock", &old).await.unwrap(), "granted");
    assert_eq!(attempt(&mut root, "oarlock", &claim(2, "new")).await.unwrap(), "granted");
    assert_eq!(release(&mut root, "oarlock", &old).await.unwrap(), "released");
    reader.query_drop("ROLLBACK").await.unwrap();
    init(config(server.addr()), None).await.unwrap();
    let store = MySql::connect(config(server.addr())).await.unwrap();
    pending(&store, &claim(3, "new")).await;
}

/// A step that begins when the tables are changed lasts longer than a table is waited for.
async fn a_format_that_is_half_raised_waits_for_a_step(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    older(&mut root, &claim(1, "old")).await;
    // It reads no table, so that they can be changed meanwhile.
    root.query_drop("DROP PROCEDURE oarlock_attempt").await.unwrap();
    root.query_drop("CREATE PROCEDURE oarlock_attempt() DO SLEEP(7)").await.unwrap();
    let mut client = raw(server.addr()).await;
    let step = tokio::spawn(async move { client.query_drop("CALL oarlock_attempt()").await });
    let running = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'";
    let begun = async {
        while root.query_first::<i64, _>(running).await.unwrap() != Some(1) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), begun).await.unwrap();
    init(config(server.addr()), None).await.unwrap();
    step.await.unwrap().unwrap();
    let store = MySql::connect(config(server.addr())).await.unwrap();
    pending(&store, &claim(2, "old")).await;
}

on_both!(
    a_format_that_is_half_raised_waits_for_a_step,
    a_format_that_cannot_be_raised_now_leaves_older_clients_at_work,
    a_step_of_an_older_format_that_is_under_way_takes_no_lock,
    a_client_of_an_older_format_goes_on_beside_newer_ones,
);
