//! From a release to the next grant: the notification of a waiter, the number of requests, and how long its turn is
//! believed.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use oarlock_core::clock::{BootClock, Clock as _};
use oarlock_core::driver::{Attempt, End, Grant, Interest, Lease, Pending, Released, Watch};
use oarlock_core::{Capacity, Claim, ClaimId, Driver as _, Limit, Locks, ResourceName, Weight};
use oarlock_testbed::Proxy;
use oarlock_zookeeper::{Config, Layout, ZooKeeper};

/// Far above what any answer takes.
const PATIENCE: Duration = Duration::from_secs(30);

async fn open(addr: SocketAddr, session: Duration) -> Result<ZooKeeper> {
    Ok(ZooKeeper::open(Config::new([addr.to_string()]).session_timeout(session)).await?)
}

fn claim(bits: u128, weight: Weight, capacity: Option<Limit>) -> Result<Arc<Claim>> {
    let mut claim = Claim::new(ClaimId::from_bits(bits), ResourceName::new("job")?);
    (claim.wait, claim.weight) = (true, weight);
    claim.capacity = capacity.map_or(Capacity::Any, Capacity::Fixed);
    Ok(Arc::new(claim))
}

async fn granted(store: &ZooKeeper, claim: &Claim) -> Result<Grant> {
    match store.attempt(claim).await? {
        Attempt::Granted(grant) => Ok(grant),
        Attempt::Pending(pending) => anyhow::bail!("not granted: {pending:?}"),
    }
}

async fn pending(store: &ZooKeeper, claim: &Claim) -> Result<Pending> {
    match store.attempt(claim).await? {
        Attempt::Pending(pending) => Ok(pending),
        Attempt::Granted(grant) => anyhow::bail!("granted too early: {grant:?}"),
    }
}

async fn release(store: &ZooKeeper, claim: &Claim) -> Result<()> {
    let released = store.release(&claim.resource, claim.id, &End::Done { memo: None }).await?;
    ensure!(released.outcome == Released::Released, "{released:?}");
    Ok(())
}

async fn arm(store: &ZooKeeper, claim: &Arc<Claim>, pending: &Pending) -> Result<Watch> {
    Ok(store.watch(&Interest::Turn(claim.clone(), pending.cursor.clone())).await?)
}

/// It has news.
async fn fires(watch: &mut Watch) -> Result<()> {
    tokio::time::timeout(PATIENCE, watch.changed()).await.context("no notification came")?.context("it ended")?;
    Ok(())
}

/// It has none: any event would have come before an answer on the same connection.
async fn is_silent(store: &ZooKeeper, watch: &mut Watch) -> Result<()> {
    store.inspect(&oarlock_core::state::Query::name(ResourceName::new("job")?)).await?;
    let heard = tokio::time::timeout(Duration::ZERO, watch.changed()).await;
    ensure!(heard.is_err(), "told of something that did not happen");
    Ok(())
}

