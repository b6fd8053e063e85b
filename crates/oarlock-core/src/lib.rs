//! The core of Oarlock: the rule, the driver contract, the engine and the kinds of lock. Applications use the crate
//! `oarlock`.
//!
//! - [`model`]: the rule of all locks, as a pure state machine.
//! - [`queue`]: its arithmetic, for stores that run it on a listing.
//! - [`driver`]: what a store must be able to do, in seven verbs.
//! - [`engine`]: all policy: waiting, renewing, giving up, cleaning up. [`Locks`] is its API.
//! - [`kinds`]: mutex, read-write lock, semaphore: names for a capacity, a weight and an order.
//! - [`pattern`]: patterns of names.
//! - [`reconnect`]: reconnecting, for drivers.
//! - [`url`]: the URLs of stores, and how a store registers its schemes.
//! - [`guarantees`]: what locks and stores promise, as data. [`doctor`]: what can break it.
//! - [`memory`]: a store in memory, with a test kit that injects faults.

pub mod belief;
pub mod blocking;
pub mod capabilities;
pub mod claim;
pub mod clock;
pub mod doctor;
pub mod driver;
pub mod engine;
pub mod error;
pub mod event;
pub mod fenced;
#[cfg(test)]
mod fuzz;
pub mod guarantees;
pub mod guard;
pub mod held;
pub mod kinds;
pub mod locks;
pub mod memory;
pub mod model;
pub mod owner;
pub mod pattern;
pub mod queue;
pub mod reconnect;
pub mod span;
pub mod state;
mod telemetry;
pub mod text;
pub mod ticket;
pub mod url;

pub use belief::{Belief, Ended, LossReason};
pub use capabilities::Capabilities;
pub use claim::{Capacity, Claim, ClaimId, Fence, Kind, Label, Lifetime, Limit, ResourceName, Weight};
pub use driver::{Driver, DynDriver, Released};
pub use engine::Runtime;
pub use error::{Applied, Busy, Error, ErrorKind, Result, Retry};
pub use event::{LockEvent, Observer, Step};
pub use fenced::{Fenced, Stale};
pub use guard::Guard;
pub use held::Held;
pub use kinds::*;
pub use locks::{Locks, LocksBuilder};
pub use memory::Memory;
pub use owner::Owner;
pub use state::Ending;
pub use ticket::LockTicket;
/// What [`Held::token`] returns.
pub use tokio_util::sync::CancellationToken;
