//! The leases of one client: one for each claim at a time, used again afterwards.
//!
//! A lease is used again only if every request on it has been answered. If a request may still be under way, its lease
//! is revoked instead: the request then has no effect when it arrives.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_core::clock::{BootClock, Clock, Moment};
use oarlock_core::driver::Lease;
use oarlock_core::{Claim, ClaimId, Result};

use crate::api::Range;
use crate::connection::Connection;
use crate::error::ended;
use crate::peek::Predecessor;
use crate::queue::{Record, StoredClaim};

/// What an answer of a majority says about leaders: at the moment `after`, when it was requested, no leader had been
/// elected in a term later than `term`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Majority {
    pub(crate) after: Moment,
    pub(crate) term: u64,
}

/// The answer to a keep-alive of one lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    /// How long it lives; zero if it is over.
    pub(crate) ttl: Duration,
    /// The member that answered was the leader of this term, or of a later one.
    pub(crate) term: u64,
}

/// One lease, and when it was last kept alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leased {
    pub(crate) id: i64,
    /// The TTL that was requested.
    pub(crate) seconds: u64,
    /// The TTL that was granted.
    pub(crate) ttl: Duration,
    /// When the request was sent that last extended it.
    pub(crate) from: Moment,
    /// The term of the leader that extended it, at least; `None` where a majority has agreed to it.
    pub(crate) term: Option<u64>,
}

impl Leased {
    /// What its holder may believe.
    ///
    /// A leader extends leases without asking the other members. A deposed leader that does not know it does so too,
    /// while its successor has started all leases anew. So an extension counts only if no leader was elected between
    /// the leader that gave it and the time from which it counts.
    pub(crate) fn lease(&self, majority: &Majority) -> Result<Lease> {
        let counts = self.term.is_none_or(|term| self.from <= majority.after && majority.term <= term);
        let lease = Lease::sent_at(self.from, self.ttl);
        if counts { Ok(lease) } else { Err(ended("the lease was kept alive by a leader that may have been deposed")) }
    }

    fn age(&self) -> Duration {
        BootClock.now().since(self.from)
    }

    /// Whether it has nearly all of its life before it.
    fn is_fresh(&self) -> bool {
        self.age() <= FRESH.max(self.ttl / 12)
    }

    /// Applies the answer to a keep-alive; false if the lease is over.
    fn extend(&mut self, from: Moment, lives: &HashMap<i64, KeepAlive>) -> bool {
        let Some(kept) = lives.get(&self.id) else { return true };
        if from >= self.from {
            (self.from, self.ttl, self.term) = (from, kept.ttl, Some(kept.term));
        }
        !kept.ttl.is_zero()
    }
}

/// Leases have whole seconds.
pub(crate) fn seconds(ttl: Duration) -> u64 {
    ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)
}

/// An idle lease that is older than this, or than a twelfth of its TTL, is kept alive before a claim starts on it. Any
/// value is safe, because a grant says since when its lease runs; this one saves a busy lock a request for each pair.
const FRESH: Duration = Duration::from_millis(250);

/// Fewer claims are not worth a sweep.
const SWEEP_FROM: usize = 64;

/// The most idle leases of one length.
const IDLE: usize = 64;

/// What this client knows of one of its claims.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// For holding.
    pub(crate) full: Option<Leased>,
    /// For waiting, if a waiter must not live as long as a holder.
    pub(crate) waiting: Option<Leased>,
    /// The revisions that made and last changed its key, as far as known; zero = none.
    pub(crate) created: i64,
    pub(crate) changed: i64,
    pub(crate) granted: bool,
    /// The lease that its keys are named after, as far as known; zero = unknown or none.
    pub(crate) named_after: i64,
    /// The claim right before it, if it has peeked at the queue.
    pub(crate) predecessor: Option<Predecessor>,
    /// What it waits for, and the revision at which that was seen.
    pub(crate) waits_for: Option<(Range, i64)>,
    /// Its record as last written.
    pub(crate) record: Option<Record>,
    /// It outlives this client.
    pub(crate) outlives: bool,
    /// It is on another client's lease.
    pub(crate) adopted: bool,
    /// Attempts under way.
    attempts: u32,
    /// A step of an attempt ended without an answer.
    pub(crate) unsure: bool,
}

