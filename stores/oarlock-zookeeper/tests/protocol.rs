//! Cases that need a real connection to a real server: lost bytes, ended sessions, nodes of other programs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use oarlock_core::driver::{Attempt, End, Gone, Grant, Released, Renewal, Renewed};
use oarlock_core::state::{Ending, Query, ResourceState};
use oarlock_core::{
    Applied, Capacity, Claim, ClaimId, Driver, ErrorKind, Fence, Limit, Locks, LossReason, ResourceName, Weight,
};
use oarlock_testbed::Proxy;
use oarlock_testbed::proxy::{Held, Then};
use oarlock_zookeeper::{Checked, Config, Layout, Written, ZooKeeper};
use zookeeper_client as zk;

/// The client library ends a connection that was silent for three tenths of it, and with it every request under way.
const SESSION: Duration = Duration::from_secs(6);

/// For clients that are cut off on purpose.
const SHORT: Duration = Duration::from_secs(3);

const PATIENCE: Duration = Duration::from_secs(30);

type Server = oarlock_testbed::ZooKeeper;

fn server() -> Result<Option<Server>> {
    Server::start_or_skip()
}

async fn through(proxy: &Proxy) -> Result<ZooKeeper> {
    Ok(ZooKeeper::open(Config::new([proxy.addr().to_string()]).session_timeout(SHORT)).await?)
}

async fn straight(server: &Server) -> Result<ZooKeeper> {
    Ok(ZooKeeper::open(Config::new([server.addr().to_string()]).session_timeout(SESSION)).await?)
}

fn claim(name: &str, bits: u128) -> Result<Claim> {
    Ok(Claim::new(ClaimId::from_bits(bits), ResourceName::new(name)?))
}

async fn granted(driver: &ZooKeeper, claim: &Claim) -> Result<Grant> {
    match driver.attempt(claim).await? {
        Attempt::Granted(grant) => Ok(grant),
        Attempt::Pending(pending) => anyhow::bail!("not granted: {pending:?}"),
    }
}

async fn renewed(driver: &ZooKeeper, claim: &Claim) -> Result<Renewed> {
    let mut answers = driver.renew(&[Renewal::of(Arc::new(claim.clone()))]).await;
    Ok(answers.pop().context("no answer")??)
}

async fn state(driver: &ZooKeeper, name: &str) -> Result<ResourceState> {
    let page = driver.inspect(&Query::name(ResourceName::new(name)?)).await?;
    page.resources.into_iter().next().context("no state")
}

/// A claim that waits: of everything, or of one unit of any number.
fn queued(name: &str, bits: u128, weight: Weight) -> Result<Claim> {
    let mut claim = claim(name, bits)?;
    (claim.wait, claim.weight, claim.capacity) = (true, weight, Capacity::Fixed(Limit::Unlimited));
    Ok(claim)
}

async fn waits(driver: &ZooKeeper, claim: &Claim) -> Result<()> {
    let answer = driver.attempt(claim).await?;
    ensure!(matches!(answer, Attempt::Pending(_)), "granted too early: {answer:?}");
    Ok(())
}

async fn release(driver: &ZooKeeper, claim: &Claim) -> Result<()> {
    let released = driver.release(&claim.resource, claim.id, &End::Done { memo: None }).await?;
    ensure!(released.outcome == Released::Released, "{released:?}");
    Ok(())
}

async fn shown(driver: &ZooKeeper, claim: &Claim) -> Result<Option<Fence>> {
    let state = state(driver, claim.resource.as_str()).await?;
    Ok(state.holders.iter().find(|holder| holder.id == claim.id).and_then(|holder| holder.fence))
}

