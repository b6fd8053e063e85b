//! A release hands the lock to the next in line, who need not ask again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "shared/patient.rs"]
mod patient;

use std::sync::Arc;
use std::time::Duration;

use oarlock_conformance::end_of_belief;
use oarlock_core::clock::{BootClock, Clock as _, Moment, TokioClock};
use oarlock_core::driver::{Attempt, Driver as _, End, Grant, Interest, Pending, Released, Renewal, Renewed, Watch};
use oarlock_core::state::{Ending, Query, Waiters};
use oarlock_core::{Claim, ClaimId, Lifetime, Locks, LossReason, ResourceName};
use oarlock_redis::{Address, Config, Redis};
use oarlock_testbed::proxy::{Direction, Proxy};
use redis::aio::MultiplexedConnection;

const DONE: End = End::Done { memo: None };

/// How long a turn may go untaken.
const TURN: Duration = Duration::from_secs(2);

struct TestContext {
    server: oarlock_testbed::Redis,
    raw: MultiplexedConnection,
}

impl TestContext {
    async fn start() -> Option<Self> {
        let server = oarlock_testbed::Redis::start_or_skip().unwrap()?;
        let raw = patient::connect(&server.url()).await;
        Some(Self { server, raw })
    }

    fn config(&self) -> Config {
        let addr = self.server.addr();
        Config::new(Address::Tcp(addr.ip().to_string(), addr.port()))
    }

    async fn open(&self) -> Redis {
        Redis::open(self.config()).await.unwrap()
    }

    /// A store that is notified of the turns of its claims.
    async fn listening(&self) -> (Redis, Watch) {
        let store = self.open().await;
        let mailbox = store.watch(&Interest::Mailbox).await.unwrap();
        (store, mailbox)
    }

    async fn client(&self) -> Locks {
        Locks::over(self.open().await).unwrap()
    }

    /// How many mailboxes have a subscriber.
    async fn listeners(&self) -> usize {
        let mut ask = redis::cmd("PUBSUB");
        let channels: Vec<String> =
            ask.arg("CHANNELS").arg("oarlock:mail:*").query_async(&mut self.raw.clone()).await.unwrap();
        channels.len()
    }

    /// How many scripts the server has run.
    async fn calls(&mut self) -> u64 {
        let told: String = redis::cmd("INFO").arg("commandstats").query_async(&mut self.raw).await.unwrap();
        let line = told.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |figures| figures.split(',').next().unwrap().parse().unwrap())
    }
}

macro_rules! context {
    () => {
        match TestContext::start().await {
            Some(context) => context,
            None => return,
        }
    };
}

fn name() -> ResourceName {
    ResourceName::new("deploy").unwrap()
}

/// A claim that waits.
fn claim(id: u128) -> Claim {
    let mut claim = Claim::new(ClaimId::from_bits(id), name());
    claim.wait = true;
    claim
}

async fn granted(store: &Redis, claim: &Claim) -> Grant {
    match store.attempt(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Pending(pending) => panic!("{pending:?}"),
    }
}

async fn pending(store: &Redis, claim: &Claim) -> Pending {
    match store.attempt(claim).await.unwrap() {
        Attempt::Pending(pending) => pending,
        Attempt::Granted(grant) => panic!("{grant:?}"),
    }
}

/// The claim that the next notification is for.
async fn told(watch: &mut Watch) -> Option<ClaimId> {
    let notification = tokio::time::timeout(Duration::from_secs(30), watch.changed()).await;
    notification.expect("a notification").expect("a watch that has not ended").claim
}

async fn release(store: &Redis, claim: &Claim) {
    store.release(&name(), claim.id, &DONE).await.unwrap();
}

