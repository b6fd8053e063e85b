//! Belief: whether a holder may act as the holder of its lock, decided without I/O.
//!
//! Belief ends before the lease: it counts from *before* the request was sent that last extended the lease, minus a
//! margin for clock drift. Belief that has ended never comes back.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::claim::{Claim, Fence};
use crate::clock::{Clock, Moment, sleep_until};
use crate::driver::{Gone, SessionEnd};
use crate::state::Ending;
use crate::telemetry::{HoldCell, Telemetry};

/// Why a lock was lost.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # use oarlock_core::{Locks, LossReason, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("report").max_hold(Duration::from_millis(10)).lock().await?;
/// assert_eq!(guard.lost().await, LossReason::MaxHold);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease could have run out: it was not renewed in time.
    Expired,
    /// The store no longer knows the claim.
    Gone,
    /// An operator or another program broke it.
    Broken(Ending),
    /// Its session or process ended.
    Session,
    /// It was held for `max_hold`.
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
            Self::MaxHold => f.write_str("it was held for as long as max_hold allows"),
        }
    }
}

/// How a hold ended.
///
/// # Examples
/// ```
/// # use oarlock_core::{Ended, Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("report").lock().await?;
/// let held = guard.held();
/// guard.release().await?;
/// match held.ended().await {
///     Ended::Released => println!("done"),
///     Ended::Lost(reason) => println!("lost: {reason}"),
///     _ => {}
/// }
/// # Ok(()) }
/// ```
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

/// Whether a holder may believe that it holds its lock.
///
/// # Examples
/// ```
/// # use oarlock_core::{Belief, Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("report").lock().await?;
/// assert_eq!(guard.belief(), Belief::Held);
/// # guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Belief {
    /// It is held.
    Held,
    /// It is still held, but a renewal failed or its end was asked for: finish soon.
    Suspect,
    /// It is not held any more.
    Lost,
}

/// How much earlier than the lease belief ends: two hundredths of it, at least 5 ms.
#[must_use]
pub fn drift_margin(ttl: Duration) -> Duration {
    (ttl / 50).max(Duration::from_millis(5))
}

/// When belief in a lease of `ttl` ends, if its request was sent at `from`.
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
    /// The session that the grant ends with. A later grant of the same hold may name the first one.
    ends_with: OnceLock<SessionEnd>,
    /// Its holder released it: belief has ended, and nothing was lost. Only written under `bound`.
    released: AtomicBool,
    reason: OnceLock<LossReason>,
    /// Cancelled by a loss and by a release. Made when it is first needed: most holds end without that. Only written
    /// under `bound`.
    over: OnceLock<CancellationToken>,
    /// Notified when the deadline moves to an earlier time.
    shortened: Notify,
    bound: Mutex<Bound>,
    pub(crate) telemetry: HoldCell,
}

/// The last possible deadline, and the reason of a loss at that time.
#[derive(Debug)]
struct Bound {
    at: Moment,
    reason: LossReason,
}

impl BeliefCell {
    /// Belief in a lease of `ttl` whose request was sent at `from`, for at most `max_hold` from now. `max_hold` counts
    /// from now because a lock that was handed on was requested long before.
    pub(crate) fn new(clock: Arc<dyn Clock>, from: Moment, ttl: Duration, max_hold: Option<Duration>) -> Self {
        let most = max_hold.map_or(Moment::NEVER, |span| clock.now() + span);
        let bound = Bound { at: most, reason: LossReason::MaxHold };
        Self {
            clock,
            deadline: AtomicU64::new(end_of(from, ttl).min(bound.at).as_nanos()),
            suspect: AtomicBool::new(false),
            ends_with: OnceLock::new(),
            released: AtomicBool::new(false),
            reason: OnceLock::new(),
            over: OnceLock::new(),
            shortened: Notify::new(),
            bound: Mutex::new(bound),
            telemetry: HoldCell::default(),
        }
    }

    /// The same belief, which also ends with this session.
    pub(crate) fn ending_with(self, session: Option<SessionEnd>) -> Self {
        Self { ends_with: session.map(OnceLock::from).unwrap_or_default(), ..self }
    }

    /// The hold was granted again, and ends with this session from now on. False if it ended with another one before:
    /// belief cannot follow both.
    pub(crate) fn tie(&self, session: &SessionEnd) -> bool {
        self.ends_with.get_or_init(|| session.clone()) == session
    }

    /// The session that it ends with.
    pub(crate) fn ends_with(&self) -> Option<&SessionEnd> {
        self.ends_with.get()
    }

    fn is_session_over(&self) -> bool {
        self.ends_with().is_some_and(SessionEnd::has_ended)
    }

