#![doc = include_str!("docs.md")]

mod attempt;
mod blockers;
mod boot;
mod config;
mod directory;
mod doctor;
mod error;
mod events;
mod expected;
#[cfg(test)]
mod fuzz;
mod guarantees;
mod identity;
mod inotify;
mod inspect;
mod mount;
mod notify;
mod paths;
mod release;
mod renew;
mod session;
mod shard;
mod slot;
mod state;
mod store;
mod sweep;
mod turn;
mod watch;

use std::sync::Arc;

use oarlock_core::driver::{Attempt, Driver, End, Info, Interest, Release, Renewal, Renewed, SessionEnd, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, ResourceName, Result};

pub use crate::config::{Config, STORE, default_dir, other_default_dir};
use crate::error::SCHEME;
use crate::store::Store;

/// The embedded store: one directory, no server. See the [crate] for its guarantees and limits.
#[derive(Debug)]
pub struct Local {
    store: Arc<Store>,
    /// The end of the session, and of every claim that lives as long as its process.
    end: SessionEnd,
}

impl Local {
    /// Opens the store. Creates its directory if it does not exist.
    ///
    /// # Errors
    /// - [`CannotCreate`](oarlock_core::ErrorKind::CannotCreate): the directory cannot be created.
    /// - [`Denied`](oarlock_core::ErrorKind::Denied): other users can write to it.
    /// - [`Config`](oarlock_core::ErrorKind::Config): it is on a file system that other machines share.
    /// - [`Os`](oarlock_core::ErrorKind::Os): any other system call failed.
    pub async fn open(config: Config) -> Result<Self> {
        let store = Store::open(config).await.map_err(|error| error.during("open"))?;
        Ok(Self { store, end: SessionEnd::new() })
    }
}

/// Each verb has a file of its own.
impl Driver for Local {
    fn info(&self) -> Info {
        Info::new(SCHEME, self.store.to_string(), guarantees::capabilities())
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let attempted = self.store.attempt(claim).await;
        let attempt = attempted.map_err(|error| error.during("attempt").about(&claim.resource))?;
        Ok(attempt.ending_with(claim, &self.end))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        self.store.renew(batch).await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.store.release(resource, id, end).await.map_err(|error| error.during("release").about(resource))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.store.watch(interest).map_err(|error| error.during("watch"))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.store.inspect(query).await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.end.end();
        self.store.session.end();
        self.store.hub.close();
        Ok(())
    }
}
