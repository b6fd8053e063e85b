//! The fewest raw requests of a store, to measure locks against: for `oarlock bench`.

pub use oarlock_core::floor::*;

pub use crate::registry::{bare_of, floor_of};
