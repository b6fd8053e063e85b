//! What locks promise, and what a store promises besides, as data. `docs/guarantees.md` is generated from it.

use crate::capabilities::{Capabilities, Consistency, Fencing, Liveness, Notify, WaiterView};

/// A promise that holds on every store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Promise {
    /// A client stops believing that it holds a lock before the store can grant it to another client.
    BeliefEndsFirst,
    /// Every grant has a larger fence than every earlier grant of the same resource.
    LargerFence,
    /// Acquire, renew and release can be repeated.
    Repeatable,
    /// A cancelled call leaks nothing.
    NothingLeaks,
    /// A wait ends on time.
    BoundedWait,
    /// A holder learns of a loss at once.
    LossReported,
}

impl Promise {
    /// All of them, in the order of the page.
    pub const ALL: [Self; 6] = [
        Self::BeliefEndsFirst,
        Self::LargerFence,
        Self::Repeatable,
        Self::NothingLeaks,
        Self::BoundedWait,
        Self::LossReported,
    ];

    /// Its anchor in `docs/guarantees.md`. Anchors do not change.
    #[must_use]
    pub const fn anchor(self) -> &'static str {
        match self {
            Self::BeliefEndsFirst => "belief-ends-first",
            Self::LargerFence => "larger-fence",
            Self::Repeatable => "repeatable",
            Self::NothingLeaks => "nothing-leaks",
            Self::BoundedWait => "bounded-wait",
            Self::LossReported => "loss-reported",
        }
    }

    /// Its first words in `docs/guarantees.md`.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::BeliefEndsFirst => "Belief ends first.",
            Self::LargerFence => "Every grant has a larger fence",
            Self::Repeatable => "Acquire, renew and release can be repeated.",
            Self::NothingLeaks => "Cancelling leaks nothing.",
            Self::BoundedWait => "Waiting is bounded",
            Self::LossReported => "Loss is reported at once",
        }
    }

    /// The column of the tables in `docs/guarantees.md` that says how a store keeps it: a key of
    /// [`Guarantees::words`]. `None` where all stores keep it in the same way.
    #[must_use]
    pub const fn column(self) -> Option<&'static str> {
        match self {
            Self::BeliefEndsFirst => Some("forgets"),
            Self::LargerFence => Some("fence-source"),
            Self::LossReported => Some("dead-holder"),
            Self::Repeatable | Self::NothingLeaks | Self::BoundedWait => None,
        }
    }
}

/// What a store promises in one of its layouts or modes: one row of the tables in `docs/guarantees.md`.
#[derive(Clone, Copy, Debug)]
pub struct Guarantees {
    /// What its anchors begin with.
    pub anchor: &'static str,
    /// Its URLs, in Markdown.
    pub urls: &'static str,
    /// The values of `layout` or `mode` in a URL that choose this row. The first row of a store needs none.
    pub choices: &'static [&'static str],
    /// What decides who holds.
    pub decides: &'static str,
    /// When a dead holder is noticed.
    pub dead_holder: &'static str,
    /// When a hung holder is noticed.
    pub hung_holder: &'static str,
    /// Where fences come from.
    pub fences: &'static str,
    /// When an acknowledged grant can be forgotten.
    pub forgets: &'static str,
    /// What its driver can do; where that depends on the server, the least.
    pub capabilities: fn() -> Capabilities,
}

impl Guarantees {
    /// What it says in words: the key of each, which is a part of its anchor, and the text.
    #[must_use]
    pub const fn words(&self) -> [(&'static str, &'static str); 5] {
        [
            ("decides", self.decides),
            ("dead-holder", self.dead_holder),
            ("hung-holder", self.hung_holder),
            ("fence-source", self.fences),
            ("forgets", self.forgets),
        ]
    }
}

impl Capabilities {
    /// Every capability: its key, which is a part of an anchor of `docs/guarantees.md`, and its value in words.
    #[must_use]
    pub fn words(&self) -> [(&'static str, &'static str); 13] {
        // Each field is named, so that a new one cannot be left out.
        let Self {
            order,
            units,
            one_rule,
            fencing,
            raises_fences,
            liveness,
            outlives_process,
            waiters,
            notify,
            records,
            listing,
            memo,
            consistency,
        } = self;
        [
            ("order", yes(*order)),
            ("shared", yes(*units)),
            ("one-rule", yes(*one_rule)),
            (
                "fencing",
                match fencing {
                    Fencing::Strict => "strict",
                    Fencing::Clocked => "clocked",
                    Fencing::None => "none",
                },
            ),
            ("raises-fences", yes(*raises_fences)),
            (
                "liveness",
                match liveness {
                    Liveness::Lease => "lease",
                    Liveness::Session => "session",
                    Liveness::LeaseAndProcess => "lease and process",
                },
            ),
            ("hand-over", yes(*outlives_process)),
            (
                "waiters",
                match waiters {
                    WaiterView::Listed => "listed",
                    WaiterView::Counted => "counted",
                    WaiterView::Hidden => "hidden",
                },
            ),
            (
                "wake-up",
                match notify {
                    Notify::Push => "push",
                    Notify::Poll => "poll",
                },
            ),
            ("records", yes(*records)),
            ("listing", yes(*listing)),
            ("memo", yes(*memo)),
            (
                "consistency",
                match consistency {
                    Consistency::Consensus => "consensus",
                    Consistency::Single => "one server",
                    Consistency::Timing => "timing",
                    Consistency::BestEffort => "best effort",
                },
            ),
        ]
    }
}

const fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}