#[tokio::test]
async fn a_lock_costs_two_requests_however_many_wait() {
    let mut context = context!();
    let client = context.client().await;
    for tasks in [2_u64, 16, 64] {
        let (rounds, before) = (400 / tasks, context.calls().await);
        let work = (0..tasks).map(|_| {
            let lock = client.mutex("deploy");
            tokio::spawn(async move {
                for _ in 0..rounds {
                    lock.lock().await.unwrap().release().await.unwrap();
                }
            })
        });
        for task in work.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let (calls, grants) = (context.calls().await - before, rounds * tasks);
        println!("{tasks} tasks: {calls} requests for {grants} grants");
        // A claim that queues before the mailbox is subscribed polls once more, and so does a claim that waited for
        // long.
        assert!(calls <= grants * 2 + tasks * 2 + grants / 10, "{tasks} tasks: {calls} requests for {grants} grants");
    }
}

#[tokio::test]
async fn a_turn_comes_with_its_grant_which_is_the_one_in_the_store() {
    let mut context = context!();
    let (one, (two, mut mailbox)) = (context.open().await, context.listening().await);
    let first = granted(&one, &claim(1)).await;
    assert!(pending(&two, &claim(2)).await.watched);
    one.release(&name(), claim(1).id, &End::Done { memo: Some(b"a b"[..].into()) }).await.unwrap();
    assert_eq!(told(&mut mailbox).await, Some(claim(2).id));
    let shown = one.inspect(&Query::name(name())).await.unwrap().resources.remove(0);
    let before = context.calls().await;
    let handed = granted(&two, &claim(2)).await;
    assert_eq!(context.calls().await, before, "it was not asked for");
    assert!(handed.fence > first.fence);
    assert_eq!(handed.memo.as_deref(), Some(&b"a b"[..]));
    assert_eq!((shown.holders[0].id, shown.holders[0].fence), (claim(2).id, Some(handed.fence)));
    assert!(handed.lease.ttl <= TURN && handed.lease.from.is_some(), "{:?}", handed.lease);
    let asked = granted(&two, &claim(2)).await;
    assert_eq!(context.calls().await, before + 1, "a second attempt asks the store");
    assert_eq!((asked.fence, asked.lease.ttl), (handed.fence, claim(2).ttl));
    release(&two, &claim(2)).await;
}

/// A client may have a clock of its own, and believes by that.
#[tokio::test]
async fn a_turn_counts_by_the_clock_of_the_client() {
    let context = context!();
    let one = context.open().await;
    let clock = Arc::new(TokioClock::new());
    let mut config = context.config();
    config.clock = clock.clone();
    let two = Redis::open(config).await.unwrap();
    let _mailbox = two.watch(&Interest::Mailbox).await.unwrap();
    granted(&one, &claim(1)).await;
    let before = clock.now();
    pending(&two, &claim(2)).await;
    let after = clock.now();
    let mut word = two.watch(&Interest::Mailbox).await.unwrap();
    release(&one, &claim(1)).await;
    assert_eq!(told(&mut word).await, Some(claim(2).id));
    let from = granted(&two, &claim(2)).await.lease.from.expect("it was handed its turn");
    // It is told in whole microseconds.
    assert!(from + Duration::from_micros(1) > before && from <= after, "{before:?}, {from:?}, {after:?}");
}

#[tokio::test]
async fn a_turn_that_is_not_taken_passes_on_though_its_place_is_kept() {
    let context = context!();
    let (one, (two, _mailbox)) = (context.open().await, context.listening().await);
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
    release(&one, &claim(3)).await;
}

#[tokio::test]
async fn a_turn_that_is_taken_is_kept_by_the_first_renewal() {
    let context = context!();
    let (one, (two, mut mailbox)) = (context.open().await, context.listening().await);
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    release(&one, &claim(1)).await;
    told(&mut mailbox).await;
    let grant = granted(&two, &claim(2)).await;
    let mut renewal = Renewal::of(Arc::new(claim(2)));
    renewal.held = true;
    match two.renew(&[renewal]).await.remove(0).unwrap() {
        Renewed::Alive { lease, fence, .. } => assert_eq!((lease.ttl, fence), (claim(2).ttl, Some(grant.fence))),
        other @ Renewed::Gone(_) => panic!("{other:?}"),
    }
    tokio::time::sleep(TURN + Duration::from_millis(20)).await;
    pending(&one, &claim(3)).await;
}

