//! Settings of a client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Locks;
use crate::blocking;
use crate::claim::Label;
#[cfg(any(test, feature = "testing"))]
use crate::clock::Clock;
use crate::driver::{BoxFuture, DynDriver};
use crate::engine::{Core, Runtime, Settings};
use crate::error::Result;
use crate::event::Observer;

/// Builds a client. A setting made here overrides the URL.
///
/// `S` is where the driver comes from: a URL ([`Opener`]: finish with [`connect`](LocksBuilder::connect)), or a driver
/// that exists already ([`Locks::builder`]: finish with [`build`](LocksBuilder::build)).
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # mod oarlock {
/// #     use std::sync::Arc;
/// #     use oarlock_core::{DynDriver, LocksBuilder, Memory, driver::Opener};
/// #     pub fn builder(_: &str) -> LocksBuilder {
/// #         LocksBuilder::of(Opener::new(|| Box::pin(async { Ok(Arc::new(Memory::new()) as Arc<dyn DynDriver>) })))
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// let locks = oarlock::builder("redis://localhost")
///     .ttl(Duration::from_secs(10))
///     .wait(Duration::from_secs(5))
///     .own_thread()
///     .connect()
///     .await?;
/// locks.mutex("report").lock().await?.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "call connect() or build()"]
pub struct LocksBuilder<S = Opener> {
    source: S,
    settings: Settings,
}

/// Opens the driver of a client, on the client's runtime.
pub struct Opener(Box<dyn FnOnce() -> Opened + Send>);

type Opened = BoxFuture<Result<Arc<dyn DynDriver>>>;

impl Opener {
    /// A driver that `open` opens.
    pub fn new(open: impl FnOnce() -> Opened + Send + 'static) -> Self {
        Self(Box::new(open))
    }
}

#[oarlock_macros::blocking]
impl<S> LocksBuilder<S> {
    /// A client whose driver comes from `source`.
    #[blocking(none)]
    pub fn of(source: S) -> Self {
        Self { source, settings: Settings::default() }
    }

    /// Sets the clock that belief is counted on: the one of the store, in a test. Drivers of real stores count on the
    /// clock of the machine.
    #[cfg(any(test, feature = "testing"))]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Registers an observer for every lock event.
    ///
    /// # Examples
    /// ```
    /// # use oarlock_core::LockEvent;
    /// # mod oarlock {
    /// #     use std::sync::Arc;
    /// #     use oarlock_core::{DynDriver, LocksBuilder, Memory, driver::Opener};
    /// #     pub fn builder(_: &str) -> LocksBuilder {
    /// #         LocksBuilder::of(Opener::new(|| Box::pin(async { Ok(Arc::new(Memory::new()) as Arc<dyn DynDriver>) })))
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let locks = oarlock::builder("redis://localhost")
    ///     .observer(|event: &LockEvent| println!("{}: {:?}", event.resource, event.step))
    ///     .connect()
    ///     .await?;
    /// # locks.mutex("report").lock().await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.settings.observers.push(Arc::new(observer));
        self
    }

    /// Makes the name of a lock a label of its metrics. Only for programs with few names: each name is a series of its
    /// own in the metrics system, for ever.
    #[cfg(feature = "metrics")]
    pub fn names_in_metrics(mut self) -> Self {
        self.settings.names_in_metrics = true;
        self
    }

    /// Draws jitter and the order of ids from a seed instead of the operating system, to replay a test. The ids
    /// themselves stay unique: clients of one seed do not share their locks.
    #[cfg(any(test, feature = "testing"))]
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.entropy = crate::engine::Entropy::seeded(seed);
        self
    }

    /// Renews on a thread of the client's own, which a busy runtime cannot delay.
    #[blocking(none)]
    pub fn own_thread(mut self) -> Self {
        self.settings.own_thread = true;
        self
    }

    /// Sets where connections live and renewal runs; overrides [`own_thread`](Self::own_thread).
    #[blocking(none)]
    pub fn runtime(mut self, runtime: Runtime) -> Self {
        self.settings.runtime = Some(runtime);
        self
    }

    /// Sets the lease of locks that do not set their own; 30 seconds by default.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// Sets how long locks wait that do not set their own bound; 30 seconds by default.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.settings.wait = wait;
        self
    }

    /// Sets the timeout of one request to the store: greater than 0, and at most
    /// [`MAX_OP_TIMEOUT`](crate::engine::MAX_OP_TIMEOUT); 5 seconds by default.
    pub fn op_timeout(mut self, op_timeout: Duration) -> Self {
        self.settings.op_timeout = op_timeout;
        self
    }

    /// Sets how many claims of this client may wait in the store's queue for one name; 10,000 by default. One more is
    /// refused with [`ErrorKind::TooManyWaiters`](crate::ErrorKind::TooManyWaiters) before the store is asked.
    ///
    /// Tasks that wait for one exclusive lock in this client have one position in the store's queue together, and do
    /// not count. Readers, permits and fair locks each have a position.
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.settings.max_waiters = max_waiters;
        self
    }

    /// Identifies this client to others (host, pid, user, reason); this process by default.
    pub fn label(mut self, label: Label) -> Self {
        self.settings.label = Some(label);
        self
    }
}

