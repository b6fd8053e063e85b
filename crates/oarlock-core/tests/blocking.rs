//! The blocking API: without a runtime, within one, and where it must refuse to wait.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use oarlock_core::blocking::{Held, Locks, Multi, Part, Within};
use oarlock_core::state::Ending;
use oarlock_core::{
    Ended, Error, ErrorKind, Fenced, Lifetime, LockEvent, LossReason, Memory, Owner, Released, Runtime, Slot,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Takes, refuses, waits and releases, as code without a runtime would.
fn a_lock_and_its_rival(locks: &Locks) -> Result<(), Failure> {
    let lock = locks.mutex("a");
    let guard = lock.lock()?;
    assert!(lock.try_lock()?.is_none());
    let started = Instant::now();
    let busy = lock.clone().wait(Duration::from_millis(50)).lock();
    assert_eq!(busy.map(drop).map_err(|error| error.kind()), Err(ErrorKind::Busy));
    assert!(started.elapsed() >= Duration::from_millis(50));
    let first = guard.fence();
    guard.release()?;
    assert!(lock.lock()?.fence() > first);
    Ok(())
}

#[test]
fn without_a_runtime() -> Result<(), Failure> {
    a_lock_and_its_rival(&Locks::over(Memory::new())?)
}

#[tokio::test(flavor = "current_thread")]
async fn on_the_only_thread_of_a_runtime() -> Result<(), Failure> {
    a_lock_and_its_rival(&Locks::over(Memory::new())?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_worker_of_a_runtime() -> Result<(), Failure> {
    tokio::spawn(async { a_lock_and_its_rival(&Locks::over(Memory::new())?) }).await?
}

/// Runs `work` in one poll of a task; what would wait for ever fails instead.
fn in_one_poll(work: impl FnOnce() -> Result<(), Failure> + Send + 'static) -> Result<(), Failure> {
    let (done, told) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let _ = done.send(runtime.map_err(Failure::from).and_then(|runtime| runtime.block_on(async { work() })));
    });
    told.recv_timeout(Duration::from_secs(10)).map_err(|_| "it hangs")?
}

/// The budget of a task is not refilled before its poll is over.
#[test]
fn any_number_of_times_on_a_thread_of_a_runtime() -> Result<(), Failure> {
    in_one_poll(|| {
        let locks = Locks::over(Memory::new())?;
        for _ in 0..1000 {
            locks.mutex("a").lock()?.release()?;
        }
        Ok(())
    })
}

/// Tokio keeps the wake-ups of work that yields on a runtime's thread until that thread comes back to it.
#[test]
fn work_that_yields_is_gone_on_with_on_a_thread_of_a_runtime() -> Result<(), Failure> {
    in_one_poll(|| Ok(Runtime::own_thread()?.block_on(tokio::task::yield_now())?))
}

#[test]
fn threads_exclude_each_other_and_the_waiters_are_woken() -> Result<(), Failure> {
    let locks = Locks::over(Memory::new())?;
    let data = Fenced::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| -> Result<(), Failure> {
                    for _ in 0..50 {
                        let guard = locks.mutex("counter").lock()?;
                        // Not one step: a second holder in between would lose one of the two.
                        let seen = data.read(|data| *data);
                        std::thread::yield_now();
                        data.change(guard.fence(), |data| *data = seen + 1)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    assert_eq!(data.read(|data| *data), 400);
    Ok(())
}

#[test]
fn a_loss_is_seen_while_the_thread_works() -> Result<(), Failure> {
    let store = Memory::new();
    let kit = store.kit();
    let locks = Locks::over(store)?;
    let guard = locks.mutex("a").lock()?;
    guard.check()?;
    assert_eq!(guard.lost_within(Duration::from_millis(10))?, None);
    kit.lose(guard.resource())?;
    assert_eq!(guard.lost_within(Duration::from_secs(10))?, Some(LossReason::Gone));
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    Ok(())
}

#[test]
fn the_clients_background_thread_is_refused_instead_of_hanging() -> Result<(), Failure> {
    let (tell, told) = mpsc::channel();
    let (give, given) = mpsc::channel::<Locks>();
    let (given, once) = (std::sync::Mutex::new(given), std::sync::Once::new());
    let builder = Locks::builder(Memory::new()).ttl(Duration::from_millis(300));
    let builder = builder.observer(move |_: &LockEvent| {
        // Renewals are observed on the client's background thread, grants on the caller's.
        if std::thread::current().name() == Some("oarlock") {
            once.call_once(|| {
                let locks = given.lock().ok().and_then(|given| given.recv().ok());
                let answer = locks.map(|locks| locks.mutex("b").lock().map(drop));
                let _ = tell.send(answer);
            });
        }
    });
    let locks = builder.build()?;
    give.send(locks.clone())?;
    let _guard = locks.mutex("a").lock()?;
    let answer = told.recv_timeout(Duration::from_secs(10))?.ok_or("no client")?;
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Config);
    Ok(())
}

#[tokio::test]
async fn a_client_on_the_callers_runtime_is_refused() -> Result<(), Failure> {
    let client = oarlock_core::Locks::over(Memory::new())?;
    assert_eq!(Locks::of(client).unwrap_err().kind(), ErrorKind::Config);
    Ok(())
}

#[test]
fn a_thread_enters_again_and_another_does_not() -> Result<(), Failure> {
    let locks = Locks::over(Memory::new())?;
    let lock = locks.mutex("a").wait(Duration::from_millis(50)).reentrant_by_thread();
    let outer = lock.lock()?;
    let inner = lock.try_lock()?.ok_or("its own thread was refused")?;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| lock.lock().map(drop).unwrap_err().kind());
        assert_eq!(other.join().ok(), Some(ErrorKind::Busy));
    });
    assert_eq!(outer.release()?, Released::StillHeld);
    assert_eq!(inner.release()?, Released::Released);
    let config = locks.rwlock("config").reentrant_by_thread();
    let _reader = config.read()?;
    assert_eq!(config.write().map(drop).unwrap_err().kind(), ErrorKind::SelfDeadlock);
    Ok(())
}

