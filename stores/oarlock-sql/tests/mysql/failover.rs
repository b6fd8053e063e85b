//! A primary dies, and a replica that lacks its last commits takes its place at the same address: fences never repeat,
//! and a client can be reached is told first, nothing is stuck.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::Conn;
use mysql_async::prelude::Queryable as _;
use oarlock_core::driver::{Driver as _, Gone, Renewed};
use oarlock_core::error::{Applied, Retry};
use oarlock_core::{ErrorKind, Guard, Lifetime, Locks, LossReason};
use oarlock_sql::mysql::{Config, MySql, MySqlSession, Named};
use oarlock_testbed::proxy::Proxy;
use oarlock_testbed::{Flavour, SqlServer};

use crate::store::{claim, grant, pending, raw, renew, until};

/// Longer than anything here takes on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// A lease that a waiter waits for.
const SHORT: Duration = Duration::from_secs(6);

/// A lease that no waiter waits for: its first renewal would come too late, too.
const LONG: Duration = Duration::from_secs(240);

/// Those who wait.
const WAITING: &str = "SELECT COUNT(*) FROM oarlock_claim WHERE fence IS NULL";

/// A primary, a replica that follows it, and the address that leads to whichever of them is in charge.
pub(crate) struct Pair {
    pub(crate) primary: Arc<SqlServer>,
    pub(crate) replica: Arc<SqlServer>,
    /// What the replica follows the primary through.
    line: Proxy,
    door: Proxy,
    pub(crate) root: Conn,
    pub(crate) theirs: Conn,
}

impl Pair {
    /// With this way of writing changes down for the replica.
    pub(crate) async fn start(on: Flavour, format: &str) -> Option<Self> {
        let primary = tokio::task::spawn_blocking(move || SqlServer::primary_or_skip(on)).await.unwrap().unwrap()?;
        let mut root = raw(primary.addr()).await;
        root.query_drop(format!("SET GLOBAL binlog_format = {format}")).await.unwrap();
        // Unlike root, it may not write to a server that only reads.
        root.query_drop("CREATE USER app; GRANT ALL ON locks.* TO app").await.unwrap();
        let (line, door) = (Proxy::start(primary.addr()).unwrap(), Proxy::start(primary.addr()).unwrap());
        let addr = line.addr();
        let replica = tokio::task::spawn_blocking(move || SqlServer::replica_of(on, addr)).await.unwrap().unwrap();
        let theirs = raw(replica.addr()).await;
        let (primary, replica) = (Arc::new(primary), Arc::new(replica));
        let mut pair = Self { primary, replica, line, door, root, theirs };
        pair.catch_up().await;
        Some(pair)
    }

    /// Waits until the replica has all that was committed.
    pub(crate) async fn catch_up(&mut self) {
        let there: String = self.root.query_first(self.primary.flavour().position()).await.unwrap().unwrap();
        let waited = self.primary.flavour().catch_up(&there, BOUND.as_secs());
        assert_eq!(self.theirs.query_first::<i64, _>(waited).await.unwrap(), Some(0), "the replica does not follow");
    }

    /// The primary dies, and its address leads to the replica, which only reads yet.
    pub(crate) async fn kill(&self) {
        let primary = self.primary.clone();
        tokio::task::spawn_blocking(move || primary.kill().unwrap()).await.unwrap();
        self.line.refuse();
        self.door.aim(self.replica.addr());
    }

    async fn restart_replica(&mut self) {
        let replica = self.replica.clone();
        tokio::task::spawn_blocking(move || replica.restart().unwrap()).await.unwrap();
        self.theirs = raw(self.replica.addr()).await;
    }

    pub(crate) async fn promote(&mut self) {
        self.theirs.query_drop(self.replica.flavour().promote()).await.unwrap();
    }
}

pub(crate) fn config(addr: SocketAddr) -> Config {
    let mut config = crate::store::config(addr);
    config.user = Some("app".into());
    config
}

async fn connect(addr: SocketAddr, ttl: Duration) -> Locks {
    Locks::builder(MySql::connect(config(addr)).await.unwrap()).ttl(ttl).build().unwrap()
}