/// A waiter whose watch covers earlier changes does not poll again, so the watch must report them.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_what_happened_before_it_was_armed() -> Result<()> {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(()) };
    let store = open(server.addr(), Duration::from_secs(10)).await?;
    let (writer, reader) =
        (claim(1, Weight::All, Some(Limit::Unlimited))?, claim(2, Weight::ONE, Some(Limit::Unlimited))?);

    // The predecessor ends.
    granted(&store, &writer).await?;
    let seen = pending(&store, &reader).await?;
    ensure!(seen.watched, "one node is to be watched: {seen:?}");
    is_silent(&store, &mut arm(&store, &reader, &seen).await?).await?;
    release(&store, &writer).await?;
    fires(&mut arm(&store, &reader, &seen).await?).await?;
    granted(&store, &reader).await?;
    release(&store, &reader).await?;

    // It becomes lighter. It was marked as granted before, which is no news.
    granted(&store, &writer).await?;
    let seen = pending(&store, &reader).await?;
    is_silent(&store, &mut arm(&store, &reader, &seen).await?).await?;
    let lighter = claim(1, Weight::ONE, Some(Limit::Unlimited))?;
    granted(&store, &lighter).await?;
    fires(&mut arm(&store, &reader, &seen).await?).await?;
    granted(&store, &reader).await?;
    release(&store, &reader).await?;

    // An exclusive waiter goes on waiting for that one: what it knows is no news.
    let next = claim(3, Weight::All, Some(Limit::Unlimited))?;
    let seen = pending(&store, &next).await?;
    is_silent(&store, &mut arm(&store, &next, &seen).await?).await?;
    release(&store, &lighter).await?;
    granted(&store, &next).await?;
    release(&store, &next).await?;

    // One that waited before it is granted, which makes it the first that waits.
    let two = NonZeroU32::new(2).map(Limit::Units);
    let both = NonZeroU32::new(2).map_or(Weight::All, Weight::Units);
    let queue = [claim(4, both, two)?, claim(5, Weight::ONE, two)?, claim(6, both, two)?];
    granted(&store, &queue[0]).await?;
    pending(&store, &queue[1]).await?;
    let seen = pending(&store, &queue[2]).await?;
    ensure!(seen.watched, "the waiter before is to be watched: {seen:?}");
    is_silent(&store, &mut arm(&store, &queue[2], &seen).await?).await?;
    release(&store, &queue[0]).await?;
    granted(&store, &queue[1]).await?;
    fires(&mut arm(&store, &queue[2], &seen).await?).await?;
    let first = pending(&store, &queue[2]).await?;
    ensure!(!first.watched && first.cursor != seen.cursor, "the first that waits watches all of them: {first:?}");
    Ok(())
}

/// In the layouts of others a node is in the way until it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_compat_watch_reports_an_end_before_it_was_armed() -> Result<()> {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(()) };
    for layout in [Layout::Curator, Layout::Kazoo] {
        let store = ZooKeeper::open(Config::new([server.addr().to_string()]).layout(layout)).await?;
        let (first, second) = (claim(1, Weight::All, None)?, claim(2, Weight::All, None)?);
        granted(&store, &first).await?;
        let seen = pending(&store, &second).await?;
        ensure!(seen.watched, "one node is to be watched: {seen:?}");
        release(&store, &first).await?;
        fires(&mut arm(&store, &second, &seen).await?).await?;
        granted(&store, &second).await?;
        release(&store, &second).await?;
        store.close().await?;
    }
    Ok(())
}

/// A turn found by a peek counts from the last proof of the session. If that is long ago, a majority is asked again,
/// and the turn counts from then.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_worth_what_was_proven() -> Result<()> {
    const SESSION: Duration = Duration::from_secs(4);
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(()) };
    let (one, two) = (open(server.addr(), SESSION).await?, open(server.addr(), SESSION).await?);
    let (mut by_proof, mut by_look) = (false, false);
    for round in 0..10_u32 {
        let first = claim(u128::from(round) * 2 + 1, Weight::All, None)?;
        let second = claim(u128::from(round) * 2 + 2, Weight::All, None)?;
        granted(&one, &first).await?;
        let asked = BootClock.now();
        pending(&two, &second).await?;
        let queued = BootClock.now();
        release(&one, &first).await?;
        if by_proof {
            tokio::time::sleep(SESSION / 4).await;
        }
        let looked = BootClock.now();
        let lease = granted(&two, &second).await?.lease;
        if looked.since(asked) > SESSION / 4 {
            let from = lease.from.context("not counted from the peek")?;
            ensure!((looked..=BootClock.now()).contains(&from), "proven {from:?}, looked {looked:?}");
            ensure!(lease.ttl == SESSION * 3 / 4, "{lease:?}");
            by_look = true;
        } else if BootClock.now().since(queued) < SESSION / 4 {
            let from = lease.from.context("not counted from the proof")?;
            ensure!((asked..=queued).contains(&from), "proven {from:?}, asked {asked:?}, queued {queued:?}");
            ensure!(lease.ttl == SESSION * 3 / 4, "{lease:?}");
            by_proof = true;
        }
        // A lease that was asked for, and is shorter, is all there is to it.
        let mut short = Claim::clone(&second);
        short.ttl = Duration::from_millis(300);
        let lease = granted(&two, &short).await?.lease;
        ensure!(lease == Lease::of(short.ttl), "a short lease: {lease:?}");
        release(&two, &second).await?;
        if by_proof && by_look {
            return Ok(());
        }
    }
    anyhow::bail!("a turn in time: {by_proof}, a late one: {by_look}")
}

