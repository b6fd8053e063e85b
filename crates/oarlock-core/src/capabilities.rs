//! What a store can do, as data: the same client code runs on all of them, chosen by URL.

/// How far the fences of a store can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fencing {
    /// From the store's own order of commits: never repeats while the store keeps its data.
    Strict,
    /// A counter joined with the store's clock: still rises after lost state, if clocks agree better than that took.
    Clocked,
    /// None.
    None,
}

/// How a store learns that a holder is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Liveness {
    /// Its lease runs out.
    Lease,
    /// Its session ends; leases of claims are those of the session.
    Session,
    /// Whichever comes first: its process dies (seen at once) or its lease runs out.
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

/// How a waiter learns that it should look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notify {
    /// The store or the releasing client tells it; polling only guards against lost messages.
    Push,
    /// It has to ask.
    Poll,
}

/// What a store promises about its own data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Consistency {
    /// Agreed by a majority before it is acknowledged.
    Consensus,
    /// One durable arbiter.
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
    /// Whether a name is one resource for every kind of lock, and forgets its capacity when nobody claims it. If not, as
    /// in layouts of other programs, a name belongs to one kind, which keeps its capacity; another kind is refused there.
    pub one_rule: bool,
    /// The quality of its fences.
    pub fencing: Fencing,
    /// Whether a holder can raise its fence, or reserve more of them
    /// ([`Fences`](crate::driver::Fences)).
    pub raises_fences: bool,
    /// How a dead holder is noticed.
    pub liveness: Liveness,
    /// Whether a claim can outlive its process ([`Tether::Lease`](crate::Tether::Lease)).
    pub tether_lease: bool,
    /// What it shows of waiters.
    pub waiters: WaiterView,
    /// How waiters are woken.
    pub notify: Notify,
    /// Whether a claim is written down where others find it, with its id and label, and can be ended by whoever knows its id. If
    /// not, as with locks that a server keeps for a connection, others see at most that a name is held.
    pub records: bool,
    /// Whether it can list the names in use.
    pub listing: bool,
    /// Whether a memo can be left on a resource.
    pub memo: bool,
    /// What it promises about its data.
    pub consistency: Consistency,
}

impl Capabilities {
    /// Everything the model itself can do, on one arbiter.
    #[must_use]
    pub fn of_the_model() -> Self {
        Self {
            order: true,
            units: true,
            one_rule: true,
            fencing: Fencing::Clocked,
            raises_fences: true,
            liveness: Liveness::Lease,
            tether_lease: true,
            waiters: WaiterView::Listed,
            notify: Notify::Push,
            records: true,
            listing: true,
            memo: true,
            consistency: Consistency::Single,
        }
    }
}
