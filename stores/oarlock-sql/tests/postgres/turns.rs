//! A release grants the lock to the next in line, whose client need not ask again.

use std::sync::Arc;
use std::time::Duration;

use oarlock_conformance::end_of_belief;
use oarlock_core::clock::{BootClock, Clock as _, Moment};
use oarlock_core::driver::{Attempt, Driver as _, End, Grant, Interest, Pending, Renewal, Renewed, Watch};
use oarlock_core::state::{Ending, Query};
use oarlock_core::{Claim, ClaimId, Guard, Lifetime, Locks, LossReason, Mutex, ResourceName};
use oarlock_sql::postgres::Postgres;
use oarlock_testbed::proxy::{Direction, Proxy};

use crate::store::{Server, config, start, until};

const DONE: End = End::Done { memo: None };

/// How long a turn may go untaken.
const TURN: Duration = Duration::from_secs(2);

fn name() -> ResourceName {
    ResourceName::new("deploy").unwrap()
}

/// A claim that waits.
fn claim(id: u128) -> Claim {
    let mut claim = crate::store::claim(id, "deploy");
    claim.wait = true;
    claim
}

async fn open(server: &Server) -> Postgres {
    Postgres::connect(config(server.addr())).await.unwrap()
}

async fn client(server: &Server) -> Locks {
    Locks::over(open(server).await).unwrap()
}

async fn granted(store: &Postgres, claim: &Claim) -> Grant {
    crate::store::grant(store, claim).await.unwrap()
}

async fn pending(store: &Postgres, claim: &Claim) -> Pending {
    match store.attempt(claim).await.unwrap() {
        Attempt::Pending(pending) => pending,
        Attempt::Granted(grant) => panic!("{grant:?}"),
    }
}

async fn mailbox(store: &Postgres) -> Watch {
    store.watch(&Interest::Mailbox).await.unwrap()
}

/// Which claim the next notification is about.
async fn told(watch: &mut Watch) -> Option<ClaimId> {
    let hint = tokio::time::timeout(Duration::from_secs(30), watch.changed()).await;
    hint.expect("a notification").expect("a watch that has not ended").claim
}

async fn release(store: &Postgres, claim: &Claim) {
    store.release(&name(), claim.id, &DONE).await.unwrap();
}

/// Whether a claim was handed the lock and its client has not asked since.
async fn is_handed(root: &tokio_postgres::Client, claim: &Claim) -> bool {
    let row = "SELECT handed AND fence IS NOT NULL FROM oarlock.claim WHERE id = $1";
    root.query_one(row, &[&claim.id.bits().to_be_bytes().as_slice()]).await.unwrap().get(0)
}

/// The channel of the session that this claim belongs to.
async fn channel(root: &tokio_postgres::Client, claim: &Claim) -> String {
    let row = "SELECT 'oarlock_' || to_hex(session) FROM oarlock.claim WHERE id = $1";
    root.query_one(row, &[&claim.id.bits().to_be_bytes().as_slice()]).await.unwrap().get(0)
}

async fn notify(root: &tokio_postgres::Client, channel: &str, payload: &str) {
    root.execute("SELECT pg_notify($1, $2)", &[&channel, &payload]).await.unwrap();
}

/// What the notification of its grant will repeat.
async fn ticket(root: &tokio_postgres::Client, claim: &Claim) -> Option<i64> {
    let ticket = "SELECT ticket FROM oarlock.claim WHERE id = $1";
    root.query_one(ticket, &[&claim.id.bits().to_be_bytes().as_slice()]).await.unwrap().get(0)
}

fn micros(moment: Moment) -> u64 {
    moment.as_nanos() / 1000
}

