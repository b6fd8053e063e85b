//! Random operations against the store and against the model: the answers must match.
//!
//! Both run on their own clocks, so the run keeps away from moments at which something is about to end: it waits until
//! they have passed, and an operation that such a moment fell into proves nothing.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::capabilities::WaiterView;
use oarlock_core::clock::{Moment, wall_micros};
use oarlock_core::driver::{Attempt, End, Renewal, Renewed};
use oarlock_core::model::{Entry, EntryState, Notified, Now, Resource};
use oarlock_core::state::{Query, ResourceState, Waiters};
use oarlock_core::{Capacity, Claim, ClaimId, Fence, Lifetime, Limit, ResourceName, Weight};
use tokio::task::JoinSet;

use super::cases;
use crate::context::{Raw, TestContext, now};
use crate::failure::{Failure, Outcome, ensure, ensure_eq};
use crate::fixture::Deviations;

cases!("model_run": mutexes [Leases], shares [Leases, Units, OneRule]);

/// So many operations must have had an answer that could be compared, half of those of one batch of runs.
const ENOUGH: usize = 120;

/// How long that is tried for.
const PATIENCE: Duration = Duration::from_secs(120);

async fn mutexes(context: Arc<TestContext>) -> Outcome {
    several(&context, false).await
}

async fn shares(context: Arc<TestContext>) -> Outcome {
    several(&context, true).await
}

async fn several(context: &Arc<TestContext>, units: bool) -> Outcome {
    let seed = std::env::var("OARLOCK_SEED").ok().and_then(|seed| seed.parse().ok());
    let first = seed.unwrap_or_else(|| fastrand::u64(..1 << 48));
    let mut matched = 0;
    // On a busy machine many operations prove nothing, so there are runs until enough did.
    let give_up = now() + PATIENCE;
    for batch in 0.. {
        let mut runs = JoinSet::new();
        for seed in first + 4 * batch..first + 4 * (batch + 1) {
            let context = context.clone();
            runs.spawn(async move {
                let mut run = Run::new(&context, seed, units).await?;
                let outcome = run.steps(60).await;
                outcome.map_err(|failure| {
                    Failure::new(format!("OARLOCK_SEED={seed}: {failure}; {}", run.log.join("; ")))
                })?;
                Ok::<_, Failure>(run.matched)
            });
        }
        while let Some(run) = runs.join_next().await {
            matched += run??;
        }
        if matched > ENOUGH {
            break;
        }
        ensure!(now() < give_up, "only {matched} operations could be compared");
    }
    Ok(())
}

struct Run {
    raw: Raw,
    random: fastrand::Rng,
    name: ResourceName,
    model: Resource,
    claims: Vec<Claim>,
    fences: HashMap<ClaimId, Fence>,
    deviations: Deviations,
    units: bool,
    ttl: Duration,
    shown: bool,
    last_fence: Fence,
    matched: usize,
    log: Vec<String>,
}

/// No operation is started this close to a moment at which something ends.
const GUARD: Duration = Duration::from_millis(60);

impl Run {
    async fn new(context: &TestContext, seed: u64, units: bool) -> Outcome<Self> {
        let capabilities = &context.info.capabilities;
        Ok(Self {
            raw: context.raw().await?,
            random: fastrand::Rng::with_seed(seed),
            name: context.name()?,
            model: Resource::default(),
            claims: Vec::new(),
            fences: HashMap::new(),
            deviations: context.fixture.deviations(),
            units,
            ttl: context.ttl().max(GUARD * 5),
            shown: capabilities.waiters == WaiterView::Listed,
            last_fence: Fence::new(0),
            matched: 0,
            log: Vec::new(),
        })
    }

    async fn steps(&mut self, steps: usize) -> Outcome {
        for _ in 0..steps {
            if self.called().is_none() && self.random.u32(0..10) == 0 {
                let span = self.ttl.mul_f64(self.random.f64());
                self.log.push(format!("sleep {span:?}"));
                tokio::time::sleep(span).await;
            }
            let called = self.called();
            self.keep_clear().await;
            let before = now();
            if called.is_some_and(|claim| self.model.entries().iter().any(|e| e.id == claim.id && e.ends() <= before)) {
                self.log.push("a turn was not taken, stopped".into());
                return Ok(());
            }
            // The model may drop or move what ended meanwhile, so its ends count as they were, too.
            let ends = self.ends();
            let outcome = self.step().await;
            let after = now();
            let something_ends =
                self.something_ends(&ends, before, after) || self.something_ends(&self.ends(), before, after);
            if after.since(before) > GUARD / 2 + self.deviations.ends_late / 5 || something_ends {
                // A busy machine: the store may have been asked on either side of an end.
                self.log.push("doubtful, stopped".into());
                return Ok(());
            }
            outcome?;
            self.matched += 1;
        }
        Ok(())
    }

