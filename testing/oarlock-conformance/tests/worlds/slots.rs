//! The two slots of a state file of the embedded store.
//!
//! Two processes take turns under a file lock. Each reads the slot that counts, and writes the next state into the
//! other one, in two halves; a process may be killed before, between or after them, which ends its file lock. A slot of
//! which only one half was written has a wrong checksum. A process that wrote the newest record itself keeps it in
//! memory and compares headers.

use oarlock_conformance::explore::{Event, World};

const PROCESSES: usize = 2;
const MOST: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Right,
    /// Writes into the slot that counts.
    InPlace,
    /// A slot counts although its checksum is wrong.
    NoChecksum,
    /// The next record has the number of the last one.
    SameNumber,
    /// A cached record is used when its header is there, whatever the other slot says.
    OneHeader,
}

/// A slot: its number, and the state in its two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Slot {
    number: u8,
    halves: [u8; 2],
    /// The state that the checksum in the header is for.
    checksum: u8,
}

impl Slot {
    fn of(number: u8, state: u8) -> Self {
        Self { number, halves: [state; 2], checksum: state }
    }

    fn is_whole(self) -> bool {
        self.halves == [self.checksum; 2]
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    /// The record that it wrote last: slot, number and state.
    cache: Option<(usize, u8, u8)>,
    /// Under the file lock: the slot that it writes, the record, and how many halves are written.
    writes: Option<(usize, u8, u8, u8)>,
    kills: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct File {
    rule: Rule,
    slots: [Slot; 2],
    processes: [Process; PROCESSES],
    /// The last state whose write was finished.
    committed: u8,
    /// The state of a write that was cut off: it may count or not.
    cut_off: Option<u8>,
}

impl File {
    fn new(rule: Rule) -> Self {
        let slots = [Slot::of(1, 0), Slot::of(0, 0)];
        Self { rule, slots, processes: Default::default(), committed: 0, cut_off: None }
    }

    /// The slot that counts.
    fn counts(&self) -> Option<usize> {
        let valid = |at: &usize| self.rule == Rule::NoChecksum || self.slots[*at].is_whole();
        (0..2).filter(valid).max_by_key(|at| self.slots[*at].number)
    }

    /// What a process takes for the state, and where: from its cache if that still counts.
    fn read(&self, at: usize) -> Option<(usize, u8, u8)> {
        if let Some((slot, number, state)) = self.processes[at].cache {
            let own = self.slots[slot].number == number;
            let other = self.slots[1 - slot].number < number;
            if own && (other || self.rule == Rule::OneHeader) {
                return Some((slot, number, state));
            }
        }
        let slot = self.counts()?;
        Some((slot, self.slots[slot].number, self.slots[slot].halves[1]))
    }
}

impl World for File {
    type Key = Self;

    fn key(&self) -> Self {
        self.clone()
    }

    fn is_goal(&self) -> bool {
        self.committed == MOST
    }

    fn steps(&self, next: &mut Vec<(Event, Self)>) -> Result<(), String> {
        let locked = self.processes.iter().any(|process| process.writes.is_some());
        for at in 0..PROCESSES {
            let process = self.processes[at];
            if let Some((slot, number, state, written)) = process.writes {
                let mut world = self.clone();
                let target = &mut world.slots[slot];
                if written == 0 {
                    (target.number, target.checksum, target.halves[0]) = (number, state, state);
                    world.processes[at].writes = Some((slot, number, state, 1));
                } else {
                    target.halves[1] = state;
                    (world.committed, world.cut_off) = (state, None);
                    world.processes[at].writes = None;
                    world.processes[at].cache = Some((slot, number, state));
                }
                next.push((("writes", at), world));
                if process.kills == 0 {
                    let mut world = self.clone();
                    world.processes[at] = Process { kills: 1, ..Process::default() };
                    world.cut_off = (written > 0).then_some(state);
                    next.push((("is killed", at), world));
                }
                continue;
            }
            if locked {
                continue;
            }
            let Some((slot, number, state)) = self.read(at) else {
                return Err("no slot counts any more".to_owned());
            };
            if state != self.committed && Some(state) != self.cut_off {
                return Err(format!("{at} reads state {state}, and the last one is {}", self.committed));
            }
            if self.committed >= MOST {
                continue;
            }
            let mut world = self.clone();
            let target = if self.rule == Rule::InPlace { slot } else { 1 - slot };
            let number = if self.rule == Rule::SameNumber { number } else { number + 1 };
            // Each step makes another state.
            let state = self.committed.max(self.cut_off.unwrap_or(0)) + 1;
            world.processes[at].writes = Some((target, number, state, 0));
            next.push((("takes the file lock", at), world));
        }
        Ok(())
    }
}

#[test]
fn the_last_state_is_never_lost() {
    crate::holds("slots", File::new(Rule::Right));
}

#[test]
fn wrong_slots_are_found() {
    for rule in [Rule::InPlace, Rule::NoChecksum, Rule::SameNumber, Rule::OneHeader] {
        crate::is_found(&format!("slots, {rule:?}"), File::new(rule));
    }
}