#[oarlock_macros::blocking]
impl LocksBuilder<Opener> {
    /// Connects to the store.
    ///
    /// # Cancel safety
    /// If the future is dropped there is no client; a connection that is being opened is closed.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for an invalid URL, a driver that this build does not
    /// have, or a setting out of range; any error that the store returns.
    ///
    /// # Examples
    /// ```
    /// # mod oarlock {
    /// #     use std::sync::Arc;
    /// #     use oarlock_core::{DynDriver, LocksBuilder, Memory, driver::Opener};
    /// #     pub fn builder(_: &str) -> LocksBuilder {
    /// #         LocksBuilder::of(Opener::new(|| Box::pin(async { Ok(Arc::new(Memory::new()) as Arc<dyn DynDriver>) })))
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
    /// let locks = oarlock::builder("redis://localhost").own_thread().connect().await?;
    /// # locks.mutex("report").lock().await?.release().await?;
    /// # Ok(()) }
    /// ```
    #[blocking(by_hand)]
    pub async fn connect(mut self) -> Result<Locks> {
        self.settings.check()?;
        let runtime = self.settings.take_runtime()?;
        let Opener(open) = self.source;
        let driver = match &runtime {
            // Connections belong to the runtime that opened them.
            Some(runtime) => runtime.run(open()).await??,
            None => open().await?,
        };
        self.settings.runtime = runtime;
        Ok(Locks { core: Arc::new(Core::new(driver, self.settings)?) })
    }

    /// Connects to the store for code that blocks; background work runs on a thread of the client's own.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    #[blocking(none)]
    pub fn connect_blocking(self) -> Result<blocking::Locks> {
        let runtime = Runtime::own_thread()?;
        blocking::Locks::of(runtime.block_on(self.runtime(runtime.clone()).connect())??)
    }
}

#[oarlock_macros::blocking]
impl LocksBuilder<Arc<dyn DynDriver>> {
    /// Builds the client.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a lease or a timeout out of range and for `max_waiters` of
    /// 0, [`ErrorKind::InvalidClaim`](crate::ErrorKind::InvalidClaim) for a label that is too long,
    /// [`ErrorKind::Os`](crate::ErrorKind::Os) if a thread was needed and could not be started.
    #[blocking(by_hand)]
    pub fn build(self) -> Result<Locks> {
        self.settings.check()?;
        Ok(Locks { core: Arc::new(Core::new(self.source, self.settings)?) })
    }

    /// Builds the client for code that blocks; background work runs on a thread of the client's own.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    #[blocking(none)]
    pub fn build_blocking(self) -> Result<blocking::Locks> {
        blocking::Locks::of(self.runtime(Runtime::own_thread()?).build()?)
    }
}

impl<S> fmt::Debug for LocksBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocksBuilder").field("ttl", &self.settings.ttl).finish_non_exhaustive()
    }
}
