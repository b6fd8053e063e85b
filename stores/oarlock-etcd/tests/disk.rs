//! Members whose disk is slow, or hangs: `strace` holds up every call that makes a write last. Figures are printed
//! (`--nocapture`).

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use oarlock_core::{Guard, Locks, ResourceName};
use oarlock_etcd::{Config, Etcd};
use oarlock_testbed::{Etcd as Server, EtcdCluster};

type Failure = Box<dyn std::error::Error>;
type Outcome = Result<(), Failure>;

/// The lease of a holder.
const TTL: Duration = Duration::from_secs(3);

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A disk that takes this long for whatever has to last; dropped, it is as fast as before.
struct SlowDisk {
    strace: Child,
    /// It goes on reporting threads, and ends when its output is closed.
    _tells: BufReader<ChildStderr>,
}

impl SlowDisk {
    /// Nothing, and a printed reason, where calls of other processes cannot be held up.
    fn of(member: &Server, delay: Duration) -> Result<Option<Self>, Failure> {
        let pid = member.pid().ok_or("it does not run")?.to_string();
        let inject = format!("inject=fdatasync,fsync:delay_enter={}", delay.as_micros());
        let mut strace = Command::new("strace");
        strace.args(["-f", "-e", "trace=fdatasync,fsync", "-e", &inject, "-o", "/dev/null", "-p", &pid]);
        let started = strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let said = match started {
            Ok(mut child) => {
                let mut said = String::new();
                let mut tells = BufReader::new(child.stderr.take().ok_or("no output")?);
                tells.read_line(&mut said)?;
                if said.contains("attached") {
                    return Ok(Some(Self { strace: child, _tells: tells }));
                }
                child.kill()?;
                child.wait()?;
                said
            }
            Err(error) => error.to_string(),
        };
        if std::env::var_os("CI").is_some_and(|ci| !["", "0", "false"].iter().any(|no| ci == *no)) {
            return Err(format!("CI is set, and strace cannot be used: {said}").into());
        }
        println!("skipped: strace cannot be used: {said}");
        Ok(None)
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // It lets go of the member before it ends; killed, it might not.
        let pid = rustix::process::Pid::from_child(&self.strace);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.strace.wait();
    }
}

async fn client(members: impl IntoIterator<Item = &Server>) -> Result<Locks, Failure> {
    let config = Config::new(members.into_iter().map(|member| member.addr().to_string()));
    Ok(Locks::over(Etcd::open(config).await?)?)
}

async fn lock(client: &Locks) -> Result<Guard, Failure> {
    Ok(tokio::time::timeout(PATIENCE, client.mutex("job").ttl(TTL).wait_forever().lock()).await??)
}

/// Waits in the background, once it is in the queue: when it was granted, and what.
async fn waiter(
    client: Locks,
    observer: &Locks,
) -> Result<tokio::task::JoinHandle<Result<(Instant, Guard), String>>, Failure> {
    let waiting = tokio::spawn(async move {
        let guard = lock(&client).await.map_err(|error| error.to_string())?;
        Ok((Instant::now(), guard))
    });
    let (job, patience) = (ResourceName::new("job")?, Instant::now() + PATIENCE);
    while observer.inspect(&job).await?.waiters.count() != Some(1) {
        assert!(Instant::now() < patience, "no claim waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(waiting)
}

/// Leases are kept in memory, so a holder keeps its lock for as long as the disk is only slow; others get it later,
/// and not sooner.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_disk_loses_no_lock() -> Outcome {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let (holder, other) = (client([&server]).await?, client([&server]).await?);
    let guard = lock(&holder).await?;
    let waiting = waiter(other, &holder).await?;
    let delay = Duration::from_millis(600);
    let Some(slow) = SlowDisk::of(&server, delay)? else { return Ok(()) };
    tokio::time::sleep(TTL + TTL / 2).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
    assert!(!waiting.is_finished(), "two hold at once");
    let (fence, freed) = (guard.fence(), Instant::now());
    guard.release().await?;
    let took = freed.elapsed();
    assert!(took >= delay / 2, "the disk is not slow ({took:?}): nothing is tested");
    let (granted, next) = tokio::time::timeout(PATIENCE, waiting).await???;
    println!("disk of {delay:?}: released in {took:?}, handed on in {:?}", granted - freed);
    assert!(next.fence() > fence);
    drop(slow);
    next.release().await?;
    Ok(())
}

/// A leader whose disk hangs does not notice that the others have elected another one, and goes on extending leases. A
/// client that believed it alone would believe in a lock that the others have given away.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_hangs_is_not_believed() -> Outcome {
    let Some(context) = EtcdCluster::start_or_skip()? else { return Ok(()) };
    let leader = context.leader()?;
    let others: Vec<_> = (0..3).filter(|member| *member != leader).map(|member| &context.members[member]).collect();
    let (holder, rival) = (client([&context.members[leader]]).await?, client(others).await?);
    let guard = lock(&holder).await?;
    let waiting = waiter(rival, &holder).await?;
    let writer = client([&context.members[leader]]).await?;
    let Some(slow) = SlowDisk::of(&context.members[leader], Duration::from_secs(25))? else { return Ok(()) };
    let hangs = Instant::now();
    let fence = guard.fence();
    // Nothing hangs before there is something to write.
    let write = tokio::spawn(async move { writer.mutex("beside").try_lock().await.map(drop) });
    let lost = tokio::spawn(async move {
        guard.lost().await;
        Instant::now()
    });
    let (granted, next) = tokio::time::timeout(PATIENCE, waiting).await???;
    let ended = tokio::time::timeout(PATIENCE, lost).await??;
    println!(
        "leader's disk hangs: belief ended {:?} after that, {:?} before the next grant",
        ended - hangs,
        granted.saturating_duration_since(ended)
    );
    assert!(granted < hangs + Duration::from_secs(25), "the disk did not hang: nothing is tested");
    assert!(ended < granted, "both believed");
    assert!(next.fence() > fence);
    write.abort();
    drop(slow);
    next.release().await?;
    Ok(())
}
