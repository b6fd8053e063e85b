//! The leases of HTTP clients.
//!
//! A lease is a ticket of the engine that its client keeps: a claim that lives by its lease in the store, and by nothing
//! in this process. So a server that was started again, or another one, renews it as well. What is kept here is for
//! metrics, for streams that tell a loss, and so that one lease is renewed once at a time.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use oarlock::state::{ClaimId, Ending, Kind, Moment, ResourceName};
use oarlock::{ErrorKind, Fence, Guard, LockTicket, LossReason, Released};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::access::Client;
use crate::problem::Problem;
use crate::quota::{self, Quota, Slot};
use crate::state::{State, now};

/// How many locks one client may hold and wait for, and one token at all addresses. Each lease is about 500 bytes here.
pub(crate) const MAX_OF_CLIENT: usize = 10_000;
const MAX_OF_TOKEN: usize = 100_000;

/// A longer text is no lease.
const MAX_LEASE_BYTES: usize = 8 * 1024;

/// How many releases are remembered, for clients that repeat theirs because the answer was lost.
const REMEMBERED: usize = 10_000;

/// When a client that has too many leases may come back.
const RETRY: Duration = Duration::from_secs(5);

/// How often leases that ended are looked for.
const SWEEP: Duration = Duration::from_millis(500);

/// What a client got: the proof that it holds the lock. A secret: a program that has it can release the lock.
#[derive(Clone)]
pub(crate) struct Lease {
    pub(crate) ticket: LockTicket,
    pub(crate) id: ClaimId,
}

/// The parts of a ticket that only its text shows.
#[derive(Deserialize)]
struct Parts {
    id: ClaimId,
    granted: Option<IgnoredAny>,
    value: Option<IgnoredAny>,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.ticket, f)
    }
}

impl Lease {
    fn new(ticket: LockTicket) -> Result<Self, Problem> {
        let parts = serde_json::to_value(&ticket).and_then(serde_json::from_value);
        let Parts { id, .. } = parts.map_err(|error| internal(&error))?;
        Ok(Self { ticket, id })
    }

    /// As its client keeps it.
    pub(crate) fn text(&self) -> Result<String, Problem> {
        let json = serde_json::to_vec(&self.ticket).map_err(|error| internal(&error))?;
        Ok(URL_SAFE_NO_PAD.encode(json))
    }

    /// The lease of a client for this lock.
    pub(crate) fn read(text: &str, name: &ResourceName) -> Result<Self, Problem> {
        let bad = || Problem::bad_request("this is no lease: send the text that the answer to the lock had, unchanged");
        let json = URL_SAFE_NO_PAD.decode(text).ok().filter(|_| text.len() <= MAX_LEASE_BYTES).ok_or_else(bad)?;
        let ticket: LockTicket = serde_json::from_slice(&json).map_err(|_| bad())?;
        let Parts { id, granted, value } = serde_json::from_slice(&json).map_err(|_| bad())?;
        // A lease of this server has none of these. With them the fence need not be the store's, and is shown to others.
        if granted.is_some() || value.is_some() || !ticket.is_renewed() {
            return Err(bad());
        }
        if ticket.resource() != name {
            return Err(Problem::bad_request(format!(
                "this lease is for {}, not for {}",
                oarlock_core::text::quoted(ticket.resource().as_str()),
                oarlock_core::text::quoted(name.as_str())
            )));
        }
        Ok(Self { ticket, id })
    }
}

fn internal(error: &serde_json::Error) -> Problem {
    Problem::new(http::StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
}

/// The client that a lease counts for: a token at an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    token: String,
    network: IpAddr,
}

impl Owner {
    pub(crate) fn new(client: &Client, peer: IpAddr) -> Self {
        Self { token: client.name.clone(), network: quota::network(peer) }
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }
}

/// How many leases and requests that wait each client may have. One token at many addresses has a bound, too.
#[derive(Debug)]
pub(crate) struct LeaseQuota {
    of_client: Arc<Quota<Owner>>,
    of_token: Arc<Quota<String>>,
}

/// A lease, or a request that waits for one, that counts; until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    _of_client: Slot<Owner>,
    _of_token: Slot<String>,
}

impl Default for LeaseQuota {
    fn default() -> Self {
        Self::new(MAX_OF_CLIENT, MAX_OF_TOKEN)
    }
}

