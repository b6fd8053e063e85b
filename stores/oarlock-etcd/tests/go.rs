//! Locks that `etcdctl lock` and Go take too, with the real `etcdctl` on the other side.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use oarlock_core::driver::{Attempt, Driver as _, End, Interest, Released};
use oarlock_core::state::{Ending, Query, ResourceState, Waiters};
use oarlock_core::{Claim, ClaimId, ErrorKind, Locks, ResourceName, Weight};
use oarlock_etcd::{Config, Etcd, Layout};
use oarlock_testbed::Etcd as Server;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Nothing here takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

fn config(server: &Server) -> Config {
    let mut config = Config::new([server.addr().to_string()]);
    (config.layout, config.prefix) = (Layout::Go, String::new());
    config
}

fn name(text: &str) -> Result<ResourceName, oarlock_core::Error> {
    ResourceName::new(text)
}

/// Inspects at every change until `enough` is true.
async fn until(
    store: &Etcd,
    text: &str,
    enough: impl Fn(&ResourceState) -> bool,
) -> Result<ResourceState, Box<dyn std::error::Error>> {
    let inspected = async {
        loop {
            let mut watch = store.watch(&Interest::Resource(name(text)?)).await?;
            let page = store.inspect(&Query::name(name(text)?)).await?;
            if let Some(state) = page.resources.into_iter().find(&enough) {
                return Ok(state);
            }
            watch.changed().await;
        }
    };
    tokio::time::timeout(PATIENCE, inspected).await?
}

/// `etcdctl`, which reports what it does line by line, and ends when this is dropped.
struct Ctl {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Ctl {
    fn start(server: &Server, words: &[&str]) -> Result<Self, Box<dyn std::error::Error>> {
        let mut child = server.ctl_command()?.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Self { child, lines })
    }

    /// The next line of its output.
    async fn says(mut self) -> Result<(Self, String), Box<dyn std::error::Error>> {
        let read = tokio::task::spawn_blocking(move || (self.lines.next(), self));
        let (line, ctl) = tokio::time::timeout(PATIENCE, read).await??;
        Ok((ctl, line.ok_or("it said nothing")??))
    }

    /// As a terminal would end it: it gives back what it has.
    fn interrupt(&self) -> Outcome {
        let pid = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::kill_process(pid, rustix::process::Signal::INT)?)
    }
}

impl Drop for Ctl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_holds_and_we_wait() -> Outcome {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let (store, client) = (Etcd::open(config(&server)).await?, Locks::over(Etcd::open(config(&server)).await?)?);
    let first = client.mutex("deploy").lock().await?;
    let before = first.fence().get();
    first.release().await?;

