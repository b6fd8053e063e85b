//! What the end of a connection proves, and what it does not.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::capabilities::{Liveness, Notify};
use oarlock_core::driver::{Attempt, Driver as _, End, Gone, Interest, Pending, Renewal, Renewed};
use oarlock_core::error::{Applied, Retry};
use oarlock_core::state::Query;
use oarlock_core::{Claim, ErrorKind, Lifetime, Locks, LossReason};
use oarlock_sql::postgres::{Config, Postgres};
use oarlock_testbed::PgBouncer;
use oarlock_testbed::proxy::{Held, Proxy, Then};

use crate::store::{Server, claim, config, grant, renew, start, until};

/// Ends the connections that have a liveness lock, from the server's side.
const END_SESSIONS: &str = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";

/// Ends the others of our clients.
const END_REQUESTS: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'oarlock'
    AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";

async fn pending(store: &Postgres, claim: &Claim) -> Pending {
    match store.attempt(claim).await.unwrap() {
        Attempt::Pending(pending) => pending,
        Attempt::Granted(grant) => panic!("granted while another believes: {grant:?}"),
    }
}

#[tokio::test]
async fn the_end_of_a_session_is_the_loss_of_what_is_tethered_to_it() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    let (held, mut kept) = (claim(1, "held"), claim(2, "kept"));
    kept.lifetime = Lifetime::Lease;
    grant(&store, &held).await.unwrap();
    grant(&store, &kept).await.unwrap();
    let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    assert_eq!(root.query(END_SESSIONS, &[]).await.unwrap().len(), 1);
    let told = tokio::time::timeout(Duration::from_secs(8), mailbox.changed()).await;
    assert!(told.is_ok_and(|hint| hint.is_some()), "the mailbox did not tell");
    assert!(mailbox.changed().await.is_none(), "the mailbox did not end");
    assert_eq!(renew(&store, &held).await, Renewed::Gone(Gone::Session));
    assert!(matches!(renew(&store, &kept).await, Renewed::Alive { .. }));
    // With a new session it is still gone, as long as no client claims it again.
    drop(store.watch(&Interest::Mailbox).await.unwrap());
    assert_eq!(renew(&store, &held).await, Renewed::Gone(Gone::Session));
    // The client lives, so no other client may take its claims for those of a dead one.
    assert!(matches!(store.attempt(&claim(3, "held")).await.unwrap(), Attempt::Pending(_)));
}

