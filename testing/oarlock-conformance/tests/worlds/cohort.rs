//! A cohort: the tasks of one process hand a held lock to each other, each with a larger fence of a block that was
//! reserved in the store. Another process waits for the same lock.
//!
//! The store sees one hold. Its lease is renewed by requests that take any time or are lost.

use oarlock_conformance::explore::{Event, World};

const LEASE: u8 = 3;
const END: u8 = 6;
const RESERVED: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Right,
    /// A block whose reservation was not answered is used all the same.
    Unanswered,
    /// The lock is handed on beyond the block.
    BeyondTheBlock,
    /// The next task has the fence of the last one.
    SameFence,
    /// A lock that is lost is handed on, with a whole lease.
    AfterLoss,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cohort {
    rule: Rule,
    now: u8,
    /// In the store: until when the first process holds, and the last fence.
    expires: Option<u8>,
    last: u8,
    /// In the first process: until when the present task believes, with which fence, and the last one of the block.
    believes: Option<u8>,
    fence: u8,
    block: u8,
    reserves: bool,
    reserved: Option<u8>,
    asked: bool,
    renews: Option<u8>,
    renewed: Option<u8>,
    release: bool,
    /// Until when the other process believes. Its claim waits from the start.
    other: Option<u8>,
    /// The largest fence that was believed in.
    top: u8,
    handed: u8,
}

impl Cohort {
    fn new(rule: Rule) -> Self {
        Self {
            rule,
            now: 0,
            expires: Some(LEASE),
            last: 1,
            believes: Some(LEASE),
            fence: 1,
            block: 1,
            reserves: false,
            reserved: None,
            asked: false,
            renews: None,
            renewed: None,
            release: false,
            other: None,
            top: 1,
            handed: 0,
        }
    }

    fn holds(&self) -> bool {
        self.believes.is_some_and(|until| until > self.now)
    }

    fn is_stored(&self) -> bool {
        self.expires.is_some_and(|until| until > self.now)
    }

    fn may_hand_on(&self) -> bool {
        let reach = match self.rule {
            Rule::BeyondTheBlock => self.block + 1,
            // It was asked for, so it will be there.
            Rule::Unanswered if self.asked => 1 + RESERVED,
            _ => self.block,
        };
        let held = self.holds() || self.rule == Rule::AfterLoss && self.believes.is_some();
        held && (self.fence < reach || self.rule == Rule::SameFence && self.block > 1) && self.handed < 4
    }
}

impl World for Cohort {
    type Key = Self;

    fn key(&self) -> Self {
        self.clone()
    }

    /// The block was handed through, and then the other process had its turn.
    fn is_goal(&self) -> bool {
        self.handed == RESERVED && self.other.is_some()
    }

    fn steps(&self, next: &mut Vec<(Event, Self)>) -> Result<(), String> {
        if self.holds() && self.other.is_some_and(|until| until > self.now) {
            return Err("two believe".to_owned());
        }
        let mut add = |what, at: u8, change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            next.push(((what, at.into()), world));
        };
        if self.now < END {
            add("time passes", self.now, &|world| world.now += 1);
        }
        if self.holds() {
            if !self.asked {
                add("reserves fences", RESERVED, &|world| (world.asked, world.reserves) = (true, true));
            }
            if self.renews.is_none() && self.renewed.is_none() {
                add("sends a renewal", 0, &|world| world.renews = Some(world.now));
            }
            add("releases", self.fence, &|world| {
                (world.believes, world.release) = (None, true);
            });
        }
        if self.reserves {
            add("the reservation is lost", 0, &|world| world.reserves = false);
            add("the reservation is carried out", 0, &|world| {
                world.reserves = false;
                if world.is_stored() {
                    world.last += RESERVED;
                    world.reserved = Some(world.last);
                }
            });
        }
        if let Some(block) = self.reserved {
            add("its answer is lost", 0, &|world| world.reserved = None);
            add("its answer arrives", block, &|world| (world.reserved, world.block) = (None, block));
        }
        if let Some(sent) = self.renews {
            add("the renewal is lost", 0, &|world| world.renews = None);
            add("the renewal is carried out", 0, &|world| {
                world.renews = None;
                if world.is_stored() {
                    (world.expires, world.renewed) = (Some(world.now + LEASE), Some(sent));
                }
            });
        }
        if let Some(sent) = self.renewed {
            add("its answer is lost", 1, &|world| world.renewed = None);
            add("its answer arrives", 1, &|world| {
                world.renewed = None;
                if world.holds() {
                    world.believes = world.believes.max(Some(sent + LEASE));
                }
            });
        }
        if self.release {
            add("the release is lost", 0, &|world| world.release = false);
            add("the release is carried out", 0, &|world| (world.release, world.expires) = (false, None));
        }
        if self.may_hand_on() {
            let mut world = self.clone();
            world.fence += u8::from(self.rule != Rule::SameFence);
            world.handed += 1;
            if !self.holds() {
                world.believes = Some(self.now + LEASE);
            }
            if world.fence <= world.top {
                return Err(format!("fence {} after {}", world.fence, world.top));
            }
            world.top = world.fence;
            next.push((("hands it on", world.fence.into()), world));
        }
        if !self.is_stored() && self.other.is_none() {
            let mut world = self.clone();
            world.last += 1;
            world.other = Some(self.now + LEASE);
            if world.last <= world.top {
                return Err(format!("fence {} after {}", world.last, world.top));
            }
            world.top = world.last;
            next.push((("the other process is granted it", world.last.into()), world));
        }
        Ok(())
    }
}

#[test]
fn a_cohort_keeps_to_its_block_and_its_lease() {
    crate::holds("cohort", Cohort::new(Rule::Right));
}

#[test]
fn wrong_cohorts_are_found() {
    for rule in [Rule::Unanswered, Rule::BeyondTheBlock, Rule::SameFence, Rule::AfterLoss] {
        crate::is_found(&format!("cohort, {rule:?}"), Cohort::new(rule));
    }
}