impl LeaseQuota {
    pub(crate) fn new(most_of_client: usize, most_of_token: usize) -> Self {
        Self { of_client: Quota::new(most_of_client), of_token: Quota::new(most_of_token) }
    }

    /// One more for this client, if it has not too many.
    pub(crate) fn take(&self, owner: &Owner) -> Result<Counted, Problem> {
        let too_many = |detail: String| {
            let problem = Problem::new(http::StatusCode::TOO_MANY_REQUESTS, "too-many-leases", detail);
            problem.retry_after(RETRY)
        };
        let of_client = self.of_client.take(Some(owner.clone())).ok_or_else(|| {
            too_many(format!("this client holds and waits for {MAX_OF_CLIENT} locks, the most for one client"))
        })?;
        let of_token = self.of_token.take(Some(owner.token.clone())).ok_or_else(|| {
            too_many(format!(
                "the clients with this token hold and wait for {MAX_OF_TOKEN} locks, the most for a token"
            ))
        })?;
        Ok(Counted { _of_client: of_client, _of_token: of_token })
    }

    /// A lease that this client has from another server, or from this one before it was started again.
    fn count(&self, owner: &Owner) -> Counted {
        Counted { _of_client: self.of_client.count(owner.clone()), _of_token: self.of_token.count(owner.token.clone()) }
    }
}

/// How a lease ended, as far as this server knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Lost(LossReason),
}

/// The leases that this server has seen.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    known: Mutex<HashMap<ClaimId, Known>>,
    released: Mutex<Releases>,
    /// Those that a request is at work on, known or not: one at a time.
    turns: Mutex<HashMap<ClaimId, Weak<Turn>>>,
}

/// The last releases.
#[derive(Debug, Default)]
struct Releases {
    /// The oldest first; each once.
    order: VecDeque<ClaimId>,
    ids: HashSet<ClaimId>,
}

impl Releases {
    fn note(&mut self, id: ClaimId) {
        if self.ids.insert(id) {
            self.order.push_back(id);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}

/// Orders the requests for one lease.
type Turn = tokio::sync::Mutex<()>;

#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) kind: Kind,
    pub(crate) since: Moment,
    /// When its client must stop believing.
    pub(crate) ends_at: Moment,
    /// When the store had confirmed that: what was read from the store before says nothing of it.
    pub(crate) renewed_at: Moment,
    /// When it has ended in the store, too. Until then it can be renewed, and so it counts for its client.
    gone_at: Moment,
    /// Whether its client must have stopped believing, and it was counted as lost.
    is_over: bool,
    /// Who asked for its end, if an operator did.
    pub(crate) ending: Option<Ending>,
    counted: Arc<Counted>,
}

impl Leases {
    fn known(&self) -> MutexGuard<'_, HashMap<ClaimId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lease that its client may believe in.
    pub(crate) fn get(&self, id: ClaimId) -> Option<Known> {
        self.known().get(&id).filter(|known| !known.is_over).cloned()
    }

    /// The kinds of the leases that live now.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        self.known().values().filter(|known| !known.is_over).map(|known| known.kind).collect()
    }

    pub(crate) fn was_released(&self, id: ClaimId) -> bool {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).ids.contains(&id)
    }

    /// Notes a grant or a renewal. A lease that is not known is counted by `counted`.
    fn note(&self, lease: &Lease, kind: Kind, ends_at: Moment, counted: impl FnOnce() -> Counted) {
        let (mut known, now) = (self.known(), now());
        let gone_at = gone_at(now, ends_at);
        let new = |counted| Known {
            kind,
            since: now,
            ends_at,
            renewed_at: now,
            gone_at,
            is_over: false,
            ending: None,
            counted,
        };
        match known.entry(lease.id) {
            Entry::Vacant(entry) => {
                entry.insert(new(Arc::new(counted())));
            }
            Entry::Occupied(mut entry) if entry.get().is_over => {
                let counted = entry.get().counted.clone();
                entry.insert(new(counted));
            }
            Entry::Occupied(mut entry) => {
                let entry = entry.get_mut();
                (entry.ends_at, entry.renewed_at, entry.gone_at) = (ends_at, now, gone_at);
            }
        }
    }

    /// Notes that an operator asked for its end.
    pub(crate) fn note_ending(&self, id: ClaimId, ending: &Ending) {
        if let Some(known) = self.known().get_mut(&id) {
            known.ending = Some(ending.clone());
        }
    }

    fn forget(&self, id: ClaimId, end: &End) -> Option<Known> {
        if *end == End::Released {
            self.released.lock().unwrap_or_else(PoisonError::into_inner).note(id);
        }
        self.known().remove(&id).filter(|known| !known.is_over)
    }

    /// The same for all requests for a lease, also for one that another server gave out.
    pub(crate) fn turn(&self, id: ClaimId) -> Arc<Turn> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(&id).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(id, Arc::downgrade(&turn));
        turn
    }

    /// Those whose belief has ended by now, once. What has ended in the store as well is forgotten.
    pub(crate) fn take_ended(&self, now: Moment) -> Vec<Known> {
        let (mut known, mut ended) = (self.known(), Vec::new());
        known.retain(|_, known| {
            if !known.is_over && known.ends_at <= now {
                known.is_over = true;
                ended.push(known.clone());
            }
            known.gone_at > now
        });
        ended
    }
}

