//! Work runs once per slot, for all clients, also if a client dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oarlock_core::memory::Verb;
use oarlock_core::state::Ending;
use oarlock_core::{Error, ErrorKind, Result, Slot};
use tokio::sync::Notify;

use super::cancel::{Sender, dropped_at};
use super::cases;
use crate::context::{TestContext, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("once":
    a_slot_is_done_once [Memo],
    a_clock_that_is_behind_does_no_harm [Memo],
    of_many_at_once_one_does_it [Memo],
    the_slot_is_written_before_the_work [Memo],
    a_client_that_finds_it_running_returns_at_once [Memo],
    failed_work_is_not_repeated [Memo],
    failed_work_is_repeated_if_asked_for [Memo],
    the_others_wait_for_success_if_asked_for [Memo],
    a_killed_runner_has_had_its_chance [Memo, Kill],
    a_killed_runner_is_replaced_if_asked_for [Memo, Kill],
    a_lost_lock_ends_the_work [Memo],
    a_broken_runner_writes_nothing_more [Memo, Fences],
    a_lost_reply_costs_nothing [Memo, DropReply],
    an_earlier_slot_is_waited_for_and_no_longer [Memo],
    memos_of_others_are_refused [Memo],
    at_every_await [Memo],
    at_every_await_if_repeated [Memo],
);

fn done(slot: &str) -> Slot<()> {
    Slot::AlreadyDone { slot: slot.into() }
}

/// Counts how often work was started.
#[derive(Clone, Default)]
struct Starts(Arc<AtomicUsize>);

impl Starts {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    async fn work(self) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

async fn a_slot_is_done_once(context: Arc<TestContext>) -> Outcome {
    let (one, two, name, starts) = (context.peer().await?, context.peer().await?, context.name()?, Starts::default());
    let (ours, theirs) = (one.once(name.as_str()), two.once(name.as_str()));
    ensure_eq!(ours.last().await?, None, "the last slot of a fresh name");
    for slot in ["9", "10", "2026-11-15", "2026-11-16"] {
        let before = starts.count();
        ensure_eq!(ours.run(slot, |_| starts.clone().work()).await?, Slot::Ran(()), "{slot} the first time");
        ensure_eq!(ours.run(slot, |_| starts.clone().work()).await?, done(slot), "{slot} again");
        ensure_eq!(theirs.run(slot, |_| starts.clone().work()).await?, done(slot), "{slot} elsewhere");
        ensure_eq!(starts.count(), before + 1, "runs of {slot}");
        ensure_eq!(theirs.last().await?.as_deref(), Some(slot), "the last slot");
    }
    let refused = ours.run("", |_| starts.clone().work()).await;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::InvalidClaim), "an empty slot");
    context.left_clean(&two, &name).await
}

async fn a_clock_that_is_behind_does_no_harm(context: Arc<TestContext>) -> Outcome {
    let (ahead, behind, name, starts) =
        (context.peer().await?, context.peer().await?, context.name()?, Starts::default());
    let _ = ahead.once(name.as_str()).run("2026-11-15", |_| starts.clone().work()).await?;
    let late = behind.once(name.as_str()).at_least_once().run("2026-11-14", |_| starts.clone().work()).await?;
    ensure_eq!((late, starts.count()), (done("2026-11-15"), 1), "yesterday's slot");
    Ok(())
}

async fn of_many_at_once_one_does_it(context: Arc<TestContext>) -> Outcome {
    let (name, starts) = (context.name()?, Starts::default());
    let mut tasks = Vec::new();
    let mut peers = Vec::new();
    for _ in 0..3 {
        let peer = context.peer().await?;
        for at_least_once in [false, false, true] {
            let (mut once, starts) = (peer.once(name.as_str()), starts.clone());
            if at_least_once {
                once = once.at_least_once();
            }
            tasks.push(tokio::spawn(async move { once.run("7", |_| starts.work()).await }));
        }
        peers.push(peer);
    }
    let mut ran = 0;
    for task in tasks {
        match within(context.pace.soon * 5, "the answer of every client", task).await??? {
            Slot::Ran(()) => ran += 1,
            Slot::AlreadyDone { slot } => ensure_eq!(&*slot, "7", "the slot"),
            other => return Err(Failure::new(format!("an unknown answer: {other:?}"))),
        }
    }
    ensure_eq!((ran, starts.count()), (1, 1), "runs");
    context.left_clean(&peers[0], &name).await
}