/// A claim that was handed the lock holds it, also before it has asked again.
#[tokio::test]
async fn no_claim_passes_one_that_was_handed_the_lock() {
    let context = context!();
    let (one, (two, _mailbox)) = (context.open().await, context.listening().await);
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    release(&one, &claim(1)).await;
    let mut hasty = claim(4);
    hasty.wait = false;
    pending(&one, &hasty).await;
    pending(&one, &claim(3)).await;
    granted(&two, &claim(2)).await;
}

/// As after the end of a process: the server sees its connections end, and knows that no client listens.
#[tokio::test]
async fn the_dead_are_passed_over_at_once_but_keep_their_place_if_they_come_back() {
    let context = context!();
    let (one, (three, mut word)) = (context.open().await, context.listening().await);
    let mut whole = claim(3);
    whole.renews = false;
    // The first would be handed its turn, the second would have to ask for it.
    for dead in [claim(2), whole] {
        let (two, mailbox) = context.listening().await;
        granted(&one, &claim(1)).await;
        assert!(pending(&two, &dead).await.watched);
        assert!(pending(&three, &claim(4)).await.watched);
        drop(mailbox);
        two.close().await.unwrap();
        drop(two);
        while context.listeners().await > 1 {
            tokio::task::yield_now().await;
        }
        let released = one.release(&name(), claim(1).id, &DONE).await.unwrap();
        assert_eq!((released.outcome, released.others_waiting), (Released::Released, Some(true)));
        assert_eq!(told(&mut word).await, Some(claim(4).id));
        granted(&three, &claim(4)).await;
        // It was only its connection that had died.
        pending(&one, &dead).await;
        pending(&one, &claim(5)).await;
        release(&three, &claim(4)).await;
        pending(&one, &claim(5)).await;
        granted(&one, &dead).await;
        release(&one, &dead).await;
        granted(&one, &claim(5)).await;
        release(&one, &claim(5)).await;
    }
}

/// No claim holds, and the only one in line cannot be notified.
#[tokio::test]
async fn a_dead_waiter_is_in_the_way_of_no_other() {
    let context = context!();
    let (one, (two, mailbox)) = (context.open().await, context.listening().await);
    granted(&one, &claim(1)).await;
    assert!(pending(&two, &claim(2)).await.watched);
    drop(mailbox);
    two.close().await.unwrap();
    drop(two);
    while context.listeners().await > 0 {
        tokio::task::yield_now().await;
    }
    release(&one, &claim(1)).await;
    granted(&one, &claim(3)).await;
}

/// The next in line was silent for a while when its turn came. The claim after it is notified to poll, and learns when
/// that turn is over.
#[tokio::test]
async fn the_one_behind_a_silent_waiter_knows_when_its_turn_is_over() {
    let context = context!();
    let (one, (two, _two), (three, mut word)) =
        (context.open().await, context.listening().await, context.listening().await);
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    // Longer than a waiter is silent for a lock that goes round quickly.
    tokio::time::sleep(Duration::from_millis(250)).await;
    let before = pending(&three, &claim(3)).await.recheck_after.unwrap();
    assert!(before > TURN * 2, "{before:?}");
    release(&one, &claim(1)).await;
    assert_eq!(told(&mut word).await, Some(claim(3).id), "told to look");
    let recheck = pending(&three, &claim(3)).await.recheck_after.unwrap();
    assert!(recheck <= TURN, "{recheck:?}");
    tokio::time::sleep(recheck + Duration::from_millis(1)).await;
    granted(&three, &claim(3)).await;
    release(&three, &claim(3)).await;
}

