//! An owner enters its own lock again; for all others it is one lock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock_core::driver::Released;
use oarlock_core::event::Step;
use oarlock_core::state::Ending;
use oarlock_core::{ErrorKind, LossReason, Owner, ResourceName};

use super::cancel::{LONG, Sender, dropped_at};
use super::cases;
use crate::context::{Peer, TestContext, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("reentrant":
    an_owner_enters_again_without_a_request,
    owners_exclude_each_other,
    tasks_of_one_owner_stand_before_the_store_as_one,
    a_waiter_behind_another_keeps_its_own_deadline,
    the_next_one_goes_when_the_first_gives_up,
    when_the_first_waiter_is_cancelled_the_next_one_is_served,
    lost_for_one_is_lost_for_all [Records],
    a_break_is_reported_to_every_entry [Fences],
    a_plain_lock_of_the_owner_is_refused,
    a_writer_can_read [Units],
    an_upgrade_is_refused [Units],
    a_reader_passes_a_waiting_writer [Units, Order],
    at_every_await_of_an_entry,
    at_every_await_of_a_last_release,
    entries_end_outside_of_a_runtime,
    owners_in_a_crowd,
);

/// How many claims of this client were ever made for `name`.
fn requests(peer: &Peer, name: &ResourceName) -> usize {
    let made = |step: &Step| matches!(step, Step::Requested);
    peer.events.read(|events| events.iter().filter(|e| e.resource == *name && made(&e.step)).count())
}

async fn an_owner_enters_again_without_a_request(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = peer.mutex(name.as_str()).reentrant(&Owner::new());
    let outer = lock.lock().await?;
    let inner = context.soon("the second entry", lock.lock()).await??;
    let third = lock.try_lock().await?.ok_or_else(|| Failure::new("the owner was refused its own lock"))?;
    ensure_eq!((inner.fence(), third.fence()), (outer.fence(), outer.fence()), "the fences");
    ensure_eq!((requests(&peer, &name), outer.entries()), (1, 3), "claims and entries");
    drop(third);
    ensure_eq!(outer.release().await?, Released::StillHeld, "a release that is not the last");
    ensure!(inner.is_held(), "lost with the outer entry");
    ensure!(rival.mutex(name.as_str()).try_lock().await?.is_none(), "released with the outer entry");
    ensure_eq!(inner.release().await?, Released::Released, "the last release");
    context.left_clean(&rival, &name).await
}

async fn owners_exclude_each_other(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let guard = peer.mutex(name.as_str()).reentrant(&Owner::new()).lock().await?;
    let lock = peer.mutex(name.as_str()).reentrant(&Owner::new());
    ensure!(lock.try_lock().await?.is_none(), "another owner was let in");
    let other = tokio::spawn(async move { lock.lock().await });
    peer.waits(&name, 1).await?;
    let fence = guard.fence();
    guard.release().await?;
    let other = context.soon("the other owner", other).await???;
    ensure!(other.fence() > fence, "the next fence is not larger");
    Ok(())
}

async fn tasks_of_one_owner_stand_before_the_store_as_one(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let theirs = rival.mutex(name.as_str()).lock().await?;
    let lock = peer.mutex(name.as_str()).reentrant(&Owner::new());
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let lock = lock.clone();
        tasks.push(tokio::spawn(async move { lock.lock().await }));
    }
    peer.waits(&name, 1).await?;
    theirs.release().await?;
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(context.soon("a task of the owner", task).await???);
    }
    ensure!(guards.iter().all(|guard| guard.fence() == guards[0].fence()), "they hold different locks");
    ensure_eq!(requests(&peer, &name), 1, "claims of one owner");
    ensure_eq!(rival.inspect(&name).await?.holders.len(), 1, "holders");
    drop(guards);
    context.left_clean(&rival, &name).await
}

async fn a_waiter_behind_another_keeps_its_own_deadline(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name, owner) = (context.peer().await?, context.peer().await?, context.name()?, Owner::new());
    let theirs = rival.mutex(name.as_str()).lock().await?;
    let patient = peer.mutex(name.as_str()).reentrant(&owner);
    let patient = tokio::spawn(async move { patient.lock().await });
    peer.waits(&name, 1).await?;
    let hasty = peer.mutex(name.as_str()).wait(Duration::from_millis(60)).reentrant(&owner);
    ensure!(hasty.try_lock().await?.is_none(), "a try waited, or got what is held");
    let refused = context.soon("the end of the short wait", hasty.lock()).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Busy), "the error");
    theirs.release().await?;
    context.soon("the patient one", patient).await???.release().await?;
    context.left_clean(&rival, &name).await
}

