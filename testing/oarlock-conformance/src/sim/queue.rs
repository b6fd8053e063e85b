//! A store of ordered nodes, where the client decides from a listing: several round trips per attempt, the fence given
//! at arrival, and liveness by node or by session.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oarlock_core::clock::{Clock, Moment};
use oarlock_core::driver::{
    Attempt, Cursor, End, Gone, Grant, Info, Interest, Lease, Pending, Release, Released, Renewal, Renewed, Watch,
};
use oarlock_core::model::{Notified, Session};
use oarlock_core::state::{HolderState, Memo, Page, Query, ResourceState, Select};
use oarlock_core::{Capabilities, Capacity, Claim, ClaimId, Driver, Error, Fence, Limit, ResourceName, Result, Weight};

use super::connection::{Connection, Hub, Repeats};

#[derive(Clone, Debug)]
struct Node {
    sequence: u64,
    id: ClaimId,
    resource: ResourceName,
    weight: Weight,
    session: Session,
    /// Its own lease; never, where the session keeps it.
    expires: Moment,
}

/// The nodes, in order of arrival, and the sessions that keep some of them.
#[derive(Debug)]
pub(super) struct Queue {
    hub: Hub,
    nodes: Vec<Node>,
    sequence: u64,
    sessions: Vec<(Session, Moment)>,
    /// What the last holder of each name left.
    memos: BTreeMap<ResourceName, Memo>,
}

impl Queue {
    pub(super) fn new(hub: Hub) -> Self {
        Self { hub, nodes: Vec::new(), sequence: 0, sessions: Vec::new(), memos: BTreeMap::new() }
    }

    fn expire(&mut self) {
        let now = self.hub.now().boot;
        self.sessions.retain(|(_, expires)| *expires > now);
        let sessions = &self.sessions;
        let lives = |node: &Node| match node.expires {
            Moment::NEVER => sessions.iter().any(|(session, _)| *session == node.session),
            expires => expires > now,
        };
        let gone: Vec<_> = self.nodes.iter().filter(|node| !lives(node)).map(|node| node.resource.clone()).collect();
        self.nodes.retain(lives);
        for resource in gone {
            self.notify(&resource);
        }
    }

    /// A node was removed: the claims behind it must attempt again.
    fn notify(&mut self, resource: &ResourceName) {
        let behind = self.nodes.iter().filter(|node| node.resource == *resource);
        let notified: Notified = behind.map(|node| (node.id, node.session)).collect();
        self.hub.notify(&notified, |_| None);
    }

    fn remove(&mut self, id: ClaimId, memo: Option<&Memo>) -> bool {
        self.expire();
        let Some(at) = self.nodes.iter().position(|node| node.id == id) else { return false };
        let node = self.nodes.remove(at);
        if let Some(memo) = memo {
            self.memos.insert(node.resource.clone(), memo.clone());
        }
        self.notify(&node.resource);
        true
    }

    fn create(&mut self, claim: &Claim, session: Session, shared: bool) -> Result<()> {
        self.expire();
        if shared && !self.sessions.iter().any(|(known, _)| *known == session) {
            return Err(Error::unreachable("the session has expired").retry_now());
        }
        let expires = if shared { Moment::NEVER } else { self.hub.now().boot + claim.ttl };
        // A node of an earlier session goes when that one does: it is not ours to believe in.
        self.nodes.retain(|node| node.id != claim.id || node.session == session);
        if let Some(node) = self.nodes.iter_mut().find(|node| node.id == claim.id) {
            node.expires = expires;
            // A request that comes late must not make heavier what has become lighter.
            if node.weight == Weight::All {
                node.weight = claim.weight;
            }
            return Ok(());
        }
        self.hub.arrived(claim);
        self.sequence += 1;
        let (sequence, id, weight) = (self.sequence, claim.id, claim.weight);
        self.nodes.push(Node { sequence, id, resource: claim.resource.clone(), weight, session, expires });
        Ok(())
    }

    fn list(&mut self, resource: &ResourceName) -> (Vec<Node>, Option<Memo>) {
        self.expire();
        let nodes = self.nodes.iter().filter(|node| node.resource == *resource).cloned().collect();
        (nodes, self.memos.get(resource).cloned())
    }

    /// Extends the session and the nodes of these claims; whether the session lives.
    fn renew(&mut self, batch: &[Renewal], session: Session, ttl: Option<Duration>) -> (bool, Vec<Renewed>) {
        self.expire();
        let now = self.hub.now().boot;
        let mut beating = false;
        for (known, expires) in &mut self.sessions {
            if *known == session
                && let Some(ttl) = ttl
            {
                *expires = now + ttl;
                beating = true;
            }
        }
        (beating, batch.iter().map(|renewal| self.renew_one(renewal, session, ttl, now)).collect())
    }

