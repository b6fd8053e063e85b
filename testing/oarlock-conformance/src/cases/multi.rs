//! Several locks as one: all or none, lost if any is lost.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::Released;
use oarlock_core::state::{Ending, ResourceState};
use oarlock_core::{Error, ErrorKind, Held, Locks, LossReason, Memory, Multi, ResourceName, Weight};

use super::cancel::{LONG, Sender, dropped_at};
use super::cases;
use crate::context::{Peer, TestContext, now, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("multi":
    all_are_held_and_released,
    all_or_none,
    a_try_leaves_nothing,
    the_order_of_naming_does_not_matter,
    there_is_one_deadline_for_all,
    a_name_twice_is_refused,
    kinds_can_be_mixed [Units],
    stores_can_be_mixed,
    lost_if_any_is_lost [Records],
    a_break_of_one_is_the_loss_of_all [Fences],
    one_lost_while_another_is_waited_for [Records],
    a_cut_ends_belief_in_all [Cut],
    at_every_await_of_taking_them,
    at_every_await_of_letting_them_go,
    they_end_outside_of_a_runtime,
);

/// Three fresh names, in order.
fn names(context: &TestContext) -> Outcome<[ResourceName; 3]> {
    let mut names = [context.name()?, context.name()?, context.name()?];
    names.sort();
    Ok(names)
}

fn all(client: &Locks, names: &[ResourceName; 3], ttl: Duration) -> Outcome<Multi> {
    let [a, b, c] = names;
    // Named in another order than they are taken in.
    let multi = Multi::of(client.mutex(c.as_str()).ttl(ttl)).and(client.mutex(a.as_str()).ttl(ttl));
    Ok(multi.and(client.mutex(b.as_str()).ttl(ttl)))
}

/// The locks that had ended before they were released.
fn gone(each: Vec<(ResourceName, oarlock_core::Result<Released>)>) -> Outcome<Vec<ResourceName>> {
    let mut gone = Vec::new();
    for (name, released) in each {
        if released? == Released::NotHeld {
            gone.push(name);
        }
    }
    Ok(gone)
}

async fn all_clean(context: &TestContext, rival: &Peer, names: &[ResourceName]) -> Outcome {
    for name in names {
        context.left_clean(rival, name).await?;
    }
    Ok(())
}

async fn all_are_held_and_released(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, names) = (context.peer().await?, context.peer().await?, names(&context)?);
    let multi = all(&peer, &names, context.ttl())?.lock().await?;
    let [a, b, c] = &names;
    let held: Vec<_> = multi.iter().map(|held| held.resource().clone()).collect();
    ensure_eq!(held, [c.clone(), a.clone(), b.clone()], "the order in hand is that of the naming");
    // Longer than a lease: all of them are renewed.
    tokio::time::sleep(context.ttl() * 2).await;
    ensure!(multi.is_held(), "lost: {:?}", multi.loss());
    ensure!(multi.time_left() <= context.ttl() && !multi.time_left().is_zero(), "time left: {:?}", multi.time_left());
    for name in &names {
        ensure!(rival.mutex(name.as_str()).try_lock().await?.is_none(), "{name} is free");
    }
    let done = multi.release().await;
    ensure_eq!(done?, Released::Released, "the release");
    all_clean(&context, &rival, &names).await
}

async fn all_or_none(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, names) = (context.peer().await?, context.peer().await?, names(&context)?);
    let [a, b, c] = &names;
    let theirs = rival.mutex(b.as_str()).lock().await?;
    let refused = all(&peer, &names, LONG)?.wait(Duration::from_millis(60)).lock().await;
    let Err(error) = refused else { return Err(Failure::new("a held lock was given")) };
    ensure_eq!((error.kind(), error.resource()), (ErrorKind::Busy, Some(b)), "the error");
    all_clean(&context, &rival, &[a.clone(), c.clone()]).await?;
    theirs.release().await?;
    all(&peer, &names, context.ttl())?.lock().await?.release().await?;
    all_clean(&context, &rival, &names).await
}

async fn a_try_leaves_nothing(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, names) = (context.peer().await?, context.peer().await?, names(&context)?);
    let theirs = rival.mutex(names[2].as_str()).lock().await?;
    let multi = all(&peer, &names, LONG)?;
    ensure!(context.soon("a try", multi.try_lock()).await??.is_none(), "a held lock was given");
    all_clean(&context, &rival, &names[..2]).await?;
    theirs.release().await?;
    ensure!(multi.try_lock().await?.is_some(), "all are free, and were not given");
    all_clean(&context, &rival, &names).await
}