    /// Whether belief has ended, or must end now.
    fn is_over(&self) -> bool {
        self.has_ended() || self.is_session_over() || self.clock.now() >= self.deadline()
    }

    /// Ends this belief without a loss, and gives its successor: the belief of another holder in the same lease.
    pub(crate) fn succeed(&self) -> Option<Self> {
        let bound = self.change();
        if self.is_over() {
            return None;
        }
        self.released.store(true, Ordering::Release);
        let successor = Self {
            clock: self.clock.clone(),
            deadline: AtomicU64::new(self.deadline().as_nanos()),
            suspect: AtomicBool::new(self.suspect.load(Ordering::Acquire)),
            ends_with: self.ends_with.clone(),
            released: AtomicBool::new(false),
            reason: OnceLock::new(),
            over: OnceLock::new(),
            shortened: Notify::new(),
            bound: Mutex::new(Bound { at: bound.at, reason: bound.reason.clone() }),
            telemetry: HoldCell::default(),
        };
        drop(bound);
        self.cancel();
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

    /// Whether the lock is held. No I/O: it only reads the clock, and whether the session has ended.
    pub(crate) fn is_held(&self) -> bool {
        if self.has_ended() {
            return false;
        }
        !self.is_over() || !self.end_if_due()
    }

    fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Its holder releases it: belief ends in all its views, without a loss.
    pub(crate) fn release(&self) {
        let bound = self.change();
        if self.reason.get().is_none() {
            match self.reason_now(&bound) {
                None => self.released.store(true, Ordering::Release),
                // It ended before: after a suspend the release may run before any timer.
                Some(reason) => _ = self.reason.set(reason),
            }
        }
        drop(bound);
        self.cancel();
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
        if let Some(token) = self.over.get() {
            return token;
        }
        // Belief ends under this lock, too: either its end finds the token, or the token is made after the end.
        let _bound = self.change();
        let token = self.over.get_or_init(CancellationToken::new);
        if self.has_ended() {
            token.cancel();
        }
        token
    }

    /// Cancels the token, after belief has ended.
    fn cancel(&self) {
        if let Some(token) = self.over.get() {
            token.cancel();
        }
        self.telemetry.end(self.reason.get(), &*self.clock);
    }

    /// The acquisition is over: from now on this hold is reported.
    pub(crate) fn report(&self, telemetry: Telemetry, claim: &Claim, fence: Fence, granted_at: Moment) {
        self.telemetry.begin(telemetry, claim, fence, granted_at);
        // It may have ended while the acquisition was finished.
        if self.has_ended() {
            self.telemetry.end(self.reason.get(), &*self.clock);
        }
    }

    /// Whether belief has ended, by a loss or a release; it does not look at the deadline.
    pub(crate) fn has_ended(&self) -> bool {
        self.reason.get().is_some() || self.is_released()
    }

    fn change(&self) -> MutexGuard<'_, Bound> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Extends belief by a lease of `ttl` whose request was sent at `from`. False if belief has ended: it never comes
    /// back, even if the store still has the claim.
    pub(crate) fn extend(&self, from: Moment, ttl: Duration) -> bool {
        let bound = self.change();
        if self.is_over() {
            return false;
        }
        // Answers may arrive out of order: an older one does not shorten belief.
        let deadline = end_of(from, ttl).min(bound.at).max(self.deadline());
        self.deadline.store(deadline.as_nanos(), Ordering::Release);
        true
    }

    /// The lease of `ttl` whose request was sent at `from` is the last one.
    pub(crate) fn end_by(&self, from: Moment, ttl: Duration, reason: LossReason) {
        let mut bound = self.change();
        if self.is_over() {
            return;
        }
        *bound = Bound { at: end_of(from, ttl).min(bound.at), reason };
        self.deadline.store(bound.at.as_nanos(), Ordering::Release);
        self.suspect.store(true, Ordering::Release);
        self.shortened.notify_waiters();
    }

    /// Sets or clears the suspicion; true if that changed it.
    pub(crate) fn set_suspect(&self, suspect: bool) -> bool {
        self.suspect.swap(suspect, Ordering::AcqRel) != suspect
    }

    /// Whether its end was asked for.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.change().reason, LossReason::Broken(_))
    }

    /// Ends belief if the deadline has passed or the session has ended; true if it has ended.
    pub(crate) fn end_if_due(&self) -> bool {
        let bound = self.change();
        if self.is_released() {
            return true;
        }
        if self.reason.get().is_none() {
            let Some(reason) = self.reason_now(&bound) else { return false };
            let _ = self.reason.set(reason);
        }
        drop(bound);
        self.cancel();
        true
    }

