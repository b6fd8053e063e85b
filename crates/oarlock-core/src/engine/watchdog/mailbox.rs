//! The mailbox of a client: the store's notifications about its claims.

use std::time::Duration;

use super::Shared;
use crate::claim::ClaimId;
use crate::clock::{Moment, sleep_until};
use crate::driver::{Interest, Watch};
use crate::engine::finish_on_drop::FinishOnDrop;
use crate::error::Result;

/// The shortest pause between two armings.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause: each arming makes every claim ask the store, which may be overloaded.
const LONGEST_PAUSE: Duration = Duration::from_secs(16);

/// The client's mailbox, armed anew whenever it ends.
pub(super) struct Mailbox {
    watch: Option<Watch>,
    arming: Option<FinishOnDrop<Result<Watch>>>,
    retry_at: Option<Moment>,
    pause: Duration,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self { watch: None, arming: None, retry_at: None, pause: PAUSE }
    }
}

impl Mailbox {
    /// The claim that the next hint is about; `None` for all of them.
    ///
    /// # Cancel safety
    /// The next call continues where this one stopped.
    pub(super) async fn hint(&mut self, shared: &Shared) -> Option<ClaimId> {
        loop {
            if let Some(watch) = &mut self.watch {
                match watch.changed().await {
                    Some(hint) => return hint.claim,
                    None => {
                        self.watch = None;
                        let is_early = self.retry_at.is_some_and(|retry_at| shared.clock.now() < retry_at);
                        self.pause = if is_early { (self.pause * 2).min(LONGEST_PAUSE) } else { PAUSE };
                    }
                }
            }
            if let Some(arming) = &mut self.arming {
                // Without a mailbox, renewals notice changes.
                self.watch = arming.await.ok();
                self.arming = None;
                self.retry_at = Some(shared.clock.now() + shared.entropy.jitter(self.pause));
                if self.watch.is_some() {
                    // All claims are checked once, for what happened before it was armed.
                    return None;
                }
                continue;
            }
            if let Some(retry_at) = self.retry_at {
                sleep_until(&*shared.clock, retry_at).await;
            }
            let request = shared.driver.clone().watch(Interest::Mailbox);
            self.arming = Some(FinishOnDrop::new(&shared.runtime, request));
        }
    }
}
