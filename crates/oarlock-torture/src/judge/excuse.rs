//! What a store does not promise to prevent: the difference between a risk and a violation.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::history::{Hold, Violation};
use crate::record::{FaultKind, Libraries, Record, What};

/// A holder whose connections were reset towards both sides learns of it within this time: milliseconds, and more on a
/// busy machine. Never more than half of a lease, or the excuse would hide a holder that does not learn of it at all.
const LEARNS_WITHIN: u64 = 250_000_000;

/// All connections of a worker were reset, or of all workers.
struct Reset {
    /// The reset came at this moment or just after it.
    at: u64,
    w: Option<u32>,
}

/// What can excuse something in one run.
pub(super) struct Excuses<'a> {
    record: &'a Record,
    /// The user's commands by their numbers: from when to when they can have an effect.
    pub(super) commands: BTreeMap<u64, (u64, u64)>,
    /// When all connections were reset, in order.
    resets: Vec<Reset>,
    /// Single connections were reset between these moments, with a reply that was lost.
    closed: Vec<(u32, u64, u64)>,
    /// Which workers were stopped, from when to when.
    pauses: Vec<(u32, u64, u64)>,
    /// Whose connections were broken, from when to when; those of all workers without one.
    networks: Vec<(Option<u32>, u64, u64)>,
    libraries: Libraries,
}

impl<'a> Excuses<'a> {
    /// What a command does to a server can be seen until `takeover` after its end.
    pub(super) fn new(record: &'a Record, takeover: Duration) -> Self {
        let takeover = u64::try_from(takeover.as_nanos()).unwrap_or(u64::MAX);
        let (mut commands, mut resets, mut open) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        let (mut pauses, mut closed, mut networks) = (Vec::new(), Vec::new(), Vec::new());
        for event in &record.events {
            let at = event.at;
            match event.what {
                What::Fault { id, kind: FaultKind::Command, .. } => {
                    commands.insert(id, (at, u64::MAX));
                }
                What::Fault { id, kind, w, .. } => {
                    open.insert(id, (kind, w, at));
                    // The others reset nothing when they begin.
                    if matches!(kind, FaultKind::Refuse | FaultKind::Reconnect) {
                        resets.push(Reset { at, w });
                    }
                }
                What::FaultEnded { id, reset, .. } => {
                    if let Some((_, end)) = commands.get_mut(&id) {
                        *end = at.saturating_add(takeover);
                    }
                    match open.remove(&id) {
                        Some((FaultKind::Pause, Some(w), from)) => pauses.push((w, from, at)),
                        Some((kind, w, from)) => {
                            if let (FaultKind::LostReply, Some(w)) = (kind, w) {
                                closed.push((w, from, at));
                            }
                            resets.extend(reset.then_some(Reset { at, w }));
                            if FaultKind::OF_NETWORKS.contains(&kind) {
                                networks.push((w, from, at));
                            }
                        }
                        None => {}
                    }
                }
                _ => {}
            }
        }
        for (kind, w, from) in open.into_values() {
            if FaultKind::OF_NETWORKS.contains(&kind) {
                networks.push((w, from, u64::MAX));
            }
        }
        Self { record, commands, resets, closed, pauses, networks, libraries: record.libraries() }
    }

    /// For how long a worker was stopped between these moments.
    pub(super) fn stopped(&self, worker: u32, from: u64, to: u64) -> u64 {
        let overlap = |(_, begin, end): &(u32, u64, u64)| to.min(*end).saturating_sub(from.max(*begin));
        self.pauses.iter().filter(|(w, ..)| *w == worker).map(overlap).sum()
    }

    /// Whether the user can have broken servers or stopped clients between these moments: by a command, or by hand.
    pub(super) fn user_may_act(&self, from: u64, to: u64) -> bool {
        let overlaps = |(begin, end): &(u64, u64)| *begin <= to && from <= *end;
        self.record.header.by_hand || self.commands.values().any(overlaps)
    }