    fn ends(&self) -> Vec<Moment> {
        self.model.entries().iter().map(Entry::ends).collect()
    }

    fn something_ends(&self, ends: &[Moment], from: Moment, to: Moment) -> bool {
        let (from, to) = (from - GUARD / 2 - self.deviations.ends_late, to + GUARD / 2 + self.deviations.ends_early);
        ends.iter().any(|end| *end > from && *end < to)
    }

    /// The first whose turn has come, where that turn is not over by itself.
    fn called(&self) -> Option<Claim> {
        let called = |entry: &&Entry| matches!(entry.state, EntryState::Waits(Some(_)));
        let called = self.model.entries().iter().find(called).filter(|_| self.deviations.queues)?;
        self.claims.iter().find(|claim| claim.id == called.id).cloned()
    }

    /// Waits until nothing is about to end.
    async fn keep_clear(&mut self) {
        loop {
            let at = now();
            let Deviations { ends_early, ends_late, .. } = self.deviations;
            let near = self.model.entries().iter().map(Entry::ends);
            let near = near.filter(|end| *end > at - GUARD - ends_late && *end < at + GUARD * 2 + ends_early).max();
            let Some(near) = near else { return };
            tokio::time::sleep((near + GUARD + ends_late).since(at).max(Duration::from_millis(1))).await;
        }
    }

    /// One operation on both.
    async fn step(&mut self) -> Outcome {
        if let Some(claim) = self.called() {
            return self.attempt(claim).await;
        }
        match self.random.u32(0..9) {
            0..=3 => {
                let claim = self.any_claim(0.6);
                self.attempt(claim).await
            }
            4..=5 => self.renew().await,
            6..=7 => self.release().await,
            _ => self.inspect().await,
        }
    }

    fn now() -> Now {
        Now { boot: now(), wall_micros: wall_micros() }
    }

    fn new_claim(&mut self) -> Claim {
        let mut claim = self.raw.claim(&self.name);
        // From the seed, so that a run can be repeated.
        claim.id = ClaimId::from_bits(self.random.u128(..));
        claim.lifetime = Lifetime::Lease;
        // Where waiters leave no record, there is nothing of them to compare.
        claim.wait = self.random.u32(0..4) > 0 && self.shown;
        let long = self.random.bool();
        claim.ttl = if long { Duration::from_secs(30) } else { self.ttl };
        if self.units {
            claim.capacity = match self.random.u32(0..8) {
                0 if !self.deviations.queues => Capacity::Any,
                1 => Capacity::Stored(Limit::Units(NonZeroU32::MIN.saturating_add(1))),
                2 => Capacity::Fixed(Limit::Unlimited),
                _ => Capacity::Fixed(Limit::Units(NonZeroU32::MIN.saturating_add(3))),
            };
            claim.weight = match self.random.u32(0..5) {
                0 => Weight::All,
                units => Weight::Units(NonZeroU32::MIN.saturating_add(units / 2)),
            };
        }
        claim
    }

    /// One that was used before, or a new one.
    fn any_claim(&mut self, new: f64) -> Claim {
        if self.claims.is_empty() || self.random.f64() < new {
            let claim = self.new_claim();
            self.claims.push(claim.clone());
            return claim;
        }
        let recent = self.claims.len().saturating_sub(8);
        self.claims[self.random.usize(recent..self.claims.len())].clone()
    }

    fn short(claim: &Claim) -> String {
        claim.id.to_string()[..4].to_owned()
    }

