//! The watch for the turn of a pending claim.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify as Wakeup;

use crate::claim::Claim;
use crate::clock::{Moment, nap_until};
use crate::driver::{Cursor, Interest, Pending, Watch};
use crate::engine::Core;
use crate::engine::backoff::Backoff;

/// The watch for a claim's turn.
pub(super) struct TurnWatch {
    pub(super) watch: Option<(Cursor, Watch)>,
    /// After a watch that failed or ended, not before this.
    arm_at: Moment,
    pauses: Backoff,
}

impl Default for TurnWatch {
    fn default() -> Self {
        let pauses = Backoff::new(Duration::from_millis(20), Duration::from_secs(5));
        Self { watch: None, arm_at: Moment::ZERO, pauses }
    }
}

impl TurnWatch {
    /// Arms a watch unless one is armed for this cursor. True if the store must be asked once more because of that.
    pub(super) async fn arm(&mut self, core: &Core, claim: &Arc<Claim>, pending: &Pending, give_up: Moment) -> bool {
        if self.watch.as_ref().is_some_and(|(cursor, _)| *cursor == pending.cursor) {
            return false;
        }
        if core.clock.now() < self.arm_at {
            return false;
        }
        let interest = Interest::Turn(claim.clone(), pending.cursor.clone());
        let armed = core.by(give_up, core.driver.clone().watch(interest), "watch").await;
        // Without a watch the claim polls.
        self.watch = armed.ok().map(|watch| (pending.cursor.clone(), watch));
        if self.watch.is_none() {
            self.arm_later(core);
        }
        self.watch.is_some() && !pending.watched
    }

    /// Waits before the next arming: a store whose watches fail must not be asked for them in a tight loop.
    fn arm_later(&mut self, core: &Core) {
        self.watch = None;
        self.arm_at = core.clock.now() + core.entropy.jitter(self.pauses.next());
    }

    /// Sleeps until a hint, a wake-up by the watchdog, or `until`.
    pub(super) async fn wait(&mut self, core: &Core, wakeup: Option<&Wakeup>, until: Moment) {
        let hint = async {
            match &mut self.watch {
                Some((_, watch)) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        let woken = async {
            match wakeup {
                Some(wakeup) => wakeup.notified().await,
                None => std::future::pending().await,
            }
        };
        let until = if self.arm_at > core.clock.now() { until.min(self.arm_at) } else { until };
        let hinted = tokio::select! {
            biased;
            hint = hint => Some(hint),
            () = woken => None,
            () = nap_until(&*core.clock, until) => None,
        };
        match hinted {
            Some(None) => self.arm_later(core),
            Some(Some(_)) => self.pauses.reset(),
            None => {}
        }
    }
}
