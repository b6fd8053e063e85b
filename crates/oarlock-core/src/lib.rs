//! The rule, the driver contract and the engine of Oarlock.

pub mod belief;
pub mod capabilities;
pub mod claim;
pub mod clock;
pub mod driver;
pub mod error;
pub mod event;
pub mod model;
pub mod state;
pub mod text;

pub use belief::{Belief, LossReason};
pub use capabilities::Capabilities;
pub use claim::{Capacity, Claim, ClaimId, Fence, Kind, Label, Limit, ResourceName, Tether, Weight};
pub use driver::{Driver, DynDriver};
pub use error::{Applied, Busy, Error, ErrorKind, Result, Retry};
pub use event::{LockEvent, Observer, Step};
