//! What locks of a connection promise.

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify, WaiterView};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use oarlock_core::guarantees::Guarantees;

/// A row of the tables, without what differs between servers.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) const SESSION: Guarantees = Guarantees {
    anchor: "",
    urls: "",
    choices: &[],
    decides: "the server's own lock of a connection",
    dead_holder: "at once, in the server's queue",
    hung_holder: "when its connection was silent for a lease",
    fences: "none: the server's clock",
    forgets: "with every restart and failover; the holder is notified, possibly after the next grant",
    capabilities: Capabilities::of_the_model,
};

/// What the driver can do on a server that shows this much of its waiters.
pub(crate) fn capabilities(waiters: WaiterView) -> Capabilities {
    let mut can = Capabilities::of_the_model();
    (can.order, can.units, can.raises_fences, can.outlives_process) = (false, false, false, false);
    (can.records, can.listing, can.memo) = (false, false, false);
    (can.fencing, can.liveness, can.waiters) = (Fencing::None, Liveness::Session, waiters);
    // The server notifies waiters; an observer has to poll.
    (can.notify, can.consistency) = (Notify::Poll, Consistency::Single);
    can
}
