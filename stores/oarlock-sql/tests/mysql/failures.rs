//! What the end of a connection proves, what it does not, and what is left after a failure in the middle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_core::capabilities::Liveness;
use oarlock_core::driver::{Driver as _, End, Gone, Interest, Released, Renewal, Renewed};
use oarlock_core::error::{Applied, Retry};
use oarlock_core::state::{Query, Waiters};
use oarlock_core::{Error, ErrorKind, Lifetime, Locks, LossReason};
use oarlock_sql::mysql::MySql;
use oarlock_testbed::Flavour;
use oarlock_testbed::proxy::{Held, Proxy};

use crate::store::{Server, claim, config, counted, grant, pending, raw, renew, start, start_with, until};

const HOLDER: &str =
    "SELECT LOWER(HEX(number)) FROM oarlock_session WHERE number IN (SELECT session FROM oarlock_claim)";

/// The connections that hold a named lock of the session that has claims, the first liveness lock first.
async fn lock_owners(root: &mut Conn) -> Vec<u64> {
    let session: String = root.query_first(HOLDER).await.unwrap().unwrap();
    let mut held = Vec::new();
    for index in 0..16 {
        let owner = format!("SELECT IS_USED_LOCK('oarlock_{session}_{index}')");
        held.extend(root.query_first::<Option<u64>, _>(owner).await.unwrap().flatten());
    }
    held
}

async fn a_liveness_lock_that_is_killed_frees_nothing_and_is_taken_again(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    assert_eq!(store.info().capabilities.liveness, Liveness::LeaseAndProcess);
    let held = claim(1, "held");
    grant(&store, &held).await.unwrap();
    let before = lock_owners(&mut root).await;
    root.query_drop(format!("KILL {}", before[0])).await.unwrap();
    until(&mut root, &format!("SELECT COUNT(*) FROM information_schema.processlist WHERE id = {}", before[0]), 0).await;
    // Another one took its lock over, until there was a new one.
    let session: String = root.query_first(HOLDER).await.unwrap().unwrap();
    until(&mut root, &format!("SELECT IS_FREE_LOCK('oarlock_{session}_0')"), 1).await;
    let rival = MySql::connect(config(server.addr())).await.unwrap();
    // Only one liveness lock is gone: a client that does not count killed connections must see that this one lives,
    // too.
    forget_kills(&mut root).await;
    pending(&rival, &claim(2, "held")).await;
    // The first renewal finds the connection dead, the next one makes a new one.
    let _ = renew(&store, &held).await;
    assert!(matches!(renew(&store, &held).await.unwrap(), Renewed::Alive { .. }));
    // One that is read on, and one that it waits for.
    until(&mut root, READERS, 2).await;
    let after = lock_owners(&mut root).await;
    assert!(after.iter().any(|connection| !before.contains(connection)), "the liveness lock is not taken again");
}

/// The connections that are always read on, one for each client.
const READERS: &str =
    "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'DO GET_LOCK%' AND state = 'User lock'";

/// A proxy that ends idle connections towards both sides: to the server that is what the death of the process looks
/// like.
async fn a_holder_hears_that_its_connections_ended_though_it_has_nothing_to_ask(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let client = Locks::builder(MySql::connect(config(proxy.addr())).await.unwrap());
    let client = client.ttl(Duration::from_secs(240)).build().unwrap();
    let rival = MySql::connect(config(server.addr())).await.unwrap();
    let renewed = client.mutex("renewed").lock().await.unwrap();
    let explicit = client.mutex("explicit").ttl(Duration::from_secs(240)).no_renewal().lock().await.unwrap();
    let long = client.mutex("long").ttl(Duration::from_secs(600)).no_renewal().lock().await.unwrap();
    until(&mut root, READERS, 2).await;
    proxy.heal(Held::Reset).unwrap();
    for guard in [&renewed, &explicit] {
        let reason = tokio::time::timeout(Duration::from_secs(30), guard.lost()).await.unwrap();
        assert_eq!(reason, LossReason::Session);
    }
    // Too long to end with its process: no client takes it for that of a dead one.
    pending(&rival, &claim(3, "long")).await;
    assert!(long.is_held(), "{:?}", long.loss());
    // Its client goes on with a new session, whose end is heard of too.
    drop((renewed, explicit));
    let again = client.mutex("renewed");
    let again = tokio::time::timeout(Duration::from_secs(30), again.lock()).await.unwrap().unwrap();
    until(&mut root, READERS, 2).await;
    proxy.refuse();
    let reason = tokio::time::timeout(Duration::from_secs(30), again.lost()).await.unwrap();
    assert_eq!(reason, LossReason::Session);
}

