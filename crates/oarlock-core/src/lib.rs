//! The rule, the driver contract and the engine of Oarlock.
//!
//! - [`model`]: the one rule, as a pure state machine.
//! - [`queue`]: its arithmetic, for stores that run it on a listing.
//! - [`driver`]: what a store must be able to do, in seven verbs.
//! - [`engine`]: all policy: waiting, renewing, giving up, cleaning up. [`Locks`] is its face.
//! - [`kinds`]: mutex, read-write lock, semaphore: names for a capacity, a weight and an order.
//! - [`quorum`]: Redlock, a driver over drivers.
//! - [`reconnect`]: connections that are opened again, for drivers.
//! - [`memory`]: the reference store, with a kit to make it misbehave.

pub mod belief;
pub mod blocking;
pub mod capabilities;
pub mod claim;
pub mod clock;
pub mod driver;
pub mod engine;
pub mod error;
pub mod event;
pub mod fenced;
pub mod floor;
pub mod guard;
pub mod kinds;
pub mod locks;
pub mod memory;
pub mod model;
pub mod owner;
pub mod queue;
pub mod quorum;
pub mod reconnect;
pub mod state;
pub mod text;
pub mod ticket;

pub use belief::{Belief, Ended, LossReason};
pub use capabilities::Capabilities;
pub use claim::{Capacity, Claim, ClaimId, Fence, Kind, Label, Limit, ResourceName, Tether, Weight};
pub use driver::{Driver, DynDriver, Released};
pub use engine::Home;
pub use error::{Applied, Busy, Error, ErrorKind, Result, Retry};
pub use event::{LockEvent, Observer, Step};
pub use fenced::{Fenced, Stale};
pub use guard::{Guard, Held};
pub use kinds::election::{Election, Leader, LeaderWatch, Leadership};
pub use kinds::multi::{Multi, MultiGuard, Part};
pub use kinds::mutex::Mutex;
pub use kinds::once::{Once, Slot};
pub use kinds::reentrant::{ReentrantGuard, ReentrantMutex, ReentrantRwLock};
pub use kinds::rwlock::{RwLock, WriteGuard};
pub use kinds::semaphore::Semaphore;
pub use locks::{Locks, LocksBuilder};
pub use memory::Memory;
pub use owner::Owner;
pub use ticket::LockTicket;
