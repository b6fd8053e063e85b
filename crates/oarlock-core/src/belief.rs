//! What a holder may believe of its lock, without asking anybody.
//!
//! Belief ends first: it is counted from *before* the request was sent that last extended the lease, minus a margin
//! for clocks that run at different rates. When it has ended it never comes back.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Moment, sleep_until};
use crate::driver::Gone;
use crate::state::Ending;

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease could have run out: it was not renewed in time.
    Expired,
    /// The store no longer knows the claim.
    Gone,
    /// Somebody broke it.
    Broken(Ending),
    /// The session or process it was tethered to ended.
    Session,
    /// It was held as long as it may be held.
    MaxHold,
}

impl From<Gone> for LossReason {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Unknown => Self::Gone,
            Gone::Broken(ending) => Self::Broken(ending),
            Gone::Session => Self::Session,
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("the lease ran out before it could be renewed"),
            Self::Gone => f.write_str("the store no longer knows this claim"),
            Self::Broken(Ending { by, why }) => {
                write!(f, "broken by {}", crate::text::plain(by))?;
                if !why.is_empty() {
                    write!(f, ": {}", crate::text::plain(why))?;
                }
                Ok(())
            }
            Self::Session => f.write_str("the session with the store ended"),
            Self::MaxHold => f.write_str("it was held for as long as allowed"),
        }
    }
}

/// How a hold ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// Its holder released it, dropped its guard, or handed it over to another process.
    Released,
    /// It was lost.
    Lost(LossReason),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("it was released"),
            Self::Lost(reason) => reason.fmt(f),
        }
    }
}

/// How a holder sees its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belief {
    /// All is well.
    Held,
    /// Still held, but a renewal was missed or an end was asked for: finish soon.
    Suspect,
    /// No longer.
    Lost,
}

/// How much earlier than the lease belief ends: two hundredths of it, at least 5 ms.
#[must_use]
pub fn drift_margin(ttl: Duration) -> Duration {
    (ttl / 50).max(Duration::from_millis(5))
}

/// When belief in a lease of `ttl` ends, if its request left at `from`.
fn end_of(from: Moment, ttl: Duration) -> Moment {
    from + ttl.saturating_sub(drift_margin(ttl))
}

/// The belief in one hold, shared by its guard and the watchdog.
#[derive(Debug)]
pub(crate) struct BeliefCell {
    clock: Arc<dyn Clock>,
    /// Nanoseconds on `clock`; only written under `bound`.
    deadline: AtomicU64,
    suspect: AtomicBool,
    /// Its holder let it go: nobody believes in it any more, and nothing was lost. Only written under `bound`.
    let_go: AtomicBool,
    reason: OnceLock<LossReason>,
    /// Cancelled by a loss and by a release.
    over: CancellationToken,
    /// Rung when belief will end earlier than it seemed.
    shortened: Notify,
    bound: Mutex<Bound>,
}

/// A moment that no renewal gets past, and what it means to reach it.
#[derive(Debug)]
struct Bound {
    at: Moment,
    reason: LossReason,
}

impl BeliefCell {
    /// Belief in a lease of `ttl` whose request left at `from`, for no longer than `max_hold` from now: a lock that was handed
    /// on was asked for long before it was held.
    pub(crate) fn new(clock: Arc<dyn Clock>, from: Moment, ttl: Duration, max_hold: Option<Duration>) -> Self {
        let most = max_hold.map_or(Moment::NEVER, |span| clock.now() + span);
        let bound = Bound { at: most, reason: LossReason::MaxHold };
        Self {
            clock,
            deadline: AtomicU64::new(end_of(from, ttl).min(bound.at).as_nanos()),
            suspect: AtomicBool::new(false),
            let_go: AtomicBool::new(false),
            reason: OnceLock::new(),
            over: CancellationToken::new(),
            shortened: Notify::new(),
            bound: Mutex::new(bound),
        }
    }

    /// Ends this belief without a loss, and gives its successor: the belief of another holder in the same lease.
    pub(crate) fn succeed(&self) -> Option<Self> {
        let bound = self.change();
        if self.reason.get().is_some() || self.is_let_go() || self.clock.now() >= self.deadline() {
            return None;
        }
        self.let_go.store(true, Ordering::Release);
        let successor = Self {
            clock: self.clock.clone(),
            deadline: AtomicU64::new(self.deadline().as_nanos()),
            suspect: AtomicBool::new(self.suspect.load(Ordering::Acquire)),
            let_go: AtomicBool::new(false),
            reason: OnceLock::new(),
            over: CancellationToken::new(),
            shortened: Notify::new(),
            bound: Mutex::new(Bound { at: bound.at, reason: bound.reason.clone() }),
        };
        drop(bound);
        self.over.cancel();
        Some(successor)
    }

