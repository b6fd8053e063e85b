//! Unknown nodes among the claims: none of them blocks a lock, or lets two clients have it.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use oarlock_core::driver::{Attempt, End, Grant, Interest, Released, Renewal, Renewed};
use oarlock_core::state::{Ending, Query};
use oarlock_core::{Capacity, Claim, ClaimId, Driver as _, ErrorKind, Limit, Locks, ResourceName, Weight};
use oarlock_zookeeper::{Config, ZooKeeper};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use zookeeper_client as zk;

const SESSION: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);
const OPEN: zk::Acls<'static> = zk::Acls::anyone_all();

/// A server, a store on it, and a client that creates nodes by hand.
struct TestContext {
    server: oarlock_testbed::ZooKeeper,
    store: ZooKeeper,
    raw: zk::Client,
}

impl TestContext {
    async fn new() -> Result<Option<Self>> {
        let Some(server) = oarlock_testbed::ZooKeeper::start_or_skip()? else { return Ok(None) };
        let (store, raw) = (open(&server).await?, zk::Client::connect(&server.addr().to_string()).await?);
        Ok(Some(Self { server, store, raw }))
    }

    /// Creates a persistent child.
    async fn put(&self, name: &str, child: &str) -> Result<()> {
        let lasting = zk::CreateMode::Persistent.with_acls(OPEN);
        self.raw.mkdir(&format!("/oarlock/{name}"), &lasting).await?;
        self.raw.create(&format!("/oarlock/{name}/{child}"), b"", &lasting).await?;
        Ok(())
    }
}

async fn open(server: &oarlock_testbed::ZooKeeper) -> Result<ZooKeeper> {
    Ok(ZooKeeper::open(Config::new([server.addr().to_string()]).session_timeout(SESSION)).await?)
}

fn claim(name: &str, bits: u128, weight: Weight, limit: Limit) -> Result<Claim> {
    let mut claim = Claim::new(ClaimId::from_bits(bits), ResourceName::new(name)?);
    (claim.wait, claim.weight, claim.capacity) = (true, weight, Capacity::Fixed(limit));
    Ok(claim)
}

async fn granted(store: &ZooKeeper, claim: &Claim) -> Result<Grant> {
    match store.attempt(claim).await? {
        Attempt::Granted(grant) => Ok(grant),
        Attempt::Pending(pending) => anyhow::bail!("not granted: {pending:?}"),
    }
}

async fn waits(store: &ZooKeeper, claim: &Claim) -> Result<()> {
    let answer = store.attempt(claim).await?;
    ensure!(matches!(answer, Attempt::Pending(_)), "granted beside another: {answer:?}");
    Ok(())
}

/// The name of a claim that no client made, with a sequence as the server would give it.
fn alike(bits: u128, weight: &str, capacity: &str, sequence: i32) -> String {
    format!("{bits:032x}-{weight}-{capacity}-{sequence:010}")
}

fn two() -> Limit {
    NonZeroU32::new(2).map_or(Limit::Unlimited, Limit::Units)
}

/// The next in the queue stays behind the holder, whatever sequence an unknown node among them has.
#[tokio::test(flavor = "multi_thread")]
async fn no_number_puts_the_next_before_the_holder() -> Result<()> {
    let Some(context) = TestContext::new().await? else { return Ok(()) };
    for (at, sequence) in [i32::MIN, i32::MIN + 9, -(1 << 30), -5, 0, 1, 5, 1 << 30, i32::MAX].into_iter().enumerate() {
        let name = format!("job-{at}");
        // Several, because a server lists them in the order of a hash: one of them should be the first.
        for bits in 9..17 {
            context.put(&name, &alike(bits, "a", "2", sequence)).await?;
        }
        let (mut first, second) = (claim(&name, 1, Weight::All, two())?, claim(&name, 2, Weight::All, two())?);
        first.wait = false;
        granted(&context.store, &first).await?;
        let other = open(&context.server).await?;
        waits(&other, &second).await?;
        waits(&other, &second).await?;
        waits(&context.store, &claim(&name, 3, Weight::All, two())?).await?;
        let shown = other.inspect(&Query::name(first.resource.clone())).await?.resources.remove(0);
        let holders: Vec<_> = shown.holders.iter().map(|holder| holder.id).collect();
        ensure!(holders == [first.id] && shown.waiters.count() == Some(2), "{sequence}: {shown:?}");
        other.close().await?;
    }
    Ok(())
}

