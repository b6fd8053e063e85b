//! Three servers, and what becomes of locks when the leader dies, hangs, or the majority is gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oarlock_core::clock::{BootClock, Clock as _};
use oarlock_core::{Belief, ErrorKind, Fence, Guard, Locks};
use oarlock_testbed::ZooKeeperEnsemble;
use oarlock_zookeeper::{Config, ZooKeeper};

/// Longer than it takes to replace a leader that is silent: two seconds, and what a busy machine adds.
const SESSION: Duration = Duration::from_secs(8);

async fn client(ensemble: &ZooKeeperEnsemble, session: Duration) -> Result<Locks> {
    client_of(ensemble.hosts(), session).await
}

async fn client_of(hosts: Vec<String>, session: Duration) -> Result<Locks> {
    let config = Config::new(hosts).session_timeout(session).digest("ada", "secret");
    Ok(Locks::over(ZooKeeper::open(config).await?)?)
}

/// A waiter for a lock that another client holds: when it was granted, and by which fence.
async fn rival(ensemble: &ZooKeeperEnsemble, name: &'static str, session: Duration) -> Result<Rival> {
    rival_of(client(ensemble, session).await?, name).await
}

async fn rival_of(client: Locks, name: &'static str) -> Result<Rival> {
    let lock = client.mutex(name).wait(Duration::from_secs(60));
    let waiting = tokio::spawn(async move { lock.lock().await.map(|guard| (guard, Instant::now())) });
    let name = oarlock_core::ResourceName::new(name)?;
    let queued = async {
        while client.inspect(&name).await?.waiters.count() != Some(1) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(SESSION, queued).await??;
    Ok(Rival { waiting, _client: client })
}

struct Rival {
    waiting: tokio::task::JoinHandle<oarlock_core::Result<(Guard, Instant)>>,
    _client: Locks,
}

impl Rival {
    async fn granted(self, within: Duration) -> Result<(Guard, Instant)> {
        Ok(tokio::time::timeout(within, self.waiting).await.context("no waiter took over")???)
    }
}

/// When belief ends, seen without a pause.
fn end_of_belief(guard: &Arc<Guard>) -> tokio::task::JoinHandle<Instant> {
    let guard = guard.clone();
    tokio::spawn(async move {
        guard.lost().await;
        Instant::now()
    })
}

/// A leader that dies or hangs is replaced within the session: no lock is lost, and earlier grants still count.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_outlives_its_leader() -> Result<()> {
    let Some(ensemble) = ZooKeeperEnsemble::start_or_skip()? else { return Ok(()) };
    let holder = client(&ensemble, SESSION).await?;
    let mut last = Fence::new(0);
    for hangs in [false, true] {
        let guard = holder.mutex("job").lock().await?;
        ensure!(guard.fence() > last, "fence {} after {last}", guard.fence());
        let rival = rival(&ensemble, "job", SESSION).await?;
        let leader = ensemble.leader()?;
        let stopped = Instant::now();
        if hangs {
            ensemble.members[leader].pause()?;
        } else {
            ensemble.members[leader].kill()?;
        }
        // Until another server leads, and has our session.
        let other = client(&ensemble, SESSION).await?.mutex("other").wait(SESSION * 2).lock().await?;
        println!("{} leader: served again after {:?}", if hangs { "stopped" } else { "killed" }, stopped.elapsed());
        other.release().await?;
        let renewed = async {
            while guard.is_held() && (guard.belief() != Belief::Held || guard.time_left() < SESSION / 2) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SESSION, renewed).await?;
        ensure!(guard.is_held(), "lost with the leader: {:?}", guard.loss());
        ensure!(!rival.waiting.is_finished(), "granted twice");
        let (released, fence) = (Instant::now(), guard.fence());
        guard.release().await?;
        let (theirs, granted) = rival.granted(SESSION).await?;
        println!("handed over after {:?}", granted - released);
        ensure!(theirs.fence() > fence, "fence {} after {fence}", theirs.fence());
        last = theirs.fence();
        theirs.release().await?;
        if hangs {
            ensemble.members[leader].resume()?;
        } else {
            ensemble.members[leader].restart()?;
        }
        ensemble.leader()?;
    }
    Ok(())
}

