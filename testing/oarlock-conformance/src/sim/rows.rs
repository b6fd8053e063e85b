//! A store that decides in one atomic step: the model behind an unreliable connection.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use oarlock_core::clock::Clock;
use oarlock_core::driver::{Attempt, End, Handed, Info, Interest, Release, Renewal, Renewed, Watch};
use oarlock_core::model::{EntryState, Notified, Now, Resource, Session, TURN_TTL};
use oarlock_core::state::{Page, Query, ResourceState, Select};
use oarlock_core::{Capabilities, Claim, ClaimId, Driver, Fence, ResourceName, Result};

use super::connection::{Connection, Hub, Repeats};

#[derive(Debug)]
pub(super) struct Rows {
    hub: Hub,
    resources: BTreeMap<ResourceName, Resource>,
    /// When the last request of each claim was sent, in microseconds of its client's clock, where turns come with
    /// their grant.
    sent: Option<BTreeMap<ClaimId, (u64, Duration)>>,
}

/// Everything that the store has promised.
pub(super) type Snapshot = BTreeMap<ResourceName, Resource>;

/// The holds of that state.
pub(super) fn holds_of(state: &Snapshot) -> HashSet<(String, Fence)> {
    let holds = state.iter().flat_map(|(name, resource)| resource.entries().iter().map(move |entry| (name, entry)));
    let fence = |state: &EntryState| if let EntryState::Held(fence) = state { Some(*fence) } else { None };
    holds.filter_map(|(name, entry)| Some((name.as_str().to_owned(), fence(&entry.state)?))).collect()
}

impl Rows {
    pub(super) fn new(hub: Hub, handed: bool) -> Self {
        Self { hub, resources: BTreeMap::new(), sent: handed.then(BTreeMap::new) }
    }

    fn step<T>(&mut self, name: &ResourceName, step: impl FnOnce(&mut Resource, Now, &mut Notified) -> T) -> T {
        let now = self.hub.now();
        let mut notified = Notified::new();
        let Self { hub, resources, sent } = self;
        let resource = resources.entry(name.clone()).or_default();
        let answer = step(resource, now, &mut notified);
        let mut given = 0;
        hub.notify(&notified, |claim| {
            let (sent, ttl) = *sent.as_ref()?.get(&claim)?;
            let grant = resource.take_turn(claim, now)?;
            given += 1;
            let ttl = u64::try_from(ttl.min(TURN_TTL).as_micros()).unwrap_or(0);
            Some(Handed::new(grant.fence.get(), sent, ttl, grant.memo))
        });
        for _ in 0..given {
            hub.faults().note("grant with the turn", "given");
        }
        answer
    }

    /// A request of this claim, sent at that time by its client's clock.
    fn heard(&mut self, claim: &Claim, sent: u64) {
        if let Some(all) = &mut self.sent {
            let last = all.entry(claim.id).or_insert((sent, claim.ttl));
            last.0 = last.0.max(sent);
        }
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

    pub(super) fn snapshot(&self) -> Snapshot {
        self.resources.clone()
    }

    pub(super) fn fall_back(&mut self, to: Snapshot) {
        self.resources = to;
    }
}

/// One connection to it.
#[derive(Debug)]
pub(super) struct RowsDriver {
    pub(super) connection: Arc<Connection<Rows>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) session: Session,
}

impl RowsDriver {
    fn sent(&self) -> u64 {
        self.clock.now().as_nanos() / 1000
    }
}

impl Driver for RowsDriver {
    fn info(&self) -> Info {
        let mut info = Info::new("sim-rows", "a simulation", Capabilities::of_the_model());
        info.joint = true;
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let handed = self.connection.store().hub.take_handed(claim.id);
        if let Some(handed) = handed.filter(|_| claim.may_be_handed()) {
            let grant = handed.grant(self.clock.now());
            let path = if grant.is_some() { "taken" } else { "too old" };
            self.connection.store().hub.faults().note("grant with the turn", path);
            if let Some(grant) = grant {
                return Ok(Attempt::Granted(grant));
            }
        }
        let (session, sent, claim) = (self.session, self.sent(), claim.clone());
        let step = move |store: &mut Rows| {
            store.heard(&claim, sent);
            store.hub.arrived(&claim);
            store.step(&claim.resource, |r, now, notified| r.attempt(&claim, session, now, notified))
        };
        self.connection.call(Repeats::Always, step).await?
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let (sent, batch) = (self.sent(), batch.to_vec());
        let count = batch.len();
        // A memo that is written again after its writer has gone would be another writer's.
        let repeats = if batch.iter().any(|it| it.memo.is_some()) { Repeats::BeforeItsAnswer } else { Repeats::Always };
        let renew = move |store: &mut Rows| {
            let one = |renewal: &Renewal| {
                store.heard(&renewal.claim, sent);
                store.step(&renewal.claim.resource, |r, now, notified| r.renew(renewal, now, notified))
            };
            batch.iter().map(one).collect::<Vec<_>>()
        };
        self.connection.call(repeats, renew).await.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn release(&self, resource: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let (resource, end) = (resource.clone(), end.clone());
        let step = move |store: &mut Rows| {
            store.hub.take_handed(id);
            store.step(&resource, |r, now, notified| r.release(id, &end, now, notified))
        };
        self.connection.call(Repeats::Always, step).await
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        let (interest, session) = (interest.clone(), self.session);
        let step = move |store: &mut Rows| match &interest {
            Interest::Turn(claim, _) => store.hub.turn(claim.id),
            Interest::Mailbox => store.hub.mailbox(session),
            Interest::Resource(_) => Watch::never(),
        };
        self.connection.call(Repeats::BeforeItsAnswer, step).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let query = query.clone();
        let step = move |store: &mut Rows| {
            let now = store.hub.now();
            let one = |name: &ResourceName| match store.resources.get(name) {
                Some(resource) => resource.state(name.clone(), now),
                None => ResourceState::free(name.clone()),
            };
            let resources = match &query.select {
                Select::Name(name) => vec![one(name)],
                Select::Live => store.resources.keys().map(one).collect(),
            };
            Page::cut(resources, &query)
        };
        self.connection.call(Repeats::BeforeItsAnswer, step).await
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
