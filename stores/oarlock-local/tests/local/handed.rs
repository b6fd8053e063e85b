//! Grants that come with a notification: when they are believed, and what happens if the waiter is dead or hangs.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use oarlock_core::driver::{Attempt, Driver as _, Grant, Pending, Renewal, Renewed, Watch};
use oarlock_core::model::TURN_TTL;
use oarlock_core::{Claim, Fence, Locks};
use oarlock_local::Local;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::helper::Helper;
use crate::stall::stalled;
use crate::{claim, granted, hint, open, pending, release, show, temp, turn, waiting};

/// Puts a claim into the queue so that its grant comes with a notification: a store receives them from its first watch
/// on.
async fn queue(store: &Local, claim: &Claim) -> (Pending, Watch) {
    let first = pending(store, claim).await;
    let watch = turn(store, claim, first.cursor.clone()).await;
    let second = pending(store, claim).await;
    assert!(second.watched, "it would not be notified");
    assert_eq!(first.cursor, second.cursor);
    (second, watch)
}

fn pid(helper: &Helper) -> Pid {
    Pid::from_raw(i32::try_from(helper.pid()).unwrap()).unwrap()
}

/// Stops a process, and waits until none of its threads runs any more.
fn stop(helper: &Helper) {
    kill_process(pid(helper), Signal::STOP).unwrap();
    let (_, status) = waitpid(Some(pid(helper)), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped());
}

fn go_on(helper: &Helper) {
    kill_process(pid(helper), Signal::CONT).unwrap();
}

/// The socket of the only other session.
fn socket_of_other(dir: &Path, known: &[PathBuf]) -> PathBuf {
    let mut sockets = sockets(dir);
    sockets.retain(|socket| !known.contains(socket));
    assert_eq!(sockets.len(), 1);
    sockets.remove(0)
}

fn sockets(dir: &Path) -> Vec<PathBuf> {
    let session = std::fs::read_dir(dir.join("session")).unwrap().map(|entry| entry.unwrap().path());
    session.filter(|path| path.extension().is_some_and(|extension| extension == "sock")).collect()
}

async fn holder(store: &Local) -> Option<Fence> {
    show(store, "x").await.holders.first().and_then(|holder| holder.fence)
}

#[tokio::test]
async fn a_handed_grant_is_believed_without_a_step_and_has_the_fence_of_the_store() {
    let dir = temp();
    let (a, b) = (open(dir.path()).await, open(dir.path()).await);
    let (held, next) = (waiting("x"), waiting("x"));
    let first = granted(&a, &held).await;
    let (_, mut watch) = queue(&b, &next).await;
    release(&a, &held).await;
    hint(&mut watch).await;
    // A client that needed a step would wait here forever.
    let stall = stalled(dir.path());
    let grant = granted(&b, &next).await;
    drop(stall);
    assert!(grant.fence > first.fence);
    assert!(grant.lease.from.is_some() && grant.lease.ttl == TURN_TTL, "{:?}", grant.lease);
    assert_eq!(holder(&a).await, Some(grant.fence));
    let again = granted(&b, &next).await;
    assert_eq!(again.fence, grant.fence, "the state file says the same");
    assert_eq!(again.lease.ttl, next.ttl, "an attempt gives the whole lease");
}

#[tokio::test]
async fn tasks_of_one_process_hand_over_too() {
    let dir = temp();
    let store = open(dir.path()).await;
    let (held, next) = (waiting("x"), waiting("x"));
    granted(&store, &held).await;
    let (_, mut watch) = queue(&store, &next).await;
    release(&store, &held).await;
    hint(&mut watch).await;
    let stall = stalled(dir.path());
    let grant = granted(&store, &next).await;
    drop(stall);
    assert_eq!(holder(&store).await, Some(grant.fence));
}

/// No attempt follows the watch, so nothing may be lost between the answer to an attempt and the watch.
#[tokio::test]
async fn a_turn_that_comes_before_the_watch_is_not_lost() {
    let dir = temp();
    // Claims of one process need no datagram: the notification is there when the release returns.
    let store = open(dir.path()).await;
    let (held, next) = (waiting("x"), waiting("x"));
    granted(&store, &held).await;
    let (second, watch) = queue(&store, &next).await;
    drop(watch);
    release(&store, &held).await;
    let mut watch = turn(&store, &next, second.cursor).await;
    hint(&mut watch).await;
    assert_eq!(Some(granted(&store, &next).await.fence), holder(&store).await);
}

#[tokio::test]
async fn a_death_before_the_watch_is_not_lost() {
    let dir = temp();
    let store = open(dir.path()).await;
    let mut helper = Helper::start("hold x", dir.path());
    assert_eq!(helper.says(), "held");
    let next = waiting("x");
    let (second, mut watch) = queue(&store, &next).await;
    helper.kill();
    // This process has seen the death, and no event for it will come again.
    hint(&mut watch).await;
    drop(watch);
    let mut watch = turn(&store, &next, second.cursor).await;
    hint(&mut watch).await;
    granted(&store, &next).await;
}