async fn the_slot_is_written_before_the_work(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let seen = peer.once(name.as_str()).run("7", |_| async { other.once(name.as_str()).last().await }).await?;
    ensure_eq!(seen, Slot::Ran(Some("7".into())), "the last slot while the work runs");
    let later = peer.once(name.as_str()).at_least_once();
    let seen = later.run("8", |_| async { other.once(name.as_str()).last().await }).await?;
    ensure_eq!(seen, Slot::Ran(Some("7".into())), "the last slot while repeatable work runs");
    ensure_eq!(other.once(name.as_str()).last().await?.as_deref(), Some("8"), "the last slot after it");
    Ok(())
}

async fn a_client_that_finds_it_running_returns_at_once(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let (started, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let once = peer.once(name.as_str());
    let (told, end) = (started.clone(), finish.clone());
    let running = tokio::spawn(async move {
        let work = |_| async move {
            told.notify_one();
            end.notified().await;
            Ok::<_, Error>(())
        };
        once.run("7", work).await
    });
    context.soon("the start of the work", started.notified()).await?;
    let starts = Starts::default();
    let answer = context.soon("the answer", other.once(name.as_str()).run("7", |_| starts.clone().work())).await??;
    ensure_eq!((answer, starts.count()), (done("7"), 0), "a slot under way");
    ensure!(!running.is_finished(), "the first run is over");
    finish.notify_one();
    ensure_eq!(context.soon("the first run", running).await???, Slot::Ran(()), "the first run");
    Ok(())
}

async fn fail() -> Result<()> {
    Err(Error::new(ErrorKind::Os, "it failed"))
}

async fn failed_work_is_not_repeated(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name, starts) =
        (context.peer().await?, context.peer().await?, context.name()?, Starts::default());
    let failed = peer.once(name.as_str()).run("7", |_| fail()).await;
    ensure_eq!(failed.err().map(|error| error.kind()), Some(ErrorKind::Os), "the error of the work");
    let again = context.soon("the answer", other.once(name.as_str()).run("7", |_| starts.clone().work())).await??;
    ensure_eq!((again, starts.count()), (done("7"), 0), "failed work");
    context.left_clean(&other, &name).await
}

async fn failed_work_is_repeated_if_asked_for(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name, starts) =
        (context.peer().await?, context.peer().await?, context.name()?, Starts::default());
    let failed = peer.once(name.as_str()).at_least_once().run("7", |_| fail()).await;
    ensure_eq!(failed.err().map(|error| error.kind()), Some(ErrorKind::Os), "the error of the work");
    let once = other.once(name.as_str()).at_least_once();
    let again = context.soon("the answer", once.run("7", |_| starts.clone().work())).await??;
    ensure_eq!((again, starts.count()), (Slot::Ran(()), 1), "failed work");
    context.left_clean(&other, &name).await
}

