//! What a server may do to its clients in the middle of their work: fences never repeat, belief ends first, nothing is
//! stuck.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Gone, Interest, Released, Renewal, Renewed};
use oarlock_core::error::{Applied, Retry};
use oarlock_core::state::Ending;
use oarlock_core::{Error, ErrorKind, Locks};
use oarlock_sql::postgres::{Advisory, Postgres, PostgresSession};
use oarlock_testbed::proxy::Proxy;
use tokio_postgres::NoTls;

use crate::store::{Server, caught_up, claim, config, grant, renew, start, until};

/// Longer than anything here takes on a busy machine.
const BOUND: Duration = Duration::from_secs(30);

async fn raw(server: &Server) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A server with settings of its own, and a client that looks behind the scenes.
async fn start_with(settings: &'static [(&str, &str)]) -> Option<(Server, tokio_postgres::Client)> {
    let server = tokio::task::spawn_blocking(|| Server::start_with_or_skip(settings)).await.unwrap().unwrap()?;
    let root = raw(&server).await;
    Some((server, root))
}

/// Those who wait for the row of a name.
const IN_THE_MIDDLE: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%oarlock%'";

/// Ends them.
const END_THEM: &str =
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%oarlock%'";

#[tokio::test]
async fn a_connection_ended_in_the_middle_of_a_verb_leaves_nothing_half_done() {
    let Some((server, root)) = start().await else { return };
    let store = Arc::new(Postgres::connect(config(server.addr())).await.unwrap());
    let (old, held) = (claim(1, "killed"), claim(2, "killed"));
    let before = grant(&store, &old).await.unwrap().fence;
    store.release(&old.resource, old.id, &End::Withdrawn).await.unwrap();
    let lock = "BEGIN; SELECT FROM oarlock.resource FOR UPDATE";
    let doubtful =
        |error: Error| assert_eq!((error.applied(), error.retry()), (Applied::Unknown, Retry::Later), "{error}");

    root.batch_execute(lock).await.unwrap();
    let (asking, wanted) = (store.clone(), held.clone());
    let verb = tokio::spawn(async move { grant(&asking, &wanted).await });
    until(&root, IN_THE_MIDDLE, 1).await;
    assert_eq!(root.query(END_THEM, &[]).await.unwrap().len(), 1);
    doubtful(verb.await.unwrap().unwrap_err());
    root.batch_execute("ROLLBACK").await.unwrap();
    let fence = grant(&store, &held).await.unwrap().fence;
    assert!(fence > before);
    assert_eq!(grant(&store, &held).await.unwrap().fence, fence);

    root.batch_execute(lock).await.unwrap();
    let (asking, batch) = (store.clone(), [Renewal::of(Arc::new(held.clone()))]);
    let verb = tokio::spawn(async move { asking.renew(&batch).await.remove(0) });
    until(&root, IN_THE_MIDDLE, 1).await;
    assert_eq!(root.query(END_THEM, &[]).await.unwrap().len(), 1);
    doubtful(verb.await.unwrap().unwrap_err());
    root.batch_execute("ROLLBACK").await.unwrap();
    let renewed = renew(&store, &held).await;
    assert!(matches!(renewed, Renewed::Alive { fence: Some(same), .. } if same == fence), "{renewed:?}");

    root.batch_execute(lock).await.unwrap();
    let (asking, wanted) = (store.clone(), held.clone());
    let verb =
        tokio::spawn(async move { asking.release(&wanted.resource, wanted.id, &End::Done { memo: None }).await });
    until(&root, IN_THE_MIDDLE, 1).await;
    assert_eq!(root.query(END_THEM, &[]).await.unwrap().len(), 1);
    doubtful(verb.await.unwrap().unwrap_err());
    root.batch_execute("ROLLBACK").await.unwrap();
    let released = store.release(&held.resource, held.id, &End::Done { memo: None }).await.unwrap();
    assert_eq!(released.outcome, Released::Released);
    assert!(grant(&store, &claim(3, "killed")).await.unwrap().fence > fence);
    until(&root, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'", 0).await;
}

/// Steps lock the row of a name first and renewals wait for one name at a time, so only another program can cause a
/// deadlock.
#[tokio::test]
async fn the_loser_of_a_deadlock_had_no_effect_and_may_try_again_at_once() {
    let Some((server, root)) = start().await else { return };
    // Only our own look for deadlocks, so that they are the ones who are given up.
    root.batch_execute("SET deadlock_timeout = '10min'; ALTER ROLE postgres SET deadlock_timeout = '3s'")
        .await
        .unwrap();
    let store = Arc::new(Postgres::connect(config(server.addr())).await.unwrap());
    let held = claim(1, "circle");
    let fence = grant(&store, &held).await.unwrap().fence;
    root.batch_execute("BEGIN; SELECT FROM oarlock.claim FOR UPDATE").await.unwrap();
    let (asking, wanted) = (store.clone(), held.clone());
    let verb = tokio::spawn(async move { asking.release(&wanted.resource, wanted.id, &End::Withdrawn).await });
    until(&raw(&server).await, IN_THE_MIDDLE, 1).await;
    let closing = root.batch_execute("SELECT FROM oarlock.resource FOR UPDATE");
    tokio::time::timeout(BOUND, closing).await.unwrap().unwrap();
    let error = tokio::time::timeout(BOUND, verb).await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.applied(), error.retry()), (Applied::No, Retry::Now), "{error}");
    root.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(grant(&store, &held).await.unwrap().fence, fence, "it had an effect");
    let released = store.release(&held.resource, held.id, &End::Withdrawn).await.unwrap();
    assert_eq!(released.outcome, Released::Released);
}

