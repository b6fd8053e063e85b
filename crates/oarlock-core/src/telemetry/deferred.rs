//! Ends of holds that are reported later, when nothing is locked any more.

use std::cell::{Cell, RefCell};

use super::{Hold, safely};
use crate::belief::LossReason;
use crate::clock::Moment;

/// A hold, why it was lost, and when it ended.
type End = (Hold, Option<LossReason>, Moment);

thread_local! {
    /// How many scopes there are, one in the other.
    static SCOPES: Cell<usize> = const { Cell::new(0) };
    static ENDS: RefCell<Vec<End>> = const { RefCell::new(Vec::new()) };
}

/// Reports an end: now, or at the end of the scope.
pub(super) fn report((hold, loss, now): End) {
    if SCOPES.get() > 0 {
        ENDS.with_borrow_mut(|ends| ends.push((hold, loss, now)));
    } else {
        safely(|| hold.end(loss.as_ref(), now));
    }
}

/// While it lives, ends on this thread are kept.
pub(crate) struct Scope;

impl Scope {
    pub(super) fn begin() -> Self {
        SCOPES.set(SCOPES.get() + 1);
        Self
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        SCOPES.set(SCOPES.get() - 1);
        if SCOPES.get() == 0 {
            // Taken first: a report may end another hold.
            for (hold, loss, now) in ENDS.take() {
                safely(|| hold.end(loss.as_ref(), now));
            }
        }
    }
}