/// Readers whose turns come together take them in any order: the later grant has the larger fence.
#[tokio::test(flavor = "multi_thread")]
async fn fences_of_shared_claims_follow_their_grants() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let (one, two) = (straight(&server).await?, straight(&server).await?);
    let writer = queued("job", 1, Weight::All)?;
    let (first, second) = (queued("job", 2, Weight::ONE)?, queued("job", 3, Weight::ONE)?);
    let held = granted(&one, &writer).await?;
    waits(&one, &first).await?;
    waits(&two, &second).await?;
    release(&one, &writer).await?;
    ensure!(shown(&two, &second).await?.is_none(), "shown as a holder before it took its turn");
    let earlier = granted(&two, &second).await?;
    let later = granted(&one, &first).await?;
    ensure!(held.fence < earlier.fence && earlier.fence < later.fence, "{held:?} {earlier:?} {later:?}");
    for (driver, claim, grant) in [(&one, &first, &later), (&two, &second, &earlier)] {
        ensure!(granted(driver, claim).await?.fence == grant.fence, "a repeated attempt changed the fence");
        // Whatever is written to the node later leaves the fence alone.
        let mut busier = claim.clone();
        busier.behind = 3;
        renewed(driver, &busier).await?;
        let ending = Ending::new("ops", "maintenance");
        let asked = End::Broken { ending, grace: SESSION };
        ensure!(one.release(&claim.resource, claim.id, &asked).await?.outcome == Released::Asked, "not asked");
        ensure!(shown(&one, claim).await? == Some(grant.fence), "another fence is shown");
    }
    Ok(())
}

/// A waiter behind a reader was created before the reader's turn; so was the next waiter.
#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_from_shared_claims_to_the_waiters_behind_them() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let driver = straight(&server).await?;
    let queue: Vec<_> = [Weight::All, Weight::ONE, Weight::All, Weight::All, Weight::ONE, Weight::All]
        .into_iter()
        .zip(1..)
        .map(|(weight, bits)| queued("job", bits, weight))
        .collect::<Result<_>>()?;
    let mut last = granted(&driver, &queue[0]).await?.fence;
    for claim in &queue[1..] {
        waits(&driver, claim).await?;
    }
    for pair in queue.windows(2) {
        release(&driver, &pair[0]).await?;
        let next = granted(&driver, &pair[1]).await?.fence;
        ensure!(next > last, "fence {next} after {last}");
        ensure!(shown(&driver, &pair[1]).await? == Some(next), "another fence is shown");
        last = next;
    }
    Ok(())
}

/// Plain mutexes hold by the node that they created: nothing is written when a turn is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_mutex_needs_no_mark() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let (driver, raw) = (straight(&server).await?, zk::Client::connect(&server.addr().to_string()).await?);
    let (mut first, mut second) = (claim("job", 1)?, claim("job", 2)?);
    (first.wait, second.wait) = (true, true);
    let earlier = granted(&driver, &first).await?;
    waits(&driver, &second).await?;
    release(&driver, &first).await?;
    let later = granted(&driver, &second).await?;
    let node = raw.list_children("/oarlock/job").await?.pop().context("no node")?;
    let (_, stat) = raw.get_data(&format!("/oarlock/job/{node}")).await?;
    ensure!(stat.version == 0 && stat.czxid == i64::try_from(later.fence.get())?, "it was written to: {stat:?}");
    ensure!(later.fence > earlier.fence, "{} after {}", later.fence, earlier.fence);
    Ok(())
}

/// A writer that goes on as a reader keeps its fence, and is shown with it; readers admitted by that have larger ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_lighter_writer_keeps_its_fence() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let driver = straight(&server).await?;
    let (mut writer, reader) = (queued("job", 1, Weight::All)?, queued("job", 2, Weight::ONE)?);
    let held = granted(&driver, &writer).await?;
    waits(&driver, &reader).await?;
    writer.weight = Weight::ONE;
    ensure!(granted(&driver, &writer).await?.fence == held.fence, "another fence");
    let beside = granted(&driver, &reader).await?;
    ensure!(beside.fence > held.fence, "{} after {}", beside.fence, held.fence);
    ensure!(granted(&driver, &writer).await?.fence == held.fence, "another fence later");
    ensure!(shown(&driver, &writer).await? == Some(held.fence), "another fence is shown");
    Ok(())
}