/// A claim that has just asked is not suspected: no other claim is woken.
#[tokio::test]
async fn only_the_next_in_line_is_told_where_the_lock_goes_round_quickly() {
    let context = context!();
    let (one, (two, mut first), (three, mut second)) =
        (context.open().await, context.listening().await, context.listening().await);
    loop {
        granted(&one, &claim(1)).await;
        let asked = BootClock.now();
        pending(&two, &claim(2)).await;
        pending(&three, &claim(3)).await;
        release(&one, &claim(1)).await;
        let quickly = BootClock.now().since(asked) < Duration::from_millis(150);
        assert_eq!(told(&mut first).await, Some(claim(2).id));
        granted(&two, &claim(2)).await;
        release(&two, &claim(2)).await;
        assert_eq!(told(&mut second).await, Some(claim(3).id));
        let holders = one.inspect(&Query::name(name())).await.unwrap().resources.remove(0).holders;
        release(&three, &claim(3)).await;
        // A machine that is too busy for that has another try.
        if quickly {
            assert_eq!(holders[0].id, claim(3).id, "its first word was that of its turn");
            break;
        }
    }
}

#[tokio::test]
async fn a_waiter_that_was_asked_to_end_is_given_no_more_than_its_grace() {
    let context = context!();
    let (one, two) = (context.open().await, context.open().await);
    let grace = Duration::from_secs(5);
    let ending = Ending::new("ops", "to drain");
    granted(&one, &claim(1)).await;
    pending(&two, &claim(2)).await;
    one.release(&name(), claim(2).id, &End::Broken { ending: ending.clone(), grace }).await.unwrap();
    let renewal = Renewal::of(Arc::new(claim(2)));
    match two.renew(std::slice::from_ref(&renewal)).await.remove(0).unwrap() {
        Renewed::Alive { lease, .. } => assert!(lease.ttl <= grace, "its place: {lease:?}"),
        other @ Renewed::Gone(_) => panic!("{other:?}"),
    }
    pending(&two, &claim(2)).await;
    release(&one, &claim(1)).await;
    let grant = granted(&two, &claim(2)).await;
    assert!(grant.lease.ttl <= grace, "what it holds: {:?}", grant.lease);
    match two.renew(&[renewal]).await.remove(0).unwrap() {
        Renewed::Alive { lease, ending: told, .. } => {
            assert!(lease.ttl <= grace, "{lease:?}");
            assert_eq!(told, Some(ending));
        }
        other @ Renewed::Gone(_) => panic!("{other:?}"),
    }
    release(&two, &claim(2)).await;
}

#[tokio::test]
async fn a_claim_that_is_not_renewed_or_outlives_the_process_gets_the_whole_lease() {
    let context = context!();
    let (one, two) = (context.client().await, context.client().await);
    let ttl = Duration::from_secs(20);
    let lock = || two.mutex("deploy").ttl(ttl);
    let mut left = Vec::new();
    // With its first waiter the client subscribes to its mailbox.
    for lock in [lock(), lock(), lock().ttl(ttl).no_renewal(), lock().lifetime(Lifetime::Lease)] {
        let guard = one.mutex("deploy").lock().await.unwrap();
        // Nothing is awaited in between: the client asks for the rest of the lease in the background.
        let waits = tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            (guard.time_left(), guard)
        });
        while one.inspect(&name()).await.unwrap().waiters.count() != Some(1) {
            tokio::task::yield_now().await;
        }
        guard.release().await.unwrap();
        let (begun, guard) = waits.await.unwrap();
        left.push(begun);
        guard.release().await.unwrap();
    }
    assert!(left[1] <= TURN, "it was handed the lock: {left:?}");
    assert!(left[2..].iter().all(|left| *left > ttl / 2), "{left:?}");
}

/// What the holder of a lock that it was handed sees after its thread was blocked for five seconds right after the
/// grant.
async fn after_a_blocked_thread(context: &TestContext, whole: bool) -> (Duration, Option<LossReason>) {
    let (one, two) = (context.client().await, context.client().await);
    let lock = || two.mutex("deploy");
    // With its first waiter the client subscribes to its mailbox.
    for round in 0..2 {
        let guard = one.mutex("deploy").lock().await.unwrap();
        let lock = if whole && round == 1 { lock().whole_lease() } else { lock() };
        let waits = tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            let begun = guard.time_left();
            if round == 1 {
                std::thread::sleep(Duration::from_secs(5));
            }
            // Nothing is awaited in between: this is what the program would act on.
            let loss = guard.loss();
            (begun, loss)
        });
        while one.inspect(&name()).await.unwrap().waiters.count() != Some(1) {
            tokio::task::yield_now().await;
        }
        guard.release().await.unwrap();
        let seen = waits.await.unwrap();
        if round == 1 {
            return seen;
        }
    }
    unreachable!("the second round returns")
}