#[tokio::test]
async fn a_turn_comes_with_its_grant_which_is_the_one_in_the_store() {
    let Some((server, root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    let mut notifications = mailbox(&two).await;
    let first = granted(&one, &claim(1)).await;
    // Fences that are ahead of the clock have to be counted.
    root.batch_execute("UPDATE oarlock.resource SET last_fence = last_fence + 1000000000000").await.unwrap();
    let before = BootClock.now();
    assert!(pending(&two, &claim(2)).await.watched);
    let after = BootClock.now();
    one.release(&name(), claim(1).id, &End::Done { memo: Some(b"a b\xff"[..].into()) }).await.unwrap();
    assert_eq!(told(&mut notifications).await, Some(claim(2).id));
    let shown = one.inspect(&Query::name(name())).await.unwrap().resources.remove(0);
    let handed = granted(&two, &claim(2)).await;
    assert!(is_handed(&root, &claim(2)).await, "it was not asked for");
    assert!(handed.fence > first.fence);
    assert_eq!(handed.memo.as_deref(), Some(&b"a b\xff"[..]));
    assert_eq!((shown.holders[0].id, shown.holders[0].fence), (claim(2).id, Some(handed.fence)));
    // Belief counts from the last request, which is told in whole microseconds.
    let from = handed.lease.from.unwrap();
    assert!(from + Duration::from_micros(1) > before && from <= after, "{before:?}, {from:?}, {after:?}");
    assert_eq!(handed.lease.ttl, TURN);
    let asked = granted(&two, &claim(2)).await;
    assert!(!is_handed(&root, &claim(2)).await, "a client that asks again hears what the store says");
    assert_eq!((asked.fence, asked.lease.ttl), (handed.fence, claim(2).ttl));
    release(&two, &claim(2)).await;
    assert!(granted(&one, &claim(3)).await.fence > handed.fence);
}

/// Between the answer to the attempt and the watch.
#[tokio::test]
async fn a_turn_that_came_before_its_watch_is_told() {
    let Some((server, _root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    let mut notifications = mailbox(&two).await;
    granted(&one, &claim(1)).await;
    let Pending { watched, cursor, .. } = pending(&two, &claim(2)).await;
    assert!(watched);
    release(&one, &claim(1)).await;
    told(&mut notifications).await;
    let mut watch = two.watch(&Interest::Turn(Arc::new(claim(2)), cursor)).await.unwrap();
    assert_eq!(told(&mut watch).await, Some(claim(2).id));
    assert!(granted(&two, &claim(2)).await.lease.from.is_some());
}

#[tokio::test]
async fn a_turn_that_is_not_taken_passes_on_though_its_place_is_kept() {
    let Some((server, _root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    release(&one, &claim(1)).await;
    let began = BootClock.now();
    let mut renewal = Renewal::of(Arc::new(claim(2)));
    match two.renew(&[renewal.clone()]).await.remove(0).unwrap() {
        Renewed::Alive { lease, fence: None, .. } => assert!(lease.ttl <= TURN, "{lease:?}"),
        other => panic!("{other:?}"),
    }
    pending(&one, &claim(3)).await;
    tokio::time::sleep(TURN.saturating_sub(BootClock.now().since(began)) + Duration::from_millis(20)).await;
    granted(&one, &claim(3)).await;
    // Too late.
    renewal.held = true;
    assert!(matches!(two.renew(&[renewal]).await.remove(0).unwrap(), Renewed::Gone(_)));
}

#[tokio::test]
async fn a_turn_that_is_taken_is_kept_by_the_first_renewal() {
    let Some((server, root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    let mut notifications = mailbox(&two).await;
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    release(&one, &claim(1)).await;
    told(&mut notifications).await;
    let grant = granted(&two, &claim(2)).await;
    assert!(is_handed(&root, &claim(2)).await);
    let mut renewal = Renewal::of(Arc::new(claim(2)));
    renewal.held = true;
    match two.renew(&[renewal]).await.remove(0).unwrap() {
        Renewed::Alive { lease, fence, .. } => assert_eq!((lease.ttl, fence), (claim(2).ttl, Some(grant.fence))),
        other @ Renewed::Gone(_) => panic!("{other:?}"),
    }
    tokio::time::sleep(TURN + Duration::from_millis(20)).await;
    pending(&one, &claim(3)).await;
}

/// A claim that was handed the lock holds it, also before its client has asked again.
#[tokio::test]
async fn no_claim_passes_one_that_was_handed_the_lock() {
    let Some((server, _root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    release(&one, &claim(1)).await;
    let mut hasty = claim(4);
    hasty.wait = false;
    pending(&one, &hasty).await;
    pending(&one, &claim(3)).await;
    granted(&two, &claim(2)).await;
}

/// The next in line was silent for a while when its turn came. The one behind it is told to look, and learns when that
/// turn is over.
#[tokio::test]
async fn the_one_behind_a_silent_waiter_knows_when_its_turn_is_over() {
    let Some((server, _root)) = start().await else { return };
    let (one, two, three) = (open(&server).await, open(&server).await, open(&server).await);
    let mut notifications = mailbox(&three).await;
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    // Longer than a waiter is silent for a lock that goes round quickly.
    tokio::time::sleep(Duration::from_millis(250)).await;
    let before = pending(&three, &claim(3)).await.recheck_after.unwrap();
    assert!(before > TURN * 2, "{before:?}");
    release(&one, &claim(1)).await;
    assert_eq!(told(&mut notifications).await, Some(claim(3).id), "told to look");
    let recheck = pending(&three, &claim(3)).await.recheck_after.unwrap();
    assert!(recheck <= TURN, "{recheck:?}");
    tokio::time::sleep(recheck + Duration::from_millis(1)).await;
    granted(&three, &claim(3)).await;
}

/// A waiter that has just asked is not suspected: no other is woken.
#[tokio::test]
async fn only_the_next_in_line_is_told_where_the_lock_goes_round_quickly() {
    let Some((server, root)) = start().await else { return };
    let (one, two, three) = (open(&server).await, open(&server).await, open(&server).await);
    let (mut first, mut second) = (mailbox(&two).await, mailbox(&three).await);
    for id in (0..100).step_by(3) {
        let claims = [claim(id + 1), claim(id + 2), claim(id + 3)];
        granted(&one, &claims[0]).await;
        let asked = BootClock.now();
        pending(&two, &claims[1]).await;
        pending(&three, &claims[2]).await;
        release(&one, &claims[0]).await;
        let quickly = BootClock.now().since(asked) < Duration::from_millis(150);
        assert_eq!(told(&mut first).await, Some(claims[1].id));
        granted(&two, &claims[1]).await;
        release(&two, &claims[1]).await;
        assert_eq!(told(&mut second).await, Some(claims[2].id));
        let is_granted = is_handed(&root, &claims[2]).await;
        release(&three, &claims[2]).await;
        // A machine that is too busy for that takes another round.
        if quickly {
            assert!(is_granted, "its first notification was that of its grant");
            return;
        }
    }
    panic!("this machine is too slow");
}

#[tokio::test]
async fn a_waiter_that_was_asked_to_end_is_not_handed_the_lock() {
    let Some((server, root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    let grace = Duration::from_secs(5);
    let ending = Ending::new("ops", "to drain");
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    one.release(&name(), claim(2).id, &End::Broken { ending, grace }).await.unwrap();
    release(&one, &claim(1)).await;
    assert!(!is_handed(&root, &claim(2)).await);
    let grant = granted(&two, &claim(2)).await;
    assert!(grant.lease.ttl <= grace && grant.lease.from.is_none(), "{:?}", grant.lease);
}

/// It was granted, and then taken away, before its client asked.
#[tokio::test]
async fn a_grant_that_was_broken_meanwhile_is_asked_for() {
    let Some((server, root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    let mut notifications = mailbox(&two).await;
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    let channel = channel(&root, &claim(2)).await;
    release(&one, &claim(1)).await;
    let end = End::Broken { ending: Ending::new("ops", "stuck"), grace: Duration::ZERO };
    one.release(&name(), claim(2).id, &end).await.unwrap();
    // Hints about one claim are merged: one about another says that all before it have come.
    notify(&root, &channel, &claim(9).id.to_string()).await;
    while told(&mut notifications).await != Some(claim(9).id) {}
    let third = granted(&one, &claim(3)).await;
    assert!(third.lease.from.is_none());
    pending(&two, &claim(2)).await;
}

/// When a client begins to listen to its mailbox it looks at all that it waits for. So it waits once before.
async fn learn_to_listen(holder: &Locks, lock: Mutex) {
    let guard = holder.mutex("deploy").lock().await.unwrap();
    let waits = tokio::spawn(async move { lock.lock().await.unwrap().release().await });
    while holder.inspect(&name()).await.unwrap().waiters.count() != Some(1) {
        tokio::task::yield_now().await;
    }
    guard.release().await.unwrap();
    waits.await.unwrap().unwrap();
}

/// Lets a claim wait while `holder` holds. What `see` sees of the lock that it got.
///
/// A client that has to wait for long asks for its grant. A machine that was too busy takes another round.
async fn after_a_wait<T: Send + 'static>(
    holder: &Locks,
    lock: impl Fn() -> Mutex,
    see: impl Fn(&Guard) -> T + Copy + Send + 'static,
) -> T {
    learn_to_listen(holder, lock()).await;
    for _ in 0..20 {
        let guard = holder.mutex("deploy").lock().await.unwrap();
        let (lock, asked) = (lock(), BootClock.now());
        let waits = tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            (BootClock.now(), see(&guard), guard)
        });
        while holder.inspect(&name()).await.unwrap().waiters.count() != Some(1) {
            tokio::task::yield_now().await;
        }
        // Its answer may come only after a thread was blocked for long.
        let _ = guard.release().await;
        let (granted, seen, guard) = waits.await.unwrap();
        // What was lost cannot be released.
        let _ = guard.release().await;
        if granted.since(asked) < TURN / 2 {
            return seen;
        }
    }
    panic!("this machine is too busy")
}

#[tokio::test]
async fn who_is_not_renewed_or_is_to_outlive_the_process_gets_the_whole_lease() {
    let Some((server, _root)) = start().await else { return };
    let (one, two) = (client(&server).await, client(&server).await);
    let ttl = Duration::from_secs(20);
    let lock = || two.mutex("deploy").ttl(ttl);
    let left = after_a_wait(&one, &lock, |guard| guard.time_left()).await;
    assert!(left <= TURN, "it was handed the lock: {left:?}");
    for whole in [lock().ttl(ttl).no_renewal(), lock().lifetime(Lifetime::Lease), lock().whole_lease()] {
        let left = after_a_wait(&one, || whole.clone(), |guard| guard.time_left()).await;
        assert!(left > ttl / 2, "{left:?}");
    }
}

/// Each listener costs the server time for every notification of the database.
#[tokio::test]
async fn a_client_listens_only_while_it_has_something_to_hear() {
    let Some((server, root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    let listeners = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN oarlock_%'";
    until(&root, listeners, 0).await;
    granted(&one, &claim(1)).await;
    until(&root, listeners, 1).await;
    release(&one, &claim(1)).await;
    until(&root, listeners, 0).await;
    // And again, for its own turn.
    granted(&one, &claim(2)).await;
    let mut notifications = mailbox(&two).await;
    pending(&two, &claim(3)).await;
    until(&root, listeners, 2).await;
    release(&one, &claim(2)).await;
    assert_eq!(told(&mut notifications).await, Some(claim(3).id));
    granted(&two, &claim(3)).await;
    let mut renewal = Renewal::of(Arc::new(claim(3)));
    renewal.held = true;
    two.renew(&[renewal]).await.remove(0).unwrap();
    until(&root, listeners, 1).await;
    let (ending, grace) = (Ending::new("ops", "to test"), Duration::ZERO);
    one.release(&name(), claim(3).id, &End::Broken { ending, grace }).await.unwrap();
    assert_eq!(told(&mut notifications).await, Some(claim(3).id), "a holder hears of its end");
}

/// A role needs no right to send a notification. What is no grant of this claim is at most a reason to look.
#[tokio::test]
async fn what_others_send_grants_nothing() {
    let Some((server, root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    let mut notifications = mailbox(&two).await;
    let fence = granted(&one, &claim(1)).await.fence.get();
    pending(&two, &claim(2)).await;
    let channel = channel(&root, &claim(2)).await;
    let (id, now) = (claim(2).id, micros(BootClock.now()));
    for payload in [
        format!("{id}"),
        format!("{id} {fence}"),
        format!("{id} {fence} {now}"),
        format!("{id} {fence} x 2000000"),
        format!("{id} {fence} {now} 2000000 zz"),
        format!("{id} {fence} {now} 2000000 00 00"),
        // Well made, but without the ticket of the claim.
        format!("{id} {fence} {now} 2000000"),
        format!("{id} {fence} {now} 2000000 00"),
    ] {
        notify(&root, &channel, "").await;
        notify(&root, &channel, "something else").await;
        notify(&root, &channel, &payload).await;
        assert_eq!(told(&mut notifications).await, Some(id), "{payload}");
        pending(&two, &claim(2)).await;
    }
    // A claim that does not wait takes none.
    notify(&root, &channel, &format!("{} {fence} {now} 2000000", claim(3).id)).await;
    assert_eq!(told(&mut notifications).await, Some(claim(3).id));
    pending(&two, &claim(3)).await;
    // Nor does one that must begin with its whole lease, although this notification is well made.
    let mut whole = claim(4);
    whole.renews = false;
    pending(&two, &whole).await;
    assert_eq!(ticket(&root, &whole).await, None);
    let now = micros(BootClock.now());
    notify(&root, &channel, &format!("{} {fence} {now} 2000000", whole.id)).await;
    assert_eq!(told(&mut notifications).await, Some(whole.id));
    pending(&two, &whole).await;
}

/// The same notification again, once it was taken and once the lock was released.
#[tokio::test]
async fn a_grant_that_is_told_twice_is_taken_once() {
    let Some((server, root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    let mut notifications = mailbox(&two).await;
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    let channel = channel(&root, &claim(2)).await;
    let ticket = ticket(&root, &claim(2)).await.unwrap();
    release(&one, &claim(1)).await;
    told(&mut notifications).await;
    let grant = granted(&two, &claim(2)).await;
    assert!(grant.lease.from.is_some(), "it was handed the lock");
    let again = format!("{} {} {ticket} 2000000", claim(2).id, grant.fence);
    notify(&root, &channel, &again).await;
    told(&mut notifications).await;
    assert!(granted(&two, &claim(2)).await.lease.from.is_none(), "the store was asked");
    release(&two, &claim(2)).await;
    let third = granted(&one, &claim(3)).await;
    assert!(third.fence > grant.fence);
    notify(&root, &channel, &again).await;
    told(&mut notifications).await;
    pending(&two, &claim(2)).await;
}

async fn end_session_of(root: &tokio_postgres::Client, claim: &Claim) {
    let end = "SELECT pg_terminate_backend(pid) FROM oarlock.session
        WHERE number = (SELECT session FROM oarlock.claim WHERE id = $1)";
    root.query_one(end, &[&claim.id.bits().to_be_bytes().as_slice()]).await.unwrap();
}

/// The backend that listens is gone when the lock is released: the notification is lost, the grant is not.
#[tokio::test]
async fn a_grant_whose_notification_was_lost_is_asked_for() {
    let Some((server, root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    let mut ended = mailbox(&two).await;
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    end_session_of(&root, &claim(2)).await;
    while ended.changed().await.is_some() {}
    release(&one, &claim(1)).await;
    assert!(is_handed(&root, &claim(2)).await);
    let shown = one.inspect(&Query::name(name())).await.unwrap().resources.remove(0);
    let grant = granted(&two, &claim(2)).await;
    assert_eq!((shown.holders[0].fence, grant.lease.ttl), (Some(grant.fence), claim(2).ttl));
    assert!(!is_handed(&root, &claim(2)).await);
}

/// The session of the waiter ended after the notification had come: others may take its claims for dead, so the store
/// is asked.
#[tokio::test]
async fn a_grant_to_a_session_that_has_ended_is_not_believed() {
    let Some((server, root)) = start().await else { return };
    let (one, two) = (open(&server).await, open(&server).await);
    let mut notifications = mailbox(&two).await;
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    release(&one, &claim(1)).await;
    told(&mut notifications).await;
    end_session_of(&root, &claim(2)).await;
    while notifications.changed().await.is_some() {}
    let grant = granted(&two, &claim(2)).await;
    assert!(grant.lease.from.is_none() && !is_handed(&root, &claim(2)).await, "{grant:?}");
    // It belongs to the session that its client has now.
    let living = "SELECT count(*) FROM oarlock.claim JOIN oarlock.session ON number = session
        WHERE id IS NOT NULL AND ended IS NULL AND pid IN (SELECT pid FROM pg_stat_activity)";
    until(&root, living, 1).await;
}

/// What the holder of a lock that it was handed sees after its thread was blocked for five seconds right after the
/// grant.
async fn after_a_blocked_thread(server: &Server, whole: bool) -> (Duration, Option<LossReason>) {
    let (one, two) = (client(server).await, client(server).await);
    let lock = two.mutex("deploy");
    let lock = if whole { lock.whole_lease() } else { lock };
    let blocked = |guard: &Guard| {
        let begun = guard.time_left();
        std::thread::sleep(Duration::from_secs(5));
        // Nothing is awaited in between: this is what the program would act on.
        (begun, guard.loss())
    };
    after_a_wait(&one, || lock.clone(), blocked).await
}

/// The client renews on another thread of the runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handed_lock_bears_a_blocked_thread() {
    let Some((server, _root)) = start().await else { return };
    // It may be renewed before its thread is blocked: the test of one thread shows that it is handed the lock.
    let (_, loss) = after_a_blocked_thread(&server, false).await;
    assert_eq!(loss, None);
}

/// The only thread of the runtime is blocked, so the client cannot renew: the program is told before it does anything
/// else.
#[tokio::test]
async fn a_handed_lock_on_a_runtime_of_one_thread_that_blocks_is_told_lost() {
    let Some((server, _root)) = start().await else { return };
    let (begun, loss) = after_a_blocked_thread(&server, false).await;
    assert!(begun <= TURN, "it was handed the lock: {begun:?}");
    assert!(matches!(loss, Some(LossReason::Expired)), "{loss:?}");
    let (begun, loss) = after_a_blocked_thread(&server, true).await;
    assert!(begun > TURN, "it has its whole lease: {begun:?}");
    assert_eq!(loss, None);
}

/// The notification is late, and then the network is cut: the client must stop believing before the server grants to
/// the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn belief_in_a_turn_ends_before_the_next_grant_however_late_it_was_told() {
    let Some((server, root)) = start().await else { return };
    let mut margins = Vec::new();
    for delay in [Duration::ZERO, Duration::from_millis(250)] {
        let mut margin = None;
        for _ in 0..20 {
            margin = margin_of_belief(&server, &root, delay).await;
            if margin.is_some() {
                break;
            }
        }
        margins.push(margin.expect("a machine that is not too busy"));
    }
    println!("belief in a turn ended {margins:?} before the next grant");
}

/// How long before the next grant belief ended. `None` if the machine was so busy that the client had to ask for its
/// grant.
async fn margin_of_belief(server: &Server, root: &tokio_postgres::Client, delay: Duration) -> Option<Duration> {
    let (one, three) = (client(server).await, client(server).await);
    let proxy = Proxy::start(server.addr()).unwrap();
    let two = Locks::over(Postgres::connect(config(proxy.addr())).await.unwrap()).unwrap();
    learn_to_listen(&one, two.mutex("deploy")).await;
    let guard = one.mutex("deploy").lock().await.unwrap();
    let (lock, asked) = (two.mutex("deploy").wait(TURN), BootClock.now());
    let second = tokio::spawn(async move { (lock.lock().await, BootClock.now()) });
    until(root, "SELECT count(*) FROM oarlock.claim WHERE id IS NOT NULL AND fence IS NULL", 1).await;
    proxy.delay(Direction::ToClient, delay);
    // Before the turn comes, so that it cannot be renewed.
    proxy.cut_one_way(Direction::ToServer);
    let released = BootClock.now();
    guard.release().await.unwrap();
    let (held, told) = second.await.unwrap();
    proxy.cut();
    if told.since(asked) > TURN / 2 {
        return None;
    }
    let held = held.unwrap();
    assert!(held.time_left() <= TURN, "it was handed the lock");
    assert!(told.since(released) >= delay, "it was told {:?} late", told.since(released));
    let end = tokio::task::spawn_blocking({
        let held = held.held();
        move || end_of_belief(&held)
    });
    // It asks all the time, so as to be granted the lock as soon as that can be.
    let (next, at) = loop {
        if let Some(guard) = three.mutex("deploy").try_lock().await.unwrap() {
            break (guard, BootClock.now());
        }
    };
    let ended = end.await.unwrap();
    assert!(ended < at, "after a delay of {delay:?} it still believed when the next was granted");
    assert!(next.fence() > held.fence());
    next.release().await.unwrap();
    Some(at.since(ended))
}