/// The node is created, and then the others cannot be read: the error must say that the attempt may count.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_after_the_node_was_made_says_that_it_may_count() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let (driver, raw) = (straight(&server).await?, zk::Client::connect(&server.addr().to_string()).await?);
    let all_but_read = zk::Permission::CREATE | zk::Permission::DELETE | zk::Permission::WRITE | zk::Permission::ADMIN;
    let blind = [zk::Acl::new(all_but_read, zk::AuthId::anyone())];
    raw.create("/oarlock/job", b"", &zk::CreateMode::Persistent.with_acls(blind.as_slice().into())).await?;
    let mine = claim("job", 1)?;
    let error = driver.attempt(&mine).await.err().context("granted without reading the others")?;
    ensure!((error.kind(), error.applied()) == (ErrorKind::Denied, Applied::Unknown), "{error:?}");
    ensure!(error.to_string().contains("oarlock init --print"), "{error}");
    raw.set_acl("/oarlock/job", &zk::Acls::anyone_all(), None).await?;
    ensure!(raw.list_children("/oarlock/job").await?.len() == 1, "no node was made: nothing was tested");
    release(&driver, &mine).await?;
    ensure!(raw.list_children("/oarlock/job").await?.is_empty(), "a node is left");
    // Without the right to create nodes below the root there is no other name.
    raw.set_acl("/oarlock", &zk::Acls::anyone_read(), None).await?;
    let error = driver.attempt(&claim("other", 2)?).await.err().context("granted without a node")?;
    ensure!(error.kind() == ErrorKind::Denied && error.to_string().contains("oarlock init --print"), "{error}");
    Ok(())
}

/// The node is created, and its reply is lost with the connection: the next attempt finds it, and creates no second
/// node.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_answer_was_lost_is_found_again() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let (proxy, watcher) = (Proxy::start(server.addr())?, straight(&server).await?);
    let driver = through(&proxy).await?;
    // The parent is there, so that the next request is the making of the node.
    granted(&watcher, &claim("job", 1)?).await?;
    watcher.release(&ResourceName::new("job")?, ClaimId::from_bits(1), &End::Withdrawn).await?;
    let mut lost = 0;
    for bits in 2..8 {
        let mine = claim("job", bits)?;
        let dropped = proxy.drop_next_reply(Then::Silence);
        let first = driver.attempt(&mine).await;
        drop(dropped);
        proxy.heal(Held::Deliver)?;
        let left = state(&watcher, "job").await?.holders;
        let second = granted(&driver, &mine).await?;
        if first.is_err() {
            lost += usize::from(left.iter().any(|holder| holder.id == mine.id && holder.fence == Some(second.fence)));
        }
        let state = state(&watcher, "job").await?;
        ensure!(state.holders.len() == 1 && state.waiters.count() == Some(0), "{state:?}");
        ensure!(state.holders[0].fence == Some(second.fence), "another fence");
        driver.release(&mine.resource, mine.id, &End::Done { memo: None }).await?;
    }
    ensure!(lost > 0, "no reply was lost after its node was made: nothing was tested");
    Ok(())
}

/// The session ends while the connection is cut. Its claims are gone for that reason, and the next attempt opens
/// another session.
#[tokio::test(flavor = "multi_thread")]
async fn claims_end_with_their_session_and_the_next_attempt_opens_another() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let (proxy, rival) = (Proxy::start(server.addr())?, straight(&server).await?);
    let driver = through(&proxy).await?;
    let (mine, mut theirs) = (claim("job", 1)?, claim("job", 2)?);
    theirs.wait = true;
    let first = granted(&driver, &mine).await?;
    proxy.cut();
    let takeover = async {
        while let Attempt::Pending(_) = rival.attempt(&theirs).await? {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, takeover).await??;
    proxy.heal(Held::Deliver)?;
    let gone = tokio::time::timeout(PATIENCE, renewed(&driver, &mine)).await??;
    ensure!(gone == Renewed::Gone(Gone::Session), "{gone:?}");
    ensure!(matches!(driver.attempt(&mine).await?, Attempt::Pending(_)), "granted beside another");
    rival.release(&theirs.resource, theirs.id, &End::Done { memo: None }).await?;
    let again = granted(&driver, &mine).await?;
    ensure!(again.fence > first.fence, "the fence did not rise");
    Ok(())
}