/// The server keeps connections of which a firewall has forgotten everything.
async fn old_connections_that_the_server_still_has_block_no_client(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let mut config = config(proxy.addr());
    (config.connect_timeout, config.silence_timeout) = (Duration::from_secs(3), Duration::from_secs(3));
    let store = MySql::connect(config).await.unwrap();
    let held = claim(1, "held");
    let fence = grant(&store, &held).await.unwrap().fence;
    let session: String = root.query_first(HOLDER).await.unwrap().unwrap();
    let mut others = Vec::new();
    for full in [false, true] {
        if full {
            // No lock is left: connections that do not belong to the client any more must be closed.
            let mut old = raw(server.addr()).await;
            for index in 0..16 {
                old.query_drop(format!("DO GET_LOCK('oarlock_{session}_{index}', 0)")).await.unwrap();
            }
            others.push(old);
            assert_eq!(lock_owners(&mut root).await.len(), 16);
        }
        proxy.strand();
        let mut renewed = renew(&store, &held).await;
        if renewed.is_err() {
            // It was asked on a connection that had just answered.
            renewed = renew(&store, &held).await;
        }
        assert!(matches!(renewed, Ok(Renewed::Alive { fence: Some(same), .. }) if same == fence), "{renewed:?}");
    }
    // Those that came in their place have been there for long: the old ones are not needed, and their end shows
    // nothing.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    proxy.reset_stranded();
    let told = tokio::time::timeout(Duration::from_millis(500), mailbox.changed()).await;
    assert!(told.is_err(), "the end of an old connection is taken for that of the session");
    let renewed = renew(&store, &held).await;
    assert!(matches!(renewed, Ok(Renewed::Alive { fence: Some(same), .. }) if same == fence), "{renewed:?}");
}

/// All connections are reset again and again. Nothing is asked, and no mailbox is armed that could rest.
async fn every_grant_hears_of_the_end_of_its_own_session(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = MySql::connect(config(proxy.addr())).await.unwrap();
    let mut kept = claim(100, "kept");
    kept.lifetime = Lifetime::Lease;
    assert_eq!(grant(&store, &kept).await.unwrap().ends_with, None);
    let bound = Duration::from_secs(8);
    for bits in 1..=5 {
        let held = claim(bits, &format!("held {bits}"));
        let granted = async {
            loop {
                if let Ok(granted) = grant(&store, &held).await {
                    return granted.ends_with.expect("it ends with its session");
                }
            }
        };
        let end = tokio::time::timeout(bound, granted).await.unwrap();
        assert!(!end.has_ended());
        proxy.heal(Held::Reset).unwrap();
        tokio::time::timeout(bound, end.ended()).await.expect("the driver did not say that the session has ended");
    }
}

/// The last connection from before ends while new ones are opened: others may have seen none at all. That takes as long
/// as the test wants it to.
async fn a_session_whose_last_old_connection_ends_while_others_are_opened_is_over(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let mut config = config(server.addr());
    config.connect_timeout = Duration::from_secs(120);
    let store = MySql::connect(config).await.unwrap();
    let end = grant(&store, &claim(1, "held")).await.unwrap().ends_with.unwrap();
    let [renewals, reader, _] = lock_owners(&mut root).await[..] else { panic!("three connections") };
    let mut other = raw(server.addr()).await;
    other.query_drop("LOCK TABLES oarlock_session WRITE").await.unwrap();
    // The one that listens hears of that, and opens others: their session cannot be written down yet.
    root.query_drop(format!("KILL {renewals}")).await.unwrap();
    let begins = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table%lock'";
    until(&mut root, begins, 1).await;
    assert!(!end.has_ended());
    root.query_drop(format!("KILL {reader}")).await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), end.ended()).await.expect("the session goes on");
    drop(other);
}

