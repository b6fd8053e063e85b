//! Breaks what can break around a lock, and checks what its holders believed: the parts of `oarlock torture`.
//!
//! - [`run`]: worker processes contend for locks; they are stopped and killed, and their connections are cut, delayed
//!   and reset by [`proxy`]. What they believed is written down as a [`record`].
//! - [`worker`]: one of those processes. [`counters`]: the data that they protect, with and without a fence.
//! - [`judge`]: reads the record and says OK, RISK SEEN, INCONCLUSIVE or VIOLATION.
//! - [`history`]: the checker of exclusion, fences, order and liveness, also for tests of drivers.
//! - [`render`]: the record as a page that a person can read.
//! - [`broken`]: broken locks that the checker must catch, or its silence proves nothing.
//! - [`plan`]: the schedule of faults, by seed.
//! - [`ports`]: ports for proxies and servers.

pub mod broken;
pub mod counters;
#[cfg(test)]
mod fuzz;
pub mod history;
pub mod judge;
pub mod plan;
pub mod ports;
pub mod proxy;
pub mod record;
pub mod render;
mod repeat;
pub mod run;
pub mod worker;
mod workers;
