//! Never more than one holder.

use std::sync::Arc;
use std::time::Duration;

use super::cases;
use crate::contention::{Contention, Lock};
use crate::context::{TestContext, now};
use crate::failure::{Outcome, ensure};
use crate::history::Rules;

cases!("exclusion":
    one_at_a_time,
    a_crowd_never_overlaps,
    a_spinning_crowd_never_overlaps,
    a_mutex_excludes_readers_and_writers [Units, OneRule],
    released_is_released,
);

async fn one_at_a_time(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = two.mutex(name.as_str());
    let guard = one.mutex(name.as_str()).lock().await?;
    ensure!(lock.try_lock().await?.is_none(), "a second holder was let in");
    ensure!(guard.is_held(), "the first holder lost it to a refused one");
    guard.release().await?;
    let guard = lock.try_lock().await?;
    ensure!(guard.is_some(), "a released lock was refused");
    Ok(())
}

async fn a_crowd_never_overlaps(context: Arc<TestContext>) -> Outcome {
    let contention = Contention { peers: 3, tasks: 3, rounds: 6, lock: Lock::Mutex, stay: Duration::from_millis(2) };
    contention.run(&context, &Rules::new().least_holds(54)).await
}

async fn a_spinning_crowd_never_overlaps(context: Arc<TestContext>) -> Outcome {
    let contention = Contention { peers: 3, tasks: 1, rounds: 5, lock: Lock::Spin, stay: Duration::from_millis(2) };
    contention.run(&context, &Rules::new().least_holds(15)).await
}

async fn a_mutex_excludes_readers_and_writers(context: Arc<TestContext>) -> Outcome {
    let (one, two, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let (mutex, shared) = (one.mutex(name.as_str()), two.rwlock(name.as_str()));
    let guard = mutex.lock().await?;
    ensure!(shared.try_read().await?.is_none(), "a reader came in beside a mutex");
    ensure!(shared.try_write().await?.is_none(), "a writer came in beside a mutex");
    guard.release().await?;
    let reader = shared.read().await?;
    ensure!(mutex.try_lock().await?.is_none(), "a mutex was granted beside a reader");
    reader.release().await?;
    let writer = shared.write().await?;
    ensure!(mutex.try_lock().await?.is_none(), "a mutex was granted beside a writer");
    writer.release().await?;
    Ok(())
}

/// A clone of the hold's state ends with the hold: it must not go on believing.
async fn released_is_released(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = peer.mutex(name.as_str()).ttl(Duration::from_secs(20));
    let guard = lock.lock().await?;
    let held = guard.held();
    let before = now();
    guard.release().await?;
    ensure!(!held.is_held(), "still believed after its release");
    ensure!(held.time_left().is_zero(), "has time left after its release");
    let guard = lock.lock().await?;
    let held = guard.held();
    drop(guard);
    ensure!(!held.is_held(), "still believed after its guard was dropped");
    rival.mutex(name.as_str()).lock().await?.release().await?;
    ensure!(now().since(before) < Duration::from_secs(10), "a release took as long as a lease");
    Ok(())
}