/// A stranger keeps the row of one name locked, and several requests wait for it: other names are served.
#[tokio::test]
async fn a_stranger_who_locks_one_name_stops_no_other() {
    let Some((server, root)) = start().await else { return };
    let store = Arc::new(Postgres::connect(config(server.addr())).await.unwrap());
    let first = claim(1, "locked");
    grant(&store, &first).await.unwrap();
    root.batch_execute("BEGIN; SELECT FROM oarlock.resource FOR UPDATE").await.unwrap();
    let stuck: Vec<_> = (2..10)
        .map(|bits| {
            let store = store.clone();
            tokio::spawn(async move { store.attempt(&claim(bits, "locked")).await })
        })
        .collect();
    until(&root, IN_THE_MIDDLE, 2).await;
    for bits in 10..20 {
        let other = claim(bits, "other");
        let served = tokio::time::timeout(Duration::from_secs(4), grant(&store, &other)).await;
        served.expect("an answer").unwrap();
        store.release(&other.resource, other.id, &End::Withdrawn).await.unwrap();
    }
    root.batch_execute("ROLLBACK").await.unwrap();
    for request in stuck {
        assert!(matches!(request.await.unwrap().unwrap(), Attempt::Pending(_)));
    }
}

/// A server that has no connection to spare serves all requests on those that there are.
#[tokio::test]
async fn without_a_connection_to_spare_requests_wait_for_their_turn() {
    let Some((server, root)) = start_with(&[("max_connections", "8")]).await else { return };
    let store = Arc::new(Postgres::connect(config(server.addr())).await.unwrap());
    let held = claim(1, "renewed");
    grant(&store, &held).await.unwrap();
    renew(&store, &held).await;
    let mut taken = Vec::new();
    while let Ok((client, connection)) = tokio_postgres::connect(&server.url(), NoTls).await {
        tokio::spawn(connection);
        taken.push(client);
    }
    assert!(!taken.is_empty());
    let requests: Vec<_> = (2..40)
        .map(|bits| {
            let store = store.clone();
            tokio::spawn(async move { grant(&store, &claim(bits, &format!("own {bits}"))).await.map(drop) })
        })
        .collect();
    for request in requests {
        tokio::time::timeout(BOUND, request).await.unwrap().unwrap().unwrap();
    }
    until(&root, "SELECT count(*) FROM oarlock.claim WHERE fence IS NOT NULL", 39).await;
}

