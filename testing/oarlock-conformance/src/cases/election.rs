//! One leader, known to all.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::event::Step;
use oarlock_core::memory::Verb;
use oarlock_core::state::Ending;
use oarlock_core::{ErrorKind, Kind, Leader, LeaderWatch, LossReason};

use super::cancel::{LONG, Sender, dropped_at};
use super::cases;
use crate::context::{Peer, TestContext, within};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};

cases!("election":
    every_observer_sees_the_leader [Records],
    candidates_are_elected_in_order [Records, Order, Waiters],
    a_campaign_is_bounded [Records],
    a_proclamation_replaces_the_value [Records],
    a_proclamation_survives_a_lost_reply [Records, DropReply],
    a_proclamation_after_the_end_is_refused [Records, Fences],
    observers_see_every_change_in_the_end [Records],
    observers_see_a_resignation [Records],
    observers_ride_out_an_outage [Records, Cut],
    a_dead_leader_is_replaced [Records, Kill],
    a_leader_cut_off_knows_before_the_next [Records, Cut],
    a_break_is_a_demotion [Records, Fences],
    a_plain_lock_is_no_leader [Records],
    at_every_await_of_a_campaign [Records],
    at_every_await_of_a_proclamation [Records],
    at_every_await_of_an_observer [Records],
);

fn value(leader: &Option<Leader>) -> Option<&str> {
    leader.as_ref().and_then(|leader| leader.value.as_deref())
}

/// How long after a change an observer may see it where no hint comes.
fn seen_within(context: &TestContext) -> Duration {
    context.lease_ends_within()
}

/// Waits until an observer sees the leader that publishes `value`.
async fn sees(context: &TestContext, leaders: &mut LeaderWatch, expected: Option<&str>) -> Outcome<Option<Leader>> {
    let poll = async {
        loop {
            let leader = leaders.changed().await?;
            if value(&leader) == expected {
                return Ok(leader);
            }
        }
    };
    within(seen_within(context), &format!("an observer to see {expected:?}"), poll).await?
}

async fn every_observer_sees_the_leader(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let election = other.election(name.as_str());
    ensure_eq!(election.leader().await?, None, "the leader of a fresh name");
    let leadership = peer.election(name.as_str()).reason("the first").campaign("node é\n1").await?;
    let leader = election.leader().await?.ok_or_else(|| Failure::new("there is no leader"))?;
    ensure_eq!(leader.value.as_deref(), Some("node é\n1"), "the value");
    ensure_eq!(leader.fence, Some(leadership.fence()), "the fence");
    ensure_eq!(leader.label.reason.as_deref(), Some("the first"), "the label");
    ensure!(election.try_campaign("other").await?.is_none(), "a second leader");
    // Renewals keep the value.
    tokio::time::sleep(context.ttl() * 2).await;
    ensure!(leadership.is_held(), "lost: {:?}", leadership.loss());
    ensure_eq!(value(&election.leader().await?), Some("node é\n1"), "the value after renewals");
    leadership.resign().await?;
    ensure_eq!(election.leader().await?, None, "the leader after a resignation");
    let refused = election.campaign("x".repeat(1025)).await;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::InvalidClaim), "a value too long");
    context.left_clean(&other, &name).await
}

async fn candidates_are_elected_in_order(context: Arc<TestContext>) -> Outcome {
    let (peer, name) = (context.peer().await?, context.name()?);
    let mut before = peer.election(name.as_str()).campaign("0").await?;
    let (mut candidates, mut peers) = (Vec::new(), Vec::new());
    for number in 1..=3 {
        let peer = context.peer().await?;
        let election = peer.election(name.as_str()).wait_forever();
        candidates.push(tokio::spawn(async move { election.campaign(number.to_string()).await }));
        peer.waits(&name, 1).await?;
        peers.push(peer);
    }
    for (number, candidate) in (1..).zip(candidates) {
        let fence = before.fence();
        before.resign().await?;
        before = context.soon("the next in order", candidate).await???;
        ensure!(before.fence() > fence, "the next fence is not larger");
        let leader = peer.election(name.as_str()).leader().await?;
        ensure_eq!(value(&leader), Some(number.to_string().as_str()), "the leader");
    }
    Ok(())
}

async fn a_campaign_is_bounded(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let leadership = peer.election(name.as_str()).campaign("a").await?;
    let campaign = rival.election(name.as_str()).wait(Duration::from_millis(60));
    let Err(error) = context.soon("the end of the wait", campaign.campaign("b")).await? else {
        return Err(Failure::new("a second leader"));
    };
    let holder = error.busy().and_then(|busy| busy.holder.as_ref());
    ensure_eq!(holder.map(|holder| holder.kind), Some(Kind::Election), "who was in the way");
    leadership.resign().await?;
    context.left_clean(&rival, &name).await
}

