//! What one seed draws. Each fault is in or out for the whole run: leaving some out finds more.

use std::time::Duration;

/// The three ways in which real stores differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One atomic step decides; every claim has its own lease (Redis, SQL).
    Rows,
    /// Claims queue as nodes and the client decides from a listing; every node has its own lease (etcd).
    Queue,
    /// As a queue, but all nodes of a client live and die with its session (ZooKeeper).
    Session,
}

/// What is contended for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

/// One world.
#[derive(Clone, Debug)]
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
    /// The chance that a request is lost.
    pub lost_request: f64,
    /// The chance that a reply is lost.
    pub lost_reply: f64,
    /// The chance that a request arrives after several leases.
    pub late: f64,
    /// The chance that a hint is lost.
    pub lost_hint: f64,
    /// The chance per acquisition that its client is cut off for a while.
    pub outage: f64,
    /// The chance that an acquisition is dropped at some await.
    pub cancel: f64,
    /// The chance per acquisition that its client dies.
    pub kill: f64,
    /// How much faster or slower the clocks of clients run, at most.
    pub drift: f64,
    /// Whether holds and pauses last no time: then releases carry the next claim of their process.
    pub brisk: bool,
}

impl Plan {
    /// Draws the world of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let style = [Style::Rows, Style::Queue, Style::Session][rng.usize(..3)];
        let load = match rng.u8(..5) {
            0 => Load::Mutex { fair: false },
            1 => Load::Mutex { fair: true },
            2 => Load::Spin,
            3 => Load::ReadWrite,
            _ => Load::Semaphore(rng.u32(1..=3)),
        };
        let ttl = Duration::from_millis(rng.u64(200..=4000));
        let mut chance = |most: f64| if rng.bool() { rng.f64() * most } else { 0.0 };
        let (lost_request, lost_reply, late) = (chance(0.15), chance(0.15), chance(0.05));
        let (lost_hint, outage, cancel, kill) = (chance(0.5), chance(0.1), chance(0.4), chance(0.03));
        let drift = chance(0.01);
        // Drawn apart: it changes nothing else in the world of a seed.
        let brisk = fastrand::Rng::with_seed(!seed).u8(..3) == 0;
        Self {
            seed,
            style,
            load,
            clients: rng.u64(1..=4),
            tasks: rng.u64(1..=3),
            rounds: rng.u32(2..=5),
            names: rng.u64(1..=2),
            delay: ttl.mul_f64(rng.f64() * 0.1),
            ttl,
            lost_request,
            lost_reply,
            late,
            lost_hint,
            outage,
            cancel,
            kill,
            drift,
            brisk,
        }
    }

    /// Whether nothing goes wrong in it: then no lock may be lost.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        let faults = [self.lost_request, self.lost_reply, self.late, self.outage, self.kill];
        faults.iter().all(|chance| *chance == 0.0)
    }
}
