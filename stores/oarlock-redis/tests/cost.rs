//! What a script costs the server, which runs nothing else meanwhile: it must not depend on the number of waiters, now
//! or before.
//!
//! Times are the server's own, and the least of several, so that a busy machine does not count; only ratios are
//! compared.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "shared/patient.rs"]
mod patient;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Renewal, Renewed};
use oarlock_core::state::Query;
use oarlock_core::{Capacity, Claim, ClaimId, Limit, ResourceName, Weight};
use oarlock_redis::{Address, Config, Redis};
use redis::Value;
use redis::aio::MultiplexedConnection;

const FEW: u128 = 10;
const MANY: u128 = 3000;
/// How much dearer a script may be for many than for a few: what grows with them is dearer by hundreds.
const RATIO: u64 = 5;

struct TestContext {
    _server: oarlock_testbed::Redis,
    raw: MultiplexedConnection,
    store: Redis,
}

impl TestContext {
    async fn start() -> Option<Self> {
        let server = oarlock_testbed::Redis::start_or_skip().unwrap()?;
        let mut raw = patient::connect(&server.url()).await;
        let config = Config::new(Address::Tcp(server.addr().ip().to_string(), server.addr().port()));
        redis::cmd("CONFIG").arg(&["SET", "slowlog-log-slower-than", "0"]).exec_async(&mut raw).await.unwrap();
        let context = Self { _server: server, raw, store: Redis::open(config).await.unwrap() };
        // The server learns the scripts, so that each is called once for each step.
        context.store.attempt(&waiting(1)).await.unwrap();
        context.renew(1, true).await;
        context.store.inspect(&Query::name(deploy())).await.unwrap();
        context.give_up(2).await;
        Some(context)
    }

    /// The least time, in microseconds, that the server took for a script while this ran.
    async fn cost(&self, run: impl AsyncFnOnce()) -> u64 {
        let mut raw = self.raw.clone();
        redis::cmd("SLOWLOG").arg("RESET").exec_async(&mut raw).await.unwrap();
        run().await;
        let log: Vec<Vec<Value>> = redis::cmd("SLOWLOG").arg(&["GET", "100"]).query_async(&mut raw).await.unwrap();
        let is_script =
            |words: &Value| matches!(words, Value::Array(words) if words[0] == Value::BulkString(b"EVALSHA".to_vec()));
        let time = |entry: &Vec<Value>| match entry[2] {
            Value::Int(time) if is_script(&entry[3]) => u64::try_from(time).ok(),
            _ => None,
        };
        // Less is mostly what it takes to call a script at all, and how busy the machine is.
        log.iter().filter_map(time).min().expect("a script ran").max(30)
    }

    async fn wait(&self, id: u128) {
        assert!(matches!(self.store.attempt(&waiting(id)).await.unwrap(), Attempt::Pending(_)), "{id} must wait");
    }

    /// The holder asks again, as after a lost answer.
    async fn hold_again(&self) {
        assert!(matches!(self.store.attempt(&waiting(1)).await.unwrap(), Attempt::Granted(_)), "it holds");
    }

    async fn give_up(&self, id: u128) {
        self.store.release(&deploy(), ClaimId::from_bits(id), &End::Withdrawn).await.unwrap();
    }

    async fn renew(&self, id: u128, held: bool) {
        let mut renewal = Renewal::of(Arc::new(waiting(id)));
        renewal.held = held;
        let answer = self.store.renew(&[renewal]).await.pop().unwrap().unwrap();
        assert!(matches!(answer, Renewed::Alive { fence, .. } if fence.is_some() == held), "{id}: {answer:?}");
    }
}

fn deploy() -> ResourceName {
    ResourceName::new("deploy").unwrap()
}

/// A claim that waits for its turn; its place lasts ten seconds unless it is renewed.
fn waiting(id: u128) -> Claim {
    let mut claim = Claim::new(ClaimId::from_bits(id), deploy());
    (claim.wait, claim.ttl) = (true, Duration::from_secs(600));
    claim
}

