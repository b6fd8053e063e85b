//! What a case works with: clients on connections of their own, fresh names, and a bound for every wait.

use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock_core::capabilities::Liveness;
use oarlock_core::clock::{BootClock, Clock, Moment};
use oarlock_core::driver::{Attempt, End, Grant, Info, Pending, Released};
use oarlock_core::event::{LockEvent, Step};
use oarlock_core::model::TURN_TTL;
use oarlock_core::state::ResourceState;
use oarlock_core::{Claim, ClaimId, DynDriver, Label, Lifetime, Locks, ResourceName};
use tokio::sync::Notify;

use crate::failure::{Failure, Outcome, ensure_eq};
use crate::fixture::{Connection, Fixture, Pace};

/// The context of one case.
pub(crate) struct TestContext {
    pub(crate) fixture: Arc<dyn Fixture>,
    pub(crate) info: Info,
    pub(crate) pace: Pace,
    case: String,
    notes: Arc<Mutex<Vec<String>>>,
}

impl TestContext {
    pub(crate) fn new(fixture: Arc<dyn Fixture>, info: Info, case: String, notes: Arc<Mutex<Vec<String>>>) -> Self {
        let pace = fixture.pace();
        Self { fixture, info, pace, case, notes }
    }

    /// Prints a measurement after the run.
    pub(crate) fn note(&self, text: impl AsRef<str>) {
        let line = format!("{} {}: {}", self.fixture.name(), self.case, text.as_ref());
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// A name that was never used before.
    pub(crate) fn name(&self) -> Outcome<ResourceName> {
        Ok(ResourceName::new(format!("conformance/{}/{:016x}", self.case, fastrand::u64(..)))?)
    }

    /// The shortest lease that suits the store.
    pub(crate) fn ttl(&self) -> Duration {
        self.pace.ttl
    }

    /// How long after its last renewal a dead holder may still block others.
    pub(crate) fn lease_ends_within(&self) -> Duration {
        self.ttl() + self.pace.soon
    }

    /// How long after its death a waiter at the head may still block others.
    pub(crate) fn place_ends_within(&self) -> Duration {
        self.ttl().min(Claim::MAX_WAITER_TTL).max(TURN_TTL) + self.pace.soon
    }

    /// How long after the death of its session a holder may still block others.
    pub(crate) fn death_noticed_within(&self) -> Duration {
        match self.info.capabilities.liveness {
            Liveness::LeaseAndProcess => self.pace.soon,
            _ => self.lease_ends_within(),
        }
    }

    pub(crate) async fn connection(&self) -> Outcome<Arc<dyn Connection>> {
        within(self.pace.soon * 5, "connect", self.fixture.connect()).await?.map_err(Failure::from)
    }

    /// A driver on a connection of its own, without an engine.
    pub(crate) async fn raw(&self) -> Outcome<Raw> {
        let connection = self.connection().await?;
        Ok(Raw { driver: connection.driver(), ttl: self.ttl(), connection })
    }

    /// A client on a connection of its own.
    pub(crate) async fn peer(&self) -> Outcome<Peer> {
        let connection = self.connection().await?;
        self.peer_over(connection.driver(), connection)
    }

    /// A client on its own connection, but over another driver, such as one that wraps the connection's.
    pub(crate) fn peer_over(&self, driver: Arc<dyn DynDriver>, connection: Arc<dyn Connection>) -> Outcome<Peer> {
        let events = Events::default();
        let seen = events.clone();
        let client = Locks::builder_over(driver)
            .ttl(self.ttl())
            .wait(self.ttl() * 3 + self.pace.soon * 5)
            .op_timeout(self.pace.soon)
            .label(Label::of_this_process().reason(&self.case))
            .observer(move |event: &LockEvent| seen.add(event))
            .build()?;
        Ok(Peer { client, events, connection, soon: self.pace.soon })
    }

    /// Waits for what should happen at once.
    pub(crate) async fn soon<T>(&self, what: &str, future: impl Future<Output = T>) -> Outcome<T> {
        within(self.pace.soon, what, future).await
    }

    /// Polls `name` until `is` is true for it, within the bound for what should happen at once.
    pub(crate) async fn until(
        &self,
        client: &Locks,
        name: &ResourceName,
        what: &str,
        is: impl Fn(&ResourceState) -> bool,
    ) -> Outcome<ResourceState> {
        let poll = async {
            loop {
                let state = client.inspect(name).await?;
                if is(&state) {
                    return Ok(state);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(self.pace.soon, what, poll).await?
    }

    /// Checks that nothing is left of `name`: a rival gets it at once, and after that it has no holder and no waiter.
    pub(crate) async fn left_clean(&self, rival: &Peer, name: &ResourceName) -> Outcome {
        // If a name belongs to one kind, that kind is not known here: only inspect the name.
        if self.info.capabilities.one_rule {
            let lock = rival.mutex(name.as_str()).ttl(self.ttl()).wait(self.pace.soon);
            let left = |error| Failure::new(format!("something was left behind: {error}"));
            lock.lock().await.map_err(left)?.release().await?;
        }
        self.until(rival, name, "nothing to be left behind", ResourceState::is_free).await?;
        Ok(())
    }
}

/// Waits for `future`, but no longer than `bound`.
pub(crate) async fn within<T>(bound: Duration, what: &str, future: impl Future<Output = T>) -> Outcome<T> {
    let late = |_| Failure::new(format!("waited {} ms in vain for {what}", bound.as_millis()));
    tokio::time::timeout(bound, future).await.map_err(late)
}

/// Now, on the clock of beliefs.
pub(crate) fn now() -> Moment {
    BootClock.now()
}

/// A client that records its events.
pub(crate) struct Peer {
    pub(crate) client: Locks,
    pub(crate) events: Events,
    pub(crate) connection: Arc<dyn Connection>,
    soon: Duration,
}

impl Deref for Peer {
    type Target = Locks;

    fn deref(&self) -> &Locks {
        &self.client
    }
}

impl Peer {
    /// Waits until `count` claims of this client wait for `name`.
    pub(crate) async fn waits(&self, name: &ResourceName, count: usize) -> Outcome {
        let changed = self.events.until(|events| {
            let mut claims: Vec<ClaimId> = events
                .iter()
                .filter(|event| event.resource == *name && matches!(event.step, Step::Waiting { .. }))
                .map(|event| event.claim)
                .collect();
            claims.sort_unstable();
            claims.dedup();
            claims.len() >= count
        });
        within(self.soon, "a claim to queue", changed).await
    }
}

/// The events of one client.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<(Mutex<Vec<LockEvent>>, Notify)>);

impl Events {
    fn add(&self, event: &LockEvent) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
        self.0.1.notify_waiters();
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&[LockEvent]) -> T) -> T {
        read(&self.0.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) async fn until(&self, is: impl Fn(&[LockEvent]) -> bool) {
        loop {
            let changed = self.0.1.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.read(&is) {
                return;
            }
            changed.await;
        }
    }
}

/// A driver on its own connection, called verb by verb.
pub(crate) struct Raw {
    pub(crate) driver: Arc<dyn DynDriver>,
    pub(crate) connection: Arc<dyn Connection>,
    ttl: Duration,
}

impl Raw {
    /// A claim of everything on `name`, with an id of its own.
    pub(crate) fn claim(&self, name: &ResourceName) -> Claim {
        let mut claim = Claim::new(ClaimId::from_bits(fastrand::u128(..)), name.clone());
        claim.ttl = self.ttl;
        claim.lifetime = Lifetime::Process;
        claim
    }

    pub(crate) async fn attempt(&self, claim: &Claim) -> oarlock_core::Result<Attempt> {
        self.driver.clone().attempt(Arc::new(claim.clone())).await
    }

    pub(crate) async fn granted(&self, claim: &Claim) -> Outcome<Grant> {
        match self.attempt(claim).await? {
            Attempt::Granted(grant) => Ok(grant),
            Attempt::Pending(pending) => Err(Failure::new(format!("was not granted: {pending:?}"))),
        }
    }

    pub(crate) async fn pending(&self, claim: &Claim) -> Outcome<Pending> {
        match self.attempt(claim).await? {
            Attempt::Pending(pending) => Ok(pending),
            Attempt::Granted(grant) => Err(Failure::new(format!("was granted: {grant:?}"))),
        }
    }

    pub(crate) async fn release(
        &self,
        name: &ResourceName,
        id: ClaimId,
        end: oarlock_core::driver::End,
    ) -> oarlock_core::Result<oarlock_core::driver::Release> {
        self.driver.clone().release(name.clone(), id, end).await
    }

    /// Ends the hold of another client, which is not told. `End::Withdrawn` would not do: a client withdraws its own
    /// claims only, and Redlock finds the later rounds of other clients for the other ends alone.
    pub(crate) async fn take_away(&self, name: &ResourceName, id: ClaimId) -> Outcome {
        let release = self.release(name, id, End::Done { memo: None }).await?;
        ensure_eq!(release.outcome, Released::Released, "taking the lock away");
        Ok(())
    }
}
