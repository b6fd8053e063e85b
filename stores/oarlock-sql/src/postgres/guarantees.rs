//! What this store promises, in each mode.

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify};
use oarlock_core::guarantees::Guarantees;

use crate::postgres::Advisory;
use crate::session::{Server as _, guarantees};

pub(crate) const GUARANTEES: &[Guarantees] = &[
    Guarantees { anchor: "postgres", urls: "`postgres:`", capabilities: || capabilities(false), ..LEASE },
    Guarantees {
        anchor: "postgres-pooled",
        urls: "`postgres:` behind a pooler of transactions",
        dead_holder: "after its lease",
        capabilities: || capabilities(true),
        ..LEASE
    },
    Guarantees {
        anchor: "postgres-session",
        urls: "`postgres:` with `mode=session`",
        choices: &["session", "transaction"],
        capabilities: || guarantees::capabilities(Advisory::WAITERS),
        ..guarantees::SESSION
    },
];

const LEASE: Guarantees = Guarantees {
    anchor: "",
    urls: "",
    choices: &[],
    decides: "one row per name",
    dead_holder: "at once, by the first waiter; of several holders it watches one, and notices the others after a \
                  third of its own lease; leases longer than 1 h run out instead",
    hung_holder: "after its lease",
    fences: "counter joined with the database's clock",
    forgets: "after an asynchronous failover; after a crash with `synchronous_commit = off` or `fsync = off`",
    capabilities: Capabilities::of_the_model,
};

/// What the driver can do, with connections of its own or with those of a pooler.
pub(crate) fn capabilities(pooled: bool) -> Capabilities {
    let mut can = Capabilities::of_the_model();
    (can.liveness, can.notify) =
        if pooled { (Liveness::Lease, Notify::Poll) } else { (Liveness::LeaseAndProcess, Notify::Push) };
    (can.fencing, can.consistency) = (Fencing::Clocked, Consistency::Single);
    can
}
