//! Deliberately broken locks. The checker and the cases must catch them, or they prove nothing.
//!
//! Each is the reference store with one rule broken, as real lock implementations have broken it.

mod flawed;
mod journal;
mod scenes;
mod storm;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_core::memory::{Kit, Memory};
use oarlock_core::{ClaimId, DynDriver, Fence, ResourceName};

use crate::judge::{Finding, Judgement, Ruling, judge};
use crate::record::{Record, Unreadable};

pub use storm::storm;

/// Which rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flaw {
    /// None: the correct store, which must pass.
    None,
    /// A release frees the lock of any holder, like a plain delete.
    ReleasesAnyone,
    /// A renewal answers "alive" for every claim, also after the store has granted the lock to another.
    RenewsAnyone,
    /// A renewal answers "alive" and extends nothing.
    RenewsNothing,
    /// Weights and capacities are ignored.
    IgnoresWeight,
    /// Every grant has the same fence.
    RepeatsFences,
    /// Fences fall.
    FencesFall,
    /// Fences are a counter in the store, as of `INCR`, and a failover takes the last of them back.
    FencesFallBack,
    /// The store frees a lock before the end of its lease.
    ExpiresEarly,
    /// A claim that is not renewed never ends.
    NeverExpires,
    /// A dead waiter stays in the queue.
    KeepsDeadWaiters,
    /// A repeated attempt takes a second place.
    TakesSecondPlaces,
    /// No waiter is notified of a release.
    LosesWakeUps,
    /// The lease begins with the reply instead of the request, on a slow connection.
    CountsFromTheReply,
    /// A holder that hears nothing believes on after the end of its lease: it has no deadline of its own there.
    OutlivesItsLease,
}

impl Flaw {
    /// All of them, the correct store first.
    pub const ALL: [Self; 15] = [
        Self::None,
        Self::ReleasesAnyone,
        Self::RenewsAnyone,
        Self::RenewsNothing,
        Self::IgnoresWeight,
        Self::RepeatsFences,
        Self::FencesFall,
        Self::FencesFallBack,
        Self::ExpiresEarly,
        Self::NeverExpires,
        Self::KeepsDeadWaiters,
        Self::TakesSecondPlaces,
        Self::LosesWakeUps,
        Self::CountsFromTheReply,
        Self::OutlivesItsLease,
    ];

    /// What is broken, in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::None => "nothing: the correct lock",
            Self::ReleasesAnyone => "a release frees the lock of any holder",
            Self::RenewsAnyone => "a renewal says alive after another was granted the lock",
            Self::RenewsNothing => "a renewal extends nothing",
            Self::IgnoresWeight => "weights are ignored",
            Self::RepeatsFences => "every grant has the same fence",
            Self::FencesFall => "fences fall",
            Self::FencesFallBack => "fences are a counter that a failover takes back",
            Self::ExpiresEarly => "the lease ends early",
            Self::NeverExpires => "the lease never ends",
            Self::KeepsDeadWaiters => "a dead waiter keeps its place",
            Self::TakesSecondPlaces => "a repeated request takes a second place",
            Self::LosesWakeUps => "no waiter is woken",
            Self::CountsFromTheReply => "the lease counts from the reply",
            Self::OutlivesItsLease => "a holder that is cut off has no deadline at the end of its lease",
        }
    }

    /// What the judgement of a [`storm`] of a few seconds names: one of these. Nothing for the correct store.
    #[must_use]
    pub const fn shows(self) -> &'static [&'static str] {
        match self {
            Self::ReleasesAnyone
            | Self::RenewsAnyone
            | Self::RenewsNothing
            | Self::IgnoresWeight
            | Self::ExpiresEarly
            | Self::CountsFromTheReply
            | Self::OutlivesItsLease => &["Overlap"],
            Self::RepeatsFences => &["FenceRepeated"],
            Self::FencesFall => &["FenceOrder"],
            // The next fence was already given, and is smaller than the last.
            Self::FencesFallBack => &["FenceRepeated", "FenceOrder"],
            Self::NeverExpires | Self::KeepsDeadWaiters | Self::TakesSecondPlaces | Self::LosesWakeUps => &["Starved"],
            Self::None => &[],
        }
    }
}

/// The judgement of a run of a broken lock, by the way of all histories: written, read and judged.
///
/// # Errors
/// [`Unreadable`] if what was written cannot be read.
pub fn judged(record: &Record) -> Result<Judgement, Unreadable> {
    let mut text = Vec::new();
    record.write(&mut text).map_err(|error| Unreadable { line: 0, why: error.to_string() })?;
    Record::read(text.as_slice()).map(|record| judge(&record))
}

/// Whether the judgement of a lock with this flaw is right.
#[must_use]
pub fn is_right(flaw: Flaw, judgement: &Judgement) -> bool {
    let shows = |finding: &Finding| finding.ruling == Ruling::Violation && flaw.shows().contains(&finding.name);
    match flaw {
        Flaw::None => judgement.ruling == Ruling::Ok,
        _ => judgement.findings.iter().any(shows),
    }
}

/// So many fences of a lock are lost with the server that gave them.
const NOT_REPLICATED: u64 = 2;

/// A store with a flaw.
#[derive(Debug)]
pub struct BrokenStore {
    store: Memory,
    flaw: Flaw,
    notes: Arc<Mutex<Notes>>,
}

/// What the flaws remember, for all connections.
#[derive(Debug, Default)]
struct Notes {
    queues: HashMap<ResourceName, VecDeque<ClaimId>>,
    places: HashMap<ClaimId, ClaimId>,
    fences: HashMap<ClaimId, Fence>,
    /// The last fence of each lock, where fences are a counter.
    counters: HashMap<ResourceName, u64>,
}

impl BrokenStore {
    /// A new store with this flaw.
    #[must_use]
    pub fn new(flaw: Flaw) -> Self {
        Self { store: Memory::new(), flaw, notes: Arc::default() }
    }

    /// Its flaw.
    #[must_use]
    pub fn flaw(&self) -> Flaw {
        self.flaw
    }

    /// Another server takes over that has not heard of the last fences of this lock: where fences are a counter, it gives
    /// them again. Says whether they are.
    fn fail_over(&self, resource: &ResourceName) -> bool {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counter) = notes.counters.get_mut(resource) {
            *counter = counter.saturating_sub(NOT_REPLICATED);
        }
        self.flaw == Flaw::FencesFallBack
    }

    /// A connection, and the kit that injects its faults.
    #[must_use]
    pub fn open(&self) -> (Arc<dyn DynDriver>, Kit) {
        let inner = self.store.connect();
        let kit = inner.kit();
        (Arc::new(flawed::Flawed { inner, flaw: self.flaw, notes: self.notes.clone() }), kit)
    }
}
