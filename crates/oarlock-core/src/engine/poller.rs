//! Polls the state of one name: after a hint, when a lease ends, and periodically.

use std::time::Duration;

use super::armed_watch::ArmedWatch;
use super::backoff::Backoff;
use crate::capabilities::Notify;
use crate::claim::ResourceName;
use crate::clock::{Moment, nap_until};
use crate::error::{Result, Retry};
use crate::locks::Locks;
use crate::state::ResourceState;

/// The successive states of one name. States in between may be missed; the last one never is.
pub(crate) struct Poller {
    client: Locks,
    name: ResourceName,
    watch: ArmedWatch,
    poll_at: Moment,
    errors: Backoff,
}

impl Poller {
    pub(crate) fn at(client: Locks, name: ResourceName) -> Self {
        let errors = Backoff::for_errors(client.core.ttl);
        let watch = ArmedWatch::new(Duration::from_millis(20), Duration::from_secs(5));
        Self { client, name, watch, poll_at: Moment::ZERO, errors }
    }

    /// The present state: at once for the first call, then whenever it may have changed. Transient errors are retried.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call polls again.
    ///
    /// # Errors
    /// Any error that the store returns and that a retry cannot repair.
    pub(crate) async fn next(&mut self) -> Result<ResourceState> {
        loop {
            // Armed before the poll, so that later changes are noticed.
            self.arm().await;
            let core = self.client.core.clone();
            if core.clock.now() >= self.poll_at {
                match self.client.inspect(&self.name).await {
                    Ok(state) => {
                        self.errors.reset();
                        self.poll_at = core.clock.now() + self.good_for(&state);
                        return Ok(state);
                    }
                    Err(error) if error.retry() == Retry::Never => return Err(error),
                    Err(_) => self.poll_at = core.clock.now() + core.entropy.jitter(self.errors.pause()),
                }
            }
            self.wait().await;
        }
    }

    async fn arm(&mut self) {
        if self.client.core.clock.now() < self.watch.arm_at() {
            return;
        }
        let armed = self.client.watch(&self.name).await;
        let core = &self.client.core;
        // Without a watch it polls.
        if self.watch.put(armed, &*core.clock, &core.entropy) {
            self.poll_at = Moment::ZERO;
        }
    }

    async fn wait(&mut self) {
        let core = &self.client.core;
        let until = self.poll_at.min(self.watch.arm_at());
        tokio::select! {
            biased;
            hint = self.watch.changed(&*core.clock, &core.entropy) => {
                if hint.is_some() {
                    self.watch.reset();
                }
                self.poll_at = Moment::ZERO;
            }
            () = nap_until(&*core.clock, until) => {}
        }
    }

    /// When to poll next if no hint comes: when the first lease could end, or after a part of the client's lease.
    fn good_for(&self, state: &ResourceState) -> Duration {
        let core = &self.client.core;
        let slow = match core.info.capabilities.notify {
            Notify::Push => core.ttl / 3,
            Notify::Poll => (core.ttl / 3).min(Duration::from_secs(1)),
        };
        let leases = state.holders.iter().map(|holder| holder.lease_left).filter(|left| !left.is_zero());
        let first = leases.min().map(|left| left + Duration::from_millis(1));
        core.entropy.jitter(slow).min(first.unwrap_or(slow))
    }
}