/// A request begins another session, and its caller stops polling it: the other requests of the client go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_not_polled_any_more_holds_up_no_other() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let (proxy, rival) = (Proxy::start(server.addr())?, straight(&server).await?);
    let driver = through(&proxy).await?;
    let (mine, mut theirs) = (claim("job", 1)?, claim("job", 2)?);
    theirs.wait = true;
    granted(&driver, &mine).await?;
    proxy.cut();
    let takeover = async {
        while let Attempt::Pending(_) = rival.attempt(&theirs).await? {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, takeover).await??;
    // The session is over, and that is known when its renewal is answered.
    proxy.heal(Held::Reset)?;
    let gone = tokio::time::timeout(PATIENCE, renewed(&driver, &mine)).await??;
    ensure!(gone == Renewed::Gone(Gone::Session), "{gone:?}");
    let other = claim("other", 3)?;
    let mut left = std::pin::pin!(driver.attempt(&other));
    let begun = futures_util::FutureExt::now_or_never(left.as_mut());
    ensure!(begun.is_none(), "answered without a session: nothing was tested");
    let another = claim("another", 4)?;
    tokio::time::timeout(PATIENCE, granted(&driver, &another)).await.context("held up by the first")??;
    let first = tokio::time::timeout(PATIENCE, left).await??;
    ensure!(matches!(first, Attempt::Granted(_)), "{first:?}");
    Ok(())
}

/// Children that are no claims block no claim, and are not removed.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_nodes_among_the_claims_are_ignored() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let driver = straight(&server).await?;
    let mine = claim("job", 1)?;
    granted(&driver, &mine).await?;
    driver.release(&mine.resource, mine.id, &End::Withdrawn).await?;
    let raw = zk::Client::connect(&server.addr().to_string()).await?;
    let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    for child in ["000", "lock-0000000000", "_c_x-lock-0000000001"] {
        raw.create(&format!("/oarlock/job/{child}"), b"127.0.0.1", &persistent).await?;
    }
    granted(&driver, &mine).await?;
    let shown = state(&driver, "job").await?;
    ensure!(shown.holders.len() == 1 && shown.waiters.count() == Some(0), "{shown:?}");
    let released = driver.release(&mine.resource, mine.id, &End::Done { memo: None }).await?;
    ensure!(released.outcome == Released::Released && released.others_waiting != Some(true), "{released:?}");
    ensure!(raw.list_children("/oarlock/job").await?.len() == 3, "an unknown node was removed");
    Ok(())
}

/// A holder whose node was deleted by hand learns it from its next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_deleted_by_hand_is_a_lost_claim() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let driver = straight(&server).await?;
    let mine = claim("job", 1)?;
    granted(&driver, &mine).await?;
    let raw = zk::Client::connect(&server.addr().to_string()).await?;
    for child in raw.list_children("/oarlock/job").await? {
        raw.delete(&format!("/oarlock/job/{child}"), None).await?;
    }
    let gone = renewed(&driver, &mine).await?;
    ensure!(gone == Renewed::Gone(Gone::Unknown), "{gone:?}");
    Ok(())
}

/// A session of its own keeps a claim alive after belief in it has ended; the engine gives it back.
#[tokio::test(flavor = "multi_thread")]
async fn an_explicit_lease_frees_the_lock_although_the_session_lives_on() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let (one, two) = (Locks::over(straight(&server).await?)?, Locks::over(straight(&server).await?)?);
    let guard = one.mutex("job").ttl(Duration::from_millis(300)).no_renewal().lock().await?;
    let theirs = two.mutex("job").wait(PATIENCE).lock().await?;
    ensure!(guard.loss() == Some(LossReason::Expired), "{:?}", guard.loss());
    ensure!(theirs.fence() > guard.fence(), "the fence did not rise");
    Ok(())
}

/// With a grace the holder is asked, learns by whom, and releases when its time is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_asked_to_end_is_notified_and_ends() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let (one, two) = (Locks::over(straight(&server).await?)?, Locks::over(straight(&server).await?)?);
    let guard = one.mutex("job").lock().await?;
    let ending = Ending::new("ops", "maintenance");
    let name = ResourceName::new("job")?;
    let grace = Duration::from_secs(3);
    let asked = two.break_hold(&name, guard.fence(), ending.clone(), grace).await?;
    ensure!(asked == Released::Asked, "{asked:?}");
    let shown = two.inspect(&name).await?.holders.pop().and_then(|holder| holder.ending);
    ensure!(shown == Some(ending.clone()), "{shown:?}");
    let reason = tokio::time::timeout(PATIENCE, guard.lost()).await?;
    ensure!(reason == LossReason::Broken(ending), "{reason:?}");
    two.mutex("job").wait(PATIENCE).lock().await?.release().await?;
    Ok(())
}

