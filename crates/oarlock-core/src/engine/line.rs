//! The claims of a process that wait behind its own holder: the release of that holder may carry the first of them, so
//! that both need one request.
//!
//! This is for holds that are short. While such a hold lasts, its pass of the gate stays here and the claims behind it
//! ask the store nothing. The release gives the pass to the first of them, with the request that carries its claim. If
//! the hold lasts longer than expected, the first claim takes the pass and asks the store by itself.
//!
//! A hand-over wakes the next holder once, when the answer is there. That a hold or a request takes too long is noticed
//! by the watchdog, which checks the line every millisecond: timers and wake-ups of each claim would cost more than
//! the request that is saved.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use super::gate::Pass;
use crate::claim::Claim;
use crate::clock::{Clock, Moment};
use crate::driver::{Attempt, BoxFuture};
use crate::error::Result;

/// A hold that lasted less is short: the next one is expected to be short too. A claim waits for so long for the
/// release before it joins the store's queue by itself.
pub(crate) const SHORT: Duration = Duration::from_millis(1);

/// A task that has not reacted for so long may not be polled for minutes: it may wait in a branch of a `select!` whose
/// other branch is busy. Then its claim must not keep other processes waiting.
const ABANDONED: Duration = Duration::from_millis(100);

/// The watchdog checks a line so many times in vain before it stops.
const IDLE_CHECKS: u32 = 16;

/// The claims of one name that wait behind a holder of this process.
#[derive(Debug, Default)]
pub(crate) struct Line(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whether the last hold was short.
    is_short: bool,
    /// The pass of the holder, and since when it holds.
    kept: Option<(Pass, Moment)>,
    /// The claim that was carried last, and when, until its task knows.
    carried: Option<(Arc<Offer>, Moment)>,
    waiting: VecDeque<Arc<Offer>>,
    /// Whether the watchdog checks it, and how often it did in vain.
    checked: bool,
    idle_checks: u32,
}

#[derive(Debug)]
struct Offer {
    state: Mutex<OfferState>,
    changed: Notify,
}

#[derive(Debug)]
enum OfferState {
    Open(Claim),
    Carried(Carried),
    Closed,
}

/// A claim that a release carries.
pub(crate) struct Carried {
    pub(crate) claim: Arc<Claim>,
    pub(crate) pass: Pass,
    /// When the request was sent.
    pub(crate) sent: Moment,
    pub(crate) attempt: BoxFuture<Result<Attempt>>,
}

impl std::fmt::Debug for Carried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carried").field("claim", &self.claim.id).finish_non_exhaustive()
    }
}

/// What became of a claim in the line.
pub(crate) enum Next {
    /// A release carries it.
    Carried(Carried),
    /// It may ask the store.
    Passed(Pass),
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a claim to the end.
    pub(crate) fn join(&self, claim: Claim) -> InLine<'_> {
        let offer = Arc::new(Offer { state: Mutex::new(OfferState::Open(claim)), changed: Notify::new() });
        self.lock().waiting.push_back(offer.clone());
        InLine { line: self, offer }
    }

    /// Keeps the pass of a claim that was granted at `now`, if its hold is expected to be short and another claim waits
    /// for its end. Otherwise the pass is dropped, and the next claim asks the store. True if the watchdog has to
    /// check this line from now on.
    pub(crate) fn keep(&self, pass: Pass, now: Moment) -> bool {
        let mut state = self.lock();
        // A claim that waits at the gate and cannot be carried must get its turn, too.
        let can_all_be_carried = pass.behind() as usize <= state.waiting.len();
        if !state.is_short || state.waiting.is_empty() || !can_all_be_carried {
            return false;
        }
        state.kept = Some((pass, now));
        !std::mem::replace(&mut state.checked, true)
    }

    /// Wakes a claim that waits for too long: the first one, for the release before it; or one that was carried, for
    /// the answer. False if nothing has happened here for a while, and the watchdog need not check again.
    pub(crate) fn wake_late(&self, now: Moment) -> bool {
        let mut state = self.lock();
        let is_idle = state.kept.is_none() && state.carried.is_none();
        state.idle_checks = if is_idle { state.idle_checks + 1 } else { 0 };
        state.checked = state.idle_checks < IDLE_CHECKS;
        let is_late = |since: Moment| since + SHORT <= now;
        let first = state.waiting.front().filter(|_| state.kept.as_ref().is_some_and(|(_, since)| is_late(*since)));
        let carried = state.carried.as_ref().filter(|(_, since)| is_late(*since)).map(|(offer, _)| offer);
        for late in first.into_iter().chain(carried) {
            late.changed.notify_one();
        }
        state.checked
    }

    /// What a task that does not react keeps from others: the pass of its holder, which is dropped, and its own claim,
    /// which the caller has to withdraw. The task draws a new claim when it is polled again.
    pub(crate) fn take_abandoned(&self, now: Moment) -> Option<Carried> {
        let is_over = |since: Moment| since + ABANDONED <= now;
        let mut state = self.lock();
        let kept = state.kept.take_if(|(_, since)| is_over(*since));
        let carried = state.carried.take_if(|(_, sent)| is_over(*sent));
        drop(state);
        drop(kept);
        carried?.0.take_carried()
    }

    /// A hold ended that lasted so long. If a claim waits for that, `carry` makes the request that ends the hold and
    /// carries the claim: it returns the time before it is sent, and the answer for the claim. The waker is for the
    /// time when that is there.
    pub(crate) fn end<T>(
        &self,
        held_for: Duration,
        carry: impl FnOnce(&Arc<Claim>, Waker) -> (T, Moment, BoxFuture<Result<Attempt>>),
    ) -> Option<T> {
        let mut state = self.lock();
        state.is_short = held_for < SHORT;
        let (pass, _) = state.kept.take()?;
        let behind = pass.behind();
        while let Some(offer) = state.waiting.pop_front() {
            let mut open = offer.lock();
            let OfferState::Open(claim) = std::mem::replace(&mut *open, OfferState::Closed) else { continue };
            let claim = Arc::new(Claim { behind: behind.saturating_sub(1), ..claim });
            let (carried, sent, attempt) = carry(&claim, Waker::from(offer.clone()));
            *open = OfferState::Carried(Carried { claim, pass, sent, attempt });
            drop(open);
            state.carried = Some((offer, sent));
            return Some(carried);
        }
        None
    }

    /// A hold ended that lasted so long, and its release carries nothing.
    pub(crate) fn end_alone(&self, held_for: Duration) {
        let mut state = self.lock();
        state.is_short = held_for < SHORT;
        let kept = state.kept.take();
        drop(state);
        drop(kept);
    }
}

