//! What every Oarlock driver must do, as a public test suite.

mod bench;
mod cases;
mod crowd;
mod failure;
pub mod faulty;
pub mod fixture;
pub mod history;
mod runner;
pub mod sim;
pub mod wire;
pub mod zoo;

pub use failure::{Failure, Outcome};
pub use fixture::{Connection, Fixture, Pace, Power, Powers};
pub use history::{History, Hold, Rules, Verdict, Violation};
pub use runner::{Ran, run, run_case, run_with};