    /// When belief ends unless it is extended.
    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// How long belief lasts without another extension.
    pub(crate) fn time_left(&self) -> Duration {
        if self.is_held() { self.deadline().since(self.clock.now()) } else { Duration::ZERO }
    }

    /// Whether the lock may still be believed in. No I/O: one look at the clock.
    pub(crate) fn is_held(&self) -> bool {
        if self.reason.get().is_some() || self.is_let_go() {
            return false;
        }
        if self.clock.now() < self.deadline() {
            return true;
        }
        !self.end_if_due()
    }

    fn is_let_go(&self) -> bool {
        self.let_go.load(Ordering::Acquire)
    }

    /// Its holder lets it go: belief ends, for everybody who knows of it, without a loss.
    pub(crate) fn let_go(&self) {
        let bound = self.change();
        if self.reason.get().is_none() {
            let deadline = self.deadline();
            if self.clock.now() < deadline {
                self.let_go.store(true, Ordering::Release);
            } else {
                // It ended before: after a suspend its holder may be the first to act.
                let _ = self.reason.set(if deadline < bound.at { LossReason::Expired } else { bound.reason.clone() });
            }
        }
        drop(bound);
        self.over.cancel();
    }

    pub(crate) fn belief(&self) -> Belief {
        if !self.is_held() {
            Belief::Lost
        } else if self.suspect.load(Ordering::Acquire) {
            Belief::Suspect
        } else {
            Belief::Held
        }
    }

    pub(crate) fn reason(&self) -> Option<LossReason> {
        if self.is_held() { None } else { self.reason.get().cloned() }
    }