/// A waiter must not believe a datagram of another program, or a late one.
#[tokio::test]
async fn datagrams_that_the_state_file_did_not_cause_are_not_believed() {
    let dir = temp();
    let a = open(dir.path()).await;
    let known = sockets(dir.path());
    let b = open(dir.path()).await;
    let to_b = socket_of_other(dir.path(), &known);
    let (held, next) = (waiting("x"), waiting("x"));
    let first = granted(&a, &held).await;
    let (_, mut watch) = queue(&b, &next).await;
    let send = |message: &[u8]| UnixDatagram::unbound().unwrap().send_to(message, &to_b).unwrap();
    let datagram = |id: u128, fence: u64, at: u64| {
        let mut message = b"oarlock\x01g\0\0".to_vec();
        message.extend(at.to_be_bytes());
        message.extend(id.to_be_bytes());
        message.extend(fence.to_be_bytes());
        message.extend(u64::MAX.to_be_bytes());
        message
    };
    let now = || oarlock_core::clock::Clock::now(&oarlock_core::clock::BootClock).as_nanos();
    let long_ago = now() - 60_000_000_000;
    let (fence, later) = (first.fence.get(), now() + 60_000_000_000);
    let stale = [datagram(next.id.bits(), fence, now()), datagram(next.id.bits(), fence + 1, long_ago)];
    for message in stale.into_iter().chain([datagram(next.id.bits(), fence + 1, later)]) {
        send(&message);
        hint(&mut watch).await;
        pending(&b, &next).await;
    }
    let cut = datagram(next.id.bits(), fence + 1, now())[..50].to_vec();
    for message in [b"garbage".to_vec(), vec![0; 4096], cut, datagram(7, fence + 1, now())] {
        send(&message);
        // A socket keeps order: what was sent before this call was received before it.
        send(&next.id.bits().to_be_bytes());
        hint(&mut watch).await;
        pending(&b, &next).await;
    }
    release(&a, &held).await;
    hint(&mut watch).await;
    assert_eq!(Some(granted(&b, &next).await.fence), holder(&a).await);
}

/// Linux drops datagrams that do not fit into the queue of a socket. A client that reads a full queue attempts every
/// claim.
#[tokio::test]
async fn a_lost_datagram_costs_a_step_and_not_the_lock() {
    let dir = temp();
    let store = open(dir.path()).await;
    let known = sockets(dir.path());
    let held = waiting("x");
    granted(&store, &held).await;
    let mut helper = Helper::start("turn x", dir.path());
    assert_eq!(helper.says(), "waiting");
    stop(&helper);
    let flood = UnixDatagram::unbound().unwrap();
    flood.set_nonblocking(true).unwrap();
    let socket = socket_of_other(dir.path(), &known);
    while flood.send_to(b"x", &socket).is_ok() {}
    release(&store, &held).await;
    let fence = holder(&store).await.expect("the next in line was not granted");
    go_on(&helper);
    assert_eq!(helper.says(), format!("held {fence}"));
}

/// If no datagram arrives at all, the next renewal of the waiter finds that it holds.
#[tokio::test]
async fn a_waiter_whose_notification_was_lost_learns_of_its_grant_when_it_is_renewed() {
    let dir = temp();
    let (a, b) = (open(dir.path()).await, open(dir.path()).await);
    let (held, next) = (waiting("x"), waiting("x"));
    granted(&a, &held).await;
    let (_, mut watch) = queue(&b, &next).await;
    release(&a, &held).await;
    hint(&mut watch).await;
    let renewed = b.renew(&[Renewal::of(Arc::new(next.clone()))]).await.remove(0).unwrap();
    let Renewed::Alive { fence: None, lease, .. } = renewed else { panic!("{renewed:?}") };
    assert!(lease.ttl <= TURN_TTL, "renewing is not enough to sit on a turn");
    hint(&mut watch).await;
    assert_eq!(Some(granted(&b, &next).await.fence), holder(&a).await);
}

#[tokio::test]
async fn after_a_waiter_is_killed_in_its_turn_the_next_holds_at_once() {
    let dir = temp();
    let store = open(dir.path()).await;
    let held = waiting("x");
    granted(&store, &held).await;
    let mut helper = Helper::start("turn x", dir.path());
    assert_eq!(helper.says(), "waiting");
    let next = waiting("x");
    let (_, mut watch) = queue(&store, &next).await;
    stop(&helper);
    release(&store, &held).await;
    let theirs = holder(&store).await.expect("the next in line was not granted");
    helper.kill();
    let grant = tokio::time::timeout(crate::PATIENCE, granted_after_hints(&store, &next, &mut watch)).await.unwrap();
    assert!(grant.fence > theirs);
}

