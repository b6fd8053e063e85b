//! The watch for the turn of a pending claim.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify as Wakeup;

use crate::claim::Claim;
use crate::clock::{Moment, nap_until};
use crate::driver::{Cursor, Interest, Pending};
use crate::engine::Core;
use crate::engine::armed_watch::ArmedWatch;

/// The watch for a claim's turn.
pub(super) struct TurnWatch {
    pub(super) watch: ArmedWatch,
    /// What it watches.
    cursor: Cursor,
}

impl Default for TurnWatch {
    fn default() -> Self {
        let watch = ArmedWatch::new(Duration::from_millis(20), Duration::from_secs(5));
        Self { watch, cursor: Cursor::default() }
    }
}

impl TurnWatch {
    /// Arms a watch unless one is armed for this cursor. True if the store must be asked once more because of that.
    pub(super) async fn arm(&mut self, core: &Core, claim: &Arc<Claim>, pending: &Pending, give_up: Moment) -> bool {
        let is_other = self.watch.is_armed() && self.cursor != pending.cursor;
        if !is_other && core.clock.now() < self.watch.arm_at() {
            return false;
        }
        self.cursor.clone_from(&pending.cursor);
        let interest = Interest::Turn(claim.clone(), pending.cursor.clone());
        let armed = core.by(give_up, core.driver.clone().watch(interest), "watch").await;
        // Without a watch the claim polls.
        self.watch.put(armed, &*core.clock, &core.entropy) && !pending.watched
    }

    /// Sleeps until a hint, a wake-up by the watchdog, or `until`.
    pub(super) async fn wait(&mut self, core: &Core, wakeup: Option<&Wakeup>, until: Moment) {
        let woken = async {
            match wakeup {
                Some(wakeup) => wakeup.notified().await,
                None => std::future::pending().await,
            }
        };
        let arm_at = self.watch.arm_at();
        let until = if arm_at > core.clock.now() { until.min(arm_at) } else { until };
        tokio::select! {
            biased;
            hint = self.watch.changed(&*core.clock, &core.entropy) => {
                if hint.is_some() {
                    self.watch.reset();
                }
            }
            () = woken => {}
            () = nap_until(&*core.clock, until) => {}
        }
    }
}