    async fn attempt(&mut self, claim: Claim) -> Outcome {
        let words = (Self::short(&claim), claim.weight, claim.capacity, claim.wait, claim.ttl);
        let repeated = self.holds(claim.id);
        let ours = self.model.attempt(&claim, 1, Self::now(), &mut Notified::new());
        let theirs = self.raw.attempt(&claim).await;
        self.log.push(format!("attempt {words:?} -> {}", said(&theirs)));
        match (&ours, &theirs) {
            (Ok(Attempt::Granted(_)), Ok(Attempt::Granted(grant))) => {
                if repeated {
                    let first = self.fences.get(&claim.id).copied();
                    ensure_eq!(Some(grant.fence), first, "the fence of a repeated attempt");
                } else {
                    ensure!(grant.fence > self.last_fence, "fence {} after {}", grant.fence, self.last_fence);
                    self.last_fence = grant.fence;
                    self.fences.insert(claim.id, grant.fence);
                }
                ensure!(grant.lease.ttl <= claim.ttl, "a longer lease than was asked for: {:?}", grant.lease);
            }
            (Ok(Attempt::Pending(ours)), Ok(Attempt::Pending(theirs))) => {
                if let Some(ahead) = theirs.ahead {
                    ensure_eq!(Some(ahead), ours.ahead, "the number of claims before this one");
                }
            }
            (Err(ours), Err(theirs)) => ensure_eq!(theirs.kind(), ours.kind(), "the error of an attempt"),
            _ => return Err(Failure::new(format!("the store says {}, the model {}", said(&theirs), said(&ours)))),
        }
        Ok(())
    }

    fn holds(&self, id: ClaimId) -> bool {
        let at = now();
        self.model.entries().iter().any(|entry| entry.id == id && entry.is_held() && entry.ends() > at)
    }

    async fn renew(&mut self) -> Outcome {
        let claim = self.any_claim(0.1);
        let renewal = Renewal::of(Arc::new(claim.clone()));
        let ours = self.model.renew(&renewal, Self::now(), &mut Notified::new());
        let theirs = self.raw.driver.clone().renew(vec![renewal]).await;
        let Some(theirs) = theirs.into_iter().next() else { return Err(Failure::new("a renewal without an answer")) };
        self.log.push(format!("renew {} -> {}", Self::short(&claim), theirs.is_ok()));
        match (ours?, theirs?) {
            (Renewed::Alive { fence: ours, .. }, Renewed::Alive { fence: theirs, lease, .. }) => {
                ensure_eq!(theirs.is_some(), ours.is_some(), "whether a renewed claim holds");
                ensure!(lease.ttl <= claim.ttl, "a longer lease than was asked for: {lease:?}");
            }
            (Renewed::Gone(_), Renewed::Gone(_)) => {}
            (ours, theirs) => return Err(Failure::new(format!("the store says {theirs:?}, the model {ours:?}"))),
        }
        Ok(())
    }

    async fn release(&mut self) -> Outcome {
        let claim = self.any_claim(0.1);
        let end = if self.random.bool() { End::Done { memo: None } } else { End::Withdrawn };
        let ours = self.model.release(claim.id, &end, Self::now(), &mut Notified::new());
        let theirs = self.raw.release(&self.name.clone(), claim.id, end).await?;
        self.log.push(format!("release {} -> {:?}", Self::short(&claim), theirs.outcome));
        ensure_eq!(theirs.outcome, ours.outcome, "the outcome of a release");
        if let Some(others) = theirs.others_waiting {
            ensure_eq!(Some(others), ours.others_waiting, "whether others wait");
        }
        Ok(())
    }

    async fn inspect(&mut self) -> Outcome {
        let page = self.raw.driver.clone().inspect(Query::name(self.name.clone())).await?;
        let free = || ResourceState::free(self.name.clone());
        let theirs = page.resources.into_iter().next().unwrap_or_else(free);
        let ours = self.model.state(self.name.clone(), Self::now());
        self.log.push("inspect".into());
        let holders = |state: &ResourceState| {
            let mut holders: Vec<_> = state.holders.iter().map(|holder| (holder.id, holder.weight)).collect();
            holders.sort_by_key(|(id, _)| *id);
            holders
        };
        ensure_eq!(holders(&theirs), holders(&ours), "the holders");
        let waiters = |state: &ResourceState| match &state.waiters {
            Waiters::Listed(waiters) => waiters.iter().map(|waiter| waiter.id).collect(),
            _ => Vec::new(),
        };
        if self.shown {
            ensure_eq!(waiters(&theirs), waiters(&ours), "the waiters, in order");
        }
        Ok(())
    }
}

fn said(answer: &oarlock_core::Result<Attempt>) -> String {
    match answer {
        Ok(Attempt::Granted(grant)) => format!("granted {}", grant.fence),
        Ok(Attempt::Pending(_)) => "pending".into(),
        Err(error) => format!("{:?}", error.kind()),
    }
}
