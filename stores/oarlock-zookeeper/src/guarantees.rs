//! What this store promises, in each layout.

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify, WaiterView};
use oarlock_core::guarantees::Guarantees;

pub(crate) const GUARANTEES: &[Guarantees] = &[
    Guarantees { anchor: "zk", urls: "`zk:`", capabilities: || capabilities(false), ..LAYOUT },
    Guarantees {
        anchor: "zk-compat",
        urls: "`zk:` with `layout=curator` or `kazoo`",
        choices: &["curator", "kazoo"],
        capabilities: || capabilities(true),
        ..LAYOUT
    },
];

const LAYOUT: Guarantees = Guarantees {
    anchor: "",
    urls: "",
    choices: &[],
    decides: "the ensemble",
    dead_holder: "when its session ends",
    hung_holder: "when its session ends",
    fences: "transaction of the grant",
    forgets: "no",
    capabilities: Capabilities::of_the_model,
};

/// What the driver can do, in its own layout or in that of another program.
pub(crate) fn capabilities(compat: bool) -> Capabilities {
    let mut can = Capabilities::of_the_model();
    (can.fencing, can.liveness, can.consistency) = (Fencing::Strict, Liveness::Session, Consistency::Consensus);
    (can.raises_fences, can.outlives_process) = (false, false);
    (can.waiters, can.notify) = (WaiterView::Listed, Notify::Push);
    if compat {
        // Nothing may be stored beside the nodes of other programs, and names are paths anywhere in the tree.
        (can.memo, can.listing, can.one_rule) = (false, false, false);
    }
    can
}
