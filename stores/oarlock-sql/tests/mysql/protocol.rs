//! What goes over the network and what is in the tables, below the suite's horizon.

use std::io::Write as _;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use oarlock_core::capabilities::Liveness;
use oarlock_core::driver::{Driver as _, End, Released, Renewal, Renewed};
use oarlock_core::error::Applied;
use oarlock_core::state::{Ending, Query};
use oarlock_core::url::{Stores, Url};
use oarlock_core::{Capacity, ErrorKind, Limit, Locks, Weight};
use oarlock_sql::mysql::{Config, MySql};
use oarlock_testbed::Flavour;
use oarlock_testbed::proxy::{Proxy, Then};

use crate::store::{claim, config, counted, grant, pending, raw, renew, start, until};

async fn a_lost_reply_takes_no_second_position(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = MySql::connect(config(proxy.addr())).await.unwrap();
    // Statements are prepared on their first use.
    let warm = claim(9, "warm");
    grant(&store, &warm).await.unwrap();
    store.release(&warm.resource, warm.id, &End::Withdrawn).await.unwrap();

    let claim = claim(1, "protocol");
    let dropped = proxy.drop_next_reply(Then::Close);
    let error = grant(&store, &claim).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::Unknown), "{error}");
    assert!(dropped.wait().await.is_some());
    let fence: Option<u64> = root.query_first("SELECT fence FROM oarlock_claim").await.unwrap();
    let again = grant(&store, &claim).await.unwrap();
    assert_eq!(Some(again.fence.get()), fence, "the retry got another fence");
    store.release(&warm.resource, warm.id, &End::Withdrawn).await.unwrap();

    let dropped = proxy.drop_next_reply(Then::Close);
    assert!(store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.is_err());
    assert!(dropped.wait().await.is_some());
    assert!(grant(&store, &self::claim(2, "protocol")).await.unwrap().fence > again.fence);
}

async fn many_clients_can_make_the_tables_at_once(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let connecting: Vec<_> = (0..12).map(|_| tokio::spawn(MySql::connect(config(server.addr())))).collect();
    for connected in connecting {
        connected.await.unwrap().unwrap();
    }
    let store = MySql::connect(config(server.addr())).await.unwrap();
    grant(&store, &claim(1, "newer")).await.unwrap();
    root.query_drop("UPDATE oarlock_resource SET format = 3").await.unwrap();
    let error = store.attempt(&claim(2, "newer")).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::NewerFormat, Applied::No), "{error}");
    root.query_drop("UPDATE oarlock_format SET version = 10").await.unwrap();
    let error = MySql::connect(config(server.addr())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NewerFormat, "{error}");
}

async fn another_claim_has_no_part_in_a_hold(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let (mine, other) = (claim(1, "mine"), claim(2, "mine"));
    let fence = grant(&store, &mine).await.unwrap().fence;
    pending(&store, &other).await;
    assert!(matches!(renew(&store, &other).await.unwrap(), Renewed::Gone(_)));
    let end = End::Done { memo: None };
    assert_eq!(store.release(&other.resource, other.id, &end).await.unwrap().outcome, Released::NotHeld);
    pending(&store, &other).await;
    assert_eq!(grant(&store, &mine).await.unwrap().fence, fence);
}