    /// The token that is cancelled when belief ends, by a loss or a release.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.over
    }

    fn change(&self) -> MutexGuard<'_, Bound> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Extends belief by a lease of `ttl` whose request left at `from`. False if it was already over: what has ended
    /// never comes back, even if the store says it is still there.
    pub(crate) fn extend(&self, from: Moment, ttl: Duration) -> bool {
        let bound = self.change();
        if self.reason.get().is_some() || self.is_let_go() || self.clock.now() >= self.deadline() {
            return false;
        }
        // Answers may overtake each other: an older one takes nothing back.
        let deadline = end_of(from, ttl).min(bound.at).max(self.deadline());
        self.deadline.store(deadline.as_nanos(), Ordering::Release);
        true
    }

    /// The lease of `ttl` whose request left at `from` is the last one.
    pub(crate) fn end_by(&self, from: Moment, ttl: Duration, reason: LossReason) {
        let mut bound = self.change();
        if self.reason.get().is_some() || self.is_let_go() || self.clock.now() >= self.deadline() {
            return;
        }
        *bound = Bound { at: end_of(from, ttl).min(bound.at), reason };
        self.deadline.store(bound.at.as_nanos(), Ordering::Release);
        self.suspect.store(true, Ordering::Release);
        self.shortened.notify_waiters();
    }

    /// Sets or clears doubt; true if that changed anything.
    pub(crate) fn set_suspect(&self, suspect: bool) -> bool {
        self.suspect.swap(suspect, Ordering::AcqRel) != suspect
    }

    /// Whether somebody asked for its end.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.change().reason, LossReason::Broken(_))
    }

    /// Ends belief if its time has come; true if it is over.
    pub(crate) fn end_if_due(&self) -> bool {
        let bound = self.change();
        if self.is_let_go() {
            return true;
        }
        let deadline = self.deadline();
        if self.reason.get().is_none() && self.clock.now() < deadline {
            return false;
        }
        let reason = if deadline < bound.at { LossReason::Expired } else { bound.reason.clone() };
        let _ = self.reason.set(reason);
        drop(bound);
        self.over.cancel();
        true
    }

    /// Ends belief now, unless it is over already.
    pub(crate) fn end(&self, reason: LossReason) {
        let bound = self.change();
        if self.is_let_go() {
            return;
        }
        let _ = self.reason.set(reason);
        drop(bound);
        self.over.cancel();
    }

    /// Waits for the loss of what was not let go. Needs no help from the watchdog: the deadline alone is enough.
    pub(crate) async fn lost(&self) -> LossReason {
        self.ends_within(Duration::ZERO).await;
        self.reason.get().cloned().unwrap_or(LossReason::Expired)
    }

    /// Waits for the end: a loss, or a release.
    pub(crate) async fn ended(&self) -> Ended {
        tokio::select! {
            biased;
            reason = self.lost() => Ended::Lost(reason),
            () = self.over.cancelled() => self.reason().map_or(Ended::Released, Ended::Lost),
        }
    }

    /// Waits until its end is asked for: by whom and why. `None` if it ends without that.
    pub(crate) async fn asked_to_end(&self) -> Option<Ending> {
        loop {
            // Made before the look, so that no ring is missed after it.
            let shortened = self.shortened.notified();
            if let LossReason::Broken(ending) = &self.change().reason {
                return Some(ending.clone());
            }
            tokio::select! {
                biased;
                () = shortened => {}
                ended = self.ended() => match ended {
                    Ended::Lost(LossReason::Broken(ending)) => return Some(ending),
                    _ => return None,
                },
            }
        }
    }

    /// Waits until belief will end within `lead` unless it is extended, or has ended; for ever if it was let go.
    pub(crate) async fn ends_within(&self, lead: Duration) {
        loop {
            // Made before the look at the deadline, so that no ring is missed after it.
            let shortened = self.shortened.notified();
            if self.is_let_go() {
                return std::future::pending().await;
            }
            let look = self.deadline() - lead;
            if self.clock.now() >= look {
                if lead.is_zero() {
                    // The deadline may have moved between the two looks.
                    if self.end_if_due() && !self.is_let_go() {
                        return;
                    }
                    continue;
                }
                return;
            }
            tokio::select! {
                biased;
                () = self.over.cancelled() => if !self.is_let_go() { return },
                () = shortened => {}
                () = sleep_until(&*self.clock, look) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::TokioClock;

    const TTL: Duration = Duration::from_secs(10);

    fn cell() -> BeliefCell {
        let clock = Arc::new(TokioClock::new());
        let now = clock.now();
        BeliefCell::new(clock, now, TTL, None)
    }

    #[tokio::test(start_paused = true)]
    async fn belief_ends_by_itself_before_the_lease() {
        let cell = cell();
        assert_eq!(cell.belief(), Belief::Held);
        let started = tokio::time::Instant::now();
        assert_eq!(cell.lost().await, LossReason::Expired);
        assert!(started.elapsed() < TTL);
        assert!(!cell.is_held() && cell.token().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_ended_never_comes_back() {
        let cell = cell();
        tokio::time::advance(TTL).await;
        let now = cell.clock.now();
        assert!(!cell.extend(now, TTL), "a late answer must not revive it");
        assert!(!cell.is_held());
        assert_eq!(cell.reason(), Some(LossReason::Expired));
    }

    #[tokio::test(start_paused = true)]
    async fn belief_counts_from_the_sending() {
        let cell = cell();
        let sent = cell.clock.now();
        tokio::time::advance(TTL / 2).await;
        assert!(cell.extend(sent, TTL), "a slow answer is still an answer");
        assert!(cell.deadline() < sent + TTL, "but counts from when the question left");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_let_go_is_not_believed_and_not_lost() {
        let cell = cell();
        cell.let_go();
        assert!(!cell.is_held() && cell.time_left().is_zero());
        assert!(tokio::time::timeout(TTL * 2, cell.lost()).await.is_err(), "nothing was lost");
        assert_eq!(cell.reason(), None);
        let now = cell.clock.now();
        assert!(!cell.extend(now, TTL), "a late answer must not revive it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_request_to_end_does_not_revive_it() {
        let cell = cell();
        tokio::time::advance(TTL).await;
        cell.end_by(cell.clock.now(), TTL, LossReason::MaxHold);
        assert!(!cell.is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_that_comes_earlier_is_told_earlier() {
        let cell = cell();
        let started = tokio::time::Instant::now();
        let shorten = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            cell.end_by(cell.clock.now(), Duration::from_secs(3), LossReason::MaxHold);
        };
        let ((), (), reason) = tokio::join!(shorten, cell.ends_within(Duration::from_secs(2)), cell.lost());
        assert_eq!(reason, LossReason::MaxHold);
        assert!(started.elapsed() <= Duration::from_secs(4), "not at the end of the first lease");
    }

    #[tokio::test(start_paused = true)]
    async fn the_lead_is_given_before_the_end() {
        let cell = cell();
        let started = tokio::time::Instant::now();
        cell.ends_within(Duration::from_secs(4)).await;
        assert!(cell.is_held());
        assert!(started.elapsed() < Duration::from_secs(6));
    }
}
