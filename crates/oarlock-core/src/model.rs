//! The rule of all locks, as a pure state machine: no I/O, and time is an argument.
//!
//! A [`Resource`] has a capacity; granted weights never exceed it. Claims are granted in order of arrival: a claim
//! holds only if it fits together with everything that arrived before it.
//!
//! Stores that keep a resource as one piece of data (memory, local files) run this code; the others are tested
//! against it.

mod binary;
mod turn;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::claim::{Capacity, Claim, ClaimId, Fence, Kind, Label, Lifetime, Limit, ResourceName, Weight};
use crate::clock::Moment;
use crate::driver::memo::is_late;
use crate::driver::{Attempt, End, Fences, Gone, Grant, Lease, Pending, Release, Released, Renewal, Renewed};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{self, Load};
use crate::state::{Ending, HolderState, Memo, ResourceState, WaiterState, Waiters};

/// The time of one step, by the store's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For leases.
    pub boot: Moment,
    /// For fences: microseconds since the Unix epoch.
    pub wall_micros: u64,
}

/// The session of a claim; drivers define its meaning. Zero = none.
pub type Session = u128;

/// A waiter whose turn has come must attempt within this time, or the turn passes to the next.
pub const TURN_TTL: Duration = Duration::from_secs(2);

/// A free resource is forgotten, with its fence and memo, once the clock is this far past its last use and its last
/// fence.
pub const FORGET_AFTER: Duration = Duration::from_secs(24 * 3600);

/// How far from the clock a proposed fence may be, in microseconds.
const PROPOSAL_DRIFT: u64 = 60_000_000;

/// How many broken claims are remembered, so that their holders learn by whom and why.
const MAX_BROKEN: usize = 8;

/// One live claim: a holder or a waiter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The claim.
    pub id: ClaimId,
    /// What its user calls it.
    pub kind: Kind,
    /// How much it takes or wants.
    pub weight: Weight,
    /// Whether it ends with its session. Stored as `tether`.
    #[serde(rename = "tether")]
    pub lifetime: Lifetime,
    /// Its lease.
    pub ttl: Duration,
    /// Its session.
    pub session: Session,
    /// How many more wait behind it in its process.
    pub behind: u32,
    /// Identifies its client.
    pub label: Arc<Label>,
    /// The value that it publishes while it holds.
    pub value: Option<Arc<str>>,
    /// When it arrived, and once granted, when that was.
    pub since: Moment,
    /// When it ends without renewal.
    pub expires: Moment,
    /// Whether it holds or waits.
    #[serde(rename = "standing")]
    pub state: EntryState,
    /// Its end was asked for: renewals no longer extend it.
    pub ending: Option<Ending>,
    /// Whether it may be given its turn [with the grant](Resource::take_turn).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_grant: bool,
    /// It was given its turn with the grant, and has not taken it yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untaken: bool,
}

/// Holder or waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryState {
    /// Holds, with this fence.
    Held(#[serde(with = "fence_number")] Fence),
    /// Waits; if its turn has come, until this moment.
    Waits(Option<Moment>),
}

/// A broken claim, remembered for its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Broken {
    id: ClaimId,
    ending: Ending,
}

/// Everything a store keeps of one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    capacity: Option<Limit>,
    entries: Vec<Entry>,
    last_fence: u64,
    memo: Option<Memo>,
    last_used_micros: u64,
    #[serde(rename = "graves")]
    broken: Vec<Broken>,
    /// No entry ends before this. A cache, not state: it saves a pass over all entries for each of thousands of
    /// renewals.
    #[serde(skip)]
    quiet_until: Quiet,
}

/// A cached value: equal to any other, because it is not part of the resource's state.
#[derive(Clone, Copy, Debug, Default)]
struct Quiet(Moment);

