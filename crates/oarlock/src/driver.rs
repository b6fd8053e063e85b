//! The contract of a store, for stores of your own: implement [`Driver`] and pass it to
//! [`Locks::over`](crate::Locks::over). The suite `oarlock-conformance` tests it.
//!
//! The enums that verbs take and return, and the capacity and weight of a claim, are exhaustive, so that the compiler
//! shows a driver each new case. Everything else that may grow is `#[non_exhaustive]`.

pub use crate::connect::open_driver as open;
pub use oarlock_core::capabilities::*;
pub use oarlock_core::claim::{Capacity, Claim, ClaimId, Kind, Limit, ResourceName, Weight};
pub use oarlock_core::driver::*;
pub use oarlock_core::engine::{DEFAULT_OP_TIMEOUT, DEFAULT_TTL, DEFAULT_WAIT, MAX_TTL, MIN_TTL};
pub use oarlock_core::state::{Page, Query, Select};
pub use oarlock_core::{clock, model, queue, reconnect};
