//! Three members, and what happens to locks when some of them fail. Figures are printed (`--nocapture`).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oarlock_core::clock::{BootClock, Clock as _};
use oarlock_core::driver::{Attempt, Driver as _, Released, Renewal, Renewed};
use oarlock_core::state::Query;
use oarlock_core::{Claim, ClaimId, ErrorKind, Guard, Locks, ResourceName};
use oarlock_etcd::{Config, Etcd};
use oarlock_testbed::{Etcd as Server, EtcdCluster};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Long enough to outlast an election that began when a third of it was gone.
const TTL: Duration = Duration::from_secs(6);

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(40);

/// Clusters are mostly waited for, but starting one takes most of what a small machine has.
static ROOM: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);

async fn store(members: impl IntoIterator<Item = &Server>) -> Result<Etcd, oarlock_core::Error> {
    Etcd::open(Config::new(members.into_iter().map(|member| member.addr().to_string()))).await
}

async fn client(members: impl IntoIterator<Item = &Server>) -> Result<Locks, oarlock_core::Error> {
    Locks::over(store(members).await?)
}

/// All members, this one first.
async fn from(context: &EtcdCluster, first: usize) -> Result<Locks, oarlock_core::Error> {
    client((0..3).map(|step| &context.members[(first + step) % 3])).await
}

async fn lock(client: &Locks, name: &str) -> Result<Guard, Box<dyn std::error::Error>> {
    lock_for(client, name, TTL).await
}

async fn lock_for(client: &Locks, name: &str, ttl: Duration) -> Result<Guard, Box<dyn std::error::Error>> {
    Ok(tokio::time::timeout(PATIENCE, client.mutex(name).ttl(ttl).wait_forever().lock()).await??)
}

/// A lock and a release, however long they take.
async fn pair(client: &Locks) -> Result<Duration, Box<dyn std::error::Error>> {
    let start = Instant::now();
    lock(client, "beside").await?.release().await?;
    Ok(start.elapsed())
}