#[test]
fn the_other_kinds_have_the_same_names() -> Result<(), Failure> {
    let locks = Locks::over(Memory::new())?;
    let reader = locks.rwlock("r").write()?.downgrade()?;
    assert!(locks.rwlock("r").try_write()?.is_none());
    drop(reader);
    let two = locks.semaphore("s", 3).fair().acquire(2)?;
    assert!(locks.semaphore("s", 3).try_acquire(2)?.is_none());
    two.release()?;
    let both = Multi::of(locks.mutex("y")).and(locks.mutex("x")).lock()?;
    assert!(both.is_held() && locks.mutex("x").try_lock()?.is_none());
    assert_eq!(both.release()?, Released::Released);
    let election = locks.election("e");
    let mut leadership = election.campaign("one")?;
    leadership.proclaim("two")?;
    assert_eq!(election.leader()?.and_then(|leader| leader.value).as_deref(), Some("two"));
    leadership.resign()?;
    let nested = locks.once("o").run("1", |held| {
        // A call within a call: neither may swallow what wakes the other.
        locks.mutex("inside").lock()?.release()?;
        held.check()
    })?;
    assert_eq!(nested, Slot::Ran(()));
    let ticket = locks.mutex("h").lifetime(Lifetime::Lease).lock()?.hand_over()?;
    assert!(locks.adopt(&ticket)?.is_held());
    locks.shutdown(Duration::from_secs(5))?;
    Ok(())
}

/// Methods of the async API are here, too, whatever they answer.
#[test]
fn the_same_methods_as_without_blocking() -> Result<(), Failure> {
    let locks = Locks::over(Memory::new())?;
    let (owner, config) = (Owner::new(), locks.rwlock("config"));
    let all = Multi::all([config.for_reading(), locks.semaphore("workers", 3).permits(2), locks.mutex("a").into()]);
    let all = all.lock()?;
    assert_eq!(locks.list()?.len(), 3);
    assert_eq!(locks.scan()?.len(), 3);
    assert!(all.is_held());
    assert_eq!(all.with(|held| Ok::<_, Error>(held.iter().count()))?, 3);
    let each = all.release_each()?;
    assert!(each.iter().all(|(_, released)| matches!(released, Ok(Released::Released))), "{each:?}");

    let guard = locks.mutex("a").owner(&owner).lock()?;
    assert_eq!(locks.mutex("a").owner(&owner).lock().map(drop).unwrap_err().kind(), ErrorKind::SelfDeadlock);
    let mut watch = locks.watch("a")?;
    let ending = Ending::new("ops", "test");
    assert_eq!(locks.break_claim("a", guard.id(), ending.clone(), Duration::ZERO)?, Released::Released);
    assert!(watch.changed()?.is_some());
    assert_eq!(guard.asked_to_end_within(Duration::from_secs(30))?, Within::Some(ending.clone()));
    assert_eq!(guard.ended_within(Duration::from_secs(30))?, Some(Ended::Lost(LossReason::Broken(ending))));
    assert_eq!(guard.with(|_| Ok::<_, Error>(())).unwrap_err().kind(), ErrorKind::Lost);

    let ledger = locks.mutex("ledger").reentrant(&owner);
    let (outer, inner) = (ledger.lock()?, ledger.lock()?);
    assert_eq!((outer.release()?, inner.release()?), (Released::StillHeld, Released::Released));
    let once = locks.once("nightly");
    assert_eq!(once.run("7", |_| Ok::<_, Error>(1))?, Slot::Ran(1));
    assert_eq!(once.last()?.as_deref(), Some("7"));
    Ok(())
}

