//! Belief ends before the store can grant the lock to another.

use std::sync::Arc;
use std::time::Duration;

use oarlock_core::{Guard, Weight};

use super::cases;
use crate::context::{Peer, TestContext, now, within};
use crate::delayed::DelayedDriver;
use crate::ending::end_of_belief;
use crate::failure::{Failure, Outcome, ensure};
use crate::history::{History, Hold, Rules};

cases!("belief":
    it_ends_before_the_next_grant [Cut],
    it_ends_before_the_next_grant_on_a_slow_line [Cut],
);

async fn it_ends_before_the_next_grant(context: Arc<TestContext>) -> Outcome {
    let mut margins = Vec::new();
    for round in 0..3 {
        let holder = context.peer().await?;
        // At different moments between two renewals.
        margins.push(margin(&context, holder, context.ttl().mul_f64(0.05 + 0.3 * f64::from(round))).await?);
    }
    report(&context, &margins);
    Ok(())
}

/// If belief were counted from the answer instead of the question, it would end too late here.
async fn it_ends_before_the_next_grant_on_a_slow_line(context: Arc<TestContext>) -> Outcome {
    let mut margins = Vec::new();
    // Before the first renewal, where belief counts from the attempt; and after some.
    for stay in [Duration::ZERO, Duration::ZERO, context.ttl(), context.ttl()] {
        let connection = context.connection().await?;
        let delayed = DelayedDriver::new(connection.driver(), context.ttl() / 12);
        let holder = context.peer_over(Arc::new(delayed), connection)?;
        margins.push(margin(&context, holder, stay).await?);
    }
    report(&context, &margins);
    Ok(())
}

fn report(context: &TestContext, margins: &[Duration]) {
    let list: Vec<_> = margins.iter().map(|margin| format!("{:.1}", margin.as_secs_f64() * 1000.0)).collect();
    let ttl = context.ttl().as_millis();
    context.note(format!("belief ended {} ms before the rival's grant (lease {ttl} ms)", list.join(", ")));
}

/// Cuts a holder off after `stay`, while a rival waits: how long before the rival's grant belief ended.
async fn margin(context: &TestContext, holder: Peer, stay: Duration) -> Outcome<Duration> {
    let (rival, name) = (context.peer().await?, context.name()?);
    let asked = now();
    let guard: Guard = holder.mutex(name.as_str()).lock().await?;
    let granted = now();
    let (lock, theirs_asked) = (rival.mutex(name.as_str()), now());
    let waiter = tokio::spawn(async move { lock.lock().await.map(|guard| (guard, now())) });
    rival.waits(&name, 1).await?;
    tokio::time::sleep(stay).await;
    ensure!(guard.is_held(), "lost before it was cut off: {:?}", guard.loss());
    let end = tokio::task::spawn_blocking({
        let held = guard.held();
        move || end_of_belief(&held)
    });
    holder.connection.cut().await?;
    let bound = context.lease_ends_within() * 2;
    let (theirs, theirs_granted) = within(bound, "the rival", waiter).await???;
    let ended = within(context.pace.soon, "the end of belief", end).await??;
    holder.connection.heal().await?;

    let mut history = History::new();
    let hold = |owner, guard: &Guard, asked, granted, ended| Hold {
        resource: name.to_string(),
        owner,
        weight: Weight::All,
        capacity: None,
        fence: guard.fence(),
        asked,
        granted,
        ended,
        queued: None,
    };
    history.hold(hold(0, &guard, asked, granted, ended));
    history.hold(hold(1, &theirs, theirs_asked, theirs_granted, now()));
    history.death(name.as_str(), ended);
    let rules = Rules::new().takeover_within(context.lease_ends_within()).least_takeovers(1);
    let verdict = history.check(&rules);
    if !verdict.is_ok() {
        return Err(Failure::new(verdict.to_string()));
    }
    theirs.release().await?;
    Ok(theirs_granted.since(ended))
}