/// A persistent node is no claim: claims that wait and claims that do not ignore it, whether it would hold all or a
/// part.
#[tokio::test(flavor = "multi_thread")]
async fn a_persistent_look_alike_blocks_no_claim() -> Result<()> {
    let Some(context) = TestContext::new().await? else { return Ok(()) };
    let [one, two] = [Locks::over(open(&context.server).await?)?, Locks::over(open(&context.server).await?)?];
    context.put("mutex", &alike(8, "a", "n", 0)).await?;
    context.put("mutex", &alike(9, "a", "n", 1)).await?;
    let held = one.mutex("mutex").wait(PATIENCE).lock().await?;
    ensure!(two.mutex("mutex").try_lock().await?.is_none(), "two hold it");
    held.release().await?;
    ensure!(two.mutex("mutex").try_lock().await?.is_some(), "refused, and no claim holds it");
    // A spinning claim has no watch that would report it.
    context.put("spin", &alike(8, "a", "n", 0)).await?;
    let spinning = Locks::over(open(&context.server).await?)?;
    spinning.mutex("spin").spin().wait(PATIENCE).lock().await?.release().await?;

    // A semaphore of two, one permit of which is held by a claim that is older than the unknown node.
    let permits = |client: &Locks| client.semaphore("permits", 2);
    let older = permits(&one).wait(PATIENCE).acquire(1).await?;
    context.put("permits", &alike(9, "u1", "2", 1)).await?;
    let newer = permits(&two).wait(PATIENCE).acquire(1).await?;
    ensure!(permits(&one).try_acquire(1).await?.is_none(), "three hold a semaphore of two");
    older.release().await?;
    newer.release().await?;
    context.put("permits", &alike(10, "u1", "2", 0)).await?;
    let both = (permits(&two).try_acquire(1).await?, permits(&two).try_acquire(1).await?);
    ensure!(both.0.is_some() && both.1.is_some(), "refused, and no claim holds it");
    Ok(())
}

/// Unknown nodes before a holder make it seem to wait. A claim that comes behind it without having checked them, and
/// waits or does not, gets what is free.
#[tokio::test(flavor = "multi_thread")]
async fn look_alikes_before_a_holder_hide_no_permit() -> Result<()> {
    let Some(context) = TestContext::new().await? else { return Ok(()) };
    // As in a tree that was copied while all permits were taken.
    context.put("copied", &alike(8, "u1", "2", 0)).await?;
    context.put("copied", &alike(9, "u1", "2", 1)).await?;
    granted(&context.store, &claim("copied", 1, Weight::ONE, two())?).await?;
    // Among the holders.
    let pair = NonZeroU32::new(2).map_or(Weight::All, Weight::Units);
    let four = NonZeroU32::new(4).map_or(Limit::Unlimited, Limit::Units);
    granted(&context.store, &claim("among", 1, Weight::ONE, four)?).await?;
    context.put("among", &alike(9, "u2", "4", 1)).await?;
    granted(&context.store, &claim("among", 2, pair, four)?).await?;
    // Later than the holder, which was created as the first and has no mark. Sequences start at zero.
    let gone = claim("later", 7, Weight::ONE, two())?;
    granted(&context.store, &gone).await?;
    context.store.release(&gone.resource, gone.id, &End::Done { memo: None }).await?;
    granted(&context.store, &claim("later", 1, Weight::ONE, two())?).await?;
    context.put("later", &alike(8, "u1", "2", 0)).await?;
    context.put("later", &alike(9, "u1", "2", 0)).await?;

    for (name, limit, is_told) in [("copied", two(), true), ("among", four, true), ("later", two(), false)] {
        let mut hasty = claim(name, 5, Weight::ONE, limit)?;
        hasty.wait = false;
        let other = open(&context.server).await?;
        granted(&other, &hasty).await.with_context(|| format!("{name}, without waiting"))?;
        other.release(&hasty.resource, hasty.id, &End::Done { memo: None }).await?;
        other.close().await?;

        let (other, patient) = (open(&context.server).await?, Arc::new(claim(name, 6, Weight::ONE, limit)?));
        if let Attempt::Pending(pending) = other.attempt(&patient).await? {
            let mut turn = other.watch(&Interest::Turn(patient.clone(), pending.cursor)).await?;
            if is_told {
                let told = tokio::time::timeout(PATIENCE, turn.changed()).await;
                told.with_context(|| format!("{name}: waits for no claim"))?.context("it ended")?;
            }
            granted(&other, &patient).await.with_context(|| format!("{name}, after waiting"))?;
        }
        waits(&other, &claim(name, 7, Weight::ONE, limit)?).await?;
        other.close().await?;
    }
    Ok(())
}

