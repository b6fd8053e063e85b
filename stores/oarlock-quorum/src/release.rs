//! Giving a lock back, everywhere.

use std::sync::Arc;
use std::time::Duration;

use super::requests::Requests;
use super::rounds::Hold;
use super::{Core, PATIENCE, SCHEME};
use oarlock_core::claim::{ClaimId, ResourceName};
use oarlock_core::driver::memo::Versioned;
use oarlock_core::driver::{BoxFuture, DynDriver, End, Release, Released};
use oarlock_core::error::{Error, ErrorKind, Result};
use oarlock_core::state::Memo;

impl Core {
    pub(super) async fn release(self: &Arc<Self>, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let hold = self.registry.last(id);
        let asks = matches!(end, End::Broken { grace, .. } if *grace > Duration::ZERO);
        if let Some(hold) = hold.as_ref().filter(|_| !asks) {
            // First, so that votes that come late know it.
            hold.round.end();
        }
        let mut end = end.clone();
        if hold.is_some() && matches!(end, End::Withdrawn) {
            // It was held by some claim: its waiters must be notified, unlike those of a lost round.
            end = End::Done { memo: None };
        }
        let round = match (&hold, &end) {
            (Some(hold), _) => hold.round.claim.id,
            // What this client did not get it has not left anywhere either.
            (None, End::Withdrawn) => id,
            (None, _) => match self.find(resource, id).await? {
                Some(found) => {
                    let last = found.memo.map(|memo| memo.version).unwrap_or_default();
                    stamp(&mut end, |memo| Some(Versioned::new(memo, last.next(found.fence?))))?;
                    found.id
                }
                None => id,
            },
        };
        if let Some(hold) = &hold {
            stamp(&mut end, |memo| Some(hold.stamp(memo)))?;
        }
        let end = &end;
        let patience = hold.as_ref().map_or(PATIENCE, |hold| self.patience(hold.round.claim.ttl));
        let released = self.release_round(resource, round, end, hold.clone(), patience).await;
        if hold.is_some() && !asks {
            self.crowd.released(resource);
        }
        let (found, failed) = released?;
        if let Some(hold) = hold.filter(|_| !asks) {
            // A node that was not asked, or lost the request, may be up all the same, and would keep its vote for a
            // lease.
            self.undo_all(&hold.round, failed.into_iter().filter(|node| hold.may_be_on(*node)));
            self.registry.forget(&hold);
        }
        Ok(Release::new(found, None))
    }

    /// Releases a round on all nodes, and waits until a majority has said so. Those that could not be told are named,
    /// too.
    async fn release_round(
        self: &Arc<Self>,
        resource: &ResourceName,
        id: ClaimId,
        end: &End,
        hold: Option<Arc<Hold>>,
        patience: Duration,
    ) -> Result<(Released, Vec<usize>)> {
        let leaves_memo = matches!(end, End::Done { memo: Some(_) });
        let round = hold.as_ref().map(|hold| hold.round.clone());
        let (resource, end) = (resource.clone(), end.clone());
        let core = self.clone();
        let late = move |node, answer: Result<Release>| -> BoxFuture<()> {
            hold.iter().for_each(|hold| hold.round.clone().linger_after(&answer));
            // Not where a memo was to be left: a repeated release must still find the vote.
            if let Some(hold) = hold.as_ref().filter(|hold| hold.round.is_over() && !leaves_memo) {
                let is_left = hold.round.is_left_by_release(node, is_found(&answer));
                if is_left || (answer.is_err() && hold.may_be_on(node)) {
                    core.undo_all(&hold.round, std::iter::once(node));
                }
            }
            Box::pin(std::future::ready(()))
        };
        let request = move |node: Arc<dyn DynDriver>| node.release(resource.clone(), id, end.clone());
        let mut calls = Requests::send(self, self.all(), patience, request, late);
        if let Some(round) = round.as_ref().filter(|round| round.is_over() && !leaves_memo) {
            let unasked: Vec<_> = calls.unasked().collect();
            round.releases_on(self.all().filter(|node| !unasked.contains(node)));
        }
        let (mut done, mut asked, mut absent, mut fault, mut failed) = (0, 0, 0, None, Vec::new());
        while done.max(asked) < self.majority && absent <= self.spare() {
            let next = calls.next().await;
            if let (Some((node, answer)), Some(round)) = (&next, &round)
                && round.is_left_by_release(*node, is_found(answer))
            {
                self.undo_all(round, std::iter::once(*node));
            }
            match next {
                None => break,
                Some((_, Ok(answer))) => match answer.outcome {
                    Released::Released => done += 1,
                    Released::Asked => asked += 1,
                    // No driver gives another answer: the entries of an owner are counted in the client.
                    _ => absent += 1,
                },
                Some((node, Err(error))) => {
                    failed.push(node);
                    fault = Some(error);
                }
            }
        }
        failed.extend(calls.unasked());
        if absent > self.spare() {
            return Ok((Released::NotHeld, failed));
        }
        // A memo must be where every later majority finds it; that a lock is gone is enough elsewhere.
        let count = if leaves_memo { done } else { done + asked + absent };
        if count < self.majority {
            let what = if leaves_memo { "stored the memo" } else { "answered" };
            let message = format!("{count} of {} nodes {what}", self.nodes.len());
            let error = Error::unreachable(message).on(SCHEME);
            return Err(match fault {
                // What a node can never do is no matter of how many answer.
                Some(cause) if cause.kind() == ErrorKind::Unsupported => cause.on(SCHEME),
                Some(cause) => error.because(cause),
                None => error,
            });
        }
        if !leaves_memo {
            calls.let_late_ones_wait();
        }
        let outcome = match (asked, done) {
            (0, 0) => Released::NotHeld,
            (0, _) => Released::Released,
            _ => Released::Asked,
        };
        Ok((outcome, failed))
    }
}

/// Whether the node had the vote that was released.
fn is_found(answer: &Result<Release>) -> bool {
    answer.as_ref().is_ok_and(|answer| answer.outcome == Released::Released)
}

/// Gives the memo that is to be left its version.
fn stamp(end: &mut End, stamped: impl FnOnce(&Memo) -> Option<Versioned>) -> Result<()> {
    if let End::Done { memo: Some(memo) } = end {
        let missing = || Error::unreachable("too few nodes answered to read the fence of the ticket").on(SCHEME);
        *memo = stamped(memo).ok_or_else(missing)?.raw;
    }
    Ok(())
}