async fn an_older_format_is_named_and_raised_with_what_it_holds(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let held = claim(1, "held");
    let fence = grant(&store, &held).await.unwrap().fence;
    drop(store);
    root.query_drop("CREATE USER app IDENTIFIED BY 'secret'").await.unwrap();
    oarlock_sql::mysql::init(config(server.addr()), Some("app")).await.unwrap();
    root.query_drop("UPDATE oarlock_format SET version = 1; DROP PROCEDURE oarlock_release").await.unwrap();
    root.query_drop("CREATE PROCEDURE oarlock_release(_name INT) SELECT 1").await.unwrap();
    root.query_drop("GRANT EXECUTE ON PROCEDURE oarlock_release TO app").await.unwrap();
    // Procedures that the older format did not have.
    root.query_drop("DROP PROCEDURE oarlock_doubts; DROP PROCEDURE oarlock_forget_some_fences").await.unwrap();
    let error = MySql::connect(config(server.addr())).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Foreign, Applied::No), "{error}");
    assert!(error.to_string().contains("oarlock init"), "{error}");
    // Two at once: neither takes away what the other gave.
    let inits = [(); 2].map(|()| tokio::spawn(oarlock_sql::mysql::init(config(server.addr()), None)));
    for init in inits {
        init.await.unwrap().unwrap();
    }
    // The user who could lock before can lock, also where another client is in the way, and look.
    let mut app = config(server.addr()).password("secret");
    app.user = Some("app".into());
    let store = MySql::connect(app).await.unwrap();
    assert_eq!(grant(&store, &held).await.unwrap().fence, fence);
    store.release(&held.resource, held.id, &End::Withdrawn).await.unwrap();
    assert!(grant(&store, &claim(2, "held")).await.unwrap().fence > fence);
    let rival = MySql::connect(config(server.addr())).await.unwrap();
    grant(&rival, &claim(3, "busy")).await.unwrap();
    pending(&store, &claim(4, "busy")).await;
    assert_eq!(store.inspect(&Query::live()).await.unwrap().resources.len(), 2);
}

/// How many procedures the server was asked for in a second.
async fn calls(root: &mut mysql_async::Conn) -> u64 {
    let before = counted(root, "Com_stmt_execute").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    counted(root, "Com_stmt_execute").await - before
}

/// Each of them by itself would look four times in a second.
async fn of_many_in_a_queue_of_one_process_one_asks(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let holder = Locks::over(MySql::connect(config(server.addr())).await.unwrap()).unwrap();
    let client = Locks::over(MySql::connect(config(server.addr())).await.unwrap()).unwrap();
    let guard = holder.mutex("queue").lock().await.unwrap();
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let lock = client.mutex("queue").fair().wait(Duration::from_secs(60));
            tokio::spawn(async move {
                let guard = lock.lock().await?;
                let fence = guard.fence();
                guard.release().await.map(|_| fence)
            })
        })
        .collect();
    until(&mut root, "SELECT COUNT(*) FROM oarlock_claim WHERE fence IS NULL", 20).await;
    let asked = calls(&mut root).await;
    assert!((1..40).contains(&asked), "{asked} in a second");
    guard.release().await.unwrap();
    let mut fences = Vec::new();
    for waiting in waiting {
        fences.push(tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap().unwrap().unwrap());
    }
    fences.sort();
    fences.dedup();
    assert_eq!(fences.len(), 20);
}