async fn a_proclamation_replaces_the_value(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let election = other.election(name.as_str());
    let mut leadership = peer.election(name.as_str()).campaign("one").await?;
    let mut leaders = election.observe();
    ensure_eq!(value(&sees(&context, &mut leaders, Some("one")).await?), Some("one"), "the first value");
    for round in 0..20 {
        let words = format!("round {round}");
        leadership.proclaim(words.as_str()).await?;
        ensure_eq!(value(&election.leader().await?), Some(words.as_str()), "the value in the store");
    }
    let leader = sees(&context, &mut leaders, Some("round 19")).await?;
    ensure_eq!(leader.and_then(|leader| leader.fence), Some(leadership.fence()), "the fence");
    tokio::time::sleep(context.ttl() * 2).await;
    ensure_eq!(value(&election.leader().await?), Some("round 19"), "the value after renewals");
    leadership.resign().await?;
    Ok(())
}

async fn a_proclamation_survives_a_lost_reply(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let mut leadership = peer.election(name.as_str()).campaign("one").await?;
    peer.connection.drop_reply(Verb::Renew).await?;
    within(context.lease_ends_within(), "the answer", leadership.proclaim("two")).await??;
    ensure_eq!(value(&other.election(name.as_str()).leader().await?), Some("two"), "the value");
    leadership.resign().await?;
    Ok(())
}

fn ending() -> Ending {
    Ending::new("ops", "maintenance")
}

async fn a_proclamation_after_the_end_is_refused(context: Arc<TestContext>) -> Outcome {
    let (peer, operator, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let mut leadership = peer.election(name.as_str()).campaign("old").await?;
    operator.break_hold(&name, leadership.fence(), ending(), Duration::ZERO).await?;
    let next = operator.election(name.as_str()).campaign("new").await?;
    let refused = within(context.lease_ends_within(), "the refusal", leadership.proclaim("older")).await?;
    ensure_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Lost), "the error");
    ensure_eq!(value(&operator.election(name.as_str()).leader().await?), Some("new"), "the value");
    ensure!(next.is_held(), "the next leader paid for it: {:?}", next.loss());
    Ok(())
}

async fn observers_see_every_change_in_the_end(context: Arc<TestContext>) -> Outcome {
    let (peers, watcher, name) =
        ([context.peer().await?, context.peer().await?], context.peer().await?, context.name()?);
    let mut leaders = watcher.election(name.as_str()).observe();
    ensure_eq!(context.soon("the first answer", leaders.changed()).await??, None, "before the first leader");
    let work = async {
        for round in 0..20 {
            let election = peers[round % 2].election(name.as_str());
            election.campaign(round.to_string()).await?.resign().await?;
        }
        Outcome::Ok(peers[0].election(name.as_str()).campaign("the last").await?)
    };
    let watch = async {
        let mut highest = None;
        loop {
            let Some(leader) = leaders.changed().await? else { continue };
            ensure!(leader.fence > highest, "an observer saw {leader:?} after {highest:?}");
            highest = leader.fence;
            if leader.value.as_deref() == Some("the last") {
                return Outcome::Ok(leader);
            }
        }
    };
    let bound = context.pace.soon * 10 + seen_within(&context);
    let (last, seen) = within(bound, "the last leader", async { tokio::join!(work, watch) }).await?;
    ensure_eq!(seen?.fence, Some(last?.fence()), "the fence of the last");
    Ok(())
}

