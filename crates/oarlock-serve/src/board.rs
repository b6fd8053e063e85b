//! All locks at one moment, sampled from the store and shared by every page that is open.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::state::{State, wall_millis};
use crate::view::Lock;

/// How often the store is sampled while a page is open.
const LIVE: Duration = Duration::from_millis(500);

/// A lease or an age that differs by less is the same, seen at another moment.
const JITTER_MS: i64 = 400;

/// The last sample, and who looks at it.
#[derive(Debug)]
pub(crate) struct Board {
    sample: watch::Sender<Arc<Sample>>,
    viewers: AtomicUsize,
    viewed: Notify,
}

/// All locks at one moment.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// Zero before the first.
    pub(crate) at_ms: i64,
    pub(crate) rows: BTreeMap<String, Arc<Row>>,
    /// Why the store could not be read, if it could not: the rows are older then.
    pub(crate) trouble: Option<String>,
}

/// A lock that did not change since it was first seen so.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) lock: Lock,
    /// When it was read: its ages count from then.
    pub(crate) at_ms: i64,
    /// As it is sent to pages.
    pub(crate) json: String,
}

impl Default for Board {
    fn default() -> Self {
        Self { sample: watch::Sender::new(Arc::default()), viewers: AtomicUsize::new(0), viewed: Notify::new() }
    }
}

impl Board {
    /// The last sample.
    pub(crate) fn last(&self) -> Arc<Sample> {
        self.sample.borrow().clone()
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
        take(&state).await;
        let pause = if state.board.viewers() > 0 { LIVE.min(state.config.sample) } else { state.config.sample };
        tokio::select! {
            () = state.closing.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            () = state.board.viewed.notified() => {}
        }
    }
}

async fn take(state: &State) {
    let listed = state.locks.list().await;
    let (before, at_ms) = (state.board.last(), wall_millis());
    let sample = match listed {
        Ok(states) => {
            let locks = states.iter().map(Lock::from);
            let rows: BTreeMap<_, _> = locks.map(|lock| (lock.name.clone(), row(lock, at_ms, &before))).collect();
            Sample { at_ms, rows, trouble: None }
        }
        Err(error) => Sample { at_ms: before.at_ms, rows: before.rows.clone(), trouble: Some(error.to_string()) },
    };
    if sample.trouble.is_none() {
        state.history.note(&before, &sample);
    }
    state.board.sample.send_replace(Arc::new(sample));
}

/// The row of the last sample if nothing has changed but the time.
fn row(lock: Lock, at_ms: i64, before: &Sample) -> Arc<Row> {
    if let Some(row) = before.rows.get(&lock.name)
        && is_same(&row.lock, &lock, at_ms - row.at_ms)
    {
        return row.clone();
    }
    let mut json = lock.json();
    json["at_ms"] = at_ms.into();
    Arc::new(Row { at_ms, json: json.to_string(), lock })
}

fn is_same(before: &Lock, now: &Lock, passed_ms: i64) -> bool {
    let aged = |before: u64, now: u64, by: i64| {
        let by = i64::try_from(before).unwrap_or(i64::MAX).saturating_add(by) - i64::try_from(now).unwrap_or(i64::MAX);
        by.abs() <= JITTER_MS
    };
    let holders = before.holders.len() == now.holders.len()
        && before.holders.iter().zip(&now.holders).all(|(before, now)| {
            before.claim == now.claim
                && before.fence == now.fence
                && before.ending == now.ending
                && before.value == now.value
                && before.label == now.label
                && aged(before.held_ms, now.held_ms, passed_ms)
                && aged(before.lease_left_ms, now.lease_left_ms, -passed_ms)
        });
    let claims = |lock: &Lock| -> Option<Vec<(String, u32)>> {
        Some(lock.waiters.as_ref()?.iter().map(|waiter| (waiter.claim.clone(), waiter.behind)).collect())
    };
    holders && before.state == now.state && before.waiting == now.waiting && claims(before) == claims(now)
}

/// What changed between two samples, for a client that may read some names: the rows, and the names that are gone.
pub(crate) fn changes(before: &Sample, now: &Sample, may: impl Fn(&str) -> bool) -> (Vec<Arc<Row>>, Vec<String>) {
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
        let locks = oarlock::connect("mem:").await.unwrap();
        let guard = locks.mutex("x").lock().await.unwrap();
        let mut found = lock(&locks).await;
        (found.holders[0].held_ms, found.holders[0].lease_left_ms) = (0, 30_000);
        let first = row(found, 1000, &Sample::default());
        let before = Sample { at_ms: 1000, rows: BTreeMap::from([("x".to_owned(), first.clone())]), trouble: None };
        let mut later = lock(&locks).await;
        (later.holders[0].held_ms, later.holders[0].lease_left_ms) = (5000, 25_100);
        assert!(Arc::ptr_eq(&row(later.clone(), 6000, &before), &first), "only time has passed");
        later.holders[0].lease_left_ms = 30_000;
        assert!(!Arc::ptr_eq(&row(later, 6000, &before), &first), "it was renewed");
        guard.release().await.unwrap();
        let (changed, gone) = changes(&before, &Sample::default(), |_| true);
        assert_eq!((changed.len(), gone), (0, vec!["x".to_owned()]));
        assert_eq!(changes(&before, &Sample::default(), |_| false).1.len(), 0, "not told of names it may not read");
    }
}
