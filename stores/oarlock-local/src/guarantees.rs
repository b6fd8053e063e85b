//! What this store promises.

use oarlock_core::capabilities::{Capabilities, Consistency, Liveness, Notify};
use oarlock_core::guarantees::Guarantees;

pub(crate) const GUARANTEES: &[Guarantees] = &[Guarantees {
    anchor: "local",
    urls: "`local:`",
    choices: &[],
    decides: "the kernel and one state file per name",
    dead_holder: "when its process ends",
    hung_holder: "after its lease",
    fences: "counter joined with the clock",
    forgets: "after power loss",
    capabilities,
}];

pub(crate) fn capabilities() -> Capabilities {
    let mut can = Capabilities::of_the_model();
    (can.liveness, can.outlives_process) = (Liveness::LeaseAndProcess, true);
    (can.notify, can.consistency) = (Notify::Push, Consistency::Single);
    can
}