impl Entry {
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Leased> {
        self.full.iter().chain(&self.waiting)
    }

    /// Whether its leases need no keep-alive: each was kept alive just now, and no answer is missing.
    pub(crate) fn is_fresh(&self) -> bool {
        !self.unsure && self.leases().all(Leased::is_fresh)
    }

    /// Takes over what the store has of it; `None` = nothing.
    pub(crate) fn note(&mut self, stored: Option<&StoredClaim>) {
        (self.created, self.changed) = stored.map_or((0, 0), |stored| (stored.created, stored.changed));
        self.granted = stored.is_some_and(|stored| stored.record.granted);
        self.predecessor = None;
        self.named_after = stored.map_or(0, |stored| stored.named_after);
        self.record = stored.map(|stored| stored.record.clone());
    }

    /// Notes the claim right before it. What a watch has shown of that one is kept.
    pub(crate) fn follow(&mut self, before: Option<Predecessor>) {
        let is_known = |before: &Predecessor| self.predecessor.as_ref().is_some_and(|known| known.is(before));
        if !before.as_ref().is_some_and(is_known) {
            self.predecessor = before;
        }
    }

    /// Applies the answer to a keep-alive, and drops a lease that is over.
    pub(crate) fn extend(&mut self, from: Moment, lives: &HashMap<i64, KeepAlive>) {
        for lease in [&mut self.full, &mut self.waiting] {
            if lease.as_mut().is_some_and(|lease| !lease.extend(from, lives)) {
                *lease = None;
            }
        }
    }

    fn reusable(&self) -> bool {
        self.attempts == 0 && !self.unsure && !self.adopted
    }
}

/// The claims and the idle leases of one client.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    claims: HashMap<ClaimId, Entry>,
    idle: HashMap<u64, Vec<Leased>>,
    /// With this many claims, those that other clients have taken over are dropped.
    sweep_at: usize,
}

impl State {
    /// Forgets claims that another client has taken over: this client has not kept them alive for as long as they
    /// live. Not each time, so that many claims do not make each attempt slow.
    fn sweep(&mut self) {
        if self.claims.len() < self.sweep_at.max(SWEEP_FROM) {
            return;
        }
        let lives = |entry: &Entry| entry.leases().any(|lease| lease.age() <= lease.ttl);
        self.claims.retain(|_, entry| !entry.outlives || entry.attempts > 0 || lives(entry));
        self.sweep_at = self.claims.len() * 2;
    }
}

/// An attempt under way; dropping it without [`answered`](Self::answered) leaves doubt.
pub(crate) struct OpenAttempt<'a> {
    leases: &'a Leases,
    id: ClaimId,
    answered: bool,
}