/// When a lease has ended in the store, too, whose client must stop believing at `ends_at`. The store says how long a
/// lease is, and may give more or less than was asked for; belief ends earlier by the drift of clocks and by the time
/// that the answer took.
fn gone_at(now: Moment, ends_at: Moment) -> Moment {
    ends_at + ends_at.since(now) / 20 + Duration::from_secs(1)
}

/// A grant or a renewal, for its client.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) lease: Lease,
    pub(crate) kind: Kind,
    pub(crate) ends_at: Moment,
    pub(crate) waited: Duration,
    /// An operator asked for its end: it is not extended any more.
    pub(crate) ending: Option<Ending>,
}

impl Granted {
    pub(crate) fn fence(&self) -> Fence {
        self.lease.ticket.fence()
    }

    /// How long its client may believe, counted from the moment at which it sent the request that arrived here at
    /// `arrived`. It sent it earlier than that, so its belief ends earlier than the engine's would.
    pub(crate) fn believe(&self, arrived: Moment) -> Duration {
        self.ends_at.since(arrived)
    }
}

/// Leaves a lock that was just granted to its client.
pub(crate) fn hand_out(state: &State, guard: Guard, counted: Counted) -> Result<Granted, Problem> {
    let (kind, ends_at, waited) = (guard.kind(), guard.ends_at(), guard.waited());
    let lease = Lease::new(guard.hand_over()?)?;
    state.leases.note(&lease, kind, ends_at, || counted);
    Ok(Granted { lease, kind, ends_at, waited, ending: None })
}

/// A whole lease more.
///
/// # Cancel safety
/// If the future is dropped, the lease lives on. It may have been renewed, which is not noted here then.
pub(crate) async fn renew(state: &State, lease: &Lease, owner: &Owner) -> Result<Granted, Problem> {
    let turn = state.leases.turn(lease.id);
    let _turn = turn.lock().await;
    if state.leases.was_released(lease.id) {
        return Err(Problem::lost(format!("{}: it was released", quoted(lease))));
    }
    let sent = now();
    let adopted = state.locks.adopt(&lease.ticket).await;
    let outcome = match &adopted {
        Ok(_) => "ok",
        Err(error) if error.kind() == ErrorKind::Lost => "gone",
        Err(_) => "error",
    };
    state.metrics.renewed(outcome, now().since(sent));
    // Adopting renews it; handing over at once leaves it to its client again. No `await` in between: a guard that is
    // dropped there, with the request of a client that went away, would release the lock.
    let guard = adopted.map_err(|error| gone(state, lease, error))?;
    let (kind, ends_at) = (guard.kind(), guard.ends_at());
    if let Some(known) = state.leases.get(lease.id) {
        state.metrics.margin(known.ends_at.since(now()), known.ends_at.since(known.renewed_at));
    }
    // The store has told it with the renewal.
    let ending = known_now(guard.asked_to_end()).flatten();
    let ticket = guard.hand_over().map_err(|error| gone(state, lease, error))?;
    state.leases.note(lease, kind, ends_at, || state.lease_quota.count(owner));
    if let Some(ending) = &ending {
        state.leases.note_ending(lease.id, ending);
    }
    Ok(Granted { lease: Lease { ticket, ..*lease }, kind, ends_at, waited: Duration::ZERO, ending })
}

