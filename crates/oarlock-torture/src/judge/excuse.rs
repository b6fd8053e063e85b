//! What a store does not promise to prevent: the difference between a risk and a violation.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::history::{Hold, Violation};
use crate::record::{FaultKind, OARLOCK, Record, What};

/// What can excuse something in one run.
pub(super) struct Excuses<'a> {
    record: &'a Record,
    /// The user's commands by their numbers: from when to when they can have an effect.
    pub(super) commands: BTreeMap<u64, (u64, u64)>,
    /// When connections were reset, and of which worker; `None` for all.
    resets: Vec<(u64, Option<u32>)>,
    /// Which workers were stopped, from when to when.
    pauses: Vec<(u32, u64, u64)>,
}

impl<'a> Excuses<'a> {
    /// What a command does to a server can be seen until `takeover` after its end.
    pub(super) fn new(record: &'a Record, takeover: Duration) -> Self {
        let takeover = u64::try_from(takeover.as_nanos()).unwrap_or(u64::MAX);
        let (mut commands, mut resets, mut open) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let (mut pauses, mut stopped) = (Vec::new(), BTreeMap::new());
        for event in &record.events {
            match event.what {
                What::Fault { id, kind: FaultKind::Command, .. } => {
                    commands.insert(id, (event.at, u64::MAX));
                }
                What::Fault { id, kind: FaultKind::Pause, w: Some(w), .. } => {
                    stopped.insert(id, (w, event.at));
                }
                // A fault may reset connections when it begins, and when it ends.
                What::Fault { id, kind, w, .. } if FaultKind::OF_NETWORKS.contains(&kind) => {
                    open.insert(id, w);
                    resets.push((event.at, w));
                }
                What::FaultEnded { id, .. } => {
                    if let Some((_, end)) = commands.get_mut(&id) {
                        *end = event.at.saturating_add(takeover);
                    }
                    resets.extend(open.remove(&id).map(|w| (event.at, w)));
                    pauses.extend(stopped.remove(&id).map(|(w, from)| (w, from, event.at)));
                }
                _ => {}
            }
        }
        Self { record, commands, resets, pauses }
    }

    /// Whether the user broke a server then: by the command, or by hand all the time.
    fn is_server_broken(&self, at: u64) -> bool {
        self.record.header.by_hand || self.commands.values().any(|(from, to)| (*from..=*to).contains(&at))
    }

    /// For fences, and for counters that check them.
    pub(super) fn of_fences(&self, at: u64) -> Option<&'static str> {
        match self.record.header.fencing.as_str() {
            "none" => Some("this lock has no fences"),
            // Its clock keeps them rising, whatever the store forgot.
            "clocked" => None,
            _ => self.of_store(at),
        }
    }

    fn of_store(&self, at: u64) -> Option<&'static str> {
        if !self.is_server_broken(at) {
            return None;
        }
        match self.record.header.consistency.as_str() {
            "best effort" => Some("this store promises best effort: it may forget a grant that it has acknowledged"),
            "timing" => Some("this store is safe only while clocks and servers keep within bounds"),
            "one server" => Some("one server decides here, and you broke it"),
            _ => None,
        }
    }

    /// For two that believed at once.
    fn of_overlap(&self, first: &Hold, second: &Hold) -> Option<&'static str> {
        let header = &self.record.header;
        // A session of a consensus outlives its connections.
        let by_connection = match header.liveness.as_str() {
            "lease and process" => true,
            "session" => header.consistency != "consensus",
            _ => false,
        };
        if by_connection && self.was_reset(first, second.granted.as_nanos()) {
            return Some(
                "this store takes the end of all connections of a process for its death: a reset in between ends the lock \
                 before its holder knows",
            );
        }
        if header.lock != OARLOCK && self.expired_while_stopped(first, second.granted.as_nanos()) {
            return Some(
                "this library tells a holder nothing before it asks: its lease had ended while it was stopped, and it \
                 noticed when it went on",
            );
        }
        self.of_store(second.granted.as_nanos())
    }

    /// Whether the lease of a holder can have ended while its process was stopped, before `next`, and its belief ended
    /// within a lease after it went on. A library that renews in time has at least half of its lease left.
    fn expired_while_stopped(&self, hold: &Hold, next: u64) -> bool {
        let lease = self.record.header.ttl_ms.saturating_mul(1_000_000);
        let (granted, ended) = (hold.granted.as_nanos(), hold.ended.as_nanos());
        self.pauses.iter().any(|(w, from, to)| {
            u64::from(*w) == hold.owner
                && (granted..=next).contains(from)
                && next - from >= lease / 2
                && ended <= to.saturating_add(lease)
        })
    }

    /// Whether connections of a holder were reset while it held, before `until`.
    fn was_reset(&self, hold: &Hold, until: u64) -> bool {
        let from = self.resets.partition_point(|(at, _)| *at < hold.granted.as_nanos());
        let during = self.resets[from..].iter().take_while(|(at, _)| *at <= until);
        during.into_iter().any(|(_, w)| w.is_none_or(|w| u64::from(w) == hold.owner))
    }

    /// For what the checker found.
    pub(super) fn of(&self, violation: &Violation) -> Option<&'static str> {
        match violation {
            Violation::Overlap { first, second } | Violation::CapacityExceeded { first, second, .. } => {
                self.of_overlap(first, second)
            }
            Violation::FenceRepeated { second: hold, .. } | Violation::FenceOrder { later: hold, .. } => {
                self.of_fences(hold.granted.as_nanos())
            }
            // A grant that was forgotten explains neither.
            Violation::Overtaken { .. } | Violation::Starved { .. } | Violation::Vacuous { .. } => None,
        }
    }
}
