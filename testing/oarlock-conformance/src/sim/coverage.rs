//! What a run has reached: each fault, and each path of each kind. What was never reached was not tested.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How often each thing happened, by group: `fault`, or the kind of lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<(&'static str, &'static str), u64>);

/// The group of the faults.
pub(super) const FAULT: &str = "fault";
/// The group of what the engine reports.
pub(super) const ENGINE: &str = "engine";

/// Everything that a long run must have reached.
const EXPECTED: &[(&str, &[&str])] = &[
    (
        FAULT,
        &[
            "request lost",
            "connection refused",
            "reply lost",
            "request late",
            "reply late",
            "request twice",
            "request again later",
            "hint lost",
            "hint late",
            "outage",
            "dropped at an await",
            "killed",
            "broken by force",
            "asked to end",
            "clients suspended",
            "one process stopped",
            "client clock ahead",
            "lease clock ahead",
            "wall clock ahead",
            "wall clock back",
            "store fell back",
            "store down",
            "drift",
        ],
    ),
    (
        ENGINE,
        &["suspect", "recovered", "requeued", "retrying", "ending", "expired", "gone", "broken", "session", "max hold"],
    ),
    ("mutex", PATHS),
    ("fair mutex", PATHS),
    ("spin lock", PATHS),
    ("read lock", PATHS),
    ("write lock", PATHS),
    ("downgraded write lock", PATHS),
    ("permits", PATHS),
    ("leader", PATHS),
    ("once", &["granted", "already done", "lost", "busy", "failed"]),
    ("cohort", &["granted", "lost", "busy", "failed", "handed on"]),
    ("re-entrant mutex", PATHS),
    ("several locks", PATHS),
    ("explicit lease", PATHS),
    ("bounded hold", PATHS),
    ("handed over", &["granted", "lost", "busy", "failed", "adopted", "not adopted"]),
    ("try", &["granted", "lost", "busy", "failed"]),
    ("grant with the turn", &["given", "taken", "too old"]),
];

const PATHS: &[&str] = &["granted", "lost", "busy", "failed"];

impl Coverage {
    /// Counts one more.
    pub(super) fn note(&mut self, group: &'static str, what: &'static str) {
        *self.0.entry((group, what)).or_default() += 1;
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        for (key, count) in &other.0 {
            *self.0.entry(*key).or_default() += count;
        }
    }

    /// How often `what` of `group` happened.
    #[must_use]
    pub fn count(&self, group: &str, what: &str) -> u64 {
        self.0.iter().find(|((g, w), _)| *g == group && *w == what).map_or(0, |(_, count)| *count)
    }

    /// Everything that happened.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        self.0.iter().map(|((group, what), count)| (*group, *what, *count))
    }

    /// What a long run must have reached and this one has reached fewer than `least` times.
    #[must_use]
    pub fn missed(&self, least: u64) -> Vec<String> {
        let all = EXPECTED.iter().flat_map(|(group, each)| each.iter().map(move |what| (*group, *what)));
        all.filter(|(group, what)| self.count(group, what) < least)
            .map(|(group, what)| format!("{group}: {what} ({} times)", self.count(group, what)))
            .collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = "";
        for (group, what, count) in self.iter() {
            if group == last {
                write!(f, ", {count} {what}")?;
            } else {
                write!(f, "{}{group}: {count} {what}", if last.is_empty() { "" } else { "\n" })?;
            }
            last = group;
        }
        Ok(())
    }
}

/// Decides whether a fault happens, as long as the plan allows more, and counts what happened.
#[derive(Debug)]
pub(super) struct Faults {
    left: AtomicU64,
    coverage: Mutex<Coverage>,
}

impl Faults {
    pub(super) fn new(most: u64) -> Self {
        Self { left: AtomicU64::new(most), coverage: Mutex::default() }
    }

    /// Whether one more fault may happen.
    pub(super) fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Whether one more fault may happen; then it does.
    pub(super) fn may(&self, fault: &'static str) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return false;
        }
        self.left.store(left - 1, Ordering::Relaxed);
        self.note(FAULT, fault);
        true
    }

    /// Something happened.
    pub(super) fn note(&self, group: &'static str, what: &'static str) {
        self.coverage.lock().unwrap_or_else(PoisonError::into_inner).note(group, what);
    }

    /// What happened so far.
    pub(super) fn coverage(&self) -> Coverage {
        self.coverage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