/// Waits for `job` in the background; returns once it is in the queue.
async fn waiter(
    client: &Locks,
    observer: &Locks,
    ttl: Duration,
) -> Result<tokio::task::JoinHandle<Result<Guard, String>>, Box<dyn std::error::Error>> {
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { lock_for(&client, "job", ttl).await.map_err(|error| error.to_string()) }
    });
    let (job, patience) = (ResourceName::new("job")?, Instant::now() + PATIENCE);
    loop {
        match observer.inspect(&job).await {
            Ok(state) if state.waiters.count() == Some(1) => return Ok(waiting),
            Ok(_) => {}
            // A member that comes back may make the others elect again, which refuses reads.
            Err(error) if error.kind() == ErrorKind::Unreachable => {}
            Err(error) => return Err(error.into()),
        }
        assert!(Instant::now() < patience, "no claim waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A majority is left: a holder goes on holding, through another member.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed_or_stopped_loses_no_lock() -> Outcome {
    let _room = ROOM.acquire().await?;
    let Some(context) = EtcdCluster::start_or_skip()? else { return Ok(()) };
    // Long enough for a second election, when the votes of the first were split.
    let ttl = TTL * 5 / 3;
    let mut last = 0;
    for stopped in [true, false] {
        let leader = context.leader()?;
        let (holder, other) = (from(&context, leader).await?, from(&context, leader).await?);
        let guard = lock_for(&holder, "job", ttl).await?;
        assert!(guard.fence().get() > last);
        last = guard.fence().get();
        let waiting = waiter(&other, &holder, TTL).await?;
        if stopped {
            context.members[leader].pause()?;
        } else {
            context.members[leader].kill()?;
        }
        let failed = Instant::now();
        let took = pair(&holder).await?;
        tokio::time::sleep_until((failed + ttl + ttl / 6).into()).await;
        assert!(guard.is_held(), "{:?}", guard.loss());
        guard.release().await?;
        let freed = Instant::now();
        let guard = tokio::time::timeout(PATIENCE, waiting).await???;
        assert!(guard.fence().get() > last);
        last = guard.fence().get();
        let what = if stopped { "stopped" } else { "killed" };
        println!("leader {what}: next lock after {took:?}; handed on in {:?}", freed.elapsed());
        // A request that got stuck in a stopped member is given up, and its claim is added again. The turn of the old
        // claim expires after 2 s, and the waiter notices that after a third of the lease at most.
        let bound = if stopped { Duration::from_secs(3) + ttl / 3 } else { Duration::from_secs(6) };
        assert!(freed.elapsed() < bound, "{:?}", freed.elapsed());
        guard.release().await?;
        if stopped {
            context.members[leader].resume()?;
        } else {
            context.members[leader].restart()?;
        }
        pair(&holder).await?;
    }
    Ok(())
}

/// The holder reaches one member only, which goes on answering and reaches no other member: belief ends before the
/// others give the lock away. When they are together again, nothing is left of the old hold.
async fn minority(leads: bool) -> Outcome {
    let _room = ROOM.acquire().await?;
    let Some(context) = EtcdCluster::start_apart_or_skip()? else { return Ok(()) };
    let ttl = TTL / 2;
    let minority = (context.leader()? + usize::from(!leads)) % 3;
    let others: Vec<_> = (0..3).filter(|member| *member != minority).collect();
    let (holder, rival) = (
        client([&context.members[minority]]).await?,
        client(others.iter().map(|other| &context.members[*other])).await?,
    );
    let guard = lock_for(&holder, "job", ttl).await?;
    // Before 3.5 a member that comes back with a later term makes the others elect again, and a slow disk makes that
    // take several seconds: this lease outlasts it.
    let waiting = waiter(&rival, &holder, TTL * 3).await?;
    // It is to be a lease that this member has kept alive.
    let first = guard.ends_at();
    while guard.ends_at() == first {
        assert!(guard.is_held(), "{:?}", guard.loss());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    context.cut(minority)?;
    let cut = BootClock.now();
    let next = tokio::time::timeout(PATIENCE, waiting).await???;
    let (granted, held, ended) = (BootClock.now(), guard.is_held(), guard.ends_at());
    let has_leader = context.members[minority].metric("etcd_server_has_leader")?;
    println!(
        "minority, its member a {}: belief ended {:?} after the cut, {:?} before the next grant, which came {:?} after the cut",
        if leads { "leader" } else { "follower" },
        ended.since(cut),
        granted.since(ended),
        granted.since(cut)
    );
    assert!(has_leader < 1.0, "it is not cut off: nothing is tested");
    assert!(!held && ended < granted, "both believed");
    tokio::time::timeout(PATIENCE, guard.lost()).await?;
    assert!(next.fence() > guard.fence());
    // Two elections, as votes may be split, of two timeouts each; a new leader gives every lease a timeout more;
    // leases end every half second; and a waiter whose request was lost with the leader is added again, as in the test
    // above.
    assert!(granted.since(cut) < ttl + Duration::from_secs(9), "{:?}", granted.since(cut));

    context.heal(minority)?;
    let healed = Instant::now();
    let job = ResourceName::new("job")?;
    let seen = loop {
        match holder.inspect(&job).await {
            Ok(seen) => break seen,
            Err(error) => assert!(healed.elapsed() < PATIENCE, "{error}"),
        }
    };
    println!("healed: its member answers again after {:?}", healed.elapsed());
    assert_eq!(seen.holders.iter().map(|holder| holder.fence).collect::<Vec<_>>(), [Some(next.fence())]);
    assert_eq!(guard.release().await?, Released::NotHeld);
    let back = waiter(&holder, &rival, TTL).await?;
    assert!(next.is_held(), "{:?}", next.loss());
    let before = next.fence();
    assert_eq!(next.release().await?, Released::Released);
    let guard = tokio::time::timeout(PATIENCE, back).await???;
    assert!(guard.fence() > before);
    guard.release().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_cut_off_with_a_follower_stops_believing_first() -> Outcome {
    minority(false).await
}

/// The hard one: leases are kept by a leader that is no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_cut_off_with_the_leader_stops_believing_first() -> Outcome {
    minority(true).await
}

/// The leader is stopped, and goes on as if it still were one: for a moment it extends leases, and its successor does
/// not know. Whether a renewal falls into that moment is chance, so there are many.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_deposed_leader_says_of_a_lease_is_not_believed() -> Outcome {
    let _room = ROOM.acquire().await?;
    let Some(context) = EtcdCluster::start_or_skip()? else { return Ok(()) };
    let rounds = if std::env::var_os("OARLOCK_LONG").is_some() { 10 } else { 1 };
    for round in 0..rounds {
        let stopped = context.leader()?;
        let others =
            context.members.iter().enumerate().filter(|(number, _)| *number != stopped).map(|(_, member)| member);
        let (holder, others) = (Arc::new(store([&context.members[stopped]]).await?), store(others).await?);
        let mut claims = Vec::new();
        for number in 0..24_u128 {
            let name = ResourceName::new(format!("job {round} {number}"))?;
            let mut claim = Claim::new(ClaimId::from_bits(number + 1), name);
            claim.ttl = Duration::from_secs(20);
            assert!(matches!(holder.attempt(&claim).await?, Attempt::Granted(_)));
            claims.push(Arc::new(claim));
        }
        context.members[stopped].pause()?;
        let patience = Instant::now() + PATIENCE;
        while let Err(error) = others.inspect(&Query::name(claims[0].resource.clone())).await {
            assert!(Instant::now() < patience, "{error}");
        }
        // For the other members the leases run from before this on. They are shown in whole seconds: the difference is
        // to be more.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let renew = |claim: &Arc<Claim>| {
            let (holder, renewal) = (holder.clone(), Renewal::of(claim.clone()));
            tokio::spawn(async move { (renewal.claim.clone(), holder.renew(&[renewal]).await.pop()) })
        };
        let mut renewals: Vec<_> = claims[..12].iter().map(renew).collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        context.members[stopped].resume()?;
        for claim in &claims[12..] {
            renewals.push(renew(claim));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (mut believed, mut not) = (0, 0);
        for renewal in renewals {
            let (claim, answer) = tokio::time::timeout(PATIENCE, renewal).await??;
            let Some(Ok(Renewed::Alive { lease, .. })) = answer else {
                not += 1;
                continue;
            };
            let page = others.inspect(&Query::name(claim.resource.clone())).await?;
            let left = page.resources[0].holders[0].lease_left + Duration::from_secs(1);
            let from = lease.from.ok_or("since when?")?;
            let (belief, grant) = (from + lease.ttl, BootClock.now() + left);
            assert!(belief <= grant, "believed for {:?} longer than it is granted", belief.since(grant));
            believed += 1;
        }
        println!("leader deposed: {believed} renewals believed, {not} not");
    }
    Ok(())
}

/// A waiter is notified of its turn although the revision that its watch began with is compacted, and although the
/// member of its watch is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_survives_compaction_and_the_loss_of_its_member() -> Outcome {
    let _room = ROOM.acquire().await?;
    let Some(context) = EtcdCluster::start_or_skip()? else { return Ok(()) };
    let follower = (context.leader()? + 1) % 3;
    let (holder, other) = (from(&context, (follower + 1) % 3).await?, from(&context, follower).await?);
    for (what, lose) in [("compaction", false), ("its member lost", true)] {
        let guard = lock(&holder, "job").await?;
        let waiting = waiter(&other, &holder, TTL).await?;
        let between = lock(&holder, "beside").await?;
        let revision = between.fence();
        between.release().await?;
        if lose {
            context.members[follower].kill()?;
        } else {
            context.members[0].ctl(&["compact", &revision.to_string(), "--physical"])?;
        }
        let before = guard.fence();
        guard.release().await?;
        let freed = Instant::now();
        let guard = tokio::time::timeout(PATIENCE, waiting).await???;
        println!("{what}: handed on in {:?}", freed.elapsed());
        assert!(guard.fence() > before && freed.elapsed() < TTL, "{:?}", freed.elapsed());
        guard.release().await?;
    }
    Ok(())
}