/// The client renews on another thread of the runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handed_lock_bears_a_blocked_thread() {
    let context = context!();
    // It may be renewed before its thread is blocked: the test of one thread shows that it is handed the lock.
    let (_, loss) = after_a_blocked_thread(&context, false).await;
    assert_eq!(loss, None);
}

/// The only thread of the runtime is blocked, so the client cannot renew: the program is told before it does anything
/// else. With its whole lease from the start the lock bears that, too.
#[tokio::test]
async fn a_handed_lock_on_a_runtime_of_one_thread_that_blocks_is_told_lost() {
    let context = context!();
    let (begun, loss) = after_a_blocked_thread(&context, false).await;
    assert!(begun <= TURN, "it was handed the lock: {begun:?}");
    assert!(matches!(loss, Some(LossReason::Expired)), "{loss:?}");
    let (begun, loss) = after_a_blocked_thread(&context, true).await;
    assert!(begun > TURN, "it has its whole lease: {begun:?}");
    assert_eq!(loss, None);
}

/// A well-formed notification grants the lock to a claim that may be handed it, and to no other claim.
#[tokio::test]
async fn a_claim_that_must_ask_takes_no_grant_from_a_notification() {
    let context = context!();
    let one = context.open().await;
    let fence = granted(&one, &claim(1)).await.fence;
    let (two, mut mailbox) = context.listening().await;
    let mut channels = redis::cmd("PUBSUB");
    let channels: Vec<String> =
        channels.arg("CHANNELS").arg("oarlock:mail:*").query_async(&mut context.raw.clone()).await.unwrap();
    let mut without_renewal = claim(2);
    without_renewal.renews = false;
    let mut outliving = claim(3);
    outliving.lifetime = Lifetime::Lease;
    for claim in [&without_renewal, &outliving, &claim(4)] {
        pending(&two, claim).await;
        let sent = BootClock.now().as_nanos() / 1000;
        let mut publish = redis::cmd("PUBLISH");
        let numbers = [fence.get(), sent, 2_000_000].map(u64::to_be_bytes).concat();
        publish.arg(&channels[0]).arg([&claim.id.bits().to_be_bytes()[..], &numbers].concat());
        publish.exec_async(&mut context.raw.clone()).await.unwrap();
        assert_eq!(told(&mut mailbox).await, Some(claim.id));
        match claim.may_be_handed() {
            true => drop(granted(&two, claim).await),
            false => drop(pending(&two, claim).await),
        }
    }
}