const SHORT: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_view_of_a_held_lock_waits_on_another_thread() -> Result<(), Failure> {
    let store = Memory::new();
    let kit = store.kit();
    let locks = Locks::over(store)?;
    let guard = locks.rwlock("a").write()?;
    assert_eq!(guard.with(|held| held.check().map(|()| held.fence()))?, guard.fence());
    let held = guard.held();
    assert_eq!(held.asked_to_end_within(SHORT)?, Within::TimedOut);
    let watcher = std::thread::spawn(move || held.asked_to_end_within(LONG));
    kit.ask_to_end("a", &Ending::new("ops", "test"), LONG)?;
    let asked = watcher.join().map_err(|_| "the watcher panicked")??;
    assert_eq!(asked, Within::Some(Ending::new("ops", "test")));
    let held = guard.held();
    guard.release()?;
    held.ends_within(Duration::ZERO)?;
    assert_eq!(held.ended_within(LONG)?, Some(Ended::Released));

    let guard = locks.mutex("b").lock()?;
    let held = guard.held();
    drop(guard);
    assert_eq!(held.asked_to_end_within(LONG)?, Within::None);
    Ok(())
}

#[test]
fn several_locks_and_entries_of_a_thread_are_waited_for_with_a_bound() -> Result<(), Failure> {
    let store = Memory::new();
    let kit = store.kit();
    let locks = Locks::over(store)?;
    let both = Multi::of(locks.rwlock("rates").for_reading()).and(locks.mutex("a")).lock()?;
    assert_eq!(both.ended_within(SHORT)?, None);
    assert!(matches!(both.asked_to_end_within(SHORT)?, Within::TimedOut));
    assert!(both.lost_within(SHORT)?.is_none());
    kit.lose("a")?;
    let lost = both.held().lost_within(LONG)?.map(|(held, reason)| (held.resource().to_string(), reason));
    assert_eq!(lost, Some(("a".to_owned(), LossReason::Gone)));

    let entry = locks.mutex("b").reentrant_by_thread().lock()?;
    assert_eq!((entry.entries(), entry.lost_within(SHORT)?), (1, None));
    kit.lose("b")?;
    assert_eq!(entry.ended_within(LONG)?, Some(Ended::Lost(LossReason::Gone)));
    Ok(())
}

#[test]
fn watches_are_waited_for_with_a_bound() -> Result<(), Failure> {
    let locks = Locks::over(Memory::new())?;
    let (election, mut watch) = (locks.election("e"), locks.watch("a")?);
    let mut leaders = election.observe();
    assert_eq!(leaders.changed_within(LONG)?, Within::None, "there is no leader");
    assert_eq!(leaders.changed_within(SHORT)?, Within::TimedOut, "nothing changed");
    let leadership = election.campaign("me")?;
    let Within::Some(leader) = leaders.changed_within(LONG)? else { return Err("the leader is not seen".into()) };
    assert_eq!(leader.fence, Some(leadership.fence()));
    assert_eq!(watch.changed_within(SHORT)?, Within::TimedOut);
    let _guard = locks.mutex("a").lock()?;
    assert!(matches!(watch.changed_within(LONG)?, Within::Some(_)));
    Ok(())
}

