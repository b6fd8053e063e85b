//! What this store promises, in each layout.

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify, WaiterView};
use oarlock_core::guarantees::Guarantees;

use crate::config::Layout;

pub(crate) const GUARANTEES: &[Guarantees] = &[
    Guarantees {
        anchor: "redis",
        urls: "`redis:`, Sentinel, Cluster",
        capabilities: || capabilities(Layout::Native),
        ..LAYOUT
    },
    Guarantees {
        anchor: "redis-plain",
        urls: "`redis:` with `layout=plain`",
        choices: &["plain"],
        capabilities: || capabilities(Layout::Plain),
        ..LAYOUT
    },
    Guarantees {
        anchor: "redis-redisson",
        urls: "`redis:` with `layout=redisson`",
        choices: &["redisson"],
        capabilities: || capabilities(Layout::Redisson),
        ..LAYOUT
    },
];

const LAYOUT: Guarantees = Guarantees {
    anchor: "",
    urls: "",
    choices: &[],
    decides: "the master's scripts",
    dead_holder: "after its lease",
    hung_holder: "after its lease",
    fences: "counter joined with the server's clock",
    forgets: "if it restarts without its data, evicts (refused unless allowed), or fails over before a replica has the \
              grant; `min_replicas` = number of replicas prevents the last",
    capabilities: Capabilities::of_the_model,
};

/// What the driver can do, on servers of which nothing is known.
pub(crate) fn capabilities(layout: Layout) -> Capabilities {
    let mut can = Capabilities::of_the_model();
    (can.fencing, can.liveness, can.consistency) = (Fencing::Clocked, Liveness::Lease, Consistency::BestEffort);
    match layout {
        Layout::Native => can.notify = Notify::Push,
        Layout::Plain => {
            (can.order, can.units, can.listing) = (false, false, false);
            (can.waiters, can.notify) = (WaiterView::Hidden, Notify::Poll);
        }
        Layout::Redisson => {
            (can.order, can.one_rule, can.listing) = (false, false, false);
            (can.waiters, can.notify) = (WaiterView::Hidden, Notify::Push);
        }
    }
    can
}
