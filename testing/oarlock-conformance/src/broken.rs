//! Deliberately broken locks. The checker and the cases must catch them, or they prove nothing.
//!
//! Each is the reference store with one rule broken, as real lock implementations have broken it.

mod flawed;
mod storm;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use oarlock_core::driver::BoxFuture;
use oarlock_core::memory::{Kit, Memory, Verb};
use oarlock_core::{ClaimId, DynDriver, Fence, ResourceName, Result};

pub use storm::storm;

use crate::fixture::{Connection, Fixture, Power, Powers};

/// Which rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flaw {
    /// None: the correct store, which must pass.
    None,
    /// A release frees the lock of any holder, like a plain delete.
    ReleasesAnyone,
    /// A renewal answers "alive" for every claim, also after the store has granted the lock to another.
    RenewsAnyone,
    /// A renewal answers "alive" and extends nothing.
    RenewsNothing,
    /// Weights and capacities are ignored.
    IgnoresWeight,
    /// Every grant has the same fence.
    RepeatsFences,
    /// Fences fall.
    FencesFall,
    /// The store frees a lock before the end of its lease.
    ExpiresEarly,
    /// A claim that is not renewed never ends.
    NeverExpires,
    /// A dead waiter stays in the queue.
    KeepsDeadWaiters,
    /// A repeated attempt takes a second place.
    TakesSecondPlaces,
    /// No waiter is notified of a release.
    LosesWakeUps,
    /// The lease begins with the reply instead of the request, on a slow connection.
    CountsFromTheReply,
}

impl Flaw {
    /// All of them, the correct store first.
    pub const ALL: [Self; 13] = [
        Self::None,
        Self::ReleasesAnyone,
        Self::RenewsAnyone,
        Self::RenewsNothing,
        Self::IgnoresWeight,
        Self::RepeatsFences,
        Self::FencesFall,
        Self::ExpiresEarly,
        Self::NeverExpires,
        Self::KeepsDeadWaiters,
        Self::TakesSecondPlaces,
        Self::LosesWakeUps,
        Self::CountsFromTheReply,
    ];
}

/// A store with a flaw, as a fixture.
#[derive(Debug)]
pub struct BrokenStore {
    store: Memory,
    flaw: Flaw,
    notes: Arc<Mutex<Notes>>,
}

/// What the flaws remember, for all connections.
#[derive(Debug, Default)]
struct Notes {
    queues: HashMap<ResourceName, VecDeque<ClaimId>>,
    places: HashMap<ClaimId, ClaimId>,
    fences: HashMap<ClaimId, Fence>,
}

impl BrokenStore {
    /// A new store with this flaw.
    #[must_use]
    pub fn new(flaw: Flaw) -> Self {
        Self { store: Memory::new(), flaw, notes: Arc::default() }
    }

    /// A connection, and the kit that injects its faults.
    #[must_use]
    pub fn open(&self) -> (Arc<dyn DynDriver>, Kit) {
        let inner = self.store.connect();
        let kit = inner.kit();
        (Arc::new(flawed::Flawed { inner, flaw: self.flaw, notes: self.notes.clone() }), kit)
    }
}

impl Fixture for BrokenStore {
    fn name(&self) -> String {
        format!("{:?}", self.flaw)
    }

    fn powers(&self) -> Powers {
        Powers::none().kill(Power::Has).cut(Power::Has).drop_reply(Power::Has)
    }

    fn connect(&self) -> BoxFuture<Result<Arc<dyn Connection>>> {
        let (driver, kit) = self.open();
        Box::pin(async move { Ok(Arc::new(BrokenConnection { driver, kit }) as Arc<dyn Connection>) })
    }
}

struct BrokenConnection {
    driver: Arc<dyn DynDriver>,
    kit: Kit,
}

impl BrokenConnection {
    fn done(&self, what: impl FnOnce(&Kit)) -> BoxFuture<Result<()>> {
        what(&self.kit);
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Connection for BrokenConnection {
    fn driver(&self) -> Arc<dyn DynDriver> {
        self.driver.clone()
    }

    fn kill(&self) -> BoxFuture<Result<()>> {
        self.done(Kit::kill)
    }

    fn cut(&self) -> BoxFuture<Result<()>> {
        self.done(Kit::cut)
    }

    fn heal(&self) -> BoxFuture<Result<()>> {
        self.done(Kit::heal)
    }

    fn drop_reply(&self, verb: Verb) -> BoxFuture<Result<()>> {
        self.done(|kit| kit.drop_reply(verb))
    }
}