impl OpenAttempt<'_> {
    pub(crate) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for OpenAttempt<'_> {
    fn drop(&mut self) {
        self.leases.edit(self.id, |entry| {
            entry.attempts = entry.attempts.saturating_sub(1);
            entry.unsure |= !self.answered;
        });
    }
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an attempt.
    pub(crate) fn begin_attempt(&self, claim: &Claim) -> (OpenAttempt<'_>, Entry) {
        let mut state = self.lock();
        state.sweep();
        let entry = state.claims.entry(claim.id).or_default();
        entry.attempts += 1;
        entry.outlives = claim.lifetime == oarlock_core::Lifetime::Lease;
        (OpenAttempt { leases: self, id: claim.id, answered: false }, entry.clone())
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Entry> {
        self.lock().claims.get(&id).cloned()
    }

    /// Changes what is known of a claim, if anything is.
    pub(crate) fn edit(&self, id: ClaimId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.lock().claims.get_mut(&id) {
            change(entry);
        }
    }

    /// A lease of this length that was kept alive just now: an idle one, else a new one.
    pub(crate) async fn take(&self, connection: &Connection, seconds: u64) -> Result<Leased> {
        let idle = self.lock().idle.get_mut(&seconds).and_then(Vec::pop);
        if let Some(mut lease) = idle {
            if lease.is_fresh() {
                return Ok(lease);
            }
            let (from, lives) = connection.keep_alive(vec![lease.id]).await?;
            if !lives.is_empty() && lease.extend(from, &lives) {
                return Ok(lease);
            }
        }
        connection.grant(seconds).await
    }

    /// An idle lease of this length that was kept alive just now.
    pub(crate) fn fresh(&self, seconds: u64) -> Option<Leased> {
        self.lock().idle.get_mut(&seconds)?.pop_if(|lease| lease.is_fresh())
    }

    /// A lease for waiting that costs no request: the one for holding if it is as short, else an idle one with most of
    /// its life before it. Waiters are kept alive from now on.
    pub(crate) fn spare(&self, id: ClaimId, seconds: u64, full: Leased) -> Option<Leased> {
        if seconds == full.seconds {
            return Some(full);
        }
        let mut state = self.lock();
        let idle = state.idle.get_mut(&seconds)?;
        let young = idle.iter().rposition(|lease| lease.age() < lease.ttl / 4)?;
        let lease = idle.swap_remove(young);
        state.claims.entry(id).or_default().waiting = Some(lease);
        Some(lease)
    }

    /// Keeps a lease for the next claim. A lease too many expires.
    pub(crate) fn put(&self, lease: Leased) {
        let mut state = self.lock();
        let idle = state.idle.entry(lease.seconds).or_default();
        idle.retain(|other| other.age() < other.ttl);
        if idle.len() < IDLE {
            idle.push(lease);
        }
    }

    /// The claim is granted: its lease for waiting is not needed any more.
    pub(crate) fn granted(&self, id: ClaimId, change: impl FnOnce(&mut Entry)) {
        let mut spare = None;
        self.edit(id, |entry| {
            change(entry);
            entry.granted = true;
            // In doubt it stays with the claim, and ends with it; and so it does if another attempt could use it, or if
            // its keys are named after it.
            let named = entry.waiting.is_some_and(|waiting| waiting.id == entry.named_after);
            let doubt = entry.unsure || entry.adopted || entry.attempts > 1 || named;
            spare = if doubt { None } else { entry.waiting.take() };
        });
        if let Some(lease) = spare {
            self.put(lease);
        }
    }

    /// The store has nothing of the claim any more. Its leases become idle, except those (returned) that a late
    /// request could still use.
    #[must_use]
    pub(crate) fn forget(&self, id: ClaimId, certain: bool) -> Vec<i64> {
        let Some(entry) = self.lock().claims.remove(&id) else { return Vec::new() };
        if entry.adopted {
            return Vec::new();
        }
        if !entry.reusable() || !certain {
            return entry.leases().map(|lease| lease.id).collect();
        }
        entry.leases().for_each(|lease| self.put(*lease));
        Vec::new()
    }

    /// If the store has nothing of the claim, and nothing of it is under way either, its leases are free.
    pub(crate) fn recycle(&self, id: ClaimId) {
        let mut state = self.lock();
        if !state.claims.get(&id).is_some_and(|entry| entry.reusable() && entry.created == 0) {
            return;
        }
        let entry = state.claims.remove(&id);
        drop(state);
        entry.iter().flat_map(Entry::leases).for_each(|lease| self.put(*lease));
    }

    #[cfg(test)]
    pub(crate) fn idle(&self) -> Vec<i64> {
        self.lock().idle.values().flatten().map(|lease| lease.id).collect()
    }

    /// Lets all idle leases count as kept alive just now for the next minute, however slow the machine is.
    #[cfg(test)]
    pub(crate) fn freshen(&self) {
        let later = BootClock.now() + Duration::from_secs(60);
        self.lock().idle.values_mut().flatten().for_each(|lease| lease.from = later);
    }

    /// Everything that ends with this client.
    pub(crate) fn drain(&self) -> Vec<i64> {
        let mut state = self.lock();
        let idle: Vec<_> = state.idle.drain().flat_map(|(_, leases)| leases).map(|lease| lease.id).collect();
        let claims: Vec<_> = state.claims.drain().map(|(_, entry)| entry).collect();
        let owned = claims.iter().filter(|entry| !entry.outlives && !entry.adopted);
        owned.flat_map(|entry| entry.leases().map(|lease| lease.id)).chain(idle).collect()
    }
}

