//! Owners: identities of callers, so that an owner does not wait for itself.

mod shared_hold;

use std::sync::{Arc, Mutex, PoisonError};

use shared_hold::SharedHolds;
pub(crate) use shared_hold::{Share, SharedHold};

use crate::belief::BeliefCell;
use crate::claim::{Capacity, Claim, ClaimId, ResourceName, Weight};
use crate::queue::Load;

/// An explicit identity for several acquisitions, such as one job or one request.
///
/// Waiting for a lock that the same owner holds already is an error instead of a wait without end; a re-entrant lock
/// ([`Mutex::reentrant`](crate::Mutex::reentrant)) can be entered again. Tasks and threads are not owners by
/// themselves: async work moves between them.
///
/// # Examples
/// ```
/// # use oarlock_core::{ErrorKind, Locks, Memory, Owner};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let job = Owner::new();
/// let ledger = locks.mutex("ledger").owner(&job);
/// let _guard = ledger.lock().await?;
/// assert_eq!(ledger.lock().await.unwrap_err().kind(), ErrorKind::SelfDeadlock);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Owner(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    holdings: Mutex<Vec<Holding>>,
    shared_holds: SharedHolds,
}

#[derive(Debug)]
struct Holding {
    store: usize,
    name: ResourceName,
    weight: Weight,
    claim: ClaimId,
    belief: Arc<BeliefCell>,
}

/// What an owner holds of a name, compared with a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Nothing,
    /// A hold that the claim can coexist with.
    Compatible,
    Incompatible,
}

impl Owner {
    /// A new identity.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Holding>> {
        self.0.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hold of `name` that all entries of this owner share.
    pub(crate) fn shared_hold(&self, store: usize, name: &ResourceName) -> Arc<SharedHold> {
        self.0.shared_holds.at(store, name)
    }

    /// What this owner holds of the resource of `claim`.
    pub(crate) fn holds(&self, store: usize, claim: &Claim) -> Holds {
        let holdings = self.lock();
        let of_this_name = |h: &&Holding| h.store == store && h.name == claim.resource && h.belief.is_held();
        let weights: Vec<Weight> = holdings.iter().filter(of_this_name).map(|holding| holding.weight).collect();
        // If the owner's permits and the requested ones exceed the limit, they will never be free.
        let fits = match claim.capacity {
            Capacity::Fixed(limit) => weights.iter().copied().collect::<Load>().bears(claim.weight, limit),
            Capacity::Any | Capacity::Stored(_) => weights.iter().all(|held| held.coexists_with(claim.weight)),
        };
        match (weights.is_empty(), fits) {
            (true, _) => Holds::Nothing,
            (false, true) => Holds::Compatible,
            (false, false) => Holds::Incompatible,
        }
    }

    pub(crate) fn gained(&self, store: usize, claim: &Claim, belief: &Arc<BeliefCell>) {
        let Claim { id, resource, weight, .. } = claim;
        let (name, belief) = (resource.clone(), belief.clone());
        self.lock().push(Holding { store, name, weight: *weight, claim: *id, belief });
    }

    pub(crate) fn lost(&self, claim: ClaimId) {
        self.lock().retain(|holding| holding.claim != claim);
    }
}
