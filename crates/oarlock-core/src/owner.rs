//! Identifies who asks, so that an owner does not wait for itself.

mod seat;

use std::sync::{Arc, Mutex, PoisonError};

use seat::Seats;
pub(crate) use seat::{Seat, Share};

use crate::belief::BeliefCell;
use crate::claim::{Capacity, Claim, ClaimId, ResourceName, Weight};
use crate::queue::Load;

/// An explicit identity for several acquisitions, such as one job or one request.
///
/// Waiting for a lock that the same owner holds already is an error instead of a wait without end; a re-entrant lock
/// ([`Mutex::reentrant`](crate::Mutex::reentrant)) can be entered again. Tasks and threads are not owners by themselves:
/// async work moves between them.
#[derive(Clone, Debug, Default)]
pub struct Owner(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    holdings: Mutex<Vec<Holding>>,
    seats: Seats,
}

#[derive(Debug)]
struct Holding {
    store: usize,
    name: ResourceName,
    weight: Weight,
    claim: ClaimId,
    belief: Arc<BeliefCell>,
}

/// What an owner holds of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Nothing,
    /// Something that another claim of the weight asked about could join.
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

    /// Where this owner shares its holds of `name`.
    pub(crate) fn seat(&self, store: usize, name: &ResourceName) -> Arc<Seat> {
        self.0.seats.at(store, name)
    }

    /// What this owner holds of the resource of `claim`.
    pub(crate) fn holds(&self, store: usize, claim: &Claim) -> Holds {
        let holdings = self.lock();
        let of_this_name = |h: &&Holding| h.store == store && h.name == claim.resource && h.belief.is_held();
        let weights: Vec<Weight> = holdings.iter().filter(of_this_name).map(|holding| holding.weight).collect();
        // More permits than there are, together with those that it holds, will never be free.
        let fits = match claim.capacity {
            Capacity::Fixed(limit) => weights.iter().copied().collect::<Load>().bears(claim.weight, limit),
            Capacity::Any | Capacity::Adopt(_) => weights.iter().all(|held| held.coexists_with(claim.weight)),
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