    /// Why belief must end now, if it must.
    fn reason_now(&self, bound: &Bound) -> Option<LossReason> {
        let deadline = self.deadline();
        if self.clock.now() >= deadline {
            return Some(if deadline < bound.at { LossReason::Expired } else { bound.reason.clone() });
        }
        self.is_session_over().then_some(LossReason::Session)
    }

    /// Ends belief now, unless it has ended.
    pub(crate) fn end(&self, reason: LossReason) {
        let bound = self.change();
        if self.is_released() {
            return;
        }
        let _ = self.reason.set(reason);
        drop(bound);
        self.cancel();
    }

    /// Waits for a loss; for ever after a release. It does not depend on the watchdog: the deadline is enough.
    pub(crate) async fn lost(&self) -> LossReason {
        self.nears_its_deadline(Duration::ZERO).await;
        self.reason.get().cloned().unwrap_or(LossReason::Expired)
    }

    /// Waits for the end: a loss, or a release.
    pub(crate) async fn ended(&self) -> Ended {
        tokio::select! {
            biased;
            reason = self.lost() => Ended::Lost(reason),
            () = self.token().cancelled() => self.reason().map_or(Ended::Released, Ended::Lost),
        }
    }

    /// Waits until its end is asked for: by whom and why. `None` if it ends without that.
    pub(crate) async fn asked_to_end(&self) -> Option<Ending> {
        loop {
            // Created before the check, so that no notification after it is missed.
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

    /// Waits until belief will end within `lead` unless it is extended, or has ended by a loss or a release.
    pub(crate) async fn ends_within(&self, lead: Duration) {
        tokio::select! {
            biased;
            () = self.nears_its_deadline(lead) => {}
            () = self.token().cancelled() => {}
        }
    }

    /// Waits until the deadline is at most `lead` away, or belief was lost; for ever after a release.
    async fn nears_its_deadline(&self, lead: Duration) {
        loop {
            // Created before the deadline is read, so that no notification after that is missed.
            let shortened = self.shortened.notified();
            if self.is_released() {
                return std::future::pending().await;
            }
            let check_at = self.deadline() - lead;
            if self.clock.now() >= check_at {
                if lead.is_zero() {
                    // The deadline may have moved in between.
                    if self.end_if_due() && !self.is_released() {
                        return;
                    }
                    continue;
                }
                return;
            }
            let session = async {
                match self.ends_with() {
                    Some(session) => session.ended().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.token().cancelled() => if !self.is_released() { return },
                // The token is cancelled then.
                () = session => { self.end_if_due(); }
                () = shortened => {}
                () = sleep_until(&*self.clock, check_at) => {}
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
    async fn belief_ends_with_its_session_and_no_answer_brings_it_back() {
        let session = SessionEnd::new();
        let cell = cell().ending_with(Some(session.clone()));
        assert!(cell.is_held() && cell.extend(cell.clock.now(), TTL));
        let next = cell.succeed().unwrap();
        session.end();
        assert!(!next.extend(next.clock.now(), TTL) && next.succeed().is_none());
        assert!(!next.is_held() && next.token().is_cancelled());
        assert_eq!(next.reason(), Some(LossReason::Session));
        assert_eq!(cell.reason(), None, "it was handed on before");
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_after_the_end_of_the_session_is_a_loss() {
        let session = SessionEnd::new();
        let cell = cell().ending_with(Some(session.clone()));
        session.end();
        cell.release();
        assert_eq!(cell.reason(), Some(LossReason::Session));
    }

    /// The token is made when it is first asked for, which may be after the end.
    #[tokio::test(start_paused = true)]
    async fn a_token_is_cancelled_however_late_it_is_asked_for() {
        for early in [true, false] {
            let (released, lost) = (cell(), cell());
            assert!(!early || !(released.token().is_cancelled() || lost.token().is_cancelled()));
            released.release();
            lost.end(LossReason::Gone);
            assert!(released.token().is_cancelled() && lost.token().is_cancelled(), "asked for before: {early}");
        }
        let handed_on = cell();
        let successor = handed_on.succeed().unwrap();
        assert!(handed_on.token().is_cancelled() && !successor.token().is_cancelled());
    }

    #[tokio::test]
    async fn a_token_that_is_asked_for_at_the_moment_of_the_end_is_cancelled() {
        for _ in 0..2000 {
            let cell = Arc::new(cell());
            let other = cell.clone();
            let asks = std::thread::spawn(move || other.token().clone());
            cell.release();
            assert!(asks.join().unwrap().is_cancelled());
        }
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
    async fn a_released_lock_is_neither_held_nor_lost() {
        let cell = cell();
        cell.release();
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
