//! The client: locks on one store, inspections, breaks.

mod builder;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use builder::{LocksBuilder, Opener};

use crate::claim::{Claim, ClaimId, Fence, ResourceName};
use crate::driver::{Driver, DynDriver, End, Info, Interest, Released, Watch};
use crate::engine::Core;
use crate::error::Result;
use crate::state::{Ending, Page, Query, ResourceState};

/// A client: locks on one store. Cheap to clone; every clone is the same client.
///
/// [`mutex`](Self::mutex), [`rwlock`](Self::rwlock), [`semaphore`](Self::semaphore), [`election`](Self::election) and
/// [`once`](Self::once) make locks. They do no I/O: a lock is checked and taken by its own `lock()`.
///
/// # Guarantees
/// - No call blocks its thread. A request to the store ends after `op_timeout` at the latest.
/// - Dropping the last clone does not release locks: their guards keep what they need.
///
/// # Examples
/// ```
/// # use oarlock_core::{Locks, Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("deploy/prod").lock().await?;
/// assert_eq!(locks.inspect("deploy/prod").await?.holders.len(), 1);
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Locks {
    pub(crate) core: Arc<Core>,
}

#[oarlock_macros::blocking]
impl Locks {
    /// A client over a driver, with defaults: for your own store, and for tests.
    ///
    /// Background work (renewal, releases of dropped guards) runs on the caller's tokio runtime, or on a thread of the
    /// client's own where there is none. Futures of the client must be awaited on a tokio runtime with time in any
    /// case.
    ///
    /// # Errors
    /// [`ErrorKind::Os`](crate::ErrorKind::Os) if that thread cannot be started.
    #[blocking(by_hand)]
    pub fn over(driver: impl Driver) -> Result<Self> {
        Self::builder(driver).build()
    }

    /// A client over a driver, with settings.
    #[blocking(by_hand)]
    pub fn builder(driver: impl Driver) -> LocksBuilder<Arc<dyn DynDriver>> {
        Self::builder_over(Arc::new(driver))
    }

    /// A client over a driver that is shared or chosen at run time, with settings.
    #[blocking(by_hand)]
    pub fn builder_over(driver: Arc<dyn DynDriver>) -> LocksBuilder<Arc<dyn DynDriver>> {
        LocksBuilder::of(driver)
    }

