//! Keeping a majority, and winning back the nodes that forgot.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::requests::Requests;
use super::rounds::{Hold, Round};
use super::{Core, SCHEME};
use oarlock_core::claim::{Claim, Fence, Lifetime};
use oarlock_core::driver::memo::Versioned;
use oarlock_core::driver::{BoxFuture, DynDriver, Fences, Gone, Grant, Lease, Renewal, Renewed};
use oarlock_core::error::{Error, Result};
use oarlock_core::state::Ending;

type Answers = Vec<Result<Renewed>>;

/// What the nodes say of one hold.
struct Keeping {
    hold: Arc<Hold>,
    /// What it shall have at least, and whether that is to be its own.
    goal: Option<(Fence, bool)>,
    /// What it leaves.
    memo: Option<Versioned>,
    /// Where it lives, and how long.
    alive: Vec<(usize, Duration)>,
    missing: Vec<usize>,
    broken: Option<Ending>,
    ending: Option<Ending>,
    /// The nodes that have the fence it shall have; those that count for its fences and can still say so.
    raised: Vec<usize>,
    awaited: Vec<usize>,
    fault: Option<Error>,
}

impl Keeping {
    fn new(hold: Arc<Hold>, asked: &Renewal) -> Self {
        let top = hold.top();
        let goal = match asked.fences {
            Fences::Keep => None,
            Fences::AtLeast(fence) => Some((fence.max(top), true)),
            Fences::Reserve(count) => Some((Fence::new(top.get().saturating_add(u64::from(count))), false)),
        };
        let awaited = hold.confirmed();
        let (alive, missing, raised) = (Vec::new(), Vec::new(), Vec::new());
        let memo = asked.memo.as_ref().map(|memo| hold.stamp(memo));
        Self { hold, goal, memo, alive, missing, broken: None, ending: None, raised, awaited, fault: None }
    }

    /// What to ask of each node. A node that has less than others is levelled on the way.
    fn renewal(&self, asked: &Renewal) -> Renewal {
        let mut renewal = Renewal::of(Arc::new(self.hold.round.inner(&asked.claim)));
        renewal.fences = Fences::AtLeast(self.goal.map_or(self.hold.top(), |(fence, _)| fence));
        renewal.memo = self.memo.as_ref().map(|memo| memo.raw.clone());
        renewal.keep = asked.keep;
        renewal
    }

    /// This node has lost the vote.
    fn lose(&mut self, node: usize) {
        self.hold.lost_on(node);
        self.missing.push(node);
    }

    fn add(&mut self, node: usize, answer: Result<Renewed>) {
        self.awaited.retain(|awaited| *awaited != node);
        match answer {
            // A node never has a vote wait: without a fence it is not the vote that was given.
            Ok(Renewed::Alive { fence: None, .. }) => self.lose(node),
            Ok(Renewed::Alive { lease, fence: Some(fence), ending }) => {
                self.alive.push((node, lease.ttl));
                self.ending = self.ending.take().or(ending);
                let has = self.goal.is_some_and(|(goal, _)| fence >= goal);
                self.raised.extend(has.then_some(node));
            }
            Ok(Renewed::Gone(gone)) => {
                self.lose(node);
                if let Gone::Broken(ending) = gone {
                    self.broken = Some(ending);
                }
            }
            Err(error) => self.fault = Some(error),
        }
    }

    /// Whether so many have lost it that another may have held it since.
    fn is_lost(&self, core: &Core) -> bool {
        self.missing.len().max(self.hold.doubted().len()) > core.spare()
    }

    /// Whether a majority has kept it all the while.
    fn is_kept(&self, core: &Core) -> bool {
        let doubted = self.hold.doubted();
        self.alive.iter().filter(|(node, _)| !doubted.contains(node)).count() >= core.majority
    }

    /// Whether a majority has what it shall have. A node may have lost its vote since this was asked, and been won
    /// back.
    fn is_raised(&self, core: &Core) -> bool {
        let confirmed = self.hold.confirmed();
        self.raised.iter().filter(|node| confirmed.contains(node)).count() >= core.majority
    }

    /// Whether the answers that are still out can change nothing.
    fn is_decided(&self, core: &Core) -> bool {
        let settled = self.goal.is_none() || self.is_raised(core) || self.awaited.is_empty();
        (self.is_kept(core) && settled) || self.is_lost(core)
    }

    /// What there is of it, which is a failed renewal if neither a majority keeps it nor a majority has lost it:
    /// nothing has changed then, and the lease runs on from the last one.
    fn settle(mut self, core: &Arc<Core>, started: Instant) -> Result<Renewed> {
        let (hold, round) = (&self.hold, &self.hold.round);
        if self.is_lost(core) {
            round.end();
            // Also on nodes that have not answered: their answers are not waited for.
            core.undo_all(round, core.all().filter(|node| !self.missing.contains(node)));
            core.registry.forget(hold);
            return Ok(Renewed::Gone(self.broken.map_or(Gone::Unknown, Gone::Broken)));
        }
        let ending = self.ending.take().or(self.broken.take());
        hold.ending.fetch_or(ending.is_some(), Ordering::AcqRel);
        if self.alive.len() < core.majority {
            // Others may be up by now whose votes make a majority with those that are left.
            hold.doubt(&self.missing);
            self.missing.iter().for_each(|node| core.win_back(hold, *node));
            let message = format!(
                "{} of {} nodes renewed the lock, {} are needed",
                self.alive.len(),
                core.nodes.len(),
                core.majority
            );
            let error = Error::unreachable(message).on(SCHEME);
            return Err(match self.fault {
                Some(cause) => error.because(cause),
                None => error,
            });
        }
        if let Some((goal, own)) = self.goal.filter(|_| self.is_raised(core)) {
            hold.raise(goal, own);
        }
        self.memo.iter().for_each(|memo| hold.remember(memo));
        // A majority lives as long as the one of it that ends first.
        self.alive.sort_unstable_by_key(|(_, lease)| std::cmp::Reverse(*lease));
        let lease = self.alive.get(core.majority - 1).map_or(Duration::ZERO, |(_, lease)| *lease);
        hold.extend(started, lease);
        if self.is_kept(core) {
            hold.trust();
        }
        self.missing.iter().for_each(|node| core.win_back(hold, *node));
        let fence = if self.goal.is_some() { hold.top() } else { hold.fence() };
        Ok(Renewed::Alive { lease: Lease::of(lease), fence: Some(fence), ending })
    }
}

