//! A node that is connected when it can be reached.

use std::fmt;
use std::sync::Arc;

use super::error::{SCHEME, unsent};
use oarlock_core::capabilities::Capabilities;
use oarlock_core::claim::{Claim, ClaimId, ResourceName};
use oarlock_core::driver::{
    Attempt, BoxFuture, Driver, DynDriver, End, Info, Interest, Release, Renewal, Renewed, Watch,
};
use oarlock_core::error::Result;
use oarlock_core::reconnect::{Ends, Reopened};
use oarlock_core::state::{Page, Query};

type Opened = Result<Arc<dyn DynDriver>>;
type Open = dyn Fn() -> BoxFuture<Opened> + Send + Sync;

/// A store that may not be reachable yet. Every request tries to connect until one succeeds; requests at the same time
/// share the attempt.
///
/// Membership of a quorum is configuration, never "the nodes that could be reached": one that is down when its client
/// starts is a member that does not vote, and it votes when it is back.
pub struct Later {
    address: String,
    open: Box<Open>,
    node: Reopened<Reached>,
}

struct Reached(Arc<dyn DynDriver>);

impl Ends for Reached {
    /// A driver that was connected once opens its own connections again.
    fn is_ended(&self) -> bool {
        false
    }
}

impl Later {
    /// The store at `address`, which `open` connects to.
    pub fn new(address: impl Into<String>, open: impl Fn() -> BoxFuture<Opened> + Send + Sync + 'static) -> Self {
        Self { address: address.into(), open: Box::new(open), node: Reopened::new(SCHEME) }
    }

    /// The store, if it can be reached.
    ///
    /// # Cancel safety
    /// Dropping this future does not end the connection attempt.
    ///
    /// # Errors
    /// Any error of connecting.
    pub async fn reach(&self) -> Opened {
        let open = || {
            let opened = (self.open)();
            async { opened.await.map(Reached) }
        };
        Ok(self.node.get(open).await?.0.clone())
    }

    /// The store, if it was reached.
    pub(super) fn opened(&self) -> Option<Arc<dyn DynDriver>> {
        Some(self.node.current()?.0.clone())
    }
}

impl Driver for Later {
    fn info(&self) -> Info {
        let unknown = || Info::new(SCHEME, &self.address, Capabilities::of_the_model());
        self.opened().map_or_else(unknown, |driver| driver.info())
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        self.reach().await.map_err(unsent)?.attempt(Arc::new(claim.clone())).await
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        match self.reach().await.map_err(unsent) {
            Ok(driver) => driver.renew(batch.to_vec()).await,
            Err(error) => batch.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.reach().await.map_err(unsent)?.release(resource.clone(), id, end.clone()).await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.reach().await.map_err(unsent)?.watch(interest.clone()).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.reach().await.map_err(unsent)?.inspect(query.clone()).await
    }

    async fn close(&self) -> Result<()> {
        match self.opened() {
            Some(driver) => driver.close().await,
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Later").field("address", &self.address).finish_non_exhaustive()
    }
}