/// What resolves in async code blocks here: no guard lends a future, or anything of the async API.
#[test]
fn every_guard_waits_without_a_bound() -> Result<(), Failure> {
    let store = Memory::new();
    let kit = store.kit();
    let locks = Locks::over(store)?;
    let leadership = locks.election("e").campaign("me")?;
    let held: Held = leadership.held();
    assert_eq!(leadership.with(|held| Ok::<_, Error>(held.fence()))?, leadership.fence());
    let watcher = std::thread::spawn(move || held.ended());
    leadership.resign()?;
    assert_eq!(watcher.join().map_err(|_| "the watcher panicked")??, Ended::Released);

    let (guard, ending) = (locks.mutex("a").lock()?, Ending::new("ops", "test"));
    kit.ask_to_end("a", &ending, LONG)?;
    assert_eq!(guard.asked_to_end()?, Some(ending));
    kit.lose("a")?;
    let reason: LossReason = guard.lost()?;
    assert_eq!(guard.ended()?, Ended::Lost(reason));
    guard.ends_within(Duration::ZERO)?;

    let both = Multi::of(locks.mutex("x")).and(locks.mutex("y")).lock()?;
    let names: Vec<_> = both.iter().map(|held: Held| held.resource().to_string()).collect();
    assert_eq!(names, ["x", "y"]);
    assert!(both.weakest().is_some_and(|held: Held| held.is_held()) && both.loss().is_none());
    kit.lose("y")?;
    let (held, reason): (Held, LossReason) = both.lost()?;
    assert_eq!((held.resource().as_str(), reason), ("y", LossReason::Gone));
    assert!(both.asked_to_end()?.is_none());
    Ok(())
}

#[test]
fn several_locks_may_be_none() -> Result<(), Failure> {
    let locks = Locks::over(Memory::new())?;
    let none = Multi::all(Vec::<Part>::new());
    assert_eq!(none.lock().unwrap_err().kind(), ErrorKind::InvalidClaim);
    none.and(locks.mutex("a")).lock()?.release()?;
    Ok(())
}

/// The compiler warns of what is lost at once.
#[test]
fn locks_and_guards_must_be_used() -> Result<(), Failure> {
    let locks = Locks::over(Memory::new())?;
    #[expect(unused_must_use)]
    locks.mutex("a");
    #[expect(unused_must_use)]
    locks.mutex("a").lock()?;
    Ok(())
}

/// An `impl` block that begins in the first column: the type, whether `#[blocking]` is on it, and its text.
fn impl_blocks(source: &str) -> impl Iterator<Item = (&str, bool, &str)> {
    source.match_indices("\nimpl").filter_map(|(at, _)| {
        let text = source[at + 1..].split("\n}").next()?;
        let header = text.lines().next()?.trim_end_matches(['{', ' ']);
        let of = header.rsplit(' ').next()?.split('<').next()?;
        Some((of, source[..at].ends_with("#[oarlock_macros::blocking]"), text))
    })
}

/// Without the attribute, a method would have no twin. An `impl` block needs it if it has an async method, or if
/// another block of its type has it.
#[test]
fn every_public_method_is_seen_by_the_generator() -> Result<(), Failure> {
    // For drivers, and for programs that open stores themselves.
    const NOT_FOR_BLOCKING: &[&str] = &["Runtime", "Joined", "Reopened", "Store", "SessionEnd", "StopSwitch"];
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            match path.extension() {
                None if !path.ends_with("blocking") => folders.push(path),
                Some(_) if !path.ends_with("blocking.rs") => sources.push(std::fs::read_to_string(path)?),
                _ => {}
            }
        }
    }
    let blocks: Vec<_> = sources.iter().flat_map(|source| impl_blocks(source)).collect();
    let twins: Vec<_> = blocks.iter().filter(|(_, seen, _)| *seen).map(|(of, ..)| *of).collect();
    assert!(twins.contains(&"Held") && twins.contains(&"Mutex"), "{twins:?}");
    for (of, seen, text) in blocks {
        let is_async = text.contains("\n    pub async fn ") || text.contains("-> impl Future");
        let is_public = text.contains("\n    pub fn ") && twins.contains(&of);
        let exempt = seen || NOT_FOR_BLOCKING.contains(&of);
        assert!(exempt || !(is_async || is_public), "`#[oarlock_macros::blocking]` is missing:\n{text}");
    }
    Ok(())
}
