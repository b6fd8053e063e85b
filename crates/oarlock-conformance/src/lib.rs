//! What every Oarlock driver must do, as a public test suite.

pub mod history;
pub mod sim;

pub use history::{History, Hold, Rules, Verdict, Violation};