impl Core {
    /// One answer for each.
    pub(super) async fn renew(self: &Arc<Self>, batch: &[Renewal]) -> Answers {
        let started = Instant::now();
        let mut known = Vec::with_capacity(batch.len());
        for renewal in batch {
            known.push(self.known(&renewal.claim).await.map(|hold| hold.map(|hold| Keeping::new(hold, renewal))));
        }
        let asked =
            known.iter().zip(batch).filter_map(|(keeping, renewal)| Some((keeping.as_ref().ok()?.as_ref()?, renewal)));
        let asked: Vec<Renewal> = asked.map(|(keeping, renewal)| keeping.renewal(renewal)).collect();
        let mut open: Vec<&mut Keeping> =
            known.iter_mut().filter_map(|keeping| keeping.as_mut().ok()?.as_mut()).collect();
        if !open.is_empty() {
            // The longest lease decides, so that a short lease fails no other renewal: the engine has a time-out for
            // each.
            let longest = asked.iter().map(|renewal| renewal.claim.ttl).max().unwrap_or_default();
            let holds: Vec<_> = open.iter().map(|keeping| keeping.hold.clone()).collect();
            let (core, request) = (self.clone(), request(asked));
            let late = move |node, answers| {
                core.late_renewal(node, &holds, answers);
                Box::pin(std::future::ready(())) as BoxFuture<()>
            };
            let mut calls = Requests::send(self, self.all(), self.patience(longest), request, late);
            while !open.iter().all(|keeping| keeping.is_decided(self)) {
                let Some((node, answers)) = calls.next().await else { break };
                let mut answers = answers.into_iter().flatten();
                for keeping in &mut open {
                    keeping
                        .add(node, answers.next().unwrap_or_else(|| Err(Error::unreachable("no answer").on(SCHEME))));
                }
            }
        }
        let settle = |keeping: Result<Option<Keeping>>| match keeping? {
            Some(keeping) => keeping.settle(self, started),
            None => Ok(Renewed::Gone(Gone::Unknown)),
        };
        known.into_iter().map(settle).collect()
    }

    /// The grant of a claim that is held already.
    pub(super) async fn kept(self: &Arc<Self>, claim: &Claim) -> Result<Option<Grant>> {
        if claim.lifetime == Lifetime::Process && self.registry.hold(claim.id).is_none() {
            return Ok(None);
        }
        let answer = self.renew(&[Renewal::of(Arc::new(claim.clone()))]).await.pop();
        let Some(Renewed::Alive { lease, .. }) = answer.transpose()? else { return Ok(None) };
        Ok(self.registry.hold(claim.id).map(|hold| hold.grant(lease)))
    }

    /// The hold of a claim: one of this client, or one that another client has handed over.
    async fn known(self: &Arc<Self>, claim: &Claim) -> Result<Option<Arc<Hold>>> {
        if let Some(hold) = self.registry.hold(claim.id) {
            return Ok(Some(hold));
        }
        // What a lost round of this client has left there is on its way back, however much it looks like a hold.
        if claim.lifetime == Lifetime::Process || self.registry.is_busy(claim.id) {
            return Ok(None);
        }
        let Some(found) = self.find(&claim.resource, claim.id).await? else { return Ok(None) };
        let Some(fence) = found.fence else {
            let message = "too few nodes answered to read the fence of the ticket";
            return Err(Error::unreachable(message).on(SCHEME));
        };
        let round = Round::take_over(&self.registry, claim, found.id);
        let hold = Hold::new(round, fence, found.confirmed, Instant::now() + claim.ttl);
        found.memo.iter().for_each(|memo| hold.remember(memo));
        self.registry.keep(hold.clone());
        Ok(Some(hold))
    }

    /// Nodes that answer after the others may have forgotten it, too.
    fn late_renewal(self: &Arc<Self>, node: usize, holds: &[Arc<Hold>], answers: Result<Answers>) {
        for (hold, answer) in holds.iter().zip(answers.into_iter().flatten()) {
            if let Ok(Renewed::Gone(Gone::Unknown)) = answer {
                hold.lost_on(node);
                self.win_back(hold, node);
            }
        }
    }

    /// Asks a node that has lost its vote for another one, in the background: it may have been restarted, or have been
    /// down when the round was won. Not once its lease is over: another may have had it since, with a larger fence.
    fn win_back(self: &Arc<Self>, hold: &Arc<Hold>, node: usize) {
        if !hold.round.is_over() && !hold.is_past() && !hold.ending.load(Ordering::Acquire) {
            // Requests that are dropped are run to their end.
            drop(self.request_votes(&hold.round, Arc::new(hold.again()), [node], Duration::ZERO));
        }
    }
}

fn request(asked: Vec<Renewal>) -> impl Fn(Arc<dyn DynDriver>) -> BoxFuture<Result<Answers>> {
    move |node| {
        let renew = node.renew(asked.clone());
        Box::pin(async move { Ok(renew.await) })
    }
}
