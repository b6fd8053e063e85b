//! The engine over seeded fake stores, under paused time.
//!
//! One seed draws a whole world: the style of the store, how many clients and tasks contend, kinds, leases and delays,
//! and which faults happen. Everything runs on one thread in virtual time, so a seed replays exactly. What the tasks
//! believed is written down as a [`History`](crate::history::History) and checked; at the end nothing may be left in
//! the store and it must still work.
//!
//! [`campaign`] runs many seeds, and changes worlds that reached something new; [`shrink`] makes a failing one smaller.
//! The JSON of a [`Plan`] replays it.
//!
//! # What is not promised
//! After a fall-back of the store, a jump of its lease clock or a break by force, two may believe for a while: the
//! beliefs from before must end within one lease, and fences must rise all the same. Only a hold that the store may have
//! forgotten is excused, and only the time in which all clients were suspended after that is added to its lease. A process
//! that is stopped alone believes nothing meanwhile, if it does not believe any more at the moment when it goes on: before
//! any of its work runs again, its locks are asked.

mod campaign;
mod clocks;
mod connection;
mod contender;
mod coverage;
mod log;
mod plan;
mod queue;
mod request;
mod rows;
mod shrink;
mod stops;
mod world;

pub use campaign::{Report, campaign};
pub use coverage::Coverage;
pub use plan::{Chances, Load, Plan, Style};
pub use shrink::shrink;
pub use world::{Outcome, run};
