//! The state of resources as a store shows it: holders, waiters in order, fences, labels.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::claim::{ClaimId, Fence, Kind, Label, Limit, ResourceName, Weight};

/// A few bytes that stay on a resource after its holder has gone.
pub type Memo = Arc<[u8]>;

/// The longest memo. The engine refuses a longer one, so a driver need not check it.
pub const MAX_MEMO_BYTES: usize = 1024;

/// The longest value that a claim can publish, in bytes. The engine refuses a longer one.
pub const MAX_VALUE_BYTES: usize = 1024;

/// A request for the end of a hold: by whom and why.
///
/// # Examples
/// ```
/// # use std::time::Duration;
/// # use oarlock_core::{Locks, Memory, state::Ending};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> oarlock_core::Result<()> {
/// # let locks = Locks::over(Memory::new())?;
/// let guard = locks.mutex("import").lock().await?;
/// let ending = Ending::new("ops@example.org", "maintenance");
/// locks.break_hold("import", guard.fence(), ending.clone(), Duration::from_secs(30)).await?;
/// assert_eq!(guard.asked_to_end().await, Some(ending));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ending {
    /// Who asked for it.
    pub by: String,
    /// Why.
    pub why: String,
}

impl Ending {
    /// A request by `by`, for the reason `why`.
    pub fn new(by: impl Into<String>, why: impl Into<String>) -> Self {
        Self { by: by.into(), why: why.into() }
    }
}

/// One claim that holds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HolderState {
    /// Its identity: what `release` needs to break it.
    pub id: ClaimId,
    /// The kind of lock.
    pub kind: Kind,
    /// How much it takes.
    pub weight: Weight,
    /// The fence of its grant; `None` in layouts of other programs that have none.
    pub fence: Option<Fence>,
    /// Identifies its client.
    pub label: Arc<Label>,
    /// How long it has held.
    pub held_for: Duration,
    /// How long it lives if it is not renewed.
    pub lease_left: Duration,
    /// The value it publishes.
    pub value: Option<Arc<str>>,
    /// Its end was asked for.
    pub ending: Option<Ending>,
}

impl HolderState {
    /// A holder known only by its id and weight.
    #[must_use]
    pub fn new(id: ClaimId, kind: Kind, weight: Weight) -> Self {
        Self {
            id,
            kind,
            weight,
            fence: None,
            label: Arc::default(),
            held_for: Duration::ZERO,
            lease_left: Duration::ZERO,
            value: None,
            ending: None,
        }
    }
}

/// One claim that waits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaiterState {
    /// Its identity.
    pub id: ClaimId,
    /// The kind of lock.
    pub kind: Kind,
    /// How much it wants.
    pub weight: Weight,
    /// Identifies its client.
    pub label: Arc<Label>,
    /// How long it has waited.
    pub waited: Duration,
    /// How many more wait behind it inside its process.
    pub behind: u32,
}

impl WaiterState {
    /// A waiter known only by its id and weight.
    #[must_use]
    pub fn new(id: ClaimId, kind: Kind, weight: Weight) -> Self {
        Self { id, kind, weight, label: Arc::default(), waited: Duration::ZERO, behind: 0 }
    }
}

/// The waiters of a resource, as far as its store shows them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Waiters {
    /// All of them, in order of arrival.
    Listed(Vec<WaiterState>),
    /// Only how many.
    Counted(usize),
    /// Unknown: the layout does not store them.
    Hidden,
}

impl Waiters {
    /// How many wait, including those queued inside processes; `None` if unknown.
    #[must_use]
    pub fn count(&self) -> Option<usize> {
        match self {
            Self::Listed(waiters) => Some(waiters.iter().map(|w| 1 + w.behind as usize).sum()),
            Self::Counted(count) => Some(*count),
            Self::Hidden => None,
        }
    }
}

/// One resource as its store sees it now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResourceState {
    /// Its name.
    pub name: ResourceName,
    /// Its capacity, if a live claim stated one.
    pub capacity: Option<Limit>,
    /// Its holders, longest first.
    pub holders: Vec<HolderState>,
    /// Its waiters.
    pub waiters: Waiters,
    /// The largest fence given or reserved so far.
    pub last_fence: Option<Fence>,
    /// The memo that the last holder left.
    pub memo: Option<Memo>,
}

impl ResourceState {
    /// A resource without claims.
    #[must_use]
    pub fn free(name: ResourceName) -> Self {
        Self {
            name,
            capacity: None,
            holders: Vec::new(),
            waiters: Waiters::Listed(Vec::new()),
            last_fence: None,
            memo: None,
        }
    }

    /// Whether no claim holds it and none is known to wait.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.count().is_none_or(|count| count == 0)
    }

    /// The kind of its first holder, else of its first waiter.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        let waiting = || match &self.waiters {
            Waiters::Listed(waiters) => waiters.first().map(|w| w.kind),
            Waiters::Counted(_) | Waiters::Hidden => None,
        };
        self.holders.first().map(|h| h.kind).or_else(waiting)
    }
}

/// Which resources to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// The live ones: held or waited for.
    Live,
    /// This one, live or not.
    Name(ResourceName),
}

/// A question to [`inspect`](crate::driver::Driver::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Query {
    /// Which resources.
    pub select: Select,
    /// Only names after this one: where the last page ended.
    pub after: Option<ResourceName>,
    /// At most this many.
    pub limit: usize,
    /// Whether to scan the whole store, where its list of names is incomplete: slow, and finds the locks of other
    /// programs too.
    pub scan: bool,
}

impl Query {
    /// Every live resource, a thousand a page.
    #[must_use]
    pub fn live() -> Self {
        Self { select: Select::Live, after: None, limit: 1000, scan: false }
    }

    /// One resource.
    #[must_use]
    pub fn name(name: ResourceName) -> Self {
        Self { select: Select::Name(name), after: None, limit: 1, scan: false }
    }
}

/// A page of resources, in order of names.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page {
    /// The resources.
    pub resources: Vec<ResourceState>,
    /// Whether more follow after the last one.
    pub more: bool,
}

impl Page {
    /// A page of these resources; `more` if others follow after the last one.
    #[must_use]
    pub fn new(resources: Vec<ResourceState>, more: bool) -> Self {
        Self { resources, more }
    }

    /// Sorts `resources`, limits them to what `query` asks for, and notes whether any were left out.
    #[must_use]
    pub fn cut(mut resources: Vec<ResourceState>, query: &Query) -> Self {
        resources.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(after) = &query.after {
            resources.retain(|state| state.name > *after);
        }
        let more = resources.len() > query.limit;
        resources.truncate(query.limit);
        Self { resources, more }
    }
}