/// The output of a future if it is ready now.
fn known_now<T>(future: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Ends a lease, and returns whether it did. A repetition did not, and has the same answer for its client.
pub(crate) async fn release(state: &State, lease: &Lease) -> Result<bool, Problem> {
    let turn = state.leases.turn(lease.id);
    let _turn = turn.lock().await;
    if state.leases.was_released(lease.id) {
        return Ok(false);
    }
    let guard = state.locks.adopt(&lease.ticket).await.map_err(|error| gone(state, lease, error))?;
    let kind = guard.kind();
    if guard.release().await? == Released::NotHeld {
        ended(state, lease.id, &End::Lost(LossReason::Gone));
        return Err(Problem::lost(format!("{}: it was gone before it was released", quoted(lease))));
    }
    match state.leases.forget(lease.id, &End::Released) {
        Some(known) => count(state, &known, &End::Released),
        // Another server gave it out.
        None => state.metrics.held(kind, "released", Duration::ZERO),
    }
    Ok(true)
}

/// Remembers that it is lost, if it is.
fn gone(state: &State, lease: &Lease, error: oarlock::Error) -> Problem {
    if error.kind() == ErrorKind::Lost {
        ended(state, lease.id, &End::Lost(error.loss().cloned().unwrap_or(LossReason::Gone)));
    }
    error.into()
}

/// Notes the end of a lease.
pub(crate) fn ended(state: &State, id: ClaimId, end: &End) {
    if let Some(known) = state.leases.forget(id, end) {
        count(state, &known, end);
    }
}

fn count(state: &State, known: &Known, end: &End) {
    // A hold whose end was asked for is not renewed any more, and so it is over like one that expired.
    let cause = match end {
        End::Released => None,
        End::Lost(_) if known.ending.is_some() => Some("broken"),
        End::Lost(reason) => Some(word(reason)),
    };
    let word = match cause {
        None => "released",
        Some("broken") => "broken",
        Some(_) => "lost",
    };
    state.metrics.held(known.kind, word, now().since(known.since));
    if let Some(cause) = cause {
        state.metrics.lost(known.kind, cause);
    }
}

/// The word for a loss, in metrics and events.
pub(crate) fn word(reason: &LossReason) -> &'static str {
    match reason {
        LossReason::Expired => "expired",
        LossReason::Broken(_) => "broken",
        LossReason::Session => "session",
        _ => "gone",
    }
}

fn quoted(lease: &Lease) -> String {
    oarlock_core::text::quoted(lease.ticket.resource().as_str())
}