/// Group replication was started on the server: other clients would be told of an end of the session that this one
/// cannot notice any more.
async fn a_session_that_cannot_be_kept_up_any_more_is_over(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let end = grant(&store, &claim(1, "held")).await.unwrap().ends_with.unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON oarlock_session FOR EACH ROW
        SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 3098, MESSAGE_TEXT = 'not here'";
    root.query_drop(refuse).await.unwrap();
    let renewals = lock_owners(&mut root).await[0];
    root.query_drop(format!("KILL {renewals}")).await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), end.ended()).await.expect("the session goes on");
    // From now on leases count alone.
    assert_eq!(grant(&store, &claim(2, "next")).await.unwrap().ends_with, None);
}

/// A connection that replaced one that ended just then may have come after it: in between there was none, and others
/// may have seen that.
async fn ends_with_the_last_of_its_connections(on: Flavour, by_renewal: bool) {
    let Some((server, _root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let mut config = config(proxy.addr());
    (config.connect_timeout, config.silence_timeout) = (Duration::from_secs(3), Duration::from_secs(3));
    for bits in 1..=10 {
        let store = MySql::connect(config.clone()).await.unwrap();
        let (held, next) = (claim(bits, &format!("held {bits}")), claim(bits, &format!("next {bits}")));
        grant(&store, &held).await.unwrap();
        let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
        // The connections that are there must not be asked again at once, and the sign of life of one is awaited for
        // three seconds.
        tokio::time::sleep(Duration::from_millis(150)).await;
        proxy.strand();
        let begun = Instant::now();
        let done = if by_renewal { renew(&store, &held).await.is_ok() } else { grant(&store, &next).await.is_ok() };
        proxy.reset_stranded();
        // The new one is less than a second old, whatever else this machine does.
        if done && begun.elapsed() < Duration::from_millis(3500) {
            assert!(tokio::time::timeout(Duration::from_secs(30), mailbox.changed()).await.unwrap().is_some());
            assert_eq!(renew(&store, &held).await.unwrap(), Renewed::Gone(Gone::Session));
            return;
        }
    }
    panic!("this machine is too slow");
}

async fn a_session_whose_listener_was_replaced_just_before_its_end_is_over(on: Flavour) {
    ends_with_the_last_of_its_connections(on, true).await;
}

async fn a_session_that_has_only_connections_from_after_the_end_of_its_listener_is_over(on: Flavour) {
    ends_with_the_last_of_its_connections(on, false).await;
}

async fn a_connection_that_ended_while_it_was_idle_costs_no_request(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let held = claim(1, "held");
    grant(&store, &held).await.unwrap();
    // The one with the first liveness lock, the one that listens, and the one for requests.
    let idle = lock_owners(&mut root).await;
    assert_eq!(idle.len(), 3);
    root.query_drop(format!("KILL {}", idle[2])).await.unwrap();
    until(&mut root, &format!("SELECT COUNT(*) FROM information_schema.processlist WHERE id = {}", idle[2]), 0).await;
    // It is asked for a sign of life if it was not used for a tenth of a second.
    tokio::time::sleep(Duration::from_millis(150)).await;
    grant(&store, &claim(2, "next")).await.unwrap();
}

/// As on a replica that only reads, and is promoted a moment later.
async fn a_session_that_could_not_begin_is_not_kept_up(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = MySql::connect(config(proxy.addr())).await.unwrap();
    let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    // The next one cannot be written down, and the one after that can.
    root.query_drop("CREATE TABLE begun (count INT NOT NULL) ENGINE = MEMORY; INSERT INTO begun VALUES (0)")
        .await
        .unwrap();
    root.query_drop(
        "CREATE TRIGGER refuse BEFORE INSERT ON oarlock_session FOR EACH ROW BEGIN
            UPDATE begun SET count = count + 1;
            IF (SELECT count FROM begun) = 1 THEN
                SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'only reads';
            END IF;
        END",
    )
    .await
    .unwrap();
    proxy.heal(Held::Reset).unwrap();
    tokio::time::timeout(Duration::from_secs(30), mailbox.changed()).await.unwrap();
    let error = store.attempt(&claim(1, "held")).await.unwrap_err();
    assert_eq!((error.applied(), error.retry()), (Applied::No, Retry::Later), "{error}");
    let mut begun = Vec::new();
    for _ in 0..2 {
        // Long enough for something that must not happen.
        tokio::time::sleep(Duration::from_millis(500)).await;
        begun.push(root.query_first::<u64, _>("SELECT count FROM begun").await.unwrap().unwrap());
        grant(&store, &claim(1, "held")).await.unwrap();
        assert!(matches!(renew(&store, &claim(1, "held")).await.unwrap(), Renewed::Alive { .. }));
    }
    assert_eq!(begun, [1, 2], "another client begins sessions");
}

async fn rows_of_dead_sessions_are_forgotten_behind_any_number_of_living_ones(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let mut living = Vec::new();
    for _ in 0..21 {
        living.push(MySql::connect(config(server.addr())).await.unwrap());
    }
    root.query_drop("UPDATE oarlock_session SET begun = begun - 25 * 3600 * 1000000").await.unwrap();
    root.query_drop("INSERT INTO oarlock_session SELECT 2, MAX(boot), MAX(kills), MAX(begun) + 1 FROM oarlock_session")
        .await
        .unwrap();
    // Each looks at twenty.
    for _ in 0..2 {
        let short = MySql::connect(config(server.addr())).await.unwrap();
        short.close().await.unwrap();
    }
    let left: Vec<i64> = root.query("SELECT number = 2 FROM oarlock_session").await.unwrap();
    assert_eq!(left, [0; 21], "of the living alone");
}

/// Lets what follows not depend on who was killed.
async fn forget_kills(root: &mut Conn) {
    let kills = counted(root, "Com_kill").await;
    root.query_drop(format!("UPDATE oarlock_session SET kills = {kills}")).await.unwrap();
}

async fn a_dead_process_frees_what_it_held_and_where_it_waited(on: Flavour) {
    let Some((server, _root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let (store, rival) =
        (MySql::connect(config(proxy.addr())).await.unwrap(), MySql::connect(config(server.addr())).await.unwrap());
    let (held, mut kept, mut waits) = (claim(1, "held"), claim(2, "kept"), claim(3, "queue"));
    kept.lifetime = Lifetime::Lease;
    waits.wait = true;
    let first = grant(&store, &held).await.unwrap();
    grant(&store, &kept).await.unwrap();
    let holder = claim(4, "queue");
    grant(&rival, &holder).await.unwrap();
    pending(&store, &waits).await;
    // What the kernel does to the connections of a dead process.
    proxy.refuse();
    let mut second = claim(5, "held");
    for _ in 0..200 {
        second.wait = true;
        if let oarlock_core::driver::Attempt::Granted(grant) = rival.attempt(&second).await.unwrap() {
            assert!(grant.fence > first.fence);
            rival.release(&holder.resource, holder.id, &End::Done { memo: None }).await.unwrap();
            self::grant(&rival, &claim(6, "queue")).await.unwrap();
            pending(&rival, &claim(7, "kept")).await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a dead process still holds its lock after two seconds");
}

/// Whether this is not the long tier, which is said.
fn is_short() -> bool {
    let short = std::env::var_os("OARLOCK_LONG").is_none();
    if short {
        println!("only in the long tier (OARLOCK_LONG=1)");
    }
    short
}

/// Cuts a holder off, lets `disaster` befall the server, and expects that nothing but its lease counts.
async fn survives_while_cut_off(on: Flavour, disaster: impl FnOnce(&Server) + Send + 'static, kill: bool) {
    let Some((server, mut root)) = start(on).await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = MySql::connect(config(proxy.addr())).await.unwrap();
    let held = claim(1, "held");
    grant(&store, &held).await.unwrap();
    proxy.cut();
    if kill {
        for connection in lock_owners(&mut root).await {
            root.query_drop(format!("KILL {connection}")).await.unwrap();
        }
        let ours = "SELECT COUNT(*) FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = 'locks'";
        until(&mut root, ours, 0).await;
    }
    let server = tokio::task::spawn_blocking(move || {
        disaster(&server);
        server
    });
    let server = server.await.unwrap();
    let rival = MySql::connect(config(server.addr())).await.unwrap();
    let left = pending(&rival, &claim(2, "held")).await.recheck_after.unwrap();
    let page = rival.inspect(&Query::live()).await.unwrap();
    assert_eq!(page.resources.first().map(|state| state.holders.len()), Some(1), "a holder that blocks is not shown");
    assert!(left > Duration::ZERO && left <= held.ttl, "{left:?}");
}

async fn a_restart_is_not_the_death_of_a_holder_that_is_cut_off(on: Flavour) {
    survives_while_cut_off(on, |server| server.restart().unwrap(), false).await;
}

async fn a_crash_of_the_server_is_not_the_death_of_a_holder_that_is_cut_off(on: Flavour) {
    if is_short() {
        return;
    }
    survives_while_cut_off(
        on,
        |server| {
            server.kill().unwrap();
            server.restart().unwrap();
        },
        false,
    )
    .await;
}

async fn an_administrator_who_ends_all_connections_does_not_kill_a_holder_that_is_cut_off(on: Flavour) {
    survives_while_cut_off(on, |_| {}, true).await;
}

/// While it goes down, the server may tell others that a client is gone whose connections it has just ended itself.
async fn a_holder_hears_that_the_server_went_down_and_what_lives_by_its_lease_survives(on: Flavour) {
    if is_short() {
        return;
    }
    let Some((server, _root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let (held, mut kept) = (claim(1, "held"), claim(2, "kept"));
    kept.lifetime = Lifetime::Lease;
    grant(&store, &held).await.unwrap();
    let fence = grant(&store, &kept).await.unwrap().fence;
    let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    let server = tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    });
    let server = server.await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(30), mailbox.changed()).await.unwrap().is_some());
    assert_eq!(renew(&store, &held).await.unwrap(), Renewed::Gone(Gone::Session));
    let renewed = renew(&store, &kept).await.unwrap();
    assert!(matches!(renewed, Renewed::Alive { fence: Some(same), .. } if same == fence), "{renewed:?}");
    // The next run of the server cannot say why the client is not there.
    let rival = MySql::connect(config(server.addr())).await.unwrap();
    pending(&rival, &claim(3, "held")).await;
}

/// A transaction that keeps the row of a name locked.
async fn locker(server: &Server, name: &str) -> Conn {
    let mut conn = raw(server.addr()).await;
    // As our own steps do: otherwise the server also keeps others from making names that come right before it.
    conn.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION").await.unwrap();
    let lock = format!("SELECT number FROM oarlock_resource WHERE name = '{name}' FOR UPDATE");
    assert!(conn.query_first::<i64, _>(lock).await.unwrap().is_some());
    conn
}

/// The connection that is in the middle of `verb`, where it waits for the row of a name.
async fn in_the_middle_of(on: Flavour, root: &mut Conn, verb: &str) -> u64 {
    let waiting = match on {
        // Not from the picture of transactions, which is an old one if a client keeps looking.
        Flavour::MariaDb => {
            "SELECT id FROM information_schema.processlist WHERE command = 'Execute' AND time_ms > 20
            AND (info LIKE '%FROM oarlock_resource WHERE name%FOR UPDATE%' OR info LIKE '%UPDATE oarlock_resource%')"
        }
        Flavour::MySql => {
            "SELECT processlist_id FROM performance_schema.data_lock_waits JOIN performance_schema.threads
            ON thread_id = requesting_thread_id"
        }
    };
    for _ in 0..500 {
        if let Some(connection) = root.query_first(waiting).await.unwrap() {
            return connection;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no connection is in the middle of {verb}");
}

async fn a_connection_killed_in_the_middle_of_a_verb_leaves_nothing_half_done(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    for kill in ["KILL", "KILL QUERY"] {
        let name = kill.to_lowercase();
        let store = Arc::new(MySql::connect(config(server.addr())).await.unwrap());
        let (old, held) = (claim(1, &name), claim(2, &name));
        let before = grant(&store, &old).await.unwrap().fence;
        store.release(&old.resource, old.id, &End::Withdrawn).await.unwrap();

        // attempt
        let mut lock = locker(&server, &name).await;
        let (asking, wanted) = (store.clone(), held.clone());
        let verb = tokio::spawn(async move { grant(&asking, &wanted).await });
        let middle = in_the_middle_of(on, &mut root, "attempt").await;
        root.query_drop(format!("{kill} {middle}")).await.unwrap();
        doubtful(&verb.await.unwrap().unwrap_err());
        lock.query_drop("ROLLBACK").await.unwrap();
        let fence = grant(&store, &held).await.unwrap().fence;
        assert!(fence > before);
        assert_eq!(grant(&store, &held).await.unwrap().fence, fence);

        // renew
        lock.query_drop("START TRANSACTION").await.unwrap();
        lock.query_drop(format!("SELECT 1 FROM oarlock_resource WHERE name = '{name}' FOR UPDATE")).await.unwrap();
        let mut killed = None;
        for _ in 0..30 {
            let (asking, wanted) = (store.clone(), held.clone());
            let verb = tokio::spawn(async move { renew(&asking, &wanted).await });
            let middle = in_the_middle_of(on, &mut root, "renew").await;
            root.query_drop(format!("{kill} {middle}")).await.unwrap();
            // It waits for a second, and is answered then if we were too late.
            killed = Some(verb.await.unwrap().unwrap_err()).filter(|error| error.applied() == Applied::Unknown);
            if killed.is_some() {
                break;
            }
        }
        doubtful(&killed.unwrap());
        lock.query_drop("ROLLBACK").await.unwrap();
        let renewed = renew(&store, &held).await.unwrap();
        assert!(matches!(renewed, Renewed::Alive { fence: Some(same), .. } if same == fence), "{renewed:?}");

        // release
        lock.query_drop("START TRANSACTION").await.unwrap();
        lock.query_drop(format!("SELECT 1 FROM oarlock_resource WHERE name = '{name}' FOR UPDATE")).await.unwrap();
        let (asking, wanted) = (store.clone(), held.clone());
        let end = End::Done { memo: None };
        let verb = tokio::spawn(async move { asking.release(&wanted.resource, wanted.id, &end).await });
        let middle = in_the_middle_of(on, &mut root, "release").await;
        root.query_drop(format!("{kill} {middle}")).await.unwrap();
        doubtful(&verb.await.unwrap().unwrap_err());
        lock.query_drop("ROLLBACK").await.unwrap();
        let end = End::Done { memo: None };
        assert_eq!(store.release(&held.resource, held.id, &end).await.unwrap().outcome, Released::Released);
        assert!(grant(&store, &claim(3, &name)).await.unwrap().fence > fence);
        // Nothing that was interrupted keeps a row locked.
        until(&mut root, "SELECT COUNT(*) FROM information_schema.innodb_trx", 0).await;
    }
}

fn doubtful(error: &Error) {
    assert_eq!((error.applied(), error.retry()), (Applied::Unknown, Retry::Later), "{error}");
}

/// Steps lock the row of a name first and renewals wait for one name at a time, so only another program can cause a
/// deadlock.
async fn the_loser_of_a_deadlock_had_no_effect_and_may_try_again_at_once(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = Arc::new(MySql::connect(config(server.addr())).await.unwrap());
    let held = claim(1, "circle");
    let fence = grant(&store, &held).await.unwrap().fence;
    let mut other = raw(server.addr()).await;
    // The server rolls back the transaction that has done less.
    other.query_drop("CREATE TABLE heavy (number BIGINT PRIMARY KEY); START TRANSACTION").await.unwrap();
    other.query_drop("INSERT INTO heavy WITH RECURSIVE many AS (SELECT 1 AS number UNION ALL SELECT number + 1 FROM many WHERE number < 1000) SELECT number FROM many").await.unwrap();
    other.query_drop("SELECT 1 FROM oarlock_claim FOR UPDATE").await.unwrap();
    let (asking, wanted) = (store.clone(), held.clone());
    let verb = tokio::spawn(async move { asking.release(&wanted.resource, wanted.id, &End::Withdrawn).await });
    until(&mut root, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'", 1).await;
    other.query_drop("SELECT 1 FROM oarlock_resource FOR UPDATE").await.unwrap();
    let error = verb.await.unwrap().unwrap_err();
    assert_eq!((error.applied(), error.retry()), (Applied::No, Retry::Now), "{error}");
    other.query_drop("ROLLBACK").await.unwrap();
    assert_eq!(grant(&store, &held).await.unwrap().fence, fence, "it had an effect");
    let released = store.release(&held.resource, held.id, &End::Withdrawn).await.unwrap();
    assert_eq!(released.outcome, Released::Released);
}

/// A client in the middle of a transaction on one name, and a row of a newer version.
async fn one_name_that_is_not_to_be_had_spoils_no_other_renewal(on: Flavour) {
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let claims = ["a", "b", "c", "d"].map(|name| claim(1, name));
    let batch = claims.clone().map(|claim| Renewal::of(Arc::new(claim)));
    for claim in &claims {
        grant(&store, claim).await.unwrap();
    }
    let mut other = locker(&server, "b").await;
    root.query_drop("UPDATE oarlock_resource SET format = 3 WHERE name = 'c'").await.unwrap();
    let mut answers = store.renew(&batch).await.into_iter();
    let mut next = || answers.next().unwrap();
    assert!(matches!(next(), Ok(Renewed::Alive { .. })));
    let error = next().unwrap_err();
    assert_eq!((error.applied(), error.retry()), (Applied::No, Retry::Later), "{error}");
    assert_eq!(next().unwrap_err().kind(), ErrorKind::NewerFormat);
    assert!(matches!(next(), Ok(Renewed::Alive { .. })));
    // Nothing is kept locked meanwhile, so no deadlock is possible.
    let asking = Arc::new(store);
    let (store, kept) = (asking.clone(), batch.clone());
    let verb = tokio::spawn(async move { asking.renew(&kept).await });
    in_the_middle_of(on, &mut root, "renew").await;
    let closing = "SELECT number FROM oarlock_resource WHERE name = 'a' FOR UPDATE";
    assert!(other.query_first::<i64, _>(closing).await.unwrap().is_some());
    assert!(matches!(verb.await.unwrap()[0], Ok(Renewed::Alive { .. })));
    other.query_drop("ROLLBACK").await.unwrap();
    assert!(matches!(renew(&store, &claims[1]).await.unwrap(), Renewed::Alive { .. }));
}

/// The bound of the other server is for questions alone, and not for those in procedures.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_that_took_too_long_leaves_no_row_locked() {
    let Some((server, mut root)) = start(Flavour::MariaDb).await else { return };
    let first = MySql::connect(config(server.addr())).await.unwrap();
    let old = claim(1, "slow");
    let fence = grant(&first, &old).await.unwrap().fence;
    root.query_drop("SET GLOBAL max_statement_time = 2").await.unwrap();
    let store = MySql::connect(config(server.addr())).await.unwrap();
    root.query_drop("SET GLOBAL max_statement_time = 0").await.unwrap();
    let mut lock = locker(&server, "slow").await;
    let mut waits = claim(2, "slow");
    waits.wait = true;
    let error = store.attempt(&waits).await.unwrap_err();
    doubtful(&error);
    lock.query_drop("ROLLBACK").await.unwrap();
    until(&mut root, "SELECT COUNT(*) FROM information_schema.innodb_trx", 0).await;
    pending(&store, &waits).await;
    let page = store.inspect(&Query::live()).await.unwrap();
    assert!(matches!(&page.resources[0].waiters, Waiters::Listed(waiters) if waiters.len() == 1), "{page:?}");
    first.release(&old.resource, old.id, &End::Done { memo: None }).await.unwrap();
    assert!(grant(&store, &waits).await.unwrap().fence > fence);
}

/// The bound of ten seconds is the driver's own: a longer wait is behind a row that a program forgot to unlock.
async fn a_row_that_is_not_to_be_had_is_given_up_without_effect(on: Flavour) {
    if is_short() {
        return;
    }
    let Some((server, mut root)) = start(on).await else { return };
    let store = MySql::connect(config(server.addr())).await.unwrap();
    let (held, other) = (claim(1, "row"), claim(2, "other"));
    let fence = grant(&store, &held).await.unwrap().fence;
    let mut lock = locker(&server, "row").await;
    let error = renew(&store, &held).await.unwrap_err();
    assert_eq!((error.applied(), error.retry()), (Applied::No, Retry::Later), "{error}");
    // Meanwhile other names are free to be had.
    grant(&store, &other).await.unwrap();
    lock.query_drop("ROLLBACK").await.unwrap();
    assert!(matches!(renew(&store, &held).await.unwrap(), Renewed::Alive { fence: Some(same), .. } if same == fence));
    until(&mut root, "SELECT COUNT(*) FROM information_schema.innodb_trx", 0).await;
}

async fn a_server_without_free_connections_is_named_and_waited_for(on: Flavour) {
    let Some((server, root)) = start_with(on, &[("max-connections", "12")]).await else { return };
    drop(root);
    let client = Locks::over(MySql::connect(config(server.addr())).await.unwrap()).unwrap();
    let guard = client.mutex("crowded").lock().await.unwrap();
    let opts = mysql_async::OptsBuilder::default().ip_or_hostname("127.0.0.1").tcp_port(server.addr().port());
    let opts: mysql_async::Opts = opts.user(Some("root")).db_name(Some("locks")).prefer_socket(false).into();
    let mut others = Vec::new();
    while let Ok(other) = Conn::new(opts.clone()).await {
        others.push(other);
    }
    let error = MySql::connect(config(server.addr())).await.unwrap_err();
    assert_eq!((error.applied(), error.retry()), (Applied::No, Retry::Later), "{error}");
    // The clients that are there go on.
    assert!(client.mutex("crowded").try_lock().await.unwrap().is_none());
    let fence = guard.fence();
    guard.release().await.unwrap();
    let guard = client.mutex("crowded").lock().await.unwrap();
    assert!(guard.fence() > fence);
    guard.release().await.unwrap();
}

on_both!(
    a_liveness_lock_that_is_killed_frees_nothing_and_is_taken_again,
    a_holder_hears_that_its_connections_ended_though_it_has_nothing_to_ask,
    old_connections_that_the_server_still_has_block_no_client,
    every_grant_hears_of_the_end_of_its_own_session,
    a_session_whose_last_old_connection_ends_while_others_are_opened_is_over,
    a_session_that_cannot_be_kept_up_any_more_is_over,
    a_session_whose_listener_was_replaced_just_before_its_end_is_over,
    a_session_that_has_only_connections_from_after_the_end_of_its_listener_is_over,
    a_connection_that_ended_while_it_was_idle_costs_no_request,
    a_session_that_could_not_begin_is_not_kept_up,
    rows_of_dead_sessions_are_forgotten_behind_any_number_of_living_ones,
    a_dead_process_frees_what_it_held_and_where_it_waited,
    a_restart_is_not_the_death_of_a_holder_that_is_cut_off,
    a_crash_of_the_server_is_not_the_death_of_a_holder_that_is_cut_off,
    an_administrator_who_ends_all_connections_does_not_kill_a_holder_that_is_cut_off,
    a_holder_hears_that_the_server_went_down_and_what_lives_by_its_lease_survives,
    a_connection_killed_in_the_middle_of_a_verb_leaves_nothing_half_done,
    the_loser_of_a_deadlock_had_no_effect_and_may_try_again_at_once,
    one_name_that_is_not_to_be_had_spoils_no_other_renewal,
    a_row_that_is_not_to_be_had_is_given_up_without_effect,
    a_server_without_free_connections_is_named_and_waited_for,
);
