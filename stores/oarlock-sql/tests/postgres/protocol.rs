//! What only a real server can show: lost replies on the network, rights, formats, old rows.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Interest, Renewal, Renewed};
use oarlock_core::error::Applied;
use oarlock_core::state::Query;
use oarlock_core::{Capacity, ErrorKind, Limit, Weight};
use oarlock_sql::postgres::Postgres;
use oarlock_testbed::proxy::{Proxy, Then};

use crate::store::{Server, claim, config, grant, renew, start, until};

#[tokio::test]
async fn a_lost_reply_takes_no_second_position() {
    let Some((server, root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = Postgres::connect(config(proxy.addr())).await.unwrap();
    let claim = claim(1, "protocol");
    // It listens and has prepared its statements: the next reply is that to a request.
    let before = self::claim(3, "before");
    grant(&store, &before).await.unwrap();
    store.release(&before.resource, before.id, &End::Done { memo: None }).await.unwrap();
    let dropped = proxy.drop_next_reply(Then::Close);
    let error = grant(&store, &claim).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::Unknown), "{error}");
    assert!(dropped.wait().await.is_some());
    let row = root.query_one("SELECT fence FROM oarlock.claim WHERE id IS NOT NULL", &[]).await.unwrap();
    let fence: i64 = row.get(0);
    let again = grant(&store, &claim).await.unwrap();
    assert_eq!(again.fence.get(), u64::try_from(fence).unwrap(), "the retry got another fence");

    let end = End::Done { memo: None };
    // The new connection has prepared its statements, too.
    store.release(&before.resource, before.id, &end).await.unwrap();
    let dropped = proxy.drop_next_reply(Then::Close);
    assert!(store.release(&claim.resource, claim.id, &end).await.is_err());
    assert!(dropped.wait().await.is_some());
    assert!(grant(&store, &self::claim(2, "protocol")).await.unwrap().fence > again.fence);
}

#[tokio::test]
async fn many_clients_can_make_the_tables_at_once() {
    let Some((server, root)) = start().await else { return };
    let connecting: Vec<_> = (0..12).map(|_| tokio::spawn(Postgres::connect(config(server.addr())))).collect();
    for connected in connecting {
        connected.await.unwrap().unwrap();
    }
    root.batch_execute("UPDATE oarlock.format SET version = 12").await.unwrap();
    let error = Postgres::connect(config(server.addr())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NewerFormat, "{error}");
}

#[tokio::test]
async fn an_older_format_is_named_and_raised_with_what_it_holds() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let held = claim(1, "held");
    let fence = grant(&store, &held).await.unwrap().fence;
    drop(store);
    // As the first format was: no sessions, and functions with other arguments.
    let older = "UPDATE oarlock.format SET version = 1; DROP TABLE oarlock.session;
        ALTER TABLE oarlock.claim DROP COLUMN ticket, DROP COLUMN handed;
        DROP FUNCTION oarlock.observe; CREATE FUNCTION oarlock.observe(bytea, integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'";
    root.batch_execute(older).await.unwrap();
    let error = Postgres::connect(config(server.addr())).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Foreign, Applied::No), "{error}");
    assert!(error.to_string().contains("oarlock init"), "{error}");
    oarlock_sql::postgres::init(config(server.addr()), None).await.unwrap();
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    assert_eq!(grant(&store, &held).await.unwrap().fence, fence);
    let observe = "SELECT count(*) FROM pg_proc WHERE proname = 'observe' AND pronamespace = 'oarlock'::regnamespace";
    until(&root, observe, 1).await;
    store.release(&held.resource, held.id, &End::Withdrawn).await.unwrap();
    assert!(grant(&store, &claim(2, "held")).await.unwrap().fence > fence);
}

