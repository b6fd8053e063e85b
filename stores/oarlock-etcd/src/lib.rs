#![doc = include_str!("docs.md")]

mod api;
mod attempt;
mod checked;
mod config;
mod connection;
mod doctor;
mod error;
#[cfg(test)]
mod fuzz;
mod guarantees;
mod inspect;
mod joint;
mod keys;
mod landmarks;
mod lease;
mod login;
mod members;
mod operations;
mod peek;
mod queue;
#[doc(hidden)]
pub mod raw;
mod release;
mod renew;
mod rights;
mod turn_stream;
mod watch;
mod watch_pair;

use std::fmt;
use std::sync::Arc;

use oarlock_core::driver::{Attempt, Driver, End, Info, Interest, Release, Renewal, Renewed, SessionEnd, Watch};
use oarlock_core::queue::TurnTimes;
use oarlock_core::state::{Page, Query};
use oarlock_core::{Claim, ClaimId, Error, ErrorKind, ResourceName, Result};
use tokio::task::JoinSet;

pub use crate::checked::Checked;
pub use crate::config::{Config, Layout, STORE, Tls};
use crate::connection::Connection;
use crate::error::SCHEME;
use crate::keys::{Keys, Space};
use crate::landmarks::Landmarks;
use crate::lease::Leases;
pub use crate::rights::rights;
pub use oarlock_core::fenced::Written;

/// An etcd cluster. See the [crate] for its guarantees and limits.
pub struct Etcd {
    pub(crate) connection: Arc<Connection>,
    pub(crate) space: Space,
    address: String,
    /// The id of this client: the name of its mailbox.
    pub(crate) client: String,
    pub(crate) leases: Leases,
    pub(crate) landmarks: Landmarks,
    /// By the revision that created a claim.
    pub(crate) turns: TurnTimes<i64>,
    /// The end of this client: it revokes the leases of its claims when it is closed.
    end: SessionEnd,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Etcd {
    /// Connects to a cluster.
    ///
    /// # Errors
    /// - [`Config`](ErrorKind::Config): the address of a member is malformed, or a certificate cannot be used.
    /// - [`Unreachable`](ErrorKind::Unreachable): no member answers.
    /// - [`Denied`](ErrorKind::Denied): the user or the password is refused.
    pub async fn open(config: Config) -> Result<Self> {
        let mut id = [0; 16];
        getrandom::fill(&mut id)
            .map_err(|error| Error::new(ErrorKind::Os, "no random numbers").on(SCHEME).because(error))?;
        Ok(Self {
            connection: Arc::new(Connection::open(&config).await?),
            address: config.address(),
            space: Space::of(&config),
            client: format!("{:032x}", u128::from_be_bytes(id)),
            leases: Leases::default(),
            landmarks: Landmarks::default(),
            turns: TurnTimes::default(),
            end: SessionEnd::new(),
        })
    }

    pub(crate) fn keys(&self, name: &ResourceName) -> Keys {
        self.space.keys(name)
    }

    /// Revokes leases that a late request could still use. If that fails they expire by themselves.
    pub(crate) async fn end_leases(&self, leases: Vec<i64>) {
        let mut ends = JoinSet::new();
        for id in leases {
            let connection = self.connection.clone();
            ends.spawn(async move { connection.revoke(id).await });
        }
        while ends.join_next().await.is_some() {}
    }
}

/// Each verb has a file of its own.
impl Driver for Etcd {
    fn info(&self) -> Info {
        let mut capabilities = guarantees::capabilities(self.space.layout);
        capabilities.listing |= self.space.shared().is_some();
        let mut info = Info::new(SCHEME, self.address.clone(), capabilities);
        info.joint = self.is_joint();
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let attempted = self.attempt_claim(claim).await;
        let attempt = attempted.map_err(|error| error.on(SCHEME).during("attempt").about(&claim.resource))?;
        Ok(attempt.ending_with(claim, &self.end))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        self.renew_batch(batch).await
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.release_claim(resource, id, end).await.map_err(|error| error.during("release").about(resource))
    }

    async fn release_and_attempt(
        &self,
        resource: &ResourceName,
        id: ClaimId,
        end: &End,
        next: &Claim,
    ) -> (Result<Release>, Result<Attempt>) {
        let (release, attempt) = self.end_and_attempt(resource, id, end, next).await;
        let attempt = attempt.map_err(|error| error.on(SCHEME).during("attempt").about(&next.resource));
        let release = release.map_err(|error| error.during("release").about(resource));
        (release, attempt.map(|attempt| attempt.ending_with(next, &self.end)))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.watch_interest(interest).await.map_err(|error| error.during("watch"))
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        crate::inspect::page(self, query).await.map_err(|error| error.during("inspect"))
    }

    async fn close(&self) -> Result<()> {
        self.end.end();
        if self.connection.close() {
            self.end_leases(self.leases.drain()).await;
        }
        Ok(())
    }
}