impl PartialEq for Quiet {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The claims that are to be notified after a step, with their sessions.
pub type Notified = Vec<(ClaimId, Session)>;

impl Resource {
    /// Grants or queues `claim`, or refuses it.
    ///
    /// # Errors
    /// [`ErrorKind::SpecMismatch`], [`ErrorKind::TooHeavy`], [`ErrorKind::Upgrade`], [`ErrorKind::FenceExhausted`];
    /// nothing has changed then, beyond what time did.
    pub fn attempt(&mut self, claim: &Claim, session: Session, now: Now, notified: &mut Notified) -> Result<Attempt> {
        self.expire(now, notified);
        self.quiet_until = Quiet::default();
        self.use_at(now);
        let known = self.position(claim.id);
        if let Some(at) = known
            && let EntryState::Held(fence) = self.entries[at].state
        {
            return self.reattempt(at, fence, claim, now, notified);
        }

        let limit = queue::admit(claim.capacity, claim.weight, self.capacity)?;
        let at = known.unwrap_or(self.entries.len());
        let fits = self.fits(at, claim.weight, limit);
        if !fits && !claim.wait {
            let pending = self.pending(at, now);
            if known.is_some() {
                self.remove(at, now, notified);
            }
            return Ok(Attempt::Pending(pending));
        }
        let fence = if fits { Some(self.next_fence(claim.least_fence, now)?) } else { None };
        if let Capacity::Fixed(limit) | Capacity::Stored(limit) = claim.capacity {
            self.capacity.get_or_insert(limit);
        }
        if known.is_none() {
            self.entries.push(Entry::arriving(claim, session, now));
        }
        let entry = &mut self.entries[at];
        entry.behind = claim.behind;
        entry.awaits_grant = turn::may_be_handed(claim);
        // A claim that was asked to end gets no more time, waiting or holding.
        if entry.ending.is_none() {
            entry.expires = now.boot + if fence.is_some() { claim.ttl } else { claim.waiter_ttl() };
        }
        let Some(fence) = fence else {
            self.notify(now, notified);
            return Ok(Attempt::Pending(self.pending(at, now)));
        };
        entry.state = EntryState::Held(fence);
        entry.since = now.boot;
        self.last_fence = fence.get();
        let mut grant = Grant::new(fence, Lease::of(entry.expires.since(now.boot)));
        grant.memo.clone_from(&self.memo);
        // After this grant others may fit, or a waiter that was notified may not fit any more.
        self.notify(now, notified);
        Ok(Attempt::Granted(grant))
    }

    /// Another attempt of a held claim: a repeated request, or one for less weight.
    fn reattempt(
        &mut self,
        at: usize,
        fence: Fence,
        claim: &Claim,
        now: Now,
        notified: &mut Notified,
    ) -> Result<Attempt> {
        let entry = &mut self.entries[at];
        queue::check_held(entry.weight, claim.weight)?;
        entry.weight = claim.weight;
        entry.kind = claim.kind;
        entry.untaken = false;
        if entry.ending.is_none() {
            entry.expires = now.boot + claim.ttl;
        }
        let mut grant = Grant::new(fence, Lease::of(entry.expires.since(now.boot)));
        grant.memo.clone_from(&self.memo);
        self.notify(now, notified);
        Ok(Attempt::Granted(grant))
    }