#[tokio::test]
async fn few_rights_are_enough_and_missing_ones_are_named() {
    let Some((server, root)) = start().await else { return };
    root.batch_execute("CREATE ROLE app LOGIN").await.unwrap();
    let mut app = config(server.addr());
    app.user = Some("app".into());
    let error = Postgres::connect(app.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

    oarlock_sql::postgres::init(config(server.addr()), Some("app")).await.unwrap();
    // Other roles stay unseen, as on a managed server.
    root.batch_execute("REVOKE SELECT ON pg_stat_activity FROM PUBLIC").await.unwrap();
    let store = Postgres::connect(app.clone()).await.unwrap();
    let claim = claim(1, "rights");
    grant(&store, &claim).await.unwrap();
    assert!(matches!(renew(&store, &claim).await, Renewed::Alive { .. }));
    assert_eq!(store.inspect(&Query::live()).await.unwrap().resources.len(), 1);
    drop(store.watch(&Interest::Resource(claim.resource.clone())).await.unwrap());
    store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();

    for (right, lacking) in [
        ("USAGE ON SCHEMA oarlock", "schema oarlock"),
        ("SELECT ON oarlock.format", "table format"),
        ("SELECT ON oarlock.resource", "table resource"),
        ("INSERT ON oarlock.claim", "table claim"),
        ("UPDATE ON oarlock.session", "table session"),
    ] {
        root.batch_execute(&format!("REVOKE {right} FROM app")).await.unwrap();
        let error = match Postgres::connect(app.clone()).await {
            Ok(store) => grant(&store, &claim).await.expect_err(right),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        let text = error.to_string();
        assert!(text.contains(lacking) && text.contains("oarlock init --grant"), "{right}: {text}");
        root.batch_execute(&format!("GRANT {right} TO app")).await.unwrap();
    }
    grant(&Postgres::connect(app.clone()).await.unwrap(), &claim).await.unwrap();

    root.batch_execute("ALTER ROLE app SET default_transaction_isolation = 'serializable'").await.unwrap();
    let error = Postgres::connect(app).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// Every right that `init` grants is needed: without any one of them, something that clients do is refused.
#[tokio::test]
async fn no_right_can_be_spared() {
    let Some((server, root)) = start().await else { return };
    root.batch_execute("CREATE ROLE app LOGIN").await.unwrap();
    oarlock_sql::postgres::init(config(server.addr()), Some("app")).await.unwrap();
    let mut app = config(server.addr());
    app.user = Some("app".into());
    let granted = "SELECT privilege_type || ' ON oarlock.' || table_name FROM information_schema.role_table_grants
        WHERE grantee = 'app' UNION ALL SELECT 'USAGE ON SCHEMA oarlock'";
    let granted: Vec<String> = root.query(granted, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(granted.len(), 1 + 1 + 4 * 4, "{granted:?}");
    everything_clients_do(&server, &root, &app).await.unwrap();
    let mut spared = Vec::new();
    for right in &granted {
        root.batch_execute(&format!("REVOKE {right} FROM app")).await.unwrap();
        match everything_clients_do(&server, &root, &app).await {
            Ok(()) => spared.push(right),
            Err(kind) => assert_eq!(kind, ErrorKind::Denied, "{right}"),
        }
        root.batch_execute(&format!("GRANT {right} TO app")).await.unwrap();
    }
    assert!(spared.is_empty(), "nothing needs these rights: {spared:?}");
}

/// Locks, a queue, a renewal, a listing; and on the protected side a fence that is checked and one that is forgotten.
async fn everything_clients_do(
    server: &Server,
    root: &tokio_postgres::Client,
    app: &oarlock_sql::postgres::Config,
) -> Result<(), ErrorKind> {
    let old = "DELETE FROM oarlock.claim; DELETE FROM oarlock.resource; DELETE FROM oarlock.fence WHERE name <> '';
        INSERT INTO oarlock.fence (name, fence, used) VALUES ('old', 1000000000000001, now() - interval '40 days')";
    root.batch_execute(old).await.unwrap();
    let locks = async {
        let store = Postgres::connect(app.clone()).await?;
        let (held, mut waits) = (claim(1, "rights"), claim(2, "rights"));
        waits.wait = true;
        grant(&store, &held).await?;
        store.attempt(&waits).await?;
        store.renew(&[Renewal::of(Arc::new(held.clone()))]).await.remove(0)?;
        store.inspect(&Query::live()).await?;
        store.release(&held.resource, held.id, &End::Done { memo: None }).await?;
        grant(&store, &waits).await?;
        store.release(&waits.resource, waits.id, &End::Withdrawn).await?;
        store.close().await
    };
    locks.await.map_err(|error: oarlock_core::Error| error.kind())?;
    let url = server.url().replace("postgres@", "app@");
    let (raw, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let denied = |error: tokio_postgres::Error| {
        let is_denied = error.code() == Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE);
        if is_denied { ErrorKind::Denied } else { panic!("{error}") }
    };
    raw.batch_execute("SELECT oarlock.check('row', 1), oarlock.check('row', 2)").await.map_err(denied)?;
    raw.batch_execute("SELECT oarlock.forget_fences(10)").await.map_err(denied)
}

#[tokio::test]
async fn unused_names_are_forgotten_after_a_day() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let mut waits = claim(0, "in use");
    waits.ttl = Duration::from_secs(100 * 3600);
    grant(&store, &waits).await.unwrap();
    for bits in 1..=50 {
        let claim = claim(bits, &format!("old {bits}"));
        grant(&store, &claim).await.unwrap();
        store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();
    }
    let watched = claim(0, "watched");
    let mut watch = store.watch(&Interest::Resource(watched.resource.clone())).await.unwrap();
    root.batch_execute(
        "UPDATE oarlock.resource SET used = used - interval '25 hours', last_fence = last_fence - 90000000000",
    )
    .await
    .unwrap();
    for bits in 100..160 {
        grant(&store, &claim(bits, &format!("new {bits}"))).await.unwrap();
    }
    let left = "SELECT count(*) FILTER (WHERE name LIKE 'old%'), count(*) FILTER (WHERE name = 'in use'), count(*)
        FROM (SELECT convert_from(name, 'UTF8') AS name FROM oarlock.resource) AS names";
    let row = root.query_one(left, &[]).await.unwrap();
    let (old, in_use, all): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert!(old < 25, "{old} of 50 old names are left");
    assert_eq!((in_use, all - old), (1, 62), "a name in use was forgotten");
    grant(&store, &watched).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(2), watch.changed()).await;
    assert!(told.is_ok_and(|hint| hint.is_some()), "a name that was watched was forgotten");
}

/// A weekly slot that was forgotten after a day would run twice.
#[tokio::test]
async fn a_memo_is_remembered_for_as_long_as_its_writer_asked() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    for bits in 1..=20 {
        let claim = Arc::new(claim(bits, &format!("old {bits}")));
        grant(&store, &claim).await.unwrap();
        let mut renewal = Renewal::of(claim.clone());
        (renewal.memo, renewal.held) = (Some(b"slot"[..].into()), true);
        renewal.keep = if bits <= 10 { Duration::from_secs(8 * 86_400) } else { Duration::ZERO };
        assert!(matches!(store.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Alive { .. }));
        store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap();
        // A later use does not shorten it, whichever way it takes.
        grant(&store, &claim).await.unwrap();
        store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap();
        let watch = store.watch(&Interest::Resource(claim.resource.clone())).await.unwrap();
        grant(&store, &claim).await.unwrap();
        assert!(matches!(renew(&store, &claim).await, Renewed::Alive { .. }));
        store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();
        drop(watch);
    }
    root.batch_execute(
        "UPDATE oarlock.resource
        SET used = used - interval '7 days', last_fence = last_fence - 7 * 86400000000, observers = '{}'",
    )
    .await
    .unwrap();
    for bits in 100..160 {
        grant(&store, &claim(bits, &format!("new {bits}"))).await.unwrap();
    }
    let left = "SELECT count(*) FROM oarlock.resource WHERE convert_from(name, 'UTF8') LIKE 'old%'";
    let left: i64 = root.query_one(left, &[]).await.unwrap().get(0);
    assert!((10..15).contains(&left), "{left} are left of 20, of which 10 were to be kept");
    for bits in 1..=10 {
        let memo = grant(&store, &claim(200 + bits, &format!("old {bits}"))).await.unwrap().memo;
        assert_eq!(memo.as_deref(), Some(&b"slot"[..]));
    }
}

/// No client asks again for what they held or waited for.
#[tokio::test]
async fn names_that_only_the_dead_hold_are_forgotten() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    for bits in 0..50 {
        grant(&store, &claim(bits, &format!("old {bits}"))).await.unwrap();
    }
    let mut waits = claim(50, "old 0");
    waits.wait = true;
    assert!(matches!(store.attempt(&waits).await.unwrap(), Attempt::Pending(_)));
    root.batch_execute("UPDATE oarlock.claim SET expires = expires - interval '25 hours'").await.unwrap();
    // Held and renewed for longer than a day: a renewal does not say that its name is in use.
    let kept = claim(60, "kept");
    grant(&store, &kept).await.unwrap();
    root.batch_execute(
        "UPDATE oarlock.resource SET used = used - interval '25 hours', last_fence = last_fence - 90000000000",
    )
    .await
    .unwrap();
    for bits in 100..160 {
        grant(&store, &claim(bits, &format!("new {bits}"))).await.unwrap();
    }
    let old = "SELECT count(*) FROM oarlock.resource WHERE convert_from(name, 'UTF8') LIKE 'old%'";
    let old: i64 = root.query_one(old, &[]).await.unwrap().get(0);
    assert!(old < 25, "{old} of 50 old names are left");
    until(&root, "SELECT count(*) FROM oarlock.claim WHERE resource NOT IN (SELECT key FROM oarlock.resource)", 0)
        .await;
    assert!(matches!(renew(&store, &kept).await, Renewed::Alive { .. }), "a name in use was forgotten");
}

