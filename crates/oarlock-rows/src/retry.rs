//! How often, for how long and how densely something is tried again, and what came of it.

use std::fmt;
use std::time::{Duration, Instant};

use crate::{Classify, Contention};

/// When to give up, and how long to stand back in between.
///
/// ```
/// use std::time::Duration;
///
/// let patient = oarlock_rows::Retry::default().attempts(50).deadline(Duration::from_secs(30));
/// # let _ = patient;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    attempts: u32,
    deadline: Duration,
    first: Duration,
    longest: Duration,
    when_busy: bool,
}

impl Default for Retry {
    /// Ten attempts within ten seconds; pauses of up to 2 ms, doubled each time up to a quarter of a second.
    fn default() -> Self {
        Self {
            attempts: 10,
            deadline: Duration::from_secs(10),
            first: Duration::from_millis(2),
            longest: Duration::from_millis(250),
            when_busy: false,
        }
    }
}

impl Retry {
    /// Once, and no more.
    #[must_use]
    pub fn never() -> Self {
        Self::default().attempts(1)
    }

    /// At most so many attempts, the first one included. None at all is taken for one.
    #[must_use]
    pub fn attempts(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }

    /// No attempt begins later than this after the first one. One that is under way is not cut short.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Random pauses of up to `first` after the first attempt, and of up to twice as much after each further one.
    #[must_use]
    pub fn pauses(self, first: Duration, longest: Duration) -> Self {
        Self { first, longest, ..self }
    }

    /// Also when a lock was not to be had in time ([`Contention::Busy`]). Otherwise that is an answer: the wait was
    /// chosen.
    #[must_use]
    pub fn when_busy(self) -> Self {
        Self { when_busy: true, ..self }
    }

    /// Does the work, and does it again when an error tells of [`Contention`] and there is an attempt left.
    ///
    /// **`work` may run more than once.** It must leave nothing half done when it fails: a whole transaction, or one
    /// statement.
    ///
    /// # Errors
    /// The last one.
    ///
    /// # Cancel safety
    /// As that of `work`.
    pub async fn run<T, E: Classify>(&self, mut work: impl AsyncFnMut() -> Result<T, E>) -> Result<Done<T>, Failed<E>> {
        let mut attempts = self.begin();
        loop {
            let error = match work().await {
                Ok(value) => return Ok(attempts.done(value)),
                Err(error) => error,
            };
            match attempts.after(error.contention()) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(attempts.failed(error)),
            }
        }
    }

    /// The count of attempts, for a loop of your own.
    #[must_use]
    pub fn begin(&self) -> Attempts<'_> {
        Attempts { retry: self, start: Instant::now(), attempts: 1, conflicts: 0 }
    }

    /// Whether this contention is tried again.
    pub(crate) fn covers(&self, contention: Option<Contention>) -> bool {
        match contention {
            Some(Contention::Stale | Contention::Deadlock) => true,
            Some(Contention::Busy) => self.when_busy,
            None => false,
        }
    }

    /// Anything from nothing to the whole, so that those who met once do not meet again.
    fn pause(&self, conflicts: u32) -> Duration {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(conflicts.saturating_sub(1)).unwrap_or(u32::MAX));
        doubled.min(self.longest).mul_f64(fastrand::f64())
    }
}

/// What came of it, and what it took.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done<T> {
    /// The result.
    pub value: T,
    /// How often it was tried.
    pub attempts: u32,
    /// How often another transaction came first. Where this is often most of the attempts, a lock costs less than the
    /// repetitions.
    pub conflicts: u32,
}

/// The error that was the last one, and what was tried.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failed<E> {
    /// The last error.
    pub error: E,
    /// How often it was tried.
    pub attempts: u32,
    /// How often another transaction came first.
    pub conflicts: u32,
}

impl<E: fmt::Display> fmt::Display for Failed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (attempts: {}, conflicts: {})", self.error, self.attempts, self.conflicts)
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Failed<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The attempts at one thing. The first one has begun.
#[derive(Debug)]
pub struct Attempts<'a> {
    retry: &'a Retry,
    start: Instant,
    attempts: u32,
    conflicts: u32,
}

impl Attempts<'_> {
    /// How long to stand back before the next attempt, after one that met this; nothing if it was the last.
    pub fn after(&mut self, contention: Option<Contention>) -> Option<Duration> {
        if self.retry.covers(contention) { self.again() } else { None }
    }

    /// Another transaction came first. How long to stand back before the next attempt, or nothing if this was the last.
    pub(crate) fn again(&mut self) -> Option<Duration> {
        self.conflicts += 1;
        let pause = self.retry.pause(self.conflicts);
        if self.attempts >= self.retry.attempts || self.start.elapsed() + pause >= self.retry.deadline {
            return None;
        }
        self.attempts += 1;
        Some(pause)
    }

    pub(crate) fn done<T>(&self, value: T) -> Done<T> {
        Done { value, attempts: self.attempts, conflicts: self.conflicts }
    }

    pub(crate) fn failed<E>(&self, error: E) -> Failed<E> {
        Failed { error, attempts: self.attempts, conflicts: self.conflicts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_and_time_run_out() {
        let retry = Retry::default().attempts(3).pauses(Duration::ZERO, Duration::ZERO);
        let mut attempts = retry.begin();
        assert!(attempts.again().is_some());
        assert!(attempts.again().is_some());
        assert!(attempts.again().is_none());
        let done = attempts.done(());
        assert_eq!((done.attempts, done.conflicts), (3, 3));

        let retry = retry.attempts(1000).deadline(Duration::ZERO);
        assert!(retry.begin().again().is_none());
        assert!(Retry::never().begin().again().is_none());
        assert!(Retry::default().attempts(0).begin().again().is_none());
    }

    #[test]
    fn pauses_grow_to_the_longest_and_no_further() {
        let (first, longest) = (Duration::from_millis(1), Duration::from_millis(8));
        let retry = Retry::default().pauses(first, longest);
        let most = |conflicts| (0..200).map(|_| retry.pause(conflicts)).max().unwrap();
        assert!(most(1) <= first);
        assert!(most(3) > first && most(3) <= 4 * first);
        assert!(most(40) > 4 * first && most(40) <= longest);
        assert!(most(u32::MAX) <= longest);
    }

    #[test]
    fn a_wait_that_was_chosen_is_an_answer() {
        let retry = Retry::default();
        assert!(retry.covers(Some(Contention::Stale)) && retry.covers(Some(Contention::Deadlock)));
        assert!(!retry.covers(Some(Contention::Busy)) && !retry.covers(None));
        assert!(retry.when_busy().covers(Some(Contention::Busy)));
    }
}