async fn lock(client: &Locks, name: &str) -> Guard {
    let lock = client.mutex(name).wait(BOUND);
    tokio::time::timeout(BOUND, lock.lock()).await.unwrap().unwrap()
}

async fn reason(guard: &Guard) -> LossReason {
    tokio::time::timeout(BOUND, guard.lost()).await.unwrap()
}

/// The replica has not seen the last grants when its primary dies: those are forgotten, and their fences are not given
/// again.
async fn after_a_failover_belief_ends_first_and_fences_still_rise(on: Flavour) {
    let Some(mut pair) = Pair::start(on, "MIXED").await else { return };
    let far = Proxy::start(pair.primary.addr()).unwrap();
    let (holder, steady) = (connect(pair.door.addr(), SHORT).await, connect(pair.door.addr(), LONG).await);
    let (cut_off, next) = (connect(far.addr(), SHORT).await, connect(pair.door.addr(), SHORT).await);
    let (copied, away) = (lock(&holder, "copied").await, lock(&cut_off, "away").await);
    let mut given = Vec::new();
    for _ in 0..3 {
        let guard = lock(&holder, "often").await;
        given.push(guard.fence());
        guard.release().await.unwrap();
    }
    // Both were renewed, and one of them hears nothing after that.
    until(&mut pair.root, "SELECT COUNT(*) FROM oarlock_claim WHERE expires > since + 6000000", 2).await;
    far.cut();
    pair.catch_up().await;
    pair.line.cut();
    for _ in 0..5 {
        let guard = lock(&holder, "often").await;
        given.push(guard.fence());
        guard.release().await.unwrap();
    }
    let (lost, told) = (lock(&holder, "lost").await, lock(&steady, "told").await);
    let waiting = ["lost", "copied"].map(|name| {
        let lock = next.mutex(name).wait(2 * BOUND);
        tokio::spawn(async move { lock.lock().await })
    });
    until(&mut pair.root, WAITING, 2).await;
    let killed = Instant::now();
    pair.kill().await;
    for guard in [&copied, &lost, &told] {
        assert_eq!(reason(guard).await, LossReason::Session);
    }
    println!("from SIGKILL to the last loss: {:?}", killed.elapsed());
    pair.promote().await;
    let promoted = Instant::now();

    let names = [(&lost, "lost"), (&copied, "copied")];
    for ((before, name), waiting) in names.into_iter().zip(waiting) {
        let after = tokio::time::timeout(2 * BOUND, waiting).await.unwrap().unwrap().unwrap();
        println!("{name}: granted {:?} after the promotion", promoted.elapsed());
        assert!(after.fence() > before.fence(), "{name}: {} after {}", after.fence(), before.fence());
        after.release().await.unwrap();
    }
    // No liveness lock is left, and yet no client is taken for dead: its lease counts.
    let after = lock(&next, "away").await;
    assert!(!away.is_held(), "two believe");
    assert!(after.fence() > away.fence(), "{} after {}", after.fence(), away.fence());
    // A client that was there before goes on at the same address.
    for _ in 0..3 {
        let guard = lock(&holder, "often").await;
        let largest = given.iter().max().copied();
        assert!(Some(guard.fence()) > largest, "{} after {given:?}", guard.fence());
        given.push(guard.fence());
        guard.release().await.unwrap();
    }
    let again = lock(&steady, "told").await;
    assert!(again.fence() > told.fence(), "{} after {}", again.fence(), told.fence());
}