#[cfg(test)]
mod tests {
    use oarlock_core::{Applied, Lifetime, ResourceName};

    use super::*;
    use crate::api::{Op, PutRequest};
    use crate::config::Config;

    fn leased(id: i64) -> Leased {
        Leased { id, seconds: 30, ttl: Duration::from_secs(30), from: BootClock.now(), term: None }
    }

    fn claim() -> Claim {
        Claim::new(ClaimId::from_bits(1), ResourceName::new("n").unwrap())
    }

    #[test]
    fn a_lease_is_used_again_only_when_everything_was_answered() {
        let (leases, claim) = (Leases::default(), claim());
        let (attempt, _) = leases.begin_attempt(&claim);
        leases.edit(claim.id, |entry| entry.full = Some(leased(7)));
        attempt.answered();
        assert_eq!((leases.forget(claim.id, true), leases.idle()), (vec![], vec![7]));

        let leases = Leases::default();
        let (attempt, _) = leases.begin_attempt(&claim);
        leases.edit(claim.id, |entry| entry.full = Some(leased(8)));
        drop(attempt);
        assert_eq!((leases.forget(claim.id, true), leases.idle()), (vec![8], vec![]), "an attempt had no answer");

        let (attempt, _) = leases.begin_attempt(&claim);
        leases.edit(claim.id, |entry| entry.full = Some(leased(9)));
        assert_eq!((leases.forget(claim.id, true), leases.idle()), (vec![9], vec![]), "an attempt is under way");
        drop(attempt);
    }

    #[test]
    fn another_clients_lease_is_neither_ended_nor_used_again() {
        let (leases, claim) = (Leases::default(), claim());
        let (attempt, _) = leases.begin_attempt(&claim);
        leases.edit(claim.id, |entry| (entry.full, entry.adopted) = (Some(leased(7)), true));
        attempt.answered();
        assert_eq!((leases.forget(claim.id, true), leases.idle()), (vec![], vec![]));
    }

    /// A claim that was handed over is forgotten. A claim that is kept alive here, or that ends with this client, is
    /// kept.
    #[test]
    fn claims_that_another_client_took_over_are_forgotten() {
        let leases = Leases::default();
        let old = BootClock.now();
        std::thread::sleep(Duration::from_millis(5));
        let stand = |number: usize, ttl, lifetime| {
            let mut claim = claim();
            (claim.id, claim.lifetime) = (ClaimId::from_bits(u128::try_from(number).unwrap()), lifetime);
            let (attempt, _) = leases.begin_attempt(&claim);
            leases.edit(claim.id, |entry| entry.full = Some(Leased { from: old, ttl, ..leased(1) }));
            attempt.answered();
        };
        let (over, long) = (Duration::from_millis(1), Duration::from_secs(60));
        stand(1, over, Lifetime::Process);
        stand(2, long, Lifetime::Lease);
        for number in 0..10 * SWEEP_FROM {
            stand(number + 3, over, Lifetime::Lease);
        }
        assert!(leases.lock().claims.len() <= SWEEP_FROM, "{} are kept", leases.lock().claims.len());
        assert!([1, 2].iter().all(|kept| leases.get(ClaimId::from_bits(*kept)).is_some()));
    }

    /// Revoking the lease of a late request is safe only because of this.
    #[tokio::test]
    async fn a_request_on_an_ended_lease_does_nothing() {
        let Some(server) = oarlock_testbed::Etcd::start_or_skip().unwrap() else { return };
        let connection = Connection::open(&Config::new([server.addr().to_string()])).await.unwrap();
        let lease = connection.grant(30).await.unwrap();
        connection.revoke(lease.id).await.unwrap();
        let range = Range::key("late");
        let put = PutRequest { key: range.key.clone(), value: vec![1], lease: lease.id, ignore_lease: false };
        let late = connection.txn(Vec::new(), vec![Op::Put(put)], Vec::new()).await.unwrap_err();
        assert_eq!(late.applied(), Applied::Unknown);
        assert!(connection.read(&range).await.unwrap().1.is_empty());
        assert!(connection.keep_alive(vec![lease.id]).await.unwrap().1[&lease.id].ttl.is_zero());
    }
}