#[tokio::test]
async fn names_that_only_the_dead_watch_are_forgotten() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    for bits in 0..20 {
        let name = claim(0, &format!("old {bits}")).resource;
        drop(store.watch(&Interest::Resource(name)).await.unwrap());
    }
    drop(store);
    let clients = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oarlock'";
    until(&root, clients, 0).await;
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    root.batch_execute(
        "UPDATE oarlock.resource SET used = used - interval '25 hours', last_fence = last_fence - 90000000000",
    )
    .await
    .unwrap();
    for bits in 100..160 {
        grant(&store, &claim(bits, &format!("new {bits}"))).await.unwrap();
    }
    let left = "SELECT count(*) FROM oarlock.resource WHERE convert_from(name, 'UTF8') LIKE 'old%'";
    let left: i64 = root.query_one(left, &[]).await.unwrap().get(0);
    assert!(left < 10, "{left} of 20 old names are left");
}

#[tokio::test]
async fn a_write_with_a_smaller_fence_is_undone() {
    let Some((server, root)) = start().await else { return };
    Postgres::connect(config(server.addr())).await.unwrap();
    root.batch_execute("CREATE TABLE account (balance bigint NOT NULL); INSERT INTO account VALUES (0)").await.unwrap();
    let write = |fence: i64, value: i64| {
        format!("BEGIN; SELECT oarlock.check('account', {fence}); UPDATE account SET balance = {value}; COMMIT")
    };
    root.batch_execute(&write(7, 1)).await.unwrap();
    root.batch_execute(&write(9, 2)).await.unwrap();
    let refused = root.batch_execute(&write(8, 3)).await.unwrap_err();
    assert_eq!(refused.code().map(|code| code.code().to_owned()), Some("OAR02".to_owned()), "{refused}");
    root.batch_execute("ROLLBACK").await.unwrap();
    let balance = || async { root.query_one("SELECT balance FROM account", &[]).await.unwrap().get::<_, i64>(0) };
    assert_eq!(balance().await, 2);
    // The same holder writes again.
    root.batch_execute(&write(9, 4)).await.unwrap();
    assert_eq!(balance().await, 4);
}