/// The notification of the turn is late, and then the connection is cut: the client that was handed the lock must stop
/// believing before the server grants it to the next waiter.
#[tokio::test]
async fn belief_in_a_turn_ends_before_the_next_grant_however_late_it_was_told() {
    let context = context!();
    let (one, three) = (context.client().await, context.client().await);
    let proxy = Proxy::start(context.server.addr()).unwrap();
    let mut config = context.config();
    config.address = Address::Tcp(proxy.addr().ip().to_string(), proxy.addr().port());
    let two = Locks::over(Redis::open(config).await.unwrap()).unwrap();
    let waits = |client: &Locks| {
        let lock = client.mutex("deploy");
        tokio::spawn(async move { (lock.lock().await.unwrap(), BootClock.now()) })
    };
    let queued = async |count| {
        while one.inspect(&name()).await.unwrap().waiters.count() != Some(count) {
            tokio::task::yield_now().await;
        }
    };
    let mut margins = Vec::new();
    for delay in [0, 250] {
        // With its first waiter the client subscribes to its mailbox.
        let guard = one.mutex("deploy").lock().await.unwrap();
        let second = waits(&two);
        queued(1).await;
        guard.release().await.unwrap();
        second.await.unwrap().0.release().await.unwrap();

        let guard = one.mutex("deploy").lock().await.unwrap();
        let second = waits(&two);
        queued(1).await;
        proxy.delay(Direction::ToClient, Duration::from_millis(delay));
        // Before the turn comes, so that it cannot be renewed.
        proxy.cut_one_way(Direction::ToServer);
        let released = BootClock.now();
        guard.release().await.unwrap();
        let (held, told) = second.await.unwrap();
        assert!(held.time_left() <= TURN, "it was handed the lock");
        proxy.cut();
        assert!(told.since(released) >= Duration::from_millis(delay), "it was told {:?} late", told.since(released));
        let end = tokio::task::spawn_blocking({
            let held = held.held();
            move || end_of_belief(&held)
        });
        // It asks all the time, so as to be granted the lock as soon as that can be.
        let (next, at): (_, Moment) = loop {
            if let Some(guard) = three.mutex("deploy").try_lock().await.unwrap() {
                break (guard, BootClock.now());
            }
        };
        let ended = end.await.unwrap();
        assert!(ended < at, "after a delay of {delay} ms it still believed when the next was granted");
        assert!(next.fence() > held.fence());
        margins.push((at.since(ended).as_secs_f64() * 1000.0).round());
        proxy.delay(Direction::ToClient, Duration::ZERO);
        proxy.heal(oarlock_testbed::proxy::Held::Deliver).unwrap();
        drop(held);
        next.release().await.unwrap();
    }
    println!("belief in a turn ended {margins:?} ms before the next grant");
}

