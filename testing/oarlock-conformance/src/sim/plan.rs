//! What one seed draws. Each fault is in or out for the whole run: leaving some out finds more.

use std::time::Duration;

use oarlock_core::model::TURN_TTL;
use serde::{Deserialize, Serialize};

/// The three ways in which real stores differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Style {
    /// One atomic step decides; every claim has its own lease (Redis, SQL).
    Rows,
    /// Claims queue as nodes and the client decides from a listing; every node has its own lease (etcd).
    Queue,
    /// As a queue, but all nodes of a client live and die with its session (ZooKeeper).
    Session,
}

/// What is contended for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Load {
    /// A mutex.
    Mutex {
        /// Every task has a place in the store's queue.
        fair: bool,
    },
    /// A spin lock.
    Spin,
    /// Readers and writers.
    ReadWrite,
    /// A semaphore of this many permits.
    Semaphore(u32),
    /// A mutex that the tasks of a process hand to each other.
    Cohort,
    /// Every acquisition is of another kind; with permits there is a semaphore among them, without there are readers
    /// and writers.
    Mixed(Option<u32>),
}

/// One world, as drawn from a seed. Its JSON replays it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Plan {
    /// What it was drawn from.
    pub seed: u64,
    /// The store.
    pub style: Style,
    /// What is contended for.
    pub load: Load,
    /// How many processes.
    pub clients: u64,
    /// How many tasks in each.
    pub tasks: u64,
    /// How many acquisitions each task tries.
    pub rounds: u32,
    /// How many names.
    pub names: u64,
    /// The lease.
    pub ttl: Duration,
    /// The longest ordinary delay of one way.
    pub delay: Duration,
    /// Whether holds and pauses last no time: then releases carry the next claim of their process.
    pub brisk: bool,
    /// Whether a turn comes with its grant, where the store decides in one step.
    pub handed: bool,
    /// The most faults that happen; for making a failure smaller.
    pub most_faults: u64,
    /// How likely each fault is.
    pub chances: Chances,
}

/// How likely each fault is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Chances {
    /// A request is lost.
    pub lost_request: f64,
    /// A reply is lost.
    pub lost_reply: f64,
    /// A request arrives after several leases.
    pub late: f64,
    /// A reply arrives after several leases.
    pub late_reply: f64,
    /// A request is carried out twice.
    pub twice: f64,
    /// A hint is lost.
    pub lost_hint: f64,
    /// A hint is late.
    pub late_hint: f64,
    /// Per acquisition: its client is cut off for a while.
    pub outage: f64,
    /// An acquisition is dropped at some await.
    pub cancel: f64,
    /// Per acquisition: its client dies.
    pub kill: f64,
    /// Per acquisition: an operator breaks the hold that is in the way.
    pub broken: f64,
    /// How much faster or slower the clocks of clients run, at most.
    pub drift: f64,
    /// Now and then: all clients are suspended for a while.
    pub suspend: f64,
    /// Now and then: the clock of a client jumps ahead.
    pub client_jump: f64,
    /// Now and then: the clock by which the store counts leases jumps ahead.
    pub lease_jump: f64,
    /// Now and then: the wall clock of the store, from which fences are made, jumps back or ahead.
    pub wall_jump: f64,
    /// Now and then: the store falls back to an earlier state.
    pub fall_back: f64,
    /// Now and then: one process is stopped for a while, and the others go on.
    #[serde(default)]
    pub stop: f64,
}

impl Chances {
    /// Every chance, for making a plan smaller or another.
    pub(super) fn each(&mut self) -> [&mut f64; 18] {
        [
            &mut self.lost_request,
            &mut self.lost_reply,
            &mut self.late,
            &mut self.late_reply,
            &mut self.twice,
            &mut self.lost_hint,
            &mut self.late_hint,
            &mut self.outage,
            &mut self.cancel,
            &mut self.kill,
            &mut self.broken,
            &mut self.drift,
            &mut self.suspend,
            &mut self.client_jump,
            &mut self.lease_jump,
            &mut self.wall_jump,
            &mut self.fall_back,
            &mut self.stop,
        ]
    }