async fn few_rights_are_enough_and_missing_ones_are_named(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    root.query_drop("CREATE USER app IDENTIFIED BY 'secret'; GRANT USAGE ON *.* TO app").await.unwrap();
    let mut app = config(server.addr()).password("secret");
    app.user = Some("app".into());
    let error = MySql::connect(app.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

    oarlock_sql::mysql::init(config(server.addr()), Some("app")).await.unwrap();
    let store = MySql::connect(app.clone()).await.unwrap();
    assert!(!format!("{store:?}").contains("secret"), "an open connection shows its password");
    let claim = claim(1, "rights");
    grant(&store, &claim).await.unwrap();
    assert!(matches!(renew(&store, &claim).await.unwrap(), Renewed::Alive { .. }));
    assert_eq!(store.inspect(&Query::live()).await.unwrap().resources.len(), 1);
    store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();

    for (right, lacking) in [
        ("SELECT ON locks.oarlock_format", "oarlock_format"),
        ("INSERT ON locks.oarlock_claim", "oarlock_claim"),
        ("EXECUTE ON PROCEDURE locks.oarlock_attempt", "oarlock_attempt"),
    ] {
        root.query_drop(format!("REVOKE {right} FROM app")).await.unwrap();
        let error = match MySql::connect(app.clone()).await {
            Ok(store) => grant(&store, &claim).await.expect_err(right),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        let text = error.to_string();
        assert!(text.contains(lacking) && text.contains("oarlock init --grant"), "{right}: {text}");
        root.query_drop(format!("GRANT {right} TO app")).await.unwrap();
    }

    let wrong = MySql::connect(app.password("wrong")).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Denied, "{wrong}");
    let mut nowhere = config(server.addr());
    nowhere.database = "nowhere".into();
    assert_eq!(MySql::connect(nowhere).await.unwrap_err().kind(), ErrorKind::Config);
}

/// Every right that `init` grants is needed: without any one of them, something that clients do is refused.
async fn no_right_can_be_spared(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    root.query_drop("CREATE USER app").await.unwrap();
    oarlock_sql::mysql::init(config(server.addr()), Some("app")).await.unwrap();
    let mut app = config(server.addr());
    app.user = Some("app".into());
    let tables = "SELECT CONCAT(privilege_type, ' ON locks.', table_name) FROM information_schema.table_privileges
        WHERE grantee LIKE '''app''%'";
    let procedures =
        "SELECT CONCAT('EXECUTE ON PROCEDURE locks.', routine_name) FROM mysql.procs_priv WHERE user = 'app'";
    let mut granted: Vec<String> = root.query(tables).await.unwrap();
    granted.extend(root.query::<String, _>(procedures).await.unwrap());
    assert!(granted.len() > 1 + 4 * 4 + 2 * 3, "{granted:?}");
    everything_clients_do(&mut root, &app).await.unwrap();
    let mut spared = Vec::new();
    for right in &granted {
        root.query_drop(format!("REVOKE {right} FROM app")).await.unwrap();
        match everything_clients_do(&mut root, &app).await {
            Ok(()) => spared.push(right),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}"),
        }
        root.query_drop(format!("GRANT {right} TO app")).await.unwrap();
    }
    assert!(spared.is_empty(), "nothing needs these rights: {spared:?}");
}

/// Locks, a queue, a renewal, a listing, a break, a lease that ends; old rows that are forgotten; and on the protected
/// side a fence that is checked and one that is forgotten.
async fn everything_clients_do(root: &mut mysql_async::Conn, app: &Config) -> Result<(), oarlock_core::Error> {
    let old = "DELETE FROM oarlock_claim; DELETE FROM oarlock_resource; DELETE FROM oarlock_fence WHERE name <> '';
        INSERT INTO oarlock_resource (name, used) VALUES ('old', 1);
        REPLACE INTO oarlock_session (number, boot, kills, begun) VALUES (1, '', 0, 1);
        INSERT INTO oarlock_fence (name, fence, used) VALUES ('old', 1000000000000001, 1)";
    root.query_drop(old).await.unwrap();
    let (store, rival) = (MySql::connect(app.clone()).await?, MySql::connect(app.clone()).await?);
    let (held, mut waits) = (claim(1, "rights"), claim(2, "rights"));
    waits.wait = true;
    grant(&store, &held).await?;
    // The second time it looks whether the session of the holder is over.
    rival.attempt(&waits).await?;
    rival.attempt(&waits).await?;
    renew(&store, &held).await?;
    store.inspect(&Query::live()).await?;
    store.release(&held.resource, held.id, &End::Done { memo: None }).await?;
    grant(&rival, &waits).await?;
    let broken = End::Broken { ending: Ending::new("ops", "drill"), grace: Duration::ZERO };
    store.release(&waits.resource, waits.id, &broken).await?;
    renew(&rival, &waits).await?;
    let mut short = claim(3, "rights");
    short.ttl = Duration::from_millis(50);
    grant(&store, &short).await?;
    tokio::time::sleep(short.ttl + Duration::from_millis(10)).await;
    grant(&rival, &claim(4, "rights")).await?;
    store.close().await?;
    rival.close().await?;
    let mut raw = oarlock_sql::mysql::raw::connect(app).await?;
    for call in ["CALL oarlock_check('row', 1)", "CALL oarlock_check('row', 2)", "CALL oarlock_forget_fences(10)"] {
        raw.query_drop(call).await.map_err(oarlock_sql::mysql::raw::failed)?;
    }
    raw.disconnect().await.map_err(oarlock_sql::mysql::raw::failed)
}

/// Managed servers require it, for their replicas.
async fn every_table_has_a_primary_key(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let setting = match on {
        Flavour::MariaDb => "innodb_force_primary_key",
        Flavour::MySql => "sql_require_primary_key",
    };
    root.query_drop(format!("SET GLOBAL {setting} = ON")).await.unwrap();
    let mut strict = raw(server.addr()).await;
    assert!(strict.query_drop("CREATE TABLE loose (one INT)").await.is_err(), "nothing is required");
    let store = MySql::connect(config(server.addr())).await.unwrap();
    grant(&store, &claim(1, "keys")).await.unwrap();
    // The next test has the same server.
    root.query_drop(format!("SET GLOBAL {setting} = OFF")).await.unwrap();
}

async fn a_password_that_was_changed_is_read_again(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    root.query_drop("CREATE USER app IDENTIFIED BY 'one'").await.unwrap();
    oarlock_sql::mysql::init(config(server.addr()), Some("app")).await.unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "one").unwrap();
    static STORES: Stores = Stores { built_in: &[&oarlock_sql::mysql::STORE], missing: &[] };
    let url = format!("mysql://app@{}/locks?password_file={}", server.addr(), file.path().display());
    let url = Url::parse(&url, &STORES).unwrap();
    let client = Locks::over(MySql::connect(Config::from_url(&url).unwrap()).await.unwrap()).unwrap();
    client.mutex("job").lock().await.unwrap().release().await.unwrap();

    root.query_drop("ALTER USER app IDENTIFIED BY 'two'").await.unwrap();
    std::fs::write(file.path(), "two\n").unwrap();
    let open = "SELECT id FROM information_schema.processlist WHERE user = 'app'";
    for id in root.query::<u64, _>(open).await.unwrap() {
        let _ = root.query_drop(format!("KILL {id}")).await;
    }
    let guard = client.mutex("job").wait(Duration::from_secs(20)).lock().await.unwrap();
    guard.release().await.unwrap();
}

async fn names_are_bytes_whatever_the_server_thinks_of_letters(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let names = ["a", "A", "a ", "ä", "Ä", "a\0", "ß", "ss", "\u{1f512}", "'; DROP TABLE oarlock_claim; --"];
    for (bits, name) in names.iter().enumerate() {
        grant(&store, &claim(bits as u128 + 1, name)).await.unwrap();
    }
    let page = store.inspect(&Query::live()).await.unwrap();
    let mut shown: Vec<_> = page.resources.iter().map(|state| state.name.as_str().to_owned()).collect();
    let mut names = names.map(str::to_owned).to_vec();
    names.sort();
    shown.sort();
    assert_eq!(shown, names);
}

async fn unused_names_are_forgotten_after_a_day(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let mut held = claim(0, "in use");
    held.ttl = Duration::from_secs(100 * 3600);
    grant(&store, &held).await.unwrap();
    // A refusal leaves a row of its name too.
    let mut heavy = claim(0, "heavy");
    (heavy.capacity, heavy.weight) =
        (Capacity::Fixed(Limit::Units(NonZeroU32::MIN)), Weight::Units(NonZeroU32::new(2).unwrap()));
    assert_eq!(store.attempt(&heavy).await.unwrap_err().kind(), ErrorKind::TooHeavy);
    let used = "SELECT used > 0 FROM oarlock_resource WHERE name = 'heavy'";
    assert_eq!(root.query_first::<i64, _>(used).await.unwrap(), Some(1), "it would be kept for ever");
    root.query_drop("DELETE FROM oarlock_resource WHERE name = 'heavy'").await.unwrap();
    for bits in 1..=50 {
        let claim = claim(bits, &format!("old {bits}"));
        grant(&store, &claim).await.unwrap();
        store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();
    }
    root.query_drop("UPDATE oarlock_resource SET used = used - 90000000000, last_fence = last_fence - 90000000000")
        .await
        .unwrap();
    for bits in 100..160 {
        grant(&store, &claim(bits, &format!("new {bits}"))).await.unwrap();
    }
    let left =
        "SELECT COALESCE(SUM(name LIKE 'old%'), 0), COALESCE(SUM(name = 'in use'), 0), COUNT(*) FROM oarlock_resource";
    let (old, in_use, all): (i64, i64, i64) = root.query_first(left).await.unwrap().unwrap();
    assert!(old < 25, "{old} of 50 old names are left");
    assert_eq!((in_use, all - old), (1, 61), "a name in use was forgotten");
}

/// A weekly slot that was forgotten after a day would run twice.
async fn a_memo_is_remembered_for_as_long_as_its_writer_asked(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    for bits in 1..=20 {
        let claim = Arc::new(claim(bits, &format!("old {bits}")));
        grant(&store, &claim).await.unwrap();
        let mut renewal = Renewal::of(claim.clone());
        (renewal.memo, renewal.held) = (Some(b"slot"[..].into()), true);
        renewal.keep = if bits <= 10 { Duration::from_secs(8 * 86_400) } else { Duration::ZERO };
        assert!(matches!(store.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Alive { .. }));
        store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap();
        // A later use does not shorten it.
        grant(&store, &claim).await.unwrap();
        assert!(matches!(renew(&store, &claim).await.unwrap(), Renewed::Alive { .. }));
        store.release(&claim.resource, claim.id, &End::Withdrawn).await.unwrap();
    }
    let week = "UPDATE oarlock_resource SET used = used - 7 * 86400000000, last_fence = last_fence - 7 * 86400000000";
    root.query_drop(week).await.unwrap();
    for bits in 100..160 {
        grant(&store, &claim(bits, &format!("new {bits}"))).await.unwrap();
    }
    let left = "SELECT COUNT(*) FROM oarlock_resource WHERE name LIKE 'old%'";
    let left: i64 = root.query_first(left).await.unwrap().unwrap();
    assert!((10..15).contains(&left), "{left} are left of 20, of which 10 were to be kept");
    for bits in 1..=10 {
        let memo = grant(&store, &claim(200 + bits, &format!("old {bits}"))).await.unwrap().memo;
        assert_eq!(memo.as_deref(), Some(&b"slot"[..]));
    }
}

/// No client asks again for what they held or waited for.
async fn names_that_only_the_dead_hold_are_forgotten(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    for bits in 0..50 {
        grant(&store, &claim(bits, &format!("old {bits}"))).await.unwrap();
    }
    let mut waits = claim(50, "old 0");
    waits.wait = true;
    pending(&store, &waits).await;
    root.query_drop("UPDATE oarlock_claim SET expires = expires - 25 * 3600 * 1000000").await.unwrap();
    let kept = claim(60, "kept");
    grant(&store, &kept).await.unwrap();
    root.query_drop("UPDATE oarlock_resource SET used = used - 90000000000, last_fence = last_fence - 90000000000")
        .await
        .unwrap();
    for bits in 100..160 {
        grant(&store, &claim(bits, &format!("new {bits}"))).await.unwrap();
    }
    let old = "SELECT COUNT(*) FROM oarlock_resource WHERE name LIKE 'old%'";
    let old: i64 = root.query_first(old).await.unwrap().unwrap();
    assert!(old < 25, "{old} of 50 old names are left");
    let orphans = "SELECT COUNT(*) FROM oarlock_claim WHERE resource NOT IN (SELECT number FROM oarlock_resource)";
    assert_eq!(root.query_first::<i64, _>(orphans).await.unwrap(), Some(0));
    assert!(matches!(renew(&store, &kept).await.unwrap(), Renewed::Alive { .. }), "a name in use was forgotten");
}

/// As on servers with group replication.
async fn where_a_session_cannot_be_written_down_leases_count_alone(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    MySql::connect(config(server.addr())).await.unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON oarlock_server FOR EACH ROW
        SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 3098, MESSAGE_TEXT = 'not here'";
    root.query_drop(refuse).await.unwrap();
    let store = MySql::connect(config(server.addr())).await.unwrap();
    assert_eq!(store.info().capabilities.liveness, Liveness::Lease);
    let held = claim(1, "held");
    grant(&store, &held).await.unwrap();
    assert!(matches!(renew(&store, &held).await.unwrap(), Renewed::Alive { .. }));
    let tethered = "SELECT COUNT(*) FROM oarlock_claim WHERE tethered";
    assert_eq!(root.query_first::<i64, _>(tethered).await.unwrap(), Some(0));
}

async fn an_odd_row_hides_no_other(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    for (bits, name) in ["good", "kind", "label", "name"].iter().enumerate() {
        grant(&store, &claim(bits as u128 + 1, name)).await.unwrap();
    }
    let odd = [
        "UPDATE oarlock_claim SET kind = 'other' WHERE resource = (SELECT number FROM oarlock_resource WHERE name = 'kind')",
        "UPDATE oarlock_claim SET label = '?' WHERE resource = (SELECT number FROM oarlock_resource WHERE name = 'label')",
        "UPDATE oarlock_resource SET name = '' WHERE name = 'name'",
    ];
    for odd in odd {
        root.query_drop(odd).await.unwrap();
    }
    let page = store.inspect(&Query::live()).await.unwrap();
    let good = page.resources.iter().find(|state| state.name.as_str() == "good");
    assert_eq!(good.map(|state| state.holders.len()), Some(1), "{page:?}");
    assert!(store.inspect(&Query::name(claim(1, "kind").resource)).await.is_err());
}

async fn a_write_with_a_smaller_fence_is_undone(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    MySql::connect(config(server.addr())).await.unwrap();
    root.query_drop("CREATE TABLE account (balance BIGINT NOT NULL); INSERT INTO account VALUES (0)").await.unwrap();
    let write = |fence: i64, value: i64| {
        format!(
            "START TRANSACTION; CALL oarlock_check('account', {fence}); UPDATE account SET balance = {value}; COMMIT"
        )
    };
    root.query_drop(write(7, 1)).await.unwrap();
    root.query_drop(write(9, 2)).await.unwrap();
    let refused = root.query_drop(write(8, 3)).await.unwrap_err();
    assert!(matches!(&refused, mysql_async::Error::Server(told) if told.state == "OAR02"), "{refused}");
    root.query_drop("ROLLBACK").await.unwrap();
    assert_eq!(root.query_first::<i64, _>("SELECT balance FROM account").await.unwrap(), Some(2));
    // The same holder writes again.
    root.query_drop(write(9, 4)).await.unwrap();
    assert_eq!(root.query_first::<i64, _>("SELECT balance FROM account").await.unwrap(), Some(4));
}

fn state_of<T>(answer: Result<T, mysql_async::Error>) -> Option<String> {
    match answer {
        Err(mysql_async::Error::Server(told)) => Some(told.state),
        _ => None,
    }
}

/// Rows of the protected side do not pile up, and a fence that was forgotten lets no older one in.
async fn fences_of_the_protected_side_are_forgotten_and_let_no_older_one_in(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let now = now(&mut root).await;
    let old = now - 31 * 86_400_000_000;
    let check = |name: &str, fence: i64| format!("CALL oarlock_check('{name}', {fence})");
    for order in 0..45 {
        root.query_drop(check(&format!("order/{order}"), old + order)).await.unwrap();
    }
    for (name, fence) in [("kept", old), ("counted", 7), ("young", now)] {
        root.query_drop(check(name, fence)).await.unwrap();
    }
    let long_ago = "UPDATE oarlock_fence SET used = used - 31 * 86400000000 WHERE name <> 'kept'";
    root.query_drop(long_ago).await.unwrap();
    root.query_drop("START TRANSACTION; SELECT COUNT(*) FROM oarlock_fence").await.unwrap();
    for bits in 0..6 {
        grant(&store, &claim(bits, &format!("new {bits}"))).await.unwrap();
    }
    // One that still sees the picture of before is not let in.
    assert_eq!(state_of(root.query_drop(check("order/7", old)).await).as_deref(), Some("OAR02"));
    root.query_drop("ROLLBACK").await.unwrap();
    let left = "SELECT CAST(name AS CHAR) FROM oarlock_fence WHERE name <> '' ORDER BY name";
    assert_eq!(root.query::<String, _>(left).await.unwrap(), ["counted", "kept", "young"]);
    // Each twice: without a transaction nothing undoes what the first one did.
    for fence in [old, old, old + 7, old + 44, old + 44] {
        let state = state_of(root.query_drop(check("order/7", fence)).await);
        assert_eq!(state.as_deref(), Some("OAR02"), "an old fence was let in");
    }
    // Newer ones are, also for a new name; and so are those in use, and those that no clock gave.
    for (name, fence) in
        [("order/7", old + 45), ("order/7", old + 45), ("fresh", now), ("kept", old), ("counted", 7), ("another", 3)]
    {
        root.query_drop(check(name, fence)).await.unwrap();
    }
    assert_eq!(state_of(root.query_drop(check("order/7", old + 44)).await).as_deref(), Some("OAR02"));
    assert_eq!(state_of(root.query_drop(check("counted", 6)).await).as_deref(), Some("OAR02"));
}

/// The server's clock in microseconds.
async fn now(root: &mut mysql_async::Conn) -> i64 {
    let now = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
    root.query_first(now).await.unwrap().unwrap()
}

/// Without a transaction around it each statement of a procedure commits by itself.
async fn no_older_fence_is_let_in_while_fences_are_forgotten(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    MySql::connect(config(server.addr())).await.unwrap();
    let old = now(&mut root).await - 31 * 86_400_000_000;
    let slow = "CREATE TRIGGER slow AFTER DELETE ON oarlock_fence FOR EACH ROW
        IF OLD.name LIKE 'second%' THEN SET @slept = SLEEP(2); END IF";
    root.query_drop(slow).await.unwrap();
    let asleep = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'";
    for interrupted in [false, true] {
        let [first, second, third] = ["first", "second", "third"].map(|name| format!("{name} {interrupted}"));
        for (order, name) in (1_i64..).zip([&first, &second, &third]) {
            let row = format!("INSERT INTO oarlock_fence (name, fence, used) VALUES ('{name}', {old}, {order})");
            root.query_drop(row).await.unwrap();
        }
        let mut cleaner = crate::store::raw(server.addr()).await;
        let number = cleaner.id();
        let cleaning = tokio::spawn(async move {
            let cleaned = cleaner.query_drop("CALL oarlock_forget_fences(1000)").await;
            // An interruption may leave a transaction open, which the next one of the same connection commits.
            cleaner.query_drop("START TRANSACTION; COMMIT").await.unwrap();
            cleaned
        });
        until(&mut root, asleep, 1).await;
        if interrupted {
            root.query_drop(format!("KILL QUERY {number}")).await.unwrap();
            assert!(cleaning.await.unwrap().is_err(), "it was not interrupted");
            let older = root.query_drop(format!("CALL oarlock_check('{first}', {})", old - 1)).await;
            assert_eq!(state_of(older).as_deref(), Some("OAR02"), "an old fence was let in");
        } else {
            let mut writer = crate::store::raw(server.addr()).await;
            let newer = format!("CALL oarlock_check('{third}', {})", old + 2);
            let newer = tokio::spawn(async move { writer.query_drop(newer).await });
            let older = root.query_drop(format!("CALL oarlock_check('{first}', {})", old - 1)).await;
            assert_eq!(state_of(older).as_deref(), Some("OAR02"), "an old fence was let in");
            cleaning.await.unwrap().unwrap();
            let left = "SELECT COUNT(*) FROM oarlock_fence WHERE name IN ('first false', 'second false')";
            assert_eq!(root.query_first::<i64, _>(left).await.unwrap(), Some(0), "not forgotten");
            // What is written meanwhile is not forgotten with what was there before.
            newer.await.unwrap().unwrap();
            let older = root.query_drop(format!("CALL oarlock_check('{third}', {})", old + 1)).await;
            assert_eq!(state_of(older).as_deref(), Some("OAR02"), "a fence that was just written is forgotten");
        }
        root.query_drop("DELETE FROM oarlock_fence WHERE name <> ''; UPDATE oarlock_fence SET fence = 0")
            .await
            .unwrap();
    }
}

/// A call in the middle of another transaction would commit that one.
async fn a_transaction_is_not_committed_by_forgetting_fences(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    MySql::connect(config(server.addr())).await.unwrap();
    root.query_drop("CREATE TABLE account (balance BIGINT NOT NULL); INSERT INTO account VALUES (1)").await.unwrap();
    root.query_drop("START TRANSACTION; UPDATE account SET balance = 2").await.unwrap();
    assert!(root.query_drop("CALL oarlock_forget_fences(10)").await.is_err(), "called within a transaction");
    // It goes on.
    assert_eq!(root.query_first::<i64, _>("SELECT balance FROM account").await.unwrap(), Some(2));
    root.query_drop("ROLLBACK").await.unwrap();
    assert_eq!(root.query_first::<i64, _>("SELECT balance FROM account").await.unwrap(), Some(1));
}

/// An application that checked a fence which was not used for long, and has not committed.
async fn an_open_transaction_of_the_protected_side_holds_up_no_new_name(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let now = now(&mut root).await;
    for (name, fence) in [("old", now - 31 * 86_400_000_000), ("older", now - 32 * 86_400_000_000)] {
        root.query_drop(format!("CALL oarlock_check('{name}', {fence})")).await.unwrap();
    }
    root.query_drop("UPDATE oarlock_fence SET used = used - 31 * 86400000000").await.unwrap();
    root.query_drop(format!("START TRANSACTION; CALL oarlock_check('old', {now})")).await.unwrap();
    // The bound of the server is ten seconds.
    let new = claim(1, "new");
    let granted = tokio::time::timeout(Duration::from_secs(5), grant(&store, &new)).await;
    assert!(matches!(granted, Ok(Ok(_))), "it waits for the application: {granted:?}");
    root.query_drop("COMMIT").await.unwrap();
    let left = "SELECT CAST(name AS CHAR) FROM oarlock_fence WHERE name <> ''";
    assert_eq!(root.query::<String, _>(left).await.unwrap(), ["old"], "what is in use is kept, and nothing else");
}

/// What the format before this one made is raised by `oarlock init`, with all that it holds.
async fn an_older_format_is_raised_with_what_it_holds(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let held = claim(1, "held");
    let fence = grant(&store, &held).await.unwrap().fence;
    root.query_drop(format!("CALL oarlock_check('account', {})", fence.get())).await.unwrap();
    for older in [
        "DELETE FROM oarlock_fence WHERE name = ''",
        "ALTER TABLE oarlock_fence DROP COLUMN used",
        "ALTER TABLE oarlock_claim DROP COLUMN lease",
        "ALTER TABLE oarlock_resource DROP COLUMN queued, DROP COLUMN sole_id, DROP COLUMN sole_session,
            DROP COLUMN sole_tethered, DROP COLUMN sole_kind, DROP COLUMN sole_behind, DROP COLUMN sole_label,
            DROP COLUMN sole_value, DROP COLUMN sole_lease, DROP COLUMN sole_expires, DROP COLUMN sole_wake",
        "DROP PROCEDURE oarlock_forget_fences",
        "UPDATE oarlock_format SET version = 4",
    ] {
        root.query_drop(older).await.unwrap();
    }
    let error = MySql::connect(config(server.addr())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    assert!(error.to_string().contains("oarlock init"), "{error}");
    // Twice: what is done is not in the way.
    for _ in 0..2 {
        oarlock_sql::mysql::init(config(server.addr()), None).await.unwrap();
    }
    assert!(matches!(renew(&store, &held).await.unwrap(), Renewed::Alive { .. }));
    let new = MySql::connect(config(server.addr())).await.unwrap();
    pending(&new, &claim(2, "held")).await;
    store.release(&held.resource, held.id, &End::Withdrawn).await.unwrap();
    assert!(grant(&new, &claim(2, "held")).await.unwrap().fence > fence);
    let smaller = format!("CALL oarlock_check('account', {})", fence.get() - 1);
    assert_eq!(state_of(root.query_drop(smaller).await).as_deref(), Some("OAR02"));
    let kept = "SELECT used IS NOT NULL FROM oarlock_fence WHERE name = 'account'";
    assert_eq!(root.query_first::<bool, _>(kept).await.unwrap(), Some(true), "it would be kept for ever");
}

on_both!(
    a_lost_reply_takes_no_second_position,
    many_clients_can_make_the_tables_at_once,
    another_claim_has_no_part_in_a_hold,
    an_older_format_is_named_and_raised_with_what_it_holds,
    of_many_in_a_queue_of_one_process_one_asks,
    few_rights_are_enough_and_missing_ones_are_named,
    no_right_can_be_spared,
    every_table_has_a_primary_key,
    a_password_that_was_changed_is_read_again,
    names_are_bytes_whatever_the_server_thinks_of_letters,
    unused_names_are_forgotten_after_a_day,
    a_memo_is_remembered_for_as_long_as_its_writer_asked,
    names_that_only_the_dead_hold_are_forgotten,
    where_a_session_cannot_be_written_down_leases_count_alone,
    an_odd_row_hides_no_other,
    a_write_with_a_smaller_fence_is_undone,
    fences_of_the_protected_side_are_forgotten_and_let_no_older_one_in,
    no_older_fence_is_let_in_while_fences_are_forgotten,
    a_transaction_is_not_committed_by_forgetting_fences,
    an_open_transaction_of_the_protected_side_holds_up_no_new_name,
    an_older_format_is_raised_with_what_it_holds,
);
