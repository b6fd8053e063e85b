//! What a store must be able to do, for stores of your own: implement [`Driver`], and give it to
//! [`Locks::over`](crate::Locks::over). The suite `oarlock-conformance` tests it.

pub use oarlock_core::capabilities::*;
pub use oarlock_core::claim::{Capacity, Claim, ClaimId, Kind, Limit, ResourceName, Weight};
pub use oarlock_core::driver::*;
pub use oarlock_core::engine::{DEFAULT_OP_TIMEOUT, DEFAULT_TTL, DEFAULT_WAIT, Home, MAX_TTL, MIN_TTL};
pub use oarlock_core::{clock, model, queue, quorum, reconnect};