    fn renew_one(&mut self, renewal: &Renewal, session: Session, ttl: Option<Duration>, now: Moment) -> Renewed {
        let claim = &renewal.claim;
        let nodes: Vec<_> = self.nodes.iter().filter(|node| node.resource == claim.resource).cloned().collect();
        let fence = QueueDriver::decide(claim, &nodes).and_then(|(sequence, ahead)| (ahead == 0).then_some(sequence));
        let Some(node) = self.nodes.iter_mut().find(|node| node.id == claim.id) else {
            return Renewed::Gone(if ttl.is_some() { Gone::Session } else { Gone::Unknown });
        };
        if ttl.is_none() {
            node.expires = now + claim.ttl;
        } else if node.session != session {
            // Kept by a session that is not ours any more: it will go, and must not be believed in.
            return Renewed::Gone(Gone::Session);
        }
        if let (Some(memo), Some(_)) = (&renewal.memo, fence) {
            self.memos.insert(claim.resource.clone(), memo.clone());
        }
        let lease = Lease::of(ttl.unwrap_or(claim.ttl));
        Renewed::Alive { lease, fence: fence.map(Fence::new), ending: None }
    }

    pub(super) fn leftovers(&mut self) -> usize {
        self.expire();
        self.nodes.len()
    }
}

/// One connection to it.
#[derive(Debug)]
pub(super) struct QueueDriver {
    connection: Arc<Connection<Queue>>,
    clock: Arc<dyn Clock>,
    /// The lease of the session, where nodes live by one.
    session_ttl: Option<Duration>,
    client: u64,
    live: Mutex<Live>,
    opened: AtomicU64,
}

/// The session a driver believes it has.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    session: Session,
    /// When the heartbeat was sent that last extended it.
    beat: Option<Moment>,
}

impl QueueDriver {
    pub(super) fn new(
        connection: Arc<Connection<Queue>>,
        clock: Arc<dyn Clock>,
        session_ttl: Option<Duration>,
        client: u64,
    ) -> Self {
        Self { connection, clock, session_ttl, client, live: Mutex::default(), opened: AtomicU64::new(0) }
    }

    fn live(&self) -> Live {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session is over. A newer one is not: an answer about the one before it may come late.
    fn forget(&self, session: Session) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.session == session {
            *live = Live::default();
        }
    }

    /// Opens a session if nodes need one and there is none. One that no renewal kept for a while gets a heartbeat first, as
    /// clients of such stores send by themselves: else a grant would come with the rest of an old lease.
    async fn session(&self) -> Result<Live> {
        let Some(ttl) = self.session_ttl else { return Ok(self.live()) };
        if self.live().beat.is_some_and(|beat| self.clock.now() > beat + ttl / 3) {
            // It has no claims to answer for; what it says of the session is kept.
            let _ = Driver::renew(self, &[]).await;
        }
        let live = self.live();
        if live.beat.is_some() {
            return Ok(live);
        }
        let number = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        let session = Session::from(self.client) << 32 | Session::from(number);
        let sent = self.clock.now();
        let open = move |store: &mut Queue| {
            let expires = store.hub.now().boot + ttl;
            store.sessions.retain(|(known, _)| *known != session);
            store.sessions.push((session, expires));
        };
        self.connection.call(Repeats::BeforeItsAnswer, open).await?;
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.beat.is_none() {
            *live = Live { session, beat: Some(sent) };
        }
        Ok(*live)
    }

    fn limit(claim: &Claim) -> Limit {
        match claim.capacity {
            Capacity::Fixed(limit) | Capacity::Stored(limit) => limit,
            Capacity::Any => Limit::Unlimited,
        }
    }

    /// The rule over an ordered listing: everything up to and including this claim fits.
    fn decide(claim: &Claim, nodes: &[Node]) -> Option<(u64, u32)> {
        let (mut ahead, mut units, mut all) = (0, 0_u64, false);
        for node in nodes {
            if node.id == claim.id {
                let fits = match claim.weight {
                    Weight::All => ahead == 0,
                    Weight::Units(mine) => {
                        let room = match Self::limit(claim) {
                            Limit::Unlimited => true,
                            Limit::Units(most) => units + u64::from(mine.get()) <= u64::from(most.get()),
                        };
                        !all && room
                    }
                };
                return Some((node.sequence, if fits { 0 } else { ahead.max(1) }));
            }
            ahead += 1;
            match node.weight {
                Weight::All => all = true,
                Weight::Units(other) => units += u64::from(other.get()),
            }
        }
        None
    }
}