macro_rules! context {
    () => {
        match TestContext::start().await {
            Some(context) => context,
            None => return,
        }
    };
}

/// One waiter stays, and others come and give up: at once, or when the next one has come, so that the numbers of those
/// who are left are far apart.
#[tokio::test]
async fn a_name_does_not_get_slower_with_waits_that_ended() {
    for overlap in [0, 1] {
        let context = context!();
        context.wait(2).await;
        let (mut costs, mut next) = (Vec::new(), 10);
        for ended in [FEW, MANY] {
            while next < 10 + ended {
                context.wait(next).await;
                if next >= 10 + overlap {
                    context.give_up(next - overlap).await;
                }
                if next.is_multiple_of(100) {
                    context.renew(2, false).await;
                }
                next += 1;
            }
            let mut cost = [u64::MAX; 4];
            for _ in 0..8 {
                let name = Query::name(deploy());
                let steps = [
                    context.cost(async || context.renew(1, true).await).await,
                    context.cost(async || context.renew(2, false).await).await,
                    context.cost(async || context.wait(2).await).await,
                    context.cost(async || drop(context.store.inspect(&name).await.unwrap())).await,
                ];
                cost.iter_mut().zip(steps).for_each(|(least, step)| *least = step.min(*least));
            }
            costs.push(cost);
        }
        let seen = context.store.inspect(&Query::name(deploy())).await.unwrap();
        assert_eq!(seen.resources[0].waiters.count(), Some(if overlap == 0 { 1 } else { 2 }));
        for (few, many) in costs[0].iter().zip(&costs[1]) {
            assert!(*many <= RATIO * few, "renewals, a look, inspect: {costs:?} µs after {FEW} and {MANY} waits");
        }
    }
}

#[tokio::test]
async fn renewals_polls_and_giving_up_cost_the_same_however_many_wait() {
    let context = context!();
    let mut costs = Vec::new();
    let mut last = 1;
    for waiters in [40, MANY] {
        while last <= waiters {
            last += 1;
            context.wait(last).await;
        }
        let mut cost = [u64::MAX; 5];
        for id in last - 8..last {
            let steps = [
                context.cost(async || context.renew(1, true).await).await,
                context.cost(async || context.hold_again().await).await,
                context.cost(async || context.renew(id, false).await).await,
                context.cost(async || context.wait(id).await).await,
                context.cost(async || context.give_up(id).await).await,
            ];
            cost.iter_mut().zip(steps).for_each(|(least, step)| *least = step.min(*least));
        }
        costs.push(cost);
    }
    for (few, many) in costs[0].iter().zip(&costs[1]) {
        assert!(
            *many <= RATIO * few,
            "a holder's renewal and another request, a waiter's renewal, another look, giving up: {costs:?} µs with 40 and \
             {MANY} waiters"
        );
    }
}

/// The client of these waiters does not listen, so that a release calls the first of them, which has to ask. Until then
/// no claim holds.
#[tokio::test]
async fn a_crowd_costs_the_same_while_the_first_in_line_takes_its_turn() {
    let mut costs = Vec::new();
    for waiters in [40, 1000] {
        let context = context!();
        for id in 2..=waiters {
            context.wait(id).await;
        }
        context.store.release(&deploy(), ClaimId::from_bits(1), &End::Done { memo: None }).await.unwrap();
        let mut cost = [u64::MAX; 2];
        for id in waiters + 1..waiters + 9 {
            let steps = [
                context.cost(async || context.wait(id).await).await,
                context.cost(async || context.wait(id).await).await,
            ];
            cost.iter_mut().zip(steps).for_each(|(least, step)| *least = step.min(*least));
        }
        costs.push(cost);
    }
    for (few, many) in costs[0].iter().zip(&costs[1]) {
        assert!(*many <= RATIO * few, "an arrival, another look: {costs:?} µs with 40 and 1000 waiters");
    }
}

