#![doc = include_str!("docs.md")]

mod attempt;
mod checked;
mod compat;
mod config;
mod connection;
mod doctor;
mod error;
#[cfg(test)]
mod fuzz;
mod guarantees;
mod inspect;
mod memo;
mod names;
mod queue;
mod record;
mod release;
mod renew;
mod resume;
mod rights;
mod route;
mod servers;
mod session;
#[cfg(feature = "tls")]
mod tls;
mod unknown_nodes;
mod watch;

use oarlock_core::driver::{Attempt, Driver, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, ResourceName, Result};

pub use crate::checked::Checked;
pub use crate::config::{Config, Layout, STORE};
use crate::error::SCHEME;
pub use crate::rights::rights;
use crate::route::Route;
#[cfg(feature = "tls")]
pub use crate::tls::Tls;
pub use oarlock_core::fenced::Written;

/// A ZooKeeper ensemble. See the [crate] for its guarantees and limits.
#[derive(Debug)]
pub struct ZooKeeper {
    pub(crate) route: Route,
}

impl ZooKeeper {
    /// Opens a session. Creates the root node if it does not exist.
    ///
    /// # Errors
    /// - [`Unreachable`](oarlock_core::ErrorKind::Unreachable): no server answers within the session time-out.
    /// - [`Denied`](oarlock_core::ErrorKind::Denied): the credentials or permissions do not suffice.
    /// - [`NewerFormat`](oarlock_core::ErrorKind::NewerFormat): a newer version wrote the root.
    pub async fn open(config: Config) -> Result<Self> {
        Ok(Self { route: Route::open(config).await.map_err(|error| error.during("open"))? })
    }
}

/// Each verb has a file of its own.
impl Driver for ZooKeeper {
    fn info(&self) -> Info {
        Info::new(SCHEME, self.route.address(), guarantees::capabilities(self.route.dialect().is_some()))
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        self.attempt_claim(claim).await.map_err(|error| error.on(SCHEME).during("attempt").about(&claim.resource))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        self.renew_batch(batch).await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.release_claim(resource, id, end).await.map_err(|error| error.during("release").about(resource))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.watch_interest(interest).await.map_err(|error| error.during("watch"))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.inspect_query(query).await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.route.close().await;
        Ok(())
    }
}