impl Driver for QueueDriver {
    fn info(&self) -> Info {
        let mut info = Info::new("sim-queue", "a simulation", Capabilities::of_the_model());
        info.joint = true;
        info
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let live = self.session().await?;
        let (shared, id, mine) = (self.session_ttl.is_some(), claim.id, claim.clone());
        // The requests of a session arrive in order, so none comes after a later one; a lease needs no order.
        let repeats = if shared { Repeats::BeforeItsAnswer } else { Repeats::Always };
        let create = move |store: &mut Queue| store.create(&mine, live.session, shared);
        if let Err(error) = self.connection.call(repeats, create).await? {
            self.forget(live.session);
            return Err(error);
        }
        let name = claim.resource.clone();
        let (nodes, memo) =
            self.connection.call(Repeats::BeforeItsAnswer, move |store: &mut Queue| store.list(&name)).await?;
        let Some((sequence, ahead)) = Self::decide(claim, &nodes) else {
            // This client's node was removed before the listing, so the listing says nothing about its place.
            return Err(Error::unreachable("the node has gone").retry_now());
        };
        if ahead == 0 {
            let lease = match self.session_ttl {
                Some(ttl) => live.beat.map_or(Lease::of(ttl), |beat| Lease::sent_at(beat, ttl)),
                None => Lease::of(claim.ttl),
            };
            let mut grant = Grant::new(Fence::new(sequence), lease);
            grant.memo = memo;
            return Ok(Attempt::Granted(grant));
        }
        if !claim.wait {
            self.connection.call(Repeats::Always, move |store: &mut Queue| store.remove(id, None)).await?;
        }
        let mut pending = Pending::default();
        pending.ahead = Some(ahead);
        pending.cursor = Cursor(Vec::new());
        Ok(Attempt::Pending(pending))
    }

    async fn renew(&self, batch: &[Renewal]) -> Vec<Result<Renewed>> {
        let (live, sent, ttl, count) = (self.live(), self.clock.now(), self.session_ttl, batch.len());
        // A memo that is written again after its writer has gone would be another writer's.
        let repeats = if batch.iter().any(|it| it.memo.is_some()) { Repeats::BeforeItsAnswer } else { Repeats::Always };
        let batch = batch.to_vec();
        let beat = move |store: &mut Queue| store.renew(&batch, live.session, ttl);
        match self.connection.call(repeats, beat).await {
            Ok((beating, answers)) => {
                let mut current = self.live.lock().unwrap_or_else(PoisonError::into_inner);
                if current.session == live.session {
                    *current = if beating { Live { beat: Some(sent), ..live } } else { Live::default() };
                }
                answers.into_iter().map(Ok).collect()
            }
            Err(error) => vec![Err(error); count],
        }
    }

    async fn release(&self, _: &ResourceName, id: ClaimId, end: &End) -> Result<Release> {
        let memo = if let End::Done { memo } = end { memo.clone() } else { None };
        let remove = move |store: &mut Queue| store.remove(id, memo.as_ref());
        let removed = self.connection.call(Repeats::Always, remove).await?;
        Ok(Release::new(if removed { Released::Released } else { Released::NotHeld }, None))
    }

    async fn watch(&self, interest: &Interest) -> Result<Watch> {
        let (session, interest) = (self.live().session, interest.clone());
        let step = move |store: &mut Queue| match &interest {
            Interest::Turn(claim, _) => store.hub.turn(claim.id),
            Interest::Mailbox => store.hub.mailbox(session),
            Interest::Resource(_) => Watch::never(),
        };
        self.connection.call(Repeats::BeforeItsAnswer, step).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let Select::Name(name) = &query.select else { return Ok(Page::new(Vec::new(), false)) };
        let listed = name.clone();
        let (nodes, memo) =
            self.connection.call(Repeats::BeforeItsAnswer, move |store: &mut Queue| store.list(&listed)).await?;
        let mut state = ResourceState::free(name.clone());
        let first = nodes.first().map(|node| {
            let mut holder = HolderState::new(node.id, oarlock_core::Kind::Mutex, node.weight);
            holder.fence = Some(Fence::new(node.sequence));
            holder
        });
        state.holders = first.into_iter().collect();
        state.memo = memo;
        Ok(Page::new(vec![state], false))
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
