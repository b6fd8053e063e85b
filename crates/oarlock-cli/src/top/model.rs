//! What is shown, and how keys change it. There is no I/O here, and time is an argument.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use oarlock_core::pattern::matches;

use crate::top::snapshot::{Leases, Row, Snapshot};

/// By what locks are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    #[default]
    OldestWaiter,
    Waiters,
    Age,
    Lease,
    Fence,
    Name,
}

impl Sort {
    pub(crate) fn next(self) -> Self {
        match self {
            Self::OldestWaiter => Self::Waiters,
            Self::Waiters => Self::Age,
            Self::Age => Self::Lease,
            Self::Lease => Self::Fence,
            Self::Fence => Self::Name,
            Self::Name => Self::OldestWaiter,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::OldestWaiter => "oldest waiter",
            Self::Waiters => "waiters",
            Self::Age => "age",
            Self::Lease => "lease left",
            Self::Fence => "fence",
            Self::Name => "name",
        }
    }

    /// What needs attention comes first.
    fn compare(self, one: &Row, two: &Row) -> Ordering {
        let by = match self {
            Self::OldestWaiter => two.oldest_wait.cmp(&one.oldest_wait),
            Self::Waiters => two.waiters.cmp(&one.waiters),
            Self::Age => two.held.cmp(&one.held),
            Self::Lease => one.lease_left.cmp(&two.lease_left),
            Self::Fence => two.fence.cmp(&one.fence),
            Self::Name => Ordering::Equal,
        };
        by.then_with(|| one.name.cmp(&two.name))
    }
}

/// What keys do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    List,
    /// A filter is typed.
    Filter,
    /// One lock is open, from this line on.
    Open {
        from: usize,
    },
    /// The end of this hold is to be confirmed.
    Confirm(Broken),
    Help,
}

/// The hold that is to be ended, as it was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) name: String,
    pub(crate) id: oarlock::state::ClaimId,
    pub(crate) fence: Option<oarlock::Fence>,
    pub(crate) holder: String,
}

/// Everything that is shown.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) url: String,
    pub(crate) snapshot: Snapshot,
    pub(crate) leases: Leases,
    /// The rows that are shown, in order.
    pub(crate) order: Vec<usize>,
    /// How many of them are waited for.
    pub(crate) waited: usize,
    pub(crate) sort: Sort,
    pub(crate) reverse: bool,
    pub(crate) filter: String,
    pub(crate) paused: bool,
    /// A position in `order`.
    pub(crate) selected: usize,
    pub(crate) mode: Mode,
    /// The last thing that happened.
    pub(crate) said: String,
    /// How many rows fit; set by the drawing.
    pub(crate) page: usize,
}

impl Model {
    pub(crate) fn new(url: String, now: Instant) -> Self {
        Self {
            url,
            snapshot: Snapshot { rows: Vec::new(), at: now },
            leases: Leases::default(),
            order: Vec::new(),
            waited: 0,
            sort: Sort::default(),
            reverse: false,
            filter: String::new(),
            paused: false,
            selected: 0,
            mode: Mode::default(),
            said: "reading the locks …".to_owned(),
            page: 10,
        }
    }

    /// Shows a new snapshot. The selected lock stays selected.
    pub(crate) fn refresh(&mut self, snapshot: Snapshot) {
        let selected = self.row().map(|row| row.name.clone());
        self.leases.note(&snapshot.rows);
        self.snapshot = snapshot;
        self.said.clear();
        self.arrange(selected.as_deref());
    }

    /// Filters and sorts again.
    pub(crate) fn arrange(&mut self, selected: Option<&str>) {
        let (rows, filter, sort) = (&self.snapshot.rows, self.filter.as_str(), self.sort);
        let is_pattern = filter.contains(['*', '?']);
        let shown = |row: &Row| {
            filter.is_empty()
                || if is_pattern { matches(filter, &row.name) } else { row.name.contains(filter) }
                || row.holder.contains(filter)
        };
        let mut order: Vec<usize> = (0..rows.len()).filter(|&at| shown(&rows[at])).collect();
        order.sort_unstable_by(|&one, &two| sort.compare(&rows[one], &rows[two]));
        if self.reverse {
            order.reverse();
        }
        let found = selected.and_then(|name| order.iter().position(|&at| rows[at].name == name));
        self.selected = found.unwrap_or(self.selected).min(order.len().saturating_sub(1));
        self.waited = order.iter().filter(|&&at| rows[at].waiters > 0).count();
        self.order = order;
    }

    /// The selected lock.
    pub(crate) fn row(&self) -> Option<&Row> {
        self.order.get(self.selected).and_then(|&at| self.snapshot.rows.get(at))
    }

    pub(crate) fn move_to(&mut self, position: usize) {
        self.selected = position.min(self.order.len().saturating_sub(1));
    }

    /// How much of a lease is left now.
    pub(crate) fn lease_left(&self, row: &Row, now: Instant) -> Duration {
        row.lease_left.saturating_sub(now.saturating_duration_since(self.snapshot.at))
    }
}