/// A claim that is not tied to its session goes on if the replica has it, and is known to be gone if not.
async fn what_lives_by_its_lease_is_there_after_a_failover_if_the_replica_had_it(on: Flavour) {
    let Some(mut pair) = Pair::start(on, "ROW").await else { return };
    let store = MySql::connect(config(pair.door.addr())).await.unwrap();
    let (mut kept, mut lost) = (claim(1, "kept"), claim(2, "lost"));
    for claim in [&mut kept, &mut lost] {
        (claim.lifetime, claim.ttl) = (Lifetime::Lease, LONG);
    }
    let fence = grant(&store, &kept).await.unwrap().fence;
    // A replica that was restarted has forgotten what was in memory, and follows all the same.
    pair.restart_replica().await;
    let _another = MySql::connect(config(pair.door.addr())).await.unwrap();
    pair.catch_up().await;
    pair.line.cut();
    grant(&store, &lost).await.unwrap();
    pair.kill().await;
    // Until it is promoted, the replica refuses: nothing was done, and it is worth another try.
    let mut refusals = 0;
    while refusals < 3 {
        let error = store.attempt(&claim(3, "early")).await.unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unreachable, Retry::Later), "{error}");
        // What was sent to the old one may have taken effect.
        refusals += usize::from(error.applied() == Applied::No);
    }
    pair.promote().await;
    let renewed = renew(&store, &kept).await.unwrap();
    assert!(matches!(renewed, Renewed::Alive { fence: Some(same), .. } if same == fence), "{renewed:?}");
    assert_eq!(renew(&store, &lost).await.unwrap(), Renewed::Gone(Gone::Unknown));
    grant(&store, &claim(3, "early")).await.unwrap();
    // It stays a primary.
    pair.restart_replica().await;
    let store = MySql::connect(config(pair.replica.addr())).await.unwrap();
    grant(&store, &claim(4, "later")).await.unwrap();
}

/// With leases of minutes: only a notification of the server's end can be in time.
async fn a_holder_in_mode_session_hears_of_a_failover_at_once(on: Flavour) {
    let Some(mut pair) = Pair::start(on, "MIXED").await else { return };
    let mut config = config(pair.door.addr());
    config.session_ttl = LONG;
    let ours = MySqlSession::connect(Named::new(config.clone())).await.unwrap();
    let ours = Locks::builder(ours).ttl(LONG).build().unwrap();
    let next = Locks::over(MySqlSession::connect(Named::new(config)).await.unwrap()).unwrap();
    let guard = lock(&ours, "named").await;
    let explicit = ours.mutex("explicit").ttl(LONG).no_renewal().lock().await.unwrap();
    let waiting = next.mutex("named").wait(2 * BOUND);
    let waiting = tokio::spawn(async move { waiting.lock().await });
    let states = "SELECT COUNT(*) FROM information_schema.processlist WHERE state IN ('User lock', 'User sleep')";
    until(&mut pair.root, states, 2).await;
    pair.kill().await;
    for guard in [&guard, &explicit] {
        assert_eq!(reason(guard).await, LossReason::Session);
    }
    pair.promote().await;
    let after = tokio::time::timeout(2 * BOUND, waiting).await.unwrap().unwrap().unwrap();
    assert!(after.fence() > guard.fence(), "{} after {}", after.fence(), guard.fence());
    after.release().await.unwrap();
}

/// A server that goes down in good order ends its connections one by one, and may tell others meanwhile that their
/// client is dead.
async fn a_session_does_not_go_on_at_another_server(on: Flavour) {
    let Some(mut pair) = Pair::start(on, "MIXED").await else { return };
    let holder = connect(pair.door.addr(), LONG).await;
    let guard = lock(&holder, "held").await;
    pair.catch_up().await;
    pair.promote().await;
    pair.door.aim(pair.replica.addr());
    let session = "SELECT LOWER(HEX(session)) FROM oarlock_claim WHERE fence IS NOT NULL";
    let session: String = pair.root.query_first(session).await.unwrap().unwrap();
    let owner = format!("SELECT IS_USED_LOCK('oarlock_{session}_0')");
    let owner: u64 = pair.root.query_first(owner).await.unwrap().unwrap();
    pair.root.query_drop(format!("KILL {owner}")).await.unwrap();
    assert_eq!(reason(&guard).await, LossReason::Session);
    // No client is taken for dead there, either: what it held lives by its lease, or until it is released.
    let rival = MySql::connect(config(pair.replica.addr())).await.unwrap();
    pending(&rival, &claim(1, "held")).await;
    guard.release().await.unwrap();
    grant(&rival, &claim(1, "held")).await.unwrap();
}

on_both!(
    after_a_failover_belief_ends_first_and_fences_still_rise,
    what_lives_by_its_lease_is_there_after_a_failover_if_the_replica_had_it,
    a_holder_in_mode_session_hears_of_a_failover_at_once,
    a_session_does_not_go_on_at_another_server,
);
