//! The client's mailbox: hints about its claims, from the store.

use std::time::Duration;

use super::Shared;
use crate::claim::ClaimId;
use crate::clock::{Moment, sleep_until};
use crate::driver::{Interest, Watch};
use crate::engine::uncut::Uncut;
use crate::error::Result;

/// The client's mailbox, armed anew whenever it ends.
#[derive(Default)]
pub(super) struct Mailbox {
    watch: Option<Watch>,
    arming: Option<Uncut<Result<Watch>>>,
    retry_at: Option<Moment>,
}

impl Mailbox {
    /// The claim that the next hint is about; `None` for all of them.
    ///
    /// # Cancel safety
    /// Whatever was under way goes on with the next call.
    pub(super) async fn hint(&mut self, shared: &Shared) -> Option<ClaimId> {
        loop {
            if let Some(watch) = &mut self.watch {
                match watch.changed().await {
                    Some(hint) => return hint.claim,
                    None => self.watch = None,
                }
            }
            if let Some(arming) = &mut self.arming {
                // Renewals notice whatever a missing mailbox does not tell.
                self.watch = arming.await.ok();
                self.arming = None;
                self.retry_at = Some(shared.clock.now() + shared.entropy.jitter(Duration::from_secs(1)));
                if self.watch.is_some() {
                    // What happened before it was armed is seen by looking at everything once.
                    return None;
                }
                continue;
            }
            if let Some(retry_at) = self.retry_at {
                sleep_until(&*shared.clock, retry_at).await;
            }
            let request = shared.driver.clone().watch(Interest::Mailbox);
            self.arming = Some(Uncut::new(&shared.home, request));
        }
    }
}
