//! The test suite that every Oarlock driver must pass. Run it on a driver of your own.
//!
//! # Test your driver
//! Add a test without a harness to your crate:
//!
//! ```toml
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//!
//! In `tests/conformance.rs`, pass a function that connects. Each call must open another connection, as another process
//! would:
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use oarlock_conformance::DriverFixture;
//! use oarlock_core::{DynDriver, Memory};
//!
//! fn main() {
//!     let store = Memory::new(); // your store
//!     let fixture = DriverFixture::new("mine", move || {
//!         let connection = store.connect(); // your driver
//!         async move { Ok(Arc::new(connection) as Arc<dyn DynDriver>) }
//!     });
//!     oarlock_conformance::run(fixture.close_is_death());
//! }
//! ```
//!
//! - `cargo test --test conformance` runs every case for which the driver declares the capabilities, eight at a time,
//!   each on fresh names. `cargo test --test conformance -- order::` runs one topic.
//! - A case that needs what the store or the fixture lacks is printed as ignored, with the reason.
//! - Measurements, such as how long before the rival's grant belief ended, are printed at the end.
//! - Call [`close_is_death`](DriverFixture::close_is_death) only if closing a connection ends its claims as the death
//!   of its process would.
//!
//! [`DriverFixture`] injects faults between the engine and the driver. To cut a real network, kill real sessions or
//! restart a real server, implement [`Fixture`] and [`Connection`]. Each [power](Powers) of a fixture is optional.
//!
//! # What else is here
//! - [`history`]: the checker, of the crate `oarlock-torture`. Record what your workers believed; it finds overlaps, falling fences, overtaking and
//!   starvation.
//! - [`sim`]: the engine over simulated stores, under paused time. A seed repeats a failure.
//! - [`explore`]: an exhaustive search through small worlds.
//! - [`broken`]: broken locks that the checker and the cases must catch.
//! - [`delayed`] and [`faulty`]: latency, cuts and lost replies for any driver.

pub mod broken;
mod cases;
mod contention;
mod context;
pub mod delayed;
mod ending;
pub mod explore;
mod failure;
pub mod faulty;
pub mod fixture;
mod memory_connection;
mod over_driver;
mod runner;
pub mod sim;

pub use ending::end_of_belief;
pub use failure::{Failure, Outcome};
pub use fixture::{Connection, Deviations, Fixture, Pace, Power, Powers};
pub use memory_connection::MemoryConnection;
pub use oarlock_torture::history::{self, History, Hold, Rules, Verdict, Violation};
pub use over_driver::DriverFixture;
pub use runner::{Ran, SAME_ANYWHERE, args, args_without, run, run_case, run_with};