/// With two orders of taking, two peers would soon each hold what the other waits for.
async fn the_order_of_naming_does_not_matter(context: Arc<TestContext>) -> Outcome {
    let (peers, names) = ([context.peer().await?, context.peer().await?], names(&context)?);
    let [a, b, c] = &names;
    let orders = [[a, b, c], [c, b, a], [b, a, c]];
    let mut tasks = Vec::new();
    for (number, [one, two, three]) in orders.into_iter().enumerate() {
        let client = &peers[number % 2];
        let multi = Multi::of(client.mutex(one.as_str()))
            .and(client.mutex(two.as_str()))
            .and(client.mutex(three.as_str()))
            .wait_forever();
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let guard = multi.lock().await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
                ensure!(guard.is_held(), "lost: {:?}", guard.loss());
                let done = guard.release().await;
                ensure_eq!(done?, Released::Released, "the release");
            }
            Ok(())
        }));
    }
    for task in tasks {
        within(context.pace.soon * 10, "the turn of each contender", task).await???;
    }
    all_clean(&context, &peers[0], &names).await
}

async fn there_is_one_deadline_for_all(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, names) = (context.peer().await?, context.peer().await?, names(&context)?);
    let wait = context.ttl();
    let first = rival.mutex(names[0].as_str()).lock().await?;
    let _second = rival.mutex(names[1].as_str()).lock().await?;
    let asked = now();
    let multi = all(&peer, &names, context.ttl())?.wait(wait);
    let waiting = tokio::spawn(async move { multi.lock().await });
    peer.waits(&names[0], 1).await?;
    tokio::time::sleep(wait / 2).await;
    first.release().await?;
    let refused = within(wait + context.pace.soon, "the end of the wait", waiting).await??;
    let took = now().since(asked);
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Busy), "the error");
    // Each lock with a wait of its own would have waited half as long again.
    ensure!(took >= wait && took < wait + wait / 2 + context.pace.soon / 2, "a wait of {wait:?} took {took:?}");
    Ok(())
}

async fn a_name_twice_is_refused(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let multi = Multi::of(peer.mutex(name.as_str())).and(peer.mutex(name.as_str()).fair());
    let Err(error) = context.soon("the refusal", multi.lock()).await? else {
        return Err(Failure::new("one lock was given twice"));
    };
    ensure_eq!((error.kind(), error.resource()), (ErrorKind::InvalidClaim, Some(&name)), "the error");
    context.left_clean(&peer, &name).await
}

async fn kinds_can_be_mixed(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, names) = (context.peer().await?, context.peer().await?, names(&context)?);
    let [a, b, c] = &names;
    let multi = Multi::of(peer.rwlock(a.as_str()).for_reading())
        .and(peer.semaphore(b.as_str(), 3).permits(2))
        .and(peer.rwlock(c.as_str()).for_writing());
    let guard = multi.lock().await?;
    ensure!(rival.rwlock(a.as_str()).try_read().await?.is_some(), "no reader beside a reader");
    ensure!(rival.semaphore(b.as_str(), 3).try_acquire(2).await?.is_none(), "more permits than there are");
    ensure!(rival.semaphore(b.as_str(), 3).try_acquire(1).await?.is_some(), "the third permit is not to be had");
    ensure!(rival.rwlock(c.as_str()).try_read().await?.is_none(), "a reader beside a writer");
    let weight = rival.inspect(c).await?.holders.first().map(|holder| holder.weight);
    ensure_eq!(weight, Some(Weight::All), "the writer's weight");
    drop(guard);
    all_clean(&context, &rival, &names).await
}

async fn stores_can_be_mixed(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (context.peer().await?, context.peer().await?);
    let (here, there) = (context.name()?, context.name()?);
    let memory = Memory::new();
    let elsewhere = Locks::builder(memory.connect()).ttl(context.ttl()).build()?;
    let multi = Multi::of(peer.mutex(here.as_str())).and(elsewhere.mutex(there.as_str()));
    let guard = multi.lock().await?;
    let token = guard.token();
    let other = Locks::over(memory)?;
    ensure!(other.mutex(there.as_str()).try_lock().await?.is_none(), "free on the other store");
    ensure!(rival.mutex(here.as_str()).try_lock().await?.is_none(), "free on this store");
    let fence = guard.iter().find(|held| *held.resource() == there).map(Held::fence);
    let fence = fence.ok_or_else(|| Failure::new("it is not in hand"))?;
    let ending = Ending::new("ops", "");
    other.break_hold(&there, fence, ending, Duration::ZERO).await?;
    let (held, _) = within(context.lease_ends_within(), "the loss", guard.lost()).await?;
    ensure_eq!(*held.resource(), there, "what was lost");
    context.soon("the token", token.cancelled()).await?;
    ensure_eq!(gone(guard.release_each().await)?, vec![there], "what was gone");
    context.left_clean(&rival, &here).await
}