/// The first waiter missed its turn and gave up, so that the holder's own number follows those that are free.
#[tokio::test]
async fn the_holder_is_not_next_in_its_own_line() {
    let context = context!();
    let (first, gone) = (context.open().await, context.listening().await);
    let (others, mut mailbox) = context.listening().await;
    granted(&first, &claim(1)).await;
    pending(&gone.0, &claim(2)).await;
    for id in 3..6 {
        pending(&others, &claim(id)).await;
    }
    drop(gone);
    let ended = async {
        while context.listeners().await > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the server to see the end of its connection");
    first.release(&name(), claim(1).id, &DONE).await.unwrap();
    assert_eq!(told(&mut mailbox).await, Some(claim(3).id), "the first one does not listen");
    let (back, _mailbox) = context.listening().await;
    pending(&back, &claim(2)).await;
    back.release(&name(), claim(2).id, &End::Withdrawn).await.unwrap();
    others.release(&name(), claim(3).id, &DONE).await.unwrap();
    assert_eq!(told(&mut mailbox).await, Some(claim(4).id));
    let page = others.inspect(&Query::name(name())).await.unwrap();
    let holders: Vec<_> = page.resources[0].holders.iter().map(|holder| holder.id).collect();
    assert_eq!(holders, [claim(4).id]);
    assert_eq!(pending(&others, &claim(5)).await.ahead, Some(1));
}

/// A process whose next task waits already sends both as one request.
#[tokio::test]
async fn a_release_carries_the_next_claim() {
    let mut context = context!();
    let ((one, _one), (other, mut mailbox)) = (context.listening().await, context.listening().await);
    let carry = async |id: u128, next: u128| {
        let (released, attempt) = one.release_and_attempt(&name(), ClaimId::from_bits(id), &DONE, &claim(next)).await;
        (released.unwrap().outcome, attempt.unwrap())
    };
    // The holder, and those who wait, in order.
    let shown = async || {
        let page = one.inspect(&Query::name(name())).await.unwrap();
        let Waiters::Listed(waiters) = &page.resources[0].waiters else { panic!("{page:?}") };
        let holders = page.resources[0].holders.iter().map(|holder| holder.id);
        holders.chain(waiters.iter().map(|waiter| waiter.id)).map(ClaimId::bits).collect::<Vec<_>>()
    };
    let first = granted(&one, &claim(1)).await;
    // No claim waits: it is granted in the same step. The server learns the script by the first call.
    let (released, Attempt::Granted(second)) = carry(1, 2).await else { panic!("the lock is free") };
    assert!(released == Released::Released && second.fence > first.fence);
    let before = context.calls().await;
    let (released, Attempt::Granted(third)) = carry(2, 3).await else { panic!("the lock is free") };
    assert_eq!((released, context.calls().await - before), (Released::Released, 1));
    assert!(third.fence > second.fence && third.lease.ttl == claim(3).ttl);
    assert_eq!(shown().await, [3]);
    // Repeated, because the answer may have been lost: nothing changes.
    let (released, Attempt::Granted(again)) = carry(2, 3).await else { panic!("it holds") };
    assert_eq!((released, again.fence, shown().await), (Released::NotHeld, third.fence, vec![3]));
    // Another claim waits: it is handed the lock, and the next one queues behind it, and behind one more.
    let mut last = third.fence;
    for round in [10, 20, 30] {
        let (holder, next) = (if round == 10 { 3 } else { round - 8 }, round + 2);
        assert!(pending(&other, &claim(round)).await.watched);
        let more = round == 30;
        if more {
            assert!(pending(&other, &claim(round + 1)).await.watched);
        }
        let (released, Attempt::Pending(answer)) = carry(holder, next).await else { panic!("another is first") };
        let ahead = if more { 2 } else { 1 };
        assert_eq!((released, answer.ahead, answer.watched), (Released::Released, Some(ahead), true));
        let ids = if more { vec![round, round + 1, next] } else { vec![round, next] };
        assert_eq!(shown().await, ids);
        let (released, Attempt::Pending(answer)) = carry(holder, next).await else { panic!("another holds") };
        assert_eq!((released, answer.ahead, shown().await), (Released::NotHeld, Some(ahead), ids), "it has one place");
        for id in [round, round + 1].into_iter().take(if more { 2 } else { 1 }) {
            assert_eq!(told(&mut mailbox).await, Some(claim(id).id));
            let grant = granted(&other, &claim(id)).await;
            assert!(grant.fence > last);
            last = grant.fence;
            assert_eq!(other.release(&name(), claim(id).id, &DONE).await.unwrap().outcome, Released::Released);
        }
        let grant = granted(&one, &claim(next)).await;
        assert!(grant.fence > last && shown().await == [next]);
        last = grant.fence;
    }
}

/// What the short way of such a request does not know goes the long way.
#[tokio::test]
async fn a_release_that_carries_a_claim_leaves_memos_and_passes_dead_waiters_over() {
    let context = context!();
    let ((one, _one), (dead, mailbox)) = (context.listening().await, context.listening().await);
    granted(&one, &claim(1)).await;
    let memo = End::Done { memo: Some(b"up to 7"[..].into()) };
    let (released, attempt) = one.release_and_attempt(&name(), claim(1).id, &memo, &claim(2)).await;
    let Attempt::Granted(grant) = attempt.unwrap() else { panic!("the lock is free") };
    assert_eq!((released.unwrap().outcome, grant.memo.as_deref()), (Released::Released, Some(&b"up to 7"[..])));
    let (other, _other) = context.listening().await;
    granted(&other, &elsewhere(1)).await;
    assert!(dead.attempt(&elsewhere(2)).await.is_ok());
    let listeners = context.listeners().await;
    dead.close().await.unwrap();
    drop((dead, mailbox));
    let closed = async {
        while context.listeners().await == listeners {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), closed).await.expect("the connection has ended");
    let (released, attempt) =
        other.release_and_attempt(&elsewhere(1).resource, elsewhere(1).id, &DONE, &elsewhere(3)).await;
    assert_eq!(released.unwrap().outcome, Released::Released);
    assert!(matches!(attempt.unwrap(), Attempt::Granted(_)), "the claim before it is dead");
}

fn elsewhere(id: u128) -> Claim {
    let mut claim = claim(id);
    claim.resource = ResourceName::new("elsewhere").unwrap();
    claim
}
