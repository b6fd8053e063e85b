//! All locks at one moment, sampled from the store and shared by every page that is open.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use oarlock::state::ResourceState;
use oarlock::{ErrorKind, Result};
use oarlock_core::text;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use crate::access::{Client, Right};
use crate::state::{State, wall_millis};
use crate::view::{self, Lock};

/// How often the store is sampled while a page is open.
const LIVE: Duration = Duration::from_millis(500);

/// How long a store without an index of its locks may take to read every key. It rests for so many milliseconds for each
/// that this took.
const SCAN: Duration = Duration::from_secs(2);
const REST: Duration = Duration::from_millis(20);

/// The lock that is looked at to see whether the store answers. No program takes it.
const PROBE: &str = "oarlock-serve/probe";

/// A lease or an age that differs by less is the same, seen at another moment.
const JITTER_MS: i64 = 400;

/// The last sample, and who looks at it.
#[derive(Debug)]
pub(crate) struct Board {
    sample: watch::Sender<Arc<Sample>>,
    viewers: AtomicUsize,
    viewed: Notify,
    /// What every page has seen when it is opened.
    nothing: Arc<Sample>,
    /// What has changed up to the last sample, as it is sent to pages.
    sent: Mutex<Sent>,
}

/// The same for all pages that saw the same sample before, and may read the same names.
#[derive(Debug, Default)]
struct Sent {
    sample: Weak<Sample>,
    changes: Vec<(Weak<Sample>, Vec<String>, Bytes)>,
}

/// All locks at one moment.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// Zero before the first.
    pub(crate) at_ms: i64,
    pub(crate) rows: BTreeMap<String, Arc<Row>>,
    /// Why the store could not be read, if it could not: the rows are older then.
    pub(crate) trouble: Option<String>,
    /// Whether the store answered.
    pub(crate) is_up: bool,
    pub(crate) listing: Listing,
}

/// Where the rows come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Listing {
    /// The store knows its locks.
    #[default]
    Index,
    /// Every key was read: the store has no index, but few enough keys.
    Scan,
    /// The store cannot list its locks, or not within [`SCAN`]: there are no rows, and a read shows whether it answers.
    Unsupported,
}

impl Listing {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Index => "index",
            Self::Scan => "scan",
            Self::Unsupported => "unsupported",
        }
    }

    /// What to do where there is no list.
    pub(crate) fn advice(self) -> Option<&'static str> {
        let advice = "this store cannot list its locks: look at one by its name, with GET /v1/locks/{name} or \"oarlock show NAME\"";
        (self == Self::Unsupported).then_some(advice)
    }
}

/// A lock that did not change since it was first seen so.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) lock: Lock,
    /// When it was read: its ages count from then.
    pub(crate) at_ms: i64,
    /// When it was read first with these holders and waiters: a renewal is no change.
    pub(crate) changed_ms: i64,
    /// It may have been read so much earlier: so long the listing took.
    took_ms: i64,
    /// As it is sent to pages.
    pub(crate) json: String,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            sample: watch::Sender::new(Arc::default()),
            viewers: AtomicUsize::new(0),
            viewed: Notify::new(),
            nothing: Arc::default(),
            sent: Mutex::default(),
        }
    }
}

impl Board {
    /// The last sample.
    pub(crate) fn last(&self) -> Arc<Sample> {
        self.sample.borrow().clone()
    }

    /// The sample before the first.
    pub(crate) fn nothing(&self) -> Arc<Sample> {
        self.nothing.clone()
    }

    /// Shows this as the last sample.
    #[cfg(test)]
    pub(crate) fn put(&self, sample: Sample) {
        self.sample.send_replace(Arc::new(sample));
    }

    /// Follows the samples.
    pub(crate) fn view(&self) -> watch::Receiver<Arc<Sample>> {
        self.sample.subscribe()
    }

    /// Counts a page that is open, until it is dropped: the store is sampled more often meanwhile.
    pub(crate) fn viewer(state: &Arc<State>) -> Viewer {
        state.board.viewers.fetch_add(1, Ordering::Relaxed);
        state.board.viewed.notify_one();
        Viewer(state.clone())
    }

