//! Failures of the network: replies lost with their connection, and silence.

use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_core::driver::{Attempt, End, Interest, Released, Renewal, Renewed};
use oarlock_core::state::Query;
use oarlock_core::{Capacity, Claim, ClaimId, Driver, Error, ErrorKind, Limit, Locks, ResourceName, Retry, Weight};
use oarlock_etcd::{Config, Etcd};
use oarlock_testbed::ports::Port;
use oarlock_testbed::proxy::{Direction, Held, Proxy, Then};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The longest lease of a waiter.
const WAITER_LEASE: Duration = Duration::from_secs(10);

struct TestContext {
    server: oarlock_testbed::Etcd,
    proxy: Proxy,
}

impl TestContext {
    fn start() -> Result<Option<Self>, Box<dyn std::error::Error>> {
        let Some(server) = oarlock_testbed::Etcd::start_or_skip()? else { return Ok(None) };
        let proxy = Proxy::start(server.addr())?;
        Ok(Some(Self { server, proxy }))
    }

    async fn near(&self) -> Result<Etcd, Error> {
        Etcd::open(Config::new([self.server.addr().to_string()])).await
    }

    async fn through(&self) -> Result<Etcd, Error> {
        Etcd::open(Config::new([self.proxy.addr().to_string()])).await
    }
}

fn claim(id: u128, name: &str) -> Result<Claim, Error> {
    let mut claim = Claim::new(ClaimId::from_bits(id), ResourceName::new(name)?);
    claim.wait = true;
    Ok(claim)
}

async fn holders(store: &Etcd, name: &str) -> Result<usize, Box<dyn std::error::Error>> {
    let page = store.inspect(&Query::name(ResourceName::new(name)?)).await?;
    Ok(page.resources.first().map_or(0, |state| state.holders.len()))
}

/// Retries as the engine does: a request that was sent before the end of the connection was noticed fails with it, and
/// is sent again.
async fn again<T, F: Future<Output = Result<T, Error>>>(request: impl Fn() -> F) -> Result<T, Error> {
    for _ in 0..3 {
        match request().await {
            Err(error) if error.retry() == Retry::Later => {}
            answer => return answer,
        }
    }
    request().await
}

/// Lets a request through, loses its reply with the connection, and repeats it: it must have counted once.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_lost_with_its_connection() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let (near, store) = (context.near().await?, context.through().await?);
    for (round, then) in (1..).zip([Then::Close, Then::Silence]) {
        let name = format!("lost {round}");
        let claim = claim(round, &name)?;
        // A lease is ready, so the next request is the attempt's own.
        let warm = self::claim(100 + round, "warm")?;
        store.attempt(&warm).await?;
        store.release(&warm.resource, warm.id, &End::Done { memo: None }).await?;
        let lost = context.proxy.drop_next_reply(then);
        let attempt = store.attempt(&claim).await;
        assert!(attempt.is_err_and(|error| error.applied() == oarlock_core::error::Applied::Unknown));
        assert!(lost.wait().await.is_some());
        let Attempt::Granted(again) = again(|| store.attempt(&claim)).await? else {
            return Err("was not granted".into());
        };
        let Attempt::Granted(still) = store.attempt(&claim).await? else { return Err("was not granted".into()) };
        assert_eq!(again.fence, still.fence);
        assert_eq!(holders(&near, &name).await?, 1);

        let lost = context.proxy.drop_next_reply(then);
        let renewed = store.renew(&[Renewal::of(Arc::new(claim.clone()))]).await;
        assert!(renewed[0].is_err(), "{renewed:?}");
        assert!(lost.wait().await.is_some());
        let batch = [Renewal::of(Arc::new(claim.clone()))];
        let renewed = self::again(|| async { store.renew(&batch).await.remove(0) }).await?;
        assert!(matches!(renewed, Renewed::Alive { .. }), "{renewed:?}");

        let lost = context.proxy.drop_next_reply(then);
        assert!(store.release(&claim.resource, claim.id, &End::Done { memo: None }).await.is_err());
        assert!(lost.wait().await.is_some());
        let end = End::Done { memo: None };
        let again = self::again(|| store.release(&claim.resource, claim.id, &end)).await?.outcome;
        // A connection that closes may take a request with it before it was obeyed.
        assert!(again == Released::NotHeld || then == Then::Close, "{again:?}");
        assert_eq!(holders(&near, &name).await?, 0);
    }
    Ok(())
}