async fn the_others_wait_for_success_if_asked_for(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let (started, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let once = peer.once(name.as_str()).at_least_once();
    let (told, end) = (started.clone(), finish.clone());
    let running = tokio::spawn(async move {
        let work = |_| async move {
            told.notify_one();
            end.notified().await;
            Ok::<_, Error>(())
        };
        once.run("7", work).await
    });
    context.soon("the start of the work", started.notified()).await?;
    let (second, starts) = (other.once(name.as_str()).at_least_once(), Starts::default());
    let work = starts.clone();
    let waiting = tokio::spawn(async move { second.run("7", |_| work.work()).await });
    other.waits(&name, 1).await?;
    finish.notify_one();
    ensure_eq!(context.soon("the first run", running).await???, Slot::Ran(()), "the first run");
    let answer = context.soon("the second answer", waiting).await???;
    ensure_eq!((answer, starts.count()), (done("7"), 0), "who waited for success");
    context.left_clean(&other, &name).await
}

/// Starts work on `peer` that does not end by itself, and waits until it runs.
macro_rules! running_for_ever {
    ($context:expr, $once:expr, $slot:expr) => {{
        let (once, started) = ($once, Arc::new(Notify::new()));
        let told = started.clone();
        let running = tokio::spawn(async move {
            let work = |_| async move {
                told.notify_one();
                std::future::pending::<Result<()>>().await
            };
            once.run($slot, work).await
        });
        $context.soon("the start of the work", started.notified()).await?;
        running
    }};
}

async fn a_killed_runner_has_had_its_chance(context: Arc<TestContext>) -> Outcome {
    let (dead, other, name, starts) =
        (context.peer().await?, context.peer().await?, context.name()?, Starts::default());
    let running = running_for_ever!(context, dead.once(name.as_str()), "7");
    dead.connection.kill().await?;
    let once = other.once(name.as_str());
    let answer = context.soon("the answer", once.run("7", |_| starts.clone().work())).await??;
    ensure_eq!((answer, starts.count()), (done("7"), 0), "the slot of the dead");
    let next =
        within(context.death_noticed_within(), "the next slot", once.run("8", |_| starts.clone().work())).await??;
    ensure_eq!(next, Slot::Ran(()), "the next slot");
    running.abort();
    Ok(())
}

async fn a_killed_runner_is_replaced_if_asked_for(context: Arc<TestContext>) -> Outcome {
    let (dead, other, name, starts) =
        (context.peer().await?, context.peer().await?, context.name()?, Starts::default());
    let running = running_for_ever!(context, dead.once(name.as_str()).at_least_once(), "7");
    dead.connection.kill().await?;
    let once = other.once(name.as_str()).at_least_once();
    let again = once.run("7", |_| starts.clone().work());
    let again = within(context.death_noticed_within(), "the slot of the dead", again).await??;
    ensure_eq!((again, starts.count()), (Slot::Ran(()), 1), "the slot of the dead");
    running.abort();
    Ok(())
}

async fn a_lost_lock_ends_the_work(context: Arc<TestContext>) -> Outcome {
    let (peer, stranger, other) = (context.peer().await?, context.raw().await?, context.peer().await?);
    for at_least_once in [false, true] {
        let (name, starts) = (context.name()?, Starts::default());
        let kind = |once: oarlock_core::Once| if at_least_once { once.at_least_once() } else { once };
        let running = running_for_ever!(context, kind(peer.once(name.as_str())), "7");
        let holder = other.inspect(&name).await?.holders.first().map(|holder| holder.id);
        let holder = holder.ok_or_else(|| Failure::new("work runs, but the lock has no holder"))?;
        stranger.take_away(&name, holder).await?;
        let ended = within(context.lease_ends_within(), "the end of the work", running).await??;
        ensure_eq!(ended.err().map(|error| error.kind()), Some(ErrorKind::Lost), "the error");
        let again = kind(other.once(name.as_str())).run("7", |_| starts.clone().work()).await?;
        let expected = if at_least_once { Slot::Ran(()) } else { done("7") };
        ensure_eq!(again, expected, "the slot afterwards (at least once: {at_least_once})");
    }
    Ok(())
}

/// The next holder has written a later slot. The holder that was broken must not overwrite it.
async fn a_broken_runner_writes_nothing_more(context: Arc<TestContext>) -> Outcome {
    let (peer, operator, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let (started, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let once = peer.once(name.as_str()).at_least_once();
    let (told, end) = (started.clone(), finish.clone());
    let running = tokio::spawn(async move {
        let work = |_| async move {
            told.notify_one();
            end.notified().await;
            Ok::<_, Error>(())
        };
        once.run("7", work).await
    });
    context.soon("the start of the work", started.notified()).await?;
    let fence = operator.inspect(&name).await?.holders.first().and_then(|holder| holder.fence);
    let fence = fence.ok_or_else(|| Failure::new("work runs, but the lock has no holder"))?;
    let ending = Ending::new("ops", "");
    operator.break_hold(&name, fence, ending, Duration::ZERO).await?;
    ensure_eq!(operator.once(name.as_str()).run("8", |_| async { Ok::<_, Error>(()) }).await?, Slot::Ran(()), "slot 8");
    finish.notify_one();
    let ended = within(context.lease_ends_within(), "the end of the broken run", running).await??;
    ensure_eq!(ended.err().map(|error| error.kind()), Some(ErrorKind::Lost), "the error of the broken run");
    ensure_eq!(operator.once(name.as_str()).last().await?.as_deref(), Some("8"), "the last slot");
    Ok(())
}

async fn a_lost_reply_costs_nothing(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name, starts) =
        (context.peer().await?, context.peer().await?, context.name()?, Starts::default());
    for (slot, at_least_once) in [("1", false), ("2", true)] {
        let mut once = peer.once(name.as_str());
        if at_least_once {
            once = once.at_least_once();
        }
        peer.connection.drop_reply(Verb::Renew).await?;
        let ran = within(context.lease_ends_within(), "the run", once.run(slot, |_| starts.clone().work())).await??;
        ensure_eq!(ran, Slot::Ran(()), "the run of slot {slot}");
        ensure_eq!(other.once(name.as_str()).last().await?.as_deref(), Some(slot), "the last slot");
    }
    ensure_eq!(starts.count(), 2, "runs");
    context.left_clean(&other, &name).await
}

async fn an_earlier_slot_is_waited_for_and_no_longer(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name, starts) =
        (context.peer().await?, context.peer().await?, context.name()?, Starts::default());
    let running = running_for_ever!(context, peer.once(name.as_str()), "7");
    let once = other.once(name.as_str()).wait(Duration::from_millis(60));
    let refused = context.soon("the end of the wait", once.run("8", |_| starts.clone().work())).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Busy), "the error");
    running.abort();
    let _ = running.await;
    let once = other.once(name.as_str());
    ensure_eq!(once.run("8", |_| starts.clone().work()).await?, Slot::Ran(()), "slot 8 when its turn has come");
    context.left_clean(&other, &name).await
}

