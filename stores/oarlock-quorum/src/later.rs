//! A node that is connected when it can be reached.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::SCHEME;
use oarlock_core::capabilities::Capabilities;
use oarlock_core::claim::{Claim, ClaimId, ResourceName};
use oarlock_core::driver::{
    Attempt, BoxFuture, Driver, DynDriver, End, Info, Interest, Release, Renewal, Renewed, Watch,
};
use oarlock_core::error::{Error, ErrorKind, Result};
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
    state: Mutex<State>,
}

enum State {
    Shut,
    Opening(watch::Receiver<Option<Opened>>),
    Open(Arc<dyn DynDriver>),
}

impl Later {
    /// The store at `address`, which `open` connects to.
    pub fn new(address: impl Into<String>, open: impl Fn() -> BoxFuture<Opened> + Send + Sync + 'static) -> Self {
        Self { address: address.into(), open: Box::new(open), state: Mutex::new(State::Shut) }
    }

    /// The store, if it can be reached.
    ///
    /// # Cancel safety
    /// Dropping this future does not end the connection attempt.
    ///
    /// # Errors
    /// Any error of connecting.
    pub async fn reach(&self) -> Opened {
        let mut opening = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            match &*state {
                State::Open(driver) => return Ok(driver.clone()),
                // One that failed is over, and so is one whose runtime ended before it was done.
                State::Opening(opening) if opening.borrow().is_none() && opening.has_changed().is_ok() => {
                    opening.clone()
                }
                State::Opening(_) | State::Shut => {
                    let (done, opening) = watch::channel(None);
                    let open = (self.open)();
                    tokio::spawn(async move { done.send_replace(Some(open.await)) });
                    *state = State::Opening(opening.clone());
                    opening
                }
            }
        };
        let opened = match opening.wait_for(Option::is_some).await {
            Ok(opened) => opened.clone(),
            Err(_) => None,
        };
        let gone = || Err(Error::new(ErrorKind::Closed, "the tokio runtime of this client has ended").on(SCHEME));
        let driver = opened.unwrap_or_else(gone)?;
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Open(driver.clone());
        Ok(driver)
    }
}

impl Later {
    /// The store, if it was reached.
    pub(super) fn opened(&self) -> Option<Arc<dyn DynDriver>> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open(driver) => Some(driver.clone()),
            State::Shut | State::Opening(_) => None,
        }
    }
}

impl Driver for Later {
    fn info(&self) -> Info {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open(driver) => driver.info(),
            State::Shut | State::Opening(_) => Info::new(SCHEME, &self.address, Capabilities::of_the_model()),
        }
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

/// The store could not be connected, so the request was not sent.
fn unsent(error: Error) -> Error {
    Error::new(ErrorKind::Unreachable, "the node cannot be reached").on(SCHEME).retry_later().because(error)
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Later").field("address", &self.address).finish_non_exhaustive()
    }
}