/// A caller walks away from a request that is held up on its way; whenever it arrives, nothing is left of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_attempt_leaves_nothing() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let (near, store) = (context.near().await?, Arc::new(context.through().await?));
    let warm = claim(1, "warm")?;
    store.attempt(&warm).await?;
    store.release(&warm.resource, warm.id, &End::Done { memo: None }).await?;
    let held = context.proxy.seen().to_server;
    context.proxy.cut();
    let late = claim(2, "late")?;
    let attempt = tokio::spawn({
        let (store, late) = (store.clone(), late.clone());
        async move { store.attempt(&late).await }
    });
    context.proxy.until(|seen| seen.held_to_server > 0).await;
    assert_eq!(context.proxy.seen().to_server, held);
    // The same client goes on once the connection is back.
    attempt.abort();
    let _ = attempt.await;
    context.proxy.heal(Held::Deliver)?;
    store.release(&late.resource, late.id, &End::Withdrawn).await?;
    for id in 10..20 {
        let next = claim(id, "next")?;
        let Attempt::Granted(_) = store.attempt(&next).await? else { return Err("was not granted".into()) };
        store.release(&next.resource, next.id, &End::Done { memo: None }).await?;
    }
    assert_eq!(holders(&near, "late").await?, 0);
    Ok(())
}

/// An idle client's leases run out, and its next lock has a lease that lives.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_lease_that_ran_out_is_replaced() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let client = Locks::over(context.near().await?)?;
    let ttl = Duration::from_secs(4);
    client.mutex("foo").ttl(ttl).lock().await?.release().await?;
    tokio::time::sleep(ttl * 2).await;
    let guard = client.mutex("foo").ttl(ttl).lock().await?;
    tokio::time::sleep(ttl * 2).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    guard.release().await?;
    Ok(())
}

/// A member without a leader receives no changes. Its watches end, so that waiters poll, or watch another member.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_on_a_member_without_a_leader_ends() -> Outcome {
    if oarlock_testbed::Etcd::start_or_skip()?.is_none() {
        return Ok(());
    }
    let ports = [Port::reserve()?, Port::reserve()?];
    let peers = ports.each_ref().map(|port| format!("http://{}", port.addr()));
    let cluster = format!("a={},b={}", peers[0], peers[1]);
    let member = |name: &'static str, peer: &str| {
        let (peer, cluster) = (peer.to_owned(), cluster.clone());
        tokio::task::spawn_blocking(move || {
            oarlock_testbed::Etcd::start_with(&[
                ("name", name),
                ("listen-peer-urls", &peer),
                ("initial-advertise-peer-urls", &peer),
                ("initial-cluster", &cluster),
            ])
        })
    };
    let (one, other) = tokio::join!(member("a", &peers[0]), member("b", &peers[1]));
    let (one, other) = (one??, other??);
    let store = Etcd::open(Config::new([one.addr().to_string()])).await?;
    let interest = Interest::Resource(ResourceName::new("n")?);
    let mut watch = store.watch(&interest).await?;
    other.kill()?;
    let end = tokio::time::timeout(Duration::from_secs(30), watch.changed()).await?;
    assert_eq!(end, None);
    let refused = store.watch(&interest).await.expect_err("a watch that hears nothing");
    assert_eq!((refused.kind(), refused.retry()), (ErrorKind::Unreachable, Retry::Later), "{refused}");
    Ok(())
}