/// The capacity in an unknown node binds no claim; the capacity in a claim does.
#[tokio::test(flavor = "multi_thread")]
async fn a_lasting_look_alike_says_nothing_of_the_capacity() -> Result<()> {
    let Some(context) = TestContext::new().await? else { return Ok(()) };
    context.put("job", &alike(9, "u1", "7", 0)).await?;
    let mut adopting = claim("job", 1, Weight::ONE, two())?;
    adopting.capacity = Capacity::Stored(two());
    granted(&context.store, &adopting).await?;
    let other = open(&context.server).await?;
    granted(&other, &claim("job", 2, Weight::ONE, two())?).await?;
    let refused = other.attempt(&claim("job", 3, Weight::ONE, Limit::Unlimited)?).await;
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::SpecMismatch), "another capacity was let in");
    // Also by claims that state the same capacity as the unknown node.
    let seven = NonZeroU32::new(7).map_or(Limit::Unlimited, Limit::Units);
    for wait in [true, false] {
        let (other, mut alike) = (open(&context.server).await?, claim("job", 4, Weight::ONE, seven)?);
        alike.wait = wait;
        let refused = other.attempt(&alike).await;
        ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::SpecMismatch), "another capacity was let in");
        other.close().await?;
    }
    Ok(())
}

/// The node of a claim, by its id.
async fn node_of(context: &TestContext, claim: &Claim) -> Result<String> {
    let children = context.raw.list_children(&format!("/oarlock/{}", claim.resource)).await?;
    let mine = |child: &&String| child.starts_with(&claim.id.to_string()) && !child.contains('~');
    children.iter().filter(mine).max().cloned().context("it has no node")
}

/// Only its own session makes a claim lighter.
#[tokio::test(flavor = "multi_thread")]
async fn no_session_makes_the_claim_of_another_lighter() -> Result<()> {
    let Some(context) = TestContext::new().await? else { return Ok(()) };
    let (writer, reader) =
        (claim("job", 1, Weight::All, Limit::Unlimited)?, claim("job", 2, Weight::ONE, Limit::Unlimited)?);
    let fence = granted(&context.store, &writer).await?.fence;
    // By a persistent node, and by one that ends with another session.
    let node = node_of(&context, &writer).await?;
    context.put("job", &format!("{node}~u1")).await?;
    let ephemeral = zk::CreateMode::Ephemeral.with_acls(OPEN);
    context.raw.create(&format!("/oarlock/job/{node}~u2"), b"", &ephemeral).await?;
    let other = open(&context.server).await?;
    waits(&other, &reader).await?;
    for query in [Query::name(writer.resource.clone()), Query::live()] {
        let shown = other.inspect(&query).await?.resources.remove(0);
        let (holders, waiters) = (shown.holders.iter().map(|holder| holder.weight), shown.waiters.count());
        ensure!(holders.eq([Weight::All]) && waiters == Some(1), "shown as lighter: {shown:?}");
    }
    // The writer goes on as before, and makes itself lighter, also beside the false mark. A client that saw that one
    // sees this.
    ensure!(granted(&context.store, &writer).await?.fence == fence, "another fence");
    waits(&other, &reader).await?;
    let lighter = claim("job", 1, Weight::ONE, Limit::Unlimited)?;
    ensure!(granted(&context.store, &lighter).await?.fence == fence, "not made lighter");
    granted(&other, &reader).await.map(drop)
}

