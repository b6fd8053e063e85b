//! What this store promises, in each layout.

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing};
use oarlock_core::guarantees::Guarantees;

use crate::config::Layout;

pub(crate) const GUARANTEES: &[Guarantees] = &[
    Guarantees { anchor: "etcd", urls: "`etcd:`", capabilities: || capabilities(Layout::Native), ..LAYOUT },
    Guarantees {
        anchor: "etcd-go",
        urls: "`etcd:` with `layout=go`",
        choices: &["go"],
        capabilities: || capabilities(Layout::Go),
        ..LAYOUT
    },
];

const LAYOUT: Guarantees = Guarantees {
    anchor: "",
    urls: "",
    choices: &[],
    decides: "transactions agreed by a majority",
    dead_holder: "after its lease",
    hung_holder: "after its lease",
    fences: "revision of the grant",
    forgets: "no, from 3.4.31 and 3.5.13 on ([why](backends/etcd.md#limits))",
    capabilities: Capabilities::of_the_model,
};

/// What the driver can do; with keys of Go it may be unable to list names.
pub(crate) fn capabilities(layout: Layout) -> Capabilities {
    let mut can = Capabilities::of_the_model();
    (can.fencing, can.consistency) = (Fencing::Strict, Consistency::Consensus);
    if layout == Layout::Go {
        // Other programs would honour neither a shared hold nor a fence that was moved ahead.
        (can.units, can.raises_fences, can.listing) = (false, false, false);
    }
    can
}