/// A lease shorter than the server's least is longer than was asked for, and what was given counts.
#[tokio::test(flavor = "multi_thread")]
async fn the_lease_that_was_given_is_told_and_shown() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let store = context.near().await?;
    let mut short = claim(1, "short")?;
    short.ttl = Duration::from_millis(300);
    let asked = std::time::Instant::now();
    let Attempt::Granted(grant) = store.attempt(&short).await? else { return Err("was not granted".into()) };
    assert_eq!(grant.lease.ttl, Duration::from_secs(2));
    let page = store.inspect(&Query::name(short.resource.clone())).await?;
    let left = page.resources[0].holders.first().ok_or("the lease is over")?.lease_left;
    // The server shows whole seconds.
    let (low, high) = (left + asked.elapsed() + Duration::from_secs(1), Duration::from_secs(2));
    assert!(low >= high && left <= high, "{left:?}");
    let renewed = store.renew(&[Renewal::of(Arc::new(short))]).await.remove(0)?;
    assert!(matches!(renewed, Renewed::Alive { lease, .. } if lease.ttl == Duration::from_secs(2)), "{renewed:?}");
    Ok(())
}

/// Whatever way claims end, their leases are laid aside, ended or given back: none is left when the client is gone.
#[tokio::test(flavor = "multi_thread")]
async fn no_lease_is_left_behind() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let leases = || context.server.ctl(&["lease", "list"]);
    let client = Locks::over(context.near().await?)?;
    for _ in 0..20 {
        client.mutex("a").lock().await?.release().await?;
    }
    assert!(leases()?.starts_with("found 1 leases"), "{}", leases()?);
    let held = client.mutex("a").lock().await?;
    assert!(client.mutex("a").try_lock().await?.is_none());
    let gave_up = tokio::time::timeout(Duration::from_millis(200), client.mutex("a").lock()).await;
    assert!(gave_up.is_err());
    drop(held);
    client.shutdown(Duration::from_secs(5)).await?;
    assert!(leases()?.starts_with("found 0 leases"), "{}", leases()?);
    Ok(())
}

/// The client is closed while it is given a lease: when everything is ended, it does not know of that one yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_comes_while_the_client_closes_is_ended() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let leases = || context.server.ctl(&["lease", "list"]);
    let store = Arc::new(context.through().await?);
    context.proxy.cut_one_way(Direction::ToClient);
    let attempt = tokio::spawn({
        let (store, claim) = (store.clone(), claim(1, "job")?);
        async move { store.attempt(&claim).await }
    });
    let patience = Instant::now() + Duration::from_secs(30);
    while !leases()?.starts_with("found 1 leases") {
        assert!(Instant::now() < patience, "{}", leases()?);
    }
    store.close().await?;
    context.proxy.heal(Held::Deliver)?;
    let refused = tokio::time::timeout(Duration::from_secs(30), attempt).await??;
    assert!(refused.is_err(), "{refused:?}");
    assert!(leases()?.starts_with("found 0 leases"), "{}", leases()?);
    Ok(())
}

/// Two proxies to one server act as two members. One falls silent: the next request goes to the other, and watches on
/// the first end.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_member_is_left() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let second = Proxy::start(context.server.addr())?;
    let members = [context.proxy.addr(), second.addr()].map(|addr| addr.to_string());
    let store = Arc::new(Etcd::open(Config::new(members)).await?);
    let mut watch = store.watch(&Interest::Mailbox).await?;
    assert_eq!(second.seen().to_server, 0, "the first one is enough");
    context.proxy.cut();
    let stuck = tokio::spawn({
        let (store, claim) = (store.clone(), claim(1, "stuck")?);
        async move { store.attempt(&claim).await }
    });
    context.proxy.until(|seen| seen.held_to_server > 0).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let other = claim(2, "other")?;
    let Attempt::Granted(_) = tokio::time::timeout(Duration::from_secs(10), store.attempt(&other)).await?? else {
        return Err("was not granted".into());
    };
    let end = tokio::time::timeout(Duration::from_secs(10), watch.changed()).await?;
    assert_eq!((end, watch.changed().await), (None, None));
    assert!(!stuck.is_finished(), "nothing was stuck: nothing is tested");
    stuck.abort();
    Ok(())
}

