//! What `oarlock bench` measures locks with, and what it measures them against.
//!
//! - [`Targets`]: everything that one run measures: locks, the raw driver and the baseline of the same store.
//! - [`RawDriver`]: the requests of a driver without the engine. The difference to a lock is the cost of the engine.
//! - [`Targets::http`]: locks over HTTP, for what a program of another language pays.
//! - [`Baseline`]: the fewest requests to the store that do what a lock does. The difference to the driver is the cost
//!   of fences, queues and leases.
//! - [`pairs`]: loads without contention. [`mod@contend`]: loads with it; [`grants`] checks and counts what came of
//!   them.
//!
//! Features have the names of the stores, as in `oarlock`.

mod baseline;
pub mod contend;
pub mod figures;
pub mod grants;
pub mod pairs;
mod raw_driver;
mod targets;

pub use baseline::{Baseline, Rival, open_baseline};
pub use raw_driver::RawDriver;
pub use targets::{Stop, Targets};
