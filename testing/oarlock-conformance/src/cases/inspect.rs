//! What the store shows is what there is.

use std::sync::Arc;

use oarlock_core::driver::End;
use oarlock_core::state::Waiters;
use oarlock_core::{Kind, Label, ResourceName, Weight};

use super::cases;
use crate::context::TestContext;
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("inspect":
    a_free_name_is_free,
    holders_are_shown [Records],
    sharers_are_shown [Units],
    waiters_are_shown_in_order [Order, Waiters],
    waiters_are_counted,
    names_in_use_are_listed [Listing],
);

async fn a_free_name_is_free(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let state = peer.inspect(&name).await?;
    ensure!(state.is_free() && state.name == name, "an unused name is {state:?}");
    Ok(())
}

async fn holders_are_shown(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let label = Label::of_this_process().reason("release \"2.3\"").tag("job", "7");
    let guard = peer.mutex(name.as_str()).label(label.clone()).lock().await?;
    let state = other.inspect(&name).await?;
    let [holder] = &state.holders[..] else { return Err(Failure::new(format!("holders: {:?}", state.holders))) };
    ensure_eq!(*holder.label, label, "the label");
    ensure_eq!((holder.id, holder.kind, holder.weight), (guard.id(), Kind::Mutex, Weight::All), "the holder");
    ensure!(holder.lease_left <= context.ttl() && !holder.lease_left.is_zero(), "lease left: {:?}", holder.lease_left);
    ensure!(holder.held_for <= context.pace.soon, "held for {:?}", holder.held_for);
    guard.release().await?;
    context.until(&other, &name, "it to be free", oarlock_core::state::ResourceState::is_free).await?;
    Ok(())
}

async fn sharers_are_shown(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let lock = peer.semaphore(name.as_str(), 5);
    let (two, one) = (lock.acquire(2).await?, lock.acquire(1).await?);
    let state = other.inspect(&name).await?;
    let mut shown: Vec<_> = state.holders.iter().map(|holder| (holder.id, holder.weight)).collect();
    let units = |n| std::num::NonZeroU32::new(n).map_or(Weight::All, Weight::Units);
    let mut expected = vec![(two.id(), units(2)), (one.id(), units(1))];
    shown.sort_by_key(|(id, _)| *id);
    expected.sort_by_key(|(id, _)| *id);
    ensure_eq!(shown, expected, "holders and their weights");
    let capacity = std::num::NonZeroU32::new(5).map(oarlock_core::Limit::Units);
    ensure_eq!(state.capacity, capacity, "the capacity");
    Ok(())
}

async fn waiters_are_shown_in_order(context: Arc<TestContext>) -> Outcome {
    let (holder, name) = (context.peer().await?, context.name()?);
    let guard = holder.mutex(name.as_str()).lock().await?;
    let mut waiting = Vec::new();
    for number in 0..4 {
        let peer = context.peer().await?;
        let lock = peer.mutex(name.as_str()).reason(format!("number {number}"));
        let task = tokio::spawn(async move { lock.lock().await.map(drop) });
        peer.waits(&name, 1).await?;
        waiting.push((peer, task));
    }
    let state = holder.inspect(&name).await?;
    let Waiters::Listed(waiters) = &state.waiters else { return Err(Failure::new("waiters are not listed")) };
    let reasons: Vec<_> = waiters.iter().map(|waiter| waiter.label.reason.clone().unwrap_or_default()).collect();
    ensure_eq!(reasons, ["number 0", "number 1", "number 2", "number 3"], "waiters in order");
    for (_, task) in &waiting {
        task.abort();
    }
    let gone = |state: &oarlock_core::state::ResourceState| state.waiters.count() == Some(0);
    context.until(&holder, &name, "those who left to be gone", gone).await?;
    guard.release().await?;
    Ok(())
}

async fn waiters_are_counted(context: Arc<TestContext>) -> Outcome {
    let (holder, waiter, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let guard = holder.mutex(name.as_str()).lock().await?;
    let lock = waiter.mutex(name.as_str());
    let task = tokio::spawn(async move { lock.lock().await });
    waiter.waits(&name, 1).await?;
    let count = holder.inspect(&name).await?.waiters.count();
    ensure!(count.is_none_or(|count| count == 1), "{count:?} waiters instead of one, or unknown");
    let release = holder.connection.driver().release(name.clone(), guard.id(), End::Done { memo: None }).await?;
    ensure!(release.others_waiting != Some(false), "a release does not report the waiter");
    context.soon("the waiter", task).await???.release().await?;
    Ok(())
}

async fn names_in_use_are_listed(context: Arc<TestContext>) -> Outcome {
    let (peer, other) = (context.peer().await?, context.peer().await?);
    let salt = context.name()?;
    let mut guards = Vec::new();
    for number in 0..12 {
        guards.push(peer.mutex(format!("{salt}/{number:02}")).lock().await?);
    }
    let ours = |state: &&oarlock_core::state::ResourceState| state.name.as_str().starts_with(salt.as_str());
    let listed = other.list().await?;
    ensure_eq!(listed.iter().filter(ours).count(), 12, "names in use");
    let mut query = oarlock_core::state::Query::live();
    query.after = Some(ResourceName::new(format!("{salt}/03"))?);
    query.limit = 5;
    let page = other.connection.driver().inspect(query).await?;
    let names: Vec<_> = page.resources.iter().filter(ours).map(|state| state.name.to_string()).collect();
    let expected: Vec<_> = (4..9).map(|number| format!("{salt}/{number:02}")).collect();
    ensure_eq!(names, expected, "a page of names");
    ensure!(page.more, "a page that ends early says that nothing follows");
    for guard in guards {
        guard.release().await?;
    }
    let listed = other.list().await?;
    ensure_eq!(listed.iter().filter(ours).count(), 0, "names in use after release");
    Ok(())
}