/// All connections are reset again and again. Nothing is asked, and no mailbox is armed that could rest.
#[tokio::test]
async fn every_grant_hears_of_the_end_of_its_own_session() {
    let Some((server, _root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = Postgres::connect(config(proxy.addr())).await.unwrap();
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

#[tokio::test]
async fn a_holder_whose_session_is_terminated_is_told_at_once() {
    let Some((server, root)) = start().await else { return };
    let client = Locks::over(Postgres::connect(config(server.addr())).await.unwrap()).unwrap();
    let guard = client.mutex("told").lock().await.unwrap();
    // The watchdog arms the mailbox in the background.
    tokio::time::sleep(Duration::from_millis(200)).await;
    root.query(END_SESSIONS, &[]).await.unwrap();
    let reason = tokio::time::timeout(Duration::from_secs(8), guard.lost()).await.unwrap();
    assert_eq!(reason, LossReason::Session);
    // The store keeps it for the client, which is alive; releasing the guard releases that too.
    drop(guard);
    let lock = client.mutex("told");
    tokio::time::timeout(Duration::from_secs(5), lock.lock()).await.unwrap().unwrap().release().await.unwrap();
}

/// Its client lives, so the server goes on listing it; but what is left of the session may end any time without a
/// notification.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_is_not_renewed_ends_with_its_session_too() {
    let Some((server, root)) = start().await else { return };
    let client = Locks::over(Postgres::connect(config(server.addr())).await.unwrap()).unwrap();
    let lock = client.mutex("explicit").ttl(Duration::from_secs(600)).no_renewal();
    let guard = lock.lock().await.unwrap();
    assert_eq!(root.query(END_SESSIONS, &[]).await.unwrap().len(), 1);
    let reason = tokio::time::timeout(Duration::from_secs(30), guard.lost()).await.unwrap();
    assert_eq!(reason, LossReason::Session);
    // For all other clients it is there until it is released.
    let rival = Postgres::connect(config(server.addr())).await.unwrap();
    pending(&rival, &claim(2, "explicit")).await;
}

/// A client in the middle of a transaction on one name, and a row of a newer version.
#[tokio::test]
async fn one_name_that_is_not_to_be_had_spoils_no_other_renewal() {
    let Some((server, root)) = start().await else { return };
    let store = Arc::new(Postgres::connect(config(server.addr())).await.unwrap());
    let claims = ["a", "b", "c", "d"].map(|name| claim(1, name));
    let batch = claims.clone().map(|claim| Renewal::of(Arc::new(claim)));
    for claim in &claims {
        grant(&store, claim).await.unwrap();
    }
    root.batch_execute("UPDATE oarlock.resource SET format = 3 WHERE name = 'c'").await.unwrap();
    root.batch_execute("BEGIN; SELECT FROM oarlock.resource WHERE name = 'b' FOR UPDATE").await.unwrap();
    let asking = store.clone();
    let attempt = tokio::spawn(async move { asking.attempt(&claim(2, "b")).await });
    until(&root, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'", 1).await;
    let mut answers = store.renew(&batch).await.into_iter();
    assert!(!attempt.is_finished(), "the renewals waited for an attempt");
    let mut next = || answers.next().unwrap();
    assert!(matches!(next(), Ok(Renewed::Alive { .. })));
    let error = next().unwrap_err();
    assert_eq!((error.applied(), error.retry()), (Applied::No, Retry::Later), "{error}");
    assert_eq!(next().unwrap_err().kind(), ErrorKind::NewerFormat);
    assert!(matches!(next(), Ok(Renewed::Alive { .. })));
    root.batch_execute("COMMIT").await.unwrap();
    assert!(matches!(attempt.await.unwrap().unwrap(), Attempt::Pending(_)));
    assert!(matches!(renew(&store, &claims[1]).await, Renewed::Alive { .. }));
}

#[tokio::test]
async fn an_odd_row_hides_no_other() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    for (bits, name) in ["good", "kind", "label", "name"].iter().enumerate() {
        grant(&store, &claim(bits as u128 + 1, name)).await.unwrap();
    }
    let odd = "UPDATE oarlock.claim SET kind = 'other' FROM oarlock.resource WHERE resource = key AND name = 'kind';
        UPDATE oarlock.claim SET label = '?' FROM oarlock.resource WHERE resource = key AND name = 'label';
        UPDATE oarlock.resource SET name = '' WHERE name = 'name'";
    root.batch_execute(odd).await.unwrap();
    let page = store.inspect(&Query::live()).await.unwrap();
    let good = page.resources.iter().find(|state| state.name.as_str() == "good");
    assert_eq!(good.map(|state| state.holders.len()), Some(1), "{page:?}");
    assert!(store.inspect(&Query::name(claim(1, "kind").resource)).await.is_err());
}

/// The connections that wait in the server for the end of another session.
const HOLDER_WATCHES: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%await_end%' AND wait_event = 'advisory'";

#[tokio::test]
async fn a_waiter_is_told_of_the_end_of_the_one_before_it_now() {
    let Some((server, root)) = start().await else { return };
    let first = Postgres::connect(config(server.addr())).await.unwrap();
    let second = Postgres::connect(config(server.addr())).await.unwrap();
    let third = Postgres::connect(config(server.addr())).await.unwrap();
    let [mut two, mut three] = [claim(2, "line"), claim(3, "line")];
    (two.wait, three.wait) = (true, true);
    grant(&first, &claim(1, "line")).await.unwrap();
    pending(&second, &two).await;
    let three = Arc::new(three);
    let before = pending(&third, &three).await.cursor;
    let _watch = third.watch(&Interest::Turn(three.clone(), before.clone())).await.unwrap();
    until(&root, HOLDER_WATCHES, 1).await;
    // An administrator ends the connection that waits for it: it waits on another one.
    let holder_watch = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%await_end%' AND wait_event = 'advisory'";
    let pid: i32 = root.query_one(holder_watch, &[]).await.unwrap().get(0);
    root.query("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
    until(&root, &format!("{HOLDER_WATCHES} AND pid <> {pid}"), 1).await;
    // The one before it goes, so that it stands behind another.
    second.release(&two.resource, two.id, &End::Withdrawn).await.unwrap();
    let now = pending(&third, &three).await.cursor;
    assert_ne!(now, before);
    let mut watch = third.watch(&Interest::Turn(three.clone(), now)).await.unwrap();
    until(&root, HOLDER_WATCHES, 1).await;
    drop(first);
    let told = tokio::time::timeout(Duration::from_secs(30), watch.changed()).await;
    assert!(told.is_ok_and(|hint| hint.is_some()), "not told of the death of the holder");
}

#[tokio::test]
async fn a_holder_survives_the_end_of_the_other_connection() {
    let Some((server, root)) = start().await else { return };
    let client = Locks::builder(Postgres::connect(config(server.addr())).await.unwrap());
    let client = client.ttl(Duration::from_secs(3)).build().unwrap();
    let guard = client.mutex("survives").lock().await.unwrap();
    assert!(!root.query(END_REQUESTS, &[]).await.unwrap().is_empty());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    guard.release().await.unwrap();
}

/// Cuts a holder off, lets `disaster` befall the server, and expects no grant before the lease has ended.
async fn survives_while_cut_off(disaster: impl FnOnce(&Server, i32) + Send + 'static) {
    let Some((server, root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = Postgres::connect(config(proxy.addr())).await.unwrap();
    let mut held = claim(1, "held");
    held.ttl = Duration::from_secs(12);
    let sent = tokio::time::Instant::now();
    let first = grant(&store, &held).await.unwrap();
    proxy.cut();
    let pid = root.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let server = tokio::task::spawn_blocking(move || {
        disaster(&server, pid);
        server
    });
    let server = server.await.unwrap();
    let mut connected = Postgres::connect(config(server.addr())).await;
    for _ in 0..1000 {
        if connected.is_ok() {
            break;
        }
        // The server says that it is busy recovering.
        tokio::time::sleep(Duration::from_millis(20)).await;
        connected = Postgres::connect(config(server.addr())).await;
    }
    let rival = connected.unwrap();
    let left = pending(&rival, &claim(2, "held")).await.recheck_after.unwrap();
    let page = rival.inspect(&Query::live()).await.unwrap();
    assert_eq!(page.resources.first().map(|state| state.holders.len()), Some(1), "a holder that blocks is not shown");
    tokio::time::sleep(left).await;
    assert!(grant(&rival, &claim(2, "held")).await.unwrap().fence > first.fence);
    assert!(sent.elapsed() >= held.ttl, "granted after {:?}", sent.elapsed());
}

#[tokio::test]
async fn a_restart_is_not_the_death_of_a_holder_that_is_cut_off() {
    survives_while_cut_off(|server, _| server.restart().unwrap()).await;
}

/// A process that lives is never taken for dead: whichever connection serves its first claim is its second backend.
#[tokio::test]
async fn a_session_has_a_second_backend_from_its_first_claim_on() {
    let Some((server, root)) = start().await else { return };
    let _schema = Postgres::connect(config(server.addr())).await.unwrap();
    let connect = || async {
        let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        (client, pid)
    };
    root.execute("SELECT oarlock.begin(77)", &[]).await.unwrap();
    let kills: i64 = root.query_one("SELECT oarlock.kills()", &[]).await.unwrap().get(0);
    let ((one, first), (other, second)) = (connect().await, connect().await);
    // One that does not stand for the session leaves its row alone, also what is known of kills.
    for (client, seen, stands, backend) in [
        (&one, kills, false, first),
        (&other, kills, false, first),
        (&other, kills + 1, false, first),
        (&other, kills, true, second),
    ] {
        client.execute("SELECT oarlock.witness(77, $1, $2)", &[&seen, &stands]).await.unwrap();
        let row = root.query_one("SELECT requests, kills FROM oarlock.session WHERE number = 77", &[]).await.unwrap();
        assert_eq!((row.get::<_, i32>(0), row.get::<_, i64>(1)), (backend, kills), "seen {seen}, stands {stands}");
    }
}

/// The same for a grant that takes the short way: the name is known, and no claim is there.
#[tokio::test]
async fn a_grant_of_a_free_name_says_which_backend_stands_for_the_session() {
    let Some((server, root)) = start().await else { return };
    let _schema = Postgres::connect(config(server.addr())).await.unwrap();
    root.execute("SELECT oarlock.begin(77)", &[]).await.unwrap();
    let (mut clients, mut pids) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (client, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        pids.push(client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get::<_, i32>(0));
        clients.push(client);
    }
    let grant =
        "SELECT oarlock.attempt('quiet', 'id', 77, true, 'mutex', 1, true, 0, false, 0, 30000000, 30000000, '{}',
        NULL, NULL, $1)";
    // The first makes the name.
    for (client, stands, backend) in [(0, true, 0), (0, true, 0), (1, true, 1), (0, false, 1), (0, true, 0)] {
        clients[client].execute(grant, &[&stands]).await.unwrap();
        clients[client].execute("SELECT oarlock.release('quiet', 'id', NULL, NULL, 0)", &[]).await.unwrap();
        let second = "SELECT requests FROM oarlock.session WHERE number = 77";
        let second: i32 = root.query_one(second, &[]).await.unwrap().get(0);
        assert_eq!(second, pids[backend], "client {client}, stands {stands}");
    }
}

/// Between a restart and the next client that comes, the rows of all sessions are still there.
#[tokio::test]
async fn a_server_answers_only_for_sessions_that_it_saw_begin() {
    let Some((server, root)) = start().await else { return };
    let store = Postgres::connect(config(server.addr())).await.unwrap();
    grant(&store, &claim(1, "held")).await.unwrap();
    drop((store, root));
    let server = tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    });
    let server = server.await.unwrap();
    let (root, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    root.batch_execute(FORGET_KILLS).await.unwrap();
    let over = root.query("SELECT oarlock.is_over(number) FROM oarlock.session", &[]).await.unwrap();
    assert_eq!(over.iter().map(|row| row.get(0)).collect::<Vec<bool>>(), [false]);
}

#[tokio::test]
async fn a_crash_of_the_server_is_not_the_death_of_a_holder_that_is_cut_off() {
    survives_while_cut_off(|server, _| {
        server.kill().unwrap();
        server.restart().unwrap();
    })
    .await;
}

/// The server ends all its backends when one crashes, and goes on without a restart.
#[tokio::test]
async fn a_crash_of_a_backend_is_not_the_death_of_a_holder_that_is_cut_off() {
    survives_while_cut_off(|_, pid| {
        let killed = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
        assert!(killed.success());
    })
    .await;
}

/// Lets what follows not depend on who was killed.
const FORGET_KILLS: &str = "UPDATE oarlock.session SET kills = oarlock.kills()";

/// How many connections our clients have, as the server sees it.
const CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oarlock'";

#[tokio::test]
async fn an_administrator_who_ends_connections_does_not_kill_a_holder_that_is_cut_off() {
    let Some((server, root)) = start().await else { return };
    let version: String = root.query_one("SHOW server_version_num", &[]).await.unwrap().get(0);
    for (name, ends) in
        [("session", &[END_SESSIONS][..]), ("requests", &[END_REQUESTS]), ("both", &[END_REQUESTS, END_SESSIONS])]
    {
        // Older servers do not count in time who was killed.
        if ends.len() > 1 && version.parse::<u32>().unwrap() < 150_000 {
            continue;
        }
        let proxy = Proxy::start(server.addr()).unwrap();
        let store = Postgres::connect(config(proxy.addr())).await.unwrap();
        grant(&store, &claim(1, name)).await.unwrap();
        proxy.cut();
        for end in ends {
            assert_eq!(root.query(*end, &[]).await.unwrap().len(), 1);
        }
        until(&root, CONNECTIONS, 2 - i64::try_from(ends.len()).unwrap()).await;
        if ends.len() == 1 {
            // As if the network had ended it: one is too few, whichever it was.
            root.batch_execute(FORGET_KILLS).await.unwrap();
        }
        let rival = Postgres::connect(config(server.addr())).await.unwrap();
        pending(&rival, &claim(2, name)).await;
        let page = rival.inspect(&Query::live()).await.unwrap();
        assert!(page.resources.iter().any(|state| state.name.as_str() == name), "{name}: it blocks, and is not shown");
        drop(rival);
        proxy.refuse();
        until(&root, CONNECTIONS, 0).await;
    }
}

/// The client's side ends both, and no other connection was killed since.
#[tokio::test]
async fn a_holder_that_was_heard_of_since_is_seen_to_die() {
    let Some((server, root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let store = Postgres::connect(config(proxy.addr())).await.unwrap();
    let held = claim(1, "held");
    grant(&store, &held).await.unwrap();
    // An unrelated connection is killed; the next renewal takes note of it.
    let pid: i32 = root.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let (other, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    other.query("SELECT pg_terminate_backend($1)", &[&pid]).await.unwrap();
    let killed = "SELECT sessions_killed FROM pg_stat_database WHERE datname = current_database()";
    until(&other, killed, 1).await;
    assert!(matches!(renew(&store, &held).await, Renewed::Alive { .. }));
    proxy.refuse();
    until(&other, CONNECTIONS, 0).await;
    let rival = Postgres::connect(config(server.addr())).await.unwrap();
    assert!(rival.inspect(&Query::live()).await.unwrap().resources.is_empty(), "the dead are shown");
    grant(&rival, &claim(2, "held")).await.unwrap();
}

#[tokio::test]
async fn a_renewal_under_way_when_its_session_ends_is_a_loss() {
    let Some((server, root)) = start().await else { return };
    let store = Arc::new(Postgres::connect(config(server.addr())).await.unwrap());
    let held = claim(1, "held");
    grant(&store, &held).await.unwrap();
    let mut mailbox = store.watch(&Interest::Mailbox).await.unwrap();
    root.batch_execute("BEGIN; SELECT FROM oarlock.resource FOR UPDATE").await.unwrap();
    let renewing = tokio::spawn(async move { renew(&store, &held).await });
    until(&root, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'", 1).await;
    assert_eq!(root.query(END_SESSIONS, &[]).await.unwrap().len(), 1);
    assert!(mailbox.changed().await.is_some());
    root.batch_execute("COMMIT").await.unwrap();
    assert_eq!(renewing.await.unwrap(), Renewed::Gone(Gone::Session));
}

#[tokio::test]
async fn a_write_whose_connection_the_server_ends_may_have_happened() {
    let Some((server, root)) = start().await else { return };
    let store = Arc::new(Postgres::connect(config(server.addr())).await.unwrap());
    let held = claim(1, "held");
    grant(&store, &held).await.unwrap();
    root.batch_execute("BEGIN; SELECT FROM oarlock.resource FOR UPDATE").await.unwrap();
    let releasing = tokio::spawn(async move { store.release(&held.resource, held.id, &End::Withdrawn).await });
    until(&root, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'", 1).await;
    assert_eq!(root.query(END_REQUESTS, &[]).await.unwrap().len(), 1);
    let error = releasing.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::Unknown), "{error}");
    root.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn a_connection_that_fell_silent_is_replaced() {
    let Some((server, _root)) = start().await else { return };
    let proxy = Proxy::start(server.addr()).unwrap();
    let mut config = config(proxy.addr());
    config.silence_timeout = Duration::from_secs(2);
    let store = Postgres::connect(config).await.unwrap();
    let claim = claim(1, "mute");
    // It listens, and the next reply is that to a request.
    grant(&store, &claim).await.unwrap();
    store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.unwrap();
    let dropped = proxy.drop_next_reply(Then::Silence);
    let bound = Duration::from_secs(30);
    let error = tokio::time::timeout(bound, grant(&store, &claim)).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unreachable, Applied::Unknown), "{error}");
    assert!(dropped.wait().await.is_some());
    tokio::time::timeout(bound, grant(&store, &claim)).await.unwrap().unwrap();
}

#[tokio::test]
async fn behind_a_pooler_a_holder_lives_by_its_lease_alone() {
    let Some((server, root)) = start().await else { return };
    for mode in ["transaction", "session"] {
        let addr = server.addr();
        let settings = [("pool_mode", mode), ("default_pool_size", if mode == "session" { "4" } else { "1" })];
        let pooler = tokio::task::spawn_blocking(move || PgBouncer::in_front_of_or_skip(addr, &settings));
        let Some(pooler) = pooler.await.unwrap().unwrap() else { return };
        let (ours, theirs) = (config(pooler.addr()), config(pooler.addr()));
        let (ours, theirs) = (Postgres::connect(ours).await.unwrap(), Postgres::connect(theirs).await.unwrap());
        let can = ours.info().capabilities;
        assert_eq!((can.liveness, can.notify), (Liveness::Lease, Notify::Poll), "{mode}");
        let (mut held, next) = (claim(1, mode), claim(2, mode));
        held.ttl = Duration::from_secs(6);
        let first = grant(&ours, &held).await.unwrap();
        pending(&theirs, &next).await;
        // A client that does not use the pooler must not take the pooler's connections for the holder's.
        let direct = Postgres::connect(config(server.addr())).await.unwrap();
        assert_eq!(direct.info().capabilities.liveness, Liveness::LeaseAndProcess);
        drop(ours);
        drop(pooler);
        let left = pending(&direct, &next).await.recheck_after.unwrap();
        tokio::time::sleep(left).await;
        assert!(grant(&direct, &next).await.unwrap().fence > first.fence);
    }
    drop(root);
}

/// PgBouncer (1.18) gives answers to the wrong clients when others die in the middle of several requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_no_client_believes_the_answer_to_another() {
    let Some((server, _root)) = start().await else { return };
    let addr = server.addr();
    let pooler =
        tokio::task::spawn_blocking(move || PgBouncer::in_front_of_or_skip(addr, &[("default_pool_size", "3")]));
    let Some(pooler) = pooler.await.unwrap().unwrap() else { return };
    // Locks of another client, so that the wrong answers look right.
    let theirs =
        "SELECT *, $1::bigint AS echo FROM oarlock.attempt(int8send($1), int8send($1), 0, false, 'mutex', NULL, true,
        0, false, 0, 1000000, 1000000, '{}', NULL, NULL, true), pg_sleep(0.001)";
    let end = tokio::time::Instant::now() + Duration::from_secs(4);
    let unrelated: Vec<_> = (0..4_i64)
        .map(|other| {
            let addr = pooler.addr();
            tokio::spawn(async move {
                for round in 0.. {
                    if tokio::time::Instant::now() > end {
                        break;
                    }
                    let proxy = Proxy::start(addr).unwrap();
                    let url = format!("postgres://postgres@{}/postgres?application_name=oarlock", proxy.addr());
                    let Ok((client, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await else {
                        continue;
                    };
                    tokio::spawn(connection);
                    let client = Arc::new(client);
                    for number in 0..4 {
                        let (client, number) = (client.clone(), -1 - number - 8 * other);
                        tokio::spawn(async move {
                            let number = (&number as _, tokio_postgres::types::Type::INT8);
                            client.query_typed(theirs, &[number]).await.map(drop)
                        });
                    }
                    tokio::time::sleep(Duration::from_micros(round * 370 % 8000)).await;
                    proxy.refuse();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            })
        })
        .collect();
    let ours: Vec<_> = (1..=6).map(|bits| tokio::spawn(keep_asking(config(pooler.addr()), bits, end))).collect();
    let (mut answers, mut others) = (0, 0);
    for asking in ours {
        let (granted, refused) = asking.await.unwrap();
        (answers, others) = (answers + granted, others + refused);
    }
    for other in unrelated {
        other.await.unwrap();
    }
    println!("{answers} answers, {others} of others");
    assert!(answers > 10, "only {answers} answers");
}

/// Asks for one lock again and again: how often it was granted, and how often the answer was another's.
async fn keep_asking(config: Config, bits: u128, end: tokio::time::Instant) -> (u32, u32) {
    let held = claim(bits, &format!("held {bits}"));
    let (mut granted, mut others, mut fence) = (0, 0, None);
    let mut connected = Postgres::connect(config.clone()).await;
    while tokio::time::Instant::now() < end {
        let Ok(store) = &connected else {
            connected = Postgres::connect(config.clone()).await;
            continue;
        };
        match store.attempt(&held).await {
            Ok(Attempt::Granted(grant)) => {
                assert_eq!(*fence.get_or_insert(grant.fence), grant.fence, "another's grant");
                granted += 1;
            }
            Ok(Attempt::Pending(_)) => panic!("no other client wants it"),
            Err(error) => {
                // A connection that the pooler ends before the request is sent has changed nothing.
                let is_anothers = error.to_string().contains("another's");
                assert!(error.kind() == ErrorKind::Unreachable, "{error}");
                assert!(!is_anothers || error.applied() == Applied::Unknown, "{error}");
                others += u32::from(is_anothers);
            }
        }
    }
    (granted, others)
}
