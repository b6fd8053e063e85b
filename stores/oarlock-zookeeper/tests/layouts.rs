//! Locks shared with other programs: their nodes, created by hand to the byte, and ours beside them.

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use oarlock_core::driver::{Attempt, Driver as _};
use oarlock_core::state::Ending;
use oarlock_core::{Capacity, Claim, ClaimId, ErrorKind, Guard, Kind, Limit, Locks, LossReason, ResourceName, Weight};
use oarlock_zookeeper::{Config, Layout, ZooKeeper};
use zookeeper_client as zk;

/// A fifth of it is what the client library waits for a busy server.
const SESSION: Duration = Duration::from_secs(4);
const SOON: Duration = Duration::from_secs(5);
const UUID: &str = "_c_01234567-89ab-cdef-0123-456789abcdef-";
const HEX: &str = "0123456789abcdef0123456789abcdef";

struct TestContext {
    server: oarlock_testbed::ZooKeeper,
    raw: zk::Client,
    client: Locks,
    layout: Layout,
}

async fn context(layout: Layout) -> Result<Option<TestContext>> {
    let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(None) };
    let raw = zk::Client::connect(&server.addr().to_string()).await?;
    let client = connect(&server, layout).await?;
    Ok(Some(TestContext { server, raw, client, layout }))
}

async fn connect(server: &oarlock_testbed::ZooKeeper, layout: Layout) -> Result<Locks> {
    let config = Config::new([server.addr().to_string()]).layout(layout).session_timeout(SESSION);
    Ok(Locks::over(ZooKeeper::open(config).await?)?)
}

impl TestContext {
    /// What is below a node, in order of sequence.
    async fn below(&self, path: &str) -> Result<Vec<String>> {
        let mut children = match self.raw.list_children(path).await {
            Err(zk::Error::NoNode) => Vec::new(),
            children => children?,
        };
        children.sort_by_key(|child| {
            child.chars().rev().take(10).collect::<Vec<_>>().into_iter().rev().collect::<String>()
        });
        Ok(children)
    }

    async fn only(&self, path: &str) -> Result<(String, Vec<u8>, zk::Stat)> {
        let below = self.below(path).await?;
        ensure!(below.len() == 1, "{path} has {below:?}");
        let (data, stat) = self.raw.get_data(&format!("{path}/{}", below[0])).await?;
        Ok((below[0].clone(), data, stat))
    }

    /// A node of another program, as that makes it.
    async fn other(&self, prefix: &str, data: &[u8]) -> Result<String> {
        let (folder, _) = prefix.rsplit_once('/').context("a path")?;
        let open = zk::Acls::anyone_all();
        self.raw.mkdir(folder, &zk::CreateMode::Persistent.with_acls(open)).await?;
        let (_, sequence) = self.raw.create(prefix, data, &zk::CreateMode::EphemeralSequential.with_acls(open)).await?;
        Ok(format!("{prefix}{sequence}"))
    }

    async fn remove(&self, path: &str) -> Result<()> {
        Ok(self.raw.delete(path, None).await?)
    }