/// The order and the count of those who stay are right after many gave up in any order.
#[tokio::test]
async fn a_waiter_that_gives_up_leaves_the_others_as_they_were() {
    let context = context!();
    for id in 2..=401 {
        context.wait(id).await;
    }
    let stays = |id: &u128| id.is_multiple_of(37);
    // From both ends to the middle.
    for (up, down) in (2..=201).zip((202..=401).rev()) {
        for id in [up, down] {
            if !stays(&id) {
                context.give_up(id).await;
            }
        }
    }
    for id in (2..=401).filter(stays) {
        context.renew(id, false).await;
    }
    let seen = context.store.inspect(&Query::name(deploy())).await.unwrap();
    let oarlock_core::state::Waiters::Listed(waiters) = &seen.resources[0].waiters else { panic!("not listed") };
    let left: Vec<_> = waiters.iter().map(|waiter| waiter.id).collect();
    assert_eq!(left, (2..=401).filter(stays).map(ClaimId::from_bits).collect::<Vec<_>>());
    let mut holder = 1;
    for next in (2..=401).filter(stays) {
        context.store.release(&deploy(), ClaimId::from_bits(holder), &End::Done { memo: None }).await.unwrap();
        assert!(matches!(context.store.attempt(&waiting(next)).await.unwrap(), Attempt::Granted(_)), "{next} is next");
        holder = next;
    }
    context.store.release(&deploy(), ClaimId::from_bits(holder), &End::Done { memo: None }).await.unwrap();
    assert!(context.store.inspect(&Query::name(deploy())).await.unwrap().resources[0].is_free());
}

/// One of two permits of a pool.
fn permit(id: u128) -> Claim {
    let mut claim = waiting(id);
    claim.resource = ResourceName::new("pool").unwrap();
    claim.weight = Weight::ONE;
    claim.capacity = Capacity::Fixed(Limit::Units(NonZeroU32::new(2).unwrap()));
    claim
}

/// Those who wait for shares look again without reading the others.
#[tokio::test]
async fn another_poll_for_a_share_costs_the_same_however_many_wait() {
    let context = context!();
    let (mut costs, mut last) = (Vec::new(), 0);
    for waiters in [40, 600] {
        while last < waiters {
            last += 1;
            context.store.attempt(&permit(last)).await.unwrap();
        }
        let mut cost = u64::MAX;
        for id in last - 8..last {
            let look = async || assert!(matches!(context.store.attempt(&permit(id)).await, Ok(Attempt::Pending(_))));
            cost = cost.min(context.cost(look).await);
        }
        costs.push(cost);
    }
    assert!(costs[1] <= RATIO * costs[0], "{costs:?} µs with 40 and 600 waiters");
}

/// Every waiter gets its share, never more than two have one, and a waiter that is notified of its turn gets it with
/// its next request.
#[tokio::test]
async fn shares_pass_through_a_crowd() {
    let context = context!();
    let (all, mut held) = (60, Vec::new());
    let mut open: Vec<u128> = Vec::new();
    for id in 1..=all {
        match context.store.attempt(&permit(id)).await.unwrap() {
            Attempt::Granted(_) => held.push(id),
            Attempt::Pending(_) => open.push(id),
        }
    }
    assert_eq!(held, [1, 2]);
    while let Some(done) = held.pop() {
        let name = permit(done).resource;
        context.store.release(&name, ClaimId::from_bits(done), &End::Done { memo: None }).await.unwrap();
        let mut left = Vec::new();
        for id in open {
            match context.store.attempt(&permit(id)).await.unwrap() {
                Attempt::Granted(_) => held.push(id),
                Attempt::Pending(_) => left.push(id),
            }
        }
        assert!(held.len() == 2 || left.is_empty(), "{held:?} hold, {} wait", left.len());
        open = left;
    }
    assert!(open.is_empty());
}