async fn observers_see_a_resignation(context: Arc<TestContext>) -> Outcome {
    let (peer, watcher, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let leadership = peer.election(name.as_str()).campaign("a").await?;
    let mut leaders = watcher.election(name.as_str()).observe();
    sees(&context, &mut leaders, Some("a")).await?;
    leadership.resign().await?;
    sees(&context, &mut leaders, None).await?;
    // Nothing changes, so no hint comes.
    let quiet = tokio::time::timeout(context.ttl(), leaders.changed()).await;
    ensure!(quiet.is_err(), "notified of {quiet:?} although nothing changed");
    Ok(())
}

async fn observers_ride_out_an_outage(context: Arc<TestContext>) -> Outcome {
    let (peer, watcher, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let leadership = peer.election(name.as_str()).campaign("a").await?;
    let mut leaders = watcher.election(name.as_str()).observe();
    sees(&context, &mut leaders, Some("a")).await?;
    watcher.connection.cut().await?;
    leadership.resign().await?;
    let _next = peer.election(name.as_str()).campaign("b").await?;
    let quiet = tokio::time::timeout(context.ttl(), leaders.changed()).await;
    ensure!(quiet.is_err(), "notified of {quiet:?} through a connection that is cut");
    watcher.connection.heal().await?;
    let poll = async {
        loop {
            if value(&leaders.changed().await?) == Some("b") {
                return Outcome::Ok(());
            }
        }
    };
    // A silent connection is given up later than one that fails.
    within(context.pace.soon * 5 + context.lease_ends_within(), "the next leader after the outage", poll).await?
}

async fn a_dead_leader_is_replaced(context: Arc<TestContext>) -> Outcome {
    let (dead, peer, watcher) = (context.peer().await?, context.peer().await?, context.peer().await?);
    let name = context.name()?;
    let leadership = dead.election(name.as_str()).campaign("dead").await?;
    let mut leaders = watcher.election(name.as_str()).observe();
    sees(&context, &mut leaders, Some("dead")).await?;
    let election = peer.election(name.as_str());
    let next = tokio::spawn(async move { election.campaign("next").await });
    peer.waits(&name, 1).await?;
    dead.connection.kill().await?;
    let next = within(context.death_noticed_within(), "the next leader", next).await???;
    ensure!(next.fence() > leadership.fence(), "the next fence is not larger");
    let seen = sees(&context, &mut leaders, Some("next")).await?;
    ensure_eq!(seen.and_then(|leader| leader.fence), Some(next.fence()), "the fence seen");
    Ok(())
}

async fn a_leader_cut_off_knows_before_the_next(context: Arc<TestContext>) -> Outcome {
    let (peer, rival, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let leadership = peer.election(name.as_str()).campaign("cut off").await?;
    let election = rival.election(name.as_str());
    let next = tokio::spawn(async move { election.campaign("next").await.map(|next| (next, crate::context::now())) });
    rival.waits(&name, 1).await?;
    peer.connection.cut().await?;
    within(context.lease_ends_within(), "the demotion", leadership.lost()).await?;
    let ended = leadership.ends_at();
    let (_next, elected) = within(context.lease_ends_within(), "the next leader", next).await???;
    ensure!(elected > ended, "the next was elected {:?} before the end of belief", ended.since(elected));
    peer.connection.heal().await?;
    Ok(())
}

async fn a_break_is_a_demotion(context: Arc<TestContext>) -> Outcome {
    let (peer, operator, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let leadership = peer.election(name.as_str()).campaign("a").await?;
    let mut leaders = operator.election(name.as_str()).observe();
    sees(&context, &mut leaders, Some("a")).await?;
    operator.break_hold(&name, leadership.fence(), ending(), Duration::ZERO).await?;
    let reason = within(context.lease_ends_within(), "the demotion", leadership.lost()).await?;
    ensure_eq!(reason, LossReason::Broken(ending()), "the reason");
    let told = peer.events.until(|events| {
        events.iter().any(|event| event.kind == Kind::Election && matches!(event.step, Step::Lost { .. }))
    });
    context.soon("the event", told).await?;
    sees(&context, &mut leaders, None).await?;
    Ok(())
}

async fn a_plain_lock_is_no_leader(context: Arc<TestContext>) -> Outcome {
    let (peer, other, name) = (context.peer().await?, context.peer().await?, context.name()?);
    let _guard = peer.mutex(name.as_str()).lock().await?;
    let election = other.election(name.as_str());
    ensure_eq!(election.leader().await?, None, "the leader while a mutex is held");
    ensure!(election.try_campaign("a").await?.is_none(), "a leader beside the holder of a mutex");
    Ok(())
}

async fn at_every_await_of_a_campaign(context: Arc<TestContext>) -> Outcome {
    let (peer, rival) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let name = context.name()?;
        let election = peer.election(name.as_str()).ttl(LONG);
        let (output, _) = dropped_at(election.campaign("a"), polls, context.pace.soon).await;
        let done = output.is_some();
        drop(output.transpose()?);
        peer.left_clean(&context, &rival, &name).await?;
        if done {
            break;
        }
    }
    Ok(())
}

async fn at_every_await_of_a_proclamation(context: Arc<TestContext>) -> Outcome {
    let (peer, rival): (_, Peer) = (Sender::new(&context).await?, context.peer().await?);
    for polls in 0.. {
        let name = context.name()?;
        let election = rival.election(name.as_str());
        let mut leadership = peer.election(name.as_str()).campaign("one").await?;
        let (output, _) = dropped_at(leadership.proclaim("two"), polls, context.pace.soon).await;
        let done = output.is_some();
        output.transpose()?;
        ensure!(leadership.is_held(), "a cancelled proclamation cost the leadership");
        // The next call gets its own answer, not that of the cancelled one.
        leadership.proclaim("three").await?;
        ensure_eq!(value(&election.leader().await?), Some("three"), "the value");
        tokio::time::sleep(context.ttl() / 2).await;
        ensure_eq!(value(&election.leader().await?), Some("three"), "the value after a renewal");
        drop(leadership);
        peer.left_clean(&context, &rival, &name).await?;
        if done {
            break;
        }
    }
    Ok(())
}

async fn at_every_await_of_an_observer(context: Arc<TestContext>) -> Outcome {
    let (watcher, peer, name) = (Sender::new(&context).await?, context.peer().await?, context.name()?);
    let mut leaders = watcher.election(name.as_str()).observe();
    let mut leadership = peer.election(name.as_str()).campaign("start").await?;
    for polls in 0..12 {
        let (_, _) = dropped_at(leaders.changed(), polls, Duration::from_millis(40)).await;
        leadership.proclaim(polls.to_string()).await?;
    }
    leadership.proclaim("end").await?;
    let seen = sees(&context, &mut leaders, Some("end")).await?;
    ensure_eq!(seen.and_then(|leader| leader.fence), Some(leadership.fence()), "the fence");
    Ok(())
}
