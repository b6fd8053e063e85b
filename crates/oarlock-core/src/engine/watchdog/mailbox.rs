//! The mailbox of a client: the store's notifications about its claims.

use std::time::Duration;

use super::Shared;
use crate::claim::ClaimId;
use crate::clock::sleep_until;
use crate::driver::{Interest, Watch};
use crate::engine::armed_watch::ArmedWatch;
use crate::engine::finish_on_drop::FinishOnDrop;
use crate::error::Result;

/// The shortest pause between two armings. Until the next one is armed, renewals notice what the store would have told.
/// The end of a session needs no mailbox.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause: each arming makes every claim ask the store, which may be overloaded.
const LONGEST_PAUSE: Duration = Duration::from_secs(16);

/// The client's mailbox, armed anew whenever it ends.
pub(super) struct Mailbox {
    watch: ArmedWatch,
    arming: Option<FinishOnDrop<Result<Watch>>>,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self { watch: ArmedWatch::new(PAUSE, LONGEST_PAUSE), arming: None }
    }
}

impl Mailbox {
    /// The claim that the next hint is about; `None` for all of them.
    ///
    /// # Cancel safety
    /// The next call continues where this one stopped.
    pub(super) async fn hint(&mut self, shared: &Shared) -> Option<ClaimId> {
        loop {
            if self.watch.is_armed()
                && let Some(hint) = self.watch.changed(&*shared.clock, &shared.entropy).await
            {
                return hint.claim;
            }
            let Some(arming) = &mut self.arming else {
                sleep_until(&*shared.clock, self.watch.arm_at()).await;
                let request = shared.driver.clone().watch(Interest::Mailbox);
                self.arming = Some(FinishOnDrop::new(&shared.runtime, request));
                continue;
            };
            let armed = arming.await;
            self.arming = None;
            if self.watch.put(armed, &*shared.clock, &shared.entropy) {
                // All claims are checked once, for what happened before it was armed.
                return None;
            }
            // Without a mailbox, renewals notice changes. No claim asks the store because of this failure.
        }
    }
}