    /// The store's scheme, address and capabilities.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.core.info
    }

    /// Reads one resource as the store sees it now: holders, waiters, memo.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName);
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) if the store does not answer in time; any error that
    /// the store returns.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let _guard = locks.mutex("import").reason("nightly").lock().await?;
    /// let state = locks.inspect("import").await?;
    /// assert_eq!(state.holders[0].label.reason.as_deref(), Some("nightly"));
    /// # Ok(()) }
    /// ```
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<ResourceState> {
        let name = ResourceName::new(name)?;
        let page = self.page(Query::name(name.clone())).await?;
        Ok(page.resources.into_iter().next().unwrap_or_else(|| ResourceState::free(name)))
    }

    /// Lists every live resource, in order of names.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the store cannot list; else as
    /// [`inspect`](Self::inspect).
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let _guard = locks.mutex("import").lock().await?;
    /// for lock in locks.list().await? {
    ///     println!("{}: {} holders", lock.name, lock.holders.len());
    /// }
    /// # assert_eq!(locks.list().await?.len(), 1);
    /// # Ok(()) }
    /// ```
    pub async fn list(&self) -> Result<Vec<ResourceState>> {
        self.all(Query::live()).await
    }

    /// Lists as [`list`](Self::list) does, but reads the whole store for it: slow, and it finds the locks of other
    /// programs too.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let _guard = locks.mutex("import").lock().await?;
    /// for lock in locks.scan().await? {
    ///     println!("{}: {} holders", lock.name, lock.holders.len());
    /// }
    /// # assert_eq!(locks.scan().await?.len(), 1);
    /// # Ok(()) }
    /// ```
    pub async fn scan(&self) -> Result<Vec<ResourceState>> {
        let mut query = Query::live();
        query.scan = true;
        // One page: each would read everything again.
        query.limit = usize::MAX - 1;
        self.all(query).await
    }

    async fn all(&self, mut query: Query) -> Result<Vec<ResourceState>> {
        let mut all = Vec::new();
        loop {
            let page = self.page(query.clone()).await?;
            let last = page.resources.last().map(|state| state.name.clone());
            all.extend(page.resources);
            if !page.more || last.is_none() {
                return Ok(all);
            }
            query.after = last;
        }
    }

    async fn page(&self, query: Query) -> Result<Page> {
        self.core.check_open()?;
        self.core.in_time(self.core.driver.clone().inspect(query), "inspect").await
    }

    /// Watches a resource: the watch resolves when it may have changed. Call [`inspect`](Self::inspect) after each.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is watched.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName); any error that the store returns.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let mut watch = locks.watch("import").await?;
    /// let guard = locks.mutex("import").lock().await?;
    /// watch.changed().await;
    /// assert!(!locks.inspect("import").await?.is_free());
    /// # guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn watch(&self, name: impl AsRef<str>) -> Result<Watch> {
        let interest = Interest::Resource(ResourceName::new(name)?);
        self.core.check_open()?;
        self.core.in_time(self.core.driver.clone().watch(interest), "watch").await
    }

    /// Ends a hold of another client. `fence` proves that the caller has seen this hold: if another claim holds the
    /// lock by now, nothing happens. A lock that goes from task to task ([`Mutex::cohort`](crate::Mutex::cohort)) is
    /// one hold under the fence that [`inspect`](Self::inspect) shows, whichever task has it now.
    ///
    /// With a `grace` the holder is asked to end: its lease is not extended any more, it is notified at once where the
    /// store can ([`Held::asked_to_end`](crate::Held::asked_to_end)), and the hold ends after that time at the latest.
    /// With a grace shorter than the lease, a holder that cannot reach the store may believe in the lock after its end;
    /// protect the data by fences then.
    ///
    /// # Guarantees
    /// No other claim is ended. If the network delivers the request twice, the second one can end a later grant of the
    /// same claim. Without a grace the hold is over in the store when this returns [`Released::Released`].
    ///
    /// # Cancel safety
    /// If the future is dropped, a request that was sent is finished in the background: the hold may end or not.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Locks, Memory, Released, state::Ending};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("import").lock().await?;
    /// let ending = Ending::new("ops@example.org", "maintenance");
    /// let released = locks.break_hold("import", guard.fence(), ending, Duration::ZERO).await?;
    /// assert_eq!(released, Released::Released);
    /// guard.lost().await;
    /// # Ok(()) }
    /// ```
    pub async fn break_hold(
        &self,
        name: impl AsRef<str>,
        fence: Fence,
        ending: Ending,
        grace: Duration,
    ) -> Result<Released> {
        let state = self.inspect(name).await?;
        let Some(holder) = state.holders.iter().find(|holder| holder.fence == Some(fence)) else {
            return Ok(Released::NotHeld);
        };
        self.break_claim(&state.name, holder.id, ending, grace).await
    }

    /// Ends a hold as [`break_hold`](Self::break_hold) does, by the id that [`inspect`](Self::inspect) shows: for holds
    /// of other programs, which have no fence.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request is finished in the background: the hold may end or not.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Ending, Locks, Memory, Released};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// let guard = locks.mutex("import").lock().await?;
    /// for holder in locks.inspect("import").await?.holders {
    ///     let ending = Ending::new("ops@example.org", "maintenance");
    ///     let released = locks.break_claim("import", holder.id, ending, Duration::ZERO).await?;
    ///     assert_eq!(released, Released::Released);
    /// }
    /// guard.lost().await;
    /// # Ok(()) }
    /// ```
    pub async fn break_claim(
        &self,
        name: impl AsRef<str>,
        id: ClaimId,
        ending: Ending,
        grace: Duration,
    ) -> Result<Released> {
        let name = ResourceName::new(name)?;
        self.core.check_open()?;
        let release = self.core.driver.clone().release(name, id, End::Broken { ending, grace });
        Ok(self.core.in_time(release, "break").await?.outcome)
    }

    /// Finishes the releases that dropped guards and abandoned acquisitions left, for at most `patience`, and closes
    /// the connections to the store, which may take a second more; what takes longer goes on in the background. Guards
    /// that still live lose their locks ([`LossReason::Session`](crate::LossReason::Session)), unless they live by
    /// their lease alone.
    ///
    /// # Cancel safety
    /// If the future is dropped, the client stays shut down and releases go on in the background, but connections may
    /// stay open. Another call finishes it.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) if a release was not finished; any error that the
    /// store returns when it is closed.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use oarlock_core::{Locks, Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// # let locks = Locks::over(Memory::new())?;
    /// drop(locks.mutex("import").lock().await?); // released in the background
    /// locks.shutdown(Duration::from_secs(5)).await?; // now it is released for certain
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(&self, patience: Duration) -> Result<()> {
        self.core.shutdown(patience).await
    }

    pub(crate) fn claim(&self, name: ResourceName) -> Claim {
        let mut claim = Claim::new(ClaimId::from_bits(0), name);
        claim.ttl = self.core.ttl;
        claim.label = self.core.label.clone();
        claim
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("info", &self.core.info).finish_non_exhaustive()
    }
}
