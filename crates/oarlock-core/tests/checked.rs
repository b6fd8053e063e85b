//! Locks are made without errors: what is wrong with one is said by the call that would take it, before the store is
//! asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oarlock_core::{Error, ErrorKind, Locks, Memory, Multi, Owner, Result};

fn locks() -> Result<(Locks, Arc<AtomicUsize>)> {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let observer = move |_: &oarlock_core::LockEvent| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    Ok((Locks::builder(Memory::new()).observer(observer).build()?, asked))
}

#[tokio::test]
async fn a_name_that_cannot_be_is_refused_by_every_kind() {
    let (locks, asked) = locks().unwrap();
    for name in ["", &"x".repeat(1025)] {
        let owner = Owner::new();
        let errors: Vec<Error> = vec![
            locks.mutex(name).lock().await.unwrap_err(),
            locks.mutex(name).try_lock().await.unwrap_err(),
            locks.mutex(name).reentrant(&owner).lock().await.unwrap_err(),
            locks.rwlock(name).read().await.unwrap_err(),
            locks.rwlock(name).try_write().await.unwrap_err(),
            locks.semaphore(name, 2).acquire(1).await.unwrap_err(),
            locks.election(name).campaign("me").await.unwrap_err(),
            locks.election(name).leader().await.unwrap_err(),
            locks.election(name).observe().changed().await.unwrap_err(),
            locks.once(name).run("1", |_| async { Ok::<_, Error>(()) }).await.unwrap_err(),
            locks.once(name).last().await.unwrap_err(),
            Multi::of(locks.mutex("good")).and(locks.mutex(name)).lock().await.unwrap_err(),
            locks.inspect(name).await.unwrap_err(),
            locks.watch(name).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
            let shown = error.resource().map(ToString::to_string).unwrap();
            assert!(shown.len() < 50 && name.starts_with(shown.trim_end_matches('…')), "it names the lock: {error}");
        }
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0, "the store was asked for something");
}

#[tokio::test]
async fn a_number_of_permits_that_cannot_be_is_refused() {
    let (locks, asked) = locks().unwrap();
    let errors = [
        locks.semaphore("encoders", 0).acquire(1).await.unwrap_err(),
        locks.semaphore("encoders", 3).try_acquire(0).await.unwrap_err(),
        Multi::of(locks.mutex("good")).and(locks.semaphore("encoders", 3).permits(0)).lock().await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::InvalidClaim, "{error}");
        assert!(error.to_string().starts_with("\"encoders\": "), "it names the lock: {error}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0, "the store was asked for something");
}