#[tokio::test]
async fn what_the_server_undid_is_tried_again() {
    let Some((server, root)) = start().await else { return };
    let client = Locks::over(Postgres::connect(config(server.addr())).await.unwrap()).unwrap();
    let full = "too many notifications in the NOTIFY queue";
    let undone =
        [("40001", "not now"), ("40P01", "not now"), ("55P03", "not now"), ("53200", "not now"), ("54000", full)];
    for (number, (state, words)) in undone.iter().enumerate() {
        // The next two changes of a name fail in this way.
        let undo = format!(
            "CREATE SEQUENCE undone{number}; CREATE FUNCTION undo{number}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('undone{number}') <= 2 THEN RAISE EXCEPTION '{words}' USING ERRCODE = '{state}'; END IF;
                RETURN new; END $$;
            CREATE OR REPLACE TRIGGER undo BEFORE INSERT OR UPDATE ON oarlock.resource FOR EACH ROW
                EXECUTE FUNCTION undo{number}()"
        );
        root.batch_execute(&undo).await.unwrap();
        let lock = client.mutex(format!("undone {state}"));
        let guard = tokio::time::timeout(BOUND, lock.lock()).await.unwrap().unwrap();
        let last: i64 = root.query_one(&format!("SELECT last_value FROM undone{number}"), &[]).await.unwrap().get(0);
        assert!(last > 2, "{state}: nothing was undone");
        guard.release().await.unwrap();
    }
}

/// A full queue of notices has the same state as what will never go well.
#[tokio::test]
async fn what_is_too_long_is_not_tried_again() {
    let Some((server, root)) = start().await else { return };
    let client = Locks::over(Postgres::connect(config(server.addr())).await.unwrap()).unwrap();
    // Random, so that it cannot be compressed.
    let too_long = "CREATE TABLE public.narrow (value text PRIMARY KEY);
        CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO public.narrow SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 500);
            RETURN new; END $$;
        CREATE TRIGGER fill BEFORE INSERT OR UPDATE ON oarlock.resource FOR EACH ROW EXECUTE FUNCTION fill()";
    root.batch_execute(too_long).await.unwrap();
    let refused = tokio::time::timeout(BOUND, client.mutex("too long").lock()).await;
    let error = refused.expect("tried again and again").unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Internal, Retry::Never), "{error}");
}