    /// Keeps a claim alive.
    pub fn renew(&mut self, renewal: &Renewal, now: Now, notified: &mut Notified) -> Result<Renewed> {
        self.expire(now, notified);
        let id = renewal.claim.id;
        let Some(at) = self.position(id) else {
            let broken = self.broken.iter().find(|broken| broken.id == id);
            return Ok(Renewed::Gone(broken.map_or(Gone::Unknown, |broken| Gone::Broken(broken.ending.clone()))));
        };
        self.use_at(now);
        if let EntryState::Held(fence) = self.entries[at].state {
            if self.entries[at].untaken && !turn::takes(renewal) {
                // As for a turn without a grant: a renewal as a waiter does not take the turn.
                let lease = Lease::of(self.entries[at].ends().since(now.boot));
                return Ok(Renewed::Alive { lease, fence: None, ending: None });
            }
            self.entries[at].untaken = false;
            let fence = match renewal.fences {
                Fences::Keep => fence,
                Fences::AtLeast(least) => self.raise(least.get())?.max(fence),
                Fences::Reserve(count) => self.raise(self.last_fence.saturating_add(u64::from(count)))?,
            };
            // A reserved block belongs to the claim, but the claim keeps the fence of its grant.
            if let Fences::AtLeast(_) = renewal.fences {
                self.entries[at].state = EntryState::Held(fence);
            }
            if let Some(memo) = renewal.memo.as_ref().filter(|memo| !is_late(memo, self.memo.as_ref())) {
                self.memo = Some(memo.clone());
                let beyond = renewal.keep.saturating_sub(FORGET_AFTER);
                self.used_micros_at_least(
                    now.wall_micros.saturating_add(u64::try_from(beyond.as_micros()).unwrap_or(u64::MAX)),
                );
            }
            let entry = &mut self.entries[at];
            if entry.ending.is_none() {
                entry.expires = now.boot + renewal.claim.ttl;
            }
            entry.value.clone_from(&renewal.claim.value);
            self.quiet_until.0 = self.quiet_until.0.min(entry.ends());
            let lease = Lease::of(entry.expires.since(now.boot));
            return Ok(Renewed::Alive { lease, fence: Some(fence), ending: entry.ending.clone() });
        }
        let entry = &mut self.entries[at];
        entry.behind = renewal.claim.behind;
        if entry.ending.is_none() {
            entry.expires = now.boot + renewal.claim.waiter_ttl();
        }
        self.quiet_until.0 = self.quiet_until.0.min(entry.ends());
        // A turn must be taken by an attempt; a renewal does not take it.
        let lease = Lease::of(entry.ends().since(now.boot));
        Ok(Renewed::Alive { lease, fence: None, ending: None })
    }

    /// Ends a claim, holder or waiter.
    pub fn release(&mut self, id: ClaimId, end: &End, now: Now, notified: &mut Notified) -> Release {
        self.expire(now, notified);
        self.quiet_until = Quiet::default();
        let Some(at) = self.position(id) else {
            return Release::new(Released::NotHeld, Some(self.anyone_waits()));
        };
        self.use_at(now);
        match end {
            End::Done { memo } => {
                if let (EntryState::Held(_), Some(memo)) = (self.entries[at].state, memo) {
                    self.memo = Some(memo.clone());
                }
            }
            End::Withdrawn => {}
            End::Broken { ending, grace } => {
                let entry = &mut self.entries[at];
                notified.push((id, entry.session));
                if !grace.is_zero() {
                    entry.ending = Some(ending.clone());
                    entry.expires = entry.expires.min(now.boot + *grace);
                    return Release::new(Released::Asked, Some(self.anyone_waits()));
                }
                self.bury(id, ending.clone());
            }
        }
        self.remove(at, now, notified);
        Release::new(Released::Released, Some(self.anyone_waits()))
    }

    /// Removes the claims whose lease has expired.
    pub fn expire(&mut self, now: Now, notified: &mut Notified) {
        if now.boot < self.quiet_until.0 {
            return;
        }
        self.retain(now, notified, |entry| entry.ends() > now.boot);
        self.quiet_until = Quiet(self.entries.iter().map(Entry::ends).min().unwrap_or_default());
    }

    /// Removes the claims whose session is not alive.
    pub fn end_sessions(&mut self, now: Now, notified: &mut Notified, mut is_alive: impl FnMut(Session) -> bool) {
        self.retain(now, notified, |entry| entry.lifetime == Lifetime::Lease || is_alive(entry.session));
    }

    /// Restarts every lease: the clock that they were set by was reset by a reboot of the machine.
    pub fn void_deadlines(&mut self, now: Now) {
        self.quiet_until = Quiet::default();
        for entry in &mut self.entries {
            entry.since = now.boot;
            entry.expires = match entry.state {
                EntryState::Held(_) => now.boot + entry.ttl,
                EntryState::Waits(_) => now.boot + entry.ttl.min(Claim::MAX_WAITER_TTL),
            };
            if let EntryState::Waits(turn) = &mut entry.state {
                *turn = None;
            }
        }
    }