fn state_of<T>(answer: Result<T, tokio_postgres::Error>) -> Option<String> {
    answer.err().and_then(|error| error.code().map(|code| code.code().to_owned()))
}

/// Rows of the protected side do not pile up, and a fence that was forgotten lets no older one in.
#[tokio::test]
async fn fences_of_the_protected_side_are_forgotten_and_let_no_older_one_in() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let now: i64 = root.query_one("SELECT oarlock.micros(clock_timestamp() - 'epoch')", &[]).await.unwrap().get(0);
    let old = now - 31 * 86_400_000_000;
    let check = |name: &str, fence: i64| format!("SELECT oarlock.check('{name}', {fence})");
    for order in 0..45 {
        root.batch_execute(&check(&format!("order/{order}"), old + order)).await.unwrap();
    }
    for (name, fence) in [("kept", old), ("counted", 7), ("young", now)] {
        root.batch_execute(&check(name, fence)).await.unwrap();
    }
    root.batch_execute("UPDATE oarlock.fence SET used = used - interval '31 days' WHERE name <> 'kept'").await.unwrap();
    root.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM oarlock.fence").await.unwrap();
    for bits in 0..6 {
        grant(&store, &claim(bits, &format!("new {bits}"))).await.unwrap();
    }
    // One that still sees the picture of before is not let in.
    let state = state_of(root.batch_execute(&check("order/7", old)).await);
    assert!(matches!(state.as_deref(), Some("40001" | "OAR02")), "{state:?}");
    root.batch_execute("ROLLBACK").await.unwrap();
    let left = root.query("SELECT name FROM oarlock.fence WHERE name <> '' ORDER BY name", &[]).await.unwrap();
    let left: Vec<String> = left.iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["counted", "kept", "young"]);
    for fence in [old, old + 7, old + 44] {
        let state = state_of(root.batch_execute(&check("order/7", fence)).await);
        assert_eq!(state.as_deref(), Some("OAR02"), "an old fence was let in");
    }
    // Newer ones are, also for a new name; and so are those in use, and those that no clock gave.
    for (name, fence) in
        [("order/7", old + 45), ("order/7", old + 45), ("fresh", now), ("kept", old), ("counted", 7), ("another", 3)]
    {
        root.batch_execute(&check(name, fence)).await.unwrap();
    }
    assert_eq!(state_of(root.batch_execute(&check("order/7", old + 44)).await).as_deref(), Some("OAR02"));
    assert_eq!(state_of(root.batch_execute(&check("counted", 6)).await).as_deref(), Some("OAR02"));
}

