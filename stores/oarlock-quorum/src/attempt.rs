//! A round: votes, the largest fence and the newest memo, and where they must be written back before they count.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::Core;
use super::memo::lacks;
use super::requests::Requests;
use super::rounds::{Hold, Round};
use super::tally::Tally;
use oarlock_core::belief::drift_margin;
use oarlock_core::claim::{Claim, Fence};
use oarlock_core::driver::memo::Versioned;
use oarlock_core::driver::{Attempt, BoxFuture, DynDriver, End, Fences, Grant, Lease, Pending, Renewal, Renewed};
use oarlock_core::error::{Applied, Error, ErrorKind, Result};

/// How long a memo is kept where it is written back. No node tells how long its writer wanted that: longer than the
/// slots of a year.
const WRITTEN_BACK: Duration = Duration::from_secs(400 * 24 * 3600);

/// A round under way. Unless it is won, it leaves nothing behind, whether it was lost or its caller went away.
struct Voting {
    core: Arc<Core>,
    round: Arc<Round>,
    calls: Requests<Attempt>,
    tally: Tally,
    won: bool,
}

impl Drop for Voting {
    fn drop(&mut self) {
        if self.won {
            return;
        }
        self.core.lost.fetch_add(1, Ordering::Relaxed);
        self.core.crowd.lost(&self.round.claim.resource);
        // First, so that votes that come late know it.
        self.round.end();
        self.core.undo_all(&self.round, self.tally.traces());
    }
}

impl Voting {
    /// Where rivals are about: asks one node before the others, and goes no further where one of them was faster.
    async fn scout(&mut self, Claim { resource, wait, .. }: &Claim, patience: Duration) -> Option<Pending> {
        // A claim that does not wait needs the answer of a majority.
        let first = (*wait && self.core.crowd.is_contended(resource)).then(|| self.core.first(resource)).flatten()?;
        self.calls.only(first, patience / 8);
        if let Some((node, vote)) = self.calls.next().await {
            if let Ok(Attempt::Pending(pending)) = &vote
                && self.core.crowd.is_new(resource, pending.holder)
            {
                let mut refused = Pending::default();
                refused.recheck_after = pending.recheck_after;
                return Some(refused);
            }
            self.tally.add(node, vote);
        }
        self.calls.all(patience);
        None
    }
}

impl Core {
    /// One round for `claim`.
    pub(super) async fn vote(self: &Arc<Self>, claim: &Claim) -> Result<Attempt> {
        // A claim that does not wait is answered at once.
        if claim.wait
            && let Some(until) = self.crowd.stands_back(&claim.resource)
        {
            tokio::time::sleep_until(until).await;
        }
        let (started, patience) = (Instant::now(), self.patience(claim.ttl));
        let round = Round::begin(&self.registry, claim)?;
        let calls = self.request_votes(&round, round.claim.clone(), self.all(), patience);
        let tally = Tally::of(self.nodes.len(), self.majority);
        let mut voting = Voting { core: self.clone(), round: round.clone(), calls, tally, won: false };
        if let Some(pending) = voting.scout(claim, patience).await {
            return Ok(Attempt::Pending(pending));
        }
        while !voting.tally.is_decided() {
            let Some((node, vote)) = voting.calls.next().await else { break };
            voting.tally.add(node, vote);
        }
        if !voting.tally.is_won() {
            return voting.tally.verdict();
        }
        let memo = voting.tally.memo();
        let Some(fence) = self.write_back(&round, &voting.tally, memo.as_ref(), patience).await else {
            return voting.tally.verdict();
        };
        let leases = voting.tally.granted.iter().map(|(_, grant)| grant.lease.ttl);
        let lease = leases.min().unwrap_or_default();
        if started.elapsed() + drift_margin(lease) >= lease {
            return voting.tally.verdict();
        }
        let confirmed = voting.tally.granted.iter().map(|(node, _)| *node).collect();
        let hold = Hold::new(round, fence, confirmed, started + lease);
        voting.tally.traces().for_each(|node| hold.voted(node));
        memo.iter().for_each(|memo| hold.remember(memo));
        let grant = hold.grant(Lease::of(lease));
        self.registry.keep(hold);
        self.crowd.taken(&claim.resource);
        self.won.fetch_add(1, Ordering::Relaxed);
        voting.won = true;
        voting.calls.let_late_ones_wait();
        Ok(Attempt::Granted(grant))
    }

    /// Asks `nodes` for their votes for `claim`, which is that of the round. Those that come when the round is over are
    /// given back.
    pub(super) fn request_votes(
        self: &Arc<Self>,
        round: &Arc<Round>,
        claim: Arc<Claim>,
        nodes: impl IntoIterator<Item = usize>,
        patience: Duration,
    ) -> Requests<Attempt> {
        let (core, round) = (self.clone(), round.clone());
        let late = move |node: usize, vote: Result<Attempt>| -> BoxFuture<()> {
            let (core, round) = (core.clone(), round.clone());
            Box::pin(async move {
                let vote = match vote {
                    Ok(Attempt::Granted(grant)) => Some(grant),
                    Err(error) if error.applied() == Applied::Unknown => None,
                    Ok(Attempt::Pending(_)) | Err(_) => return,
                };
                let hold = core.registry.of(&round);
                if round.is_over() || hold.as_ref().is_some_and(|hold| hold.is_past()) {
                    // A request that failed may still be on its way, and come after the release.
                    if vote.is_none() || round.is_left_by_vote(node) {
                        core.undo(&round, node).await;
                    }
                } else if let Some(hold) = hold {
                    hold.voted(node);
                    if let Some(vote) = vote {
                        core.level(&hold, node, &vote).await;
                    }
                }
            })
        };
        Requests::send(self, nodes, patience, move |node| node.attempt(claim.clone()), late)
    }