async fn the_next_one_goes_when_the_first_gives_up(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name, owner) = (context.peer().await?, context.peer().await?, context.name()?, Owner::new());
    let theirs = rival.mutex(name.as_str()).lock().await?;
    let hasty = peer.mutex(name.as_str()).wait(context.ttl() / 2).reentrant(&owner);
    let hasty = tokio::spawn(async move { hasty.lock().await });
    peer.waits(&name, 1).await?;
    let patient = peer.mutex(name.as_str()).reentrant(&owner);
    let patient = tokio::spawn(async move { patient.lock().await });
    let refused = within(context.lease_ends_within(), "the end of the short wait", hasty).await??;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Busy), "the error");
    peer.waits(&name, 2).await?;
    theirs.release().await?;
    context.soon("the patient one", patient).await???.release().await?;
    context.left_clean(&rival, &name).await
}

async fn when_the_first_waiter_is_cancelled_the_next_one_is_served(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let theirs = rival.mutex(name.as_str()).lock().await?;
    let lock = peer.mutex(name.as_str()).reentrant(&Owner::new());
    let (first, second) = (lock.clone(), lock);
    let first = tokio::spawn(async move { first.lock().await });
    peer.waits(&name, 1).await?;
    let second = tokio::spawn(async move { second.lock().await });
    first.abort();
    let _ = first.await;
    peer.waits(&name, 2).await?;
    theirs.release().await?;
    context.soon("the one that stayed", second).await???.release().await?;
    context.left_clean(&rival, &name).await
}

async fn lost_for_one_is_lost_for_all(context: Arc<TestContext>) -> Outcome {
    let (peer, stranger, rival) = (context.peer().await?, context.raw().await?, context.peer().await?);
    let name = context.name()?;
    let lock = peer.mutex(name.as_str()).reentrant(&Owner::new());
    let (one, two) = (lock.lock().await?, lock.lock().await?);
    stranger.take_away(&name, one.id()).await?;
    for guard in [&one, &two] {
        let reason = within(context.lease_ends_within(), "the loss", guard.lost()).await?;
        ensure!(matches!(reason, LossReason::Gone | LossReason::Session), "the reason is {reason:?}");
        ensure!(!guard.is_held() && guard.token().is_cancelled(), "lost, but still believed");
    }
    let fresh = context.soon("a new acquisition beside lost entries", lock.lock()).await??;
    ensure!(fresh.fence() > one.fence(), "the fence after a loss is not larger");
    ensure_eq!((fresh.entries(), two.entries()), (1, 2), "entries of the new hold and of the lost one");
    ensure_eq!(one.release().await?, Released::StillHeld, "the release of a lost entry");
    ensure_eq!(two.release().await?, Released::NotHeld, "the last release of a lost hold");
    ensure!(fresh.is_held(), "lost entries took the new hold with them: {:?}", fresh.loss());
    ensure!(rival.mutex(name.as_str()).try_lock().await?.is_none(), "the new hold was released");
    let again = lock.lock().await?;
    ensure_eq!(again.fence(), fresh.fence(), "the fence of the new hold");
    drop((fresh, again));
    context.left_clean(&rival, &name).await
}

async fn a_break_is_reported_to_every_entry(context: Arc<TestContext>) -> Outcome {
    let (peer, operator, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = peer.mutex(name.as_str()).reentrant(&Owner::new());
    let (one, two) = (lock.lock().await?, lock.lock().await?);
    let ending = Ending::new("ops", "maintenance");
    operator.break_hold(&name, one.fence(), ending.clone(), Duration::ZERO).await?;
    for guard in [&one, &two] {
        let reason = within(context.lease_ends_within(), "the loss", guard.lost()).await?;
        ensure_eq!(reason, LossReason::Broken(ending.clone()), "the reason");
    }
    Ok(())
}

async fn a_plain_lock_of_the_owner_is_refused(context: Arc<TestContext>) -> Outcome {
    let (peer, name, owner) = (context.peer().await?, context.name()?, Owner::new());
    let plain = peer.mutex(name.as_str()).owner(&owner);
    let lock = plain.clone().reentrant(&owner);
    let entry = lock.lock().await?;
    let refused = context.soon("the refusal", plain.lock()).await?;
    ensure_eq!(
        refused.err().map(|error| error.kind()),
        Some(ErrorKind::SelfDeadlock),
        "a plain lock inside a re-entrant one"
    );
    entry.release().await?;
    let _guard = plain.lock().await?;
    let refused = context.soon("the refusal", lock.lock()).await?;
    ensure_eq!(
        refused.err().map(|error| error.kind()),
        Some(ErrorKind::SelfDeadlock),
        "a re-entrant lock inside a plain one"
    );
    Ok(())
}

async fn a_writer_can_read(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = peer.rwlock(name.as_str()).reentrant(&Owner::new());
    let writer = lock.write().await?;
    let reader = context.soon("a read entry of the writer", lock.read()).await??;
    let again = context.soon("a write entry of the writer", lock.write()).await??;
    drop((writer, again));
    ensure!(rival.rwlock(name.as_str()).try_read().await?.is_none(), "it is held for writing to its last entry");
    reader.release().await?;
    context.left_clean(&rival, &name).await
}

async fn an_upgrade_is_refused(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = peer.rwlock(name.as_str()).reentrant(&Owner::new());
    let reader = lock.read().await?;
    let refused = context.soon("the refusal", lock.write()).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::SelfDeadlock), "an upgrade");
    let refused = context.soon("the refusal of a try", lock.try_write()).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::SelfDeadlock), "a tried upgrade");
    ensure!(reader.is_held(), "the refusal cost the reader its lock");
    reader.release().await?;
    lock.write().await?.release().await?;
    context.left_clean(&rival, &name).await
}

