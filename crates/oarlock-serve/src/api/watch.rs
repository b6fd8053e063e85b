//! Streams: all locks for pages, one lock for its followers, and for a holder whether it still holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oarlock::state::{Moment, ResourceName};
use oarlock::{ErrorKind, LossReason};
use serde_json::{Value, json};

use crate::access::Right;
use crate::answer::Answer;
use crate::board::{Board, Sample};
use crate::followers::{self, Seen};
use crate::leases::{self, End, Lease};
use crate::problem::Problem;
use crate::service::Call;
use crate::sse::{self, Closed, Events};
use crate::state::{State, millis, now, wall_millis};
use crate::view::{self, Holder, Lock};

/// The header with the lease of a client.
pub(crate) const LEASE: &str = "oarlock-lease";

/// Every lock that the client may read: all of them, then what changes.
pub(super) fn all(state: &Arc<State>, call: &Call) -> Result<Answer, Problem> {
    call.only(&[])?;
    let (held, client) = (state.clone(), call.client.clone());
    sse::stream(state, call, move |events| async move {
        let _viewer = Board::viewer(&held);
        let mut samples = held.board.view();
        let mut findings = held.findings.subscribe();
        let (mut before, mut trouble) = (held.board.nothing(), None::<String>);
        // Only the first event has all locks: a page takes it for a new beginning, also of what could not be read.
        let mut event = "locks";
        loop {
            let now = samples.borrow_and_update().clone();
            if now.at_ms > 0 || now.trouble.is_some() {
                let rest = held.board.changes(&before, &now, &client);
                let start = format!(r#"{{"at_ms":{},"now_ms":{},"#, now.at_ms, wall_millis());
                events.send_shared(event, &start, rest).await?;
                event = "changes";
                let detail = now.trouble.as_deref().or(now.listing.advice());
                if trouble.as_deref() != detail {
                    events.send_json("trouble", &json!({ "detail": detail, "listing": now.listing.word() })).await?;
                    trouble = detail.map(str::to_owned);
                }
                before = now;
            }
            let changed = async {
                tokio::select! {
                    sampled = samples.changed() => sampled.map(|()| false),
                    examined = findings.changed() => examined.map(|()| true),
                }
            };
            match events.while_open(changed).await? {
                Ok(false) => {}
                Ok(true) => events.send("store", "{}").await?,
                // The server has ended.
                Err(_) => return Ok(()),
            }
        }
    })
}

/// One lock; with a lease in the header `Oarlock-Lease`, also whether that still holds.
pub(super) fn one(state: &Arc<State>, name: ResourceName, call: &Call) -> Result<Answer, Problem> {
    call.only(&[])?;
    let lease =
        call.headers.get(LEASE).map(|text| Lease::read(text.to_str().unwrap_or_default(), &name)).transpose()?;
    let watched = Watched { shows: call.client.may(Right::Read, name.as_str()), name, lease };
    let held = state.clone();
    sse::stream(state, call, move |events| async move { follow(&held, &watched, &events).await })
}

/// What a stream tells.
struct Watched {
    name: ResourceName,
    /// Whether the client may read the lock: else it is only told of its lease.
    shows: bool,
    lease: Option<Lease>,
}

async fn follow(state: &Arc<State>, watched: &Watched, events: &Events) -> Result<(), Closed> {
    let Watched { name, shows, lease } = watched;
    let lease = lease.as_ref();
    // A holder that watches its own lease has no use for the renewals of others, which may be many.
    let renewals = lease.is_none() && state.counts_down();
    let (mut shown, mut ending, began) = (Shown::new(renewals), None, now());
    let mut belief = Belief { ends_at: lease.and_then(|lease| known(state, lease)), ..Belief::default() };
    let mut followed = followers::follow(state, name);
    let mut samples = state.board.view();
    let changed_ms = |sample: &Sample| sample.rows.get(name.as_str()).map(|row| row.changed_ms);
    let (mut sampled, mut is_sample) = (changed_ms(&samples.borrow_and_update()), false);
    loop {
        let seen = if is_sample { None } else { followed.borrow_and_update().clone() };
        match seen {
            None => {}
            Some(Seen { asked, answered, lock: Ok(resource) }) => {
                let lock = Lock::from(&*resource);
                if *shows && shown.note(&lock, asked, answered) {
                    let mut body = lock.json();
                    body["at_ms"] = json!(wall_millis().saturating_sub_unsigned(millis(now().since(answered))));
                    body["now_ms"] = json!(wall_millis());
                    events.send_json("lock", &body).await?;
                }
                // A follower may have read it before this lease was granted or renewed: that says nothing of the lease.
                if let Some(lease) = lease.filter(|lease| asked >= began && !is_outdated(state, lease, asked)) {
                    let holder = resource.holders.iter().find(|holder| holder.id == lease.id);
                    if let Some(asked) = holder.and_then(|holder| holder.ending.clone())
                        && ending.as_ref() != Some(&asked)
                    {
                        events.send_json("ending", &json!({ "by": asked.by, "why": asked.why })).await?;
                        ending = Some(asked);
                    }
                    match holder {
                        Some(holder) => {
                            let left = holder.lease_left;
                            let lease_end = (asked + left, answered + left + view::granularity(left));
                            belief.note(known(state, lease), lease_end);
                        }
                        None if lost(state, lease, events).await? => return Ok(()),
                        None => {}
                    }
                }
            }
            Some(Seen { lock: Err(detail), .. }) => {
                events.send_json("trouble", &json!({ "detail": detail })).await?;
                // The next read is shown, also if nothing has changed: the trouble is over.
                shown = Shown::new(renewals);
            }
        }
        // A store that does not answer must not delay the end of belief.
        let limit = belief.ends_at.map_or(Duration::MAX, |ends_at| ends_at.since(now()));
        let changed = async {
            tokio::select! {
                followed = followed.changed() => followed.map(|()| false),
                sampled = samples.changed(), if *shows => sampled.map(|()| true),
            }
        };
        is_sample = false;
        match events.while_open(tokio::time::timeout(limit, changed)).await? {
            Ok(Ok(false)) => {}
            // The history has what a sample has seen.
            Ok(Ok(true)) => {
                let changed = changed_ms(&samples.borrow_and_update());
                if sampled != changed {
                    events.send("history", "{}").await?;
                    sampled = changed;
                }
                is_sample = true;
            }
            // The server ends.
            Ok(Err(_)) => return Ok(()),
            Err(_) => {}
        }
        // Belief ends before the lease: a client that did not renew is told before the store grants to another.
        if belief.has_ended(now()) {
            // Whatever it was that came just now: the client may have renewed since the store was last read.
            belief.note_here(lease.and_then(|lease| known(state, lease)));
        }
        if belief.has_ended(now()) {
            return tell_lost(events, &ending.map_or(LossReason::Expired, LossReason::Broken)).await;
        }
    }
}

/// When belief in this lease ends, as this server knows from its last renewal here.
fn known(state: &State, lease: &Lease) -> Option<Moment> {
    state.leases.get(lease.id).map(|known| known.ends_at)
}

/// Whether this lease was granted or renewed here after the store was asked at this moment.
fn is_outdated(state: &State, lease: &Lease, asked: Moment) -> bool {
    state.leases.get(lease.id).is_some_and(|known| asked < known.renewed_at)
}

/// When the client of a lease must stop to believe, as far as this server knows: another one may renew it too.
#[derive(Debug, Default)]
struct Belief {
    /// Not after the end of the lease in the store.
    ends_at: Option<Moment>,
    /// When the lease ends in the store at the latest, as read since `ends_at` was noted; `None` before that.
    lease_end: Option<Moment>,
    /// What this server knew last, while another one renewed.
    outdated: Option<Moment>,
}

/// A lease that ends so much later than before was renewed.
const RENEWED: Duration = Duration::from_millis(300);

impl Belief {
    /// Notes what this server knows, and when the lease ends in the store: not before the first moment, and not after the
    /// second. The store was asked after the last renewal here.
    fn note(&mut self, known: Option<Moment>, (first, last): (Moment, Moment)) {
        if known.is_some() && known != self.ends_at && known != self.outdated {
            (self.ends_at, self.lease_end, self.outdated) = (known, Some(last), None);
        } else if self.outdated.is_some() {
            // What its client believes is known to the other server alone.
            self.ends_at = Some(last);
        } else if self.ends_at.is_some() {
            let before = *self.lease_end.get_or_insert(last);
            if first > before + RENEWED {
                (self.outdated, self.ends_at) = (self.ends_at, Some(last));
            }
        }
    }

    /// Notes what this server knows, since the store was last read.
    fn note_here(&mut self, known: Option<Moment>) {
        if let (Some(known), Some(ends_at)) = (known, self.ends_at)
            && known > ends_at
        {
            // The end in the store is read again.
            (self.ends_at, self.lease_end, self.outdated) = (Some(known), None, None);
        }
    }

    fn has_ended(&self, now: Moment) -> bool {
        self.ends_at.is_some_and(|ends_at| ends_at <= now)
    }
}

/// What a stream has shown of its lock.
#[derive(Debug)]
struct Shown {
    /// Whether renewals are shown, too.
    renewals: bool,
    key: Value,
    /// When the lease of each holder ends at the latest.
    ends: HashMap<String, Moment>,
}

impl Shown {
    fn new(renewals: bool) -> Self {
        Self { renewals, key: Value::Null, ends: HashMap::new() }
    }

    /// Whether there is something new to show: a change, or a lease that was renewed.
    fn note(&mut self, lock: &Lock, asked: Moment, answered: Moment) -> bool {
        let key = key(lock);
        let left = |holder: &Holder| Duration::from_millis(holder.lease_left_ms);
        // What has no lease is not renewed.
        let is_renewed = |holder: &Holder| {
            let end = self.ends.get(&holder.claim).filter(|_| self.renewals && holder.lease_left_ms > 0);
            end.is_some_and(|end| asked + left(holder) > *end + RENEWED)
        };
        if self.key == key && !lock.holders.iter().any(is_renewed) {
            return false;
        }
        self.key = key;
        let end = |left| answered + left + view::granularity(left);
        self.ends = lock.holders.iter().map(|holder| (holder.claim.clone(), end(left(holder)))).collect();
        true
    }
}

/// What a change of makes an event: not that time passes.
fn key(lock: &Lock) -> Value {
    let holders: Vec<_> =
        lock.holders.iter().map(|holder| json!([holder.claim, holder.fence, holder.ending, holder.value])).collect();
    let waiters: Vec<_> = lock.waiters.iter().flatten().map(|waiter| json!([waiter.claim, waiter.behind])).collect();
    json!([lock.state, holders, waiters, lock.waiting])
}

/// The store did not show the claim: tells why, and returns whether it is gone.
async fn lost(state: &State, lease: &Lease, events: &Events) -> Result<bool, Closed> {
    let turn = state.leases.turn(lease.id);
    let held = turn.lock().await;
    if state.leases.was_released(lease.id) {
        drop(held);
        events.send_json("released", &json!({ "fence": lease.ticket.fence() })).await?;
        return Ok(true);
    }
    // The store may know why. A claim that is gone stays gone: this cannot take the lock again.
    let reason = match state.locks.adopt(&lease.ticket).await {
        Err(error) if error.kind() == ErrorKind::Lost => error.loss().cloned().unwrap_or(LossReason::Gone),
        // The store did not answer: the next read decides.
        Err(_) => return Ok(false),
        Ok(guard) => {
            let _ = guard.hand_over();
            return Ok(false);
        }
    };
    leases::ended(state, lease.id, &End::Lost(reason.clone()));
    // A client that reads slowly holds up no renewal.
    drop(held);
    tell_lost(events, &reason).await?;
    Ok(true)
}

async fn tell_lost(events: &Events, reason: &LossReason) -> Result<(), Closed> {
    let body =
        json!({ "reason": leases::word(reason), "detail": format!("lock lost: {reason}"), "at_ms": wall_millis() });
    events.send_json("lost", &body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its client reads nothing, and the events that wait for it fill the stream.
    #[tokio::test]
    async fn a_slow_reader_of_events_holds_up_no_renewal() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let state = State::new(locks, crate::config::Config::default()).unwrap();
        let client = crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap();
        let owner = leases::Owner::new(&client, [10, 0, 0, 7].into());
        for is_released in [true, false] {
            let guard = state.locks.mutex("x").lifetime(oarlock::Lifetime::Lease).lock().await.unwrap();
            let lease = leases::hand_out(&state, guard, state.lease_quota.take(&owner).unwrap()).unwrap().lease;
            if is_released {
                leases::release(&state, &lease).await.unwrap();
            } else {
                state.locks.adopt(&lease.ticket).await.unwrap().release().await.unwrap();
            }
            let (sender, mut reader) = tokio::sync::mpsc::channel(1);
            sender.send(bytes::Bytes::new()).await.unwrap();
            let events = Events::to(sender);
            let renewed = async {
                // Its stream has found out first.
                tokio::time::sleep(Duration::from_millis(100)).await;
                let answer = tokio::time::timeout(Duration::from_secs(20), leases::renew(&state, &lease, &owner)).await;
                let answer = answer.expect("a renewal is answered while the stream is full");
                assert_eq!(answer.unwrap_err().code, "lost");
                reader.recv().await;
                reader.recv().await.expect("the client is told when it reads on")
            };
            let (told, event) = tokio::join!(lost(&state, &lease, &events), renewed);
            assert!(told.unwrap());
            let word = if is_released { "released" } else { "lost" };
            assert!(event.starts_with(format!("event: {word}\n").as_bytes()), "{event:?}");
        }
    }

    /// A page draws what is left of a lease from what its stream tells.
    #[tokio::test]
    async fn a_renewal_is_shown_and_the_time_that_passes_is_not() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let _guard = locks.mutex("x").lock().await.unwrap();
        let mut lock = Lock::from(&locks.inspect("x").await.unwrap());
        let (mut shown, span) = (Shown::new(true), Duration::from_millis);
        for (asked_s, left_ms, is_shown) in
            [(10, 30_000, true), (20, 20_000, false), (21, 19_200, false), (22, 30_000, true), (23, 29_000, false)]
        {
            lock.holders[0].lease_left_ms = left_ms;
            assert_eq!(shown.note(&lock, at(asked_s), at(asked_s) + span(50)), is_shown, "at {asked_s} s");
        }
        lock.holders.clear();
        assert!(shown.note(&lock, at(24), at(24)), "it is free");
    }

    /// ZooKeeper tells the lease of a holder, and not what is left of it; etcd tells whole seconds.
    #[tokio::test]
    async fn a_lease_that_is_constant_or_told_in_whole_seconds_is_no_renewal() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let _guard = locks.mutex("x").lock().await.unwrap();
        let mut lock = Lock::from(&locks.inspect("x").await.unwrap());
        let when = |ms: u64| Moment::ZERO + Duration::from_millis(ms);
        for left_ms in [30_000, 0] {
            let mut shown = Shown::new(left_ms == 0);
            lock.holders[0].lease_left_ms = left_ms;
            for ms in (1000..60_000).step_by(500) {
                assert_eq!(shown.note(&lock, when(ms), when(ms)), ms == 1000, "{left_ms} ms at {ms} ms");
            }
        }
        let mut shown = Shown::new(true);
        for (ms, left_ms, is_shown) in [(990, 29_000, true), (1000, 29_000, false), (1980, 29_000, false)] {
            lock.holders[0].lease_left_ms = left_ms;
            assert_eq!(shown.note(&lock, when(ms), when(ms)), is_shown, "at {ms} ms");
        }
        let mut belief = Belief::default();
        let left = Duration::from_secs(11);
        for ms in [990, 1000, 1980] {
            belief.note(Some(at(10)), (when(ms) + left, when(ms) + left + view::granularity(left)));
        }
        assert!(belief.has_ended(at(10)), "it was not renewed");
    }

    #[tokio::test(start_paused = true)]
    async fn the_stream_of_a_lock_that_does_not_change_has_heartbeats_and_no_events() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let state = Arc::new(State::new(locks, crate::config::Config::default()).unwrap());
        let watched = Watched { name: ResourceName::new("x").unwrap(), shows: true, lease: None };
        let (sender, mut reader) = tokio::sync::mpsc::channel(1);
        let stream = tokio::spawn(async move { follow(&state, &watched, &Events::to(sender)).await });
        assert!(reader.recv().await.unwrap().starts_with(b"event: lock\n"));
        let began = tokio::time::Instant::now();
        for beat in 1..=3 {
            let next = tokio::time::timeout(2 * sse::HEARTBEAT, reader.recv()).await;
            assert_eq!(next.expect("in time").unwrap(), ":\n\n");
            let (after, due) = (began.elapsed(), sse::HEARTBEAT * beat);
            assert!(after >= due && after < due + Duration::from_secs(1), "{after:?}");
        }
        stream.abort();
    }

    fn at(seconds: u64) -> Moment {
        Moment::ZERO + Duration::from_secs(seconds)
    }

    fn exactly(seconds: u64) -> (Moment, Moment) {
        (at(seconds), at(seconds))
    }

    #[test]
    fn belief_ends_unless_another_server_has_renewed() {
        let mut belief = Belief::default();
        belief.note(Some(at(10)), exactly(11));
        assert!(!belief.has_ended(at(9)) && belief.has_ended(at(10)));
        belief.note(None, exactly(11));
        assert!(belief.has_ended(at(10)), "this server has forgotten it since");
        belief.note(Some(at(20)), exactly(21));
        assert!(!belief.has_ended(at(19)), "renewed here");
        belief.note(Some(at(20)), exactly(31));
        belief.note(Some(at(20)), exactly(31));
        assert!(!belief.has_ended(at(25)), "renewed elsewhere");
        assert!(belief.has_ended(at(31)), "its lease ends");
        belief.note(None, exactly(35));
        assert!(!belief.has_ended(at(34)) && belief.has_ended(at(35)), "renewed elsewhere again");
        belief.note(Some(at(40)), exactly(41));
        assert!(belief.has_ended(at(40)), "and here again");
        belief.note_here(Some(at(50)));
        assert!(
            !belief.has_ended(at(49)) && belief.has_ended(at(50)),
            "renewed here, and the store was not read since"
        );
        belief.note(Some(at(50)), exactly(51));
        belief.note(Some(at(50)), exactly(51));
        assert!(belief.has_ended(at(50)), "the store says the same later");
    }

    /// A stream that begins knows when belief ends before it has read anything.
    #[test]
    fn belief_of_a_new_stream_ends_too() {
        let mut belief = Belief { ends_at: Some(at(10)), ..Belief::default() };
        assert!(belief.has_ended(at(10)));
        belief.note(Some(at(10)), exactly(11));
        assert!(belief.has_ended(at(10)), "the first read is no renewal");
    }

    /// A slow answer tells the end of a lease only roughly.
    #[test]
    fn a_slow_answer_of_the_store_is_no_renewal() {
        let mut belief = Belief::default();
        belief.note(Some(at(10)), (at(9), at(12)));
        belief.note(Some(at(10)), exactly(11));
        belief.note(Some(at(10)), exactly(12));
        assert!(belief.has_ended(at(10)));
        belief.note(Some(at(10)), exactly(13));
        assert!(!belief.has_ended(at(10)), "this one is");
    }
}
