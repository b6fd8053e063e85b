//! A client whose time is tokio's.

use std::sync::Arc;

use oarlock_core::clock::TokioClock;
use oarlock_core::memory::Kit;
use oarlock_core::{DynDriver, Locks, LocksBuilder, Memory};

pub(crate) type Ready = LocksBuilder<Arc<dyn DynDriver>>;

/// A client on tokio's clock, and the kit of its connection.
pub(crate) fn client(choose: impl FnOnce(Ready) -> Ready) -> (Locks, Kit) {
    let clock = Arc::new(TokioClock::new());
    let store = Memory::on(clock.clone());
    let kit = store.kit();
    (choose(Locks::builder(store).clock(clock)).build().unwrap(), kit)
}