#[tokio::test]
async fn a_dead_waiter_is_granted_nothing() {
    let dir = temp();
    let store = open(dir.path()).await;
    let held = waiting("x");
    let last = granted(&store, &held).await.fence;
    let mut helper = Helper::start("turn x", dir.path());
    assert_eq!(helper.says(), "waiting");
    helper.kill();
    release(&store, &held).await;
    assert_eq!(show(&store, "x").await.last_fence, Some(last), "another grant was made");
    granted(&store, &claim("x")).await;
}

async fn granted_after_hints(store: &Local, claim: &Claim, watch: &mut Watch) -> Grant {
    loop {
        if let Attempt::Granted(grant) = store.attempt(claim).await.unwrap() {
            return grant;
        }
        hint(watch).await;
    }
}

/// A stopped process looks alive: it is granted its turn, and loses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_hangs_costs_one_turn_and_does_not_believe_when_it_goes_on() {
    let dir = temp();
    let store = open(dir.path()).await;
    let held = waiting("x");
    granted(&store, &held).await;
    let mut helper = Helper::start("turn x", dir.path());
    assert_eq!(helper.says(), "waiting");
    let behind = Locks::over(open(dir.path()).await).unwrap();
    let lock = behind.mutex("x");
    let waiter = tokio::spawn(async move { lock.lock().await });
    while show(&store, "x").await.waiters.count() != Some(2) {
        tokio::task::yield_now().await;
    }
    stop(&helper);
    release(&store, &held).await;
    let released = Instant::now();
    let theirs = holder(&store).await.expect("the next in line was not granted");
    let guard = tokio::time::timeout(crate::PATIENCE, waiter).await.unwrap().unwrap().unwrap();
    let took = released.elapsed();
    assert!(guard.fence() > theirs);
    assert!(took > TURN_TTL * 9 / 10, "the turn was taken away after {took:?}");
    // Called at once because the waiter before it may hang, or by the next renewal of its own place.
    assert!(took < Duration::from_secs(8), "{took:?}");
    go_on(&helper);
    assert_eq!(helper.says(), "pending");
    assert!(guard.is_held());
}

/// Each of them costs at most its turn; together at most the time after which a silent waiter is evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_stopped_processes_at_the_head_cost_no_more_than_their_turns() {
    const STOPPED: u32 = 8;
    let dir = temp();
    let store = open(dir.path()).await;
    let held = waiting("x");
    granted(&store, &held).await;
    let mut stopped = Vec::new();
    for _ in 0..STOPPED {
        let mut helper = Helper::start("turn x", dir.path());
        assert_eq!(helper.says(), "waiting");
        stop(&helper);
        stopped.push(helper);
    }
    let behind = Locks::over(open(dir.path()).await).unwrap();
    let lock = behind.mutex("x");
    let waiter = tokio::spawn(async move { lock.lock().await });
    while show(&store, "x").await.waiters.count() != usize::try_from(STOPPED + 1).ok() {
        tokio::task::yield_now().await;
    }
    release(&store, &held).await;
    let released = Instant::now();
    let guard = tokio::time::timeout(crate::PATIENCE, waiter).await.unwrap().unwrap().unwrap();
    let took = released.elapsed();
    println!("behind {STOPPED} stopped processes: {took:?}");
    assert!(took < TURN_TTL * STOPPED, "{took:?}");
    assert!(guard.is_held());
}

/// A handed grant begins with two seconds, which a runtime with another thread extends meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_blocks_right_after_it_was_handed_the_lock_keeps_it() {
    let dir = temp();
    let (a, b) = (open(dir.path()).await, Locks::over(open(dir.path()).await).unwrap());
    let lock = b.mutex("x");
    for _ in 0..3 {
        let held = waiting("x");
        granted(&a, &held).await;
        let lock = lock.clone();
        let waiter = tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            std::thread::sleep(Duration::from_secs(5));
            let is_held = guard.is_held();
            guard.release().await.unwrap();
            is_held
        });
        while show(&a, "x").await.waiters.count() != Some(1) {
            tokio::task::yield_now().await;
        }
        release(&a, &held).await;
        assert!(waiter.await.unwrap(), "it was lost");
    }
}

/// A runtime of one thread cannot renew while that thread blocks: then the guard reports the loss.
#[test]
fn a_runtime_that_blocks_right_after_it_was_handed_the_lock_learns_of_the_loss() {
    let dir = temp();
    let of_others = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let a = of_others.block_on(open(dir.path()));
    let held = waiting("x");
    of_others.block_on(granted(&a, &held));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Locks::over(open(dir.path()).await).unwrap();
        let lock = client.mutex("x");
        // The first attempt finds it held and starts to receive; the second is granted by a notification.
        let released = of_others.spawn(async move {
            while show(&a, "x").await.waiters.count() != Some(1) {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            release(&a, &held).await;
            a
        });
        let guard = lock.lock().await.unwrap();
        // Before anything else is awaited: the client would renew.
        std::thread::sleep(Duration::from_secs(5));
        assert!(!guard.is_held());
        let a = released.await.unwrap();
        granted(&a, &claim("x")).await;
        assert_eq!(guard.lost().await, oarlock_core::LossReason::Expired);
    });
}
