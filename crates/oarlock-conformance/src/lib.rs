//! What every Oarlock driver must do, as a public test suite.
//!
//! # Your own driver
//! A driver in a crate of yours is tested with the cases that ours are tested with. Add a test without a harness:
//!
//! ```toml
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//!
//! and give it a way to connect. Each call is another client, as another process would be:
//!
//! ```no_run
//! use std::sync::Arc;
//! use oarlock_core::{DynDriver, Memory};
//!
//! let store = Memory::new();
//! let connect = move || {
//!     let connection = store.connect();
//!     async move { Ok(Arc::new(connection) as Arc<dyn DynDriver>) }
//! };
//! oarlock_conformance::run(oarlock_conformance::Plain::new("mine", connect).close_is_death());
//! ```
//!
//! `cargo test --test conformance` runs every case that the driver's declared capabilities call for, eight at a time,
//! each on fresh names; `cargo test --test conformance -- order::` runs one topic. A case that needs what the store or
//! the fixture lacks is printed as ignored, with the reason. What cases have to say, such as how long before the rival's
//! grant belief ended, is printed after them.
//!
//! [`Plain`] puts its faults between the engine and the driver. To cut a real network, kill real sessions or restart a
//! real server, implement [`Fixture`] and [`Connection`]; the powers that a fixture does not have are optional.
//!
//! # What else is here
//! - [`history`]: the checker. Note what your workers believed, and it finds overlaps, falling fences, overtaking and
//!   starvation.
//! - [`sim`]: the engine over simulated stores, under paused time; a seed repeats a failure.
//! - [`zoo`]: broken locks that the checker and the cases must catch, so that we know they can.
//! - [`wire`] and [`faulty`]: lines with latency, cuts and lost replies, before any driver.

mod bench;
mod cases;
mod crowd;
mod ending;
mod failure;
pub mod faulty;
pub mod fixture;
pub mod history;
mod plain;
mod runner;
pub mod sim;
pub mod wire;
pub mod zoo;

pub use ending::end_of_belief;
pub use failure::{Failure, Outcome};
pub use fixture::{Connection, Fixture, Habits, Pace, Power, Powers};
pub use history::{History, Hold, Rules, Verdict, Violation};
pub use plain::Plain;
pub use runner::{Ran, args, run, run_case, run_with};