impl Wake for Offer {
    fn wake(self: Arc<Self>) {
        self.changed.notify_one();
    }
}

impl State {
    /// The pass of the holder, if it holds for too long and this claim is the first.
    fn take_late(&mut self, offer: &Arc<Offer>, clock: &dyn Clock) -> Option<Pass> {
        let is_first = self.waiting.front().is_some_and(|first| Arc::ptr_eq(first, offer));
        let is_late = || self.kept.as_ref().is_some_and(|(_, since)| *since + SHORT <= clock.now());
        if is_first && is_late() { self.kept.take().map(|(pass, _)| pass) } else { None }
    }

    /// The task of this claim knows what became of it.
    fn settle(&mut self, offer: &Arc<Offer>) {
        if self.carried.as_ref().is_some_and(|(carried, _)| Arc::ptr_eq(carried, offer)) {
            self.carried = None;
        }
    }
}

impl Offer {
    fn lock(&self) -> MutexGuard<'_, OfferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim, if a release carries it. Who takes it has to finish its attempt.
    fn take_carried(&self) -> Option<Carried> {
        let mut state = self.lock();
        if !matches!(*state, OfferState::Carried(_)) {
            return None;
        }
        match std::mem::replace(&mut *state, OfferState::Closed) {
            OfferState::Carried(carried) => Some(carried),
            OfferState::Open(_) | OfferState::Closed => None,
        }
    }
}

/// A claim in the line. It leaves the line when this is dropped.
pub(crate) struct InLine<'a> {
    line: &'a Line,
    offer: Arc<Offer>,
}

impl InLine<'_> {
    /// Waits until a release carries the claim, or until the hold before it lasts so long that the claim has to ask the
    /// store.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: what became of the claim is returned by the next call, or by
    /// [`leave`](Self::leave).
    pub(crate) async fn next(&self, clock: &dyn Clock) -> Next {
        loop {
            if let Some(carried) = self.offer.take_carried() {
                return Next::Carried(carried);
            }
            if let Some(pass) = self.line.lock().take_late(&self.offer, clock) {
                return Next::Passed(pass);
            }
            self.offer.changed.notified().await;
        }
    }

    /// Leaves the line. A release may have carried the claim already: then it is the caller's.
    pub(crate) fn leave(&mut self) -> Option<Carried> {
        let mut line = self.line.lock();
        line.waiting.retain(|offer| !Arc::ptr_eq(offer, &self.offer));
        line.settle(&self.offer);
        let left = std::mem::replace(&mut *self.offer.lock(), OfferState::Closed);
        // If no claim waits any more, the pass is not needed.
        let kept = if line.waiting.is_empty() { line.kept.take() } else { None };
        drop(line);
        drop(kept);
        match left {
            OfferState::Carried(carried) => Some(carried),
            OfferState::Open(_) | OfferState::Closed => None,
        }
    }
}