/// Without sharing, the second entry would queue behind a writer that waits for the first.
async fn a_reader_passes_a_waiting_writer(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = peer.rwlock(name.as_str()).reentrant(&Owner::new());
    let first = lock.read().await?;
    let writer = rival.rwlock(name.as_str());
    let writer = tokio::spawn(async move { writer.write().await });
    rival.waits(&name, 1).await?;
    let second = context.soon("the second read entry", lock.read()).await??;
    drop((first, second));
    context.soon("the writer", writer).await???.release().await?;
    Ok(())
}

async fn at_every_await_of_an_entry(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let name = context.name()?;
        let lock = peer.mutex(name.as_str()).ttl(LONG).reentrant(&Owner::new());
        let (output, _) = dropped_at(lock.lock(), polls, context.pace.soon).await;
        let done = output.is_some();
        // A cancelled entry does not block the owner's next one.
        let next = within(context.pace.soon, "the owner's next", lock.lock()).await??;
        drop((output.transpose()?, next));
        peer.left_clean(&context, &rival, &name).await?;
        if done {
            ensure!(polls > 1, "the lock was had without a single await to be dropped at");
            break;
        }
    }
    Ok(())
}

async fn at_every_await_of_a_last_release(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let name = context.name()?;
        let lock = peer.mutex(name.as_str()).ttl(LONG).reentrant(&Owner::new());
        let (outer, inner) = (lock.lock().await?, lock.lock().await?);
        drop(outer);
        let (output, _) = dropped_at(inner.release(), polls, context.pace.soon).await;
        let done = output.is_some();
        output.transpose()?;
        peer.left_clean(&context, &rival, &name).await?;
        if done {
            break;
        }
    }
    Ok(())
}

async fn entries_end_outside_of_a_runtime(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = peer.mutex(name.as_str()).ttl(LONG).reentrant(&Owner::new());
    let guards = (lock.lock().await?, lock.lock().await?);
    std::thread::spawn(move || drop(guards)).join().map_err(|_| Failure::new("a drop panicked"))?;
    context.left_clean(&rival, &name).await
}

/// Tasks of several owners come and go; at no time are two owners inside.
async fn owners_in_a_crowd(context: Arc<TestContext>) -> Outcome {
    let (peers, name) = ([context.peer().await?, context.peer().await?], context.name()?);
    let inside: Arc<Mutex<Vec<usize>>> = Arc::default();
    let mut workers = Vec::new();
    for number in 0..4 {
        let owner = Owner::new();
        for _ in 0..3 {
            let lock = peers[number % 2].mutex(name.as_str()).wait_forever().reentrant(&owner);
            let inside = inside.clone();
            workers.push(tokio::spawn(async move {
                for _ in 0..8 {
                    let (outer, inner) = (lock.lock().await?, lock.lock().await?);
                    check_inside(&inside, number, true)?;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    check_inside(&inside, number, false)?;
                    drop(outer);
                    inner.release().await?;
                }
                Outcome::Ok(())
            }));
        }
    }
    for worker in workers {
        within(context.pace.soon * 20, "a worker", worker).await???;
    }
    context.left_clean(&peers[0], &name).await
}

/// Enters or leaves, and checks which owners are inside.
fn check_inside(inside: &Mutex<Vec<usize>>, number: usize, coming: bool) -> Outcome {
    let mut room = inside.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(room.iter().all(|other| *other == number), "owners {room:?} inside together with {number}");
    if coming {
        room.push(number);
    } else {
        room.pop();
    }
    Ok(())
}
