//! Nothing of the caller's runs after the loss.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oarlock_core::clock::TokioClock;
use oarlock_core::{Error, ErrorKind, Held, Locks, Memory, Multi};
use tokio::sync::oneshot;

use crate::spy::SECOND;

/// A suspended machine: the clock that counts suspend has jumped, and tokio's timers have not. Another event wakes the
/// work.
async fn suspend_while<T>(work: impl FnOnce(Locks, oneshot::Receiver<()>, Arc<Mutex<Vec<bool>>>) -> T) -> Vec<bool>
where
    T: Future<Output = ErrorKind>,
{
    let store = Memory::on(Arc::new(TokioClock::new()));
    let kit = store.kit();
    let client = || Locks::builder(store.connect()).clock(kit.clock()).build().unwrap();
    let (ours, rival) = (client(), client());
    let (wake, woken) = oneshot::channel();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let suspend = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        kit.step_clock(SECOND * 3600);
        let theirs = rival.mutex("a").try_lock().await.unwrap();
        assert!(theirs.is_some(), "the lease is over");
        wake.send(()).unwrap();
        theirs
    };
    let (kind, _theirs) = tokio::join!(work(ours, woken, ran.clone()), suspend);
    assert_eq!(kind, ErrorKind::Lost);
    ran.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn work_of_a_guard_is_not_polled_after_a_suspend() {
    let ran = suspend_while(async |client, woken, ran| {
        let guard = client.mutex("a").lock().await.unwrap();
        let work = guard.with(|held| async move {
            woken.await.unwrap();
            ran.lock().unwrap().push(held.is_held());
            Ok::<_, Error>(())
        });
        work.await.unwrap_err().kind()
    });
    assert_eq!(ran.await, [], "the work went on after the loss");
}

#[tokio::test(start_paused = true)]
async fn work_of_several_guards_is_not_polled_after_a_suspend() {
    let ran = suspend_while(async |client, woken, ran| {
        let both = Multi::of(client.mutex("a")).and(client.mutex("b")).lock().await.unwrap();
        let work = both.with(|held| async move {
            woken.await.unwrap();
            ran.lock().unwrap().extend(held.iter().map(Held::is_held));
            Ok::<_, Error>(())
        });
        work.await.unwrap_err().kind()
    });
    assert_eq!(ran.await, [], "the work went on after the loss");
}

#[tokio::test(start_paused = true)]
async fn work_of_a_slot_is_not_polled_after_a_suspend() {
    let ran = suspend_while(async |client, woken, ran| {
        let once = client.once("a");
        let work = once.run("1", |held| async move {
            woken.await.unwrap();
            ran.lock().unwrap().push(held.is_held());
            Ok::<_, Error>(())
        });
        let error: oarlock_core::Error = work.await.unwrap_err();
        error.kind()
    });
    assert_eq!(ran.await, [], "the work went on after the loss");
}

#[tokio::test(start_paused = true)]
async fn work_does_not_begin_after_the_loss() {
    let store = Memory::on(Arc::new(TokioClock::new()));
    let kit = store.kit();
    let client = Locks::builder(store.connect()).clock(kit.clock()).build().unwrap();
    let guard = client.mutex("a").lock().await.unwrap();
    kit.step_clock(SECOND * 3600);
    let mut begun = false;
    let work = guard.with(|_| {
        begun = true;
        std::future::ready(Ok::<_, Error>(()))
    });
    let done = work.await;
    assert_eq!((done.unwrap_err().kind(), begun), (ErrorKind::Lost, false));
}