    fn retain(&mut self, now: Now, notified: &mut Notified, mut keep: impl FnMut(&Entry) -> bool) {
        let before = self.entries.len();
        let mut broken = Vec::new();
        self.entries.retain(|entry| {
            let kept = keep(entry);
            if !kept && let Some(ending) = &entry.ending {
                broken.push((entry.id, ending.clone()));
            }
            kept
        });
        for (id, ending) in broken {
            self.bury(id, ending);
        }
        if self.entries.len() < before {
            self.after_removal(now, notified);
        }
    }

    fn remove(&mut self, at: usize, now: Now, notified: &mut Notified) {
        self.entries.remove(at);
        self.after_removal(now, notified);
    }

    fn after_removal(&mut self, now: Now, notified: &mut Notified) {
        self.quiet_until = Quiet::default();
        if self.entries.is_empty() {
            self.capacity = None;
        }
        self.notify(now, notified);
    }

    fn bury(&mut self, id: ClaimId, ending: Ending) {
        if self.broken.len() == MAX_BROKEN {
            self.broken.remove(0);
        }
        self.broken.push(Broken { id, ending });
    }

    /// Notifies the waiters that fit now that their turn has come, and starts the time in which they must take it.
    fn notify(&mut self, now: Now, notified: &mut Notified) {
        let limit = self.limit();
        let mut load: Load = self.entries.iter().filter(|entry| entry.is_held()).map(|entry| entry.weight).collect();
        let mut blocked = false;
        for entry in &mut self.entries {
            let EntryState::Waits(turn) = &mut entry.state else { continue };
            if !blocked && load.bears(entry.weight, limit) {
                load.add(entry.weight);
                if turn.is_none() {
                    *turn = Some(now.boot + TURN_TTL);
                    notified.push((entry.id, entry.session));
                }
            } else {
                *turn = None;
                blocked = true;
            }
        }
    }

    fn limit(&self) -> Limit {
        self.capacity.unwrap_or(queue::UNSTATED)
    }

    /// Whether a claim of this weight, at position `at`, may hold now.
    fn fits(&self, at: usize, weight: Weight, limit: Limit) -> bool {
        let load: Load = self.in_the_way(at).map(|entry| entry.weight).collect();
        load.bears(weight, limit)
    }

    /// The claims that hold, or arrived before the claim at `at`.
    fn in_the_way(&self, at: usize) -> impl Iterator<Item = &Entry> {
        let others = self.entries.iter().enumerate().filter(move |(position, _)| *position != at);
        others.filter(move |(position, entry)| entry.is_held() || *position < at).map(|(_, entry)| entry)
    }

    fn pending(&self, at: usize, now: Now) -> Pending {
        let end = self.in_the_way(at).map(Entry::ends).min();
        Pending {
            ahead: u32::try_from(self.in_the_way(at).count()).ok(),
            recheck_after: end.map(|end| end.since(now.boot)),
            holder: self.entries.iter().find(|entry| entry.is_held()).map(|entry| entry.id),
            ..Pending::default()
        }
    }

    fn use_at(&mut self, now: Now) {
        self.used_micros_at_least(now.wall_micros);
    }

    /// Never earlier: a memo that must be kept for long counts as a use in the future.
    fn used_micros_at_least(&mut self, micros: u64) {
        self.last_used_micros = self.last_used_micros.max(micros);
    }

    fn next_fence(&self, least: Option<Fence>, now: Now) -> Result<Fence> {
        let clock = now.wall_micros;
        let (lowest, highest) = (clock.saturating_sub(PROPOSAL_DRIFT), clock.saturating_add(PROPOSAL_DRIFT));
        let next = self.last_fence.saturating_add(1).max(least.map_or(clock, |it| it.get().clamp(lowest, highest)));
        Self::check_fence(next).map(Fence::new)
    }

    fn raise(&mut self, to: u64) -> Result<Fence> {
        self.last_fence = self.last_fence.max(Self::check_fence(to)?);
        Ok(Fence::new(self.last_fence))
    }

