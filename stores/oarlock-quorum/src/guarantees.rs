//! What a quorum promises.

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify, WaiterView};
#[cfg(feature = "redis")]
use oarlock_core::guarantees::Guarantees;

#[cfg(feature = "redis")]
pub(crate) const GUARANTEES: &[Guarantees] = &[Guarantees {
    anchor: "redlock",
    urls: "`redlock:`",
    choices: &[],
    decides: "a majority of independent servers",
    dead_holder: "after its lease",
    hung_holder: "after its lease",
    fences: "counters joined with the clients' clocks (within a minute of the servers'), confirmed by a majority",
    forgets: "if only a majority voted, and one of those servers forgets its vote within the lease",
    capabilities,
}];

pub(crate) fn capabilities() -> Capabilities {
    let mut can = Capabilities::of_the_model();
    (can.order, can.units, can.listing) = (false, false, false);
    (can.fencing, can.liveness) = (Fencing::Clocked, Liveness::Lease);
    (can.waiters, can.notify) = (WaiterView::Hidden, Notify::Poll);
    can.consistency = Consistency::Timing;
    can
}
