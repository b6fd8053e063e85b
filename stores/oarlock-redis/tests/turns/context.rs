//! Claims of one name, and stores that are notified of their turns.

use std::time::Duration;

use oarlock_core::driver::{Attempt, Driver as _, End, Grant, Interest, Pending, Watch};
use oarlock_core::{Claim, ClaimId, Locks, ResourceName};
use oarlock_redis::Redis;

pub(super) use super::shared::TestContext;

pub(super) const DONE: End = End::Done { memo: None };

/// How long a turn may go untaken.
pub(super) const TURN: Duration = Duration::from_secs(2);

impl TestContext {
    /// A store that is notified of the turns of its claims.
    pub(super) async fn listening(&self) -> (Redis, Watch) {
        let store = self.open().await;
        let mailbox = store.watch(&Interest::Mailbox).await.unwrap();
        (store, mailbox)
    }

    pub(super) async fn client(&self) -> Locks {
        Locks::over(self.open().await).unwrap()
    }

    /// How many mailboxes have a subscriber.
    pub(super) async fn listeners(&self) -> usize {
        let mut ask = redis::cmd("PUBSUB");
        let channels: Vec<String> =
            ask.arg("CHANNELS").arg("oarlock:mail:*").query_async(&mut self.raw.clone()).await.unwrap();
        channels.len()
    }

    /// How many scripts the server has run.
    pub(super) async fn calls(&mut self) -> u64 {
        let told: String = self.ask(&["INFO", "commandstats"]).await;
        let line = told.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |figures| figures.split(',').next().unwrap().parse().unwrap())
    }
}

macro_rules! context {
    () => {
        match $crate::context::TestContext::start().await {
            Some(context) => context,
            None => return,
        }
    };
}
pub(super) use context;

pub(super) fn name() -> ResourceName {
    ResourceName::new("deploy").unwrap()
}

/// A claim that waits.
pub(super) fn claim(id: u128) -> Claim {
    let mut claim = Claim::new(ClaimId::from_bits(id), name());
    claim.wait = true;
    claim
}

pub(super) async fn granted(store: &Redis, claim: &Claim) -> Grant {
    match store.attempt(claim).await.unwrap() {
        Attempt::Granted(grant) => grant,
        Attempt::Pending(pending) => panic!("{pending:?}"),
    }
}

pub(super) async fn pending(store: &Redis, claim: &Claim) -> Pending {
    match store.attempt(claim).await.unwrap() {
        Attempt::Pending(pending) => pending,
        Attempt::Granted(grant) => panic!("{grant:?}"),
    }
}

/// The claim that the next notification is for.
pub(super) async fn told(watch: &mut Watch) -> Option<ClaimId> {
    let notification = tokio::time::timeout(Duration::from_secs(30), watch.changed()).await;
    notification.expect("a notification").expect("a watch that has not ended").claim
}

pub(super) async fn release(store: &Redis, claim: &Claim) {
    store.release(&name(), claim.id, &DONE).await.unwrap();
}
