//! A store that decides in one atomic step: the model behind an unreliable connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use oarlock_core::driver::{Attempt, End, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::model::{Notified, Now, Resource, Session};
use oarlock_core::state::{Page, Query, ResourceState, Select};
use oarlock_core::{Capabilities, Claim, ClaimId, Driver, ResourceName, Result};

use super::connection::{Connection, Hub};

#[derive(Debug)]
pub(super) struct Rows {
    hub: Hub,
    resources: BTreeMap<ResourceName, Resource>,
}

impl Rows {
    pub(super) fn new(hub: Hub) -> Self {
        Self { hub, resources: BTreeMap::new() }
    }

    fn step<T>(&mut self, name: &ResourceName, step: impl FnOnce(&mut Resource, Now, &mut Notified) -> T) -> T {
        let now = self.hub.now();
        let mut notified = Notified::new();
        let answer = step(self.resources.entry(name.clone()).or_default(), now, &mut notified);
        self.hub.notify(&notified);
        answer
    }

    /// The claims that are still there.
    pub(super) fn leftovers(&mut self) -> usize {
        let now = self.hub.now();
        let mut notified = Notified::new();
        for resource in self.resources.values_mut() {
            resource.expire(now, &mut notified);
        }
        self.resources.values().map(|resource| resource.entries().len()).sum()
    }
}

/// One connection to it.
#[derive(Debug)]
pub(super) struct RowsDriver {
    pub(super) connection: Arc<Connection<Rows>>,
    pub(super) session: Session,
}

impl Driver for RowsDriver {
    fn info(&self) -> Info {
        let mut info = Info::new("sim-rows", "a simulation", Capabilities::of_the_model());
        info.joint = true;
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let session = self.session;
        let step =
            |store: &mut Rows| store.step(&claim.resource, |r, now, notified| r.attempt(claim, session, now, notified));
        self.connection.call(step).await?
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let renew = |store: &mut Rows| {
            let one = |renewal: &Renewal| {
                store.step(&renewal.claim.resource, |r, now, notified| r.renew(renewal, now, notified))
            };
            batch.iter().map(one).collect::<Vec<_>>()
        };
        self.connection.call(renew).await.unwrap_or_else(|error| vec![Err(error); batch.len()])
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        self.connection.call(|store| store.step(resource, |r, now, notified| r.release(id, end, now, notified))).await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        self.connection
            .call(|store| match interest {
                Interest::Turn(claim, _) => store.hub.turn(claim.id),
                Interest::Mailbox => store.hub.mailbox(self.session),
                _ => Watch::never(),
            })
            .await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.connection
            .call(|store| {
                let now = store.hub.now();
                let one = |name: &ResourceName| match store.resources.get(name) {
                    Some(resource) => resource.state(name.clone(), now),
                    None => ResourceState::free(name.clone()),
                };
                let resources = match &query.select {
                    Select::Name(name) => vec![one(name)],
                    Select::Live => store.resources.keys().map(one).collect(),
                };
                Page::cut(resources, query)
            })
            .await
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
