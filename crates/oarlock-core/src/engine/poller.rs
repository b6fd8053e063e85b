//! Polls the state of one name: after a hint, when a lease ends, and periodically.

use std::time::Duration;

use super::backoff::Backoff;
use crate::capabilities::Notify;
use crate::claim::ResourceName;
use crate::clock::{Moment, nap_until};
use crate::driver::Watch;
use crate::error::{Result, Retry};
use crate::locks::Locks;
use crate::state::ResourceState;

/// The successive states of one name. States in between may be missed; the last one never is.
pub(crate) struct Poller {
    client: Locks,
    name: ResourceName,
    watch: Option<Watch>,
    /// After a watch that failed or ended, not before this.
    arm_at: Moment,
    poll_at: Moment,
    pauses: Backoff,
    errors: Backoff,
}

impl Poller {
    pub(crate) fn at(client: Locks, name: ResourceName) -> Self {
        let errors = Backoff::for_errors(client.core.ttl);
        let pauses = Backoff::new(Duration::from_millis(20), Duration::from_secs(5));
        Self { client, name, watch: None, arm_at: Moment::ZERO, poll_at: Moment::ZERO, pauses, errors }
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
                    Err(_) => self.poll_at = core.clock.now() + core.entropy.jitter(self.errors.next()),
                }
            }
            self.wait().await;
        }
    }

    async fn arm(&mut self) {
        let now = self.client.core.clock.now();
        if self.watch.is_some() || now < self.arm_at {
            return;
        }
        match self.client.watch(&self.name).await {
            Ok(watch) => {
                self.watch = Some(watch);
                self.poll_at = Moment::ZERO;
            }
            // Without a watch it polls.
            Err(_) => self.arm_later(),
        }
    }

    fn arm_later(&mut self) {
        let core = &self.client.core;
        self.watch = None;
        self.arm_at = core.clock.now() + core.entropy.jitter(self.pauses.next());
    }

    async fn wait(&mut self) {
        let until = if self.watch.is_some() { self.poll_at } else { self.poll_at.min(self.arm_at) };
        let hint = async {
            match &mut self.watch {
                Some(watch) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            hint = hint => {
                if hint.is_some() {
                    self.pauses.reset();
                } else {
                    self.arm_later();
                }
                self.poll_at = Moment::ZERO;
            }
            () = nap_until(&*self.client.core.clock, until) => {}
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
