//! The local queue before the store: a process has one claim of a name in the store's queue, not a thousand.
//!
//! A claim waits here behind a *pending* claim of the same name that it cannot coexist with, until that one is granted
//! or gives up. Fair claims do not come here. Where the store keeps the order, readers and permits do not come here
//! either.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::line::Line;
use crate::claim::{ResourceName, Weight};

/// The local queues of a client, by name.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    queues: Arc<Mutex<HashMap<ResourceName, Arc<NameQueue>>>>,
}

/// The queue of one name.
#[derive(Debug, Default)]
pub(crate) struct NameQueue {
    turn: Arc<RwLock<()>>,
    queued: AtomicU32,
    /// The claims in it that a release may carry.
    pub(crate) line: Line,
}

/// The right to ask the store; dropping it lets the next claim pass.
#[derive(Debug)]
pub(crate) struct Pass {
    _turn: Turn,
    entrant: Entrant,
}

#[derive(Debug)]
enum Turn {
    Shared { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

/// A claim in a queue, queued or passed; the queue is removed with its last one.
#[derive(Debug)]
pub(crate) struct Entrant {
    queues: Arc<Mutex<HashMap<ResourceName, Arc<NameQueue>>>>,
    name: ResourceName,
    queue: Arc<NameQueue>,
}

impl Gate {
    /// See [`Entrant::enter`].
    #[cfg(test)]
    pub(crate) async fn enter(&self, name: &ResourceName, weight: Weight) -> Pass {
        self.entrant(name).enter(weight).await
    }

    /// The turn of a claim of this weight, if no other one is in its way.
    pub(crate) fn try_enter(&self, name: &ResourceName, weight: Weight) -> Option<Pass> {
        let entrant = self.entrant(name);
        let turn = match weight {
            Weight::All => Turn::Alone { _guard: entrant.queue.turn.clone().try_write_owned().ok()? },
            Weight::Units(_) => Turn::Shared { _guard: entrant.queue.turn.clone().try_read_owned().ok()? },
        };
        Some(Pass { _turn: turn, entrant })
    }

    /// A claim that queues, once it [enters](Entrant::enter).
    pub(crate) fn entrant(&self, name: &ResourceName) -> Entrant {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry(name.clone()).or_default().clone();
        queue.queued.fetch_add(1, Ordering::Relaxed);
        Entrant { queues: self.queues.clone(), name: name.clone(), queue }
    }
}

impl Entrant {
    /// Waits for the turn of a claim of this weight.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub(crate) async fn enter(self, weight: Weight) -> Pass {
        let turn = match weight {
            Weight::All => Turn::Alone { _guard: self.queue.turn.clone().write_owned().await },
            Weight::Units(_) => Turn::Shared { _guard: self.queue.turn.clone().read_owned().await },
        };
        Pass { _turn: turn, entrant: self }
    }

    /// The queue that it is in.
    pub(crate) fn queue(&self) -> &Arc<NameQueue> {
        &self.queue
    }
}

impl Pass {
    /// How many claims wait behind this one here.
    pub(crate) fn behind(&self) -> u32 {
        self.entrant.queue.behind()
    }

    /// The queue behind this one.
    pub(crate) fn queue(&self) -> Arc<NameQueue> {
        self.entrant.queue.clone()
    }
}

impl NameQueue {
    /// How many claims wait behind the one that passed.
    pub(crate) fn behind(&self) -> u32 {
        self.queued.load(Ordering::Relaxed).saturating_sub(1)
    }
}

impl Drop for Entrant {
    fn drop(&mut self) {
        // Under the lock, so that no claim enters a queue that is being removed.
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if self.queue.queued.fetch_sub(1, Ordering::Relaxed) == 1 {
            queues.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_what_cannot_coexist_queues() {
        let gate = Gate::default();
        let name = ResourceName::new("r").unwrap();
        let reader = gate.enter(&name, Weight::ONE).await;
        let other = gate.enter(&name, Weight::ONE).await;
        assert_eq!(reader.behind(), 1);
        let writer = gate.enter(&name, Weight::All);
        tokio::pin!(writer);
        assert!(futures_ready(&mut writer).await.is_none());
        drop((reader, other));
        let pass = futures_ready(&mut writer).await.expect("the readers are gone");
        drop(pass);
        assert!(gate.queues.lock().unwrap().is_empty(), "nothing is left behind");
    }

    /// A task that comes late must not be served before those that queue.
    #[tokio::test]
    async fn a_try_does_not_overtake_what_queues() {
        let gate = Gate::default();
        let name = ResourceName::new("r").unwrap();
        let first = gate.try_enter(&name, Weight::All).expect("the queue is empty");
        let mut second = Box::pin(gate.enter(&name, Weight::All));
        assert!(futures_ready(&mut second).await.is_none());
        assert!(gate.try_enter(&name, Weight::All).is_none());
        drop(first);
        assert!(gate.try_enter(&name, Weight::All).is_none(), "the second is next");
        assert!(gate.try_enter(&name, Weight::ONE).is_none(), "the second is next");
        let pass = futures_ready(&mut second).await.expect("it is its turn");
        drop(pass);
        drop(gate.try_enter(&name, Weight::ONE).expect("the queue is empty"));
        assert!(gate.queues.lock().unwrap().is_empty(), "nothing is left behind");
    }

    async fn futures_ready<F: Future + Unpin>(future: F) -> Option<F::Output> {
        tokio::time::timeout(std::time::Duration::from_millis(1), future).await.ok()
    }
}
