//! The floor of a store: the fewest raw requests that do what a lock does, to measure a lock against.
//!
//! A floor promises nothing of what a lock promises: no fence, no queue, no renewal. It shows what the store and the way
//! to it cost alone, on a connection of the same kind as the driver's.

use std::sync::Arc;

use crate::claim::{Claim, ClaimId, Label, ResourceName};
use crate::driver::{Attempt, BoxFuture, DynDriver, End};
use crate::error::{Error, ErrorKind, Result};

/// What a store needs at least. Made by each driver crate, for `oarlock bench`.
pub trait Floor: Send + Sync {
    /// What a pair is, in a few words.
    fn what(&self) -> &'static str;

    /// Takes `name` and gives it back, with nobody else there.
    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>>;

    /// Somebody who passes `name` on to others and waits for it; `None` where the store has no plain way to do that.
    fn rival(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>>;

    /// How many requests the store has served so far, of the kinds that locks and floors send; `None` where it does not say.
    fn calls(self: Arc<Self>) -> BoxFuture<Result<Option<u64>>> {
        Box::pin(async { Ok(None) })
    }

    /// Removes what was made, and lets go of connections.
    fn close(self: Arc<Self>) -> BoxFuture<Result<()>>;
}

/// One of several who pass a name on, on a connection of its own.
pub trait Rival: Send + Sync {
    /// How it is passed on, in a few words.
    fn what(&self) -> &'static str;

    /// Waits until it is here. Fails after some seconds without it, so that nobody hangs.
    fn take(self: Arc<Self>) -> BoxFuture<Result<()>>;

    /// Passes it on to whoever waits.
    fn give(self: Arc<Self>) -> BoxFuture<Result<()>>;
}

/// The driver's own requests without an engine: what is left between this and a lock is the engine's.
pub struct Bare {
    driver: Arc<dyn DynDriver>,
    label: Arc<Label>,
}

impl Bare {
    /// Over this driver.
    #[must_use]
    pub fn new(driver: Arc<dyn DynDriver>) -> Self {
        Self { driver, label: Arc::new(Label::of_this_process()) }
    }
}

impl Floor for Bare {
    fn what(&self) -> &'static str {
        "the driver's own requests, without the engine"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let (name, id) = (ResourceName::new(&*name)?, ClaimId::from_bits(fastrand::u128(..)));
            let mut claim = Claim::new(id, name.clone());
            claim.label = self.label.clone();
            if let Attempt::Pending(_) = self.driver.clone().attempt(Arc::new(claim)).await? {
                return Err(Error::new(ErrorKind::Busy, "somebody else is here"));
            }
            self.driver.clone().release(name, id, End::Done { memo: None }).await?;
            Ok(())
        })
    }

    fn rival(self: Arc<Self>, _: Arc<str>) -> BoxFuture<Result<Option<Arc<dyn Rival>>>> {
        Box::pin(async { Ok(None) })
    }

    fn close(self: Arc<Self>) -> BoxFuture<Result<()>> {
        self.driver.clone().close()
    }
}