/// A client that finds a newer layout does not use it.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_root_is_left_alone() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let raw = zk::Client::connect(&server.addr().to_string()).await?;
    let persistent = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    raw.create("/oarlock", br#"{"format":2}"#, &persistent).await?;
    let opened = ZooKeeper::open(Config::new([server.addr().to_string()])).await;
    ensure!(opened.is_err_and(|error| error.kind() == ErrorKind::NewerFormat), "a newer layout was opened");
    Ok(())
}

/// Everything is removed, the root included: the next client creates it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_root_is_made_again() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let (store, raw) = (straight(&server).await?, zk::Client::connect(&server.addr().to_string()).await?);
    let (format, _) = raw.get_data("/oarlock").await?;
    raw.delete("/oarlock/.clients", None).await?;
    raw.delete("/oarlock", None).await?;
    let fence = granted(&store, &claim("job", 1)?).await?.fence;
    ensure!(raw.get_data("/oarlock").await?.0 == format, "another root");
    ensure!(raw.check_stat("/oarlock/.clients").await?.is_some(), "no client can be notified");
    ensure!(matches!(renewed(&store, &claim("job", 1)?).await?, Renewed::Alive { fence: Some(of), .. } if of == fence));
    Ok(())
}

/// A claim of a newer version is shown by what its name says, and hides no other claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_claim_hides_no_other_in_a_list() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let (store, raw) = (straight(&server).await?, zk::Client::connect(&server.addr().to_string()).await?);
    granted(&store, &claim("job", 1)?).await?;
    let open = zk::Acls::anyone_all();
    raw.create("/oarlock/newer", b"", &zk::CreateMode::Persistent.with_acls(open)).await?;
    let node = format!("/oarlock/newer/{:032x}-a-n-", 2);
    raw.create(&node, br#"{"format":99}"#, &zk::CreateMode::EphemeralSequential.with_acls(open)).await?;
    let shown = store.inspect(&Query::live()).await?.resources;
    let shown: Vec<_> = shown.iter().map(|state| (state.name.as_str(), state.holders.len())).collect();
    ensure!(shown == [("job", 1), ("newer", 1)], "{shown:?}");
    Ok(())
}

/// Every node made with credentials is closed to others.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_its_locks_for_itself() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let config = Config::new([server.addr().to_string()]).root("/team/locks").session_timeout(SESSION);
    let ours = ZooKeeper::open(config.clone().digest("ada", "secret")).await?;
    granted(&ours, &claim("job", 1)?).await?;
    let anonymous = ZooKeeper::open(config.clone()).await;
    ensure!(anonymous.is_err_and(|error| error.kind() == ErrorKind::Denied), "a client without rights was accepted");
    let wrong = ZooKeeper::open(config.clone().digest("ada", "wrong")).await;
    ensure!(wrong.is_err_and(|error| error.kind() == ErrorKind::Denied), "a wrong password was let in");
    for (layout, root) in [(Layout::Curator, "/team/curator"), (Layout::Kazoo, "/team/kazoo")] {
        let config = config.clone().layout(layout).root(root);
        let ours = ZooKeeper::open(config.clone().digest("ada", "secret")).await?;
        granted(&ours, &claim("job", 1)?).await?;
        let refused = ZooKeeper::open(config).await?.attempt(&claim("job", 2)?).await;
        ensure!(
            refused.is_err_and(|error| error.kind() == ErrorKind::Denied),
            "{layout:?}: a client without rights was accepted"
        );
    }
    Ok(())
}

