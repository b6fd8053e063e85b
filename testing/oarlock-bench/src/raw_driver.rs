//! The requests of a driver without the engine.

use std::sync::Arc;

use oarlock::driver::{Attempt, BoxFuture, Claim, ClaimId, DynDriver, End, ResourceName};
use oarlock::url::Url;
use oarlock::{Error, ErrorKind, Label, Result};

use crate::baseline::{Baseline, Rival};

/// The requests of a driver without the engine: the difference to a lock is the cost of the engine.
pub struct RawDriver {
    driver: Arc<dyn DynDriver>,
    label: Arc<Label>,
}

impl RawDriver {
    /// Connects to the store behind `url`.
    ///
    /// # Errors
    /// As [`oarlock::connect`].
    pub async fn open(url: Url) -> Result<Arc<dyn Baseline>> {
        Ok(Arc::new(Self { driver: url.store().open(url).await?, label: Arc::new(Label::of_this_process()) }))
    }
}

impl Baseline for RawDriver {
    fn what(&self) -> &'static str {
        "the driver's own requests, without the engine"
    }

    fn pair(self: Arc<Self>, name: Arc<str>) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            let (name, id) = (ResourceName::new(&*name)?, ClaimId::from_bits(fastrand::u128(..)));
            let mut claim = Claim::new(id, name.clone());
            claim.label = self.label.clone();
            if let Attempt::Pending(_) = self.driver.clone().attempt(Arc::new(claim)).await? {
                return Err(Error::new(ErrorKind::Busy, "another client holds the lock of the benchmark"));
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