    /// The fence of a round, once a majority has it: the largest of the votes, written back only where the vote is
    /// still there.
    ///
    /// Two grants share a node that counts for both. There the key of one was gone before the other voted, so that the
    /// other's vote, and with it its fence, is larger than what was written there. A node whose vote is the fence has
    /// it already.
    async fn write_back(
        self: &Arc<Self>,
        round: &Arc<Round>,
        tally: &Tally,
        memo: Option<&Versioned>,
        patience: Duration,
    ) -> Option<Fence> {
        let fence = tally.fence()?;
        let behind = tally.granted.iter().filter(|(_, grant)| grant.fence < fence || lacks(grant, memo));
        let behind: Vec<_> = behind.map(|(node, _)| *node).collect();
        if behind.is_empty() {
            return Some(fence);
        }
        self.written_back.fetch_add(1, Ordering::Relaxed);
        let mut renewal = Renewal::of(round.claim.clone());
        (renewal.fences, renewal.memo) = (Fences::AtLeast(fence), memo.map(|memo| memo.raw.clone()));
        renewal.keep = if renewal.memo.is_some() { WRITTEN_BACK } else { Duration::ZERO };
        let mut missing = behind.len();
        // A memo that comes late must not meet a later round of the same id, and write over what that one left.
        let late = round.clone();
        let late = move |_, written: Result<Renewed>| -> BoxFuture<()> {
            late.clone().linger_after(&written);
            Box::pin(std::future::ready(()))
        };
        let mut calls = Requests::send(self, behind, patience, move |node| renew_one(node, renewal.clone()), late);
        while missing > 0 {
            let (node, written) = calls.next().await?;
            round.clone().linger_after(&written);
            match (node, written) {
                (_, Ok(Renewed::Alive { fence: Some(written), ending: None, .. })) if written >= fence => missing -= 1,
                // Without this node there is no majority that has it.
                _ => return None,
            }
        }
        Some(fence)
    }

    /// Tells a node that voted late, or again, what the fence and the memo are, so that it shows what the others show.
    async fn level(&self, hold: &Hold, node: usize, vote: &Grant) {
        let (memo, fence) = (hold.memo(), hold.fence());
        let lacks_memo = memo.is_some() && lacks(vote, memo.as_ref());
        let Some(node) = self.nodes.get(node).filter(|_| vote.fence < fence || lacks_memo) else { return };
        let mut renewal = Renewal::of(hold.round.claim.clone());
        (renewal.fences, renewal.memo) = (Fences::AtLeast(fence), memo.filter(|_| lacks_memo).map(|memo| memo.raw));
        renewal.keep = if renewal.memo.is_some() { WRITTEN_BACK } else { Duration::ZERO };
        hold.round.clone().linger_after(&renew_one(node.driver(), renewal).await);
    }

    /// Gives back what a round may have on `nodes`, in the background.
    pub(super) fn undo_all(self: &Arc<Self>, round: &Arc<Round>, nodes: impl Iterator<Item = usize>) {
        let Ok(handle) = Handle::try_current() else { return };
        for node in nodes {
            let (core, round) = (self.clone(), round.clone());
            self.tasks.spawn_on(async move { core.undo(&round, node).await }, &handle);
        }
    }

    /// Gives back what a round may have on a node.
    pub(super) async fn undo(&self, round: &Arc<Round>, node: usize) {
        let Some(node) = self.nodes.get(node) else { return };
        let (name, id) = (round.claim.resource.clone(), round.claim.id);
        round.clone().linger_after(&node.driver().release(name, id, End::Withdrawn).await);
    }
}

impl Round {
    /// Keeps the id of this round from being used again while a request of it may be on its way.
    pub(super) fn linger_after<T>(self: Arc<Self>, answer: &Result<T>) {
        let unknown = answer.as_ref().is_err_and(|error| error.applied() == Applied::Unknown);
        if let (true, Ok(handle)) = (unknown, Handle::try_current()) {
            handle.spawn(async move {
                tokio::time::sleep(self.claim.ttl).await;
                drop(self);
            });
        }
    }
}

/// One renewal, as one answer.
pub(super) fn renew_one(node: Arc<dyn DynDriver>, renewal: Renewal) -> BoxFuture<Result<Renewed>> {
    Box::pin(async move {
        let missing = || Err(Error::new(ErrorKind::Internal, "no answer to a renewal").applied_unknown());
        node.renew(vec![renewal]).await.pop().unwrap_or_else(missing)
    })
}