/// Counts leases that their clients did not renew in time, until the server ends.
pub(crate) async fn sweep(state: Arc<State>) {
    loop {
        tokio::select! {
            () = state.closing.cancelled() => return,
            () = tokio::time::sleep(SWEEP) => {}
        }
        for known in state.leases.take_ended(now()) {
            count(&state, &known, &End::Lost(LossReason::Expired));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_remembered_once_each_and_the_oldest_are_forgotten() {
        let ids: Vec<_> = (0..).map(ClaimId::from_bits).take(REMEMBERED + 1).collect();
        let mut releases = Releases::default();
        for id in ids.iter().chain(&ids[1..3]) {
            releases.note(*id);
        }
        assert_eq!((releases.order.len(), releases.ids.len()), (REMEMBERED, REMEMBERED));
        assert!(!releases.ids.contains(&ids[0]) && ids[1..].iter().all(|id| releases.ids.contains(id)));
    }

    fn owner() -> Owner {
        Owner { token: "ops".to_owned(), network: [10, 0, 0, 7].into() }
    }

    #[test]
    fn what_is_no_lease_is_refused() {
        let name = ResourceName::new("x").unwrap();
        for text in ["", "x", "e30", "!!!", &"A".repeat(20_000), "bnVsbA"] {
            assert_eq!(Lease::read(text, &name).unwrap_err().status.as_u16(), 400, "{text:.20}");
        }
    }

    #[test]
    fn requests_for_a_lease_that_is_not_known_take_turns_too() {
        let leases = Leases::default();
        let (one, other) = (ClaimId::from_bits(1), ClaimId::from_bits(2));
        let turn = leases.turn(one);
        assert!(Arc::ptr_eq(&turn, &leases.turn(one)) && !Arc::ptr_eq(&turn, &leases.turn(other)));
        drop(turn);
        let _turn = leases.turn(other);
        assert_eq!(leases.turns.lock().unwrap().len(), 1, "nothing is left behind");
    }

    #[tokio::test]
    async fn a_lease_is_for_its_lock_and_does_not_print_its_secret() {
        let locks = oarlock::connect("mem:").await.unwrap();
        let guard = locks.mutex("x").lifetime(oarlock::Lifetime::Lease).lock().await.unwrap();
        let id = guard.id();
        let lease = Lease::new(guard.hand_over().unwrap()).unwrap();
        let text = lease.text().unwrap();
        let read = Lease::read(&text, &ResourceName::new("x").unwrap()).unwrap();
        assert_eq!((read.id, &read.ticket), (id, &lease.ticket));
        assert!(!format!("{read:?}").contains(&id.to_string()));
        let forge = |key: &str, value: serde_json::Value| {
            let mut ticket = serde_json::to_value(&lease.ticket).unwrap();
            ticket[key] = value;
            Lease::read(&URL_SAFE_NO_PAD.encode(ticket.to_string()), &ResourceName::new("x").unwrap())
        };
        assert!(forge("ttl_ms", 1000.into()).is_ok(), "the client could have asked for it");
        for (key, value) in [
            ("granted", serde_json::to_value(lease.ticket.fence()).unwrap()),
            ("value", "v".into()),
            ("renewed", false.into()),
        ] {
            assert_eq!(forge(key, value).unwrap_err().status.as_u16(), 400, "{key}");
        }
        let other = Lease::read(&text, &ResourceName::new("y").unwrap()).unwrap_err();
        assert!(other.detail.contains("\"x\"") && other.detail.contains("\"y\""), "{}", other.detail);
    }

    /// A store may give a longer lease than was asked for, and the text of a lease comes from its client.
    #[tokio::test]
    async fn the_store_says_when_a_lease_ends() {
        let locks = oarlock::connect("mem:").await.unwrap();
        let guard =
            locks.mutex("x").ttl(Duration::from_secs(1)).lifetime(oarlock::Lifetime::Lease).lock().await.unwrap();
        let lease = Lease::new(guard.hand_over().unwrap()).unwrap();
        let (leases, begun) = (Leases::default(), now());
        leases.note(&lease, Kind::Mutex, begun + Duration::from_secs(60), || LeaseQuota::default().count(&owner()));
        assert!(leases.take_ended(begun + Duration::from_secs(59)).is_empty() && leases.get(lease.id).is_some());
        assert_eq!(leases.take_ended(begun + Duration::from_secs(61)).len(), 1);
        assert!(leases.known().contains_key(&lease.id), "it can be renewed until it has ended in the store");
        leases.take_ended(begun + Duration::from_secs(65));
        assert!(leases.known().is_empty());
    }

    /// The runtime may stop a request anywhere that it awaits, also because the task has used up its budget, and the
    /// request is dropped there when its client goes away.
    #[tokio::test]
    async fn a_renewal_that_is_cancelled_anywhere_releases_nothing() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let state = Arc::new(State::new(locks, crate::config::Config::default()).unwrap());
        let mut names = Vec::new();
        for spent in 0..=128 {
            for polls in 1..=3 {
                let name = format!("{spent}-{polls}");
                let guard = state.locks.mutex(&name).lifetime(oarlock::Lifetime::Lease).lock().await.unwrap();
                let granted = hand_out(&state, guard, state.lease_quota.take(&owner()).unwrap()).unwrap();
                let task = tokio::spawn({
                    let state = state.clone();
                    async move {
                        let owner = owner();
                        let mut renewal = Box::pin(renew(&state, &granted.lease, &owner));
                        for _ in 0..polls {
                            // A new budget, of which a part is spent.
                            tokio::task::yield_now().await;
                            let mut is_done = false;
                            std::future::poll_fn(|cx| {
                                for _ in 0..spent {
                                    let _ = std::pin::pin!(tokio::task::consume_budget()).poll(cx);
                                }
                                is_done = renewal.as_mut().poll(cx).is_ready();
                                Poll::Ready(())
                            })
                            .await;
                            if is_done {
                                return;
                            }
                        }
                    }
                });
                task.await.unwrap();
                names.push(name);
            }
        }
        // Longer than a release in the background takes.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let held: HashMap<_, _> =
            state.locks.list().await.unwrap().into_iter().map(|lock| (lock.name.as_str().to_owned(), lock)).collect();
        names.retain(|name| held.get(name).is_none_or(|lock| lock.holders.is_empty()));
        assert!(names.is_empty(), "released, although its client believes: {names:?}");
    }
}