/// One hold: since when and until when it was believed in, and its fence.
type Hold = (Instant, Instant, u64);

async fn contend(client: Locks, until: Instant, holds: Arc<Mutex<Vec<Hold>>>) {
    while Instant::now() < until {
        let Ok(guard) = client.mutex("storm").ttl(TTL / 2).lock().await else { continue };
        let start = Instant::now();
        tokio::select! {
            _ = guard.lost() => {}
            () = tokio::time::sleep(Duration::from_millis(3)) => {}
        }
        // Belief may have ended before this check; never after.
        holds.lock().unwrap_or_else(PoisonError::into_inner).push((start, Instant::now(), guard.fence().get()));
        let _ = guard.release().await;
    }
}

/// Four clients contend while members are killed, stopped and replaced: no two hold at once, and fences rise.
#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_through_a_storm() -> Outcome {
    let _room = ROOM.acquire().await?;
    let Some(context) = EtcdCluster::start_or_skip()? else { return Ok(()) };
    let long = std::env::var_os("OARLOCK_LONG").is_some();
    let rounds = if long { 6 } else { 1 };
    let (start, holds) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let round = Duration::from_secs(13);
    let mut crew = tokio::task::JoinSet::new();
    for number in 0..4 {
        crew.spawn(contend(from(&context, number % 3).await?, start + round * rounds, holds.clone()));
    }
    let _servers = tokio::task::spawn_blocking(move || -> anyhow::Result<EtcdCluster> {
        let mut context = context;
        for number in 0..rounds {
            let begin = start + round * number;
            let at = |second: u64| {
                std::thread::sleep((begin + Duration::from_secs(second)).saturating_duration_since(Instant::now()));
            };
            at(1);
            let leader = context.leader()?;
            if number == 0 {
                context.replace((leader + 1) % 3)?;
            }
            at(4);
            context.members[leader].kill()?;
            at(7);
            context.members[leader].restart()?;
            let leader = context.leader()?;
            context.members[leader].pause()?;
            at(10);
            context.members[leader].resume()?;
        }
        Ok(context)
    })
    .await??;
    tokio::time::timeout(PATIENCE * 2, async { while crew.join_next().await.is_some() {} }).await?;
    let mut holds = std::mem::take(&mut *holds.lock().unwrap_or_else(PoisonError::into_inner));
    holds.sort_by_key(|hold| hold.2);
    let mut longest = Duration::ZERO;
    for pair in holds.windows(2) {
        let ((_, end, before), (start, _, fence)) = (pair[0], pair[1]);
        assert!(before < fence, "fence {fence} twice");
        assert!(end <= start, "fences {before} and {fence} were held at once, for {:?}", end - start);
        longest = longest.max(start - end);
    }
    let last = holds.last().map(|hold| hold.1).ok_or("no process held it")?;
    println!("storm: {} holds, longest time without a holder {longest:?}", holds.len());
    assert!(last + Duration::from_secs(6) > start + round * rounds, "no process held it at the end");
    assert!(longest < TTL + Duration::from_secs(6), "{longest:?}");
    Ok(())
}