/// A holder goes on holding, whatever is put before it: it becomes lighter, leaves its memo, and is broken.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_before_a_holder_costs_it_nothing() -> Result<()> {
    let Some(context) = TestContext::new().await? else { return Ok(()) };
    let writer = claim("job", 1, Weight::All, Limit::Unlimited)?;
    // Numbers start at nought.
    granted(&context.store, &claim("job", 7, Weight::All, Limit::Unlimited)?).await?;
    context.store.release(&writer.resource, ClaimId::from_bits(7), &End::Done { memo: None }).await?;
    let fence = granted(&context.store, &writer).await?.fence;
    let stray = alike(9, "a", "i", 0);
    context.put("job", &stray).await?;
    context.put("job", &alike(1, "a", "i", 0)).await?;
    let below = zk::CreateMode::Persistent.with_acls(OPEN);
    context.raw.create(&format!("/oarlock/job/{}/below", alike(1, "a", "i", 0)), b"", &below).await?;
    ensure!(granted(&context.store, &writer).await?.fence == fence, "another fence");
    // Also one that passes for a claim, because it is ephemeral.
    let forged = format!("/oarlock/job/{}", alike(5, "a", "n", 0));
    context.raw.create(&forged, b"", &zk::CreateMode::Ephemeral.with_acls(OPEN)).await?;
    ensure!(granted(&context.store, &writer).await?.fence == fence, "another fence behind a forged claim");
    context.raw.delete(&forged, None).await?;
    let lighter = claim("job", 1, Weight::ONE, Limit::Unlimited)?;
    ensure!(granted(&context.store, &lighter).await?.fence == fence, "another fence");
    // Also one that cannot be removed, because it has a child.
    let node = node_of(&context, &writer).await?;
    context.put("job", &format!("{node}~u2")).await?;
    context.raw.create(&format!("/oarlock/job/{node}~u2/below"), b"", &below).await?;

    // Asked to end, it is notified; and the memo that it leaves is there for the next.
    let other = open(&context.server).await?;
    let ending = Ending::new("ops", "maintenance");
    let asked = End::Broken { ending: ending.clone(), grace: Duration::from_secs(5) };
    ensure!(
        other.release(&writer.resource, writer.id, &asked).await?.outcome == Released::Asked,
        "the holder was not asked"
    );
    let renewed = context.store.renew(&[Renewal::of(lighter.clone().into())]).await.remove(0)?;
    ensure!(matches!(renewed, Renewed::Alive { ending: Some(heard), .. } if heard == ending), "it did not hear of it");
    let memo = oarlock_core::state::Memo::from(b"left".to_vec());
    context.store.release(&writer.resource, writer.id, &End::Done { memo: Some(memo.clone()) }).await?;
    let mut next = claim("job", 2, Weight::All, Limit::Unlimited)?;
    next.wait = false;
    ensure!(granted(&other, &next).await?.memo == Some(memo), "nothing was left");
    // And broken without a grace, although another bears its id.
    context.put("job", &alike(2, "a", "i", 1)).await?;
    let broken = End::Broken { ending, grace: Duration::ZERO };
    ensure!(context.store.release(&next.resource, next.id, &broken).await?.outcome == Released::Released, "not broken");
    let gone = other.renew(&[Renewal::of(next.into())]).await.remove(0)?;
    ensure!(matches!(gone, Renewed::Gone(_)), "{gone:?}");
    Ok(())
}

/// A child that may not be read blocks no claim, and hides none.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_alike_that_cannot_be_read_blocks_no_claim() -> Result<()> {
    let Some(context) = TestContext::new().await? else { return Ok(()) };
    context.put("job", "x").await?;
    let theirs =
        zk::Client::connector().with_auth("digest", b"eve:secret").connect(&context.server.addr().to_string()).await?;
    let closed = zk::CreateMode::Persistent.with_acls(zk::Acls::creator_all());
    theirs.create(&format!("/oarlock/job/{}", alike(9, "a", "n", 0)), b"", &closed).await?;
    let client = Locks::over(open(&context.server).await?)?;
    let held = client.mutex("job").wait(PATIENCE).lock().await?;
    let shown = context.store.inspect(&Query::name(ResourceName::new("job")?)).await?.resources.remove(0);
    ensure!(shown.holders.len() == 1 && shown.waiters.count() == Some(0), "{shown:?}");
    held.release().await?;
    Ok(())
}