async fn memos_of_others_are_refused(context: Arc<TestContext>) -> Outcome {
    let (peer, name, starts) = (context.peer().await?, context.name()?, Starts::default());
    peer.mutex(name.as_str()).lock().await?.release_leaving(&b"something else"[..]).await?;
    let refused = peer.once(name.as_str()).run("7", |_| starts.clone().work()).await;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Foreign), "the error");
    ensure_eq!(starts.count(), 0, "runs");
    context.left_clean(&peer, &name).await
}

async fn at_every_await(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let (name, starts) = (context.name()?, Starts::default());
        let once = peer.once(name.as_str());
        let work = |_| async {
            starts.clone().work().await?;
            tokio::task::yield_now().await;
            Ok::<_, Error>(())
        };
        let (output, _) = dropped_at(once.run("7", work), polls, context.pace.soon).await;
        let finished = output.transpose()?.is_some();
        peer.left_clean(&context, &rival, &name).await?;
        let _ = rival.once(name.as_str()).run("7", |_| starts.clone().work()).await?;
        ensure!(starts.count() <= 1, "started {} times after a drop at poll {polls}", starts.count());
        if finished {
            ensure!(polls > 3, "all was done with {polls} awaits to be dropped at");
            break;
        }
    }
    Ok(())
}

async fn at_every_await_if_repeated(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let (name, finishes) = (context.name()?, Starts::default());
        let once = peer.once(name.as_str()).at_least_once();
        let work = |_| async {
            tokio::task::yield_now().await;
            finishes.clone().work().await
        };
        let (output, _) = dropped_at(once.run("7", work), polls, context.pace.soon).await;
        let finished = output.transpose()?.is_some();
        peer.left_clean(&context, &rival, &name).await?;
        let _ = rival.once(name.as_str()).at_least_once().run("7", |_| finishes.clone().work()).await?;
        ensure!(finishes.count() >= 1, "never finished after a drop at poll {polls}");
        if finished {
            break;
        }
    }
    Ok(())
}