    fn check_fence(number: u64) -> Result<u64> {
        if number < Fence::LIMIT {
            return Ok(number);
        }
        Err(Error::new(ErrorKind::FenceExhausted, format!("the next fence would be {number}, past 2^53")))
    }

    fn position(&self, id: ClaimId) -> Option<usize> {
        self.entries.iter().position(|entry| entry.id == id)
    }

    fn anyone_waits(&self) -> bool {
        self.entries.iter().any(|entry| !entry.is_held())
    }

    /// Whether no claim holds or waits.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether it is free and unused for so long that it may be deleted. Then the clock alone decides its next
    /// fence: a fence that was given while the clock was ahead is kept until the clock has passed it.
    #[must_use]
    pub fn is_forgettable(&self, now: Now) -> bool {
        let behind = |micros: u64| Duration::from_micros(now.wall_micros.saturating_sub(micros)) >= FORGET_AFTER;
        self.is_free() && behind(self.last_used_micros) && behind(self.last_fence)
    }

    /// The live claims, in order of arrival.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The largest fence given or reserved so far.
    #[must_use]
    pub fn last_fence(&self) -> Option<Fence> {
        (self.last_fence > 0).then(|| Fence::new(self.last_fence))
    }

    /// What [`inspect`](crate::driver::Driver::inspect) shows of it.
    #[must_use]
    pub fn state(&self, name: ResourceName, now: Now) -> ResourceState {
        let live = self.entries.iter().filter(|entry| entry.ends() > now.boot);
        let mut holders: Vec<_> = live.clone().filter_map(|entry| entry.as_holder(now)).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.held_for));
        let waiters = live.filter_map(|entry| entry.as_waiter(now)).collect();
        ResourceState {
            capacity: self.capacity,
            holders,
            waiters: Waiters::Listed(waiters),
            last_fence: self.last_fence(),
            memo: self.memo.clone(),
            ..ResourceState::free(name)
        }
    }
}

impl Entry {
    fn arriving(claim: &Claim, session: Session, now: Now) -> Self {
        Self {
            id: claim.id,
            kind: claim.kind,
            weight: claim.weight,
            lifetime: claim.lifetime,
            ttl: claim.ttl,
            session,
            behind: claim.behind,
            label: claim.label.clone(),
            value: claim.value.clone(),
            since: now.boot,
            expires: now.boot + claim.waiter_ttl(),
            state: EntryState::Waits(None),
            ending: None,
            awaits_grant: false,
            untaken: false,
        }
    }

    /// Whether it holds.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self.state, EntryState::Held(_))
    }

    /// When it ends without renewal.
    #[must_use]
    pub fn ends(&self) -> Moment {
        match self.state {
            EntryState::Waits(Some(turn)) => turn.min(self.expires),
            EntryState::Waits(None) | EntryState::Held(_) => self.expires,
        }
    }

    fn as_holder(&self, now: Now) -> Option<HolderState> {
        let EntryState::Held(fence) = self.state else { return None };
        Some(HolderState {
            fence: Some(fence),
            label: self.label.clone(),
            held_for: now.boot.since(self.since),
            lease_left: self.expires.since(now.boot),
            value: self.value.clone(),
            ending: self.ending.clone(),
            ..HolderState::new(self.id, self.kind, self.weight)
        })
    }

    fn as_waiter(&self, now: Now) -> Option<WaiterState> {
        if self.is_held() {
            return None;
        }
        Some(WaiterState {
            label: self.label.clone(),
            waited: now.boot.since(self.since),
            behind: self.behind,
            ..WaiterState::new(self.id, self.kind, self.weight)
        })
    }
}

/// Fences are strings in public JSON; in stored state a number is smaller and just as exact.
mod fence_number {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::claim::Fence;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
    pub(super) fn serialize<S: Serializer>(fence: &Fence, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(fence.get())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fence, D::Error> {
        u64::deserialize(deserializer).map(Fence::new)
    }
}

#[cfg(test)]
mod tests;