/// Functions of the format before this one have other arguments: they must not stay beside those of this one.
#[tokio::test]
async fn an_older_format_leaves_no_functions() {
    let Some((server, root)) = start().await else { return };
    Postgres::connect(config(server.addr())).await.unwrap();
    let older = "ALTER TABLE oarlock.claim ADD fair boolean NOT NULL DEFAULT false;
        CREATE FUNCTION oarlock.attempt(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
        UPDATE oarlock.format SET version = 5";
    root.batch_execute(older).await.unwrap();
    oarlock_sql::postgres::init(config(server.addr()), None).await.unwrap();
    let many = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'oarlock'::regnamespace AND proname = 'attempt'";
    assert_eq!(root.query_one(many, &[]).await.unwrap().get::<_, i64>(0), 1);
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    grant(&store, &claim(1, "raised")).await.unwrap();
}

/// What the format before this one made is raised by `oarlock init`, with all that it holds.
#[tokio::test]
async fn an_older_format_is_raised_with_what_it_holds() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let held = claim(1, "held");
    let fence = grant(&store, &held).await.unwrap().fence;
    root.batch_execute(&format!("SELECT oarlock.check('account', {})", fence.get())).await.unwrap();
    let older = "DELETE FROM oarlock.fence WHERE name = ''; ALTER TABLE oarlock.fence DROP used;
        ALTER TABLE oarlock.claim DROP lease; DROP FUNCTION oarlock.forget_fences; UPDATE oarlock.format SET version = 4;
        ALTER TABLE oarlock.resource DROP queued, DROP sole_id, DROP sole_session, DROP sole_tethered, DROP sole_kind,
            DROP sole_weight, DROP sole_behind, DROP sole_label, DROP sole_value, DROP sole_lease, DROP sole_expires";
    root.batch_execute(older).await.unwrap();
    let error = Postgres::connect(config(server.addr())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    assert!(error.to_string().contains("oarlock init"), "{error}");
    // Twice: what is done is not in the way.
    for _ in 0..2 {
        oarlock_sql::postgres::init(config(server.addr()), None).await.unwrap();
    }
    assert!(matches!(renew(&store, &held).await, Renewed::Alive { .. }));
    let new = Postgres::connect(config(server.addr())).await.unwrap();
    assert!(matches!(new.attempt(&claim(2, "held")).await.unwrap(), Attempt::Pending(_)));
    store.release(&held.resource, held.id, &End::Withdrawn).await.unwrap();
    assert!(grant(&new, &claim(2, "held")).await.unwrap().fence > fence);
    let smaller = format!("SELECT oarlock.check('account', {})", fence.get() - 1);
    assert_eq!(state_of(root.batch_execute(&smaller).await).as_deref(), Some("OAR02"));
    let kept = root.query_one("SELECT used IS NOT NULL FROM oarlock.fence WHERE name = 'account'", &[]).await.unwrap();
    assert!(kept.get::<_, bool>(0), "it would be kept for ever");
}

/// A release may leave the capacity in the row of its name: it means nothing without claims.
#[tokio::test]
async fn a_capacity_ends_with_the_last_claim() {
    let Some((server, _root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let limit = |units| Limit::Units(NonZeroU32::new(units).unwrap());
    let with = |bits, capacity| {
        let mut claim = claim(bits, "seats");
        (claim.capacity, claim.weight) = (Capacity::Fixed(limit(capacity)), Weight::ONE);
        claim
    };
    for (bits, capacity, watched) in [(1, 5, false), (2, 5, false), (3, 3, false), (4, 2, true)] {
        let claim = with(bits, capacity);
        if watched {
            drop(store.watch(&Interest::Resource(claim.resource.clone())).await.unwrap());
        }
        grant(&store, &claim).await.unwrap();
        let shown = store.inspect(&Query::name(claim.resource.clone())).await.unwrap().resources.remove(0);
        assert_eq!(shown.capacity, Some(limit(capacity)));
        let other = store.attempt(&with(9, 7)).await.unwrap_err();
        assert_eq!(other.kind(), ErrorKind::SpecMismatch, "{other}");
        store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();
        let shown = store.inspect(&Query::name(claim.resource)).await.unwrap().resources.remove(0);
        assert_eq!((shown.capacity, shown.holders.len()), (None, 0));
    }
}
