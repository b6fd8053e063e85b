//! Capabilities: what a store can do, as data. The same client code runs on every store, chosen by URL.

/// The guarantees of a store's fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fencing {
    /// Derived from the store's order of commits: never repeated while the store keeps its data.
    Strict,
    /// A counter combined with the store's clock: still rises after data loss, unless the clock went back further than
    /// the outage lasted.
    Clocked,
    /// None.
    None,
}

/// How a store detects that a holder is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Liveness {
    /// Its lease expires.
    Lease,
    /// Its session expires; claims live as long as their session.
    Session,
    /// Its process ends (detected at once) or its lease expires, whichever comes first.
    LeaseAndProcess,
}

/// How much of the waiters a store shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaiterView {
    /// Each, in order.
    Listed,
    /// Their number.
    Counted,
    /// Nothing.
    Hidden,
}

/// How a waiter learns that it should attempt again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notify {
    /// By a notification of the store or of the client that releases; a slow poll covers lost notifications.
    Push,
    /// By polling.
    Poll,
}

/// What a store promises about its own data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Consistency {
    /// A majority agrees before a write is acknowledged.
    Consensus,
    /// One durable server.
    Single,
    /// Safe while clocks and delays stay within bounds.
    Timing,
    /// May forget acknowledged grants, as after an asynchronous failover.
    BestEffort,
}

/// What a driver can do. Read it through [`Info`](crate::driver::Info).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether claims that wait are granted in order of arrival.
    pub order: bool,
    /// Whether weights below [`All`](crate::Weight::All) are possible: readers, semaphores.
    pub units: bool,
    /// Whether a name is one resource for every kind of lock, and forgets its capacity when no claim is left. If not,
    /// as in layouts of other programs, a name belongs to one kind, which keeps its capacity; another kind is refused
    /// there.
    pub one_rule: bool,
    /// The quality of its fences.
    pub fencing: Fencing,
    /// Whether a holder can raise its fence, or reserve more of them
    /// ([`Fences`](crate::driver::Fences)).
    pub raises_fences: bool,
    /// How a dead holder is detected.
    pub liveness: Liveness,
    /// Whether a claim can outlive its process ([`Lifetime::Lease`](crate::Lifetime::Lease)).
    pub outlives_process: bool,
    /// What it shows of waiters.
    pub waiters: WaiterView,
    /// How waiters are woken.
    pub notify: Notify,
    /// Whether a claim is stored with its id and label, so that others can see it and end it by its id. If not, as with
    /// locks that a server keeps for a connection, others see at most that a name is held.
    pub records: bool,
    /// Whether it can list the names in use.
    pub listing: bool,
    /// Whether a memo can be left on a resource.
    pub memo: bool,
    /// What it promises about its data.
    pub consistency: Consistency,
}

impl Capabilities {
    /// Everything that the model can do, on one server.
    #[must_use]
    pub fn of_the_model() -> Self {
        Self {
            order: true,
            units: true,
            one_rule: true,
            fencing: Fencing::Clocked,
            raises_fences: true,
            liveness: Liveness::Lease,
            outlives_process: true,
            waiters: WaiterView::Listed,
            notify: Notify::Push,
            records: true,
            listing: true,
            memo: true,
            consistency: Consistency::Single,
        }
    }
}