    async fn waits(&self, name: &str, count: usize) -> Result<()> {
        let name = ResourceName::new(name)?;
        let waiting = async {
            while self.client.inspect(&name).await?.waiters.count() != Some(count) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(SOON, waiting).await?
    }
}

/// Gets `guard` only after `path` has gone.
async fn after_removal(
    context: &TestContext,
    name: &str,
    path: &str,
    lock: impl Future<Output = oarlock_core::Result<Guard>> + Send + 'static,
) -> Result<Guard> {
    let waiting = tokio::spawn(lock);
    context.waits(name, 1).await?;
    ensure!(!waiting.is_finished(), "it did not wait for {path}");
    context.remove(path).await?;
    Ok(tokio::time::timeout(SOON, waiting).await???)
}

fn is_sequential(node: &str, prefix: &str) -> bool {
    node.strip_prefix(prefix).is_some_and(|rest| rest.len() == 10 && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `_c_<uuid>-<name><sequence>`, as Curator's protection has it.
fn is_protected(node: &str, name: &str) -> bool {
    let dashes = |uuid: &str| uuid.char_indices().all(|(at, c)| (c == '-') == [8, 13, 18, 23].contains(&at));
    node.starts_with("_c_")
        && node.len() > 39
        && dashes(&node[3..39])
        && is_sequential(&node[39..], &format!("-{name}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_curator_mutex_has_its_names_and_excludes_those_of_others() -> Result<()> {
    let Some(context) = context(Layout::Curator).await? else { return Ok(()) };
    let lock = context.client.mutex("locks/job");
    let guard = lock.lock().await?;
    let (node, _, stat) = context.only("/locks/job").await?;
    ensure!(is_protected(&node, "lock-"), "{node}");
    ensure!(stat.czxid == i64::try_from(guard.fence().get())?, "the fence is not that of the node");
    let theirs = context.other(&format!("/locks/job/{UUID}lock-"), b"127.0.0.1").await?;
    let fence = guard.fence();
    guard.release().await?;
    ensure!(lock.try_lock().await?.is_none(), "beside another");
    ensure!(context.below("/locks/job").await?.len() == 1, "a failed try left something");
    let shown = context.client.inspect(&ResourceName::new("locks/job")?).await?;
    ensure!(shown.holders.len() == 1 && shown.holders[0].label.host == "127.0.0.1", "{shown:?}");
    let next = context.client.mutex("locks/job");
    let later = after_removal(&context, "locks/job", &theirs, async move { next.lock().await }).await?;
    ensure!(later.fence() > fence, "the fence did not rise");
    later.release().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_and_writers_of_curator() -> Result<()> {
    let Some(context) = context(Layout::Curator).await? else { return Ok(()) };
    let lock = context.client.rwlock("table");
    let theirs = context.other(&format!("/table/{UUID}__READ__"), b"").await?;
    let beside = lock.read().await?;
    ensure!(context.below("/table").await?.iter().any(|node| is_protected(node, "__READ__")), "not their name");
    ensure!(lock.try_write().await?.is_none(), "a writer beside readers");
    beside.release().await?;
    let writing = lock.clone();
    let write = after_removal(&context, "table", &theirs, async move {
        writing.write().await.map(oarlock_core::WriteGuard::into_guard)
    });
    let write = write.await?;
    let (node, ..) = context.only("/table").await?;
    ensure!(is_protected(&node, "__WRIT__"), "{node}");
    let queued = context.other(&format!("/table/{UUID}__WRIT__"), b"").await?;
    ensure!(lock.try_read().await?.is_none(), "a reader passed a writer");
    write.release().await?;
    let reading = lock.clone();
    let read = after_removal(&context, "table", &queued, async move { reading.read().await }).await?;
    read.release().await?;
    ensure!(context.below("/table").await?.is_empty(), "something is left");
    Ok(())
}

/// The reader's node has the writer's sequence, so that a waiting writer stays behind it; the fence is the writer's.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_becomes_a_reader_at_its_position() -> Result<()> {
    for (layout, write, read) in [(Layout::Curator, "__WRIT__", "__READ__"), (Layout::Kazoo, "__lock__", "__rlock__")] {
        let Some(context) = context(layout).await? else { return Ok(()) };
        let lock = context.client.rwlock("table");
        let writer = lock.write().await?;
        let fence = writer.fence();
        let theirs = context.other(&format!("/table/x{write}"), b"").await?;
        let reader = writer.downgrade().await?;
        ensure!(reader.fence() == fence, "another fence");
        let below = context.below("/table").await?;
        ensure!(below.len() == 2 && below[0].contains(&format!("{read}0000000000")), "{below:?}");
        let shown = context.client.inspect(&ResourceName::new("table")?).await?;
        ensure!(shown.holders.len() == 1 && shown.holders[0].fence == Some(fence), "{shown:?}");
        ensure!(shown.holders[0].kind == Kind::Read && shown.waiters.count() == Some(1), "{shown:?}");
        tokio::time::sleep(SESSION * 4 / 5).await;
        ensure!(reader.is_held(), "not renewed: {:?}", reader.loss());
        context.remove(&theirs).await?;
        reader.release().await?;
        ensure!(context.below("/table").await?.is_empty(), "something is left");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_of_curator_are_leases_behind_a_gate() -> Result<()> {
    let Some(context) = context(Layout::Curator).await? else { return Ok(()) };
    let pool = context.client.semaphore("pool", 2);
    let theirs = context.other(&format!("/pool/leases/{UUID}lease-"), b"").await?;
    let ours = pool.acquire(1).await?;
    let leases = context.below("/pool/leases").await?;
    ensure!(leases.len() == 2 && is_protected(&leases[1], "lease-"), "{leases:?}");
    ensure!(context.below("/pool/locks").await?.is_empty(), "the gate is not free");
    ensure!(pool.try_acquire(1).await?.is_none(), "three of two");
    ensure!(context.below("/pool/leases").await?.len() == 2, "a failed try left something");
    let next = pool.clone();
    let later = after_removal(&context, "pool", &theirs, async move { next.acquire(1).await }).await?;
    ensure!(later.fence() > ours.fence(), "the fence did not rise");
    // Another claim is first at the gate.
    later.release().await?;
    let at_gate = context.other(&format!("/pool/locks/{UUID}lock-"), b"").await?;
    ensure!(pool.try_acquire(1).await?.is_none(), "passed the gate");
    context.remove(&at_gate).await?;
    pool.acquire(1).await?.release().await?;
    ours.release().await?;
    ensure!(context.below("/pool/leases").await?.is_empty() && context.below("/pool/locks").await?.is_empty(), "left");
    Ok(())
}

/// A node among the leases is no permit before it was counted: a claim that loses its node at the gate starts again.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_lost_its_node_at_the_gate_has_no_permit() -> Result<()> {
    let Some(context) = context(Layout::Curator).await? else { return Ok(()) };
    let config = Config::new([context.server.addr().to_string()]).layout(Layout::Curator).session_timeout(SESSION);
    let store = ZooKeeper::open(config).await?;
    let mut claim = Claim::new(ClaimId::from_bits(1), ResourceName::new("pool")?);
    (claim.kind, claim.weight, claim.wait) = (Kind::Semaphore, Weight::ONE, true);
    claim.capacity = Capacity::Fixed(Limit::Units(NonZeroU32::MIN));
    let theirs = context.other(&format!("/pool/leases/{UUID}lease-"), b"").await?;
    for _ in 0..2 {
        ensure!(matches!(store.attempt(&claim).await?, Attempt::Pending(_)), "two of one");
        ensure!(context.below("/pool/leases").await?.len() == 2, "nothing is tested");
        let (node, ..) = context.only("/pool/locks").await?;
        context.remove(&format!("/pool/locks/{node}")).await?;
    }
    context.remove(&theirs).await?;
    let Attempt::Granted(grant) = store.attempt(&claim).await? else { bail!("it is free") };
    let (_, _, stat) = context.only("/pool/leases").await?;
    ensure!(stat.czxid == i64::try_from(grant.fence.get())?, "another fence");
    // Granted once, it holds whatever is at the gate.
    ensure!(matches!(store.attempt(&claim).await?, Attempt::Granted(again) if again.fence == grant.fence), "lost");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_of_kazoo_are_counted_by_their_node() -> Result<()> {
    let Some(context) = context(Layout::Kazoo).await? else { return Ok(()) };
    let pool = context.client.semaphore("pool", 2);
    let ours = pool.acquire(1).await?;
    ensure!(context.raw.get_data("/pool").await?.0 == b"2", "the number of permits is not there");
    let (node, _, stat) = context.only("/pool").await?;
    ensure!(node.len() == 32 && stat.czxid == i64::try_from(ours.fence().get())?, "{node}");
    let open = zk::Acls::anyone_all();
    let theirs = format!("/pool/{HEX}");
    context.raw.create(&theirs, b"", &zk::CreateMode::Ephemeral.with_acls(open)).await?;
    ensure!(pool.try_acquire(1).await?.is_none(), "three of two");
    ensure!(context.below("/pool-__lock__").await?.is_empty(), "a failed try left something");
    let other = context.client.semaphore("pool", 3).try_acquire(1).await;
    ensure!(other.is_err_and(|error| error.kind() == ErrorKind::SpecMismatch), "another number was taken");
    let next = pool.clone();
    let later = after_removal(&context, "pool", &theirs, async move { next.acquire(1).await }).await?;
    later.release().await?;
    ours.release().await?;
    ensure!(context.below("/pool").await?.is_empty(), "something is left");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kazoo_lock_has_its_names_and_excludes_those_of_others() -> Result<()> {
    let Some(context) = context(Layout::Kazoo).await? else { return Ok(()) };
    let theirs = context.other(&format!("/job/{HEX}__lock__"), b"worker 7").await?;
    let lock = context.client.mutex("job");
    ensure!(lock.try_lock().await?.is_none(), "beside another");
    let shown = context.client.inspect(&ResourceName::new("job")?).await?;
    ensure!(shown.holders[0].label.reason.as_deref() == Some("worker 7"), "{shown:?}");
    let next = lock.clone();
    let guard = after_removal(&context, "job", &theirs, async move { next.lock().await }).await?;
    let (node, ..) = context.only("/job").await?;
    ensure!(is_sequential(&node[32..], "__lock__") && node[..32].bytes().all(|b| b.is_ascii_hexdigit()), "{node}");
    guard.release().await?;
    // Readers, too; and a plain mutex sees them, which kazoo's own does not.
    let theirs = context.other(&format!("/job/{HEX}__rlock__"), b"").await?;
    ensure!(lock.try_lock().await?.is_none(), "beside a reader");
    let reader = context.client.rwlock("job").read().await?;
    reader.release().await?;
    context.remove(&theirs).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_has_the_node_of_a_latch_of_curator() -> Result<()> {
    let Some(context) = context(Layout::Curator).await? else { return Ok(()) };
    let theirs = context.other(&format!("/boss/{UUID}latch-"), b"node-1").await?;
    let election = context.client.election("boss");
    let leader =
        context.client.inspect(&ResourceName::new("boss")?).await?.holders.pop().context("there is no leader")?;
    ensure!(leader.kind == Kind::Election && leader.value.as_deref() == Some("node-1"), "{leader:?}");
    let candidate = tokio::spawn(async move { election.campaign("node-2").await });
    context.waits("boss", 1).await?;
    context.remove(&theirs).await?;
    let _leading = tokio::time::timeout(SOON, candidate).await???;
    let (node, data, _) = context.only("/boss").await?;
    ensure!(is_protected(&node, "latch-") && data == b"node-2", "{node}: {}", String::from_utf8_lossy(&data));
    Ok(())
}

/// A node that other programs would wait for, or not see at all, is an error that names it, and no claim loses its
/// node.
#[tokio::test(flavor = "multi_thread")]
async fn a_stray_child_is_reported() -> Result<()> {
    let cases = [
        (Layout::Curator, "000"),
        (Layout::Curator, "0123456789abcdef0123456789abcdef__lock__0000000009"),
        (Layout::Curator, "_c_x-__WRIT__0000000009"),
        (Layout::Kazoo, "_c_x-lock-0000000009"),
    ];
    for (layout, stray) in cases {
        let Some(context) = context(layout).await? else { return Ok(()) };
        let lock = context.client.mutex("job");
        lock.lock().await?.release().await?;
        let path = format!("/job/{stray}");
        context.raw.create(&path, b"", &zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all())).await?;
        let error = lock.try_lock().await.err().with_context(|| format!("locked beside {stray}"))?;
        ensure!(error.kind() == ErrorKind::Foreign && error.to_string().contains(stray), "{error}");
        ensure!(context.below("/job").await? == [stray], "something is left beside it");
        context.remove(&path).await?;
        lock.lock().await?.release().await?;
    }
    Ok(())
}

/// Curator's way to ask a holder for the lock, both ways.
#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_holder_is_asked_to_end() -> Result<()> {
    let Some(context) = context(Layout::Curator).await? else { return Ok(()) };
    let guard = context.client.mutex("job").lock().await?;
    let (node, ..) = context.only("/job").await?;
    context.raw.set_data(&format!("/job/{node}"), b"__REVOKE__", None).await?;
    let reason = tokio::time::timeout(SOON, guard.lost()).await?;
    ensure!(matches!(&reason, LossReason::Broken(ending) if ending.why == "revoked"), "{reason:?}");
    drop(guard);
    let theirs = context.other(&format!("/theirs/{UUID}lock-"), b"127.0.0.1").await?;
    let name = ResourceName::new("theirs")?;
    let fence =
        context.client.inspect(&name).await?.holders.pop().and_then(|holder| holder.fence).context("no holder")?;
    let ending = Ending::new("ops", "maintenance");
    context.client.break_hold(&name, fence, ending.clone(), SESSION).await?;
    ensure!(context.raw.get_data(&theirs).await?.0 == b"__REVOKE__", "it was not asked");
    context.client.break_hold(&name, fence, ending, Duration::ZERO).await?;
    ensure!(context.below("/theirs").await?.is_empty(), "it was not broken");
    Ok(())
}

/// A client that deletes the node of a holder has the lock; the holder learns it from its next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_node_is_gone_is_told() -> Result<()> {
    for layout in [Layout::Curator, Layout::Kazoo] {
        let Some(context) = context(layout).await? else { return Ok(()) };
        let guard = context.client.mutex("job").lock().await?;
        let (node, ..) = context.only("/job").await?;
        context.remove(&format!("/job/{node}")).await?;
        let reason = tokio::time::timeout(SOON, guard.lost()).await?;
        ensure!(!matches!(reason, LossReason::Expired), "it was not told, it gave up: {reason:?}");
        let again = connect(&context.server, context.layout).await?.mutex("job").lock().await?;
        ensure!(again.fence() > guard.fence(), "the fence did not rise");
    }
    Ok(())
}

/// Polls a future so many times and drops it, unless it was done by then.
async fn cut<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    let (mut future, mut count) = (pin!(future), 0);
    poll_fn(|cx| {
        if count == polls {
            return Poll::Ready(None);
        }
        count += 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

impl TestContext {
    async fn empties(&self, folders: &[&str]) -> Result<()> {
        let empty = async {
            for folder in folders {
                while !self.below(folder).await?.is_empty() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(SOON, empty).await.context("a node is left")?
    }
}

/// A future that is dropped, at whichever await, leaves no node behind: not of a queue, not of a gate, not of a
/// permit.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_attempt_leaves_no_node() -> Result<()> {
    for layout in [Layout::Curator, Layout::Kazoo] {
        let Some(context) = context(layout).await? else { return Ok(()) };
        let (pool, table, boss) =
            (context.client.semaphore("pool", 1), context.client.rwlock("table"), context.client.election("boss"));
        let mut cuts = 0;
        for polls in 0..40 {
            let lock = async {
                let permit = pool.acquire(1).await?;
                let reader = table.write().await?.downgrade().await?;
                let leader = boss.campaign("me").await?;
                Ok::<_, oarlock_core::Error>((permit, reader, leader))
            };
            let done: Option<_> = cut(lock, polls).await.transpose()?;
            cuts += usize::from(done.is_none());
            drop(done);
            let gate = if layout == Layout::Curator { "/pool/locks" } else { "/pool-__lock__" };
            let leases = if layout == Layout::Curator { "/pool/leases" } else { "/pool" };
            context
                .empties(&[gate, leases, "/table", "/boss"])
                .await
                .with_context(|| format!("after {polls} polls"))?;
        }
        ensure!(cuts > 5, "only {cuts} attempts were cut short: nothing was tested");
    }
    Ok(())
}