    /// What changed between two samples, for a client that may read some names, as the end of a JSON object. It is made
    /// once for all that need the same, and there is one copy of it.
    pub(crate) fn changes(&self, before: &Arc<Sample>, now: &Arc<Sample>, client: &Client) -> Bytes {
        let (patterns, from) = (client.patterns(Right::Read), Arc::downgrade(before));
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if !Weak::ptr_eq(&sent.sample, &Arc::downgrade(now)) {
            *sent = Sent { sample: Arc::downgrade(now), changes: Vec::new() };
        }
        let same = |(of, names, _): &&(Weak<Sample>, Vec<String>, Bytes)| Weak::ptr_eq(of, &from) && names == patterns;
        if let Some((_, _, bytes)) = sent.changes.iter().find(same) {
            return bytes.clone();
        }
        let (rows, gone) = changes(before, now, |name| client.may(Right::Read, name));
        let rows: Vec<&str> = rows.iter().map(|row| row.json.as_str()).collect();
        let bytes = Bytes::from(format!(r#""locks":[{}],"gone":{}}}"#, rows.join(","), Value::from(gone)));
        sent.changes.push((from, patterns.to_vec(), bytes.clone()));
        bytes
    }

    pub(crate) fn viewers(&self) -> usize {
        self.viewers.load(Ordering::Relaxed)
    }
}

/// A page that is open.
pub(crate) struct Viewer(Arc<State>);

impl Drop for Viewer {
    fn drop(&mut self) {
        self.0.board.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Samples the store until the server ends.
pub(crate) async fn sample(state: Arc<State>) {
    loop {
        let rest = take(&state).await;
        let live = LIVE.min(state.config.sample).max(rest);
        let pause = if state.board.viewers() > 0 { live } else { state.config.sample.max(rest) };
        // Pages that are opened one after another do not ask for more samples than one that stays open.
        let viewed = async { tokio::join!(tokio::time::sleep(live), state.board.viewed.notified()) };
        tokio::select! {
            () = state.closing.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            _ = viewed => {}
        }
    }
}

/// Takes a sample, and returns how long the store must rest after it.
async fn take(state: &State) -> Duration {
    let began = Instant::now();
    let listed = list(state).await;
    let took = began.elapsed();
    let rest = match listed {
        Ok((_, Listing::Scan | Listing::Unsupported)) => REST * u32::try_from(took.as_millis()).unwrap_or(u32::MAX),
        _ => Duration::ZERO,
    };
    let before = state.board.last();
    let sample = next(&before, listed, wall_millis(), took, state.counts_down());
    if sample.trouble.is_none() {
        state.history.note(&before, &sample);
    }
    state.board.sample.send_replace(Arc::new(sample));
    rest
}

/// The sample after `before`; the listing took so long.
fn next(
    before: &Sample,
    listed: Result<(Vec<ResourceState>, Listing)>,
    at_ms: i64,
    took: Duration,
    counts_down: bool,
) -> Sample {
    let took_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX / 2);
    let outdated = |trouble: String, is_up| {
        let (at_ms, rows, listing) = (before.at_ms, before.rows.clone(), before.listing);
        Sample { at_ms, rows, trouble: Some(trouble), is_up, listing }
    };
    match listed {
        // It could be scanned before: its locks are not gone.
        Ok((_, Listing::Unsupported)) if before.listing == Listing::Scan => {
            outdated(format!("to read every key took longer than {}", text::span(SCAN)), true)
        }
        Ok((states, listing)) => {
            let locks = states.iter().map(Lock::from);
            let rows = locks.map(|lock| (lock.name.clone(), row(lock, at_ms, took_ms, before, counts_down)));
            let rows: BTreeMap<_, _> = rows.collect();
            Sample { at_ms, rows, trouble: None, is_up: true, listing }
        }
        Err(error) => outdated(error.to_string(), false),
    }
}

/// The locks of the store, as far as it can list them.
async fn list(state: &State) -> Result<(Vec<ResourceState>, Listing)> {
    let unsupported = |error: &oarlock::Error| error.kind() == ErrorKind::Unsupported;
    match state.locks.list().await {
        Err(error) if unsupported(&error) => {}
        listed => return listed.map(|states| (states, Listing::Index)),
    }
    match tokio::time::timeout(SCAN, state.locks.scan()).await {
        Ok(Err(error)) if !unsupported(&error) => Err(error),
        Ok(Ok(states)) => Ok((states, Listing::Scan)),
        // Whether it answers at all.
        _ => state.locks.inspect(PROBE).await.map(|_| (Vec::new(), Listing::Unsupported)),
    }
}

/// The row of the last sample if nothing has changed but the time.
fn row(lock: Lock, at_ms: i64, took_ms: i64, before: &Sample, counts_down: bool) -> Arc<Row> {
    // A store with many locks, or a slow one, is listed for so long that times differ: all rows would be sent to all pages
    // again and again.
    let alike = before.rows.get(&lock.name).filter(|row| is_alike(&row.lock, &lock));
    if let Some(row) = alike
        && is_as_old(&row.lock, &lock, at_ms - row.at_ms, JITTER_MS + took_ms.max(row.took_ms), counts_down)
    {
        return row.clone();
    }
    let changed_ms = alike.map_or(at_ms, |row| row.changed_ms);
    let mut json = lock.json();
    json["at_ms"] = at_ms.into();
    Arc::new(Row { at_ms, changed_ms, took_ms, json: json.to_string(), lock })
}

/// Whether nothing has changed but the time and the leases.
fn is_alike(before: &Lock, now: &Lock) -> bool {
    let holders = before.holders.len() == now.holders.len()
        && before.holders.iter().zip(&now.holders).all(|(before, now)| {
            before.claim == now.claim
                && before.fence == now.fence
                && before.ending == now.ending
                && before.value == now.value
                && before.label == now.label
        });
    let claims = |lock: &Lock| -> Option<Vec<(String, u32)>> {
        Some(lock.waiters.as_ref()?.iter().map(|waiter| (waiter.claim.clone(), waiter.behind)).collect())
    };
    holders && before.state == now.state && before.waiting == now.waiting && claims(before) == claims(now)
}

/// Whether the same holders are older, and their leases shorter, by the time that has passed, which is known to
/// `doubt_ms`: none was renewed.
fn is_as_old(before: &Lock, now: &Lock, passed_ms: i64, doubt_ms: i64, counts_down: bool) -> bool {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let aged = |before: u64, now: u64, by: i64, doubt_ms: i64| {
        (number(before).saturating_add(by).max(0) - number(now)).abs() <= doubt_ms
    };
    let lease = |before: u64, now: u64| {
        if !counts_down {
            return before == now;
        }
        // A renewal must be seen, however slow the listing is.
        let doubt_ms = doubt_ms.min(JITTER_MS.max(number(now) / 4));
        let exact = |left| view::granularity(Duration::from_millis(left));
        let whole_ms = i64::try_from(exact(before).min(exact(now)).as_millis()).unwrap_or_default();
        aged(before, now, -passed_ms, doubt_ms.saturating_add(whole_ms))
    };
    before.holders.iter().zip(&now.holders).all(|(before, now)| {
        aged(before.held_ms, now.held_ms, passed_ms, doubt_ms) && lease(before.lease_left_ms, now.lease_left_ms)
    })
}

/// What changed between two samples, for a client that may read some names: the rows, and the names that are gone.
fn changes(before: &Sample, now: &Sample, may: impl Fn(&str) -> bool) -> (Vec<Arc<Row>>, Vec<String>) {
    let changed = now
        .rows
        .iter()
        .filter(|(name, row)| before.rows.get(*name).is_none_or(|earlier| !Arc::ptr_eq(earlier, row)) && may(name));
    let gone = before.rows.keys().filter(|name| !now.rows.contains_key(*name) && may(name));
    (changed.map(|(_, row)| row.clone()).collect(), gone.cloned().collect())
}

/// How many claims of each kind hold and wait.
pub(crate) fn totals(sample: &Sample) -> HashMap<oarlock::state::Kind, (usize, usize)> {
    let mut totals: HashMap<_, (usize, usize)> = HashMap::new();
    for row in sample.rows.values() {
        for holder in &row.lock.holders {
            totals.entry(holder.kind).or_default().0 += 1;
        }
        for waiter in row.lock.waiters.iter().flatten() {
            totals.entry(waiter.kind).or_default().1 += 1 + waiter.behind as usize;
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lock(locks: &oarlock::Locks) -> Lock {
        Lock::from(&locks.inspect("x").await.unwrap())
    }

    #[tokio::test]
    async fn only_what_changed_is_sent_again() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let guard = locks.mutex("x").lock().await.unwrap();
        let mut found = lock(&locks).await;
        (found.holders[0].held_ms, found.holders[0].lease_left_ms) = (0, 30_000);
        let first = row(found, 1000, 0, &Sample::default(), true);
        let before =
            Sample { at_ms: 1000, rows: BTreeMap::from([("x".to_owned(), first.clone())]), ..Sample::default() };
        let mut later = lock(&locks).await;
        (later.holders[0].held_ms, later.holders[0].lease_left_ms) = (5000, 25_100);
        assert!(Arc::ptr_eq(&row(later.clone(), 6000, 0, &before, true), &first), "only time has passed");
        later.holders[0].lease_left_ms = 30_000;
        assert!(!Arc::ptr_eq(&row(later.clone(), 6000, 0, &before, true), &first), "it was renewed");
        // It was read somewhen in the 3 s of a listing.
        (later.holders[0].held_ms, later.holders[0].lease_left_ms) = (2500, 27_500);
        assert!(Arc::ptr_eq(&row(later.clone(), 6000, 3000, &before, true), &first), "a slow listing is no change");
        assert!(!Arc::ptr_eq(&row(later.clone(), 6000, 0, &before, true), &first), "a quick one shows one");
        later.holders[0].lease_left_ms = 30_000;
        assert!(!Arc::ptr_eq(&row(later, 6000, 3000, &before, true), &first), "a renewal is seen, too");
        guard.release().await.unwrap();
        let (changed, gone) = changes(&before, &Sample::default(), |_| true);
        assert_eq!((changed.len(), gone), (0, vec!["x".to_owned()]));
        assert_eq!(changes(&before, &Sample::default(), |_| false).1.len(), 0, "not told of names it may not read");
    }

    /// ZooKeeper tells the lease of a holder, and not what is left of it; etcd tells whole seconds.
    #[tokio::test]
    async fn a_lease_that_does_not_count_down_or_in_whole_seconds_is_sent_once() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let _guard = locks.mutex("x").lock().await.unwrap();
        let found = lock(&locks).await;
        let at = |at_ms: u64, left_ms, before: &Sample, counts_down| {
            let mut found = found.clone();
            (found.holders[0].held_ms, found.holders[0].lease_left_ms) = (at_ms, left_ms);
            row(found, i64::try_from(at_ms).unwrap(), 0, before, counts_down)
        };
        let sample = |row: &Arc<Row>| Sample {
            at_ms: row.at_ms,
            rows: BTreeMap::from([("x".to_owned(), row.clone())]),
            ..Sample::default()
        };
        let constant = at(1000, 30_000, &Sample::default(), false);
        for at_ms in [1500, 2000, 60_000] {
            assert!(Arc::ptr_eq(&at(at_ms, 30_000, &sample(&constant), false), &constant), "at {at_ms}");
        }
        let whole = at(1000, 30_000, &Sample::default(), true);
        for (at_ms, left_ms) in [(1500, 30_000), (2000, 29_000), (2900, 29_000), (3000, 28_000), (60_000, 0)] {
            assert!(Arc::ptr_eq(&at(at_ms, left_ms, &sample(&whole), true), &whole), "at {at_ms}");
        }
        let renewed = at(11_000, 30_000, &sample(&whole), true);
        assert!(renewed.at_ms == 11_000 && renewed.changed_ms == 1000, "a renewal is sent, and is no change");
        assert_eq!(at(11_500, 30_000, &Sample::default(), true).changed_ms, 11_500);
    }

    #[tokio::test]
    async fn a_scan_that_becomes_too_slow_keeps_the_locks_and_the_store_is_up() {
        let locks = oarlock_core::Locks::over(oarlock_core::Memory::new()).unwrap();
        let _guard = locks.mutex("x").lock().await.unwrap();
        let scanned =
            next(&Sample::default(), Ok((locks.list().await.unwrap(), Listing::Scan)), 1000, Duration::ZERO, true);
        assert!(scanned.is_up && scanned.trouble.is_none() && scanned.rows.len() == 1);
        let slow = next(&scanned, Ok((Vec::new(), Listing::Unsupported)), 2000, SCAN, true);
        assert!(slow.is_up && slow.trouble.is_some() && slow.rows.len() == 1 && slow.at_ms == 1000);
        let down = next(&slow, Err(oarlock::Error::new(ErrorKind::Unreachable, "away")), 3000, Duration::ZERO, true);
        assert!(!down.is_up && down.rows.len() == 1);
        let never = next(&Sample::default(), Ok((Vec::new(), Listing::Unsupported)), 1000, SCAN, true);
        assert!(never.is_up && never.trouble.is_none() && never.listing.advice().is_some());
    }

    #[test]
    fn pages_share_what_they_are_sent() {
        let (board, before, now) = (Board::default(), Arc::new(Sample::default()), Arc::new(Sample::default()));
        let client = crate::access::Access::open().client(&http::HeaderMap::new(), None).unwrap();
        let first = board.changes(&before, &now, &client);
        assert_eq!(first, r#""locks":[],"gone":[]}"#);
        assert_eq!(board.changes(&before, &now, &client).as_ptr(), first.as_ptr(), "one copy");
        assert_ne!(board.changes(&now, &now, &client).as_ptr(), first.as_ptr(), "another page saw another sample");
        board.changes(&now, &Arc::default(), &client);
        assert_eq!(board.sent.lock().unwrap().changes.len(), 1, "what is outdated is forgotten");
    }
}