/// A client that was granted by a peek and is cut off stops believing before the next is granted.
#[tokio::test(flavor = "multi_thread")]
async fn belief_in_a_turn_ends_before_the_next_grant() -> Result<()> {
    const SESSION: Duration = Duration::from_secs(2);
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(()) };
    let proxy = Proxy::start(server.addr())?;
    let clients = [server.addr(), proxy.addr(), server.addr()];
    let mut locks = Vec::new();
    for addr in clients {
        locks.push(Locks::over(open(addr, SESSION).await?)?.mutex("job").fair().wait(PATIENCE));
    }
    let held = locks[0].lock().await?;
    let mut waiting = Vec::new();
    for (queued, lock) in (1..).zip(locks.drain(1..)) {
        waiting.push(tokio::spawn(async move { lock.lock().await.map(|guard| (guard, Instant::now())) }));
        let seen = open(server.addr(), SESSION).await?;
        let query = oarlock_core::state::Query::name(ResourceName::new("job")?);
        let in_line = async {
            while seen.inspect(&query).await?.resources[0].waiters.count() != Some(queued) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, in_line).await??;
    }
    held.release().await?;
    let last = waiting.pop().context("no waiter")?;
    let (cut_off, _) = tokio::time::timeout(PATIENCE, waiting.pop().context("no waiter")?).await???;
    proxy.cut();
    let ended = async {
        cut_off.lost().await;
        Instant::now()
    };
    let ended = tokio::time::timeout(PATIENCE, ended).await?;
    let (next, granted) = tokio::time::timeout(PATIENCE, last).await???;
    println!("belief ended {:?} before the next grant", granted.saturating_duration_since(ended));
    ensure!(ended < granted, "believed for {:?} after another had it", ended - granted);
    ensure!(next.fence() > cut_off.fence(), "the fence did not rise");
    Ok(())
}

/// What the server received, and sent.
fn packets(server: SocketAddr) -> Result<(f64, f64)> {
    let mut connection = TcpStream::connect(server)?;
    connection.write_all(b"mntr")?;
    let mut said = String::new();
    connection.read_to_string(&mut said)?;
    let number = |name: &str| -> Result<f64> {
        let text = said.lines().find_map(|line| line.strip_prefix(name)).context("not said")?;
        Ok(text.trim().parse()?)
    };
    Ok((number("zk_packets_received")?, number("zk_packets_sent")?))
}

/// A node, a peek, a watch, a peek when it fires, the end: five requests for each grant and one event, however many
/// wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_costs_the_same_however_many_wait() -> Result<()> {
    const TURNS: u32 = 12;
    // Sessions so long that their pings cost next to nothing during the test.
    let session = Duration::from_secs(100);
    if oarlock_testbed::ZooKeeper::start_or_skip()?.is_none() {
        return Ok(());
    }
    let server = oarlock_testbed::ZooKeeper::start_with(&[("maxSessionTimeout", "200000")])?;
    for count in [3, 16, 128] {
        let mut locks = Vec::new();
        for _ in 0..count {
            let client = Locks::over(open(server.addr(), session).await?)?;
            let lock = client.mutex("job").fair().wait(PATIENCE * 2);
            // What each process does once is not counted.
            lock.lock().await?.release().await?;
            locks.push(lock);
        }
        let before = packets(server.addr())?;
        let turns: Vec<_> = locks
            .into_iter()
            .map(|lock| {
                tokio::spawn(async move {
                    for _ in 0..TURNS {
                        lock.lock().await?.release().await?;
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        for turn in turns {
            tokio::time::timeout(PATIENCE * 2, turn).await???;
        }
        let after = packets(server.addr())?;
        let grants = f64::from(count * TURNS);
        let (received, sent) = ((after.0 - before.0) / grants, (after.1 - before.1) / grants);
        println!("{count} contenders: {received:.2} requests and {:.2} events for each grant", sent - received);
        ensure!(received < 5.5, "{count} contenders: {received:.2} requests for each grant");
        ensure!(sent - received < 1.1, "{count} contenders: {:.2} events for each grant", sent - received);
    }
    Ok(())
}
