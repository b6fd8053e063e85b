//! A watch that is armed again after it failed or ended, with pauses: a store whose watches fail or end at once is not
//! asked for them in a tight loop.

use std::time::Duration;

use super::backoff::Backoff;
use super::entropy::Entropy;
use crate::clock::{Clock, Moment};
use crate::driver::{Hint, Watch};
use crate::error::Result;

/// A watch that ends sooner has ended early, also where the pauses are shorter.
const SETTLED: Duration = Duration::from_secs(1);

/// A watch, or when to arm the next one.
pub(crate) struct ArmedWatch {
    watch: Option<Watch>,
    /// After a watch that failed or ended early, not before this.
    arm_at: Moment,
    /// A watch that ends before this has ended early.
    settled_at: Moment,
    pauses: Backoff,
}

impl ArmedWatch {
    /// With pauses that double from `first` to `most`.
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        let pauses = Backoff::new(first, most);
        Self { watch: None, arm_at: Moment::ZERO, settled_at: Moment::ZERO, pauses }
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.watch.is_some()
    }

    /// When to arm a watch: at this time if none is armed.
    pub(crate) fn arm_at(&self) -> Moment {
        if self.is_armed() { Moment::NEVER } else { self.arm_at }
    }

    /// Takes the answer of the store to a request for a watch. True if it gave one.
    pub(crate) fn put(&mut self, armed: Result<Watch>, clock: &dyn Clock, entropy: &Entropy) -> bool {
        self.watch = armed.ok();
        if self.watch.is_none() {
            self.arm_later(clock, entropy);
        }
        // Where pauses have grown, a watch must last longer to count as one that works.
        self.settled_at = clock.now() + self.pauses.peek().max(SETTLED);
        self.watch.is_some()
    }

    /// The next hint; `None` when the watch has ended. Pending while none is armed.
    ///
    /// # Cancel safety
    /// Dropping this future loses no hint.
    pub(crate) async fn changed(&mut self, clock: &dyn Clock, entropy: &Entropy) -> Option<Hint> {
        let Some(watch) = &mut self.watch else { return std::future::pending().await };
        let hint = watch.changed().await;
        if hint.is_none() {
            self.watch = None;
            if clock.now() < self.settled_at {
                self.arm_later(clock, entropy);
            } else {
                self.reset();
            }
        }
        hint
    }

    fn arm_later(&mut self, clock: &dyn Clock, entropy: &Entropy) {
        self.arm_at = clock.now() + entropy.jitter(self.pauses.pause());
    }

    /// The next pause is the shortest.
    pub(crate) fn reset(&mut self) {
        self.pauses.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::TokioClock;
    use crate::error::Error;

    const FIRST: Duration = Duration::from_secs(1);

    fn armed() -> (ArmedWatch, TokioClock, Entropy) {
        (ArmedWatch::new(FIRST, FIRST * 16), TokioClock::new(), Entropy::default())
    }

    /// How long until the next watch is armed; jitter takes up to a half.
    fn pause(watch: &ArmedWatch, clock: &TokioClock) -> Duration {
        watch.arm_at().since(clock.now())
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_while_watches_end_at_once() {
        let (mut watch, clock, entropy) = armed();
        for step in 0..6_u32 {
            assert!(watch.put(Ok(Watch::ended()), &clock, &entropy));
            assert_eq!(watch.changed(&clock, &entropy).await, None);
            let most = FIRST * 2_u32.pow(step).min(16);
            assert!(pause(&watch, &clock) >= most / 4 && pause(&watch, &clock) <= most * 2, "{step}");
            tokio::time::sleep(pause(&watch, &clock)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_lasted_is_armed_again_at_once() {
        let (mut watch, clock, entropy) = armed();
        watch.put(Ok(Watch::ended()), &clock, &entropy);
        watch.changed(&clock, &entropy).await;
        let (hints, lasting) = Watch::channel();
        watch.put(Ok(lasting), &clock, &entropy);
        tokio::time::sleep(FIRST * 8).await;
        drop(hints);
        assert_eq!(watch.changed(&clock, &entropy).await, None);
        assert_eq!(pause(&watch, &clock), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_while_the_store_refuses() {
        let (mut watch, clock, entropy) = armed();
        for step in 0..6_u32 {
            assert!(!watch.put(Err(Error::unreachable("refused")), &clock, &entropy));
            let most = FIRST * 2_u32.pow(step).min(16);
            assert!(pause(&watch, &clock) >= most / 4 && pause(&watch, &clock) <= most * 2, "{step}");
        }
    }
}