/// An observer does not vote, and passes writes on to the leader: a client that knows no other server holds, waits and
/// renews there.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_serves_like_any_other_server() -> Result<()> {
    let Some(ensemble) = ZooKeeperEnsemble::with_observer_or_skip()? else { return Ok(()) };
    ensure!(ensemble.leader()? != 0, "an observer leads");
    let open = async || {
        let config = Config::new([ensemble.hosts()[0].clone()]).session_timeout(SESSION).digest("ada", "secret");
        anyhow::Ok(Locks::over(ZooKeeper::open(config).await?)?)
    };
    let (holder, next) = (open().await?, open().await?);
    let guard = holder.mutex("job").lock().await?;
    let lock = next.mutex("job").wait(SESSION * 4);
    let waiting = tokio::spawn(async move { lock.lock().await });
    let first = guard.ends_at();
    let renewed = async {
        while guard.is_held() && guard.ends_at() == first {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SESSION, renewed).await.context("no renewal")?;
    ensure!(guard.is_held(), "lost: {:?}", guard.loss());
    // Servers that vote count.
    let voter = client(&ensemble, SESSION).await?;
    ensure!(voter.mutex("job").try_lock().await?.is_none(), "granted twice");
    let fence = guard.fence();
    guard.release().await?;
    let theirs = tokio::time::timeout(SESSION, waiting).await.context("no waiter took over")???;
    ensure!(theirs.fence() > fence, "fence {} after {fence}", theirs.fence());
    theirs.release().await?;
    Ok(())
}

/// Without a majority nothing is granted, and belief ends by our own clock. When the majority is back, it counts on
/// from where it was.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_belief_ends_and_nothing_is_granted() -> Result<()> {
    let session = Duration::from_secs(2);
    let Some(ensemble) = ZooKeeperEnsemble::start_or_skip()? else { return Ok(()) };
    let holder = client(&ensemble, session).await?;
    let guard = Arc::new(holder.mutex("job").lock().await?);
    let rival = rival(&ensemble, "job", session).await?;
    let lost = end_of_belief(&guard);
    let leader = ensemble.leader()?;
    let gone: Vec<_> = (0..3).filter(|member| *member != leader).collect();
    let cut = BootClock.now();
    for member in &gone {
        ensemble.members[*member].pause()?;
    }
    let told = tokio::time::timeout(Duration::from_secs(30), lost).await??;
    let ended = guard.ends_at();
    println!("belief ended {:?} after the majority, session {session:?}", ended.since(cut));
    ensure!(ended < cut + session, "belief outlived the session");
    let alone = tokio::time::timeout(session * 2, client(&ensemble, session)).await;
    ensure!(!matches!(alone, Ok(Ok(_))), "a session without a majority");
    ensure!(!rival.waiting.is_finished(), "granted without a majority");
    for member in &gone {
        ensemble.members[*member].resume()?;
    }
    let resumed = Instant::now();
    let (theirs, granted) = rival.granted(Duration::from_secs(40)).await?;
    println!("the next grant {:?} after the majority was back", granted - resumed);
    ensure!(granted > told, "granted before belief ended");
    ensure!(theirs.fence() > guard.fence(), "fence {} after {}", theirs.fence(), guard.fence());
    ensure!(guard.loss().is_some(), "it came back to life");
    let late = holder.mutex("other").wait(SESSION).lock().await;
    ensure!(late.as_ref().map_err(oarlock_core::Error::kind).err() != Some(ErrorKind::Internal), "{late:?}");
    Ok(())
}

/// The holder reaches the leader only, which is cut off from the others and goes on answering: belief ends before they
/// give the lock away.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_keeps_no_lock() -> Result<()> {
    let Some(ensemble) = ZooKeeperEnsemble::start_apart_or_skip()? else { return Ok(()) };
    let leader = ensemble.leader()?;
    let (mut others, of_leader) = (ensemble.hosts(), vec![ensemble.hosts()[leader].clone()]);
    others.remove(leader);
    let holder = client_of(of_leader, SESSION).await?;
    let guard = Arc::new(holder.mutex("job").lock().await?);
    let rival = rival_of(client_of(others, SESSION).await?, "job").await?;
    let ends = end_of_belief(&guard);
    ensemble.cut(leader)?;
    let cut = Instant::now();
    let (next, granted) = rival.granted(Duration::from_secs(60)).await?;
    ensure!(ends.is_finished(), "both believed");
    let ended = ends.await?;
    println!("belief ended {:?} after the cut, {:?} before the next grant", ended - cut, granted - ended);
    ensure!(ended < granted && next.fence() > guard.fence());
    ensure!(!ensemble.leads(leader), "it is not cut off: nothing is tested");
    ensure!((0..3).any(|number| ensemble.leads(number)), "no other member leads");

    ensemble.heal(leader)?;
    let fence = next.fence();
    next.release().await?;
    let again = tokio::time::timeout(Duration::from_secs(30), holder.mutex("job").wait_forever().lock()).await??;
    ensure!(again.fence() > fence);
    Ok(())
}