async fn lost_if_any_is_lost(context: Arc<TestContext>) -> Outcome {
    let (peer, stranger, rival) = (context.peer().await?, context.raw().await?, context.peer().await?);
    let names = names(&context)?;
    let guard = all(&peer, &names, context.ttl())?.lock().await?;
    let token = guard.token();
    let lead = context.ttl() / 2;
    ensure!(!token.is_cancelled() && guard.loss().is_none(), "lost at first");
    let Some(victim) = guard.iter().find(|held| *held.resource() == names[1]) else {
        return Err(Failure::new("it is not in hand"));
    };
    stranger.take_away(&names[1], victim.id()).await?;
    let work = guard.with(|_| std::future::pending::<oarlock_core::Result<()>>());
    let error = within(context.lease_ends_within(), "the end of the work", work).await?.err();
    ensure_eq!(error.as_ref().map(Error::kind), Some(ErrorKind::Lost), "the error of the work");
    let (held, reason) = context.soon("the loss", guard.lost()).await?;
    ensure_eq!(*held.resource(), names[1], "what was lost");
    ensure!(matches!(reason, LossReason::Gone | LossReason::Session), "the reason is {reason:?}");
    ensure!(!guard.is_held() && guard.time_left().is_zero(), "lost, but still believed");
    context.soon("the lead", guard.ends_within(lead)).await?;
    context.soon("the token", token.cancelled()).await?;
    ensure_eq!(gone(guard.release_each().await)?, vec![names[1].clone()], "what was gone");
    all_clean(&context, &rival, &names).await
}

async fn a_break_of_one_is_the_loss_of_all(context: Arc<TestContext>) -> Outcome {
    let (peer, operator, names) = (context.peer().await?, context.peer().await?, names(&context)?);
    let guard = all(&peer, &names, context.ttl())?.lock().await?;
    let Some(fence) = guard.iter().find(|held| *held.resource() == names[0]).map(Held::fence) else {
        return Err(Failure::new("it is not in hand"));
    };
    let ending = Ending::new("ops", "maintenance");
    operator.break_hold(&names[0], fence, ending.clone(), Duration::ZERO).await?;
    let (held, reason) = within(context.lease_ends_within(), "the loss", guard.lost()).await?;
    ensure_eq!((held.resource(), reason), (&names[0], LossReason::Broken(ending)), "what was lost");
    Ok(())
}

/// A lock that was lost meanwhile is taken again: the guard never holds locks of which one is lost.
async fn one_lost_while_another_is_waited_for(context: Arc<TestContext>) -> Outcome {
    let (peer, stranger, rival) = (context.peer().await?, context.raw().await?, context.peer().await?);
    let names = names(&context)?;
    let theirs = rival.mutex(names[1].as_str()).lock().await?;
    let multi = all(&peer, &names, context.ttl())?.wait_forever();
    let waiting = tokio::spawn(async move { multi.lock().await });
    peer.waits(&names[1], 1).await?;
    let first = rival.inspect(&names[0]).await?.holders.first().map(|holder| holder.id);
    let first = first.ok_or_else(|| Failure::new("the first in order is not held while the second is waited for"))?;
    stranger.take_away(&names[0], first).await?;
    let anew = |state: &ResourceState| state.holders.first().is_some_and(|holder| holder.id != first);
    let poll = async {
        while !anew(&rival.inspect(&names[0]).await?) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Outcome::Ok(())
    };
    within(context.lease_ends_within(), "the first to be taken again", poll).await??;
    theirs.release().await?;
    let guard = context.soon("all of them", waiting).await???;
    ensure!(guard.is_held(), "handed out although lost: {:?}", guard.loss());
    drop(guard);
    all_clean(&context, &rival, &names).await
}

async fn a_cut_ends_belief_in_all(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, names) = (context.peer().await?, context.peer().await?, names(&context)?);
    let guard = all(&peer, &names, context.ttl())?.lock().await?;
    peer.connection.cut().await?;
    let lock = rival.mutex(names[0].as_str());
    let next = tokio::spawn(async move { lock.lock().await.map(|guard| (guard, now())) });
    let (held, _) = within(context.lease_ends_within(), "the loss", guard.lost()).await?;
    let ended = held.ends_at();
    let (_theirs, granted) = within(context.lease_ends_within(), "the next holder", next).await???;
    ensure!(granted > ended, "the next holder came {:?} before the end of belief", ended.since(granted));
    peer.connection.heal().await?;
    Ok(())
}

async fn at_every_await_of_taking_them(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let names = names(&context)?;
        let multi = all(&peer, &names, LONG)?;
        let (output, _) = dropped_at(multi.lock(), polls, context.pace.soon).await;
        let done = output.is_some();
        drop(output.transpose()?);
        for name in &names {
            peer.left_clean(&context, &rival, name).await?;
        }
        if done {
            ensure!(polls > 3, "three locks were had with {polls} awaits to be dropped at");
            break;
        }
    }
    Ok(())
}

async fn at_every_await_of_letting_them_go(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let names = names(&context)?;
        let guard = all(&peer, &names, LONG)?.lock().await?;
        let (output, _) = dropped_at(guard.release(), polls, context.pace.soon).await;
        for name in &names {
            peer.left_clean(&context, &rival, name).await?;
        }
        if output.is_some() {
            break;
        }
    }
    Ok(())
}

async fn they_end_outside_of_a_runtime(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, names) = (context.peer().await?, context.peer().await?, names(&context)?);
    let guard = all(&peer, &names, LONG)?.lock().await?;
    let token = guard.token();
    std::thread::spawn(move || drop(guard)).join().map_err(|_| Failure::new("a drop panicked"))?;
    all_clean(&context, &rival, &names).await?;
    context.soon("the token of what was dropped", token.cancelled()).await?;
    Ok(())
}
