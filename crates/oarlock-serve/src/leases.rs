//! The leases of HTTP clients.
//!
//! A lease is a ticket of the engine that its client keeps: a claim that lives by its lease in the store, and by nothing
//! in this process. So a server that was started again, or another one, renews it as well. What is kept here is for
//! metrics, for streams that tell a loss, and so that one lease is renewed once at a time.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use oarlock::state::{ClaimId, Ending, Kind, Moment, ResourceName};
use oarlock::{ErrorKind, Fence, Guard, LockTicket, LossReason, Released};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::places::Place;
use crate::problem::Problem;
use crate::state::{State, now};

/// A longer text is no lease.
const MAX_LEASE_BYTES: usize = 8 * 1024;

/// How many releases are remembered, for clients that repeat theirs because the answer was lost.
const REMEMBERED: usize = 10_000;

/// How often leases that ended are looked for.
const SWEEP: Duration = Duration::from_millis(500);

/// What a client got: the proof that it holds the lock. A secret: a program that has it can release the lock.
#[derive(Clone)]
pub(crate) struct Lease {
    pub(crate) ticket: LockTicket,
    pub(crate) id: ClaimId,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.ticket, f)
    }
}

impl Lease {
    /// As its client keeps it.
    pub(crate) fn text(&self) -> Result<String, Problem> {
        let json = serde_json::to_vec(&self.ticket);
        let json =
            json.map_err(|error| Problem::new(http::StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()))?;
        Ok(URL_SAFE_NO_PAD.encode(json))
    }

    /// The lease of a client for this lock.
    pub(crate) fn read(text: &str, name: &ResourceName) -> Result<Self, Problem> {
        #[derive(Deserialize)]
        struct Parts {
            id: ClaimId,
            granted: Option<IgnoredAny>,
            value: Option<IgnoredAny>,
        }
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
    released: Mutex<VecDeque<ClaimId>>,
    /// Those that a request is at work on, known or not: one at a time.
    turns: Mutex<HashMap<ClaimId, Weak<Turn>>>,
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
    /// Who asked for its end, if an operator did.
    pub(crate) ending: Option<Ending>,
    /// Among those of its client; `None` if another server gave it out.
    place: Option<Arc<Place<String>>>,
}

impl Leases {
    fn known(&self) -> MutexGuard<'_, HashMap<ClaimId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, id: ClaimId) -> Option<Known> {
        self.known().get(&id).cloned()
    }

    /// The kinds of the leases that live now.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        self.known().values().map(|known| known.kind).collect()
    }

    pub(crate) fn was_released(&self, id: ClaimId) -> bool {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }

    fn note(&self, id: ClaimId, kind: Kind, ends_at: Moment, place: Option<Place<String>>) {
        let mut known = self.known();
        let entry = known.entry(id);
        let now = now();
        let entry =
            entry.or_insert_with(|| Known { kind, since: now, ends_at, renewed_at: now, ending: None, place: None });
        (entry.ends_at, entry.renewed_at) = (ends_at, now);
        if let Some(place) = place {
            entry.place = Some(Arc::new(place));
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
            let mut released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
            released.push_back(id);
            if released.len() > REMEMBERED {
                released.pop_front();
            }
        }
        self.known().remove(&id)
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

    /// Takes those out whose belief has ended.
    fn take_ended(&self) -> Vec<Known> {
        let (mut known, now) = (self.known(), now());
        let ended: Vec<_> = known.iter().filter(|(_, known)| known.ends_at <= now).map(|(id, _)| *id).collect();
        ended.into_iter().filter_map(|id| known.remove(&id)).collect()
    }
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
pub(crate) fn hand_out(state: &State, guard: Guard, place: Option<Place<String>>) -> Result<Granted, Problem> {
    let (id, kind, ends_at, waited) = (guard.id(), guard.kind(), guard.ends_at(), guard.waited());
    let ticket = guard.hand_over()?;
    state.leases.note(id, kind, ends_at, place);
    Ok(Granted { lease: Lease { ticket, id }, kind, ends_at, waited, ending: None })
}

/// A whole lease more.
///
/// # Cancel safety
/// If the future is dropped, the lease lives on. It may have been renewed, which is not noted here then.
pub(crate) async fn renew(state: &State, lease: &Lease) -> Result<Granted, Problem> {
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
        state.metrics.margin(known.ends_at.since(now()));
    }
    // The store has told it with the renewal.
    let ending = known_now(guard.asked_to_end()).flatten();
    let ticket = guard.hand_over().map_err(|error| gone(state, lease, error))?;
    state.leases.note(lease.id, kind, ends_at, None);
    if let Some(ending) = &ending {
        state.leases.note_ending(lease.id, ending);
    }
    Ok(Granted { lease: Lease { ticket, id: lease.id }, kind, ends_at, waited: Duration::ZERO, ending })
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
    state.leases.note(lease.id, kind, now(), None);
    ended(state, lease.id, &End::Released);
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
        for known in state.leases.take_ended() {
            count(&state, &known, &End::Lost(LossReason::Expired));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (id, ticket) = (guard.id(), guard.hand_over().unwrap());
        let lease = Lease { ticket, id };
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
                let granted = hand_out(&state, guard, None).unwrap();
                let task = tokio::spawn({
                    let state = state.clone();
                    async move {
                        let mut renewal = Box::pin(renew(&state, &granted.lease));
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