#[tokio::test]
async fn a_statement_that_took_too_long_had_no_effect() {
    let Some((server, root)) = start().await else { return };
    root.batch_execute("CREATE ROLE hasty LOGIN SUPERUSER; ALTER ROLE hasty SET statement_timeout = '3s'")
        .await
        .unwrap();
    let first = Postgres::connect(config(server.addr())).await.unwrap();
    let old = claim(1, "slow");
    let fence = grant(&first, &old).await.unwrap().fence;
    let mut hasty = config(server.addr());
    hasty.user = Some("hasty".into());
    let store = Postgres::connect(hasty).await.unwrap();
    root.batch_execute("BEGIN; SELECT FROM oarlock.resource FOR UPDATE").await.unwrap();
    let error = store.attempt(&claim(2, "slow")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!((error.applied(), error.retry()), (Applied::No, Retry::Later), "{error}");
    root.batch_execute("ROLLBACK").await.unwrap();
    assert!(matches!(store.attempt(&claim(2, "slow")).await.unwrap(), Attempt::Pending(_)));
    first.release(&old.resource, old.id, &End::Done { memo: None }).await.unwrap();
    assert!(grant(&store, &claim(2, "slow")).await.unwrap().fence > fence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_free_connections_is_named_and_waited_for() {
    let settings = &[("max_connections", "12"), ("superuser_reserved_connections", "0"), ("max_wal_senders", "0")];
    let Some((server, root)) = start_with(settings).await else { return };
    let holder = Locks::over(Postgres::connect(config(server.addr())).await.unwrap()).unwrap();
    let client = Locks::builder(Postgres::connect(config(server.addr())).await.unwrap());
    let client = client.ttl(Duration::from_secs(3)).build().unwrap();
    let session = Locks::over(PostgresSession::connect(Advisory::new(config(server.addr()))).await.unwrap()).unwrap();
    let mut others = Vec::new();
    while let Ok((other, connection)) = tokio_postgres::connect(&server.url(), NoTls).await {
        tokio::spawn(connection);
        others.push(other);
    }
    let error = Postgres::connect(config(server.addr())).await.unwrap_err();
    assert_eq!((error.kind(), error.applied(), error.retry()), (ErrorKind::Unreachable, Applied::No, Retry::Later));
    // The clients that are there go on: there is no connection to watch the holder on, and the lock is granted all the
    // same.
    let guard = holder.mutex("crowded").lock().await.unwrap();
    let lock = client.mutex("crowded").wait(BOUND);
    let waiting = tokio::spawn(async move { lock.lock().await });
    until(&root, "SELECT count(*) FROM oarlock.claim WHERE id IS NOT NULL AND fence IS NULL", 1).await;
    guard.release().await.unwrap();
    tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap().unwrap().release().await.unwrap();
    // A session lock that has to wait needs a connection: it is had once there is one.
    root.batch_execute(
        "BEGIN; SELECT pg_advisory_xact_lock(('x' || left(encode(sha256('crowded'), 'hex'), 16))::bit(64)::bigint)",
    )
    .await
    .unwrap();
    let lock = session.mutex("crowded").wait(BOUND);
    let waiting = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    others.clear();
    root.batch_execute("COMMIT").await.unwrap();
    tokio::time::timeout(BOUND, waiting).await.unwrap().unwrap().unwrap().release().await.unwrap();
}

/// What a server does whose queue of notices is full: a transaction that sends one cannot commit.
const FULL: &str = "CREATE SCHEMA full_queue;
    CREATE FUNCTION full_queue.pg_notification_queue_usage() RETURNS float8 LANGUAGE sql AS 'SELECT 0.95';
    CREATE FUNCTION full_queue.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$;";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_of_notices_stops_no_lock() {
    let Some((server, root)) = start().await else { return };
    let before = Locks::over(Postgres::connect(config(server.addr())).await.unwrap()).unwrap();
    root.batch_execute(FULL).await.unwrap();
    root.batch_execute("ALTER ROLE postgres SET search_path = full_queue, pg_catalog, public").await.unwrap();
    let connect = async || Locks::over(Postgres::connect(config(server.addr())).await.unwrap()).unwrap();
    let (holder, rival) = (connect().await, connect().await);
    let waiting = "SELECT count(*) FROM oarlock.claim WHERE id IS NOT NULL AND fence IS NULL";
    for (name, is_broken) in [("released", false), ("broken", true)] {
        let held = holder.mutex(name).lock().await.unwrap();
        let lock = rival.mutex(name).fair().wait(BOUND);
        let next = tokio::spawn(async move { lock.lock().await });
        until(&root, waiting, 1).await;
        let fence = held.fence();
        if is_broken {
            let ending = Ending::new("a test", "to see");
            holder.break_hold(held.resource(), fence, ending, Duration::ZERO).await.unwrap();
        } else {
            held.release().await.unwrap();
        }
        // It is told nothing, and comes by itself.
        let next = tokio::time::timeout(BOUND, next).await.unwrap().unwrap().unwrap();
        assert!(next.fence() > fence);
        next.release().await.unwrap();
        // A client that sees a queue with room sends notices as ever.
        before.mutex(name).lock().await.unwrap().release().await.unwrap();
    }
}

/// The standby has not seen the last grant when its primary dies: that one is forgotten, and its fence is not given
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_belief_ends_first_and_fences_still_rise() {
    let Some((primary, root)) = start().await else { return };
    let client = Locks::builder(Postgres::connect(config(primary.addr())).await.unwrap());
    let client = client.ttl(Duration::from_secs(4)).build().unwrap();
    let line = Arc::new(Proxy::start(primary.addr()).unwrap());
    let addr = line.addr();
    let standby = tokio::task::spawn_blocking(move || Server::standby_of(addr)).await.unwrap().unwrap();
    let copied = client.mutex("copied").lock().await.unwrap();
    let theirs = raw(&standby).await;
    caught_up(&root, &theirs).await;
    line.cut();
    let lost = client.mutex("lost").lock().await.unwrap();
    let (before_copied, before_lost) = (copied.fence(), lost.fence());
    let primary = tokio::task::spawn_blocking(move || {
        primary.kill().unwrap();
        primary
    });
    let primary = primary.await.unwrap();
    line.refuse();
    theirs.batch_execute("SELECT pg_promote()").await.unwrap();
    until(&theirs, "SELECT (NOT pg_is_in_recovery())::int::bigint", 1).await;

    let rival = Locks::over(Postgres::connect(config(standby.addr())).await.unwrap()).unwrap();
    let next = tokio::time::timeout(BOUND, rival.mutex("lost").lock()).await.unwrap().unwrap();
    assert!(next.fence() > before_lost, "{} after {before_lost}", next.fence());
    // No liveness lock is left, and yet no client is taken for dead: its lease counts.
    let next = tokio::time::timeout(BOUND, rival.mutex("copied").lock()).await.unwrap().unwrap();
    assert!(!copied.is_held(), "two believe");
    assert!(next.fence() > before_copied, "{} after {before_copied}", next.fence());
    drop((copied, lost, primary));
}

/// The primary falls silent, and its address leads to a standby that has taken its place: nothing ends the old
/// connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_does_not_go_on_at_another_server() {
    let Some((primary, root)) = start().await else { return };
    let (addr, door) = (primary.addr(), Proxy::start(primary.addr()).unwrap());
    let mut ours = config(door.addr());
    ours.silence_timeout = Duration::from_secs(2);
    let store = Postgres::connect(ours).await.unwrap();
    let mut held = claim(1, "held");
    held.ttl = Duration::from_secs(240);
    grant(&store, &held).await.unwrap();
    assert!(matches!(renew(&store, &held).await, Renewed::Alive { .. }));
    let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    let standby = tokio::task::spawn_blocking(move || Server::standby_of(addr)).await.unwrap().unwrap();
    let theirs = raw(&standby).await;
    caught_up(&root, &theirs).await;
    door.strand();
    door.aim(standby.addr());
    theirs.batch_execute("SELECT pg_promote()").await.unwrap();
    until(&theirs, "SELECT (NOT pg_is_in_recovery())::int::bigint", 1).await;

    let next = claim(2, "next");
    let arriving = async { while store.attempt(&next).await.is_err() {} };
    tokio::time::timeout(BOUND, arriving).await.unwrap();
    let told = tokio::time::timeout(BOUND, mailbox.changed()).await;
    assert!(told.is_ok_and(|hint| hint.is_some()), "the mailbox did not tell");
    assert_eq!(renew(&store, &held).await, Renewed::Gone(Gone::Session));
    assert!(matches!(renew(&store, &next).await, Renewed::Alive { .. }));
    // The new one is known there: others can see its end, and it hears what it is told.
    let known = "SELECT count(*) FROM oarlock.claim JOIN oarlock.session ON number = session WHERE ended IS NULL";
    until(&theirs, known, 1).await;
    let rival = Postgres::connect(config(standby.addr())).await.unwrap();
    let (theirs, mut waits) = (claim(3, "handed"), claim(4, "handed"));
    waits.wait = true;
    grant(&rival, &theirs).await.unwrap();
    let Attempt::Pending(pending) = store.attempt(&waits).await.unwrap() else { panic!("two hold it") };
    let mut turn = store.watch(&Interest::Turn(Arc::new(waits), pending.cursor)).await.unwrap();
    rival.release(&theirs.resource, theirs.id, &End::Withdrawn).await.unwrap();
    let told = tokio::time::timeout(BOUND, turn.changed()).await;
    assert!(told.is_ok_and(|hint| hint.is_some()), "the next in line was not told");
}

/// The old server is still there for others, who must not be granted what we have not yet given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_left_is_not_seen_to_end() {
    let (Some((old, root)), Some((new, _))) = (start().await, start().await) else { return };
    let door = Proxy::start(old.addr()).unwrap();
    let store = Postgres::connect(config(door.addr())).await.unwrap();
    let (held, next) = (claim(1, "held"), claim(2, "next"));
    grant(&store, &held).await.unwrap();
    door.aim(new.addr());
    let requests = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'oarlock'
        AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";
    assert_eq!(root.query(requests, &[]).await.unwrap().len(), 1);
    let arriving = async { while store.attempt(&next).await.is_err() {} };
    tokio::time::timeout(BOUND, arriving).await.unwrap();
    // This one has never heard of it, or it is known to have ended with its session.
    assert!(matches!(renew(&store, &held).await, Renewed::Gone(_)));
    assert!(matches!(renew(&store, &next).await, Renewed::Alive { .. }));
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(root.query_one(locks, &[]).await.unwrap().get::<_, i64>(0), 1, "its liveness lock was released");
    store.close().await.unwrap();
    until(&root, locks, 0).await;
}