    /// The largest value of each, in the same order.
    pub(super) const MOST: [f64; 18] =
        [0.15, 0.15, 0.05, 0.05, 0.2, 0.5, 0.3, 0.1, 0.4, 0.03, 0.1, 0.01, 0.3, 0.3, 0.2, 0.4, 0.3, 0.5];

    /// The last one is drawn from numbers of its own, so that the others of a seed are what they were before it.
    fn draw(rng: &mut fastrand::Rng, mut of_last: fastrand::Rng) -> Self {
        let mut chances = Self::default();
        let last = Self::MOST.len() - 1;
        for (at, (chance, most)) in chances.each().into_iter().zip(Self::MOST).enumerate() {
            let rng = if at == last { &mut of_last } else { &mut *rng };
            if rng.bool() {
                *chance = rounded(rng.f64() * most);
            }
        }
        // Rarer: each of these takes something from what can be promised.
        for chance in [&mut chances.broken, &mut chances.lease_jump, &mut chances.fall_back] {
            if rng.u8(..4) > 0 {
                *chance = 0.0;
            }
        }
        chances
    }
}

/// A number that JSON keeps exactly.
fn rounded(number: f64) -> f64 {
    (number * 10_000.0).round() / 10_000.0
}

impl Plan {
    /// Draws the world of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let style = [Style::Rows, Style::Queue, Style::Session][rng.usize(..3)];
        let load = match rng.u8(..9) {
            0 => Load::Mutex { fair: false },
            1 => Load::Mutex { fair: true },
            2 => Load::Spin,
            3 => Load::ReadWrite,
            4 => Load::Semaphore(rng.u32(1..=3)),
            5 => Load::Mixed(Some(rng.u32(1..=3))),
            6 => Load::Cohort,
            _ => Load::Mixed(None),
        };
        let ttl = Duration::from_millis(rng.u64(200..=4000));
        let chances = if rng.u8(..16) == 0 {
            Chances::default()
        } else {
            Chances::draw(&mut rng, fastrand::Rng::with_seed(seed ^ 0x7374_6f70))
        };
        Self {
            seed,
            style,
            load,
            clients: rng.u64(1..=4),
            tasks: rng.u64(1..=3),
            rounds: rng.u32(2..=5),
            names: rng.u64(1..=2),
            delay: ttl.mul_f64(rounded(rng.f64() * 0.1)),
            ttl,
            brisk: rng.u8(..3) == 0,
            handed: rng.bool(),
            most_faults: u64::MAX,
            chances,
        }
        .possible()
    }

    /// The same without what cannot happen together.
    pub(super) fn possible(mut self) -> Self {
        if self.style != Style::Rows {
            // Majorities keep what they have promised, and number their nodes without a clock.
            self.chances.fall_back = 0.0;
            self.chances.wall_jump = 0.0;
            self.handed = false;
        }
        if self.chances.fall_back > 0.0 {
            // A fence that is forgotten is followed by a larger one only while the clock runs on.
            self.chances.wall_jump = 0.0;
        }
        self
    }

    /// Whether nothing goes wrong in it: then no lock may be lost.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        let harmless = Chances {
            lost_hint: self.chances.lost_hint,
            late_hint: self.chances.late_hint,
            cancel: self.chances.cancel,
            drift: self.chances.drift,
            wall_jump: self.chances.wall_jump,
            ..Chances::default()
        };
        self.chances == harmless || self.most_faults == 0
    }

    /// Whether claims are granted in the order in which they came: all hear of their turn, and none is late for it.
    pub(super) fn is_orderly(&self) -> bool {
        let (lost_hint, late_hint) = (self.chances.lost_hint, self.chances.late_hint);
        self.is_calm() && (lost_hint == 0.0 && late_hint == 0.0 || self.most_faults == 0)
    }

    /// Whether the answer to a renewal may take longer than a third of the lease that comes with a turn: a hold that began
    /// so is suspect then, and rightly.
    pub(super) fn is_slow_for_turns(&self) -> bool {
        self.handed && self.delay * 2 > TURN_TTL / 3
    }

    /// The same world without any fault.
    pub(super) fn calmed(&self) -> Self {
        Self { chances: Chances::default(), ..self.clone() }
    }
}