/// Clients can wait for the claim of another user that they may not read.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_what_cannot_be_read_is_told() -> Result<()> {
    let Some(context) = TestContext::new().await? else { return Ok(()) };
    context.put("job", "x").await?;
    let theirs =
        zk::Client::connector().with_auth("digest", b"eve:secret").connect(&context.server.addr().to_string()).await?;
    let path = format!("/oarlock/job/{}", alike(9, "a", "n", 0));
    theirs.create(&path, b"", &zk::CreateMode::Ephemeral.with_acls(zk::Acls::creator_all())).await?;
    let waiter = claim("job", 1, Weight::All, Limit::Unlimited)?;
    let Attempt::Pending(pending) = context.store.attempt(&waiter).await? else { anyhow::bail!("two hold it") };
    let mut turn = context.store.watch(&Interest::Turn(waiter.clone().into(), pending.cursor)).await?;
    ensure!(tokio::time::timeout(Duration::from_millis(300), turn.changed()).await.is_err(), "told of nothing");
    theirs.delete(&path, None).await?;
    tokio::time::timeout(PATIENCE, turn.changed()).await?;
    granted(&context.store, &waiter).await.map(drop)
}

/// A connection to a server on which the second request about a node waits: for the answer to the first, and then for
/// a signal.
async fn pausing(server: SocketAddr) -> Result<(SocketAddr, oneshot::Receiver<()>, oneshot::Sender<()>)> {
    const EXISTS: i32 = 3;
    async fn frame(from: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>> {
        let length = from.read_i32().await?;
        let mut frame = length.to_be_bytes().to_vec();
        frame.resize(4 + usize::try_from(length)?, 0);
        from.read_exact(&mut frame[4..]).await?;
        Ok(frame)
    }
    fn number(frame: &[u8], at: usize) -> Option<i32> {
        frame.get(at..at + 4)?.try_into().ok().map(i32::from_be_bytes)
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let ((paused, is_paused), (go_on, may_go_on)) = (oneshot::channel(), oneshot::channel());
    tokio::spawn(async move {
        let (client, server) = (listener.accept().await?.0, TcpStream::connect(server).await?);
        let ((mut asks, mut hears), (mut answers, mut takes)) = (client.into_split(), server.into_split());
        let (answered, mut last_answered) = watch::channel(None);
        tokio::spawn(async move {
            while let Ok(answer) = frame(&mut answers).await {
                hears.write_all(&answer).await?;
                answered.send_replace(number(&answer, 4));
            }
            anyhow::Ok(())
        });
        // What opens a session has no number.
        takes.write_all(&frame(&mut asks).await?).await?;
        let (mut first, mut pause) = (None, Some((paused, may_go_on)));
        while let Ok(request) = frame(&mut asks).await {
            if number(&request, 8) == Some(EXISTS) {
                if first.is_some()
                    && let Some((paused, may_go_on)) = pause.take()
                {
                    last_answered.wait_for(|last| *last == first).await?;
                    paused.send(()).ok().context("the test has ended")?;
                    may_go_on.await?;
                }
                first = first.or(number(&request, 4));
            }
            takes.write_all(&request).await?;
        }
        anyhow::Ok(())
    });
    Ok((addr, is_paused, go_on))
}

/// The mark of a lighter writer goes with it, and a client that is just checking does not take it for an unknown node.
#[tokio::test(flavor = "multi_thread")]
async fn a_lighter_writer_that_leaves_blocks_no_claim() -> Result<()> {
    let Some(context) = TestContext::new().await? else { return Ok(()) };
    let weighing = |bits, weight| claim("job", bits, weight, Limit::Unlimited);
    granted(&context.store, &weighing(1, Weight::All)?).await?;
    let (writer, mut reader) = (weighing(1, Weight::ONE)?, weighing(2, Weight::ONE)?);
    granted(&context.store, &writer).await?;
    reader.wait = false;
    let (addr, is_paused, go_on) = pausing(context.server.addr()).await?;
    let other = ZooKeeper::open(Config::new([addr.to_string()]).session_timeout(SESSION)).await?;
    let asking = tokio::spawn(async move { granted(&other, &reader).await });
    tokio::time::timeout(PATIENCE, is_paused).await.context("it asked for nothing")??;
    context.store.release(&writer.resource, writer.id, &End::Done { memo: None }).await?;
    go_on.send(()).ok().context("the proxy does not wait")?;
    tokio::time::timeout(PATIENCE, asking).await???;
    Ok(())
}