/// The protected side: a write of a holder that does not know yet that it lost the lock changes nothing, in whatever
/// order.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_write_is_refused_by_its_fence() -> Result<()> {
    let Some(server) = server()? else { return Ok(()) };
    let config = Config::new([server.addr().to_string()]).root("/app/values").session_timeout(SESSION);
    let (one, two) = (Checked::open(config.clone()).await?, Checked::open(config).await?);
    let locks = straight(&server).await?;
    let first = granted(&locks, &claim("job", 1)?).await?.fence;
    release(&locks, &claim("job", 1)?).await?;
    let second = granted(&locks, &claim("job", 2)?).await?.fence;
    ensure!(one.get("balance").await?.is_none(), "something is there already");
    ensure!(two.set("balance", second, b"new").await? == Written::Stored, "not stored");
    ensure!(one.set("balance", first, b"old").await? == Written::Refused { stored: second }, "a late write was stored");
    ensure!(two.set("balance", second, b"newer").await? == Written::Stored, "its own second write was refused");
    ensure!(one.get("balance").await? == Some((second, b"newer".to_vec())), "another value");
    // Many at once: the largest stays, whichever comes last.
    let all: Vec<_> = (1..=40_u64).map(|step| Fence::new(second.get() + (step * 7) % 41)).collect();
    let writes = all.iter().enumerate().map(|(at, fence)| {
        let (values, text) = (if at % 2 == 0 { &one } else { &two }, fence.to_string());
        async move {
            loop {
                match values.set("balance", *fence, text.as_bytes()).await {
                    Err(error) if error.retry() == oarlock_core::Retry::Now => {}
                    written => return written,
                }
            }
        }
    });
    for written in futures_util::future::join_all(writes).await {
        written?;
    }
    let largest = Fence::new(second.get() + 40);
    ensure!(one.get("balance").await? == Some((largest, largest.to_string().into_bytes())), "not the largest");
    let raw = zk::Client::connect(&server.addr().to_string()).await?;
    raw.set_data("/app/values/balance", b"something else", None).await?;
    let refused = one.set("balance", largest, b"x").await;
    ensure!(
        refused.is_err_and(|error| error.kind() == ErrorKind::Foreign),
        "a value of another program was written over"
    );
    Ok(())
}

/// The server goes away while a node is created, before or after: there is one node in the end, and none after the
/// release.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_closed_while_a_node_is_created_leaves_no_second_node() -> Result<()> {
    for layout in [Layout::Native, Layout::Curator, Layout::Kazoo] {
        let Some(server) = server()? else { return Ok(()) };
        let proxy = Proxy::start(server.addr())?;
        let open = |addr: String| ZooKeeper::open(Config::new([addr]).layout(layout).session_timeout(SESSION));
        let (driver, watcher) = (open(proxy.addr().to_string()).await?, open(server.addr().to_string()).await?);
        granted(&watcher, &claim("job", 1)?).await?;
        release(&watcher, &claim("job", 1)?).await?;
        let (mut closed, mut last) = (0, Fence::new(0));
        for bits in 2..14 {
            let mine = claim("job", bits)?;
            let dropped = proxy.drop_next_reply(Then::Close);
            let first = driver.attempt(&mine).await;
            drop(dropped);
            proxy.heal(Held::Reset)?;
            if let Err(error) = &first {
                closed += 1;
                ensure!(error.applied() == Applied::Unknown, "said that nothing happened: {error:?}");
            }
            let second = loop {
                match driver.attempt(&mine).await {
                    Ok(Attempt::Granted(grant)) => break grant,
                    Ok(Attempt::Pending(pending)) => anyhow::bail!("in its own way: {pending:?}"),
                    Err(error) => ensure!(error.retry() != oarlock_core::Retry::Never, "{error}"),
                }
            };
            ensure!(second.fence > last, "fence {} after {last}", second.fence);
            last = second.fence;
            let state = state(&watcher, "job").await?;
            ensure!(state.holders.len() == 1 && state.waiters.count() == Some(0), "{layout:?}: {state:?}");
            ensure!(state.holders[0].fence == Some(second.fence), "another fence");
            driver.release(&mine.resource, mine.id, &End::Done { memo: None }).await?;
            ensure!(state_is_free(&watcher).await?, "{layout:?}: something is left");
        }
        ensure!(closed > 0, "no connection was closed during an attempt: nothing was tested");
    }
    Ok(())
}

async fn state_is_free(driver: &ZooKeeper) -> Result<bool> {
    Ok(state(driver, "job").await?.is_free())
}