/// A member falls silent and its connection is given up after seconds: that is not how long answers take, and the next
/// silent member is left as soon as the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_connection_is_no_slow_answer() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let second = Proxy::start(context.server.addr())?;
    let members = [context.proxy.addr(), second.addr()].map(|addr| addr.to_string());
    let store = Arc::new(Etcd::open(Config::new(members)).await?);
    context.proxy.cut();
    let stuck = claim(1, "stuck")?;
    let failed = tokio::time::timeout(Duration::from_secs(30), store.attempt(&stuck)).await?;
    assert!(failed.is_err(), "it was answered: nothing is tested");
    context.proxy.heal(Held::Reset)?;
    assert!(matches!(store.attempt(&claim(2, "second")?).await?, Attempt::Granted(_)));
    second.cut();
    let held = second.seen().held_to_server;
    let stuck = tokio::spawn({
        let (store, claim) = (store.clone(), claim(3, "stuck again")?);
        async move { store.attempt(&claim).await }
    });
    second.until(|seen| seen.held_to_server > held).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let other = claim(4, "other")?;
    let granted = tokio::time::timeout(Duration::from_secs(3), again(|| store.attempt(&other))).await;
    assert!(matches!(granted, Ok(Ok(Attempt::Granted(_)))), "asked the silent member: {granted:?}");
    assert!(!stuck.is_finished(), "nothing was stuck: nothing is tested");
    stuck.abort();
    Ok(())
}

/// All members are slow: none of them is taken for silent, and a watch at one of them goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_cluster_keeps_its_watches() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let second = Proxy::start(context.server.addr())?;
    let members = [context.proxy.addr(), second.addr()].map(|addr| addr.to_string());
    let store = Arc::new(Etcd::open(Config::new(members)).await?);
    for proxy in [&context.proxy, &second] {
        proxy.delay(Direction::ToClient, Duration::from_millis(700));
    }
    // The first requests show how slow it is.
    for id in 1..3 {
        again(|| async { store.attempt(&claim(id, "warm")?).await }).await?;
    }
    let mut watch = store.watch(&Interest::Mailbox).await?;
    let asked = second.seen().to_server;
    for id in 3..6 {
        // The second of two is sent when the first is older than what counts as silence elsewhere.
        let (first, later) = (claim(id, &format!("first-{id}"))?, claim(id + 10, &format!("later-{id}"))?);
        let later = async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            store.attempt(&later).await
        };
        let (first, later) = tokio::join!(store.attempt(&first), later);
        assert!(matches!((first?, later?), (Attempt::Granted(_), Attempt::Granted(_))));
    }
    assert_eq!(second.seen().to_server, asked, "another member was asked, which is as slow");
    let news = tokio::time::timeout(Duration::from_millis(100), watch.changed()).await;
    assert!(news.is_err(), "the watch has ended: {news:?}");
    Ok(())
}

/// A member that refuses connections costs one failed request at most, and a store is opened through any member that
/// answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_gone_is_left() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let unused = Port::reserve()?;
    let members = [unused.addr(), context.proxy.addr(), context.server.addr()].map(|addr| addr.to_string());
    let store = Etcd::open(Config::new(members)).await?;
    context.proxy.refuse();
    let claim = claim(1, "job")?;
    let first = store.attempt(&claim).await;
    assert!(first.is_err(), "the one in the middle was asked");
    assert!(matches!(store.attempt(&claim).await?, Attempt::Granted(_)));
    Ok(())
}

/// A full database accepts no lock: a client that attempts one gets an error at once, and what is held stays held.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_is_reported_at_once() -> Outcome {
    let settings = [("quota-backend-bytes", "4000000")];
    let Some(server) = oarlock_testbed::Etcd::start_with_or_skip(&settings)? else { return Ok(()) };
    let client = Locks::over(Etcd::open(Config::new([server.addr().to_string()])).await?)?;
    let held = client.mutex("held").ttl(Duration::from_secs(2)).lock().await?;
    let big = "x".repeat(60_000);
    let full = (0..200).any(|number| server.ctl(&["put", &format!("big{number}"), &big]).is_err());
    assert!(full, "it takes everything: nothing is tested");
    let asked = Instant::now();
    let refused = client.mutex("new").wait(Duration::from_secs(20)).lock().await.err().ok_or("granted")?;
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(refused.to_string().contains("full"), "{refused}");
    assert!(asked.elapsed() < Duration::from_secs(5), "after {:?}", asked.elapsed());
    let ends_at = held.ends_at();
    let renewed = async {
        while held.is_held() && held.ends_at() == ends_at {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), renewed).await?;
    assert!(held.is_held(), "{:?}", held.loss());
    held.release().await?;
    Ok(())
}

