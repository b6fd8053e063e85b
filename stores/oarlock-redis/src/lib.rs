#![doc = include_str!("docs.md")]

mod attempt;
mod checked;
mod cluster;
mod config;
mod connection;
mod dispatch;
#[doc(hidden)]
pub mod doctor;
mod error;
#[cfg(test)]
mod fuzz;
mod guarantees;
mod inspect;
mod keys;
mod native;
mod node;
mod notifications;
mod plain;
mod pool;
#[doc(hidden)]
pub mod raw;
mod redisson;
mod release;
mod renew;
mod rights;
mod scripts;
mod sentinel;
mod server_info;
mod watch;

use std::sync::{Arc, Mutex, PoisonError};

use oarlock_core::clock::Clock;
use oarlock_core::driver::{Attempt, Driver, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, Error, Label, ResourceName, Result};

pub use crate::checked::Checked;
pub use crate::config::{ALLOW_EVICTION, Address, Config, Host, Layout, STORE, Tls, database};
use crate::error::SCHEME;
use crate::pool::Pool;
pub use crate::rights::rights;
use crate::scripts::Scripts;
pub use crate::server_info::{Persistence, ServerInfo};
pub use oarlock_core::fenced::Written;

/// A Redis or Valkey store. See the [crate] for its guarantees.
#[derive(Debug)]
pub struct Redis {
    pool: Arc<Pool>,
    scripts: Scripts,
    server_info: ServerInfo,
    /// The last label in JSON: most claims of a client have the same.
    written: Mutex<Option<(Arc<Label>, Arc<str>)>>,
}

impl Redis {
    /// Connects.
    ///
    /// # Errors
    /// - [`Unreachable`](oarlock_core::ErrorKind::Unreachable): the server does not answer.
    /// - [`Denied`](oarlock_core::ErrorKind::Denied): the server refuses the user.
    /// - [`Config`](oarlock_core::ErrorKind::Config): the server is too old, a replica, or evicts keys when it is full.
    pub async fn open(config: Config) -> Result<Self> {
        let (pool, server_info) = Pool::open(config).await.map_err(|error| error.during("open"))?;
        let scripts = Scripts::of(&pool.config, pool.is_cluster());
        Ok(Self { pool: Arc::new(pool), scripts, server_info, written: Mutex::default() })
    }

    /// What the servers reported about themselves when they were first reached. Where they differ, the weakest counts.
    #[must_use]
    pub fn server_info(&self) -> &ServerInfo {
        &self.server_info
    }

    fn clock(&self) -> &dyn Clock {
        &*self.pool.config.clock
    }

    /// Refuses what the layout does not support.
    fn check(&self, name: &ResourceName, claim: Option<&Claim>) -> Result<()> {
        match self.pool.config.layout {
            Layout::Native => return Ok(()),
            Layout::Plain => return claim.map_or(Ok(()), plain::check_claim),
            Layout::Redisson => {}
        }
        if self.pool.is_cluster() {
            redisson::check_slots(&self.pool.keys(name))?;
        }
        claim.map_or(Ok(()), redisson::check_claim)
    }

    /// A label in JSON.
    fn label(&self, label: &Arc<Label>) -> Arc<str> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = written.as_ref().filter(|(known, _)| Arc::ptr_eq(known, label)) {
            return text.clone();
        }
        let text: Arc<str> = serde_json::to_string(&**label).unwrap_or_default().into();
        *written = Some((label.clone(), text.clone()));
        text
    }
}

fn about(verb: &'static str, resource: &ResourceName, error: Error) -> Error {
    error.during(verb).about(resource)
}

/// Each verb has a file of its own.
impl Driver for Redis {
    fn info(&self) -> Info {
        let mut capabilities = guarantees::capabilities(self.pool.config.layout);
        capabilities.consistency = self.pool.consistency(&self.server_info);
        let Config { address, database, prefix, .. } = &self.pool.config;
        let mut info = Info::new(SCHEME, format!("{address}/{database}?prefix={prefix}"), capabilities);
        info.joint = self.is_joint();
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        self.attempt_claim(claim).await.map_err(|error| about("attempt", &claim.resource, error))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let answers = self.renew_batch(batch).await.into_iter().zip(batch);
        answers.map(|(answer, of)| answer.map_err(|error| about("renew", &of.claim.resource, error))).collect()
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.end_claim(resource, id, end).await.map_err(|error| about("release", resource, error))
    }

    async fn release_and_attempt(
        &self,
        resource: &ResourceName,
        id: ClaimId,
        end: &End,
        next: &Claim,
    ) -> (Result<Release>, Result<Attempt>) {
        let (release, attempt) = self.end_and_attempt(resource, id, end, next).await;
        let release = release.map_err(|error| about("release", resource, error));
        (release, attempt.map_err(|error| about("attempt", resource, error)))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.arm(interest).await.map_err(|error| error.during("watch"))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.show(query).await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.pool.close();
        Ok(())
    }
}
