//! The engine over seeded fake stores, under paused time.
//!
//! One seed draws a whole world: the style of the store, how many clients and tasks contend, leases and delays, and
//! which faults happen. Everything runs on one thread in virtual time, so a seed replays exactly. What the tasks
//! believed is written down as a [`History`](crate::history::History) and checked; at the end nothing may be left in
//! the store and it must still work.

mod connection;
mod plan;
mod queue;
mod rows;
mod workload;

pub use plan::{Plan, Style};
pub use workload::{Outcome, Tally, run};