/// Each wait has a watch of its own: what the server keeps for it must not outlive it, or a busy client fills the
/// server.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_was_dropped_is_ended_at_the_server() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let (store, name) = (context.near().await?, ResourceName::new("n")?);
    let watchers = || context.server.metric("etcd_debugging_mvcc_watcher_total");
    let before = watchers()?;
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(store.watch(&Interest::Resource(name.clone())).await?);
    }
    assert!(watchers()? >= before + 20.0, "the server does not count them: nothing is tested");
    drop(watches);
    let ended = Instant::now() + Duration::from_secs(30);
    while watchers()? > before {
        assert!(Instant::now() < ended, "{} watchers are left", watchers()? - before);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// A waiter for a share is notified of a writer that became a reader before the watch was armed.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_of_a_writer_that_became_a_reader_before_it_was_armed() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let (store, other) = (context.near().await?, context.near().await?);
    let shared = |number, weight| {
        claim(number, "turn").map(|mut claim| {
            (claim.weight, claim.capacity) = (weight, Capacity::Fixed(Limit::Unlimited));
            claim
        })
    };
    let reader = shared(2, Weight::ONE)?;
    assert!(matches!(other.attempt(&shared(1, Weight::All)?).await?, Attempt::Granted(_)));
    let Attempt::Pending(pending) = store.attempt(&reader).await? else { return Err("granted beside a writer".into()) };
    assert!(pending.watched);
    assert!(matches!(other.attempt(&shared(1, Weight::ONE)?).await?, Attempt::Granted(_)));
    let mut watch = store.watch(&Interest::Turn(Arc::new(reader.clone()), pending.cursor)).await?;
    let told = tokio::time::timeout(Duration::from_secs(5), watch.changed()).await?;
    assert!(told.is_some());
    assert!(matches!(store.attempt(&reader).await?, Attempt::Granted(_)));
    Ok(())
}

/// A change between a read and the watch that follows it is reported, whether the server still has its history or not;
/// and also if the next claim has the same key.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_begins_where_the_read_ended() -> Outcome {
    let Some(context) = TestContext::start()? else { return Ok(()) };
    let (store, other) = (context.near().await?, context.near().await?);
    let done = End::Done { memo: None };
    for (round, (compacted, again)) in (0..).zip([(false, false), (false, true), (true, false), (true, true)]) {
        // Short enough to wait and to hold on one lease, and so to have the same key again.
        let short = |number| {
            claim(10 * round + number, "turn").map(|mut claim| {
                claim.ttl = WAITER_LEASE;
                claim
            })
        };
        let (first, second, next) = (short(1)?, short(2)?, short(4)?);
        assert!(matches!(other.attempt(&first).await?, Attempt::Granted(_)));
        let Attempt::Pending(pending) = store.attempt(&second).await? else { return Err("granted twice".into()) };
        assert!(pending.watched);
        other.release(&first.resource, first.id, &done).await?;
        if again {
            assert!(matches!(other.attempt(&next).await?, Attempt::Pending(_)));
        }
        if compacted {
            let beside = claim(10 * round + 3, "beside")?;
            let Attempt::Granted(grant) = other.attempt(&beside).await? else { return Err("not granted".into()) };
            other.release(&beside.resource, beside.id, &done).await?;
            context.server.ctl(&["compact", &grant.fence.to_string()])?;
        }
        let mut watch = store.watch(&Interest::Turn(Arc::new(second.clone()), pending.cursor)).await?;
        let told = tokio::time::timeout(Duration::from_secs(30), watch.changed()).await?;
        assert!(told.is_some(), "round {round}");
        assert!(matches!(store.attempt(&second).await?, Attempt::Granted(_)));
        store.release(&second.resource, second.id, &done).await?;
        if again {
            other.release(&next.resource, next.id, &done).await?;
        }
    }
    Ok(())
}