    let (ctl, key) = Ctl::start(&server, &["lock", "deploy"])?.says().await?;
    let state = until(&store, "deploy", |state| state.holders.len() == 1).await?;
    let holder = &state.holders[0];
    assert!(key.starts_with("deploy/") && holder.fence.is_none() && holder.weight == Weight::All, "{holder:?}");
    assert!(
        holder.label.reason.as_deref().is_some_and(|reason| reason.contains(&key["deploy/".len()..])),
        "{holder:?}"
    );
    assert!(holder.lease_left > Duration::ZERO && holder.lease_left <= Duration::from_secs(10), "{holder:?}");
    assert!(client.mutex("deploy").try_lock().await?.is_none());
    assert!(server.ctl(&["get", "--prefix", "oarlock:beside:n/"])?.is_empty(), "a refusal left something");

    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.mutex("deploy").lock().await }
    });
    until(&store, "deploy", |state| state.waiters.count() == Some(1)).await?;
    let freed = Instant::now();
    ctl.interrupt()?;
    let guard = tokio::time::timeout(PATIENCE, waiting).await???;
    assert!(freed.elapsed() < Duration::from_secs(6), "{:?}", freed.elapsed());
    assert!(guard.fence().get() > before);
    guard.release().await?;
    assert!(server.ctl(&["get", "--prefix", "deploy/"])?.is_empty(), "something was left");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn we_hold_and_etcdctl_waits_in_order() -> Outcome {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let (store, client) = (Etcd::open(config(&server)).await?, Locks::over(Etcd::open(config(&server)).await?)?);
    let guard = client.mutex("deploy").lock().await?;
    let keys = server.ctl(&["get", "--prefix", "deploy/", "--keys-only"])?;
    let lease = keys.trim().strip_prefix("deploy/").ok_or("no key")?;
    assert!(server.ctl(&["lease", "list"])?.lines().any(|line| line == lease), "{lease} is not a lease");
    assert_eq!(server.ctl(&["get", "--prefix", "deploy/", "--print-value-only"])?.trim(), "");

    // `etcdctl`, then we, wait behind it; and its revision lies between our fences.
    let ctl = Ctl::start(&server, &["lock", "deploy", "--", "sh", "-c", "echo $ETCD_LOCK_REV"])?;
    until(&store, "deploy", |state| state.waiters.count() == Some(1)).await?;
    let next = tokio::spawn({
        let client = client.clone();
        async move { client.mutex("deploy").fair().lock().await }
    });
    until(&store, "deploy", |state| state.waiters.count() == Some(2)).await?;
    let before = guard.fence().get();
    guard.release().await?;
    let (_ctl, revision) = ctl.says().await?;
    let theirs: u64 = revision.parse()?;
    let guard = tokio::time::timeout(PATIENCE, next).await???;
    assert!(before < theirs && theirs < guard.fence().get(), "{before}, {theirs}, {}", guard.fence());
    guard.release().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holder_has_a_successor() -> Outcome {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let client = Locks::over(Etcd::open(config(&server)).await?)?;
    let (mut ctl, _) = Ctl::start(&server, &["lock", "--ttl=2", "deploy"])?.says().await?;
    ctl.child.kill()?;
    let killed = Instant::now();
    let guard = tokio::time::timeout(PATIENCE, client.mutex("deploy").lock()).await??;
    assert!(killed.elapsed() < Duration::from_secs(8), "{:?}", killed.elapsed());
    guard.release().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_are_known_on_both_sides() -> Outcome {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let (store, client) = (Etcd::open(config(&server)).await?, Locks::over(Etcd::open(config(&server)).await?)?);
    let election = client.election("boss");
    let mut ours = election.campaign("ours").await?;
    let value = || server.ctl(&["get", "--prefix", "boss/", "--print-value-only"]);
    assert_eq!(value()?.trim(), "ours");
    ours.proclaim("ours too").await?;
    assert_eq!(value()?.trim(), "ours too");
    let (seen, line) = Ctl::start(&server, &["elect", "-l", "boss"])?.says().await?;
    drop(seen);
    assert!(line.starts_with("boss/"), "{line}");

    let ctl = Ctl::start(&server, &["elect", "boss", "theirs"])?;
    until(&store, "boss", |state| state.waiters.count() == Some(1)).await?;
    ours.resign().await?;
    let (ctl, _) = ctl.says().await?;
    let leader = election.leader().await?.ok_or("there is no leader")?;
    assert_eq!(leader.value.as_deref(), Some("theirs"));
    ctl.interrupt()?;
    election.campaign("ours again").await?.resign().await?;
    Ok(())
}

/// Go's `foo` waits for the holder of `foo/bar`; ours does not, and neither is confused with the other.
#[tokio::test(flavor = "multi_thread")]
async fn names_below_a_name_are_locks_of_their_own_to_us_alone() -> Outcome {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let (store, client) = (Etcd::open(config(&server)).await?, Locks::over(Etcd::open(config(&server)).await?)?);
    server.ctl(&["put", "foo/config", "not a lock"])?;
    let below = client.mutex("foo/bar").lock().await?;
    let above = client.mutex("foo").try_lock().await?.ok_or("it waits for another name")?;
    assert!(client.mutex("foo").try_lock().await?.is_none());
    above.release().await?;
    server.ctl(&["del", "foo/config"])?;
    let ctl = Ctl::start(&server, &["lock", "foo"])?;
    until(&store, "foo", |state| state.holders.len() == 1).await?;
    // It is the first of its name, and waits all the same.
    let said = tokio::spawn(async move { ctl.says().await.map_err(|error| error.to_string()) });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!said.is_finished(), "the trap of that layout is gone");
    below.release().await?;
    let (_ctl, key) = said.await??;
    assert!(key.starts_with("foo/"), "{key}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_removed_is_a_loss_and_not_in_the_way() -> Outcome {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let (near, client) = (Etcd::open(config(&server)).await?, Locks::over(Etcd::open(config(&server)).await?)?);
    let ttl = Duration::from_secs(3);
    let guard = client.mutex("deploy").ttl(ttl).lock().await?;
    server.ctl(&["del", "--prefix", "deploy/"])?;
    let other = client.mutex("deploy").try_lock().await?.ok_or("what was removed is in the way")?;
    tokio::time::timeout(ttl, guard.lost()).await?;
    assert!(!guard.is_held() && other.is_held());
    other.release().await?;

    // A waiter's key is deleted, and its turn comes: it is granted only with a key that exists.
    let (first, mut waiting) =
        (Claim::new(ClaimId::from_bits(1), name("turn")?), Claim::new(ClaimId::from_bits(2), name("turn")?));
    waiting.wait = true;
    let Attempt::Granted(_) = near.attempt(&first).await? else { return Err("not granted".into()) };
    let before = server.ctl(&["get", "--prefix", "turn/", "--keys-only"])?;
    let Attempt::Pending(_) = near.attempt(&waiting).await? else { return Err("granted twice".into()) };
    let both = server.ctl(&["get", "--prefix", "turn/", "--keys-only"])?;
    let shared = both.lines().find(|key| !key.is_empty() && !before.contains(key)).ok_or("no shared key")?;
    server.ctl(&["del", shared])?;
    near.release(&first.resource, first.id, &End::Done { memo: None }).await?;
    let mut turn = near.attempt(&waiting).await;
    for _ in 0..3 {
        if matches!(turn, Ok(Attempt::Granted(_))) {
            break;
        }
        turn = near.attempt(&waiting).await;
    }
    assert!(matches!(turn?, Attempt::Granted(_)));
    assert!(!server.ctl(&["get", "--prefix", "turn/"])?.is_empty(), "granted without a key");

    // The same claim again: half of it is there, whichever half.
    let mut claim = Claim::new(ClaimId::from_bits(7), name("job")?);
    claim.wait = true;
    for half in ["job/", "oarlock:beside:n/job/q/"] {
        let Attempt::Granted(first) = near.attempt(&claim).await? else { return Err("not granted".into()) };
        server.ctl(&["del", "--prefix", half])?;
        let mut again = near.attempt(&claim).await;
        // The first attempt finds half a claim; the next one starts clean.
        for _ in 0..3 {
            if matches!(again, Ok(Attempt::Granted(_))) {
                break;
            }
            again = near.attempt(&claim).await;
        }
        let Attempt::Granted(second) = again? else { return Err(format!("{half}: not granted").into()) };
        assert!(second.fence > first.fence, "{half}");
        let done = End::Done { memo: None };
        assert_eq!(near.release(&claim.resource, claim.id, &done).await?.outcome, Released::Released);
        assert_eq!(near.release(&claim.resource, claim.id, &done).await?.outcome, Released::NotHeld);
        assert!(server.ctl(&["get", "--prefix", "job/"])?.is_empty());
        assert!(server.ctl(&["get", "--prefix", "oarlock:beside:n/job/q/"])?.is_empty());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn their_hold_can_be_broken_and_shares_are_refused() -> Outcome {
    let Some(server) = Server::start_or_skip()? else { return Ok(()) };
    let store = Etcd::open(config(&server)).await?;
    let (_ctl, _) = Ctl::start(&server, &["lock", "deploy"])?.says().await?;
    let state = until(&store, "deploy", |state| state.holders.len() == 1).await?;
    let ending = Ending::new("ops", "stuck");
    let end = End::Broken { ending, grace: Duration::ZERO };
    assert_eq!(store.release(&name("deploy")?, state.holders[0].id, &end).await?.outcome, Released::Released);
    let state = until(&store, "deploy", |state| state.holders.is_empty()).await?;
    assert!(matches!(state.waiters, Waiters::Listed(waiters) if waiters.is_empty()));

    let mut share = Claim::new(ClaimId::from_bits(1), name("deploy")?);
    share.weight = Weight::ONE;
    assert_eq!(store.attempt(&share).await.expect_err("a share").kind(), ErrorKind::Unsupported);
    let client = Locks::over(store)?;
    assert_eq!(client.rwlock("deploy").read().await.expect_err("a share").kind(), ErrorKind::Unsupported);
    assert_eq!(client.list().await.expect_err("no prefix").kind(), ErrorKind::Unsupported);
    Ok(())
}