    /// The longest time between these moments in which no other worker said anything: the whole machine may have stood
    /// still.
    pub(super) fn silence(&self, worker: u32, from: u64, to: u64) -> u64 {
        let is_other = |what: &What| what.worker().is_some_and(|w| w != worker);
        let heard = self.record.events.iter().filter(|event| (from..=to).contains(&event.at) && is_other(&event.what));
        let moments = heard.map(|event| event.at).chain([to]);
        moments.fold((0, from), |(longest, last), at| (longest.max(at.saturating_sub(last)), at)).0
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

    pub(super) fn of_store(&self, at: u64) -> Option<&'static str> {
        if !self.is_server_broken(at) {
            return None;
        }
        if self.record.header.loses_data {
            return Some("your command made a server lose data that it had synced: no store promises anything then");
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
        // The reports of two grants may come in either order.
        if by_connection && (self.was_reset(first, second) || self.was_reset(second, first)) {
            return Some(
                "this store takes the end of all connections of a process for its death: a reset in between ends the lock \
                 before its holder knows",
            );
        }
        // Oarlock's belief ends with its lease, also while its process is stopped.
        if self.is_library(first) && self.expired_while_stopped(first, second.granted.as_nanos()) {
            return Some(
                "this library tells a holder nothing before it asks: its lease had ended while it was stopped, and it \
                 noticed when it went on",
            );
        }
        self.of_store(second.granted.as_nanos())
    }

    fn is_library(&self, hold: &Hold) -> bool {
        u32::try_from(hold.owner).is_ok_and(|w| self.libraries.contains(w))
    }

    /// Whether the first lease of a library has not ended at `at`: it began after the request, and a renewal makes it
    /// longer, also if its process is stopped.
    fn is_first_lease(&self, asked: u64, at: u64) -> bool {
        at < asked.saturating_add(self.lease())
    }

    fn lease(&self) -> u64 {
        self.record.header.ttl_ms.saturating_mul(1_000_000)
    }

    /// Whether the lease of a library can have ended while its process was stopped, before `next`, and its belief ended
    /// within a lease after it went on. A library that renews in time has at least half of its lease left. A server that
    /// the user broke may have forgotten the first lease, too.
    fn expired_while_stopped(&self, hold: &Hold, next: u64) -> bool {
        let (granted, ended, lease) = (hold.granted.as_nanos(), hold.ended.as_nanos(), self.lease());
        let asked = hold.asked.as_nanos();
        (self.user_may_act(asked, next) || !self.is_first_lease(asked, next))
            && self.pauses.iter().any(|(w, from, to)| {
                u64::from(*w) == hold.owner
                    && (granted..=next).contains(from)
                    && next - from >= lease / 2
                    && ended <= to.saturating_add(lease)
            })
    }

    /// Whether a library that asked at `asked`, was granted the lock and did not give it back certainly had it at `at`: its
    /// first lease had not ended, no server was broken, and its connections were whole, so that it had no reason to give
    /// the lock up by itself.
    pub(super) fn certainly_had(&self, w: u32, asked: u64, at: u64) -> bool {
        let is_cut = |(whose, from, to): &(Option<u32>, u64, u64)| {
            whose.is_none_or(|its| its == w) && *from <= at && asked <= *to
        };
        self.is_first_lease(asked, at) && !self.user_may_act(asked, at) && !self.networks.iter().any(is_cut)
    }

    /// Whether all connections of a holder were reset before the next grant, and its belief ended in time after that.
    fn was_reset(&self, hold: &Hold, next: &Hold) -> bool {
        let (asked, granted) = (hold.asked.as_nanos(), next.granted.as_nanos());
        let from = self.resets.partition_point(|reset| reset.at < asked);
        let mut during = self.resets[from..].iter().take_while(|reset| reset.at <= granted);
        let all = during.any(|reset| {
            reset.w.is_none_or(|w| u64::from(w) == hold.owner) && hold.ended.as_nanos() <= self.learned(hold, reset.at)
        });
        // A lock that is a session ends with its one connection.
        let one = |(w, from, to): &(u32, u64, u64)| {
            u64::from(*w) == hold.owner
                && (asked.max(*from)..=granted).contains(&granted.min(*to))
                && hold.ended.as_nanos() <= self.learned(hold, granted.min(*to))
        };
        all || self.record.header.liveness == "session" && self.closed.iter().any(one)
    }

    /// By when a holder knows of a reset at `at`. If it was stopped meanwhile, it learns of it when it goes on.
    fn learned(&self, hold: &Hold, at: u64) -> u64 {
        let bound = LEARNS_WITHIN.min(self.record.header.ttl_ms.saturating_mul(500_000));
        let knows = |at: u64| at.saturating_add(bound);
        let mut pauses: Vec<_> = self.pauses.iter().filter(|(w, ..)| u64::from(*w) == hold.owner).collect();
        pauses.sort_unstable_by_key(|(_, from, _)| *from);
        pauses.into_iter().fold(
            knows(at),
            |known, &(_, from, to)| {
                if from <= known && to >= at { known.max(knows(to)) } else { known }
            },
        )
    }

    /// Which of two holders took the lock with which library, where two libraries took part.
    pub(super) fn sides(&self, violation: &Violation) -> Option<String> {
        let Violation::Overlap { first, second } = violation else { return None };
        let side = |hold| if self.is_library(hold) { "the other library" } else { "Oarlock" };
        let said = || format!("contender {} is {}, {} is {}", first.owner, side(first), second.owner, side(second));
        self.record.header.beside.then(said)
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
