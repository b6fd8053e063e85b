//! What this store promises, in each mode.

use oarlock_core::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify};
use oarlock_core::guarantees::Guarantees;

use crate::mysql::Named;
use crate::session::{Server as _, guarantees};

pub(crate) const GUARANTEES: &[Guarantees] = &[
    Guarantees { anchor: "mysql", urls: "`mysql:`", capabilities: || capabilities(true), ..LEASE },
    Guarantees {
        anchor: "mysql-pooled",
        urls: "`mysql:` behind a pooler, on Galera, with group replication",
        dead_holder: "after its lease",
        capabilities: || capabilities(false),
        ..LEASE
    },
    Guarantees {
        anchor: "mysql-session",
        urls: "`mysql:` with `mode=session`",
        choices: &["session", "transaction"],
        capabilities: || guarantees::capabilities(Named::WAITERS),
        ..guarantees::SESSION
    },
];

const LEASE: Guarantees = Guarantees {
    anchor: "",
    urls: "",
    choices: &[],
    decides: "one row per name",
    dead_holder: "when its connections end: at once by the next waiter, or at its next poll (250 ms); leases longer \
                  than 5 min run out instead",
    hung_holder: "after its lease",
    fences: "counter joined with the database's clock",
    forgets: "after an asynchronous failover; after a crash with `innodb_flush_log_at_trx_commit` other than 1",
    capabilities: Capabilities::of_the_model,
};

/// What the driver can do, with or without a lock that shows that a process is alive.
pub(crate) fn capabilities(liveness_lock: bool) -> Capabilities {
    let mut can = Capabilities::of_the_model();
    can.liveness = if liveness_lock { Liveness::LeaseAndProcess } else { Liveness::Lease };
    (can.notify, can.fencing, can.consistency) = (Notify::Poll, Fencing::Clocked, Consistency::Single);
    can
}
